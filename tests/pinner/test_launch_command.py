"""A command under pinner has the terminal, the signals and the exit code it would have had."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pinner.launch import command

REPO = Path(__file__).resolve().parents[2]
SIGNALS = str(REPO / "tests" / "workloads" / "signals.py")

# Runs the command of its arguments, as `pinner enforce` does, and says how it ended.
LAUNCHER = """
import os, sys
from pathlib import Path
from pinner.launch import command
from pinner.launch.watch import Watch
command.SECOND_INTERRUPT_S = float(os.environ.get("SECOND_S", command.SECOND_INTERRUPT_S))
watch = []
def begin(pid): watch.append(Watch(root=pid, session="", inject="", ledger=Path("/none")))
ended = command.run(
    sys.argv[1:], os.environ, on_start=begin, descendants=lambda: watch[0].descendants(),
    say=lambda text: print("said", text, flush=True),
)
print("ended", ended.code, list(ended.interrupted), flush=True)
"""


def run(*argv: str, **options: object) -> command.Ended:
    return command.run(argv, os.environ, **options)  # type: ignore[arg-type]


def launch(*argv: str, **environ: str) -> subprocess.Popen[str]:
    """A launcher in a process group of its own, without a terminal."""
    return subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, *argv],
        env={**os.environ, "PYTHONPATH": str(REPO), **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """The output up to the line that holds `text`."""
    seen = ""
    assert process.stdout is not None
    for line in process.stdout:
        seen += line
        if text in line:
            return seen
    raise AssertionError(f"expected {text!r}, found:\n{seen}")


class Terminal:
    """A launcher as the foreground job of a terminal of its own."""

    def __init__(self, *argv: str, **environ: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            env = {**os.environ, "PYTHONPATH": str(REPO), **environ}
            os.execve(sys.executable, [sys.executable, "-c", LAUNCHER, *argv], env)
        self.seen = ""

    def until(self, pattern: str, seconds: float = 10.0) -> str:
        """Reads until `pattern` is in the output, and returns what it matched."""
        end = time.monotonic() + seconds
        while not (match := re.search(pattern, self.seen)):
            ready, _, _ = select.select([self.fd], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"expected {pattern!r}, found:\n{self.seen}"
            try:
                self.seen += os.read(self.fd, 4096).decode()
            except OSError:  # the terminal closed
                assert re.search(pattern, self.seen), f"expected {pattern!r}, found:\n{self.seen}"
        return match.group(0)

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.fd)


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(*argv: str, **environ: str) -> Terminal:
        opened.append(Terminal(*argv, **environ))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def test_exit_code_is_the_commands() -> None:
    assert run("sh", "-c", "exit 3").code == 3
    assert run("true").code == 0


def test_death_by_a_signal_is_128_and_its_number() -> None:
    assert run("sh", "-c", "kill -9 $$").code == 128 + 9


@pytest.mark.parametrize(("argv", "code"), [("no-such-command", 127), ("/etc/passwd", 126)])
def test_a_command_that_cannot_start_ends_as_in_a_shell(argv: str, code: int) -> None:
    ended = run(argv)
    assert ended.code == code
    assert argv in ended.failure


def test_the_command_gets_the_signal_mask_and_the_ignored_signals_of_pinner() -> None:
    here = Path("/proc/self/status").read_text()
    code = "print(open('/proc/self/status').read())"
    seen: list[bytes] = []
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup
    try:
        run(sys.executable, "-c", code, output=command.Output(os.open(os.devnull, 1), seen.append))
    finally:
        signal.signal(signal.SIGHUP, before)
    blocked, ignored = r"SigBlk:\s*(\w+)", r"SigIgn:\s*(\w+)"
    found = b"".join(seen).decode()
    assert re.findall(blocked, found) == re.findall(blocked, here)
    assert int(re.findall(ignored, found)[0], 16) & 1, "SIGHUP is ignored there, too"


def test_signals_are_not_blocked_any_more_afterwards() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    run("true")
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2"])
def test_a_signal_sent_to_pinner_reaches_the_command_once(name: str) -> None:
    process = launch(sys.executable, SIGNALS)
    read_until(process, "ready")
    process.send_signal(getattr(signal, name))
    rest = read_until(process, "ended")
    assert rest.count(f"got {name}") == 1
    assert "ended 7" in rest
    process.wait()


def test_a_command_that_dies_of_a_forwarded_signal_tells_so() -> None:
    process = launch("sleep", "20")
    time.sleep(0.4)
    process.terminate()
    assert "ended 143 [15]" in read_until(process, "ended")
    process.wait()


def test_a_signal_that_the_command_sends_to_its_group_does_not_come_back() -> None:
    """`kill 0` in a script reaches pinner, too, and must not be passed on a second time."""
    code = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b'got one\\n'))\n"
        "os.kill(0, signal.SIGUSR1); time.sleep(0.5)\n"
    )
    process = launch(sys.executable, "-c", code)
    assert read_until(process, "ended").count("got one") == 1
    process.wait()


def test_standard_input_passes_through() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHER, "cat"],
        env={**os.environ, "PYTHONPATH": str(REPO)},
        input=b"\0binary\xff\n",
        capture_output=True,
    )
    assert done.stdout.startswith(b"\0binary\xff\n")


def test_output_passes_byte_by_byte_while_it_is_looked_at() -> None:
    """Every byte value, no newline at the end, and more than a pipe holds."""
    code = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 4096 + b'end')"
    source, sink = os.pipe()
    through: list[bytes] = []

    def read() -> None:  # so that the pipe does not fill up
        while piece := os.read(source, 1 << 16):
            through.append(piece)

    reader = threading.Thread(target=read)
    reader.start()
    seen: list[bytes] = []
    run(sys.executable, "-c", code, output=command.Output(sink, seen.append))
    os.close(sink)
    reader.join()
    os.close(source)
    assert b"".join(through) == b"".join(seen) == bytes(range(256)) * 4096 + b"end"


def test_a_background_process_that_keeps_the_output_open_is_not_waited_for() -> None:
    seen: list[bytes] = []
    begun = time.monotonic()
    output = command.Output(os.open(os.devnull, os.O_WRONLY), seen.append)
    assert run("sh", "-c", "sleep 30 & echo done", output=output).code == 0
    assert time.monotonic() - begun < 10
    assert b"".join(seen) == b"done\n"


def test_inherited_descriptors_reach_the_command() -> None:
    """As with a make job server, or a shell's `3>file`."""
    source, sink = os.pipe()
    os.set_inheritable(sink, True)
    run("bash", "-c", f"echo through >&{sink}")
    os.close(sink)
    assert os.read(source, 100) == b"through\n"
    os.close(source)


def test_the_command_keeps_the_terminal(terminal: Callable[..., Terminal]) -> None:
    job = terminal("sh", "-c", "test -t 0 && test -t 1 && read line && echo read $line")
    job.type("words\n")
    job.until("read words")
    job.until(r"ended 0 \[\]")


def test_ctrl_c_reaches_the_command_once(terminal: Callable[..., Terminal]) -> None:
    job = terminal(sys.executable, SIGNALS)
    job.until("ready")
    job.type("\x03")
    job.until(r"ended 7 \[2\]")
    assert job.seen.count("got SIGINT") == 1


def test_a_second_ctrl_c_kills_the_command_and_what_it_started(
    terminal: Callable[..., Terminal],
) -> None:
    job = terminal(sys.executable, SIGNALS, CHILD="1", LIFE="60")
    child = int(job.until(r"child \d+").split()[1])
    job.until("ready")
    job.type("\x03")
    job.until("got SIGINT")
    time.sleep(0.3)  # two that are pending at once are one to the kernel
    job.type("\x03")
    job.until("second interrupt: killing")
    job.until("ended 137")
    _wait_until(lambda: not _lives(child))


def test_two_interrupts_far_apart_kill_nothing(
    terminal: Callable[..., Terminal],
) -> None:
    """An interactive program takes many a Ctrl-C in its life."""
    job = terminal(sys.executable, SIGNALS, LIFE="2", SECOND_S="0.3")
    job.until("ready")
    job.type("\x03")
    job.until("got SIGINT")
    time.sleep(0.5)
    job.type("\x03")
    job.until("ended 7", seconds=15)
    assert job.seen.count("got SIGINT") == 2


def test_job_control_stops_and_continues_both() -> None:
    """Ctrl-Z under a shell stops the job; `fg` continues it, and it ends as if nothing had been."""
    job = ShellJob(sys.executable, SIGNALS, LIFE="2")
    try:
        job.until("ready")
        job.type("\x1a")
        job.until(r"Stopped|suspended")
        job.type("fg\n")
        job.until("ended 7")
        assert job.seen.count("got SIGCONT") >= 1
    finally:
        job.close()


# Says the process id of a daemon of its own, and of the parent that the daemon is given.
ORPHANING = """
import os, time
read, write = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        time.sleep(0.2)
        os.write(write, b"%d %d" % (os.getpid(), os.getppid()))
    os._exit(0)
os.wait()
print(os.read(read, 100).decode(), flush=True)
time.sleep(0.5)
"""


def test_orphans_become_children_and_are_reaped() -> None:
    seen: list[bytes] = []
    output = command.Output(os.open(os.devnull, os.O_WRONLY), seen.append)
    own = subprocess.Popen(["sh", "-c", "exit 5"])
    time.sleep(0.1)  # it has ended, and is still to be waited for
    run(sys.executable, "-c", ORPHANING, output=output)
    orphan, parent = map(int, b"".join(seen).split())
    assert parent == os.getpid()
    assert not Path(f"/proc/{orphan}").exists(), "it was reaped"
    assert own.wait() == 5, "whose children they are waits for them"


def test_nobody_waits_for_orphans_and_they_are_adopted_no_more_afterwards() -> None:
    code = "import os, time\nif os.fork() == 0: time.sleep(1); os._exit(0)\n"
    before = command.children()
    ended = run(sys.executable, "-c", code)
    assert ended.code == 0
    (orphan,) = command.children() - before
    assert _lives(orphan)
    run("sleep", "1.5")
    assert not Path(f"/proc/{orphan}").exists(), "a later run reaps it"
    done = subprocess.run(["sh", "-c", "sleep 0.3 > /dev/null & echo $!"], stdout=subprocess.PIPE)
    assert int(done.stdout) not in command.children()


class ShellJob(Terminal):
    """A launcher as a job of an interactive bash."""

    def __init__(self, *argv: str, **environ: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            env = {
                **os.environ,
                "PYTHONPATH": str(REPO),
                "PS1": "$ ",
                "TERM": "dumb",
                "LAUNCHER": LAUNCHER,
                **environ,
            }
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], env)
        self.seen = ""
        words = " ".join(f"'{word}'" for word in argv)
        self.type(f'{sys.executable} -c "$LAUNCHER" {words}\n')


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


def _wait_until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.02)
