"""`pinner.enforce()`: a program that starts itself is pinned from there on, or told why not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pinner.inside import pins as inside_pins
from pinner.lockfile.codec import write_lock
from pinner.lockfile.schema import Run, Stack
from tests import locks
from tests.session_rig import INSIDE, REPO, SessionRig

NOTE = """
def note(text):
    from pinner.inside import ledger
    ledger.write({"t": "problem", "kind": "note", "chooser": "triton", "kernel": "", "text": text})
"""


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """A sealed lock for any stack."""
    path = tmp_path / "pinner.lock.toml"
    write_lock(path, locks.lock(locks.entry(), stack=Stack({}, {})))
    return path


def start(code: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """A program that nobody injects into, in its folder; temporary files go to `folder/tmp`."""
    (folder / "tmp").mkdir(exist_ok=True)
    path = folder / "program.py"
    path.write_text(code)
    return subprocess.run(
        [sys.executable, str(path)],
        env={**os.environ, "PYTHONPATH": str(REPO), "TMPDIR": str(folder / "tmp"), **env},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )


ENFORCE = "import pinner\npinner.enforce('pinner.lock.toml')\n"


class TestAProgramThatStartsItself:
    def test_it_and_its_children_are_pinned(self, lock: Path) -> None:
        code = (
            ENFORCE
            + "import subprocess, sys\n"
            + "from pinner.inside import ledger, pins, session\n"
            + "print(session.current().mode, sorted(pins.modules()))\n"
            + "child = 'from pinner.inside import pins; print(sorted(pins.modules()))'\n"
            + "print(subprocess.run([sys.executable, '-c', child], capture_output=True,"
            + " text=True).stdout.strip())\n"
        )
        done = start(code, lock.parent)
        modules = "['fla.modules.layernorm']"
        assert done.stdout == f"enforce {modules}\n{modules}\n", done.stderr

    @pytest.mark.parametrize("word", ["on", "off"])
    def test_cublaslt_is_watched_as_it_was_asked_for(self, word: str, lock: Path) -> None:
        code = (
            ENFORCE.replace("toml')", f"toml', cublaslt={word!r})")
            + "from pinner.inside import session\n"
            + "from pinner.inside.choosers.cublaslt import chooser\n"
            + "print(session.current().cublaslt, chooser.library() is not None)\n"
        )
        done = start(code, lock.parent)
        assert done.stdout == f"{word} {word == 'on'}\n", done.stderr

    def test_one_line_says_what_became_of_the_lock(self, lock: Path) -> None:
        done = start(ENFORCE + "import torch\n", lock.parent)
        assert done.returncode == 0
        [line] = done.stderr.splitlines()
        assert line.startswith("pinner: 1 locked: 0 used, 1 unused")

    def test_its_folder_goes_with_it(self, lock: Path) -> None:
        code = ENFORCE + NOTE + "import os\nnote('here')\n"
        code += "print(len(os.listdir(os.environ['TMPDIR'])))"
        done = start(code, lock.parent)
        assert done.stdout == "1\n", done.stderr
        assert list((lock.parent / "tmp").iterdir()) == []

    def test_a_forked_child_leaves_the_folder_alone(self, lock: Path) -> None:
        code = (
            ENFORCE + NOTE + "import os, sys\n"
            "note('1')\n"
            "if os.fork() == 0: note('2'); sys.exit(0)\n"
            "os.wait(); note('3'); print(os.path.isdir(os.environ['PINNER_SESSION']))\n"
        )
        done = start(code, lock.parent)
        assert done.stdout == "True\n", done.stderr
        *notes, last = done.stderr.splitlines()
        assert notes == [f"pinner: note: {n}" for n in "132"]
        assert last.startswith("pinner: 1 locked")

    def test_a_spawned_child_that_asks_again_is_pinned_already(self, lock: Path) -> None:
        code = (
            "import multiprocessing, os\n" + ENFORCE + "SESSION = os.environ['PINNER_SESSION']\n"
            "def work(session):\n"
            "    import torch\n"
            "    assert session == SESSION\n"
            "if __name__ == '__main__':\n"
            "    context = multiprocessing.get_context('spawn')\n"
            "    child = context.Process(target=work, args=(SESSION,))\n"
            "    child.start(); child.join(); print(child.exitcode)\n"
        )
        done = start(code, lock.parent)
        assert done.stdout == "0\n", done.stderr

    def test_a_stack_that_does_not_match_ends_it(self, lock: Path) -> None:
        write_lock(lock, locks.lock(locks.entry(), stack=Stack({"torch": "1.0"}, {})))
        done = start(ENFORCE + "import torch\nprint('ran')", lock.parent)
        assert (done.returncode, done.stdout) == (96, "")
        assert "the stack here is not the locked one" in done.stderr

    def test_an_allowed_field(self, lock: Path) -> None:
        write_lock(lock, locks.lock(locks.entry(), stack=Stack({"torch": "1.0"}, {})))
        code = "import pinner\npinner.enforce('pinner.lock.toml', allow=['*'])\n"
        done = start(code + "import torch\nprint('ran')", lock.parent)
        assert done.stdout == "ran\n", done.stderr


PROBLEM = """
def problem(kind):
    from pinner.inside import ledger
    ledger.write({"t": "problem", "kind": kind, "chooser": "triton", "kernel": "some:kernel",
                  "text": "not among the live configs"})
"""
STRICT = "import pinner\npinner.enforce('pinner.lock.toml', on_miss='error')\n"
INVALID = ENFORCE + PROBLEM + "problem('invalid')\n"
BROKEN = "pinner: broken pins: 1 invalid: some:kernel: not among the live configs"


class TestBrokenPins:
    """A program that swallowed them is no success."""

    def test_it_ends_with_97_and_says_why(self, lock: Path) -> None:
        done = start(INVALID + "print('done')\n", lock.parent)
        assert (done.returncode, done.stdout) == (97, "done\n")
        first, last = done.stderr.splitlines()
        assert first == BROKEN
        assert "1 invalid" in last
        assert list((lock.parent / "tmp").iterdir()) == []

    @pytest.mark.parametrize("kind", ["missed", "drift"])
    def test_what_breaks_only_where_misses_are_errors(self, lock: Path, kind: str) -> None:
        more = PROBLEM + f"problem({kind!r})\n"
        assert start(STRICT + more, lock.parent).returncode == 97
        assert start(ENFORCE + more, lock.parent).returncode == 0

    def test_those_of_a_child_count(self, lock: Path) -> None:
        child = PROBLEM + "problem('invalid')"
        code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}])\n"
        assert start(ENFORCE + code, lock.parent).returncode == 97

    @pytest.mark.parametrize("end", ["import sys; sys.exit(0)", "raise SystemExit", "pass"])
    def test_however_it_ends_well(self, lock: Path, end: str) -> None:
        assert start(INVALID + end, lock.parent).returncode == 97

    def test_an_uncaught_exception_keeps_its_code(self, lock: Path) -> None:
        done = start(INVALID + "def f(): raise ValueError('own')\nf()\n", lock.parent)
        assert (done.returncode, BROKEN in done.stderr) == (1, True)
        assert "ValueError: own" in done.stderr

    def test_an_exception_that_was_only_printed_does_not(self, lock: Path) -> None:
        code = (
            "import code\ncode.InteractiveInterpreter(globals()).runsource('1 / 0')\n"
            "import sys; assert sys.last_value is not None\n"
        )
        assert start(INVALID + code, lock.parent).returncode == 97

    def test_all_exit_callbacks_run_and_all_output_is_there(self, lock: Path) -> None:
        """Also those registered before: pinner's own is not the last one."""
        before = "import atexit, os\natexit.register(lambda: print('earlier'))\n"
        after = "import torch\natexit.register(lambda: print('later'))\nprint('end', end=' ')\n"
        done = start(before + INVALID + after, lock.parent)
        assert (done.returncode, done.stdout) == (97, "end later\nearlier\n")

    @pytest.mark.parametrize("method", ["fork", "spawn"])
    def test_a_child_of_multiprocessing_that_asked_for_it(self, lock: Path, method: str) -> None:
        work = INVALID.replace("\n", "\n    ")
        code = (
            f"import multiprocessing\ndef work(fails):\n    {work}\n    assert not fails\n"
            "if __name__ == '__main__':\n"
            f"    context = multiprocessing.get_context({method!r})\n"
            "    for fails in (False, True):\n"
            "        child = context.Process(target=work, args=(fails,))\n"
            "        child.start(); child.join(); print(child.exitcode)\n"
        )
        done = start(code, lock.parent)
        assert (done.returncode, done.stdout) == (0, "97\n1\n"), done.stderr


class TestRefusals:
    def refused(self, code: str, folder: Path) -> str:
        """The last line of a program that must end with a PinnerError."""
        done = start(code + "print('ran')\n", folder)
        assert (done.returncode, done.stdout) == (1, "")
        kind = "pinner.inside.faults.PinnerError: "
        [line] = [text for text in done.stderr.splitlines() if text.startswith(kind)]
        return line

    @pytest.mark.parametrize("name", ["torch", "triton"])
    def test_too_late(self, lock: Path, name: str) -> None:
        said = self.refused(f"import {name}\n" + ENFORCE, lock.parent)
        assert "must be called before torch and triton are imported" in said
        assert name in said

    def test_a_lock_that_is_not_there(self, tmp_path: Path) -> None:
        assert "pinner.lock.toml" in self.refused(ENFORCE, tmp_path)

    def test_a_lock_that_was_cut(self, lock: Path) -> None:
        lock.write_bytes(lock.read_bytes()[:-20])
        assert "pinner.lock.toml" in self.refused(ENFORCE, lock.parent)

    def test_cublaslt_off_where_the_lock_holds_its_choices(self, tmp_path: Path) -> None:
        path = tmp_path / "pinner.lock.toml"
        write_lock(path, locks.lock(cublaslt=(locks.problem(),), stack=Stack({}, {})))
        off = ENFORCE.replace("toml')", "toml', cublaslt='off')")
        assert "the lock holds 1 choices of cuBLASLt" in self.refused(off, tmp_path)

    def test_another_word_for_cublaslt(self, lock: Path) -> None:
        never = ENFORCE.replace("toml')", "toml', cublaslt='never')")
        said = self.refused(never, lock.parent)
        assert 'expected "auto", "on" or "off" for cublaslt, found \'never\'' in said

    def test_a_draft(self, lock: Path) -> None:
        draft = Run(
            command=("python",),
            created="2026-01-02T03:04:05+00:00",
            pinner="0.1.0",
            sealed=False,
            complete=True,
            runs=0,
        )
        write_lock(lock, locks.lock(locks.entry(), run=draft, stack=Stack({}, {})))
        assert "is a draft" in self.refused(ENFORCE, lock.parent)
        allowed = "import pinner\npinner.enforce('pinner.lock.toml', allow_draft=True)\n"
        assert start(allowed, lock.parent).returncode == 0

    def test_another_lock_than_the_one_in_force(self, lock: Path) -> None:
        other = lock.with_name("other.toml")
        write_lock(other, locks.lock(locks.entry(128), stack=Stack({}, {})))
        said = self.refused(ENFORCE + "pinner.enforce('other.toml')\n", lock.parent)
        assert "enforces the lock sha256:" in said

    def test_the_same_lock_twice_is_once(self, lock: Path) -> None:
        done = start(ENFORCE * 2 + "import torch\n" + ENFORCE + "print('ran')", lock.parent)
        assert done.stdout == "ran\n", done.stderr


class TestUnderTheLauncher:
    """Started by pinner, the program's own call asks for what is there."""

    def test_while_recording_it_does_nothing(self, lock: Path, tmp_path: Path) -> None:
        rig = SessionRig(tmp_path / "session")
        code = (
            f"import os; os.chdir({str(lock.parent)!r})\n" + ENFORCE + "print(os.environ['PINNER_"
            "SESSION'])"
        )
        assert rig.script(code, PYTHONPATH=str(REPO)).stdout == f"{rig.folder}\n"

    def test_the_same_lock_is_in_force_already(self, lock: Path) -> None:
        command = ["enforce", "-l", "pinner.lock.toml", "--", sys.executable, "program.py"]
        (lock.parent / "program.py").write_text("import torch\n" + ENFORCE + "print('ran')\n")
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                "from pinner.cli import main; raise SystemExit(main())",
                *command,
            ],
            env={**os.environ, "PYTHONPATH": str(REPO)},
            cwd=lock.parent,
            capture_output=True,
            text=True,
        )
        assert done.stdout == "ran\n", done.stderr


class TestWhereOnlyInsideIsMounted:
    """The stand-in takes compiled pins."""

    def program(self, tmp_path: Path, code: str) -> subprocess.CompletedProcess[str]:
        made = [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")]
        subprocess.run(made, check=True)
        body = {
            "version": 1,
            "lock": "sha256:00",
            "sealed": True,
            "stack": {"hard": {}},
            "triton": {"kernels:k": {"entries": [], "fallback": []}},
        }
        body["digest"] = inside_pins.digest(body)
        (tmp_path / "pins.json").write_text(json.dumps(body))
        loader = (
            "import importlib.util, sys\n"
            f"where = {str(INSIDE)!r}\n"
            "spec = importlib.util.spec_from_file_location('pinner.inside', where +"
            " '/__init__.py', submodule_search_locations=[where])\n"
            "sys.modules['pinner.inside'] = module = importlib.util.module_from_spec(spec)\n"
            "spec.loader.exec_module(module)\n"
            "from pinner.inside import api\n"
        )
        return subprocess.run(
            [str(tmp_path / "env" / "bin" / "python"), "-c", loader + code],
            cwd=tmp_path,
            env={**os.environ, "TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": ""},
            capture_output=True,
            text=True,
        )

    def test_it_is_enforced_here_and_in_children(self, tmp_path: Path) -> None:
        (tmp_path / "tmp").mkdir()
        code = (
            "api.enforce('pins.json')\n"
            "import subprocess\n"
            "child = 'import pinner; from pinner.inside import pins; print(pins.modules())'\n"
            "subprocess.run([sys.executable, '-c', child], check=True)\n"
        )
        done = self.program(tmp_path, code)
        assert done.stdout == "frozenset({'kernels'})\n", done.stderr
        assert list((tmp_path / "tmp").iterdir()) == []

    def test_torn_pins_are_refused(self, tmp_path: Path) -> None:
        code = (
            "text = open('pins.json').read()\n"
            "open('pins.json', 'w').write(text.replace('kernels:k', 'kernels:j'))\n"
            "api.enforce('pins.json')\n"
        )
        done = self.program(tmp_path, code)
        assert done.returncode == 1
        assert "is torn: its digest is" in done.stderr.splitlines()[-1]
