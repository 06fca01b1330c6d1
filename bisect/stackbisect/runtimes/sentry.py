"""Removes a container whose program was killed: a small process that waits beside it.

The program holds a pipe to it and says goodbye once it has removed the container itself. Where the
pipe ends without that (kill -9, a crash) the sentry removes the container, by the name that was
chosen before the daemon was asked for it. What survives even this (a machine that went down) is
removed by the bisection's next probe or by `stackbisect clean`.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time

from stackbisect.probe import InfrastructureError

_GOODBYE = b"gone\n"
# A container that the daemon was still making when the program died appears a little later.
_LOOK_FOR_S = 10.0
_CODE = (
    "import json, sys; sys.path[:0] = json.loads(sys.argv[1]); "
    "from stackbisect.runtimes import sentry; sentry.main(*sys.argv[2:])"
)


class Sentry:
    """A sentry for one container, from before it is made until it is gone."""

    def __init__(self, name: str, address: str | None = None) -> None:
        """Start it. `address`: of the daemon; None is the usual one. Raises InfrastructureError."""
        try:
            # In a session of its own: what kills our group passes it by.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", _CODE, json.dumps(sys.path), name, address or ""],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise InfrastructureError(f"cannot start a process: {error.strerror}") from error

    def release(self) -> None:
        """The container is gone: the sentry may go. May be called twice."""
        stdin = self._process.stdin
        assert stdin is not None
        with contextlib.suppress(OSError, ValueError):
            stdin.write(_GOODBYE)
        with contextlib.suppress(OSError):
            stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)


def main(name: str, address: str) -> None:
    """Wait for the end of the program; remove the container where nobody said goodbye."""
    if sys.stdin.buffer.read() == _GOODBYE:
        return
    from stackbisect.runtimes.docker_engine import Engine

    deadline = time.monotonic() + _LOOK_FOR_S
    while time.monotonic() < deadline:
        with contextlib.suppress(InfrastructureError):
            engine = Engine.connect(address or None)
            try:
                if engine.remove(name):
                    return
            finally:
                engine.close()
        time.sleep(0.5)
