"""Settings of every test; a closing list says what was skipped and why."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from collections.abc import Iterator

import pytest

from tests import lanes

# A workload must never inherit a session from the shell that runs the tests.
for _name in [n for n in os.environ if n.startswith("PINNER_")]:
    if _name not in (lanes.REQUIRE_SERVICES, lanes.SOAK, lanes.CUBLASLT):
        del os.environ[_name]

# A background job ignores Ctrl-C, and what a process ignores its children ignore too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Triton decides when it is imported whether this process can interpret, and any test file may be
# the first to import it. What compiles runs in processes of its own.
os.environ.setdefault("TRITON_INTERPRET", "1")

# Whether the C++ compiler knows the machine's instruction sets Inductor finds out anew beside every
# empty cache folder: four programs, each loaded by a process of its own (pytorch 2.13). Where it
# does not know one, what the tests compile fails; 0 would leave vectors out.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

# Inductor sets these for the whole process once it compiled something (pytorch 2.13).
_SET_BY_INDUCTOR = {
    name: os.environ.get(name) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
}


# How long one example takes says something of the machine alone.
with contextlib.suppress(ImportError):
    from hypothesis import settings

    settings.register_profile("pinner", deadline=None)
    settings.load_profile("pinner")


@pytest.fixture(autouse=True)
def _no_cache_folder_of_another_test() -> Iterator[None]:
    """Programs that the next test starts get the caches they would have had."""
    _forget_caches()  # a module's fixture may have compiled something by now
    yield
    _forget_caches()


def _forget_caches() -> None:
    for name, value in _SET_BY_INDUCTOR.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that asks how often to repeat is a repeated check; GPU tests need a GPU."""
    for item in items:
        if isinstance(item, pytest.Function) and _asks_how_often(item):
            item.add_marker(pytest.mark.soak)
    _skip_without_gpu(items)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Groups that xdist does not see would start every service and fixture in every worker."""
    if not getattr(session.config.option, "loadgroup", False):
        return
    for item in session.items:
        if item.get_closest_marker("xdist_group") and "@" not in item.nodeid:
            raise pytest.UsageError(
                f"{item.nodeid}: pytest {pytest.__version__} and pytest-xdist do not group tests "
                "together (pytest-xdist#1386); take the versions of requirements/dev.lock"
            )


def _asks_how_often(item: pytest.Function) -> bool:
    code = getattr(item.function, "__code__", None)
    asking = {lanes.fresh_processes.__name__, lanes.soak.__name__}
    return code is not None and not asking.isdisjoint(code.co_names)


def _skip_without_gpu(items: list[pytest.Item]) -> None:
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu_items or lanes.has_gpu():
        return
    for item in gpu_items:
        item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what did not run here: one line a reason, with the number of tests."""
    skipped = terminalreporter.stats.get("skipped", [])
    if not skipped:
        return
    reasons = Counter(_reason(report) for report in skipped)
    terminalreporter.section("not run on this machine")
    for reason, count in sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0])):
        terminalreporter.write_line(f"{count:4d}  {reason}")


def _reason(report: pytest.TestReport) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return str(text).removeprefix("Skipped: ")


@pytest.fixture(name="require")
def _require() -> object:
    """`require(condition, reason)`: skip, or fail where PINNER_REQUIRE_SERVICES is set."""
    return lanes.require
