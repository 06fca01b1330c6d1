"""Which candidates are tried next, and when it is over: from the list and all results so far.

Nothing is remembered here. `next_steps` is asked again after every probe with everything that the
journal holds, so a bisection that was killed goes on as if nothing had happened. Several probes may
be under way at once and end in any order: each time one ends, ask again and start what is answered.

Order of things: both ends, repeated (`Policy.ends`); what lies between, each split of the list once
(`Policy.between`); a value that is neither good nor bad once more; at last the two neighbours that
would be the answer are repeated (`Policy.neighbours`), so that a candidate whose own probes differ
is not one of them.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from stackbisect.search import transition
from stackbisect.search.verdict import (
    Ends,
    EndsFailure,
    Observation,
    Rule,
    Verdict,
    compare_ends,
    end_fault,
    judge,
    read,
)

Seen = Mapping[str, Sequence[Observation]]


@dataclass(frozen=True)
class Policy:
    """How often a candidate is tried, by what it is for.

    `window`: look for every transition; each run of `window` or more testable candidates with bits
    of its own is found (1 tries every candidate). None: only the transitions that matter.
    """

    ends: int = 2
    between: int = 1
    neighbours: int = 2
    window: int | None = None

    def __post_init__(self) -> None:
        """Raise ValueError where a number cannot be meant."""
        numbers = (self.ends, self.between, self.neighbours)
        if min(numbers) < 1 or (self.window is not None and self.window < 1):
            raise ValueError(f"expected tries and window of at least 1, found {self}")


DEFAULT = Policy()


@dataclass(frozen=True)
class Try:
    """Probe the candidate at `position`; `attempt` counts its probes from 1."""

    position: int
    attempt: int
    why: str


@dataclass(frozen=True)
class Batch:
    """Start `tries` now; none means wait for what is under way.

    `needless` are under way and can change nothing any more: they may be given up.
    """

    tries: tuple[Try, ...]
    needless: tuple[Try, ...] = ()


@dataclass(frozen=True)
class Same:
    """Both ends are alike: there is nothing to look for. `reason` says in what."""

    reason: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Found:
    """The search is done; `answer.ambiguous` tells a pair from a range."""

    answer: transition.Answer
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ahead:
    """A candidate that may be asked for next, and how probable that is."""

    position: int
    probability: float


Outcome = Same | EndsFailure | Found
Step = Try | Outcome
Steps = Batch | Outcome


def probe_bound(testable: int, untestable: int = 0, policy: Policy = DEFAULT) -> int:
    """The most probes a search with two classes of bits takes, one at a time, without a window.

    The ends, ceil(log2(testable - 1)) splits, the two neighbours once more, one for each untestable
    one touched. A value that is neither good nor bad costs more: its second try, and a transition
    of its own; so does a neighbour that turns out unstable when it is repeated.
    """
    inner = max(testable - 2, 0)
    return 2 * policy.ends + most_between(inner, 0, 0, policy) + untestable


def probes_left(ids: Sequence[str], seen: Seen, rule: Rule, policy: Policy = DEFAULT) -> int:
    """The most probes still to come, if two classes of bits and no more untestable ones are met."""
    missing = sum(max(policy.ends - len(seen.get(end, ())), 0) for end in (ids[0], ids[-1]))
    if missing:
        return missing + probe_bound(len(set(ids)), 0, policy) - 2 * policy.ends
    known = verdicts(ids, seen, rule, policy)
    if len({verdict.value for verdict in (known[0], known[-1]) if verdict is not None}) < 2:
        return 0
    left, asked = 0, Tries(ids, seen, policy)
    for wanted in transition.wanted(known, policy.window):
        inside = sum(known[p] is None for p in range(wanted.left + 1, wanted.right))
        left += most_between(
            inside, asked.lacks(ids[wanted.left]), asked.lacks(ids[wanted.right]), policy
        )
    return left


def next_step(ids: Sequence[str], seen: Seen, rule: Rule, policy: Policy = DEFAULT) -> Step:
    """What to do next, one probe at a time. See `next_steps`."""
    step = next_steps(ids, seen, rule, policy)
    return step.tries[0] if isinstance(step, Batch) else step


def next_steps(
    ids: Sequence[str],
    seen: Seen,
    rule: Rule,
    policy: Policy = DEFAULT,
    *,
    jobs: int = 1,
    under_way: Sequence[Try] = (),
) -> Steps:
    """What to do next, where `jobs` probes may be under way at once.

    `ids`: the candidates from the good end to the bad end; an id that stands there twice (a tag
    that was moved back to an older image) is one candidate and is never tried twice for it.
    `seen`: every finished probe by candidate id, in the order they ended.
    `under_way`: probes that were started and did not end yet.
    """
    good, bad = ids[0], ids[-1]
    if good == bad:
        return Same("both ends are one and the same candidate: nothing was tried")
    for end, name in ((good, "good"), (bad, "bad")):
        fault = end_fault(name, seen.get(end, ()), rule)
        if fault is not None:
            return fault
    free = max(jobs - len(under_way), 0)
    if any(len(seen.get(end, ())) < policy.ends for end in (good, bad)):
        asked = Tries(ids, seen, policy, Counter(ids[each.position] for each in under_way))
        missing = asked.missing(good, policy.ends, "the good end")
        missing += asked.missing(bad, policy.ends, "the bad end")
        return Batch(tuple(missing[:free]))
    ends = compare_ends(seen[good], seen[bad], rule)
    if isinstance(ends, EndsFailure):
        return ends
    if ends.good == ends.bad:
        alike = "end the same way" if rule.name == "exit-code" else "give the same bits"
        return Same(f"both ends {alike}", ends.notes)
    return _between(ids, seen, ends, rule, policy, free=free, under_way=under_way)


def ahead(
    ids: Sequence[str],
    seen: Seen,
    rule: Rule,
    policy: Policy = DEFAULT,
    *,
    jobs: int = 1,
    under_way: Sequence[Try] = (),
    limit: int = 4,
) -> list[Ahead]:
    """Candidates that may be asked for once the probes under way have ended, most probable first.

    For what can be fetched in the meantime. The probabilities hold if the search goes on, every
    candidate is testable, and the one change lies anywhere with equal probability. Those that were
    tried or are under way are not among them.
    """
    ends = settled_ends(ids, seen, rule, policy)
    known: list[Verdict | None] = [None] * len(ids)
    known[0], known[-1] = Verdict("good", "good"), Verdict("bad", "bad")
    if ends is not None:
        if ends.good == ends.bad:
            return []
        known = _verdicts(ids, seen, ends, rule, policy)
    running = {each.position for each in under_way}
    running |= {p for p, each in enumerate(ids) if known[p] is None and seen.get(each)}
    futures = _Futures(jobs, limit)
    futures.add(known, running, 1.0)
    ranked = sorted(futures.weights.items(), key=lambda item: (-item[1], item[0]))
    return [Ahead(position, weight) for position, weight in ranked[:limit]]


def verdicts(
    ids: Sequence[str], seen: Seen, rule: Rule, policy: Policy = DEFAULT
) -> list[Verdict | None]:
    """Every position's verdict so far; None where it was not tried, or needs another try."""
    ends = settled_ends(ids, seen, rule, policy)
    if ends is None:
        return [_alone(seen.get(each, ()), rule) for each in ids]
    return _verdicts(ids, seen, ends, rule, policy)


def settled_ends(
    ids: Sequence[str], seen: Seen, rule: Rule, policy: Policy = DEFAULT
) -> Ends | None:
    """The references, once both ends were tried and are sound."""
    for name, end in (("good", ids[0]), ("bad", ids[-1])):
        mine = seen.get(end, ())
        if len(mine) < policy.ends or end_fault(name, mine, rule) is not None:
            return None
    ends = compare_ends(seen[ids[0]], seen[ids[-1]], rule)
    return None if isinstance(ends, EndsFailure) else ends


def _between(
    ids: Sequence[str],
    seen: Seen,
    ends: Ends,
    rule: Rule,
    policy: Policy,
    *,
    free: int,
    under_way: Sequence[Try],
) -> Steps:
    known = _verdicts(ids, seen, ends, rule, policy)
    wanted = transition.wanted(known, policy.window)
    running = Counter(ids[each.position] for each in under_way)
    asked = Tries(ids, seen, policy, running)
    undecided = [p for p, each in enumerate(ids) if known[p] is None and seen.get(each)]
    relevant = {p for each in wanted for p in range(each.left, each.right + 1)}
    if policy.window is not None:
        relevant = set(range(len(ids)))
    needless = tuple(each for each in under_way if each.position not in relevant)
    again = [p for p in undecided if p in relevant]
    if again or transition.next_positions(known, window=policy.window):
        tries = [each for p in again for each in asked.again(ids[p])]
        busy = {p for p, each in enumerate(ids) if known[p] is None and running[each]}
        busy.update(undecided)
        count = max(free - len(tries), 0)
        places = transition.next_positions(known, count, busy, policy.window)
        # An id that stands at two places is one candidate: tried once for both.
        places = [p for n, p in enumerate(places) if ids[p] not in {ids[q] for q in places[:n]}]
        tries += [each for p in places for each in asked.split(ids[p])]
        return Batch(tuple(tries[:free]), needless)
    sides = dict.fromkeys(ids[p] for each in wanted for p in (each.left, each.right))
    if any(asked.lacks(side) for side in sides):
        repeats = [each for side in sides for each in asked.repeat(side)]
        return Batch(tuple(repeats[:free]), needless)
    return Found(transition.answer(known), ends.notes)


@dataclass(frozen=True)
class Tries:
    """What each candidate was tried for, and what is missing."""

    ids: Sequence[str]
    seen: Seen
    policy: Policy
    running: Mapping[str, int] = field(default_factory=dict)

    def missing(self, each: str, enough: int, why: str) -> list[Try]:
        """What is neither done nor under way for a candidate to be tried `enough` times."""
        begun = len(self.seen.get(each, ())) + self.running.get(each, 0)
        position = self.ids.index(each)
        return [Try(position, number, why) for number in range(begun + 1, enough + 1)]

    def split(self, each: str) -> list[Try]:
        """What a candidate between the ends needs for a verdict."""
        return self.missing(each, self.policy.between, "between good and bad")

    def again(self, each: str) -> list[Try]:
        """What an undecided one needs: the policy's tries, then a second one for third bits."""
        if len(self.seen[each]) < self.policy.between:
            return self.split(each)
        return self.missing(each, 2, "neither good nor bad: do its bits repeat?")

    def repeat(self, each: str) -> list[Try]:
        """What a candidate next to the change needs."""
        return self.missing(each, self._goal(each), "next to the change: do its bits repeat?")

    def lacks(self, each: str) -> int:
        """How many tries a candidate next to the change lacks, those under way among them."""
        return max(self._goal(each) - len(self.seen.get(each, ())), 0)

    def _goal(self, each: str) -> int:
        is_end = each in (self.ids[0], self.ids[-1])
        return self.policy.ends if is_end else self.policy.neighbours


def most_between(inside: int, left: int, right: int, policy: Policy) -> int:
    """The most probes for a transition with `inside` untried; what its sides lack once found."""
    extra = max(policy.neighbours - policy.between, 0)
    if inside == 0:
        return left + right
    sides = 2 * extra if inside > 1 else extra + max(left, right)
    return policy.between * inside.bit_length() + sides


@dataclass
class _Futures:
    """What may be asked next in every way the probes under way may end, and so on from there."""

    jobs: int
    limit: int
    weights: dict[int, float] = field(default_factory=dict)

    def add(self, known: Sequence[Verdict | None], running: Collection[int], weight: float) -> None:
        """Weigh the futures of one state that has a probability of `weight`."""
        wanted = self._next(known, running)
        if wanted is None:
            return
        inside = [p for p in range(wanted.left + 1, wanted.right) if known[p] is None]
        places_of_change = [*inside, wanted.right]
        bounds = [wanted.left, *(p for p in inside if p in running), wanted.right]
        futures = []
        for left, right in itertools.pairwise(bounds):
            share = sum(left < p <= right for p in places_of_change) / len(places_of_change)
            future = list(known)
            for p in bounds[1:-1]:
                future[p] = known[wanted.left] if p <= left else known[wanted.right]
            places = transition.next_positions(future, self.jobs)
            for place in places:
                self.weights[place] = self.weights.get(place, 0.0) + weight * share
            if places:
                futures.append((future, places, weight * share))
        if len(self.weights) < self.limit:
            for future, places, share in futures:
                self.add(future, places, share)

    def _next(
        self, known: Sequence[Verdict | None], running: Collection[int]
    ) -> transition.Transition | None:
        """A transition that is narrowed now; with a third value there are two."""
        found = transition.wanted(known)
        untried = {each: {p for p in each.between if known[p] is None} for each in found}
        left = [each for each in found if untried[each]]
        return next((each for each in left if not untried[each].isdisjoint(running)), None) or next(
            iter(left), None
        )


def _verdicts(
    ids: Sequence[str], seen: Seen, ends: Ends, rule: Rule, policy: Policy
) -> list[Verdict | None]:
    found: dict[str, Verdict | None] = {
        ids[0]: Verdict("good", ends.good),
        ids[-1]: Verdict("good" if ends.bad == ends.good else "bad", ends.bad),
    }
    for each in ids:
        if each not in found:
            verdict = judge(seen.get(each, ()), ends, rule)
            settled = verdict is None or not verdict.testable
            enough = settled or len(seen[each]) >= policy.between
            found[each] = verdict if enough else None
    return [found[each] for each in ids]


def _alone(seen: Sequence[Observation], rule: Rule) -> Verdict | None:
    """A verdict that needs no reference."""
    readings = [read(observation, rule, {}) for observation in seen]
    for reading in readings:
        if reading.value is None:
            return Verdict("untestable", "", reading.reason)
    if len({reading.value for reading in readings}) > 1:
        fault = end_fault("bad", seen, rule)
        return Verdict("unstable", "", fault.reason if fault else "")
    return None
