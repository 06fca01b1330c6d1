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

Cost: each probe of a testable candidate halves what is left (rounded down) and each untestable one
takes one away, so with n candidates, u of them found untestable, two classes of bits and both ends
known it takes at most ceil(log2(n - u)) + u probes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Answer:
    """The end of a search.

    `last_good` and `first_bad` are the pair that was looked for. They are neighbours unless
    `ambiguous` (what lies between cannot be tested) or a third value lies between them.
    `transitions` are all that were seen, in order; `monotonic` is false where the same bits came
    back after others had been seen.
    """

    last_good: int
    first_bad: int
    transitions: tuple[Transition, ...]
    ambiguous: bool
    monotonic: bool


def next_position(verdicts: Verdicts) -> int | None:
    """The position to try next, or None where the search is done.

    Both ends must have testable verdicts with different bits.
    """
    for transition in _wanted(verdicts):
        inside = [p for p in _inside(transition) if verdicts[p] is None]
        if inside:
            return inside[(len(inside) - 1) // 2]
    return None


def untried(verdicts: Verdicts) -> list[int]:
    """How many positions are untried inside each transition that is still to be narrowed."""
    return [sum(verdicts[p] is None for p in _inside(each)) for each in _wanted(verdicts)]


def answer(verdicts: Verdicts) -> Answer:
    """What the verdicts say once `next_position` is None."""
    transitions = _transitions(verdicts)
    wanted = _wanted(verdicts)
    return Answer(
        last_good=wanted[0].left,
        first_bad=wanted[-1].right,
        transitions=transitions,
        ambiguous=not all(transition.adjacent for transition in wanted),
        monotonic=_monotonic([verdicts[p] for p in _testable(verdicts)]),
    )


def _wanted(verdicts: Verdicts) -> list[Transition]:
    """The transitions to narrow: out of the good bits, and (if another) first into the bad bits."""
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
