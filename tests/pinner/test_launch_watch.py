"""Real processes looked at through /proc: which of them run without pinner, and why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from pinner.launch.watch import LEDGER_GRACE_S, Unpinned, Watch
from tests import lanes

INJECT = "/inject"

# Maps a file that is called like torch's library: what counts is that it is mapped.
LOADS = """
import mmap, sys, time
file = open(sys.argv[1], "rb")
kept = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
print("ready", flush=True)
time.sleep(60)
"""
IDLES = "import time; print('ready', flush=True); time.sleep(60)"


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Scene:
    """A session with a ledger folder, and a shell whose children are watched."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.session = str(folder / "session")
        self.ledger = folder / "session" / "ledger"
        self.ledger.mkdir(parents=True)
        self.library = folder / "libtorch_cpu.so"
        self.library.write_bytes(b"x" * 4096)
        self.clock = Clock()
        self.started: list[subprocess.Popen[str]] = []

    def environ(self, **changes: str) -> dict[str, str]:
        """The environment of a process under pinner, with changes."""
        return {
            "PATH": os.environ["PATH"],
            "PINNER_SESSION": self.session,
            "PYTHONPATH": f"{INJECT}:/other",
            **changes,
        }

    def start(self, *argv: str, environ: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Starts a program and waits until it says that it is ready."""
        process = subprocess.Popen(
            list(argv),
            env=dict(self.environ() if environ is None else environ),
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline()
        return process

    def python(self, code: str, *flags: str, **environ: Mapping[str, str]) -> subprocess.Popen[str]:
        return self.start(sys.executable, *flags, "-c", code, str(self.library), **environ)

    def watch(self, process: subprocess.Popen[str]) -> Watch:
        return Watch(
            root=process.pid,
            session=self.session,
            inject=INJECT,
            ledger=self.ledger,
            host="some-host",
            clock=self.clock,
            spent=lambda: 0.0,
        )

    def report(self, pid: int, nonce: str = "0a1b2c") -> None:
        """Writes the ledger of a process."""
        (self.ledger / f"some_host-{pid}-{nonce}.jsonl").write_text("{}\n")

    def findings(self, process: subprocess.Popen[str]) -> tuple[Unpinned, ...]:
        watch = self.watch(process)
        watch.look()
        return watch.findings()

    def close(self) -> None:
        for process in self.started:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.close()


def test_a_process_with_a_ledger_is_fine(scene: Scene) -> None:
    process = scene.python(LOADS)
    scene.report(process.pid)
    assert scene.findings(process) == ()


@pytest.mark.parametrize("flags", [["-I"], ["-E"], ["-S"], ["-sE"], ["-X", "utf8", "-I"]])
def test_flags_that_keep_pinner_out_are_named(scene: Scene, flags: list[str]) -> None:
    process = scene.python(LOADS, *flags)
    (found,) = scene.findings(process)
    assert found.pid == process.pid
    assert found.loaded == "libtorch_cpu.so"
    assert found.cause.startswith("python -")
    assert sys.executable in found.command


def test_a_cleared_environment_is_named(scene: Scene) -> None:
    (found,) = scene.findings(scene.python(LOADS, environ={"PATH": os.environ["PATH"]}))
    assert "environment was cleared" in found.cause


def test_an_overwritten_pythonpath_is_named(scene: Scene) -> None:
    environ = scene.environ(PYTHONPATH="/other")
    (found,) = scene.findings(scene.python(LOADS, environ=environ))
    assert found.cause == "PYTHONPATH was overwritten"


def test_pinner_need_not_come_first_on_pythonpath(scene: Scene) -> None:
    environ = scene.environ(PYTHONPATH=f"/other:{INJECT}")
    assert scene.findings(scene.python(LOADS, environ=environ)) == ()


def test_a_process_of_another_run_is_named(scene: Scene) -> None:
    environ = scene.environ(PINNER_SESSION="/another")
    (found,) = scene.findings(scene.python(LOADS, environ=environ))
    assert "another run" in found.cause
    assert "/another" in found.cause


def test_python_without_torch_is_told_apart(scene: Scene) -> None:
    """A system tool in Python decides nothing; it is named, and `loaded` says it is harmless."""
    (found,) = scene.findings(scene.python(IDLES, "-I"))
    assert found.loaded == ""


def test_a_program_that_is_no_python_and_loads_nothing_is_no_finding(scene: Scene) -> None:
    environ = {"PATH": os.environ["PATH"]}
    assert scene.findings(scene.start("sh", "-c", "echo; sleep 60", environ=environ)) == ()


def test_torch_without_a_ledger_counts_after_a_grace(scene: Scene) -> None:
    """Its environment is right: it may be about to open one, or was started in an unseen way."""
    process = scene.python(LOADS)
    watch = scene.watch(process)
    watch.look()
    assert watch.findings() == ()
    scene.clock.now += LEDGER_GRACE_S + 1
    watch.look()
    (found,) = watch.findings()
    assert "has no ledger" in found.cause
    scene.report(process.pid)
    assert watch.findings() == ()


FORKS = LOADS.replace("print(", "import os\nchild = os.fork()\nprint(child or '', ", 1)


def test_a_fork_of_a_process_that_takes_part_takes_part(scene: Scene) -> None:
    """A data loader's worker has torch mapped and decides nothing: it never opens a ledger."""
    process = scene.python(FORKS)
    scene.report(process.pid)
    watch = scene.watch(process)
    for _ in range(2):
        watch.look()
        scene.clock.now += LEDGER_GRACE_S + 1
    assert len(watch.descendants()) == 1
    assert watch.findings() == ()


def test_a_fork_whose_title_and_environment_were_overwritten_takes_part(scene: Scene) -> None:
    """setproctitle writes over both; where code and stack begin stays the parent's."""
    code = FORKS.replace(
        "time.sleep(60)",
        "import ctypes\n"
        "stat = open('/proc/self/stat').read().rpartition(')')[2].split()\n"
        "start, end = int(stat[45]), int(stat[48])\n"
        "child or ctypes.memset(start, ord('w'), end - start)\n"
        "print('overwritten', flush=True); time.sleep(60)",
    )
    process = scene.python(code)
    scene.report(process.pid)
    _wait_for(lambda: len(scene.watch(process).descendants()) == 1)
    (child,) = scene.watch(process).descendants()
    _wait_for(lambda: b"PINNER_SESSION" not in Path(f"/proc/{child}/environ").read_bytes())
    assert scene.findings(process) == ()


def test_an_exec_of_a_process_that_takes_part_is_looked_at_anew(scene: Scene) -> None:
    code = (
        "import os, sys\n"
        "print('ready', flush=True)\n"
        f"argv = [sys.executable, '-I', '-c', {LOADS!r}, sys.argv[1]]\n"
        "os.fork() or os.execv(sys.executable, argv)\n"
        "os.wait()"
    )
    process = scene.python(code)
    scene.report(process.pid)
    watch = scene.watch(process)

    def seen() -> bool:
        watch.look()
        return any(item.loaded for item in watch.findings())

    _wait_for(seen)
    (found,) = (item for item in watch.findings() if item.loaded)
    assert found.cause == "python -I keeps pinner out"
    assert found.pid != process.pid


# Waits for the file of its second argument and becomes the program after that one.
BECOMES = (
    "import os, sys, time\n"
    "print('ready', flush=True)\n"
    "while not os.path.exists(sys.argv[2]): time.sleep(0.01)\n"
    "environ = {**os.environ, **dict(word.split('=', 1) for word in sys.argv[4:])}\n"
    "argv = [sys.executable, '-c', sys.argv[3], sys.argv[1]]\n"
    "os.execve(sys.executable, argv, environ if sys.argv[4:] else {})\n"
)


class Becoming:
    """A process that takes part and then becomes another program; without `environ`, in none."""

    def __init__(self, scene: Scene, code: str = LOADS, **environ: str) -> None:
        self._scene = scene
        self._go = scene.folder / "go"
        words = [f"{name}={value}" for name, value in environ.items()]
        argv = ["-c", BECOMES, str(scene.library), str(self._go), code, *words]
        self.process = scene.start(sys.executable, *argv)

    def exec(self) -> None:
        """Returns when the other program is ready."""
        self._go.touch()
        assert self.process.stdout is not None
        assert self.process.stdout.readline()


@pytest.mark.parametrize("looks", [0, 1])
def test_a_ledger_does_not_speak_for_what_the_process_becomes(scene: Scene, looks: int) -> None:
    """An exec that clears the environment, seen before it or not."""
    becoming = Becoming(scene)
    scene.report(becoming.process.pid)
    watch = scene.watch(becoming.process)
    for _ in range(looks):
        watch.look()
    assert watch.findings() == ()
    becoming.exec()
    watch.look()
    (found,) = watch.findings()
    assert (found.pid, found.loaded) == (becoming.process.pid, "libtorch_cpu.so")
    assert "environment was cleared" in found.cause


def test_a_compile_worker_of_torch_needs_no_ledger(scene: Scene, tmp_path: Path) -> None:
    """It opens one where it decides something; every run on a GPU that compiles has some."""
    worker = tmp_path / "torch" / "_inductor" / "compile_worker" / "__main__.py"
    worker.parent.mkdir(parents=True)
    worker.write_text(LOADS)
    process = scene.start(sys.executable, str(worker), str(scene.library))
    watch = scene.watch(process)
    watch.look()
    scene.clock.now += LEDGER_GRACE_S + 1
    watch.look()
    assert watch.findings() == ()


def test_a_program_of_an_exec_that_opens_no_ledger_of_its_own(scene: Scene) -> None:
    """Its environment is right and its process has a ledger: that of the program before."""
    becoming = Becoming(scene, KEPT="1")
    scene.report(becoming.process.pid)
    watch = scene.watch(becoming.process)
    watch.look()
    becoming.exec()
    for _ in range(2):
        watch.look()
        scene.clock.now += LEDGER_GRACE_S + 1
    (found,) = watch.findings()
    assert "has no ledger" in found.cause
    scene.report(becoming.process.pid, "second")
    watch.look()
    assert watch.findings() == (), "now it has"


def test_a_ledger_that_is_held_open_speaks_for_its_process_whatever_its_name(scene: Scene) -> None:
    """In a container with a host name and process ids of its own, the name tells nothing."""
    opens = f"import os\nos.open({str(scene.ledger)!r} + '/inner-7-aa.jsonl', os.O_CREAT | 1)\n"
    process = scene.python(opens + LOADS, environ={"PATH": os.environ["PATH"]})
    assert scene.findings(process) == ()


def test_an_orphan_of_before_the_first_look_is_one_of_the_family(scene: Scene) -> None:
    """Its parent ended, and the reaper was given it."""
    reaper = scene.start("sh", "-c", "sleep 60 & echo ready; sleep 60")
    _wait_for(lambda: len(_children(reaper.pid)) == 2)
    stranger, root = _children(reaper.pid)
    watch = scene.watch(reaper)
    watch.root, watch.reaper, watch.strangers = -1, reaper.pid, frozenset([stranger])
    watch.look()
    assert watch.descendants() == (root,)


def test_descendants_are_followed_when_their_parent_ends(scene: Scene) -> None:
    child = f"{sys.executable} -I -c 'import time; time.sleep(60)'"
    outer = scene.start("sh", "-c", f"echo ready; ({child} & sleep 0.5); sleep 60")
    watch = scene.watch(outer)

    def seen() -> bool:
        watch.look()
        return len(watch.descendants()) >= 2 and any(i.loaded == "" for i in watch.findings())

    _wait_for(seen)
    pid = watch.findings()[0].pid
    parent = _parent(pid)
    _wait_for(lambda: _parent(pid) != parent)
    watch.look()
    assert pid in watch.descendants()


def test_strangers_are_no_descendants(scene: Scene) -> None:
    stranger = scene.python(LOADS, "-I")
    watched = scene.start("sh", "-c", "echo ready; sleep 60")
    watch = scene.watch(watched)
    watch.look()
    assert stranger.pid not in watch.descendants()
    assert watch.findings() == ()


def test_members_of_the_session_are_found_wherever_they_are(scene: Scene) -> None:
    """A process that a shell left behind at its very end is nobody's descendant."""
    member, stranger = scene.python(IDLES), scene.python(IDLES, environ={})
    watch = scene.watch(scene.start("sh", "-c", "echo ready", environ={}))
    found = watch.members()
    assert member.pid in found
    assert stranger.pid not in found


def test_it_counts_who_has_reported(scene: Scene) -> None:
    watch = scene.watch(scene.start("sh", "-c", "echo ready; sleep 60"))
    assert watch.reported() == 0
    scene.report(17)
    assert watch.reported() == 1


def test_a_ledger_of_another_host_is_another_process(scene: Scene) -> None:
    process = scene.python(LOADS, "-I")
    (scene.ledger / f"elsewhere-{process.pid}-0a1b2c.jsonl").write_text("{}\n")
    assert len(scene.findings(process)) == 1


def test_a_process_that_counts_its_ids_from_one_is_known_by_them(scene: Scene) -> None:
    """In a PID namespace the ledger bears the inner process id."""
    unshare = ["unshare", "--fork", "--pid", "--kill-child"]
    lanes.require(subprocess.run([*unshare, "true"]).returncode == 0, "needs PID namespaces")
    process = scene.start(*unshare, sys.executable, "-c", LOADS, str(scene.library))
    scene.report(1)
    watch = scene.watch(process)
    for _ in range(2):
        watch.look()
        scene.clock.now += LEDGER_GRACE_S + 1
    assert len(watch.descendants()) == 1
    assert watch.findings() == ()


def test_a_slow_look_is_followed_by_a_rest(scene: Scene) -> None:
    """On a machine where looking takes long it may not take more than its share."""
    process = scene.python(LOADS, "-I")
    watch = scene.watch(process)
    spent = iter([0.0, 0.5])  # the first look takes half a second of CPU time
    watch.spent = lambda: next(spent, 1.0)
    watch.look()
    (found,) = watch.findings()
    os.kill(found.pid, signal.SIGKILL)
    watch.root = scene.python(LOADS, "-I").pid
    scene.clock.now += 5
    watch.look()
    assert watch.findings() == (found,), "it still rests"
    scene.clock.now += 6
    watch.look()
    assert len(watch.findings()) == 2


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _children(parent: int) -> list[int]:
    """The living children of a process, oldest first."""
    listed = (int(path.name) for path in Path("/proc").glob("[0-9]*"))
    return sorted(pid for pid in listed if Path(f"/proc/{pid}").exists() and _parent(pid) == parent)


def _wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.05)
