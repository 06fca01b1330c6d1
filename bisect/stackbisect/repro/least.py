"""Searches for the smallest case that shows a finding. Pure: a judge says what a case shows.

Passes propose edits; each makes the case smaller in one way. What they propose is judged in
batches: a batch costs little more than one case where a process has to start first. Of a batch the
smallest case that shows the same finding as the first one is kept; the other edits that held are
put on top of it and lead the next batch. It ends where no pass has an edit left that was not
refused: every step makes the measure smaller, and no measure goes down for ever.

The order in which passes are asked follows what they came to lately. Nothing is drawn and nothing
but the budget looks at a clock, so that the same judge and tries give the same answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

# Numbers from 0 on, the weightiest first: compared from the left.
Measure = tuple[int, ...]
# What a case shows; None is nothing. Two cases show the same where these are equal.
Finding = Hashable

WIDTH = 64
_ROUND = 6  # edits of one pass before the next one has its turn

# Why a search ended.
LEAST, TRIES, SECONDS, REFUSED = "least", "tries", "seconds", "refused"


@dataclass(frozen=True)
class Edit(Generic[T]):
    """One way to make a case smaller.

    what: the part of the case that it changes; of several edits of one part at most one is taken.
    apply: the changed case; None where there is nothing to change.
    """

    what: str
    text: str
    apply: Callable[[T], T | None]


@dataclass(frozen=True)
class Pass(Generic[T]):
    """A kind of edits, the boldest first. stage: a later one waits for the earlier ones."""

    name: str
    edits: Callable[[T], Iterator[Edit[T]]]
    stage: int = 0


@dataclass(frozen=True)
class Limits:
    """How much a search may cost; None is no limit. width: cases in a batch, at most.

    weight, heaviest: what a case weighs, and how much a batch may (one case is always let through).
    """

    tries: int | None = None
    seconds: float | None = None
    width: int = WIDTH
    heaviest: int | None = None


@dataclass(frozen=True)
class Kept(Generic[T]):
    """The smallest case so far. steps: edits that led to it. by: the pass of the last one."""

    case: T
    steps: int
    tries: int
    batches: int
    by: str = ""


@dataclass(frozen=True)
class Answer(Generic[T]):
    """What a search came to, and why it ended."""

    kept: Kept[T]
    ended: str


# The findings of a batch, in order. It gets the seconds that are left, and may leave out the last
# ones where these are over.
Judge = Callable[[Sequence[T], float | None], Sequence[Finding]]


@dataclass(frozen=True)
class Task(Generic[T]):
    """A search. key: the same for equal cases. kept: told of every smaller case at once."""

    passes: Sequence[Pass[T]]
    measure: Callable[[T], Measure]
    key: Callable[[T], Hashable]
    judge: Judge[T]
    kept: Callable[[Kept[T]], None]
    weight: Callable[[T], int] = lambda _: 0
    limits: Limits = Limits()
    clock: Callable[[], float] = time.monotonic


def least(first: T, task: Task[T]) -> Answer[T]:
    """The smallest case that shows what `first` shows."""
    return _Search(first, task).run()


@dataclass(frozen=True)
class _Proposed(Generic[T]):
    """A case to be judged, and the edits that made it of the best one, by pass and part."""

    case: T
    edits: tuple[tuple[str, Edit[T]], ...]
    size: Measure


@dataclass
class _Search(Generic[T]):
    first: T
    task: Task[T]
    best: Kept[T] = field(init=False)
    size: Measure = field(init=False)
    finding: Finding = field(init=False, default=None)
    seen: set[Hashable] = field(init=False, default_factory=set)
    stage: int = field(init=False, default=0)
    merits: dict[str, float] = field(init=False, default_factory=dict)
    streams: dict[str, Iterator[Edit[T]]] = field(init=False, default_factory=dict)
    leading: list[tuple[tuple[str, Edit[T]], ...]] = field(init=False, default_factory=list)
    started: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self.best, self.size = Kept(self.first, 0, 0, 0), self.task.measure(self.first)
        self.started = self.task.clock()
        self.seen.add(self.task.key(self.first))
        self._restart()

    def run(self) -> Answer[T]:
        batch = self._batch()
        refused = self._open(batch)
        while refused is None:
            over = self._over()
            if over is not None:
                return Answer(self.best, over)
            batch = self._batch()
            if not batch:
                return Answer(self.best, LEAST)
            self._take(batch, self._judged([each.case for each in batch]))
        return Answer(self.best, refused)

    # -- judging -----------------------------------------------------------------------------------

    def _open(self, batch: list[_Proposed[T]]) -> str | None:
        """Judge the first case, and with it the first batch; why that is the end, if it is."""
        if self._over() is not None:
            return self._over()
        left = self.task.limits.tries
        batch = batch if left is None else batch[: max(left - 1, 0)]
        findings = self._judged([self.first, *(each.case for each in batch)])
        if findings[0] is None:
            return REFUSED
        self.finding = findings[0]
        self._take(batch, findings[1:])
        return None

    def _judged(self, cases: list[T]) -> list[Finding]:
        found = list(self.task.judge(cases, self._seconds_left()))
        best = self.best
        self.best = Kept(best.case, best.steps, best.tries + len(cases), best.batches + 1, best.by)
        return [*found, *([None] * (len(cases) - len(found)))]

    def _take(self, batch: list[_Proposed[T]], findings: Sequence[Finding]) -> None:
        """Keep the smallest that shows the finding, and go on from there."""
        held = [
            each
            for each, finding in zip(batch, findings, strict=True)
            if finding is not None and finding == self.finding
        ]
        self._reward(batch, held)
        if not held:
            return
        held.sort(key=lambda each: each.size)
        winner = held[0]
        self.best = Kept(
            winner.case,
            self.best.steps + len(winner.edits),
            self.best.tries,
            self.best.batches,
            winner.edits[-1][0],
        )
        self.size = winner.size
        self.task.kept(self.best)
        self.leading = _on_top(winner, held[1:])
        self._restart()

    def _reward(self, batch: list[_Proposed[T]], held: list[_Proposed[T]]) -> None:
        asked = {name for each in batch for name, _ in each.edits}
        good = {name for each in held for name, _ in each.edits}
        for name in asked:
            self.merits[name] = self.merits.get(name, 0.0) / 2 + (name in good)

    # -- proposing ---------------------------------------------------------------------------------

    def _restart(self) -> None:
        self.streams = {each.name: each.edits(self.best.case) for each in self.task.passes}

    def _batch(self) -> list[_Proposed[T]]:
        """The next cases to judge; none where all passes have come to rest."""
        limits = self.task.limits
        width = limits.width
        if limits.tries is not None:
            width = max(min(width, limits.tries - self.best.tries), 1)
        batch: list[_Proposed[T]] = []
        weight = 0
        for each in self._proposals():
            weight += self.task.weight(each.case)
            batch.append(each)
            if len(batch) >= width or (limits.heaviest is not None and weight > limits.heaviest):
                break
        return batch

    def _proposals(self) -> Iterator[_Proposed[T]]:
        while self.leading:
            yield from self._proposed(self.leading.pop(0))
        last = max(each.stage for each in self.task.passes)
        while True:
            yield from self._of_passes()
            if self.stage == last:
                return
            self.stage += 1

    def _of_passes(self) -> Iterator[_Proposed[T]]:
        """Passes in turn, those that came to most lately first, until none has an edit left."""
        places = {each.name: place for place, each in enumerate(self.task.passes)}
        names = [each.name for each in self.task.passes if each.stage <= self.stage]
        names.sort(key=lambda name: (-self.merits.get(name, 0.0), places[name]))
        while names:
            for name in list(names):
                for _ in range(_ROUND):
                    # One by one: a batch that is full leaves the others to the next one.
                    edit = next(self.streams[name], None)
                    if edit is None:
                        names.remove(name)
                        break
                    yield from self._proposed(((name, edit),))

    def _proposed(self, edits: tuple[tuple[str, Edit[T]], ...]) -> Iterator[_Proposed[T]]:
        """The case that edits make of the best one, where it is smaller and new."""
        case = self.best.case
        for _, edit in edits:
            changed = edit.apply(case)
            case = case if changed is None else changed
        size = self.task.measure(case)
        if size >= self.size:
            return
        key = self.task.key(case)
        if key in self.seen:
            return
        self.seen.add(key)
        yield _Proposed(case, edits, size)

    # -- the budget --------------------------------------------------------------------------------

    def _over(self) -> str | None:
        tries, left = self.task.limits.tries, self._seconds_left()
        if tries is not None and self.best.tries >= tries:
            return TRIES
        return SECONDS if left is not None and left <= 0 else None

    def _seconds_left(self) -> float | None:
        seconds = self.task.limits.seconds
        return None if seconds is None else seconds - (self.task.clock() - self.started)


def _on_top(
    winner: _Proposed[T], others: Sequence[_Proposed[T]]
) -> list[tuple[tuple[str, Edit[T]], ...]]:
    """The edits of others put on the winner's case: all that change other parts, half of them, …"""
    parts = {edit.what for _, edit in winner.edits}
    chain: list[tuple[str, Edit[T]]] = []
    for each in others:
        if any(edit.what in parts for _, edit in each.edits):
            continue
        parts.update(edit.what for _, edit in each.edits)
        chain.extend(each.edits)
    found = []
    while chain:
        found.append(tuple(chain))
        chain = chain[: len(chain) // 2]
    return found
