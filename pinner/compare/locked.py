"""What a lockfile keeps of a run's evidence, and how another run is compared with that. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pinner.compare.evidence import (
    Difference,
    RunEvidence,
    Steps,
    algorithms,
    chain,
    made_by,
    pair,
)
from pinner.lockfile.occurrences import by_occurrence
from pinner.lockfile.schema import HEAD, Evidence, StreamRecord

# The algorithm of new evidence (pinner/inside/evidence/algorithms.py).
NEWEST = "nh128"


@dataclass(frozen=True)
class Verification:
    """A run against the evidence of a lock.

    compared: (stream, rank) and the number of steps that were compared.
    uncompared: one line for each stream of the lock that has no step to compare in the run.
    locked_steps: how many steps the lock has, over all streams and ranks.
    """

    differences: tuple[Difference, ...]
    compared: Mapping[tuple[str, int], int]
    uncompared: tuple[str, ...]
    locked_steps: int

    @property
    def line(self) -> str:
        """How much of the lock's evidence this run has shown again, step for step."""
        differing = {(d.stream, d.rank) for d in self.differences}
        same = {place: steps for place, steps in self.compared.items() if place not in differing}
        streams = len({stream for stream, _ in same})
        return (
            f"verified {sum(same.values())} of {self.locked_steps} "
            f"step{'' if self.locked_steps == 1 else 's'} "
            f"in {streams} stream{'' if streams == 1 else 's'}"
        )


def keep(run: RunEvidence) -> Evidence:
    """The part of a run's evidence that goes into the lock."""
    records = tuple(
        _record(stream, rank, steps)
        for stream, ranks in sorted(run.streams.items())
        for rank, steps in sorted(ranks.items())
    )
    steps = max((r.steps for r in records), default=0)
    return Evidence(_algorithm(run), steps, records)


def _algorithm(run: RunEvidence) -> str:
    """What digested the values of this run. Files and output have SHA-256 beside any other."""
    return NEWEST if NEWEST in algorithms(run) else "sha256"


def verify(locked: Evidence, run: RunEvidence) -> Verification:
    """Compares a run with a lock, at the steps that both have."""
    differences: list[Difference] = []
    compared: dict[tuple[str, int], int] = {}
    uncompared: list[str] = []
    for stream, records in _by_stream(locked).items():
        numbers = _numbers(records, run, stream)
        for record in records:
            steps = run.streams.get(stream, {}).get(numbers.get(record.rank, -1), ())
            found = _against(record, steps)
            if isinstance(found, str):
                uncompared.append(f"stream {stream!r}, rank {record.rank}: {found}")
                continue
            compared[stream, record.rank], difference = found
            if difference is not None:
                differences.append(difference)
    differences.sort(key=lambda d: -1 if d.step is None else d.step)
    total = sum(record.steps for record in locked.streams)
    return Verification(tuple(differences), compared, tuple(uncompared), total)


def _record(stream: str, rank: int, steps: Steps) -> StreamRecord:
    head, plain = steps[:HEAD], _counts_from_zero(steps)
    return StreamRecord(
        name=stream,
        rank=rank,
        steps=len(steps),
        digest=chain(steps),
        head=tuple(digest for _, digest in head),
        at=() if plain else tuple(step for step, _ in head),
        numbers="" if plain or len(steps) <= HEAD else _digest_of_numbers(steps),
    )


def _counts_from_zero(steps: Sequence[tuple[int, str]]) -> bool:
    return all(step == place for place, (step, _) in enumerate(steps))


def _digest_of_numbers(steps: Iterable[tuple[int, str]]) -> str:
    text = "".join(f"{step}\n" for step, _ in steps)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


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
    left = {record.rank: record.numbered_head for record in records}
    here = {step for steps in ranks.values() for step, _ in steps}
    there = {step for steps in left.values() for step, _ in steps}
    return pair(
        {rank: tuple(item for item in steps if item[0] in here) for rank, steps in left.items()},
        {rank: tuple(item for item in steps if item[0] in there) for rank, steps in ranks.items()},
    )


def _against(record: StreamRecord, steps: Steps) -> tuple[int, Difference | None] | str:
    """How many steps were compared and the first difference; or why none could be."""
    if not steps:
        return "not in this run"
    if other := _other_algorithm(record, steps):
        return other
    head, here = by_occurrence(record.numbered_head), by_occurrence(steps)
    common = [place for place in head if place in here]
    for place in common:
        if head[place] != here[place]:
            found = Difference(record.name, record.rank, place[0], head[place], here[place])
            return len(common), found
    window = _same_steps(record, steps)
    if window is not None:
        return record.steps, _difference_in_all(record, window)
    if not common:
        return (
            f"no step in common: the lock has {_extent(record)}, "
            f"this run {steps[0][0]} to {steps[-1][0]}"
        )
    return len(common), None


def _other_algorithm(record: StreamRecord, steps: Steps) -> str | None:
    """Why digests cannot be compared that were not made alike; None where they were."""
    locked = {made_by(digest) for digest in record.head}
    here = {made_by(digest) for _, digest in steps}
    if locked & here or "" in locked | here:
        return None
    names = ", ".join(sorted(locked)), ", ".join(sorted(here))
    return "the lock has digests by {}, this run by {}: they cannot be compared".format(*names)


def _extent(record: StreamRecord) -> str:
    """The steps of the lock that can be compared one by one, in words."""
    first, last = record.numbered_head[0][0], record.numbered_head[-1][0]
    rest = record.steps - len(record.head)
    more = f" one by one, and one digest over these and {rest} more" if rest else ""
    return f"{first} to {last}{more}"


def _same_steps(record: StreamRecord, steps: Steps) -> Steps | None:
    """The part of a run that has just the steps of the lock; None where it has no such part."""
    if not record.head:
        return None
    first = record.numbered_head[0][0]
    start = next((place for place, (step, _) in enumerate(steps) if step == first), len(steps))
    window = steps[start : start + record.steps]
    return window if len(window) == record.steps and _has_steps(record, window) else None


def _has_steps(record: StreamRecord, window: Steps) -> bool:
    if record.numbers:
        return _digest_of_numbers(window) == record.numbers
    expected = record.at or tuple(range(record.steps))
    return tuple(step for step, _ in window) == expected


def _difference_in_all(record: StreamRecord, window: Steps) -> Difference | None:
    found = chain(window)
    if found == record.digest:
        return None
    first_unknown = window[min(len(record.head), len(window) - 1)][0]
    return Difference(
        record.name, record.rank, first_unknown, record.digest, found, from_here_on=True
    )
