"""Runs verifications as the command does, in the test's own process, and keeps what was said."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pinner.launch import verify, verify_resume
from pinner.launch.one_run import Job
from pinner.launch.verify_chase import Compare
from pinner.launch.verify_run import Asked, Outcome
from tests.command_rig import REPO


class Verify:
    """Verifications in `folder`; what the command prints goes to the test's standard error."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: list[str] = []

    def environ(self, **more: str) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(REPO), **more}

    def asked(self, argv: Sequence[str], lock: Path | None = None) -> Asked:
        number = len(list(self.folder.iterdir()))
        return Asked(Job(tuple(argv), output=2), lock=lock, folder=self.folder / f"runs-{number}")

    def resume(
        self,
        argv: Sequence[str],
        at: int = 1,
        restore_with: Sequence[str] = (),
        lock: Path | None = None,
        **environ: str,
    ) -> Outcome:
        options = verify_resume.Options(self.asked(argv, lock), at, tuple(restore_with))
        return verify_resume.verify(options, self.environ(**environ), self.said.append)

    def runs(
        self,
        argv: Sequence[str],
        runs: int = 2,
        *,
        lock: Path | None = None,
        chase: bool = False,
        keep: int | None = None,
        compare: Compare | None = None,
        **environ: str,
    ) -> Outcome:
        options = verify.Options(self.asked(argv, lock), runs, chase, keep=keep)
        return verify.verify(options, self.environ(**environ), self.said.append, compare)

    def scale(self, argv: Sequence[str], sizes: Sequence[int], **environ: str) -> Outcome:
        return verify.scale(self.asked(argv), sizes, self.environ(**environ), self.said.append)

    def history(self, name: str) -> Path:
        """The folder of a history of the only verification: whole or killed."""
        (found,) = self.folder.glob(f"runs-*/histories/{name}")
        return found
