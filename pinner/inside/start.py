"""Begin a session in this process: everything that is set up before the user's code runs."""

from __future__ import annotations

import sys

from . import faults, imports, ledger, pins, session, stand_in

TYPE_CHECKING = False  # importing `typing` would double the cost of starting
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Callable, Dict, Mapping

_INDUCTOR = (
    "torch._dynamo.pgo",
    "torch._inductor.compile_fx",
    "torch._inductor.fx_passes.pad_mm",
    "torch._inductor.ir",
    "torch._inductor.output_code",
    "torch._inductor.package.package",
    "torch._inductor.runtime.coordinate_descent_tuner",
    "torch._inductor.runtime.triton_heuristics",
    "torch._inductor.select_algorithm",
)
"""The modules in which Inductor decides."""

WORKERS = (
    "/torch/_inductor/compile_worker/__main__.py",
    "/torch/_inductor/__autotune_main__.py",
)
"""Programs of Inductor that compile or time for the process that decides."""

_begun = False


def begin(environ: Mapping[str, str]) -> None:
    """Activate the session that `environ` names, if any, and hook the modules it concerns.

    Raises StartFault where the session cannot be used. Imports neither torch nor triton.
    """
    global _begun
    if _begun:
        return
    active = session.activate(environ)
    if active is None:
        return
    if active.pins is not None:
        _check_pins(active, active.pins)
    ledger.prepare()
    _begun = True
    imports.install()
    stand_in.offer()
    if active.agree is not None:
        _begin_agree()
    ledger.at_first_line(_facts_at_first_line)
    ledger.at_exit(_refuse_bypass)
    if active.policy is not None or active.locked_policy:
        _begin_policy(active)  # sets variables too
    imports.before("torch", _install_others)  # sets variables, which are facts of the stack
    imports.before("torch", _before_torch)
    imports.after("torch", _after_torch)
    imports.after("triton.runtime.autotuner", _install_triton)
    for name in _INDUCTOR:
        imports.after(name, _install_inductor)
    if active.evidence:
        imports.after("torch.optim.optimizer", _install_optimizer)
    for tap in active.taps:
        imports.after(tap["module"], _install_tap(tap))
    ledger.at_exit(_finish_cublaslt)
    if active.cublaslt == "on":
        _begin_cublaslt()
    if active.trace is not None:
        _begin_trace(active.trace)
    if environ.get("PINNER_VERIFY_RESUME"):
        _begin_resume(environ)
    if environ.get("PINNER_STEP_TIMES"):
        _begin_step_times(environ["PINNER_STEP_TIMES"])


def _check_pins(active: session.Session, path: str) -> None:
    try:
        pins.check_end(path)
    except faults.StartFault as error:
        from . import agree

        if not agree.keep(str(error)):
            raise


def _begin_agree() -> None:
    from . import agree

    agree.begin(imports.after)


def _before_torch() -> None:
    from . import facts
    from .choosers.cublaslt import chooser

    if not _is_worker():  # else where it decides something, as every helper
        ledger.open_now()
    facts.before_torch()
    chooser.before_torch()


def _after_torch(module: ModuleType) -> None:
    from . import facts
    from .choosers.cublaslt import chooser

    if not _is_worker():
        facts.after_torch()
    chooser.after_torch(module)


def _is_worker() -> bool:
    program: str = (getattr(sys, "argv", None) or [""])[0]
    return program.endswith(WORKERS)


def _begin_cublaslt() -> None:
    """At once where the session says so: what is linked with cuBLASLt may come without torch."""
    from .choosers.cublaslt import chooser

    chooser.begin()


def _finish_cublaslt() -> None:
    """Name what went past the lock; nothing is imported where cuBLASLt never was there."""
    if __package__ + ".choosers.cublaslt.chooser" in sys.modules or _maps_cublaslt():
        from .choosers.cublaslt import chooser

        chooser.finish()


def _maps_cublaslt() -> bool:
    try:
        with open("/proc/self/maps", "rb") as source:
            return b"/libcublasLt.so" in source.read()
    except OSError:
        return False


def _install_others() -> None:
    from .choosers.others import registry

    registry.install()


def _facts_at_first_line() -> None:
    from . import facts

    facts.report()


def _install_triton(module: ModuleType) -> None:
    from .choosers.triton import hooks

    hooks.install(module)


def _install_inductor(module: ModuleType) -> None:
    from .choosers.inductor import hooks

    hooks.install(module)


def _refuse_bypass() -> None:
    """End the process where torch or Triton came in past the hooks: it ran without pinner."""
    for name in ("torch", "triton.runtime.autotuner"):
        if imports.passed_by(name):
            ahead = ", ".join(imports.finders_ahead()) or "a finder that is gone by now"
            faults.die(
                "%s was imported past pinner, so what it decided was not pinned: %s stands before "
                "pinner's finder in sys.meta_path" % (name, ahead),
                advice="insert it after the first place, or call importlib.import_module(%r) "
                "before it is inserted" % name,
            )


def _install_optimizer(module: ModuleType) -> None:
    from .evidence import optimizer

    optimizer.install(module)


def _begin_policy(active: session.Session) -> None:
    from . import policy

    policy.begin(active)


def _begin_trace(fields: Dict[str, Any]) -> None:
    from .evidence.trace import install

    install.begin(fields)


def _begin_resume(environ: Mapping[str, str]) -> None:
    from .evidence.resume import ready

    ready.begin(environ)


def _begin_step_times(folder: str) -> None:
    from . import step_times

    step_times.begin(folder)


def _install_tap(tap: Dict[str, Any]) -> Callable[[ModuleType], None]:
    def install(module: ModuleType) -> None:
        from .evidence import taps

        taps.install(tap, module)

    return install
