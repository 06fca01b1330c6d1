"""What comes next in a bisection by hand: the same search, with marks for its observations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stackbisect.by_hand.verdicts import in_force
from stackbisect.journal import Record
from stackbisect.probe import Candidate, Evidence, Status
from stackbisect.search import gallop, probing
from stackbisect.search.probing import Found, Policy, Same
from stackbisect.search.verdict import EndsFailure, Rule

_RULE = Rule("exit-code")
_POLICY = Policy(ends=1, between=1, neighbours=1)


@dataclass(frozen=True)
class _Said:
    """A mark as the search sees it: a command that succeeded, failed, or was not to be started."""

    status: Status
    exit_code: int | None
    reason: str = ""
    evidence: Evidence = field(default_factory=Evidence)


_SAID = {
    "good": _Said("ran", 0),
    "bad": _Said("ran", 1),
    "skip": _Said("untestable", None, "skipped"),
}


@dataclass(frozen=True)
class Waiting:
    """Nothing can be said before there is a mark of this kind."""

    missing: str


@dataclass(frozen=True)
class Next:
    """Try this candidate. `left` may still be tried, it among them; `steps`: the most needed."""

    candidate: Candidate
    left: int
    steps: int


Step = Waiting | Next | Found | Same


def step(record: Record) -> Step:
    """What comes next, or what was found."""
    candidates, said = record.header.candidates, in_force(record)
    ids = [each.id for each in candidates]
    seen = {each: [_SAID[verdict]] for each, verdict in said.items()}
    good = [place for place, each in enumerate(ids) if said.get(each) == "good"]
    bad = [place for place, each in enumerate(ids) if said.get(each) == "bad"]
    if not bad:
        return Waiting("a bad" if good else "a good and a bad")
    if not good:
        # All from the first bad one on is bad: the way back goes on from the last one.
        seen.update((each, [_SAID["bad"]]) for each in ids[bad[0] : bad[-1]])
        return _back(candidates, ids[: bad[-1] + 1], seen)
    left, right = good[-1], bad[0]
    inside = ids[left : right + 1]
    found = probing.next_steps(inside, seen, _RULE, _POLICY)
    if isinstance(found, probing.Batch):
        most = probing.probes_left(inside, seen, _RULE, _POLICY)
        return _next(candidates, left + found.tries[0].position, inside, seen, most)
    assert isinstance(found, Found)  # the two ends differ
    return Found(found.answer.shifted(left), found.notes)


def _back(candidates: Sequence[Candidate], ids: Sequence[str], seen: probing.Seen) -> Step:
    """Without a good candidate: back from the last bad one, in doubling steps."""
    found = gallop.next_steps(ids, seen, _RULE, _POLICY)
    if isinstance(found, probing.Batch):
        most = gallop.probes_left(ids, seen, _RULE, _POLICY)
        return _next(candidates, found.tries[0].position, ids, seen, most)
    assert isinstance(found, Same | EndsFailure)  # nothing is good
    return Same("no candidate before the bad ones is good")


def _next(
    candidates: Sequence[Candidate], place: int, ids: Sequence[str], seen: probing.Seen, most: int
) -> Next:
    return Next(candidates[place], sum(each not in seen for each in ids), max(most, 1))
