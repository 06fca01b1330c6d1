"""Runs one command as if pinner were not there: its terminal, its signals, its exit code.

The command stays in pinner's process group. The terminal then sends Ctrl-C, Ctrl-\\ and Ctrl-Z to
both, and job control (`fg`, `bg`, a read from a background job) works as without pinner. So a
signal from the terminal is *not* passed on: the command has it already. A signal that some process
sent to pinner is passed on, unless the sender is the command or one of its descendants, which sent
it to the whole group. (sudo does the same, for the same reason.) Telling these apart needs the
sender, which a Python signal handler is not told: the signals are blocked here and taken out one by
one with `sigtimedwait`. The command starts with the signal mask pinner was started with.

Orphans of the command become pinner's children for as long as it runs (PR_SET_CHILD_SUBREAPER), so
that a daemon cannot leave the family unseen. There `getppid` tells pinner's process id, not 1.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTSTP,
    signal.SIGCONT,
)
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

# What a shell answers for a command that is not there, or is there and cannot be executed.
NOT_FOUND = 127
NOT_EXECUTABLE = 126

# <linux/prctl.h>
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37

# Orphans that outlived their command. Unless it is reaped here, none of these ids is given anew.
_orphans: set[int] = set()

# A second Ctrl-C within this many seconds of the first one kills.
SECOND_INTERRUPT_S = 3.0
# After the command ended, how long its background processes may keep its output open.
DRAIN_S = 2.0


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    code: its exit code; 128+N where signal N killed it; 126 or 127 where it did not start.
    failure: why it did not start, else "".
    interrupted: the signals that asked it, or pinner, to end.
    """

    code: int
    seconds: float
    failure: str = ""
    interrupted: tuple[int, ...] = ()


@dataclass(frozen=True)
class Output:
    """Where the command's standard output goes.

    target: a file descriptor for it, None for pinner's own. Nothing stands between the command
    and that descriptor, unless `on_bytes` wants to see it: then it passes through a pipe, byte by
    byte as it comes, and the command notices that it does not write to a terminal.
    """

    target: int | None = None
    on_bytes: Callable[[bytes], None] | None = None


def run(
    argv: Sequence[str],
    environment: Mapping[str, str],
    *,
    output: Output | None = None,
    on_start: Callable[[int], None] = lambda pid: None,
    on_tick: Callable[[], None] = lambda: None,
    tick_s: float = 0.5,
    descendants: Callable[[], Sequence[int]] = lambda: (),
    say: Callable[[str], None] = lambda text: None,
) -> Ended:
    """Starts `argv`, waits for its end and returns it.

    on_start: called with the process id. on_tick: called about every `tick_s` seconds meanwhile.
    descendants: process ids known to come from the command; they die with it on a second Ctrl-C.
    """
    output = output or Output()
    started = time.monotonic()
    waited = [s for s in FORWARDED if signal.getsignal(s) is not signal.SIG_IGN]
    if signal.getsignal(signal.SIGCHLD) is not signal.SIG_DFL:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # under SIG_IGN no exit code could be read
    own = children() - _orphans
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [*waited, signal.SIGCHLD])
    with _adopting(), _restoring(before):
        stdout = _stdout(output)
        try:
            pid = _start(argv, environment, stdout.sink, {int(number) for number in before})
        except OSError as error:
            stdout.close()
            return _not_started(argv, error, time.monotonic() - started)
        stdout.begin()
        on_start(pid)
        loop = _Loop(pid, own, [*waited, signal.SIGCHLD], descendants, say)
        code = loop.until_ended(on_tick, tick_s)
        stdout.finish()
        _orphans.update(loop.bury_orphans())
        return Ended(
            code=code if code >= 0 else 128 - code,
            seconds=time.monotonic() - started,
            interrupted=tuple(loop.ending),
        )


def children() -> frozenset[int]:
    """The process ids of this process's children, orphans that it was given and zombies too."""
    found: set[int] = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            text = path.read_text(encoding="ascii", errors="replace")
            if int(text.rpartition(")")[2].split()[1]) == os.getpid():
                found.add(int(path.parent.name))
    return frozenset(found)


@contextlib.contextmanager
def _restoring(mask: set[signal.Signals | int]) -> Iterator[None]:
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextlib.contextmanager
def _adopting() -> Iterator[None]:
    """Makes orphaned descendants children of this process, where the kernel lets it."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    before = ctypes.c_int(0)
    prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(before.value), 0, 0, 0)


def _start(
    argv: Sequence[str], environment: Mapping[str, str], stdout: int | None, mask: set[int]
) -> int:
    """Starts the command and returns its process id. Unlike `subprocess` it sets the signal mask.

    Descriptors that pinner inherited go on to the command, as they would have.
    """
    actions = [] if stdout is None else [(os.POSIX_SPAWN_DUP2, stdout, 1)]
    return os.posix_spawnp(
        argv[0],
        list(argv),
        dict(environment),
        file_actions=actions,
        setsigmask=mask,
        setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # Python itself ignores these two
    )


def _not_started(argv: Sequence[str], error: OSError, seconds: float) -> Ended:
    code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
    return Ended(code, seconds, f"cannot start {argv[0]!r}: {error.strerror or error}")


class _Loop:
    """Waits for the command, takes out the signals that arrive meanwhile, and passes them on."""

    def __init__(
        self,
        child: int,
        own: frozenset[int],
        waited: Sequence[signal.Signals],
        descendants: Callable[[], Sequence[int]],
        say: Callable[[str], None],
    ) -> None:
        self._child = child
        self._own = own
        self._waited = waited
        self._descendants = descendants
        self._say = say
        self._interrupted_at = float("-inf")
        self.ending: list[int] = []

    def until_ended(self, on_tick: Callable[[], None], tick_s: float) -> int:
        """Returns the exit code, or -N where signal N killed the command."""
        due = time.monotonic() + tick_s
        while True:
            pid, status = os.waitpid(self._child, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                self.bury_orphans()
            found = signal.sigtimedwait(self._waited, max(0.0, due - time.monotonic()))
            if found is not None and found.si_signo != signal.SIGCHLD:
                self._take(found)
            if time.monotonic() >= due:
                on_tick()
                due = time.monotonic() + tick_s

    def bury_orphans(self) -> set[int]:
        """Reaps orphans that have ended, and returns those that live.

        Whoever started our other children waits for those.
        """
        living = set()
        for pid in children() - self._own - {self._child}:
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG) == (0, 0):
                    living.add(pid)
        return living

    def _take(self, found: signal.struct_siginfo) -> None:
        number = found.si_signo
        from_terminal = found.si_code > 0  # SI_KERNEL; a process's kill() gives 0 or less
        if number in ENDING:
            self.ending.append(number)
        if not from_terminal and not self._comes_from_command(found.si_pid):
            self._send(self._child, number)
        if number == signal.SIGTSTP:
            _stop_too()
        if number == signal.SIGINT:
            self._interrupt()

    def _interrupt(self) -> None:
        last, self._interrupted_at = self._interrupted_at, time.monotonic()
        if self._interrupted_at - last > SECOND_INTERRUPT_S:
            return
        self._say("second interrupt: killing the command")
        for pid in (self._child, *self._descendants()):
            self._send(pid, signal.SIGKILL)

    def _comes_from_command(self, sender: int) -> bool:
        return sender == self._child or sender in self._descendants()

    @staticmethod
    def _send(pid: int, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _stop_too() -> None:
    """Stops pinner beside its command, where the kernel stops processes of this group at all."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTSTP])
    os.kill(os.getpid(), signal.SIGTSTP)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTSTP])


class _Through:
    """The command writes straight to the descriptor: nothing stands between."""

    def __init__(self, target: int | None) -> None:
        self.sink = target

    def close(self) -> None:
        """The descriptor is not ours."""

    def begin(self) -> None:
        """Nothing to read."""

    def finish(self) -> None:
        """Nothing to wait for."""


class _Tee:
    """Copies the command's standard output through a pipe, and shows each piece to a callback."""

    def __init__(self, target: int, on_bytes: Callable[[bytes], None]) -> None:
        self._source, self.sink = os.pipe()
        self._target = target
        self._on_bytes = on_bytes
        self._thread = threading.Thread(target=self._copy, name="pinner-stdout", daemon=True)

    def close(self) -> None:
        """Where no command came to write."""
        os.close(self.sink)
        os.close(self._source)

    def begin(self) -> None:
        os.close(self.sink)
        self._thread.start()

    def finish(self) -> None:
        """Waits for the end of the output, but for no background process that keeps it open."""
        self._thread.join(DRAIN_S)

    def _copy(self) -> None:
        with open(self._source, "rb", buffering=0) as source:
            while data := source.read(1 << 16):
                self._on_bytes(data)
                if not _write(self._target, data):
                    return  # nobody reads pinner's output any more: the command learns it, too


def _write(target: int, data: bytes) -> bool:
    view = memoryview(data)
    with contextlib.suppress(OSError):
        while view:
            view = view[os.write(target, view) :]
    return not view


def _stdout(output: Output) -> _Through | _Tee:
    if output.on_bytes is None:
        return _Through(output.target)
    sys.stdout.flush()
    return _Tee(1 if output.target is None else output.target, output.on_bytes)
