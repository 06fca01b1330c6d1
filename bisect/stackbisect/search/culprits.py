"""Which components of a bad stack changed the bits: the smallest sets that do, shown both ways.

A *mixture* is the bad stack with some components taken from it and all others swapped for the good
stack's; it is named by the set of those taken from the bad stack. The empty mixture is the swap
test: where its bits are not good, the change is in nothing that can be swapped, and no component is
blamed. The full one is the bad stack itself.

How it works. *Flipped* means: testable, and other bits than good (a third value too; its class is
kept). Put the components in a row. The mixtures of the first 0, 1, 2, ... of them run from good to
flipped, so the transition search finds one component that flips what the ones before it make: it
is needed. It moves to the front, everything after its place is dropped (the row still flips without
it), and the search goes on over the rest, until what is needed flips alone. A set of k takes about
k (log2(n) + 1) probes, and interacting components are found as one set. No assumption is made that
more components flip more: in any history the transition search finds a place where the bits change.

Mixtures that cannot be tested. When the middle of the row cannot be tested, the stretch around it
is widened to both sides, in doubling steps, until it ends at a good mixture on one side and a
flipped one on the other. The component that begins the stretch broke something and the one that
ends it repaired it: they belong together, become one block, and the row is searched again. In the
end parts of a block, and components of an atom (an exact-pin group, given by the caller, that moves
as one), are taken out one by one as far as what is left can be tested; what cannot is
`inseparable`.

Independent culprits. A set that flips alone is put aside (all of it from the good stack). If the
bits are good then, that is all. If not, the search goes on over the rest: each of several
independent sets is found, and shown alone. Where all of them together do not yet give the bits of
the bad stack, what else is needed for these is found the same way (`Culprit.given`).

Nothing is remembered here: every decision is made again from all results, so a search that was
killed goes on from its journal, and results of several probes may arrive in any order.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from stackbisect.search import cuts
from stackbisect.search.verdict import Ends, Observation, Rule, Verdict, judge

Mixture = frozenset[str]
Seen = Mapping[Mixture, Sequence[Observation]]
Status = Literal["found", "unresolved", "elsewhere", "unstable", "same"]
EMPTY: Mixture = frozenset()


@dataclass(frozen=True)
class Policy:
    """How much is tried.

    `verify`: how often the two mixtures are tried that show a culprit. `split`: how many mixtures
    that cannot be tested are met inside one atom before it is left whole; of an atom with no more
    components than that, each is then left out once. `companions`: how many components may be put
    aside with a culprit because the rest cannot be tested with them. `budget`: the most probes in
    all; None is no limit.
    """

    verify: int = 2
    split: int = 4
    companions: int = 4
    budget: int | None = None


DEFAULT = Policy()


@dataclass(frozen=True)
class Ask:
    """Probe a mixture; `attempt` counts its probes from 1."""

    mixture: Mixture
    attempt: int


@dataclass(frozen=True)
class Batch:
    """Start `asks` now; none means wait for what is under way."""

    asks: tuple[Ask, ...]


@dataclass(frozen=True)
class Culprit:
    """A set of components that flips the bits, as small as could be tested.

    `alone`: the mixture of nothing else (and `given`). `without`: the bad stack with this set and
    the culprits before it swapped for the good stack's; None where that says nothing (`given`).
    `inseparable`: those of its components that could not be tested without each other. `given`:
    this set flips nothing alone, but on top of these culprits it gives the bits of the bad stack.
    """

    components: Mixture
    alone: Verdict
    without: Verdict | None
    inseparable: Mixture = EMPTY
    given: Mixture = EMPTY


@dataclass(frozen=True)
class Answer:
    """The end of a search.

    `found`: each culprit flips the bits alone, and without all of them they are good. `unresolved`:
    mixtures that would decide cannot be tested, or the budget is spent; `left` are the components
    that are neither cleared nor blamed. `elsewhere`: with every component swapped the bits are not
    good. `unstable`: two tries of one mixture differ; nothing is blamed. `same`: the full mixture
    has good bits. `at` is the mixture that `reason` is about. `whole`: the culprits together give
    the bits of the bad stack; None where that is not known. `companions` had to be swapped with the
    culprits so that the rest could be tested without them.
    """

    status: Status
    culprits: tuple[Culprit, ...] = ()
    left: Mixture = EMPTY
    reason: str = ""
    at: Mixture | None = None
    whole: bool | None = None
    companions: Mixture = EMPTY


Steps = Batch | Answer


def atoms(components: Sequence[str], groups: Iterable[Iterable[str]]) -> tuple[Mixture, ...]:
    """The components in atoms, in order; groups that share a component are one atom.

    Raises ValueError where a component stands twice or a group names one that is none.
    """
    if len(set(components)) != len(components):
        twice = sorted(name for name, count in Counter(components).items() if count > 1)
        raise ValueError(f"expected each component once, found more than one of {twice}")
    atom_of = {name: frozenset({name}) for name in components}
    for group in groups:
        strange = sorted(set(group) - set(components))
        if strange:
            raise ValueError(f"a group names {strange}, which are no components")
        joined = EMPTY.union(*(atom_of[name] for name in group))
        atom_of.update(dict.fromkeys(joined, joined))
    return tuple(dict.fromkeys(atom_of[name] for name in components))


def probes_of_one(count: int, policy: Policy = DEFAULT) -> int:
    """The most probes that one culprit among `count` atoms takes, all mixtures testable.

    The bad stack, the swap test, ceil(log2(count)) splits, and the proof both ways. Each further
    component of a set, and each further culprit, takes about as many splits again.
    """
    return 2 + max(count - 1, 0).bit_length() + 2 * policy.verify


def next_steps(
    parts: Sequence[Mixture],
    seen: Seen,
    ends: Ends,
    rule: Rule,
    policy: Policy = DEFAULT,
    *,
    jobs: int = 1,
    under_way: Sequence[Ask] = (),
) -> Steps:
    """What to do next, where `jobs` probes may be under way at once.

    `parts`: the atoms, in an order where what belongs together stands together. `seen`: every
    finished probe by mixture; what the good and bad ends showed may be given for the full mixture.
    `ends`: the references (`probing.settled_ends`). `under_way`: started and not ended yet.
    """
    verdicts, tries = _judged(seen, ends, rule)
    return decide(parts, verdicts, tries, policy, jobs=jobs, under_way=under_way)


def decide(
    parts: Sequence[Mixture],
    verdicts: Mapping[Mixture, Verdict],
    tries: Mapping[Mixture, int],
    policy: Policy = DEFAULT,
    *,
    jobs: int = 1,
    under_way: Sequence[Ask] = (),
) -> Steps:
    """`next_steps` from verdicts; one is missing where a mixture was not tried, or not enough."""
    for mixture, verdict in verdicts.items():
        if verdict.kind == "unstable":
            return Answer("unstable", reason=verdict.reason, at=mixture)
    running = Counter(ask.mixture for ask in under_way)
    search = _Search(tuple(parts), verdicts, tries, policy, jobs, running)
    try:
        asked = next(search.run())
    except StopIteration as end:
        answer: Answer = end.value
        return answer
    except _Stop as stop:
        return stop.answer
    spent = sum(tries.values()) + len(under_way)
    free = max(jobs - len(under_way), 0)
    if policy.budget is not None:
        if sum(tries.values()) >= policy.budget:
            return search.gave_up(f"the budget of {policy.budget} probes is spent", asked[0])
        free = min(free, policy.budget - spent)
    return Batch(search.asks(asked)[:free])


def ahead(
    parts: Sequence[Mixture],
    seen: Seen,
    ends: Ends,
    rule: Rule,
    policy: Policy = DEFAULT,
    *,
    jobs: int = 1,
    under_way: Sequence[Ask] = (),
    limit: int = 4,
) -> list[tuple[Mixture, float]]:
    """Mixtures that may be asked for next, most probable first, for building in the meantime.

    Each probe under way is taken to end good or bad with equal probability (the first three of
    them; the others are taken to be still under way).
    """
    verdicts, tries = _judged(seen, ends, rule)
    first, rest = under_way[:3], under_way[3:]
    outcomes = (Verdict("good", ends.good), Verdict("bad", ends.bad))
    weights: dict[Mixture, float] = {}
    for outcome in itertools.product(outcomes, repeat=len(first)):
        supposed = dict(zip((ask.mixture for ask in first), outcome, strict=True))
        more = Counter(tries) + Counter(ask.mixture for ask in first)
        step = decide(parts, {**verdicts, **supposed}, more, policy, jobs=jobs, under_way=rest)
        if isinstance(step, Batch):
            for mixture in {ask.mixture for ask in step.asks} - set(seen):
                weights[mixture] = weights.get(mixture, 0.0) + 0.5 ** len(first)
    taken = {ask.mixture for ask in under_way}
    ranked = sorted(weights.items(), key=lambda item: (-item[1], sorted(item[0])))
    return [each for each in ranked if each[0] not in taken][:limit]


def _judged(
    seen: Seen, ends: Ends, rule: Rule
) -> tuple[dict[Mixture, Verdict], dict[Mixture, int]]:
    judged = {mixture: judge(mine, ends, rule) for mixture, mine in seen.items()}
    verdicts = {mixture: verdict for mixture, verdict in judged.items() if verdict is not None}
    return verdicts, {mixture: len(mine) for mixture, mine in seen.items()}


T = TypeVar("T")
# What is wanted next, most wanted first (twice where two tries are missing), for as long as the
# results lack it. A plan is never resumed: it is made again from all results.
Plan = Generator[Sequence[Mixture], None, T]


class _Stop(Exception):
    """The search ends here, whatever it was about to do."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.reason)
        self.answer = answer


@dataclass(frozen=True)
class _Row:
    """Blocks in a row. `needed`: the first one flips nothing alone for all that is known."""

    blocks: tuple[tuple[Mixture, ...], ...]
    needed: bool = False

    def mixtures(self, context: Mixture) -> list[Mixture]:
        """The context with the first 0, 1, 2, ... blocks."""
        found = [context]
        for block in self.blocks:
            found.append(found[-1].union(*block))
        return found

    def joined(self, first: int, second: int) -> _Row:
        """Two blocks made one, at the place of the first."""
        blocks = list(self.blocks)
        blocks[first] += blocks.pop(second)
        return _Row(tuple(blocks), self.needed)

    def with_together(self, first: Mixture, second: Mixture) -> _Row:
        """The blocks of two parts made one, where they are here and not one already."""
        places = [p for p, block in enumerate(self.blocks) if first in block or second in block]
        return self.joined(*places) if len(places) == 2 else self

    def ending_at(self, place: int) -> _Row:
        """The block at `place` in front (joined with what is needed), what follows it dropped."""
        first = self.blocks[place]
        before = self.blocks[:place]
        if self.needed:
            first, before = before[0] + first, before[1:]
        return _Row((first, *before), needed=True)


@dataclass(frozen=True)
class _Goal:
    """What is searched for: parts that flip the bits on top of `context`."""

    context: Mixture
    flipped: Callable[[Verdict], bool]
    patience: int | None = None


class _GiveUp(Exception):
    """More mixtures that cannot be tested than the goal has patience for."""


@dataclass
class _Search:
    """One pass over all results: to what is wanted next, or to the answer."""

    parts: tuple[Mixture, ...]
    verdicts: Mapping[Mixture, Verdict]
    tries: Mapping[Mixture, int]
    policy: Policy
    jobs: int
    running: Mapping[Mixture, int]
    culprits: list[Culprit] = field(default_factory=list)
    # Parts that were found to belong together: the search for the next culprit begins with that.
    joined: list[tuple[Mixture, Mixture]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.everything = EMPTY.union(*self.parts)

    # -- the whole -----------------------------------------------------------------------------

    def run(self) -> Plan[Answer]:
        """The search from its beginning."""
        full, empty = yield from self._look(self.everything, EMPTY)
        if full.kind == "good":
            return Answer("same", reason="the whole of it gives good bits", at=self.everything)
        for verdict, mixture in ((full, self.everything), (empty, EMPTY)):
            if not verdict.testable:
                return self.gave_up(verdict.reason, mixture)
        if empty.kind != "good":
            still = "still bad" if empty.value == full.value else "neither good nor bad"
            reason = f"with every component swapped the bits are {still}"
            return Answer("elsewhere", reason=reason, at=EMPTY)
        companions = yield from self._all_culprits()
        whole = yield from self._rest_of_the_way(full)
        left = companions - self._blamed()
        if left:
            reason = "without the culprits these cannot be tested"
            return Answer(
                "unresolved", tuple(self.culprits), left, reason, whole=whole, companions=companions
            )
        return Answer("found", tuple(self.culprits), whole=whole, companions=companions)

    def gave_up(self, reason: str, at: Mixture) -> Answer:
        """The answer where it cannot go on."""
        left = self.everything - self._blamed()
        return Answer("unresolved", tuple(self.culprits), left, reason, at)

    def _blamed(self) -> Mixture:
        return EMPTY.union(*(culprit.components for culprit in self.culprits))

    def asks(self, wanted: Sequence[Mixture]) -> tuple[Ask, ...]:
        """What is wanted and not under way."""
        begun = {each: self.tries.get(each, 0) + self.running.get(each, 0) for each in wanted}
        under_way = Counter(self.running)
        found = []
        for mixture in wanted:
            if under_way[mixture] > 0:
                under_way[mixture] -= 1
                continue
            begun[mixture] += 1
            found.append(Ask(mixture, begun[mixture]))
        return tuple(found)

    def _all_culprits(self) -> Plan[Mixture]:
        """Culprit after culprit, until the rest is good. Returns the companions."""
        aside = companions = EMPTY
        flipped = _Goal(EMPTY, lambda verdict: verdict.kind != "good")
        while True:
            rest = tuple(part - aside for part in self.parts if not part <= aside)
            found = yield from self._smallest(flipped, rest)
            components, inseparable = yield from self._split(flipped, found)
            aside |= components
            without = self.everything - aside
            alone, left = yield from self._look(components, without, times=self.policy.verify)
            while not left.testable:
                if len(companions) >= self.policy.companions:
                    self.culprits.append(Culprit(components, alone, left, inseparable))
                    reason = f"without the culprits nothing can be tested: {left.reason}"
                    raise _Stop(self.gave_up(reason, without))
                companion = yield from self._breaks(without)
                companions |= companion
                aside |= companion
                without -= companion
                (left,) = yield from self._look(without, times=self.policy.verify)
            self.culprits.append(Culprit(components, alone, left, inseparable))
            if left.kind == "good":
                return companions

    def _rest_of_the_way(self, full: Verdict) -> Plan[bool | None]:
        """Whether the culprits give the bits of the bad stack; if not, what else does."""
        blamed = self._blamed()
        (together,) = yield from self._look(blamed)
        if not together.testable:
            return None
        if together.value == full.value:
            return True
        goal = _Goal(blamed, lambda verdict: verdict.value == full.value)
        rest = tuple(part - blamed for part in self.parts if not part <= blamed)
        found = yield from self._smallest(goal, rest)
        components, inseparable = yield from self._split(goal, found)
        (alone,) = yield from self._look(components | blamed, times=self.policy.verify)
        self.culprits.append(Culprit(components, alone, None, inseparable, blamed))
        return True

    # -- one set -------------------------------------------------------------------------------

    def _smallest(self, goal: _Goal, parts: Sequence[Mixture]) -> Plan[tuple[Mixture, ...]]:
        """The parts that reach the goal, of which none can be left out (and be tested).

        The context alone must not reach it, all parts must.
        """
        row = _Row(tuple((part,) for part in parts))
        for first, second in self.joined:
            row = row.with_together(first, second)
        while True:
            row, place = yield from self._boundary(goal, row)
            if place == 0:
                return (yield from self._thinned(goal, row.blocks[0]))
            row = row.ending_at(place)

    def _boundary(self, goal: _Goal, row: _Row) -> Plan[tuple[_Row, int]]:
        """The first place found whose block flips what the blocks before it make."""
        while True:
            mixtures = row.mixtures(goal.context)
            known = [self.verdicts.get(mixture) for mixture in mixtures]
            self._be_patient(goal, mixtures)
            testable = [p for p, verdict in enumerate(known) if verdict and verdict.testable]
            right = next(p for p in testable if self._flips(goal, known[p]))
            left = max(p for p in testable if p < right)
            inside = range(left + 1, right)
            broken = [p for p in inside if known[p] is not None]
            untried = [p for p in inside if known[p] is None]
            if row.needed and left == 0 and 1 in untried:
                yield self._wanted(mixtures, [1], untried)
            elif broken:
                outward = _outward(left, right, broken[0], broken[-1])
                if outward:
                    yield [mixtures[p] for p in outward]
                self.joined.append((row.blocks[left][0], row.blocks[right - 1][0]))
                row = row.joined(left, right - 1)
            elif untried:
                yield self._wanted(mixtures, [], untried)
            else:
                return row, left

    def _wanted(
        self, mixtures: Sequence[Mixture], first: list[int], untried: Sequence[int]
    ) -> list[Mixture]:
        """What is under way inside, so that it is not asked for again, and what else to try."""
        running = [p for p in untried if self.running.get(mixtures[p])]
        free = max(self.jobs - sum(self.running.values()), 0)
        taken = {*running, *first}
        count = max(free - len([p for p in first if p not in running]), 0)
        chosen = cuts.choose(cuts.pieces(untried, taken), count)
        places = [*running, *first, *chosen] or list(untried[:1])
        return [mixtures[p] for p in dict.fromkeys(places)]

    def _thinned(self, goal: _Goal, found: tuple[Mixture, ...]) -> Plan[tuple[Mixture, ...]]:
        """Leave out parts one by one for as long as the rest reaches the goal."""
        while len(found) > 1:
            smaller = [tuple(p for p in found if p != part) for part in found]
            mixtures = [goal.context.union(*each) for each in smaller]
            known = [self.verdicts.get(mixture) for mixture in mixtures]
            looked: list[Verdict] = []
            if not any(self._flips(goal, verdict) for verdict in known):
                looked = yield from self._look(*mixtures)
                known = list(looked)
            enough = [s for s, v in zip(smaller, known, strict=True) if self._flips(goal, v)]
            if not enough and not all(verdict.testable for verdict in looked):
                enough = yield from self._much_smaller(goal, found)
            if not enough:
                return found
            found = enough[0]
        return found

    def _much_smaller(
        self, goal: _Goal, found: tuple[Mixture, ...]
    ) -> Plan[list[tuple[Mixture, ...]]]:
        """Parts that can only be left out together: two of few, any of very few."""
        most = len(found) - 1 if len(found) <= 4 else 2 if len(found) <= 8 else 0
        for out in range(2, most + 1):
            for each in itertools.combinations(found, len(found) - out):
                (verdict,) = yield from self._look(goal.context.union(*each))
                if self._flips(goal, verdict):
                    return [each]
        return []

    def _split(self, goal: _Goal, found: tuple[Mixture, ...]) -> Plan[tuple[Mixture, Mixture]]:
        """The components needed of each atom, and those that could not be told apart."""
        pieces: list[tuple[Mixture, ...]] = [(atom,) for atom in found]
        for place, atom in enumerate(found):
            if len(atom) > 1:
                others = itertools.chain(*pieces[:place], *pieces[place + 1 :])
                needed = yield from self._needed_of(goal, atom, goal.context.union(*others))
                pieces[place] = needed
        flat = tuple(itertools.chain(*pieces))
        if flat != found:
            flat = yield from self._thinned(goal, flat)
        components = EMPTY.union(*flat)
        inseparable = EMPTY
        for piece in flat:
            rest = self.verdicts.get(goal.context | (components - piece))
            bound = len(flat) > 1 and rest is not None and not rest.testable
            if bound or len(piece) > 1:
                inseparable |= piece
        return components, inseparable

    def _needed_of(self, goal: _Goal, atom: Mixture, others: Mixture) -> Plan[tuple[Mixture, ...]]:
        """The components of an atom that flip the bits on top of `others`.

        All of them where that cannot be tested: one by one (they are thinned later) or, where they
        are many, as one.
        """
        (without,) = yield from self._look(others)
        if self._flips(goal, without):
            return ()
        singles = [frozenset({name}) for name in sorted(atom)]
        whole = tuple(singles) if len(atom) <= self.policy.split else (atom,)
        if not without.testable:
            return whole
        try:
            inside = _Goal(others, goal.flipped, self.policy.split)
            return (yield from self._smallest(inside, singles))
        except _GiveUp:
            return whole

    def _breaks(self, mixture: Mixture) -> Plan[Mixture]:
        """A part of an untestable mixture without which the parts before it can be tested."""
        row = _Row(tuple((part & mixture,) for part in self.parts if part & mixture))
        mixtures = row.mixtures(EMPTY)
        testable, broken = 0, len(mixtures) - 1
        while broken - testable > 1:
            middle = (testable + broken) // 2
            (verdict,) = yield from self._look(mixtures[middle])
            testable, broken = (middle, broken) if verdict.testable else (testable, middle)
        return row.blocks[testable][0]

    # -- single mixtures -----------------------------------------------------------------------

    def _look(self, *mixtures: Mixture, times: int = 1) -> Plan[list[Verdict]]:
        """The verdicts, once every mixture that can be tested was tried `times` times."""
        wanted = [each for mixture in mixtures for each in self._missing(mixture, times)]
        if wanted:
            yield wanted
        return [self.verdicts[mixture] for mixture in mixtures]

    def _missing(self, mixture: Mixture, times: int) -> list[Mixture]:
        verdict, tried = self.verdicts.get(mixture), self.tries.get(mixture, 0)
        if verdict is None:
            return [mixture] * max(times - tried, 1)
        return [mixture] * max(times - tried, 0) if verdict.testable else []

    def _flips(self, goal: _Goal, verdict: Verdict | None) -> bool:
        return verdict is not None and verdict.testable and goal.flipped(verdict)

    def _be_patient(self, goal: _Goal, mixtures: Iterable[Mixture]) -> None:
        if goal.patience is None:
            return
        within = set().union(*mixtures)
        broken = sum(
            goal.context <= mixture <= within and not verdict.testable
            for mixture, verdict in self.verdicts.items()
        )
        if broken > goal.patience:
            raise _GiveUp


def _outward(left: int, right: int, first: int, last: int) -> list[int]:
    """The next places beyond a stretch that cannot be tested: at its wider side first.

    Each step goes as far as the stretch is wide, at most to the middle of what is left there.
    """
    width = last - first + 1
    before, after = first - left - 1, right - last - 1
    found = []
    if before:
        found.append((before, first - min(width, (before + 1) // 2)))
    if after:
        found.append((after, last + min(width, (after + 1) // 2)))
    return [place for _, place in sorted(found, reverse=True)]
