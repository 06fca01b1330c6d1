"""Which stage of a bisection comes next: read from what is concluded, and from nothing else.

The stages follow from the conclusions before them: the transition, the choices, the components
between its two sides, the versions of each culprit, the confirmation. What a runtime cannot do
(`probe.Unsupported`) is a conclusion too, and the chain goes on behind it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from stackbisect.journal import SEARCH, Header, Record
from stackbisect.probe import Candidate
from stackbisect.search import probing
from stackbisect.search.verdict import Ends
from stackbisect.spaces.components import Component
from stackbisect.stage import Context, Stage
from stackbisect.stages import components, confirm
from stackbisect.stages.choices import Choices
from stackbisect.stages.commits import commit_stages, commits_searched
from stackbisect.stages.components import Components, Stacks
from stackbisect.stages.confirm import Confirm
from stackbisect.stages.search import Search
from stackbisect.stages.versions import Versions

DEPTHS = ("search", "choices", "components", "versions")
_VERSIONED = ("distribution", "package")


def current(record: Record, context: Context) -> Stage | None:
    """The stage to go on with; None where the bisection is over."""
    known = stages(record, context)
    return next((each for each in known if each.name not in record.conclusions), None)


def stages(record: Record, context: Context) -> Iterator[Stage]:
    """The stages in their order, up to and with the first one that has no conclusion.

    What follows that one is not known yet.
    """
    for each in _all(record, context):
        yield each
        if each.name not in record.conclusions:
            return


def _all(record: Record, context: Context) -> Iterator[Stage]:
    search = Search.of(record.header)
    yield search
    if depth(record.header) == "search":
        return
    yield from commit_stages(record, context)
    found = between(record)
    if found is None:
        return
    good, bad, ends = found.good, found.bad, found.ends
    if not found.unstable:
        good = yield from _into(record, found, search, context)
    if commits_searched(record.header):
        good, bad, ends = _last_commits(record, search) or (good, bad, ends)
    yield Confirm(good, bad, ends, search.rule)


def _into(
    record: Record, found: Between, search: Search, context: Context
) -> Generator[Stage, None, Candidate]:
    """What lies between the two sides. Returns the stack with good bits that differs least."""
    chosen = Choices(found.good, found.bad, search.rule, context)
    yield chosen
    if record.conclusions[chosen.name]["status"] == "selection":
        return chosen.candidate("transplant", record.stages[chosen.name])
    if not _reaches(record.header, "components") or commits_searched(record.header):
        return found.good
    yield Components(found.good, found.bad, search.rule, context)
    result = record.conclusions[components.NAME]
    if result["status"] != "found":
        return found.good
    stacks = components.stacks_of(record, found.good, found.bad)
    if _reaches(record.header, "versions"):
        yield from _versions(stacks, result, search, context)
    return _without(stacks, result)


def _last_commits(record: Record, search: Search) -> tuple[Candidate, Candidate, Ends] | None:
    """The two commits where the way down ended, in a branch, a submodule or behind a pin."""
    before = replace(record, probes=tuple(p for p in record.probes if p.stage != confirm.NAME))
    for name, result in reversed([*record.conclusions.items()]):
        if "row" not in result or result["status"] != "found":
            continue
        row = record.stages[name]["rows"][result["row"]]["candidates"]
        good, bad = (Candidate.from_json(row[place]) for place in result["pair"])
        ends = components.settled(good, bad, before, search.rule)
        return None if ends is None else (good, bad, ends)
    return None


def depth(header: Header) -> str:
    """How far a bisection goes. One that was begun before there were depths is a search alone."""
    return str(header.setup.get("depth", "search"))


def _reaches(header: Header, stage: str) -> bool:
    return DEPTHS.index(depth(header)) >= DEPTHS.index(stage)


@dataclass(frozen=True)
class Between:
    """The two sides of the change, and what their bits are.

    `unstable`: a candidate between them gave different bits in its own probes, so that it is not
    known that anything between them is to blame.
    """

    good: Candidate
    bad: Candidate
    ends: Ends
    unstable: bool


def between(record: Record) -> Between | None:
    """Where the search ended; None where there is nothing to go into."""
    result = record.conclusions.get(SEARCH, {})
    if "pair" not in result or record.header.setup.get("noisy"):
        return None
    good, bad = (record.header.candidates[position] for position in result["pair"])
    search, first = Search.of(record.header), first_search(record)
    ends = components.settled(good, bad, first, search.rule)
    if ends is None:  # verdicts by hand: there are no bits to compare with
        return None
    outcome = search.outcome(first)
    unstable = isinstance(outcome, probing.Found) and bool(outcome.answer.unstable)
    return Between(good, bad, ends, unstable)


def first_search(record: Record) -> Record:
    """The record as the search left it: what later stages tried again does not change it."""
    return replace(record, probes=tuple(p for p in record.probes if p.stage == SEARCH))


def swapped(result: Mapping[str, Any]) -> list[Component]:
    """What brings the good bits back: all culprits that change the bits by themselves."""
    culprits = [each for each in result["culprits"] if not each["given"]]
    return [Component.from_json(each) for one in culprits for each in one["components"]]


def _without(stacks: Stacks, result: Mapping[str, Any]) -> Candidate:
    """The bad stack with all culprits swapped."""
    return stacks.candidate_of(stacks.everything - {each.id for each in swapped(result)})


def _versions(
    stacks: Stacks, result: Mapping[str, Any], search: Search, context: Context
) -> Iterator[Stage]:
    everything = swapped(result)
    for culprit in result["culprits"]:
        if culprit["given"] or len(culprit["components"]) != 1:
            continue
        component = Component.from_json(culprit["components"][0])
        if _has_versions(component, stacks.bad):
            others = tuple(each for each in everything if each.id != component.id)
            yield Versions(component, others, stacks.good, stacks.bad, search.rule, context)


def _has_versions(component: Component, bad: Candidate) -> bool:
    if component.kind not in _VERSIONED or None in (component.good, component.bad):
        return False
    return bad.details.get("package") != component.name  # the search was over these already
