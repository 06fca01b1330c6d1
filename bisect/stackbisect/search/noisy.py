"""Search where probes of one candidate differ: how probable is each place of the change?

Every probe is read as good (the good end's bits) or bad (any others). On each side of the change a
candidate is bad with a probability of its own, unknown, with the prior Beta(½, ½); how noisy the
sides are is learned from the probes. The change lies before each candidate with equal prior
probability, or nowhere. From all counts follows the posterior over these, exactly. Tried next is
the candidate whose probe leaves the least entropy to be expected.

It stops when one place has the wanted probability (95 %) and its two neighbours were tried as often
as `Noise.neighbours` says: a posterior is only as good as its model, and the neighbours are what
the answer is about. A candidate that cannot be tested is not asked again; places that it keeps from
being told apart are one place, and the answer is the whole range. Where the budget is spent first
the answer is not decided, and says what is known.

Nothing is remembered here, as in `probing`.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from stackbisect.search.probing import Batch, Same, Seen, Tries, Try
from stackbisect.search.probing import Policy as _Counts
from stackbisect.search.verdict import EndsFailure, Observation, Rule, compare_ends, read

PRIOR = 0.5


@dataclass(frozen=True)
class Noise:
    """When to stop. `budget`: the most probes in all, the ends' among them; None is no limit."""

    confidence: float = 0.95
    ends: int = 2
    neighbours: int = 4
    budget: int | None = 200

    def __post_init__(self) -> None:
        """Raise ValueError where a number cannot be meant."""
        if not 0.5 < self.confidence < 1 or min(self.ends, self.neighbours) < 1:
            raise ValueError(f"expected a confidence of 0.5 to 1 and tries of 1 or more: {self}")


DEFAULT = Noise()


@dataclass(frozen=True)
class Counts:
    """Probes of one candidate, by how they were read."""

    good: int = 0
    bad: int = 0
    skipped: bool = False

    def plus(self, *, bad: bool) -> Counts:
        """With one more probe."""
        return Counts(self.good + (not bad), self.bad + bad, self.skipped)


@dataclass(frozen=True)
class Estimate:
    """The end of a search in noise.

    The change lies between `last_good` and `first_bad` (neighbours, unless what lies between cannot
    be tested) with probability `confidence`; where it is not `decided`, that is the smallest range
    found that has the wanted probability, or the best there is. `posterior[p]`: that the change is
    right before candidate p; `none`: that there is no change. `good_rate` and `bad_rate`: how often
    a candidate before and after the change is read as bad, by the posterior.
    """

    last_good: int
    first_bad: int
    confidence: float
    decided: bool
    posterior: tuple[float, ...]
    none: float
    good_rate: float
    bad_rate: float
    counts: tuple[Counts, ...]


Steps = Batch | Same | EndsFailure | Estimate


def next_steps(
    ids: Sequence[str],
    seen: Seen,
    rule: Rule,
    noise: Noise = DEFAULT,
    *,
    jobs: int = 1,
    under_way: Sequence[Try] = (),
) -> Steps:
    """What to do next; as `probing.next_steps`. `Same` where a change nowhere is what is probable.

    Raises nothing. An end that cannot be tested in any of its tries is an `EndsFailure`.
    """
    good, bad = ids[0], ids[-1]
    if good == bad:
        return Same("both ends are one and the same candidate: nothing was tried")
    free = max(jobs - len(under_way), 0)
    running = Counter(ids[each.position] for each in under_way)
    asked = Tries(ids, seen, _Counts(ends=noise.ends), running)
    if any(len(seen.get(end, ())) < noise.ends for end in (good, bad)):
        missing = asked.missing(good, noise.ends, "the good end")
        missing += asked.missing(bad, noise.ends, "the bad end")
        return Batch(tuple(missing[:free]))
    counts = count(ids, seen, rule)
    if isinstance(counts, EndsFailure):
        return counts
    spent = sum(len(mine) for mine in seen.values())
    found = decide(counts, noise, spent)
    if found is not None:
        return _same(found) or found
    if noise.budget is not None:
        free = min(free, noise.budget - spent - len(under_way))
    positions = choose(counts, noise, free, [each.position for each in under_way])
    begun = Counter(running)
    tries = []
    for position in positions:
        begun[ids[position]] += 1
        attempt = len(seen.get(ids[position], ())) + begun[ids[position]]
        tries.append(Try(position, attempt, "where a probe tells most"))
    return Batch(tuple(tries))


def decide(counts: Sequence[Counts], noise: Noise, spent: int) -> Estimate | None:
    """The answer, once it is probable enough or the budget is spent."""
    model = _Model(counts)
    left, right, mass = model.best()
    enough = mass >= noise.confidence or model.none >= noise.confidence
    if enough and not _unsure(counts, left, right, noise):
        return model.estimate(left, right, mass, decided=True)
    if noise.budget is None or spent < noise.budget:
        return None
    left, right, mass = model.range_of(noise.confidence)
    return model.estimate(left, right, mass, decided=False)


def choose(
    counts: Sequence[Counts], noise: Noise, count: int, running: Sequence[int] = ()
) -> list[int]:
    """At most `count` positions to try now, while those in `running` are under way.

    For each after the first, the ones before it are taken to end as is most probable.
    """
    supposed = list(counts)
    for position in running:
        supposed[position] = _Model(supposed).likely(position)
    found: list[int] = []
    for _ in range(count):
        model = _Model(supposed)
        left, right, mass = model.best()
        unsure = _unsure(supposed, left, right, noise)
        place = unsure[0] if mass >= noise.confidence and unsure else model.most_telling()
        supposed[place] = model.likely(place)
        found.append(place)
    return found


def _unsure(counts: Sequence[Counts], left: int, right: int, noise: Noise) -> list[int]:
    """The neighbours of a place that were not tried often enough, the least tried first."""
    tried = {p: counts[p].good + counts[p].bad for p in (left, right)}
    return sorted((p for p in tried if tried[p] < noise.neighbours), key=lambda p: tried[p])


def _same(found: Estimate) -> Same | None:
    """No change, where that is more probable than a change anywhere."""
    if found.none <= 0.5:
        return None
    return Same(f"no change is what is most probable ({100 * found.none:.0f} %)")


def count(ids: Sequence[str], seen: Seen, rule: Rule) -> list[Counts] | EndsFailure:
    """Every candidate's counts, read against the bits the good end gave most often.

    Both ends must have been tried.
    """
    good, bad = (_sound(seen[end], rule) for end in (ids[0], ids[-1]))
    for end, sound in (("good", good), ("bad", bad)):
        if not sound:
            mine = seen[ids[0] if end == "good" else ids[-1]]
            return EndsFailure(end, read(mine[-1], rule, {}).reason)
    # What was seen most often there comes first: that is what `compare_ends` looks at.
    values = Counter(read(each, rule, {}).value for each in good)
    good = sorted(good, key=lambda each: -values[read(each, rule, {}).value])
    ends = compare_ends(good, bad, rule)
    if isinstance(ends, EndsFailure):
        return ends
    reference = "good" if rule.name == "exit-code" else ends.good
    found: dict[str, Counts] = {}
    for each in ids:
        if each in found:
            continue
        read_values = [
            read(observation, rule, ends.shape).value for observation in seen.get(each, ())
        ]
        bits = [value for value in read_values if value is not None]
        same = sum(value == reference for value in bits)
        found[each] = Counts(same, len(bits) - same, len(bits) < len(read_values))
    # An id that stands at two places is one candidate, and counts once: at the first of them.
    first = {each: position for position, each in reversed(list(enumerate(ids)))}
    again = Counts(skipped=True)
    return [found[each] if first[each] == position else again for position, each in enumerate(ids)]


def _sound(seen: Sequence[Observation], rule: Rule) -> list[Observation]:
    return [each for each in seen if read(each, rule, {}).value is not None]


class _Model:
    """The posterior over where the change is. Hypothesis t: right before t; n: nowhere."""

    def __init__(self, counts: Sequence[Counts]) -> None:
        self.counts = counts
        self.size = len(counts)
        bad = list(itertools.accumulate((each.bad for each in counts), initial=0))
        good = list(itertools.accumulate((each.good for each in counts), initial=0))
        self.hypotheses = range(1, self.size + 1)
        self.before = [(good[t], bad[t]) for t in self.hypotheses]
        self.after = [(good[-1] - good[t], bad[-1] - bad[t]) for t in self.hypotheses]
        logs = [
            _log_marginal(*before) + _log_marginal(*after)
            for before, after in zip(self.before, self.after, strict=True)
        ]
        top = max(logs)
        weights = [math.exp(log - top) for log in logs]
        total = math.fsum(weights)
        self.mass = [weight / total for weight in weights]
        self.testable = [p for p, each in enumerate(counts) if not each.skipped]

    @property
    def none(self) -> float:
        """That there is no change."""
        return self.mass[-1]

    def best(self) -> tuple[int, int, float]:
        """The most probable place: its testable neighbours, and its probability."""
        places = [
            (left, right, math.fsum(self.mass[left:right]))
            for left, right in itertools.pairwise(self.testable)
        ]
        return max(places, key=lambda place: place[2], default=(0, self.size - 1, 0.0))

    def range_of(self, confidence: float) -> tuple[int, int, float]:
        """The most probable place, widened toward its likelier side until it is probable enough."""
        left, right, mass = self.best()
        while mass < confidence:
            first = self.testable.index(left) if left in self.testable else 0
            last = self.testable.index(right) if right in self.testable else len(self.testable) - 1
            wider = []
            if first > 0:
                wider.append((self.testable[first - 1], right))
            if last < len(self.testable) - 1:
                wider.append((left, self.testable[last + 1]))
            if not wider:
                break
            left, right = max(wider, key=lambda pair: math.fsum(self.mass[pair[0] : pair[1]]))
            mass = math.fsum(self.mass[left:right])
        return left, right, mass

    def most_telling(self) -> int:
        """The testable candidate whose next probe leaves the least entropy to be expected."""
        before = [_bad_next(*each) for each in self.before]
        after = [_bad_next(*each) for each in self.after]
        entropy = [0.0] * self.size
        for flip in (False, True):
            on_before = [m * (1 - b if flip else b) for m, b in zip(self.mass, before, strict=True)]
            on_after = [m * (1 - a if flip else a) for m, a in zip(self.mass, after, strict=True)]
            # Candidate p lies after the change for the hypotheses 1..p, before it for the rest.
            sums = _split_sums(on_after, on_before)
            logs = _split_sums([_xlogx(w) for w in on_after], [_xlogx(w) for w in on_before])
            for p in range(self.size):
                entropy[p] += _xlogx(sums[p]) - logs[p]
        return min(self.testable, key=lambda p: (entropy[p], self._tried(p)))

    def likely(self, position: int) -> Counts:
        """A candidate's counts after one more probe that ends as is most probable."""
        bad = math.fsum(
            mass * _bad_next(*(self.after[n] if position >= t else self.before[n]))
            for n, (t, mass) in enumerate(zip(self.hypotheses, self.mass, strict=True))
        )
        return self.counts[position].plus(bad=bad > 0.5)

    def estimate(self, left: int, right: int, mass: float, *, decided: bool) -> Estimate:
        """The answer for a place."""
        posterior = (0.0, *self.mass[:-1])
        good_rate, bad_rate = self._rate(self.before), self._rate(self.after)
        return Estimate(
            last_good=left,
            first_bad=right,
            confidence=mass,
            decided=decided,
            posterior=posterior,
            none=self.none,
            good_rate=good_rate,
            bad_rate=bad_rate,
            counts=tuple(self.counts),
        )

    def _rate(self, side: Sequence[tuple[int, int]]) -> float:
        return math.fsum(m * _bad_next(*each) for m, each in zip(self.mass, side, strict=True))

    def _tried(self, position: int) -> int:
        each = self.counts[position]
        return each.good + each.bad


def _split_sums(after: Sequence[float], before: Sequence[float]) -> list[float]:
    """For each p: the sum of `after` over its first p places and of `before` over the rest."""
    heads = itertools.accumulate(after, initial=0.0)
    tails = list(itertools.accumulate(reversed(before), initial=0.0))[::-1]
    return [head + tail for head, tail in zip(heads, tails, strict=True)]


def _log_marginal(good: int, bad: int) -> float:
    """The log probability of one side's probes, its rate integrated out."""
    return (
        math.lgamma(PRIOR + good)
        + math.lgamma(PRIOR + bad)
        - math.lgamma(2 * PRIOR + good + bad)
        - 2 * math.lgamma(PRIOR)
        + math.lgamma(2 * PRIOR)
    )


def _bad_next(good: int, bad: int) -> float:
    """The probability that one side's next probe is bad."""
    return (PRIOR + bad) / (2 * PRIOR + good + bad)


def _xlogx(value: float) -> float:
    return value * math.log(value) if value > 0 else 0.0
