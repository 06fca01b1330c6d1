"""Which candidate is tried next, and when it is over: from the list and all results so far.

Nothing is remembered here. `next_step` is asked again after every probe with everything that the
journal holds, so a bisection that was killed goes on as if nothing had happened.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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

# Each end is tried this often before anything else, to see that its bits repeat.
TRIES_OF_AN_END = 2

Seen = Mapping[str, Sequence[Observation]]


@dataclass(frozen=True)
class Try:
    """Probe the candidate at `position`; `attempt` counts its probes from 1."""

    position: int
    attempt: int
    why: str


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


Step = Try | Same | EndsFailure | Found


def probe_bound(testable: int, untestable: int = 0) -> int:
    """The most probes a search with two classes of bits takes.

    Four for the ends, ceil(log2(testable)) between them, one for each untestable one touched. A
    value that is neither good nor bad costs more: its second try, and a transition of its own.
    """
    return 2 * TRIES_OF_AN_END + math.ceil(math.log2(max(testable, 1))) + untestable


def left_between(known: Sequence[Verdict | None]) -> int:
    """The most probes still to come between ends that are settled, if no more are untestable."""
    values = {verdict.value for verdict in (known[0], known[-1]) if verdict is not None}
    if len(values) < 2:
        return 0
    return sum(untried.bit_length() for untried in transition.untried(known))


def next_step(ids: Sequence[str], seen: Seen, rule: Rule) -> Step:
    """What to do next.

    `ids`: the candidates from the good end to the bad end; an id that stands there twice (a tag
    that was moved back to an older image) is one candidate and is never tried twice for it.
    `seen`: every finished probe by candidate id, in the order they were made.
    """
    good, bad = ids[0], ids[-1]
    if good == bad:
        return Same("both ends are one and the same candidate: nothing was tried")
    for end, name in ((good, "good"), (bad, "bad")):
        step = _try_end(name, ids.index(end), seen.get(end, ()), rule)
        if step is not None:
            return step
    ends = compare_ends(seen[good], seen[bad], rule)
    if isinstance(ends, EndsFailure):
        return ends
    if ends.good == ends.bad:
        alike = "end the same way" if rule.name == "exit-code" else "give the same bits"
        return Same(f"both ends {alike}", ends.notes)
    return _between(ids, seen, ends, rule)


def verdicts(ids: Sequence[str], seen: Seen, rule: Rule) -> list[Verdict | None]:
    """Every position's verdict so far; None where it was not tried, or needs another try."""
    ends = settled_ends(ids, seen, rule)
    if ends is None:
        return [_alone(seen.get(each, ()), rule) for each in ids]
    return _verdicts(ids, seen, ends, rule)


def settled_ends(ids: Sequence[str], seen: Seen, rule: Rule) -> Ends | None:
    """The references, once both ends were tried and are sound."""
    for name, end in (("good", ids[0]), ("bad", ids[-1])):
        if _try_end(name, 0, seen.get(end, ()), rule) is not None:
            return None
    ends = compare_ends(seen[ids[0]], seen[ids[-1]], rule)
    return None if isinstance(ends, EndsFailure) else ends


def _try_end(
    name: str, position: int, seen: Sequence[Observation], rule: Rule
) -> Try | EndsFailure | None:
    fault = end_fault(name, seen, rule)
    if fault is not None:
        return fault
    if len(seen) < TRIES_OF_AN_END:
        return Try(position, len(seen) + 1, f"the {name} end")
    return None


def _between(ids: Sequence[str], seen: Seen, ends: Ends, rule: Rule) -> Step:
    known = _verdicts(ids, seen, ends, rule)
    for position, each in enumerate(ids):
        if known[position] is None and seen.get(each):
            return Try(position, len(seen[each]) + 1, "neither good nor bad: do its bits repeat?")
    position_or_none = transition.next_position(known)
    if position_or_none is None:
        return Found(transition.answer(known), ends.notes)
    return Try(position_or_none, 1, "between good and bad")


def _verdicts(ids: Sequence[str], seen: Seen, ends: Ends, rule: Rule) -> list[Verdict | None]:
    found: dict[str, Verdict | None] = {
        ids[0]: Verdict("good", ends.good),
        ids[-1]: Verdict("good" if ends.bad == ends.good else "bad", ends.bad),
    }
    for each in ids:
        if each not in found:
            found[each] = judge(seen.get(each, ()), ends, rule)
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
