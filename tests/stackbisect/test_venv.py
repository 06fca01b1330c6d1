"""Probes in virtual environments: real interpreters, real pip, wheels of our own from a folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pinner import shipped
from pinner.launch import session_dir
from stackbisect.errors import UsageError
from stackbisect.probe import Candidate, EvidenceOptions, InfrastructureError, Job, ProbeResult
from stackbisect.runtimes import loaded
from stackbisect.runtimes.base_python import Base, find_base
from stackbisect.runtimes.venv import VenvRuntime
from stackbisect.spaces import index
from tests.stackbisect import wheels

SUM = (
    "import struct, summing\n"
    "for step in range(1, 4):\n"
    "    values = [1e16, 1.0, -1e16 + step, 0.1 * step]\n"
    "    print('loss', struct.pack('<d', summing.total(values)).hex())\n"
)
LOSS = EvidenceOptions(stdout=("loss (.*)",))


@pytest.fixture(name="store")
def _store(tmp_path: Path) -> Path:
    """A folder of wheels: three versions that sum forward, two that sum backward."""
    folder = tmp_path / "store"
    orders = dict.fromkeys(("1.0", "1.1", "1.9"), "forward")
    orders |= dict.fromkeys(("1.10", "2.0"), "backward")
    wheels.summing(folder, orders)
    return folder


@pytest.fixture(name="base")
def _base(store: Path) -> Base:
    return find_base(sys.executable, ("--no-index", "--find-links", str(store)), os.environ)


@pytest.fixture(name="probe")
def _probe(base: Base, tmp_path: Path) -> Callable[..., ProbeResult]:
    """Run one probe: `probe(version, command, ...)`."""
    count = iter(range(1, 1000))

    def run(
        version: str,
        command: Sequence[str] = ("python", "-c", SUM),
        *,
        evidence: EvidenceOptions = LOSS,
        extras: Sequence[str] = (),
        time_limit: float | None = None,
        env: dict[str, str] | None = None,
    ) -> ProbeResult:
        folder = tmp_path / "probes" / f"{next(count):04d}"
        (folder / "scratch").mkdir(parents=True)
        settings = session_dir.Settings("observe", "test", session_dir.now())
        (tmp_path / "work").mkdir(exist_ok=True)
        job = Job(
            command=tuple(command),
            evidence=evidence,
            session=session_dir.create(folder / "session", settings).path,
            inside=shipped.inside_dir(),
            log=folder / "log",
            stdout=folder / "stdout",
            scratch=folder / "scratch",
            workdir=tmp_path / "work",
            env=env or {},
            time_limit=time_limit,
        )
        runtime = VenvRuntime(base, "summing", extras, tmp_path / "envs")
        return runtime.run(Candidate(version, version, 0), job)

    return run


Probe = Callable[..., ProbeResult]


def test_evidence_is_the_bits_of_the_version_that_was_asked_for(probe: Probe) -> None:
    forward, again, backward = probe("1.0"), probe("1.1"), probe("1.10")
    assert [r.status for r in (forward, again, backward)] == ["ran"] * 3, forward.reason
    assert forward.evidence == again.evidence
    assert forward.evidence.digest != backward.evidence.digest
    assert forward.loaded["installed"] == "1.0"
    assert forward.loaded["modules"]["summing"][0] == "1.0"
    assert forward.loaded["modules"]["summing"][1].startswith("{env}/")
    assert any("libc.so" in path for path in forward.loaded["libraries"])
    assert forward.loaded["artifacts"]["summing"].startswith("sha256:")


def test_each_environment_is_new_and_is_kept_for_the_next_probe(
    probe: Probe, tmp_path: Path
) -> None:
    probe("1.0")
    first = {path: path.stat().st_ctime_ns for path in (tmp_path / "envs").iterdir()}
    probe("1.0")
    probe("2.0")
    second = {path: path.stat().st_ctime_ns for path in (tmp_path / "envs").iterdir()}
    assert len(second) == 2
    assert first.items() <= second.items()


def test_an_environment_half_made_by_a_kill_is_made_anew(probe: Probe, tmp_path: Path) -> None:
    probe("1.0")
    (made,) = (tmp_path / "envs").iterdir()
    (made / "stackbisect.json").unlink()
    for path in made.rglob("summing/__init__.py"):
        path.write_text("raise SystemExit('half made')")
    assert probe("1.0").status == "ran"


def test_a_store_that_is_gone_is_the_machinerys_fault(probe: Probe, store: Path) -> None:
    for wheel in store.iterdir():
        wheel.unlink()
    found = probe("1.0")
    assert found.status == "infrastructure"
    assert "(from versions: none)" in found.reason


def test_a_dependency_that_does_not_exist_is_the_candidates_fault(
    probe: Probe, store: Path
) -> None:
    source = wheels.SUMMING.format(order="", version="1.2", expression="values")
    wheels.write(store, "summing", "1.2", {"summing.py": source}, requires=["no-such-thing"])
    assert probe("1.2").status == "untestable"


def test_what_cannot_be_installed_is_untestable_with_pips_words(probe: Probe) -> None:
    found = probe("3.0")
    assert found.status == "untestable"
    assert "No matching distribution found for summing==3.0" in found.reason


def test_extras_are_installed_in_the_same_call(probe: Probe, store: Path) -> None:
    wheels.write(store, "helper", "0.1", {"helper.py": ""}, requires=["summing<2"])
    assert probe("1.0", ("python", "-c", "import helper;" + SUM), extras=["helper"]).status == "ran"
    assert probe("2.0", extras=["helper"]).status == "untestable"


def test_an_import_error_leaves_a_failed_command_and_no_verdict(probe: Probe) -> None:
    found = probe("1.0", ("python", "-c", "import no_such_module"))
    assert (found.status, found.exit_code) == ("ran", 1)
    assert found.evidence.empty


def test_a_command_that_is_not_there_ends_with_127(probe: Probe) -> None:
    found = probe("1.0", ("no-such-program",))
    assert found.exit_code == 127
    assert "no-such-program: not found" in Path(found.log).read_text()


def test_a_command_killed_by_a_signal_ends_with_128_and_its_number(probe: Probe) -> None:
    found = probe("1.0", ("sh", "-c", "kill -9 $$"))
    assert found.exit_code == 137


def test_another_interpreter_in_the_command_is_untestable(probe: Probe) -> None:
    code = "print('loss 1')"
    found = probe("1.0", (sys.executable, "-c", code))
    assert found.status == "untestable"
    assert "no Python of the candidate's environment ran" in found.reason


def test_a_package_found_first_by_pythonpath_is_untestable(probe: Probe, tmp_path: Path) -> None:
    (tmp_path / "shadow").mkdir()
    (tmp_path / "shadow" / "summing.py").write_text(
        wheels.SUMMING.format(order="", version="1.0", expression="values")
    )
    found = probe("1.0", env={"PYTHONPATH": str(tmp_path / "shadow")})
    assert found.status == "untestable"
    assert str(tmp_path / "shadow" / "summing.py") in found.reason


def test_a_package_overwritten_by_an_extra_is_untestable(probe: Probe, store: Path) -> None:
    source = wheels.SUMMING.format(order="", version="0.5", expression="values")
    wheels.write(store, "bundle", "1", {"summing/__init__.py": source}, requires=["summing"])
    found = probe("1.0", extras=["bundle"])
    assert found.status == "untestable", found
    assert "summing.__version__ is 0.5" in found.reason


def test_the_commands_own_pythonpath_is_kept_behind_pinners(probe: Probe, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "mine.py").write_text("value = 3")
    code = "import mine, sys; print('loss', mine.value); assert 'inject' in sys.path[1]"
    found = probe("1.0", ("python", "-c", code), env={"PYTHONPATH": str(tmp_path / "mine")})
    assert (found.status, found.exit_code) == ("ran", 0), Path(found.log).read_text()


def test_compile_caches_are_new_and_empty_in_every_probe(
    probe: Probe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "stale"))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "stale"))
    code = (
        "import os\n"
        "names = [n for n in os.environ if n.endswith(('_CACHE_DIR', '_CACHE_PATH'))]\n"
        "for n in sorted(names):\n"
        "    print('loss', n, os.listdir(os.environ[n]))\n"
        "    open(os.path.join(os.environ[n], 'kernel'), 'w').close()\n"
    )
    found = [probe("1.0", ("python", "-c", code)) for _ in range(2)]
    assert found[0].evidence == found[1].evidence
    text = Path(found[0].log).read_text()
    assert "TRITON_CACHE_DIR []" in text
    assert "JAX_COMPILATION_CACHE_DIR []" in text
    assert not (tmp_path / "stale").exists()


def test_evidence_files_count_only_when_the_probe_wrote_them(probe: Probe, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "old.bin").write_bytes(b"left from before")
    code = "import summing; open('new.bin', 'w').write(repr(summing.total([0.1, 0.2, 0.3])))"
    found = probe("1.0", ("python", "-c", code), evidence=EvidenceOptions(files=("*.bin",)))
    assert [stream for stream in found.evidence.streams if "bin" in stream] == ["file:new.bin"]


def test_a_command_over_its_time_limit_is_untestable_and_gone(probe: Probe) -> None:
    started = time.monotonic()
    found = probe("1.0", ("sh", "-c", "sleep 7654 & sleep 7654"), time_limit=1.0)
    assert found.status == "untestable"
    assert "did not end within 1 s" in found.reason
    assert time.monotonic() - started < 30
    assert not running("sleep 7654")


def test_what_goes_into_the_background_ends_with_the_command(probe: Probe) -> None:
    probe("1.0", ("sh", "-c", "setsid sleep 7655 & exit 0"))
    assert not running("sleep 7655")


def test_fingerprints_from_the_command_are_evidence(probe: Probe) -> None:
    code = (
        "import pinner, summing\nfor _ in range(3): pinner.fingerprint('loss', summing.total([.1]))"
    )
    found = probe("1.0", ("python", "-c", code), evidence=EvidenceOptions())
    assert found.exit_code == 0, Path(found.log).read_text()
    (steps,) = found.evidence.streams["loss"].values()
    assert len(steps) == 3


def test_secrets_of_the_environment_are_blotted_out_of_the_log(
    probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "very-secret-value")
    found = probe("1.0", ("python", "-c", "import os; print(os.environ['WANDB_API_KEY'])"))
    text = Path(found.log).read_text() + Path(found.log).with_name("stdout").read_text()
    assert "very-secret-value" not in text
    assert "<hidden>" in text


def test_a_kill_of_the_program_takes_the_command_with_it(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom stackbisect.runtimes import process\n"
        "here = Path(sys.argv[1])\n"
        "command = ['sh', '-c', 'setsid sleep 7656 & echo up; sleep 7656']\n"
        "process.run(command, {'PATH': sys.argv[2]}, here, log=here / 'log', stdout=here / 'out')\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    argv = [sys.executable, "-c", code, str(tmp_path), os.environ["PATH"]]
    with subprocess.Popen(argv, env=environ, start_new_session=True) as program:
        wait_for(lambda: (tmp_path / "log").exists() and "up" in (tmp_path / "log").read_text())
        os.killpg(program.pid, signal.SIGKILL)
    wait_for(lambda: not running("sleep 7656"))


# -- the index -------------------------------------------------------------------------------------


def test_versions_come_from_the_index_in_order_with_both_ends(base: Base) -> None:
    found = index.space(base, "summing", "1.0", "2.0", pre=False, environ=os.environ)
    assert [c.id for c in found.candidates] == ["1.0", "1.1", "1.9", "1.10", "2.0"]
    back = index.space(base, "summing", None, "1.9", pre=False, environ=os.environ)
    assert [c.id for c in back.candidates] == ["1.0", "1.1", "1.9"]
    found = index.space(base, "summing", "1.10.0", "1.1", pre=False, environ=os.environ)
    assert [c.id for c in found.candidates] == ["1.10", "1.9", "1.1"]
    assert "searched backwards" in found.notes[0]


def test_prereleases_count_on_request_or_as_an_end(base: Base, store: Path) -> None:
    wheels.summing(store, {"1.5rc1": "forward", "2.0rc1": "backward"})

    def names(good: str, bad: str, pre: bool) -> list[str]:
        found = index.space(base, "summing", good, bad, pre=pre, environ=os.environ)
        return [candidate.id for candidate in found.candidates]

    assert names("1.1", "2.0", False) == ["1.1", "1.9", "1.10", "2.0"]
    assert names("1.1", "2.0", True) == ["1.1", "1.5rc1", "1.9", "1.10", "2.0rc1", "2.0"]
    assert names("1.1", "2.0rc1", False) == ["1.1", "1.9", "1.10", "2.0rc1"]


def test_an_end_that_does_not_exist_offers_the_nearest(base: Base) -> None:
    with pytest.raises(UsageError, match=r"'1\.8' does not exist; nearest: 1\.1, 1\.9"):
        index.space(base, "summing", "1.0", "1.8", pre=False, environ=os.environ)


def test_a_package_that_does_not_exist_is_an_error_in_pips_words(base: Base) -> None:
    with pytest.raises(UsageError, match="No matching distribution found for nothing-of-it"):
        index.space(base, "nothing-of-it", "1", "2", pre=False, environ=os.environ)


def test_an_index_that_does_not_answer_is_the_machinerys_fault(tmp_path: Path) -> None:
    args = ("--index-url", "http://127.0.0.1:9/simple", "--retries", "1", "--timeout", "2")
    environ = {k: v for k, v in os.environ.items() if not k.startswith("PIP_")}
    environ["PIP_CONFIG_FILE"] = os.devnull
    base = find_base(sys.executable, args, environ)
    with pytest.raises(InfrastructureError, match="does not answer"):
        index.space(base, "summing", "1", "2", pre=False, environ=environ)


def test_a_login_in_an_index_address_is_refused() -> None:
    with pytest.raises(UsageError, match="PIP_INDEX_URL"):
        find_base(sys.executable, ("--index-url=https://me:secret@host/simple",), os.environ)


def test_a_base_that_cannot_be_one_says_why(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be started"):
        find_base(str(tmp_path / "no-python"), (), os.environ)
    script = tmp_path / "old"
    script.write_text('#!/bin/sh\necho \'["/old", [3, 6, 1], "21.0"]\'\n')
    script.chmod(0o755)
    with pytest.raises(UsageError, match=r"expected Python 3\.8 or newer, found 3\.6\.1"):
        find_base(str(script), (), os.environ)


# -- what is loaded --------------------------------------------------------------------------------


def asked(installed: str = "1.0") -> loaded.Asked:
    """Version 1.0 of a package with one module."""
    return loaded.Asked("numpy", "1.0", installed, ("numpy",), Path("/envs/a"))


def seen(version: str | None, file: str) -> loaded.Loaded:
    """One process that loaded numpy from a file."""
    return loaded.Loaded(1, 1, {"numpy": (version, file)}, ())


@pytest.mark.parametrize(
    ("wanted", "found", "words"),
    [
        (asked(), seen("1.0", "/envs/a/lib/numpy/__init__.py"), ""),
        (asked(), seen("1.0+cpu", "/envs/a/lib/numpy/__init__.py"), ""),
        (asked(), seen(None, "/envs/a/lib/numpy/__init__.py"), ""),
        (asked(), seen("custom build", "/envs/a/lib/numpy/__init__.py"), ""),
        (asked(), loaded.Loaded(1, 0, {}, ()), ""),
        (asked("1.1"), seen("1.0", "/envs/a/lib/numpy/__init__.py"), "installed is 1.1"),
        (asked(""), seen("1.0", "/envs/a/lib/numpy/__init__.py"), "installed is nothing"),
        (asked(), seen("1.1", "/envs/a/lib/numpy/__init__.py"), "__version__ is 1.1"),
        (asked(), seen("1.0", "/envs/ab/lib/numpy/__init__.py"), "not from the candidate's"),
        (asked(), loaded.Loaded(), "no Python of the candidate's environment"),
    ],
)
def test_loaded_is_held_against_asked(
    wanted: loaded.Asked, found: loaded.Loaded, words: str
) -> None:
    fault = loaded.fault(wanted, found)
    assert (words in fault) if words else fault == ""


# -- helpers ---------------------------------------------------------------------------------------


def running(command: str) -> bool:
    """Whether a process with this command line runs."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode()
            state = path.with_name("stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if words == command and state != "Z":
            return True
    return False


def wait_for(true: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait until something is true; fail when it does not come true."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.05)
