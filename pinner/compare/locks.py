"""Compares the evidence that two lockfiles keep, stream by stream, as far as both keep it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from pinner.compare.evidence import PRESENT, Difference, made_by
from pinner.lockfile.occurrences import by_occurrence
from pinner.lockfile.schema import Evidence, StreamRecord


@dataclass(frozen=True)
class LockComparison:
    """What two locks' evidence came to.

    steps: how many were compared, over all streams and ranks. partly: one line for each stream of
    which a part, or all, could not be.
    """

    differences: tuple[Difference, ...]
    steps: int
    partly: tuple[str, ...]


def compare_locked(first: Evidence, second: Evidence) -> LockComparison:
    """The first difference of each stream and rank, earliest step first."""
    here = {(record.name, record.rank): record for record in first.streams}
    there = {(record.name, record.rank): record for record in second.streams}
    differences: list[Difference] = []
    partly: list[str] = []
    steps = 0
    for place in dict.fromkeys([*here, *there]):
        a, b = here.get(place), there.get(place)
        if a is None or b is None:
            sides = (None, PRESENT) if a is None else (PRESENT, None)
            differences.append(Difference(*place, None, *sides))
            continue
        compared, difference, why = _records(a, b)
        steps += compared
        if difference is not None:
            differences.append(difference)
        elif why:
            partly.append(f"stream {place[0]!r}, rank {place[1]}: {why}")
    differences.sort(key=lambda d: -1 if d.step is None else d.step)
    return LockComparison(tuple(differences), steps, tuple(partly))


def _records(a: StreamRecord, b: StreamRecord) -> tuple[int, Difference | None, str]:
    """How many steps were compared, the first difference, and what was not compared."""
    algorithms = {made_by(digest) for digest in a.head}, {made_by(digest) for digest in b.head}
    if all(algorithms) and not algorithms[0] & algorithms[1]:
        names = (", ".join(sorted(found)) for found in algorithms)
        return 0, None, "A has digests by {}, B by {}".format(*names)
    left, right = by_occurrence(a.numbered_head), by_occurrence(b.numbered_head)
    common = sorted(place for place in left if place in right)
    for place in common:
        if left[place] != right[place]:
            found = Difference(a.name, a.rank, place[0], left[place], right[place])
            return len(common), found, ""
    if (a.steps, a.at, a.numbers) != (b.steps, b.at, b.numbers):
        return len(common), None, f"A has {_extent(a)}, B has {_extent(b)}"
    if a.digest == b.digest:
        return a.steps, None, ""
    last = a.numbered_head[-1][0] if a.head else None
    return a.steps, Difference(a.name, a.rank, last, a.digest, b.digest, from_here_on=True), ""


def _extent(record: StreamRecord) -> str:
    steps = f"{record.steps} step{'' if record.steps == 1 else 's'}"
    return f"{steps} from {record.numbered_head[0][0]} on" if record.head else steps
