"""A ledger holds what its process decided, whatever becomes of the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinner.inside import ledger
from pinner.launch.collect import collect
from pinner.launch.session_dir import read
from tests import lanes
from tests.session_rig import NOTE, SessionRig


@pytest.fixture
def rig(tmp_path: Path) -> SessionRig:
    return SessionRig(tmp_path / "session")


class TestWhatItHolds:
    def test_a_process_that_decides_nothing_leaves_nothing(self, rig: SessionRig) -> None:
        assert rig.script("print(1)").returncode == 0
        assert rig.ledgers() == []

    def test_who_the_facts_the_lines_in_order_the_end(self, rig: SessionRig) -> None:
        rig.script(NOTE + "for i in range(3): note(i)", "--size", "grün")
        [lines] = rig.ledgers()
        assert [line["t"] for line in lines] == ["process", "facts", "test", "test", "test", "end"]
        assert [line["note"] for line in lines[2:5]] == [0, 1, 2]
        who = lines[0]
        assert who["argv"] == [str(rig.folder / "program.py"), "--size", "grün"]
        assert who["executable"] == sys.executable
        assert who["python"] == ".".join(map(str, sys.version_info[:3]))
        assert (who["mode"], who["run"], who["rank"]) == ("observe", "test", None)

    def test_torch_opens_it_at_once(self, rig: SessionRig) -> None:
        """A rank counts as taking part from its start, not from its first decision."""
        rig.script("import torch, os; os._exit(3)")
        [lines] = rig.ledgers()
        assert [line["t"] for line in lines] == ["process", "facts"]

    def test_torch_that_fails_to_import_leaves_who_it_was(self, rig: SessionRig) -> None:
        (rig.folder / "torch.py").write_text("raise ImportError('libcudart.so')\n")
        done = rig.script("import torch")
        assert done.returncode == 1
        assert [line["t"] for line in rig.lines()] == ["process", "end"]

    def test_the_launchers_own_reader_takes_it(self, rig: SessionRig) -> None:
        rig.script("import pinner; pinner.fingerprint('loss', 1.5)")
        run = collect(read(rig.folder))
        assert len(run.ledgers) == 1

    def test_text_that_is_no_text(self, rig: SessionRig) -> None:
        """File names are bytes: a lone surrogate must not lose the line."""
        rig.script(NOTE + r"note('\udc80 \n \0 ü')")
        assert rig.notes() == [["\udc80 \n \0 ü"]]


class TestDeath:
    @pytest.mark.parametrize(
        "death",
        [
            "os.kill(os.getpid(), 9)",
            "os._exit(0)",
            "os.abort()",
            "import ctypes; ctypes.string_at(0)",
            "os.execv('/bin/true', ['true'])",
        ],
    )
    def test_what_was_decided_before_stays(self, rig: SessionRig, death: str) -> None:
        rig.script(NOTE + f"import os\nnote('decided')\n{death}\n")
        assert rig.notes() == [["decided"]]
        assert rig.lines("end") == []

    @pytest.mark.parametrize(
        "end", ["raise ValueError('x')", "import sys; sys.exit(3)", "raise KeyboardInterrupt"]
    )
    def test_python_ends_that_run_exit_handlers_say_so(self, rig: SessionRig, end: str) -> None:
        rig.script(NOTE + f"note(1)\n{end}\n")
        assert [line["t"] for line in rig.lines()][-2:] == ["test", "end"]

    def test_killed_at_any_moment_it_has_whole_lines(self, rig: SessionRig) -> None:
        """Each line is one write. Linux cuts the write that a SIGKILL meets at a page's end, so the
        last line may be torn, which a reader ignores; no other."""
        path = rig.folder / "program.py"
        path.write_text(NOTE + "i = 0\nwhile True:\n    note([i, 'x' * 5000]); i += 1\n")
        child = subprocess.Popen([sys.executable, str(path)], env=rig.environ())
        folder = rig.folder / "ledger"
        deadline = time.monotonic() + 60
        while not any(f.stat().st_size > 2_000_000 for f in folder.iterdir()):
            assert time.monotonic() < deadline
            assert child.poll() is None
        child.send_signal(signal.SIGKILL)
        child.wait()
        [written] = folder.iterdir()
        whole = written.read_bytes().rpartition(b"\n")[0] + b"\n"
        assert b"\0" not in whole
        written.write_bytes(whole)
        [notes] = rig.notes()
        assert [number for number, _ in notes] == list(range(len(notes)))


class TestForks:
    def test_each_child_writes_its_own(self, rig: SessionRig) -> None:
        code = """
import os
note("parent before")
for name in "ab":
    if os.fork() == 0:
        note(name)
        if os.fork() == 0:
            note("child of " + name)
            os._exit(0)
        os.wait()
        os._exit(0)
    os.wait()
note("parent after")
"""
        rig.script(NOTE + code)
        assert sorted(rig.notes()) == [
            ["a"],
            ["b"],
            ["child of a"],
            ["child of b"],
            ["parent before", "parent after"],
        ]
        for lines in rig.ledgers():
            assert [line["t"] for line in lines[:2]] == ["process", "facts"]
        pids = {lines[0]["pid"] for lines in rig.ledgers()}
        assert len(pids) == 5

    def test_children_inherit_no_open_ledger(self, rig: SessionRig) -> None:
        """Chains of forks would otherwise collect descriptors."""
        code = """
import os
def ledgers():
    links = [os.path.join("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd")]
    return sum(1 for link in links if os.path.exists(link) and "/ledger/" in os.readlink(link))
note("parent")
assert ledgers() == 1
if os.fork() == 0:
    assert ledgers() == 0
    note(ledgers())
    note(ledgers())
    os._exit(0)
os.wait()
"""
        rig.script(NOTE + code)
        assert sorted(rig.notes(), key=str) == [["parent"], [0, 1]]

    def test_many_forks_beside_a_thread_that_writes(self, rig: SessionRig) -> None:
        """The lock that thread holds at the moment of the fork must not stop the child."""
        code = f"""
import os, threading
stop = False
def work():
    while not stop: note("thread")
thread = threading.Thread(target=work); thread.start()
for i in range({lanes.forks()}):
    pid = os.fork()
    if pid == 0:
        note(i)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
stop = True
thread.join()
"""
        done = rig.script(NOTE + code, timeout=60)
        assert done.returncode == 0, done.stderr
        children = [notes for notes in rig.notes() if notes[:1] != ["thread"]]
        assert sorted(children) == [[i] for i in range(lanes.forks())]

    def test_exit_callbacks_run_in_a_forked_child_too(self, rig: SessionRig) -> None:
        code = """
import os
from pinner.inside import ledger
ledger.at_exit(lambda: note("swept"))
pid = os.fork()
note("child" if pid == 0 else "parent")
if pid: os.waitpid(pid, 0)
"""
        rig.script(NOTE + code)
        assert sorted(rig.notes()) == [["child", "swept"], ["parent", "swept"]]


class TestExitCallbacks:
    @pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
    def test_in_multiprocessing_children(self, rig: SessionRig, method: str) -> None:
        """They end with os._exit, after their own exit functions."""
        code = f"""
import multiprocessing
from multiprocessing import util
from pinner.inside import ledger
def work():
    ledger.at_exit(lambda: note("swept"))
    util.Finalize(None, note, args=("program's own",), exitpriority=0)
    note("work")
if __name__ == "__main__":
    child = multiprocessing.get_context({method!r}).Process(target=work)
    child.start(); child.join(); assert child.exitcode == 0
"""
        done = rig.script(NOTE + code)
        assert done.returncode == 0, done.stderr
        assert rig.notes() == [["work", "program's own", "swept"]]
        [lines] = rig.ledgers()
        assert lines[-1]["t"] == "end"

    def test_they_run_last_to_first_and_once(self, rig: SessionRig) -> None:
        code = """
import atexit, multiprocessing.util
from pinner.inside import ledger
for name in "abc": ledger.at_exit(lambda name=name: note(name))
atexit.register(note, "program's own")
"""
        rig.script(NOTE + code)
        assert rig.notes() == [["program's own", "c", "b", "a"]]

    def test_one_that_fails_is_a_fault(self, rig: SessionRig) -> None:
        """What it was to sweep up is unknown: the run must not pass for a whole one."""
        code = (
            "from pinner.inside import ledger\n"
            "def sweep(): raise LookupError('no such table')\n"
            "ledger.at_exit(sweep)\n"
        )
        done = rig.script(NOTE + code)
        assert done.returncode == 96
        assert "cannot finish what this process decided: LookupError: no such" in done.stderr


class TestThreads:
    def test_lines_of_many_threads_are_whole(self, rig: SessionRig) -> None:
        code = """
import threading
def work(name):
    for i in range(200): note([name, i, "x" * 3000])
threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
for t in threads: t.start()
for t in threads: t.join()
"""
        rig.script(NOTE + code)
        [notes] = rig.notes()
        for name in range(8):
            assert [i for n, i, _ in notes if n == name] == list(range(200))
        assert len(rig.lines("process")) == 1

    def test_a_signal_handler_may_write(self, rig: SessionRig) -> None:
        """It interrupts the write that is under way in the same thread; no line is lost.

        One that comes while the ledger is being opened opens another: lines count in both.
        """
        code = """
import signal
hits = []
def handler(*_):
    hits.append(1)
    note("signal")
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
while len(hits) < 100: note("main")
signal.setitimer(signal.ITIMER_REAL, 0, 0)
"""
        done = rig.script(NOTE + code, timeout=60)
        assert done.returncode == 0, done.stderr
        assert sum(notes.count("signal") for notes in rig.notes()) >= 100


class TestDescriptors:
    def test_a_program_that_closes_all_of_them(self, rig: SessionRig) -> None:
        """As daemons do; the number may then belong to a file of the program."""
        code = """
import os
note(1)
os.closerange(3, 256)
files = [open(f"file{i}", "w") for i in range(8)]
note(2)
print(sum(os.path.getsize(f"file{i}") for i in range(8)))
"""
        done = rig.script(NOTE + code)
        assert done.stdout == "0\n", done.stderr
        assert rig.notes() == [[1, 2]]

    def test_programs_it_starts_do_not_inherit_it(self, rig: SessionRig) -> None:
        code = """
import subprocess
note(1)
print(subprocess.run(["ls", "-l", "/proc/self/fd"], capture_output=True, text=True).stdout)
"""
        assert "/ledger/" not in rig.script(NOTE + code).stdout


@pytest.fixture
def small_disk(rig: SessionRig) -> Iterator[Path]:
    folder = rig.folder / "ledger"
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)]
    done = subprocess.run(mount, capture_output=True)
    lanes.require(done.returncode == 0, "needs the right to mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.service
def test_a_disk_that_fills_up_ends_the_process(rig: SessionRig, small_disk: Path) -> None:
    """A decision that is not written down would be lost without a word."""
    code = "for i in range(1000): note([i, 'x' * 1000])\nprint('ran')"
    done = rig.script(NOTE + code)
    assert (done.returncode, done.stdout) == (96, "")
    [line] = done.stderr.splitlines()
    [path] = small_disk.iterdir()
    assert line == f"pinner: cannot write the ledger {path}: No space left on device"
    whole = path.read_bytes().split(b"\n")[:-1]
    assert len(whole) > 40
    assert rig.faults()[0]["cause"] == line[len("pinner: ") :]


class TestLayout:
    @pytest.mark.parametrize(
        ("variables", "expected"),
        [
            ({}, (None, None, None, None)),
            ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, (3, 8, 1, "torchrun")),
            ({"RANK": "3", "WORLD_SIZE": "8"}, (3, 8, None, "torchrun")),
            ({"RANK": "3"}, (None, None, None, None)),
            ({"RANK": "x", "WORLD_SIZE": "8"}, (None, None, None, None)),
            (
                {
                    "OMPI_COMM_WORLD_RANK": "0",
                    "OMPI_COMM_WORLD_SIZE": "2",
                    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
                },
                (0, 2, 0, "ompi"),
            ),
            ({"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2, None, "pmi")),
            (
                {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "16", "SLURM_LOCALID": "5"},
                (5, 16, 5, "slurm"),
            ),
            # A batch script has the rank 0 of a job it is not a rank of.
            ({"SLURM_PROCID": "0", "SLURM_NTASKS": "16"}, (None, None, None, None)),
            # srun starts one torchrun a node: the ranks are torchrun's.
            (
                {
                    "SLURM_PROCID": "1",
                    "SLURM_STEP_NUM_TASKS": "2",
                    "RANK": "9",
                    "WORLD_SIZE": "16",
                    "LOCAL_RANK": "1",
                },
                (9, 16, 1, "torchrun"),
            ),
        ],
    )
    def test_the_launchers_variables(
        self,
        monkeypatch: pytest.MonkeyPatch,
        variables: dict[str, str],
        expected: tuple[object, ...],
    ) -> None:
        for name in list(os.environ):
            if name.startswith(("SLURM_", "OMPI_", "PMI_", "MPI_")) or "RANK" in name:
                monkeypatch.delenv(name)
        monkeypatch.delenv("WORLD_SIZE", raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        names = ("rank", "world", "local_rank", "rank_from")
        assert ledger.layout() == dict(zip(names, expected, strict=True))
