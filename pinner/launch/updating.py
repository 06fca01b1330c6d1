"""Records anew what a lock lacks or what no longer holds, keeps the rest, and validates all of it.

The command runs under the lock, and only keys that are not in it are tuned. An entry that cannot be
forced, or that became other machine code, is taken out and the command runs again, so that its key
is tuned like one that was never there. Each such round takes out one entry at least.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pinner.inside.values import readable_named
from pinner.launch import judge, record
from pinner.launch.collect import Run
from pinner.launch.coverage import Coverage, cover, described, met_entries
from pinner.launch.judge import Refusal
from pinner.launch.record import Outcome, Recording, Say
from pinner.lockfile.codec import read_lock_with_digest
from pinner.lockfile.conflicts import ConflictError
from pinner.lockfile.diff import diff_locks
from pinner.lockfile.merge import Draft, merge_ledgers
from pinner.lockfile.prune import without
from pinner.lockfile.schema import Identity, Lock
from pinner.lockfile.update import identities, meant, with_new


@dataclass(frozen=True)
class Options:
    """What `pinner update` was asked for.

    recording: the command, and how it is validated; `recording.out` is the lock. draft: what cannot
    be sealed is kept beside it.
    """

    recording: record.Options
    draft: bool = False


def update(options: Options, environ: Mapping[str, str], say: Say) -> Outcome:
    """Updates a lock. Raises `LockError`, `SessionError`, `LedgerError`, `TapError`."""
    lock, digest = read_lock_with_digest(options.recording.out)
    recording = record.under_lock(options.recording, lock, environ)
    if isinstance(recording, Refusal):
        return record.left_alone(recording, {})
    updating = _Updating(replace(options, recording=recording), lock, digest, say)
    return record.in_folder("update", recording, environ, say, updating.outcome)


class _Updating:
    """One update of a lock."""

    def __init__(self, options: Options, lock: Lock, digest: str, say: Say) -> None:
        self._options = options
        self._lock = lock
        self._digest = digest
        self._say = say

    def outcome(self, recording: Recording) -> Outcome:
        found = self._observed(recording)
        if isinstance(found, Refusal):
            return self._refused(found, recording)
        kept, run = found
        try:
            draft = merge_ledgers(run.ledgers, self._options.recording.on_conflict)
        except ConflictError as error:
            return self._refused(Refusal(judge.REFUSED, "conflicts", str(error)), recording)
        updated = with_new(kept, draft, identities(run.ledgers))
        updated = replace(updated, run=record.remade(updated.run, run))
        if self._lock.run.sealed and updated.entries == self._lock.entries:
            text = f"{self._options.recording.out}: nothing is missing, and all that was met holds"
            return Outcome(judge.DONE, "unchanged", text, details=recording.details)
        self._tell(draft, updated, run, recording)
        sealed = recording.validated(updated, run)
        if isinstance(sealed, Refusal):
            return self._refused(sealed, recording, updated)
        changed = diff_locks(self._lock, sealed)
        recording.details["diff"] = changed.as_json()
        out = self._options.recording.out
        outcome = record.replace_lock(out, self._digest, sealed, recording.details)
        return replace(outcome, text=f"{changed.text('before', 'now')}\n{outcome.text}")

    def _observed(self, recording: Recording) -> tuple[Lock, Run] | Refusal:
        """What of the lock still holds, and a run under just that."""
        kept = self._lock
        rounds = 0
        while True:
            rounds += 1
            self._say(f"under the lock, tuning only what is not in it ({rounds})")
            run = recording.enforced(kept, f"update-{rounds}", on_miss="tune")
            coverage = cover(kept, run.ledgers)
            gone = self._broken(kept, coverage)
            if isinstance(gone, Refusal):
                return gone
            if not gone:
                return recording.usable(run) or (kept, run)
            kept = without(kept, gone)

    def _broken(self, lock: Lock, coverage: Coverage) -> set[Identity] | Refusal:
        """The entries that do not hold. What is no entry, a setting say, cannot be tuned."""
        gone: set[Identity] = set()
        for kind in ("invalid", "drifted"):
            for found in coverage.entries[kind]:
                of_entry = meant(lock, found)
                if not of_entry:
                    text = f"{kind}: {described(found)}: tuning a key does not mend this"
                    return Refusal(judge.BROKEN, "broken-pins", f"{text}; record again")
                gone |= of_entry
                self._say(f"{kind}: {described(found)}")
        return gone

    def _tell(self, draft: Draft, updated: Lock, run: Run, recording: Recording) -> None:
        """Says what is new, what went, and what was kept without being met."""
        for line in record.draft_lines(draft):
            self._say(line)
        before = {entry.identity for entry in self._lock.entries}
        now = {entry.identity: entry for entry in updated.entries}
        kept = [entry for entry in self._lock.entries if now.get(entry.identity) == entry]
        met = met_entries(updated, run.ledgers)
        idle = [entry for entry in kept if entry.identity not in met]
        recording.details["kept"] = len(kept)
        recording.details["new"] = len(now.keys() - before)
        recording.details["unmet"] = [
            f"{entry.place} {readable_named(entry.key)}" for entry in idle
        ]
        if idle:
            self._say(
                f"note: {record.counted(len(idle), 'kept choice')} not met by this run: "
                "no run here shows them again; `pinner prune` removes such"
            )

    def _refused(
        self, refused: Refusal, recording: Recording, updated: Lock | None = None
    ) -> Outcome:
        if updated is not None and self._options.draft:
            out = self._options.recording.out
            return record.refused_outcome(refused, out, updated, recording.details)
        return record.left_alone(refused, recording.details)
