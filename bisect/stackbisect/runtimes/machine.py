"""Where the command of a probe runs: here, or wherever a scheduler puts it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from stackbisect.runtimes import process


class Unfit(Exception):
    """The command could not run to its end there; the text is the machine's own."""


class Machine(Protocol):
    """Runs a command to its end, as `process.run` does.

    `own` are folders that one start of the command has for itself: where it is started a second
    time it gets them as they were at first, and only what the last start left in them counts. `key`
    says what the command is: a command of the same key that was under way when this program was
    killed is the same one. Raises Unfit, process.Stopped and InfrastructureError; leaves nothing
    behind.
    """

    def run(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        workdir: Path,
        *,
        log: Path,
        stdout: Path,
        time_limit: float | None = None,
        secrets: Sequence[str] = (),
        stopped: Callable[[], bool] | None = None,
        own: Sequence[Path] = (),
        key: str = "",
    ) -> process.Ended:
        """Run it."""


class Here:
    """This machine. Each command is started once."""

    def run(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        workdir: Path,
        *,
        log: Path,
        stdout: Path,
        time_limit: float | None = None,
        secrets: Sequence[str] = (),
        stopped: Callable[[], bool] | None = None,
        own: Sequence[Path] = (),
        key: str = "",
    ) -> process.Ended:
        """Run it."""
        return process.run(
            argv,
            environ,
            workdir,
            log=log,
            stdout=stdout,
            time_limit=time_limit,
            secrets=secrets,
            stopped=stopped,
        )
