"""Search without a good end: gallop back from the bad end until the bits differ, then bisect.

The list runs from the oldest candidate to the bad end. The candidates 1, 2, 4, 8, ... places before
the bad end are tried until one has other bits than the bad end, twice the same: that one is the
good end, and the rest is `probing`. One that cannot be tested is passed over; where the oldest
cannot be tested, the testable one nearest to it is the last that is tried. What is called good is
no more than "other than the bad end": a third value, met first, is taken for it.

With the change d places before the bad end this takes at most ceil(log2(d)) + 1 places to gallop
over and ceil(log2(d)) splits, however long the list is.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from stackbisect.search import probing
from stackbisect.search.probing import (
    DEFAULT,
    Ahead,
    Batch,
    Found,
    Policy,
    Same,
    Seen,
    Steps,
    Tries,
    Try,
)
from stackbisect.search.verdict import (
    EndsFailure,
    Rule,
    Verdict,
    compare_ends,
    end_fault,
    judge,
    read,
)

Class = Literal["untried", "again", "bad", "other", "untestable"]


@dataclass(frozen=True)
class _Places:
    """How far the gallop came: the good end, or the places to try next, nearest first."""

    good: int | None
    next: tuple[int, ...]


def next_steps(
    ids: Sequence[str],
    seen: Seen,
    rule: Rule,
    policy: Policy = DEFAULT,
    *,
    jobs: int = 1,
    under_way: Sequence[Try] = (),
) -> Steps:
    """What to do next. Positions are those in `ids`: the oldest candidate first, the bad end last.

    `Same` where every candidate that can be tested has the bits of the bad end; see
    `probing.next_steps` for the rest.
    """
    bad = ids[-1]
    fault = _bad_fault(ids, seen, rule)
    if fault is not None:
        return fault
    asked = Tries(ids, seen, policy, Counter(ids[each.position] for each in under_way))
    free = max(jobs - len(under_way), 0)
    if len(seen.get(bad, ())) < policy.ends:
        tries = asked.missing(bad, policy.ends, "the bad end")
        return Batch(tuple(tries[:free]))
    places = _places(ids, seen, rule, policy)
    if places.good is not None:
        return _bisect(places.good, ids, seen, rule, policy, jobs=jobs, under_way=under_way)
    if not places.next:
        return _no_good_end(ids, seen, rule)
    tries = []
    for place in places.next:
        again = _class(ids[place], bad, seen, rule, policy) == "again"
        why = "a good end? do its bits repeat?" if again else "back to good bits"
        tries += asked.missing(ids[place], policy.ends if again else 1, why)
    return Batch(tuple(tries[:free]))


def good_end(ids: Sequence[str], seen: Seen, rule: Rule, policy: Policy = DEFAULT) -> int | None:
    """The position that the gallop took for the good end; None while it has none.

    From then on `ids[good_end:]` is a list as `probing` has it, for its verdicts and bounds.
    """
    if len(seen.get(ids[-1], ())) < policy.ends or _bad_fault(ids, seen, rule) is not None:
        return None
    return _places(ids, seen, rule, policy).good


def verdicts(
    ids: Sequence[str], seen: Seen, rule: Rule, policy: Policy = DEFAULT
) -> list[Verdict | None]:
    """Every position's verdict so far; before there is a good end only what is bad is known."""
    good = good_end(ids, seen, rule, policy)
    if good is None:
        return [_against_the_bad_end(each, ids, seen, rule, policy) for each in ids]
    ends = probing.settled_ends(ids[good:], seen, rule, policy)
    older = [None if ends is None else judge(seen.get(each, ()), ends, rule) for each in ids[:good]]
    return [*older, *probing.verdicts(ids[good:], seen, rule, policy)]


def _against_the_bad_end(
    each: str, ids: Sequence[str], seen: Seen, rule: Rule, policy: Policy
) -> Verdict | None:
    mine = seen.get(each, ())
    fault = end_fault("bad", mine, rule)
    if fault is not None:
        return Verdict("untestable", "", fault.reason)
    if not mine or not seen.get(ids[-1]) or _class(each, ids[-1], seen, rule, policy) != "bad":
        return None
    return Verdict("bad", read(mine[0], rule, {}).value or "")


def probes_left(ids: Sequence[str], seen: Seen, rule: Rule, policy: Policy = DEFAULT) -> int:
    """The most probes still to come, as `probing.probes_left`: the gallop may go to the oldest."""
    good = good_end(ids, seen, rule, policy)
    if good is not None:
        return probing.probes_left(ids[good:], seen, rule, policy)
    bad = max(policy.ends - len(seen.get(ids[-1], ())), 0)
    way = _doubling(len(ids))
    places = [place for place in way if not seen.get(ids[place])]
    widest = max((a - b - 1 for a, b in itertools.pairwise([len(ids) - 1, *way])), default=0)
    splits = probing.most_between(widest, 0, policy.neighbours - 1, policy)
    return bad + len(places) + policy.ends - 1 + splits


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
    """Candidates that may be asked for next (`probing.ahead`); each doubling halves the chance."""
    good = good_end(ids, seen, rule, policy)
    if good is not None:
        rest = _shifted(under_way, -good)
        found = probing.ahead(
            ids[good:], seen, rule, policy, jobs=jobs, under_way=rest, limit=limit
        )
        return [Ahead(each.position + good, each.probability) for each in found]
    busy = {ids[each.position] for each in under_way}
    fresh = [p for p in _doubling(len(ids)) if ids[p] not in busy and not seen.get(ids[p])]
    return [Ahead(place, 0.5**number) for number, place in enumerate(fresh[:limit], start=1)]


def _bisect(
    good: int,
    ids: Sequence[str],
    seen: Seen,
    rule: Rule,
    policy: Policy,
    *,
    jobs: int,
    under_way: Sequence[Try],
) -> Steps:
    """What `probing` says of the list from the good end on, in positions of the whole list."""
    older = tuple(each for each in under_way if each.position < good)
    inside = _shifted([each for each in under_way if each.position >= good], -good)
    step = probing.next_steps(
        ids[good:], seen, rule, policy, jobs=jobs - len(older), under_way=inside
    )
    if isinstance(step, Batch):
        return Batch(_shifted(step.tries, good), older + _shifted(step.needless, good))
    return Found(step.answer.shifted(good), step.notes) if isinstance(step, Found) else step


def _shifted(tries: Sequence[Try], by: int) -> tuple[Try, ...]:
    return tuple(replace(each, position=each.position + by) for each in tries)


def _places(ids: Sequence[str], seen: Seen, rule: Rule, policy: Policy) -> _Places:
    """Go the way again that was galloped so far."""
    waiting: list[int] = []
    for place in _doubling(len(ids)):
        found = _class(ids[place], ids[-1], seen, rule, policy)
        if found == "other" and not waiting:
            return _Places(place, ())
        if found in ("untried", "again"):
            waiting.append(place)
        if found in ("again", "other"):
            break  # most likely nothing older is needed
    if waiting:
        return _Places(None, tuple(waiting))
    return _from_the_oldest(ids, seen, rule, policy)


def _from_the_oldest(ids: Sequence[str], seen: Seen, rule: Rule, policy: Policy) -> _Places:
    """All were passed: the oldest candidate that can be tested decides."""
    for place in range(len(ids) - 1):
        found = _class(ids[place], ids[-1], seen, rule, policy)
        if found == "other":
            return _Places(place, ())
        if found == "bad":
            break
        if found in ("untried", "again"):
            return _Places(None, (place,))
    return _Places(None, ())


def _doubling(size: int) -> list[int]:
    """The places 1, 2, 4, ... before the last, down to the first."""
    found, step = [], 1
    while step < size - 1:
        found.append(size - 1 - step)
        step *= 2
    return [*found, 0] if size > 1 else []


def _class(each: str, bad: str, seen: Seen, rule: Rule, policy: Policy) -> Class:
    mine = seen.get(each, ())
    if each == bad:
        return "bad"
    if not mine:
        return "untried"
    if any(read(observation, rule, {}).value is None for observation in mine):
        return "untestable"
    if rule.name == "exit-code" and read(mine[0], rule, {}).value == "bad":
        return "bad"
    if end_fault("good", mine, rule) is not None:
        return "untestable"
    ends = compare_ends(mine, seen[bad], rule)
    if isinstance(ends, EndsFailure):
        return "untestable"
    if ends.good == ends.bad:
        return "bad"
    return "other" if len(mine) >= policy.ends else "again"


def _bad_fault(ids: Sequence[str], seen: Seen, rule: Rule) -> EndsFailure | None:
    mine = seen.get(ids[-1], ())
    fault = end_fault("bad", mine, rule)
    if fault is not None or rule.name != "exit-code" or not mine:
        return fault
    if read(mine[0], rule, {}).value == "good":
        return EndsFailure("bad", "the command succeeded, so it is not a bad end")
    return None


def _no_good_end(ids: Sequence[str], seen: Seen, rule: Rule) -> Same | EndsFailure:
    tried = [each for each in ids[:-1] if each != ids[-1] and seen.get(each)]
    testable = [e for e in tried if end_fault("bad", seen[e], rule) is None]
    if tried and not testable:
        return EndsFailure("good", "no candidate before the bad end can be tested")
    return Same("back to the oldest candidate that can be tested, none has other bits")
