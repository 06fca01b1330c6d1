"""Records by hand over a shared folder, for jobs that a scheduler starts: observe, validate, seal.

```
SHARED/observe/            the observed run; every launcher of it joins
SHARED/draft.lock.toml     merged from it by whoever comes first; whoever comes makes the same bytes
SHARED/validate-NAME/      one validating run; every launcher of it joins
SHARED/replaced-NAME/      an observed run that --fresh put aside
```
Each launcher (one for each srun task, or one for all) starts its own part of the command. They find
each other by the run's name. A launcher that was killed has begun and not ended in its record; a
run with such a launcher is not used, and the next phase says which one it was.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pinner.durable import replace_text
from pinner.launch import judge, one_run, record, session_dir
from pinner.launch.collect import Run, collect, launchers
from pinner.launch.judge import Disagreement, Refusal
from pinner.launch.record import Options, Outcome, Say
from pinner.launch.session_dir import SessionDir, SessionTaken, Settings
from pinner.lockfile.codec import dumps, read_lock_with_digest
from pinner.lockfile.compiled import pins_text
from pinner.lockfile.conflicts import ConflictError
from pinner.lockfile.merge import Draft, merge_ledgers
from pinner.lockfile.schema import Lock

Phase = Literal["observe", "validate", "seal"]

# Beside torchrun's own ids: "none" is what it hands out where it was given no id.
_NO_ID = ("", "none")


class NameNeeded(Exception):
    """The launchers of one run cannot find each other without being told its name."""


@dataclass(frozen=True)
class Shared:
    """What a phase was asked for. fresh: put an earlier observed run aside."""

    options: Options
    folder: Path
    run_name: str | None = None
    fresh: bool = False


def run_phase(phase: Phase, shared: Shared, environ: Mapping[str, str], say: Say) -> Outcome:
    """One phase. Raises `SessionError`, `LedgerError`, `LockError`, `NameNeeded`."""
    if phase == "observe":
        return observe(shared, environ, say)
    if phase == "validate":
        return validate(shared, environ, say)
    return seal(shared, say)


def observe(shared: Shared, environ: Mapping[str, str], say: Say) -> Outcome:
    """This launcher's part of the observed run."""
    name = run_name(shared.run_name, environ)
    settings = _settings(shared, "observe", name, environ)
    shared.folder.mkdir(parents=True, exist_ok=True)
    if shared.fresh:
        _put_aside(shared.folder, name)
    session = session_dir.join(shared.folder / "observe", settings)
    if session.settings.run != name:
        raise SessionTaken(
            f"expected no observed run in {shared.folder}, found run {session.settings.run!r}: "
            "take --fresh to put it aside, or another folder"
        )
    return _own_part(shared, session, environ, say)


def validate(shared: Shared, environ: Mapping[str, str], say: Say) -> Outcome:
    """This launcher's part of one enforced run under the draft."""
    merged = _merged(shared)
    if isinstance(merged, Outcome):
        return merged
    for line in record.draft_lines(merged.draft):
        say(line)
    name = run_name(shared.run_name, environ)
    settings = _settings(shared, "enforce", name, environ)
    pins = pins_text(merged.lock, merged.digest)
    session = session_dir.join(shared.folder / f"validate-{name}", settings, pins)
    if session_dir.lock_digest(session) != merged.digest:
        raise SessionTaken(
            f"{session.path} is a run under another draft: give this one a name with --run-name"
        )
    with session_dir.fresh_caches(environ) as fresh:
        return _own_part(shared, session, fresh, say)


def seal(shared: Shared, say: Say) -> Outcome:
    """Seals the draft, if enough validating runs under it came to their end and agree."""
    merged = _merged(shared)
    if isinstance(merged, Outcome):
        return merged
    details: dict[str, Any] = record.draft_details(merged.draft)
    runs, others = _validating(shared, merged.digest)
    details["runs"] = [{"name": run.name, "processes": len(run.ledgers)} for run in runs]
    for line in others:
        say(f"note: {line}")
    agreed = (
        _too_few(shared, runs, others)
        or _first_refusal(runs, shared, merged.lock)
        or judge.agree(runs)
    )
    if isinstance(agreed, Disagreement):
        details["difference"] = agreed.to_json()
        agreed = agreed.refusal
    out = shared.options.out
    if isinstance(agreed, Refusal):
        return record.refused_outcome(agreed, out, merged.lock, details)
    details.update(record.tell_agreement(agreed, merged.observed, runs[0], say))
    return record.write_sealed(out, record.seal(merged.lock, agreed, runs, say), details)


def run_name(given: str | None, environ: Mapping[str, str]) -> str:
    """The name by which the launchers of one run find each other.

    Slurm's job and step (a job that was requeued counts its steps from 0 again), torchrun's
    rendezvous id, or a new name for a launcher that is alone.
    Raises `NameNeeded` where there are several and nothing that they share.
    """
    if given is not None:
        return _plain(given)
    job, step = environ.get("SLURM_JOB_ID"), environ.get("SLURM_STEP_ID")
    if job and step:
        again = environ.get("SLURM_RESTART_COUNT", "0")
        return _plain(f"{job}.{step}" + (f".restart{again}" if again not in ("", "0") else ""))
    elastic = environ.get("TORCHELASTIC_RUN_ID", "")
    if elastic.lower() not in _NO_ID:
        return _plain(elastic)
    own = one_run.own_place()
    if own is not None:
        raise NameNeeded(
            f"this is one of {own.world} launchers, and nothing they share names their run: "
            "give each of them the same --run-name NAME"
        )
    return session_dir.new_name()


def _plain(name: str) -> str:
    kept = "".join(c if c.isalnum() or c in "._-" else "_" for c in name)
    return kept.lstrip(".") or "run"


def _own_part(shared: Shared, session: SessionDir, environ: Mapping[str, str], say: Say) -> Outcome:
    """Runs this launcher's command in the session, and judges what it alone can judge."""
    _refuse_twice(session)
    seen = one_run.run(session, shared.options.job, environ, say)
    details = {
        "run": session.settings.run,
        "folder": str(session.path),
        "code": seen.ended.code,
        "seconds": round(seen.ended.seconds, 3),
    }
    run = collect(session)
    own = replace(run, launchers=tuple(x for x in run.launchers if x.file == seen.record))
    refused = judge.own_refusal(own)
    if refused is not None:
        told = record.told_once(refused.text, judge.said_already(own))
        return Outcome(refused.exit, refused.status, refused.text, details=details, told=told)
    text = f"{session.settings.run}: this launcher's part is in {session.path}"
    return Outcome(judge.DONE, "ran", text, details=details)


def _refuse_twice(session: SessionDir) -> None:
    """A launcher whose part of this run was started already would mix two runs in one folder."""
    place, host = one_run.own_place(), os.uname().nodename
    task = place.rank if place else 0
    for launcher in launchers(session):
        if launcher.task == task and (launcher.rank is not None or launcher.fields["host"] == host):
            raise SessionTaken(
                f"{launcher.name} has taken part in run {session.settings.run!r} in {session.path} "
                "already: give this run another --run-name, or for the observed run take --fresh"
            )


@dataclass(frozen=True)
class _Merged:
    """The observed run, and the draft that is made of it."""

    observed: Run
    draft: Draft
    lock: Lock
    digest: str


def _merged(shared: Shared) -> _Merged | Outcome:
    """The draft of the observed run, on disk for all to see; its bytes depend on that run alone."""
    observed = collect(session_dir.read(shared.folder / "observe"))
    refused = _unusable(observed, shared)
    if refused is not None:
        return Outcome(refused.exit, refused.status, refused.text)
    try:
        draft = merge_ledgers(observed.ledgers, shared.options.on_conflict)
    except ConflictError as error:
        return Outcome(judge.REFUSED, "conflicts", str(error))
    path = shared.folder / "draft.lock.toml"
    text = dumps(record.make_draft(draft, observed))
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        replace_text(path, text)
    return _Merged(observed, draft, *read_lock_with_digest(path))


def _unusable(run: Run, shared: Shared) -> Refusal | None:
    lost = judge.incomplete_launchers(run)
    if lost:
        return Refusal(
            judge.BROKEN, "incomplete", f"run {run.name!r} is not complete: {'; '.join(lost)}"
        )
    return judge.refusal(run, expect=shared.options.expect)


def _validating(shared: Shared, digest: str) -> tuple[list[Run], list[str]]:
    """The complete validating runs under this draft, and a line for each that does not count."""
    runs, others = [], []
    for path in sorted(shared.folder.glob("validate-*")):
        session = session_dir.read(path)
        if session_dir.lock_digest(session) != digest:
            others.append(f"{path.name} ran under another draft and does not count")
            continue
        run = collect(session)
        lost = judge.incomplete_launchers(run)
        if lost:
            others.append(f"{path.name} is not complete and does not count: {'; '.join(lost)}")
        else:
            runs.append(run)
    return runs, others


def _too_few(shared: Shared, runs: list[Run], others: list[str]) -> Refusal | None:
    if len(runs) >= shared.options.runs:
        return None
    because = "".join(f"; {line}" for line in others)
    return Refusal(
        judge.NOTHING,
        "too-few-runs",
        f"expected at least {shared.options.runs} complete validating runs in {shared.folder}, "
        f"found {len(runs)}{because}; run --phase validate again",
    )


def _first_refusal(runs: list[Run], shared: Shared, lock: Lock) -> Refusal | None:
    for run in runs:
        refused = judge.refusal(run, expect=shared.options.expect)
        refused = refused or judge.held_refusal(lock, run)
        if refused is not None:
            return replace(refused, text=f"validating run {run.name!r}: {refused.text}")
    return None


def _settings(
    shared: Shared, mode: session_dir.Mode, name: str, environ: Mapping[str, str]
) -> Settings:
    settings = shared.options.job.settings(mode, name, environ)
    return replace(settings, on_miss="error") if mode == "enforce" else settings


def _put_aside(folder: Path, name: str) -> None:
    """Moves an observed run of another name away; of several launchers that want to, one does.

    The new name is the old run's own, and a folder is never moved onto one that holds something:
    a launcher that is late cannot move the new run that another one has just begun.
    """
    path = folder / "observe"
    if not path.exists():
        return
    found = session_dir.read(path).settings.run
    if found == name:
        return
    try:
        os.rename(path, folder / f"replaced-{found}")
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise
