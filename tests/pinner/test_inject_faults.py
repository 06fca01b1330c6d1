"""A process that cannot be pinned ends with 96 and says why; it never runs unpinned."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests import lanes
from tests.session_rig import INSIDE, NOTE, SessionRig

PREFIX = "pinner: cannot start in this process: "


@pytest.fixture
def rig(tmp_path: Path) -> SessionRig:
    return SessionRig(tmp_path / "session")


def assert_refused(rig: SessionRig, done: CompletedProcess[str], *causes: str) -> None:
    """One line, a fault file that says the same, the reserved code, and nothing of the program."""
    assert done.returncode == 96, done
    assert "ran" not in done.stdout
    line = next(text for text in done.stderr.splitlines() if text.startswith("pinner: "))
    [fault] = rig.faults()
    assert line == "pinner: " + fault["cause"]
    for cause in causes:
        assert cause in line


def test_a_missing_session_file_is_named(rig: SessionRig) -> None:
    (rig.folder / "session.json").unlink()
    done = rig.python("-c", "print('ran')")
    assert_refused(rig, done, str(rig.folder / "session.json"), "No such file")


@pytest.mark.parametrize("keep", [0, 1, 40, -1])
def test_a_torn_session_file_is_named(rig: SessionRig, keep: int) -> None:
    path = rig.folder / "session.json"
    path.write_bytes(path.read_bytes()[:keep])
    assert_refused(rig, rig.python("-c", "print('ran')"), str(path), "torn")


@pytest.mark.parametrize(
    ("field", "value", "cause"),
    [
        ("version", 2, "has version 2, this pinner reads version 1"),
        ("mode", "watch", "mode must be one of observe, enforce, found 'watch'"),
        ("cublaslt", "yes", "cublaslt must be one of auto, on, off, found 'yes'"),
        ("on_miss", "ignore", "on_miss must be one of fallback, error, tune, found 'ignore'"),
    ],
)
def test_a_session_of_another_kind_is_refused(
    rig: SessionRig, field: str, value: object, cause: str
) -> None:
    rig.settings[field] = value
    rig.write_settings()
    assert_refused(rig, rig.python("-c", "print('ran')", PINNER_MODE=""), cause)


def test_a_mode_that_contradicts_the_session_is_refused(rig: SessionRig) -> None:
    env = {**rig.environ(), "PINNER_MODE": "enforce"}
    command = [sys.executable, "-c", "print('ran')"]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert_refused(rig, done, "PINNER_MODE is 'enforce'", "says 'observe'")


def test_a_relative_session_folder_is_refused(rig: SessionRig) -> None:
    env = {**rig.environ(), "PINNER_SESSION": "session"}
    command = [sys.executable, "-c", "print('ran')"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, cwd=rig.folder.parent)
    assert_refused(rig, done, "must be an absolute folder, found 'session'")


def test_pins_that_were_cut_are_refused_before_the_program(rig: SessionRig) -> None:
    path = rig.enforce({"triton": {"kernels:k": {"entries": [], "fallback": []}}})
    path.write_bytes(path.read_bytes()[:-9])
    assert_refused(rig, rig.python("-c", "print('ran')"), str(path), "ends in the middle")


def test_pins_that_are_missing_are_refused_before_the_program(rig: SessionRig) -> None:
    path = rig.enforce()
    path.unlink()
    assert_refused(rig, rig.python("-c", "print('ran')"), str(path), "No such file")


def test_pins_with_one_changed_byte_end_the_process_that_reads_them(rig: SessionRig) -> None:
    """A digest covers every byte; it is checked where the pins are first needed."""
    path = rig.enforce({"triton": {"kernels:k": {"entries": [], "fallback": []}}})
    path.write_text(path.read_text().replace("kernels:k", "kernels:j"))
    done = rig.script("from pinner.inside import pins; pins.triton_kernel('x'); print('ran')")
    assert_refused(rig, done, str(path), "is torn: its digest is sha256:")


def test_a_missing_ledger_folder_is_named(rig: SessionRig) -> None:
    shutil.rmtree(rig.folder / "ledger")
    assert_refused(rig, rig.python("-c", "print('ran')"), str(rig.folder / "ledger"))


@pytest.fixture
def read_only(rig: SessionRig) -> Iterator[Path]:
    folder = rig.folder / "ledger"
    mount = ["mount", "-t", "tmpfs", "-o", "ro", "none", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True)
    lanes.require(done.returncode == 0, "needs the right to mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.service
def test_a_read_only_ledger_folder_is_named(rig: SessionRig, read_only: Path) -> None:
    """Root may write where permissions say no: only the file system itself can forbid it."""
    done = rig.python("-c", "print('ran')")
    assert_refused(rig, done, str(read_only), "Read-only file system")


@pytest.fixture
def read_only_session(rig: SessionRig) -> Iterator[Path]:
    bind = subprocess.run(["mount", "--bind", str(rig.folder), str(rig.folder)])
    lanes.require(bind.returncode == 0, "needs the right to mount a file system")
    remount = ["mount", "-o", "remount,bind,ro", str(rig.folder)]
    subprocess.run(remount, check=True)
    yield rig.folder
    subprocess.run(["umount", str(rig.folder)], check=True)


@pytest.mark.service
def test_where_no_fault_file_can_be_left_the_line_and_the_code_remain(
    rig: SessionRig, read_only_session: Path
) -> None:
    done = rig.python("-c", "print('ran')")
    assert (done.returncode, done.stdout) == (96, "")
    assert done.stderr.startswith(PREFIX)
    assert "Read-only file system" in done.stderr


def test_a_damaged_pinner_is_a_fault_and_not_an_unpinned_run(rig: SessionRig) -> None:
    copy = rig.folder.parent / "inside"
    shutil.copytree(INSIDE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "imports.py").write_text("raise OSError('half a file')\n")
    rig.inject = copy / "inject"
    assert_refused(rig, rig.python("-c", "print('ran')"), "OSError: half a file")


@pytest.mark.service
@pytest.mark.parametrize("version", ["2.7", "3.6", "3.7"])
def test_a_python_that_is_too_old_is_told_so(rig: SessionRig, version: str) -> None:
    python = lanes.other_python(version)
    done = rig.run([python, "-c", "print('ran')"])
    assert_refused(rig, done, f"Python 3.8 or newer is needed, this is {version}")


@pytest.mark.service
@pytest.mark.parametrize("version", ["2.7", "3.6"])
def test_an_old_python_outside_a_session_runs_as_ever(version: str) -> None:
    python = lanes.other_python(version)
    env = {**os.environ, "PYTHONPATH": str(INSIDE / "inject")}
    done = subprocess.run([python, "-c", "print('ran')"], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")


def test_an_exception_in_a_hook_ends_the_process_and_names_the_place(rig: SessionRig) -> None:
    code = """
import sys
from pinner.inside import imports
def hook(module):
    module.no_such_name
imports.after("colorsys", hook)
try:
    import colorsys
except BaseException:
    print("ran")
print("ran")
"""
    done = rig.script(code)
    assert_refused(rig, done, "cannot hook colorsys: AttributeError", "program.py:5")


class TestHiddenSitecustomize:
    """The program's own sitecustomize runs as ever, after pinner is in place."""

    def write(self, rig: SessionRig, code: str) -> str:
        folder = rig.folder / "site"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(code)
        return str(folder)

    def test_it_runs_and_is_the_module_of_that_name(self, rig: SessionRig) -> None:
        folder = self.write(rig, "MARK = __name__\n")
        code = "import sitecustomize; print(sitecustomize.MARK, sitecustomize.__file__)"
        done = rig.python("-c", code, PYTHONPATH=folder)
        expected = f"sitecustomize {folder}/sitecustomize.py\n"
        assert (done.stdout, done.stderr) == (expected, "")

    def test_pinner_is_in_place_before_it_runs(self, rig: SessionRig) -> None:
        hidden = "import sys; print('pinner.inside.start' in sys.modules)\n"
        done = rig.python("-c", "pass", PYTHONPATH=self.write(rig, hidden))
        assert done.stdout == "True\n"

    def test_an_exception_in_it_is_named_and_the_pins_stay(self, rig: SessionRig) -> None:
        folder = self.write(rig, "raise RuntimeError('mine')\n")
        done = rig.script(NOTE + "note('decided')", PYTHONPATH=folder)
        assert done.returncode == 0
        assert f"pinner: {folder}/sitecustomize.py raised RuntimeError: mine" in done.stderr
        assert "Error in sitecustomize" in done.stderr  # Python's own words, as without pinner
        assert rig.notes() == [["decided"]]

    @pytest.mark.parametrize("raised", ["SystemExit(7)", "KeyboardInterrupt()"])
    def test_what_ends_python_in_it_still_does(self, rig: SessionRig, raised: str) -> None:
        folder = self.write(rig, f"raise {raised}\n")
        plain = subprocess.run(
            [sys.executable, "-c", "print('ran')"],
            env={**os.environ, "PYTHONPATH": folder},
            capture_output=True,
            text=True,
        )
        done = rig.python("-c", "print('ran')", PYTHONPATH=folder)
        assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout)

    def test_a_broken_session_is_a_fault_before_it_runs(self, rig: SessionRig) -> None:
        folder = self.write(rig, "print('ran')\n")
        (rig.folder / "session.json").write_text("{")
        assert_refused(rig, rig.python("-c", "pass", PYTHONPATH=folder), "torn")
