"""Injection reaches a program however it is started, and changes nothing about it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipapp
from pathlib import Path

import pytest

from pinner.inside.evidence.digest import digest
from tests import lanes
from tests.session_rig import INJECT, INSIDE, NOTE, REPO, SessionRig

TAKES_PART = NOTE + "note('here')\n"


@pytest.fixture
def rig(tmp_path: Path) -> SessionRig:
    return SessionRig(tmp_path / "session")


def test_a_script(rig: SessionRig) -> None:
    done = rig.script(TAKES_PART)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert rig.notes() == [["here"]]


@pytest.mark.parametrize(
    "flags", [[], ["-B"], ["-s"], ["-u"], ["-O"], ["-X", "utf8"], ["-W", "error"]]
)
def test_a_command_line_program_with_flags(rig: SessionRig, flags: list[str]) -> None:
    done = rig.python(*flags, "-c", TAKES_PART)
    assert (done.returncode, done.stderr) == (0, "")
    assert rig.notes() == [["here"]]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.11 brought -P")
def test_safe_path(rig: SessionRig) -> None:
    rig.python("-P", "-c", TAKES_PART)
    rig.python("-c", TAKES_PART, PYTHONSAFEPATH="1")
    assert rig.notes() == [["here"], ["here"]]


def test_a_module(rig: SessionRig) -> None:
    (rig.folder / "package").mkdir()
    (rig.folder / "package" / "__main__.py").write_text(TAKES_PART)
    assert rig.python("-m", "package").returncode == 0
    assert rig.notes() == [["here"]]


def test_a_zip_application(rig: SessionRig) -> None:
    source = rig.folder / "source"
    source.mkdir()
    (source / "__main__.py").write_text(TAKES_PART)
    zipapp.create_archive(source, rig.folder / "program.pyz")
    assert rig.python("program.pyz").returncode == 0
    assert rig.notes() == [["here"]]


def test_a_program_on_standard_input(rig: SessionRig) -> None:
    done = subprocess.run([sys.executable], input=TAKES_PART, env=rig.environ(), text=True)
    assert done.returncode == 0
    assert rig.notes() == [["here"]]


def test_a_shell_script_that_starts_two(rig: SessionRig) -> None:
    (rig.folder / "a.py").write_text(TAKES_PART)
    (rig.folder / "run.sh").write_text('cd "$(dirname "$0")"; "$1" a.py & "$1" a.py; wait\n')
    assert rig.run(["sh", "run.sh", sys.executable]).returncode == 0
    assert rig.notes() == [["here"], ["here"]]


def test_a_python_that_python_starts(rig: SessionRig) -> None:
    (rig.folder / "a.py").write_text(TAKES_PART)
    rig.script("import subprocess, sys; subprocess.run([sys.executable, 'a.py'], check=True)")
    assert rig.notes() == [["here"]]


def test_a_program_that_replaces_itself(rig: SessionRig) -> None:
    (rig.folder / "a.py").write_text(TAKES_PART)
    done = rig.script(
        TAKES_PART + "import os, sys; os.execv(sys.executable, [sys.executable, 'a.py'])"
    )
    assert done.returncode == 0
    assert rig.notes() == [["here"], ["here"]]


def test_a_virtual_environment_that_knows_nothing_of_pinner(rig: SessionRig) -> None:
    made = [sys.executable, "-m", "venv", "--without-pip", str(rig.folder / "env")]
    subprocess.run(made, check=True)
    python = str(rig.folder / "env" / "bin" / "python")
    done = rig.run([python, "-c", TAKES_PART + "import sys; print(sys.prefix)"])
    assert done.stdout == f"{rig.folder}/env\n", done.stderr
    assert rig.notes() == [["here"]]


@pytest.mark.service
@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10", "3.12", "3.13"])
def test_other_pythons(rig: SessionRig, version: str) -> None:
    code = TAKES_PART + "import pinner; pinner.fingerprint('a', [1, 2.5, b'x', None])"
    done = rig.run([lanes.other_python(version), "-W", "error", "-c", code])
    assert (done.returncode, done.stderr) == (0, "")
    assert [line["digest"] for line in rig.lines("evidence")] == [digest([1, 2.5, b"x", None])[0]]
    assert [line["python"].rpartition(".")[0] for line in rig.lines("process")] == [version]


class TestMultiprocessing:
    """Children take part, each with a ledger of its own, and run what is due at exit."""

    CODE = (
        NOTE
        + """
import multiprocessing, os, sys
def work(name):
    note(name)
if __name__ == "__main__":
    note("main")
    context = multiprocessing.get_context(sys.argv[1])
    children = [context.Process(target=work, args=(str(i),)) for i in range(2)]
    for child in children: child.start()
    for child in children: child.join()
    print([child.exitcode for child in children])
"""
    )

    @pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
    def test_each_child_has_its_own_ledger_and_its_end(self, rig: SessionRig, method: str) -> None:
        done = rig.script(self.CODE, method)
        assert done.stdout == "[0, 0]\n", done.stderr
        assert sorted(rig.notes()) == [["0"], ["1"], ["main"]]
        assert [each[-1]["t"] for each in rig.ledgers()] == ["end"] * 3
        assert len({each[0]["pid"] for each in rig.ledgers()}) == 3

    def test_a_pool(self, rig: SessionRig) -> None:
        code = self.CODE.partition("if __name__")[0] + (
            "if __name__ == '__main__':\n"
            "    with multiprocessing.Pool(2) as pool: pool.map(work, 'abcd', chunksize=2)\n"
        )
        assert rig.script(code).returncode == 0
        assert sorted(name for notes in rig.notes() for name in notes) == list("abcd")

    def test_helpers_that_decide_nothing_leave_nothing(self, rig: SessionRig) -> None:
        code = self.CODE.replace("def work(name):\n    note(name)", "def work(name):\n    pass")
        done = rig.script(code.replace('    note("main")\n', ""), "spawn")
        assert done.stdout == "[0, 0]\n", done.stderr
        assert rig.ledgers() == []


def test_torchrun(rig: SessionRig) -> None:
    """The ranks say who they are; so does the agent, which has no rank."""
    (rig.folder / "train.py").write_text(
        "import torch.distributed as dist, torch\n"
        "dist.init_process_group('gloo')\n"
        + TAKES_PART
        + "t = torch.ones(1); dist.all_reduce(t); assert t == 2; dist.destroy_process_group()\n"
    )
    command = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "train.py"]
    done = rig.python(*command)
    assert done.returncode == 0, done.stderr
    ranks = [
        (line["rank"], line["world"], line["local_rank"], line["rank_from"])
        for line in rig.lines("process")
    ]
    assert sorted(ranks, key=str) == [
        (0, 2, 0, "torchrun"),
        (1, 2, 1, "torchrun"),
        (None, None, None, None),
    ]
    assert sorted(rig.notes()) == [[], ["here"], ["here"]]


class TestWithoutASession:
    """The folder on PYTHONPATH alone does nothing."""

    def python(self, code: str, hidden: str = "") -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(INJECT), hidden])}
        return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)

    def test_nothing_of_pinner_is_loaded(self) -> None:
        done = self.python("import sys; print([n for n in sys.modules if 'pinner' in n])")
        assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")

    def test_the_hidden_sitecustomize_runs(self, tmp_path: Path) -> None:
        (tmp_path / "sitecustomize.py").write_text("print('mine')\n")
        assert self.python("pass", str(tmp_path)).stdout == "mine\n"


def test_one_pinner_inside_another_begins_once(rig: SessionRig, tmp_path: Path) -> None:
    """Both folders are on the path: the inner one, which comes first, is in force."""
    outer = tmp_path / "outer"
    shutil.copytree(INSIDE, outer)
    done = rig.script(TAKES_PART, PYTHONPATH=str(outer / "inject"))
    assert (done.returncode, done.stderr) == (0, "")
    assert rig.notes() == [["here"]]


class TestTheNamePinner:
    """A program may `import pinner` whether or not one is installed there."""

    CODE = (
        "import pinner, pinner.inside, sys\n"
        "pinner.fingerprint('loss', 1.5)\n"
        "print(pinner.__file__ if hasattr(pinner, '__file__') else None)\n"
        "print(pinner.inside.__file__, pinner.__version__)\n"
    )

    def test_a_stand_in_where_none_is_installed(self, rig: SessionRig, tmp_path: Path) -> None:
        made = [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")]
        subprocess.run(made, check=True)
        done = rig.run([str(tmp_path / "env" / "bin" / "python"), "-c", self.CODE])
        version = (INSIDE / "__init__.py").read_text().split('VERSION = "')[1].split('"')[0]
        assert done.stdout == f"None\n{INSIDE}/__init__.py {version}\n", done.stderr
        assert [line["stream"] for line in rig.lines("evidence")] == ["loss"]

    def test_the_launchers_inside_serves_an_installed_pinner(
        self, rig: SessionRig, tmp_path: Path
    ) -> None:
        """Its own, older, inside is not loaded: one process has one ledger."""
        site = tmp_path / "site"
        shutil.copytree(REPO / "pinner", site / "pinner")
        done = rig.script(self.CODE, PYTHONPATH=str(site))
        first, second = done.stdout.splitlines()
        assert first == f"{site}/pinner/__init__.py"
        assert second.startswith(f"{INSIDE}/__init__.py ")
        assert [line["stream"] for line in rig.lines("evidence")] == ["loss"]

    def test_a_stranger_of_that_name_is_neither_run_nor_hidden(
        self, rig: SessionRig, tmp_path: Path
    ) -> None:
        (tmp_path / "pinner.py").write_text("print('stranger')\n")
        code = TAKES_PART + "print('before'); import pinner"
        done = rig.script(code, PYTHONPATH=str(tmp_path))
        assert done.stdout == "before\nstranger\n", done.stderr
        assert rig.notes() == [["here"]]

    def test_importing_the_installed_one_loads_nothing_else(self) -> None:
        code = (
            "import sys; before = set(sys.modules); import pinner\n"
            "print(sorted(set(sys.modules) - before))\n"
        )
        env = {**os.environ, "PYTHONPATH": str(REPO)}
        done = subprocess.run(
            [sys.executable, "-S", "-c", code], env=env, capture_output=True, text=True
        )
        assert done.stdout == "['__future__', 'pinner']\n", done.stderr
