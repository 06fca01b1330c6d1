"""Starts one command and sees to it that nothing of it outlives the program that asked.

Run as a script of its own: `python -I -S warden.py`, standard library only. The first line of
standard input is a JSON object with `argv`, `env` and `cwd`. Standard input then stays open; when
it ends, the asking program wants the command ended, or is gone (killed, too: the kernel closes its
side). Every process the command left behind is ended with it, also those that went into the
background: as child subreaper (prctl(2)) the warden inherits them.

Exit code: the command's; 128+N where signal N killed it; 127 not found, 126 not executable.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time

PR_SET_CHILD_SUBREAPER = 36
# How long a process that was asked to end may take before it is killed.
GRACE_S = 3.0
NOT_FOUND = 127
NOT_EXECUTABLE = 126


def main() -> int:
    """Start, wait, clean up."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    asked = json.loads(_first_line())
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        command = subprocess.Popen(
            asked["argv"],
            env=asked["env"],
            cwd=asked["cwd"],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        return _refused(f"{error.filename}: not found", NOT_FOUND)
    except OSError as error:
        return _refused(f"{asked['argv'][0]}: {error.strerror}", NOT_EXECUTABLE)
    code = _wait(command, woken)
    _end_all()
    if code is None:
        code = command.wait()
    return code if code >= 0 else 128 - code


def _first_line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        chunk = os.read(0, 1)
        if not chunk:
            sys.exit(0)
        line += chunk
    return line


def _refused(text: str, code: int) -> int:
    sys.stderr.write(f"stackbisect: the command cannot be started: {text}\n")
    return code


def _wait(command: subprocess.Popen[bytes], woken: int) -> int | None:
    """The command's code, or None where standard input ended first."""
    while True:
        code = command.poll()
        if code is not None:
            return code
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(woken, 4096)
        if 0 in ready and not os.read(0, 4096):
            return None


def _end_all() -> None:
    """End every descendant; those whose parents end become this process's children."""
    deadline = time.monotonic() + GRACE_S
    asked: set[int] = set()
    while True:
        left = descendants(os.getpid())
        if not left:
            return
        late = time.monotonic() > deadline
        for pid in left:
            if late or pid not in asked:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        asked.update(left)
        if time.monotonic() > deadline + GRACE_S:
            return  # not ours to kill (another user's), or stuck in the kernel
        time.sleep(0.02)


def descendants(root: int) -> list[int]:
    """Every living process below `root`, from /proc (zombies left out)."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{name}/stat", "rb") as file:
                # pid (comm) state ppid …; comm may hold spaces and parentheses.
                fields = file.read().rpartition(b")")[2].split()
            if fields[0] != b"Z":
                parents[int(name)] = int(fields[1])
    found: list[int] = []
    level = {root}
    while level:
        level = {pid for pid, parent in parents.items() if parent in level}
        found.extend(level)
    return found


if __name__ == "__main__":
    sys.exit(main())
