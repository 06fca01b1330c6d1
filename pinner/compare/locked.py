"""What a lockfile keeps of a run's evidence, and how another run is compared with that. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pinner.compare.evidence import Difference, RunEvidence, Steps, chain, pair
from pinner.lockfile.schema import Evidence, StreamRecord

# So many digests stand in the lock one by one: a shorter run is compared as far as these go, and
# a difference among them is named by its step.
HEAD = 16


@dataclass(frozen=True)
class Verification:
    """A run against the evidence of a lock.

    compared: (stream, rank) and the number of steps that were compared.
    uncompared: one line for each stream of the lock that the run left nothing of.
    """

    differences: tuple[Difference, ...]
    compared: Mapping[tuple[str, int], int]
    uncompared: tuple[str, ...]


def keep(run: RunEvidence) -> Evidence:
    """The part of a run's evidence that goes into the lock."""
    records = tuple(
        StreamRecord(
            name=stream,
            rank=rank,
            steps=len(steps),
            digest=chain(steps),
            head=tuple(digest for _, digest in steps[:HEAD]),
        )
        for stream, ranks in sorted(run.streams.items())
        for rank, steps in sorted(ranks.items())
    )
    return Evidence(steps=max((r.steps for r in records), default=0), streams=records)


def verify(locked: Evidence, run: RunEvidence) -> Verification:
    """Compares a run with a lock, at the steps that both have."""
    differences: list[Difference] = []
    compared: dict[tuple[str, int], int] = {}
    uncompared: list[str] = []
    for stream, records in _by_stream(locked).items():
        numbers = _numbers(records, run, stream)
        for record in records:
            steps = run.streams.get(stream, {}).get(numbers.get(record.rank, -1), ())
            if not steps:
                uncompared.append(f"stream {stream!r}, rank {record.rank}: not in this run")
                continue
            found = _difference(record, steps)
            if found is not None:
                differences.append(found)
            compared[stream, record.rank] = _common_steps(record, steps)
    differences.sort(key=lambda d: -1 if d.step is None else d.step)
    return Verification(tuple(differences), compared, tuple(uncompared))


def _by_stream(locked: Evidence) -> dict[str, list[StreamRecord]]:
    streams: dict[str, list[StreamRecord]] = {}
    for record in locked.streams:
        streams.setdefault(record.name, []).append(record)
    return streams


def _numbers(records: list[StreamRecord], run: RunEvidence, stream: str) -> dict[int, int]:
    """The run's rank for each rank of the lock; for processes without one, by what they left."""
    ranks = run.streams.get(stream, {})
    if stream not in run.anonymous:
        return {rank: rank for rank in ranks}
    left = {record.rank: tuple(enumerate(record.head)) for record in records}
    right = {
        rank: tuple(enumerate(digest for _, digest in steps[:HEAD]))
        for rank, steps in ranks.items()
    }
    return pair(left, right)


def _difference(record: StreamRecord, steps: Steps) -> Difference | None:
    for expected, (step, digest) in zip(record.head, steps, strict=False):
        if expected != digest:
            return Difference(record.name, record.rank, step, expected, digest)
    if len(steps) < record.steps:
        return None  # a shorter run: compared as far as the head goes
    found = chain(steps[: record.steps])
    if found == record.digest:
        return None
    first_unknown = steps[min(len(record.head), len(steps) - 1)][0]
    return Difference(
        record.name, record.rank, first_unknown, record.digest, found, from_here_on=True
    )


def _common_steps(record: StreamRecord, steps: Steps) -> int:
    if len(steps) >= record.steps:
        return record.steps
    return min(len(record.head), len(steps))
