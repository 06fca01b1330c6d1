"""Stacks whose processes are forks of one that has imported torch: as PythonStack, and quicker.

`test_repro_capture.py` holds it to the real one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from stackbisect.repro.stacks import PythonStack, Ran, Watched
from stackbisect.runtimes import process
from tests.session_rig import REPO

SERVER = REPO / "tests" / "workloads" / "fork_server.py"


@dataclass
class Server:
    """The process that forks. Ends with `close`."""

    started: subprocess.Popen[str]
    environ: Mapping[str, str]

    def run(
        self, argv: Sequence[str], environ: Mapping[str, str], cwd: Path, log: Path, stdout: Path
    ) -> int:
        """The exit code of a fork that ran a program."""
        changed = {n: v for n, v in environ.items() if self.environ.get(n) != v}
        asked = {
            "argv": list(argv),
            "environ": changed,
            "unset": sorted(set(self.environ) - set(environ)),
            "cwd": str(cwd),
            "log": str(log),
            "stdout": str(stdout),
        }
        assert self.started.stdin is not None
        assert self.started.stdout is not None
        self.started.stdin.write(json.dumps(asked) + "\n")
        self.started.stdin.flush()
        return int(self.started.stdout.readline())

    def close(self) -> None:
        """End it; it has nothing to put away."""
        self.started.kill()
        self.started.communicate()


@dataclass(frozen=True)
class ForkedStack(PythonStack):
    """A PythonStack whose processes are forks of its server."""

    server: Server | None = None

    def run(self, *args: Any, **kwargs: Any) -> Ran:
        """See `Stack`."""
        with mock.patch.object(process, "run", self._forked):
            return super().run(*args, **kwargs)

    def watch(self, *args: Any, **kwargs: Any) -> Watched:
        """See `Stack`."""
        with mock.patch.object(process, "run", self._forked):
            return super().watch(*args, **kwargs)

    def _forked(
        self, argv: Sequence[str], environ: Mapping[str, str], cwd: Path, **more: Any
    ) -> process.Ended:
        assert self.server is not None
        code = self.server.run(argv[1:], environ, cwd, more["log"], more["stdout"])
        return process.Ended(code, False)


@contextmanager
def forked(stack: PythonStack) -> Iterator[ForkedStack]:
    """The stack, with a server that runs as long as this is open.

    Its PYTHONPATH is that of all its processes, and has to find pinner.
    """
    environ = {**stack._environ(), "PYTHONDONTWRITEBYTECODE": "1"}
    started = subprocess.Popen(
        [sys.executable, str(SERVER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environ,
        text=True,
    )
    server = Server(started, environ)
    try:
        fields = {name: getattr(stack, name) for name in PythonStack.__dataclass_fields__}
        yield ForkedStack(**fields, server=server)
    finally:
        server.close()
