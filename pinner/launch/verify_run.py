"""One run of a verification: a fresh process with fresh compile caches, observed or enforced."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pinner.launch import enforce, judge, one_run, session_dir
from pinner.launch.collect import Run, collect
from pinner.launch.command_line import needs_shared_folder
from pinner.launch.coverage import cover
from pinner.launch.judge import Refusal
from pinner.launch.session_dir import SessionDir, Settings
from pinner.lockfile.compiled import pins_text
from pinner.lockfile.schema import Lock

Say = Callable[[str], None]


@dataclass(frozen=True)
class Asked:
    """What every verification is asked for.

    lock: the lock the runs are enforced under; None to observe them as they are. expect: how many
    ranks must report. folder: where the runs' folders stay; None for a temporary one.
    """

    job: one_run.Job
    lock: Path | None = None
    allow: tuple[str, ...] = ()
    allow_draft: bool = False
    expect: int | None = None
    folder: Path | None = None


@dataclass(frozen=True)
class Outcome:
    """What came of a verification: the exit code, one word for programs, lines for people."""

    exit: int
    status: str
    lines: tuple[str, ...]
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The lines as one text."""
        return "\n".join(self.lines)

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return {"exit": self.exit, "status": self.status, "text": self.text, **self.details}


class Runs:
    """Makes the runs of one verification, in one folder. keep: the folder stays in any case."""

    def __init__(
        self,
        asked: Asked,
        locked: tuple[Lock, str] | None,
        folder: Path,
        environ: Mapping[str, str],
        say: Say,
    ) -> None:
        self._asked = asked
        self._environ = environ
        self._say = say
        self._lock = None if locked is None else locked[0]
        self._pins = None if locked is None else locked[1]
        self.folder = folder
        self.made: list[dict[str, Any]] = []
        self.survivors = False
        self.keep = False

    def run(
        self,
        name: str,
        argv: Sequence[str] | None = None,
        more: Mapping[str, str] | None = None,
        around: Callable[[SessionDir], Any] | None = None,
        trace: Mapping[str, Any] | None = None,
        *,
        values: bool = False,
    ) -> Run:
        """Runs the command, or `argv`, once. `around` makes a context that lasts as long.

        trace: what is traced, as `pinner.inside.evidence.trace.settings` reads it. values: single
        numbers keep their bits beside the digest. Raises `SessionError`, `LedgerError` and
        `TapError`.
        """
        job = self._asked.job if argv is None else replace(self._asked.job, argv=tuple(argv))
        settings = replace(self._settings(name), trace=trace, values=values)
        session = session_dir.create(self.folder / name, settings, self._pins)
        with session_dir.fresh_caches({**self._environ, **(more or {})}) as environ:
            if around is None:
                seen = one_run.run(session, job, environ, self._say)
            else:
                with around(session):
                    seen = one_run.run(session, job, environ, self._say)
        self.survivors |= bool(seen.survivors)
        found = collect(session)
        self.made.append(
            {
                "name": name,
                "code": seen.ended.code,
                "seconds": round(seen.ended.seconds, 3),
                "processes": len(found.ledgers),
                "folder": str(session.path),
            }
        )
        return found

    def refusal(self, run: Run) -> Refusal | None:
        """Why a run that was meant to come to its end cannot be used."""
        found = judge.refusal(run, expect=self._asked.expect, own=one_run.own_place())
        return found or self._broken(run)

    def _broken(self, run: Run) -> Refusal | None:
        """Bits of a run whose pins did not hold say nothing about the lock."""
        if self._lock is None:
            return None
        coverage = cover(self._lock, run.ledgers)
        self._say(f"{run.name}: {coverage.line()}")
        return judge.broken_refusal(coverage, "fallback")

    def _settings(self, name: str) -> Settings:
        mode: session_dir.Mode = "observe" if self._asked.lock is None else "enforce"
        settings = self._asked.job.settings(mode, name, self._environ)
        return replace(settings, allow=self._asked.allow)


@contextmanager
def runs(asked: Asked, environ: Mapping[str, str], say: Say) -> Iterator[Runs]:
    """The runs of one verification, in a folder that is removed unless it was asked for.

    Raises `LockRefused` where the lock may not be enforced.
    """
    locked = _locked(asked)
    if locked is not None:
        asked = replace(asked, job=enforce.with_recorded(asked.job, locked[0]))
    if asked.folder is None and (hint := needs_shared_folder(asked.job.argv, environ)):
        say(f"note: {hint}")
    folder = asked.folder or Path(tempfile.mkdtemp(prefix="pinner-verify-"))
    made: Runs | None = None
    try:
        made = Runs(asked, locked, folder, environ, say)
        yield made
    finally:
        if asked.folder is None and made is not None and made.survivors:
            say(f"note: processes outlive the command; the runs' folders stay for them: {folder}")
        elif asked.folder is None and (made is None or not made.keep):
            shutil.rmtree(folder, ignore_errors=True)


def refused(found: Refusal, runs: Runs | None = None) -> Outcome:
    """A verification that ends because of a run."""
    details: dict[str, Any] = {} if runs is None else {"runs": runs.made}
    text = found.text.replace("; nothing was sealed", "")
    return Outcome(found.exit, found.status, (text,), details)


def _locked(asked: Asked) -> tuple[Lock, str] | None:
    """The lock to enforce, and the text of its pins. Raises `LockRefused`."""
    if asked.lock is None:
        return None
    lock, digest = enforce.load(asked.lock, allow_draft=asked.allow_draft, allow=asked.allow)
    enforce.check_watched(lock, asked.job.cublaslt)
    return lock, pins_text(lock, digest)
