"""Removes from a lock what no run used, and seals what is left by fresh runs under it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pinner.inside.values import readable_named
from pinner.launch import judge, record, session_dir
from pinner.launch.collect import collect
from pinner.launch.coverage import met_entries
from pinner.launch.judge import Refusal
from pinner.launch.record import Outcome, Recording, Say
from pinner.lockfile.codec import read_lock_with_digest
from pinner.lockfile.configs import config_text
from pinner.lockfile.prune import without
from pinner.lockfile.schema import Entry, Identity, Lock


@dataclass(frozen=True)
class Options:
    """What `pinner prune` was asked for.

    recording: the command (none: only the runs of `sessions` count), and how it is validated;
    `recording.out` is the lock. sessions: folders of finished runs under it. dry_run: only say.
    """

    recording: record.Options
    sessions: tuple[Path, ...] = ()
    dry_run: bool = False


def prune(options: Options, environ: Mapping[str, str], say: Say) -> Outcome:
    """Prunes a lock. Raises `LockError`, `SessionError`, `LedgerError`, `TapError`."""
    path = options.recording.out
    lock, digest = read_lock_with_digest(path)
    used: set[Identity] = set()
    for folder in options.sessions:
        found = _used_in_session(folder, lock, digest)
        if isinstance(found, Refusal):
            return record.left_alone(found, {})
        used |= found
    if not options.recording.job.argv:
        return _ended_without_runs(options, lock, used, say)
    recording = record.under_lock(options.recording, lock, environ)
    if isinstance(recording, Refusal):
        return record.left_alone(recording, {})
    pruning = _Pruning(replace(options, recording=recording), lock, digest, used, say)
    return record.in_folder("prune", recording, environ, say, pruning.outcome)


class _Pruning:
    """One pruning that runs the command. used: what the runs of given folders used."""

    def __init__(
        self, options: Options, lock: Lock, digest: str, used: set[Identity], say: Say
    ) -> None:
        self._options = options
        self._lock = lock
        self._digest = digest
        self._used = used
        self._say = say

    def outcome(self, recording: Recording) -> Outcome:
        self._say("looking which choices are used: " + " ".join(self._options.recording.job.argv))
        run = recording.enforced(self._lock, "prune")
        refused = recording.usable(run) or judge.held_refusal(self._lock, run)
        if refused is not None:
            return record.left_alone(refused, recording.details)
        gone = _gone(self._lock, self._used | met_entries(self._lock, run.ledgers))
        recording.details["removed"] = _tell(gone, self._say)
        if self._options.dry_run or (self._lock.run.sealed and not gone):
            return _nothing_written(self._options, gone, recording.details)
        pruned = without(self._lock, {entry.identity for entry in gone})
        pruned = replace(pruned, run=record.remade(pruned.run, run))
        recording.details["other_bits"] = record.tell_other_bits(self._lock, run, self._say)
        sealed = recording.validated(pruned, run)
        if isinstance(sealed, Refusal):
            return record.left_alone(sealed, recording.details)
        out = self._options.recording.out
        outcome = record.replace_lock(out, self._digest, sealed, recording.details)
        return replace(outcome, text=f"{_what(gone)}\n{outcome.text}")


def _used_in_session(folder: Path, lock: Lock, digest: str) -> set[Identity] | Refusal:
    """What a finished run used. One that was cut short, or broke pins, shows too little."""
    place = folder / "enforce"  # what `enforce --dir` makes
    session = session_dir.read(place if place.is_dir() else folder)
    if session_dir.lock_digest(session) != digest:
        text = f"{folder} did not run under this lock as it is now: what it used says nothing"
        return Refusal(judge.REFUSED, "another-lock", text)
    run = collect(session)
    # Processes that `pinner env` started have no launcher's record; their absence is no end.
    found = judge.own_refusal(run) or judge.held_refusal(lock, run)
    if found is None and not run.ledgers:
        found = Refusal(judge.NOTHING, "nobody", "no process took part")
    if found is None:
        return met_entries(lock, run.ledgers)
    return replace(found, text=f"{folder}: {found.text}")


def _ended_without_runs(options: Options, lock: Lock, used: set[Identity], say: Say) -> Outcome:
    """Nobody validates the pruned lock here, so that it is a draft, beside a sealed one."""
    gone = _gone(lock, used)
    details = {"removed": _tell(gone, say)}
    if not gone or options.dry_run:
        return _nothing_written(options, gone, details)
    pruned = without(lock, {entry.identity for entry in gone})
    path = record.write_draft(options.recording.out, pruned)
    text = (
        f"{_what(gone)}\nthe draft is in {path}: no run has validated it; "
        f"`pinner prune -l {path} -- CMD` does, and seals it"
    )
    return Outcome(judge.DONE, "draft", text, path, details=details)


def _gone(lock: Lock, used: set[Identity]) -> list[Entry]:
    return [entry for entry in lock.entries if entry.identity not in used]


def _tell(gone: Sequence[Entry], say: Say) -> list[dict[str, Any]]:
    """Says each entry that goes, and returns them for programs."""
    for entry in gone:
        config = config_text(entry.chooser, entry.config)
        say(f"unused: {entry.place}  {readable_named(entry.key)} → {config}")
    return [
        {
            "chooser": entry.chooser,
            "kernel": entry.kernel,
            "source": entry.source,
            "key": dict(entry.key),
            "config": dict(entry.config),
        }
        for entry in gone
    ]


def _what(gone: Sequence[Entry]) -> str:
    return f"removed {record.counted(len(gone), 'choice')} that no run used"


def _nothing_written(
    options: Options, gone: Sequence[Entry], details: Mapping[str, Any]
) -> Outcome:
    path = options.recording.out
    if gone:
        text = f"{record.counted(len(gone), 'choice')} would go; nothing was written"
        return Outcome(judge.DONE, "dry-run", text, details=details)
    return Outcome(judge.DONE, "unchanged", f"{path}: every choice was used", details=details)
