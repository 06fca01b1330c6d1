"""Finds which event of one trace is which of another, within a bounded window. Pure.

By name first: (kind, name, module scope, phase, invocation count) of one step. That holds for each
label that both steps have equally often, in whatever order. Where one version calls something more
or less often, renames it or takes it apart, the counts of that label mean nothing any more: its
events are what is left, and are aligned as two sequences, in the gaps between the events that are
known, by their contents. Never by position.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest
from typing import NamedTuple

from pinner.compare.trace import Event, Group

# Events that wait for their partner, and events that are aligned as a sequence, at one time.
WINDOW = 8192
SEQUENCE = 192

_GAP = 0.5  # the cost of an event without a partner; a pair that costs two of them is none
_NEVER = 9.0

Emit = Callable[[Event | None, Event | None], None]


@dataclass(frozen=True)
class Limits:
    """How much is held at one time: `window` events by name, `sequence` events in a sequence."""

    window: int = WINDOW
    sequence: int = SEQUENCE


LIMITS = Limits()


class Left(NamedTuple):
    """An event that no name pairs. gap: how many paired labels were seen before it."""

    event: Event
    gap: int
    ins: tuple[str | None, ...]
    outs: tuple[str | None, ...]
    shapes: tuple[object, ...]


def common_groups(first: Mapping[Group, int], second: Mapping[Group, int]) -> frozenset[Group]:
    """The labels whose invocation counts mean the same: those that both have equally often."""
    return frozenset(group for group, count in first.items() if second.get(group) == count)


def align(
    first: Sequence[Event], second: Sequence[Event], limits: Limits = LIMITS
) -> list[tuple[Event | None, Event | None]]:
    """Pairs of events of one step; None beside an event that only one side has."""
    found: list[tuple[Event | None, Event | None]] = []
    stable = common_groups(
        Counter(event.group for event in first), Counter(event.group for event in second)
    )
    join(first, second, stable, lambda a, b: found.append((a, b)), limits)
    return found


def join(
    first: Iterable[Event],
    second: Iterable[Event],
    stable: frozenset[Group],
    emit: Emit,
    limits: Limits = LIMITS,
) -> None:
    """Gives `emit` each pair as soon as it is known. The order of the pairs is not promised."""
    joining = _Join(stable, emit, limits)
    for a, b in zip_longest(first, second):
        if a is not None:
            joining.feed(0, a)
        if b is not None:
            joining.feed(1, b)
    joining.finish()


class _Join:
    """Two sides, 0 and 1; on each the events that wait by name, and those that no name pairs."""

    def __init__(self, stable: frozenset[Group], emit: Emit, limits: Limits) -> None:
        self._stable = stable
        self._emit = emit
        self._limits = limits
        self._seen = [0, 0]
        self._pending: tuple[dict[tuple[Group, int], Event], ...] = ({}, {})
        self._left: list[list[Left]] = [[], []]

    def feed(self, side: int, event: Event) -> None:
        if event.group not in self._stable:
            self._left[side].append(_left(event, self._seen[side]))
            if len(self._left[side]) > self._limits.sequence:
                self._align_left()
            return
        self._seen[side] += 1
        key = (event.group, event.nth)
        other = self._pending[1 - side].pop(key, None)
        if other is not None:
            self._out(side, event, other)
            return
        if key in self._pending[side]:  # the same name twice: the first one had no partner
            self._out(side, self._pending[side].pop(key), None)
        self._pending[side][key] = event
        if len(self._pending[side]) > self._limits.window:
            self._give_up(side)

    def finish(self) -> None:
        for side in (0, 1):
            for event in self._pending[side].values():
                self._out(side, event, None)
        self._settle(self._left[0], self._left[1])

    def _out(self, side: int, event: Event, other: Event | None) -> None:
        if side == 0:
            self._emit(event, other)
        else:
            self._emit(other, event)

    def _give_up(self, side: int) -> None:
        """Lets go of what has waited longest: its partner is further away than the window."""
        pending = self._pending[side]
        for key in list(pending)[: len(pending) // 2]:
            self._out(side, pending.pop(key), None)

    def _align_left(self) -> None:
        """Aligns the gaps that are closed on both sides; where none is, what is held."""
        closed = min(self._seen)
        ready = [[left for left in lefts if left.gap < closed] for lefts in self._left]
        if not any(ready):
            ready = [lefts[: self._limits.sequence] for lefts in self._left]
        for side in (0, 1):
            self._left[side] = self._left[side][len(ready[side]) :]
        self._settle(*ready)

    def _settle(self, first: Sequence[Left], second: Sequence[Left]) -> None:
        pairs = dict(align_left(first, second, self._limits.sequence))
        for number, left in enumerate(first):
            partner = pairs.get(number)
            self._emit(left.event, None if partner is None else second[partner].event)
        taken = set(pairs.values())
        for number, left in enumerate(second):
            if number not in taken:
                self._emit(None, left.event)


def align_left(
    first: Sequence[Left], second: Sequence[Left], sequence: int = SEQUENCE
) -> list[tuple[int, int]]:
    """Which of `first` is which of `second`, as numbers."""
    pairs = list(_alike_gaps(first, second))
    a, b = _others(first, pairs, 0), _others(second, pairs, 1)
    # In pieces, should one side be very much longer than a sequence may be.
    for start in range(0, max(len(a), len(b)), sequence):
        here, there = a[start : start + sequence], b[start : start + sequence]
        pairs += [
            (here[i], there[j])
            for i, j in _sequences([first[n] for n in here], [second[n] for n in there])
        ]
    pairs += _moved(first, second, pairs)
    return pairs


def _left(event: Event, gap: int) -> Left:
    ins = tuple(row[1] for row in event.ins if len(row) > 1)
    outs = tuple(row[1] for row in event.outs if len(row) > 1)
    shapes = tuple((row[2], str(row[3])) for row in event.outs if len(row) > 3)
    return Left(event, gap, ins, outs, shapes)


def _others(lefts: Sequence[Left], pairs: Iterable[tuple[int, int]], side: int) -> list[int]:
    taken = {pair[side] for pair in pairs}
    return [number for number in range(len(lefts)) if number not in taken]


def _alike_gaps(first: Sequence[Left], second: Sequence[Left]) -> Iterator[tuple[int, int]]:
    """Pairs in the gaps that hold the same labels in the same order on both sides.

    Not where an event's contents stand elsewhere on the other side: there one label stands in for
    another, as an additional view does for the next one.
    """
    here, there = _by_gap(first), _by_gap(second)
    elsewhere = Counter(_contents(left) for left in second)
    for gap, numbers in here.items():
        others = there.get(gap, [])
        if [first[n].event.group for n in numbers] != [second[n].event.group for n in others]:
            continue
        pairs = list(zip(numbers, others, strict=True))
        if all(
            _contents(first[i]) == _contents(second[j]) or not elsewhere[_contents(first[i])]
            for i, j in pairs
        ):
            yield from pairs


def _by_gap(lefts: Sequence[Left]) -> dict[int, list[int]]:
    grouped = groupby(range(len(lefts)), key=lambda number: lefts[number].gap)
    found: dict[int, list[int]] = {}
    for gap, numbers in grouped:
        found.setdefault(gap, []).extend(numbers)
    return found


def _contents(left: Left) -> tuple[object, ...]:
    return left.event.group, left.ins, left.outs


def _moved(
    first: Sequence[Left], second: Sequence[Left], pairs: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Pairs of equal contents in another order, among what a sequence alignment could not pair."""
    waiting: dict[object, list[int]] = {}
    for number in reversed(_others(second, pairs, 1)):
        if _hashed(second[number]):
            waiting.setdefault(_contents(second[number]), []).append(number)
    found = []
    for number in _others(first, pairs, 0):
        same = waiting.get(_contents(first[number]))
        if same:
            found.append((number, same.pop()))
    return found


def _hashed(left: Left) -> bool:
    return any(digest is not None for digest in left.outs)


def _sequences(first: Sequence[Left], second: Sequence[Left]) -> list[tuple[int, int]]:
    """The cheapest alignment that keeps both orders (Needleman and Wunsch)."""
    rows, columns = len(first), len(second)
    costs = [[_GAP * column for column in range(columns + 1)]]
    for i, a in enumerate(first):
        above, row = costs[i], [_GAP * (i + 1)]
        for j, b in enumerate(second):
            row.append(min(above[j] + _cost(a, b), above[j + 1] + _GAP, row[j] + _GAP))
        costs.append(row)
    pairs = []
    i, j = rows, columns
    while i and j:
        if costs[i][j] == costs[i - 1][j - 1] + _cost(first[i - 1], second[j - 1]):
            i, j = i - 1, j - 1
            pairs.append((i, j))
        elif costs[i][j] == costs[i - 1][j] + _GAP:
            i -= 1
        else:
            j -= 1
    return pairs[::-1]


def _cost(a: Left, b: Left) -> float:
    """0 for the same event, less than two gaps for what may be one event, else `_NEVER`."""
    away = abs(a.gap - b.gap)
    equal = a.outs == b.outs and _hashed(a)
    if a.event.group == b.event.group:
        if a.ins == b.ins and a.outs == b.outs:
            return min(0.02 * away, 0.2)
        base = 0.4 if a.ins == b.ins or equal else 0.8 if a.shapes == b.shapes else 0.9
        return base + min(0.1 * away, 0.3)
    return _renamed(a, b, equal, away)


def _renamed(a: Left, b: Left, equal: bool, away: int) -> float:
    """Another name in the same place: the same outputs, or something made of the same inputs."""
    (kind, _, module, phase), (other_kind, _, other_module, other_phase) = (
        a.event.label,
        b.event.label,
    )
    same = (kind, module, phase) == (other_kind, other_module, other_phase)
    if not same or a.event.step != b.event.step:
        return _NEVER
    shared = len({*a.ins} & {*b.ins} - {None})
    if equal:
        return 0.3 - min(0.02 * shared, 0.1) + min(0.1 * away, 0.3)
    if away or not shared or a.shapes != b.shapes or not _hashed(a):
        return _NEVER
    return 0.95 - min(0.03 * shared, 0.3)
