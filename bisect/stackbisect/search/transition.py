"""Transition search: where along an ordered list of candidates do the bits change?

The list runs from the good end to the bad end. Every position has a verdict or none yet, and all
that is decided here is decided from those verdicts alone. There is no other state: a search that
was killed goes on from the verdicts in its journal, and verdicts given by hand count the same.

How it works. Take the testable positions that are known. Wherever two neighbours among them have
different bits lies a transition. Two transitions matter: the first one, where the good bits end,
and the first one that arrives at the bad bits. With two classes of bits they are the same; a third
value pulls them apart, and each is narrowed for itself. To narrow a transition, try the middle one
of the positions between its two sides that were not tried yet. An untestable position drops out
of that list, so the middle of the rest is its nearest neighbour that may be testable. When nothing
is left to try, the transition is either a pair of neighbours, or a range whose inner part cannot
be tested; then the whole range is the answer.

With k probes at a time a transition is cut into k + 1 parts instead of two (`cuts`). With a window
w every transition that is seen is narrowed, and no stretch of w or more candidates that may be
testable stays untried: every run of w or more testable candidates with bits of its own is found.

Cost: each probe of a testable candidate halves what is left (rounded down) and each untestable one
takes one away, so with n candidates, u of them found untestable, two classes of bits and both ends
known it takes at most ceil(log2(n - 1 - u)) + u probes, one at a time and without a window.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from stackbisect.search import cuts
from stackbisect.search.verdict import Verdict

Verdicts = Sequence[Verdict | None]


@dataclass(frozen=True)
class Transition:
    """Two testable positions with different bits and no testable position known between them.

    `between`: the positions inside, all tried and none testable, when `narrowed`; where the
    search did not go on (`narrowed` is false), all positions inside.
    """

    left: int
    right: int
    between: tuple[int, ...]
    narrowed: bool

    @property
    def adjacent(self) -> bool:
        """True where nothing lies between the two sides."""
        return self.right == self.left + 1

    def shifted(self, by: int) -> Transition:
        """The same in a list with `by` more candidates in front."""
        between = tuple(position + by for position in self.between)
        return Transition(self.left + by, self.right + by, between, self.narrowed)


@dataclass(frozen=True)
class Answer:
    """The end of a search.

    `last_good` and `first_bad` are the pair that was looked for. They are neighbours unless
    `ambiguous` (what lies between cannot be tested) or a third value lies between them.
    `transitions` are all that were seen, in order; `monotonic` is false where the same bits came
    back after others had been seen. `unstable` are the candidates between the pair whose own
    probes differ: where there are any, it is not known that anything between the pair is to blame.
    """

    last_good: int
    first_bad: int
    transitions: tuple[Transition, ...]
    ambiguous: bool
    monotonic: bool
    unstable: tuple[int, ...] = ()

    def shifted(self, by: int) -> Answer:
        """The same in a list with `by` more candidates in front."""
        return replace(
            self,
            last_good=self.last_good + by,
            first_bad=self.first_bad + by,
            transitions=tuple(each.shifted(by) for each in self.transitions),
            unstable=tuple(position + by for position in self.unstable),
        )


def next_positions(
    verdicts: Verdicts,
    count: int = 1,
    running: Collection[int] = (),
    window: int | None = None,
) -> list[int]:
    """At most `count` positions to try now, while those in `running` are under way.

    Both ends must have testable verdicts with different bits. Empty where nothing is left to try
    that is not under way.
    """
    found = cuts.choose(_to_cut(map(_inside, wanted(verdicts, window)), verdicts, running), count)
    if window is None or len(found) == count:
        return found
    stretches = _wide(_same(verdicts), verdicts, running, window)
    return found + cuts.choose(stretches, count - len(found))


def answer(verdicts: Verdicts) -> Answer:
    """What the verdicts say once nothing is left to try."""
    transitions = _transitions(verdicts)
    pair = wanted(verdicts)
    last_good, first_bad = pair[0].left, pair[-1].right
    kinds = {p: verdict.kind for p, verdict in enumerate(verdicts) if verdict is not None}
    return Answer(
        last_good=last_good,
        first_bad=first_bad,
        transitions=transitions,
        ambiguous=not all(transition.adjacent for transition in pair),
        monotonic=_monotonic([verdicts[p] for p in _testable(verdicts)]),
        unstable=tuple(p for p in range(last_good, first_bad) if kinds.get(p) == "unstable"),
    )


def wanted(verdicts: Verdicts, window: int | None = None) -> list[Transition]:
    """The transitions to narrow: the two that matter, or with a window all that were seen."""
    return list(_transitions(verdicts)) if window is not None else _pair(verdicts)


def _to_cut(
    insides: Iterable[Iterable[int]], verdicts: Verdicts, running: Collection[int]
) -> list[list[int]]:
    """What is untried in each, split at what is under way."""
    return [
        piece
        for inside in insides
        for piece in cuts.pieces([p for p in inside if verdicts[p] is None], running)
    ]


def _same(verdicts: Verdicts) -> list[range]:
    """What lies between testable neighbours with the same bits."""
    return [
        range(left + 1, right)
        for left, right in itertools.pairwise(_testable(verdicts))
        if _same_bits(verdicts[left], verdicts[right])
    ]


def _wide(
    insides: Iterable[Iterable[int]], verdicts: Verdicts, running: Collection[int], window: int
) -> list[list[int]]:
    return [piece for piece in _to_cut(insides, verdicts, running) if len(piece) >= window]


def _pair(verdicts: Verdicts) -> list[Transition]:
    """Out of the good bits, and (if another) first into the bad bits."""
    transitions = _transitions(verdicts)
    out_of_good = transitions[0]
    bad = verdicts[-1]
    into_bad = next(t for t in transitions if _same_bits(verdicts[t.right], bad))
    return [out_of_good] if into_bad == out_of_good else [out_of_good, into_bad]


def _transitions(verdicts: Verdicts) -> tuple[Transition, ...]:
    known = _testable(verdicts)
    return tuple(
        _transition(verdicts, left, right)
        for left, right in itertools.pairwise(known)
        if not _same_bits(verdicts[left], verdicts[right])
    )


def _transition(verdicts: Verdicts, left: int, right: int) -> Transition:
    inside = tuple(range(left + 1, right))
    return Transition(left, right, inside, all(verdicts[p] is not None for p in inside))


def _inside(transition: Transition) -> range:
    return range(transition.left + 1, transition.right)


def _testable(verdicts: Verdicts) -> list[int]:
    return [p for p, verdict in enumerate(verdicts) if verdict is not None and verdict.testable]


def _same_bits(left: Verdict | None, right: Verdict | None) -> bool:
    return left is not None and right is not None and left.value == right.value


def _monotonic(known: Sequence[Verdict | None]) -> bool:
    left_behind: set[str] = set()
    current: str | None = None
    for verdict in known:
        if verdict is None or verdict.value == current:
            continue
        if verdict.value in left_behind:
            return False
        if current is not None:
            left_behind.add(current)
        current = verdict.value
    return True
