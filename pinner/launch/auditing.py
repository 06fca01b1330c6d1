"""Runs the command once, observed, and says how its choices were made; no lock is written."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pinner.launch import judge, one_run, session_dir
from pinner.launch.collect import collect
from pinner.launch.command_line import needs_shared_folder
from pinner.lockfile.merge import merge_ledgers
from pinner.policy.audit import Audit, audit

Say = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """What `pinner audit` was asked for.

    expect: how many ranks must report. folder: where the run's folder stays; None for nowhere.
    """

    job: one_run.Job
    expect: int | None = None
    folder: Path | None = None


@dataclass(frozen=True)
class Outcome:
    """What was found; text: why the run is no good, or nothing. audit: None if nobody reported."""

    exit: int
    status: str
    text: str = ""
    audit: Audit | None = None

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        found = None if self.audit is None else self.audit.as_json()
        return {"exit": self.exit, "status": self.status, "text": self.text, "audit": found}


def run_audit(options: Options, environ: Mapping[str, str], say: Say) -> Outcome:
    """Observes the command. Raises `SessionError` and `LedgerError`.

    A run that failed is told as far as it went: what it decided by then was decided all the same.
    """
    temporary = options.folder is None
    if temporary and (hint := needs_shared_folder(options.job.argv, environ)):
        say(f"note: {hint}")
    folder = options.folder or Path(tempfile.mkdtemp(prefix="pinner-audit-"))
    settings = replace(options.job.settings("observe", "audit", environ), evidence=False)
    session = session_dir.create(folder / "audit", settings)
    seen = one_run.run(session, options.job, environ, say)
    run = collect(session)
    refused = judge.refusal(run, expect=options.expect, own=one_run.own_place())
    found = audit(run.ledgers, merge_ledgers(run.ledgers)) if run.ledgers else None
    if seen.survivors:
        say(f"note: processes outlive the command; the run's folder stays for them: {folder}")
    elif temporary:
        shutil.rmtree(folder, ignore_errors=True)
    if refused is not None:
        return Outcome(refused.exit, refused.status, refused.text, found)
    return Outcome(judge.DONE, "audited", "", found)
