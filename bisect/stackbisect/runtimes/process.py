"""Runs a command on this machine under a warden, output in files; nothing of it stays behind."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stackbisect.probe import InfrastructureError
from stackbisect.runtimes import warden
from stackbisect.runtimes.container_output import OutputFile

_CHUNK = 1 << 16
# The warden gives processes `warden.GRACE_S` twice; after that something is wrong with it.
_STOP_S = 3 * warden.GRACE_S
# How soon a command ends after another thread wants it ended.
_LOOK_S = 0.2


class Stopped(Exception):
    """The command was ended because the program wants to stop."""


@dataclass(frozen=True)
class Ended:
    """How a command ended: its code (128+N for signal N), or that it was stopped at the limit.

    Where it ran elsewhere `facts` say where, and `since` is when its only start that counts began
    (ns, by the clock of the file system).
    """

    code: int
    timed_out: bool
    facts: Mapping[str, Any] = field(default_factory=dict)
    since: int = 0


def run(
    argv: Sequence[str],
    environ: Mapping[str, str],
    workdir: Path,
    *,
    log: Path,
    stdout: Path,
    time_limit: float | None = None,
    secrets: Sequence[str] = (),
    stopped: Callable[[], bool] | None = None,
) -> Ended:
    """Run a command to its end.

    `log` gets its whole output, `stdout` its standard output alone, both without `secrets`. It has
    no standard input. An interrupt passes through once every process of the command is gone; so
    does Stopped, raised where `stopped` (asked often, for threads, which no interrupt reaches)
    becomes true.
    """
    if stopped is not None and stopped():
        raise Stopped("the program stops")
    with OutputFile(log, secrets) as whole, OutputFile(stdout, secrets) as printed:
        started = _start(argv, environ, workdir)
        try:
            timed_out = _pump(started, whole, printed, time_limit, stopped)
            code = started.wait(_STOP_S)
        except BaseException:
            _stop(started)
            raise
        finally:
            for stream in (started.stdin, started.stdout, started.stderr):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
    return Ended(code, timed_out)


def _start(
    argv: Sequence[str], environ: Mapping[str, str], workdir: Path
) -> subprocess.Popen[bytes]:
    asked = {"argv": list(argv), "env": dict(environ), "cwd": str(workdir)}
    try:
        # In a session of its own: the terminal's Ctrl-C and a kill of our group pass it by.
        started = subprocess.Popen(
            [sys.executable, "-I", "-S", warden.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise InfrastructureError(f"cannot start a process: {error.strerror}") from error
    assert started.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        started.stdin.write(json.dumps(asked).encode() + b"\n")
        started.stdin.flush()
    return started


def _pump(
    started: subprocess.Popen[bytes],
    whole: OutputFile,
    printed: OutputFile,
    time_limit: float | None,
    stopped: Callable[[], bool] | None,
) -> bool:
    """Write output to the files until there is no more of it; True where the limit was reached."""
    deadline = None if time_limit is None else time.monotonic() + time_limit
    timed_out = False
    assert started.stdout is not None
    assert started.stderr is not None
    lines = {started.stdout: _Lines(whole), started.stderr: _Lines(whole)}
    with selectors.DefaultSelector() as ready:
        for stream in lines:
            ready.register(stream, selectors.EVENT_READ)
        while ready.get_map():
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            if stopped is not None:
                left = _LOOK_S if left is None else min(left, _LOOK_S)
            for key, _ in ready.select(left):
                stream = started.stdout if key.fileobj is started.stdout else started.stderr
                chunk = os.read(key.fd, _CHUNK)
                if not chunk:
                    ready.unregister(stream)
                    continue
                lines[stream].take(chunk)
                if stream is started.stdout:
                    printed.write(chunk)
            if stopped is not None and stopped():
                raise Stopped("the program stops")
            if deadline is not None and time.monotonic() >= deadline:
                timed_out, deadline = True, None
                _ask_to_end(started)
    for rest in lines.values():
        rest.finish()
    return timed_out


class _Lines:
    """Passes whole lines on, so that two streams in one file do not cut each other's lines."""

    def __init__(self, out: OutputFile) -> None:
        self._out = out
        self._rest = b""

    def take(self, chunk: bytes) -> None:
        """Pass on what is complete."""
        text = self._rest + chunk
        cut = text.rfind(b"\n") + 1
        if len(text) - cut > _CHUNK:
            cut = len(text)
        self._rest = text[cut:]
        self._out.write(text[:cut])

    def finish(self) -> None:
        """Pass on the unfinished last line."""
        self._out.write(self._rest)


def _ask_to_end(started: subprocess.Popen[bytes]) -> None:
    assert started.stdin is not None
    with contextlib.suppress(OSError):
        started.stdin.close()


def _stop(started: subprocess.Popen[bytes]) -> None:
    """End the command and wait until its processes are gone."""
    _ask_to_end(started)
    # A full pipe would keep a process from ending that still wants to write.
    for stream in (started.stdout, started.stderr):
        if stream is not None:
            stream.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        started.wait(_STOP_S)
        return
    started.kill()
    started.wait()
