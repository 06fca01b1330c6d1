"""What determinism costs: step times of two commands, as one ratio with an interval. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

OPTIMIZER = "optimizer"
_LEAST = 0.95  # the coverage that an interval has where there are pairs enough


class NotComparable(Exception):
    """The runs do not show one cost; says why, and what to do."""


@dataclass(frozen=True)
class Steps:
    """One run's marks, of the process of the lowest rank that left some.

    times: nanoseconds by what ended: `optimizer`, or `stream NAME`. first: the digest of the first
    value of each stream. switches, variables: what was in force.
    """

    times: Mapping[str, Sequence[int]]
    first: Mapping[str, str] = field(default_factory=dict)
    switches: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ratio:
    """Deterministic over baseline. median: of the pairs; low, high: bounds of the median of such
    ratios, which hold with the probability `confidence` (order statistics: nothing is assumed of
    how times are distributed, only that pairs are independent)."""

    median: float
    low: float
    high: float
    confidence: float


@dataclass(frozen=True)
class Tax:
    """mark: what was timed. steps: how many of each run count. seconds: medians of both sides.
    same: streams whose first value is equal in all runs. other: those that both have and that
    differ."""

    ratio: Ratio
    mark: str
    steps: int
    seconds: tuple[float, float]
    same: tuple[str, ...]
    other: tuple[str, ...]


def tax(pairs: Sequence[tuple[Steps, Steps]], warmup: int, must_be_same: Sequence[str] = ()) -> Tax:
    """The cost over pairs of (baseline, deterministic) runs. Raises `NotComparable`."""
    mark = _mark(pairs)
    _check_counts(pairs, mark, warmup)
    same, other = _first_values(pairs)
    for stream in must_be_same:
        if stream not in same:
            why = "differs" if stream in other else "is not in every run"
            raise NotComparable(
                f"the runs do not have one batch: the first value of stream {stream!r} {why}"
            )
    durations = [tuple(_durations(run.times[mark], warmup) for run in pair) for pair in pairs]
    ratios = [median(theirs) / median(ours) for ours, theirs in durations]
    sides = tuple(median([t for pair in durations for t in pair[side]]) / 1e9 for side in (0, 1))
    return Tax(
        ratio=interval(ratios),
        mark=mark,
        steps=len(durations[0][0]),
        seconds=(sides[0], sides[1]),
        same=same,
        other=other,
    )


def interval(ratios: Sequence[float]) -> Ratio:
    """The narrowest pair of order statistics that holds the median with 95 %, or else the widest.

    Of n values the k-th from either end hold it with 1 - 2 P(B < k), B binomial of n and 1/2.
    """
    ordered, n = sorted(ratios), len(ratios)
    k = 1
    while 2 * (k + 1) <= n and _coverage(n, k + 1) >= _LEAST:
        k += 1
    return Ratio(median(ordered), ordered[k - 1], ordered[n - k], _coverage(n, k))


def _coverage(n: int, k: int) -> float:
    outside = 2 * sum(math.comb(n, i) for i in range(k))
    return max(0.0, 1.0 - outside / float(2**n))


def in_force(runs: Sequence[Steps]) -> dict[str, str]:
    """Each setting of one side by name; several values where its runs differ."""
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        values = {**run.variables, **run.switches}
        for name, value in values.items():
            text = value if isinstance(value, str) else json.dumps(value)
            found.setdefault(name, {}).setdefault(text)
    return {name: " | ".join(values) for name, values in sorted(found.items())}


def _mark(pairs: Sequence[tuple[Steps, Steps]]) -> str:
    """What ends a step: the optimizer, else the stream that was first; in all runs the same."""
    marks = {
        OPTIMIZER if OPTIMIZER in run.times else next(iter(run.times), "")
        for pair in pairs
        for run in pair
    }
    if len(marks) != 1:
        named = ", ".join(sorted(marks))
        raise NotComparable(f"expected one kind of step in all runs, found {named}")
    return marks.pop()


def _check_counts(pairs: Sequence[tuple[Steps, Steps]], mark: str, warmup: int) -> None:
    counts = {len(run.times[mark]) for pair in pairs for run in pair}
    if len(counts) != 1:
        raise NotComparable(
            f"expected the same number of steps ({mark}) in all runs, found "
            + " and ".join(map(str, sorted(counts)))
        )
    count = counts.pop()
    if count - 1 - warmup < 1:
        raise NotComparable(
            f"expected more than {warmup + 1} steps ({mark}), found {count}: of n marks n - 1 "
            f"steps have a beginning, and {warmup} are dropped as warm-up; run longer or lower "
            "--warmup"
        )


def _first_values(
    pairs: Sequence[tuple[Steps, Steps]],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    runs = [run for pair in pairs for run in pair]
    common = set.intersection(*(set(run.first) for run in runs))
    values = {name: {run.first[name] for run in runs} for name in common}
    same = {name for name, digests in values.items() if len(digests) == 1 and "" not in digests}
    return tuple(sorted(same)), tuple(sorted(common - same))


def _durations(times: Sequence[int], warmup: int) -> list[int]:
    return [after - before for before, after in pairwise(times)][warmup:]
