"""Which components of the first bad stack changed the bits: the culprit search over derived stacks.

A mixture (`search.culprits`) is the first bad stack with all components but its own taken from the
last good one. Its candidate is made from that alone (`candidate_of`), so the mixtures that were
tried are read back from the journal, and what the search before showed of the bad stack counts for
the full mixture: no probe is made twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stackbisect import wording
from stackbisect.probe import Candidate, InfrastructureError, ProbeResult, Unsupported
from stackbisect.search import culprits, probing
from stackbisect.search.culprits import EMPTY, Mixture
from stackbisect.search.verdict import Ends, Rule, Verdict, judge
from stackbisect.spaces.components import DERIVED, Component, Inventory, derived, swap
from stackbisect.stage import Ask, Batch, Context, Done, Steps

if TYPE_CHECKING:
    from stackbisect.journal import Record

NAME = "components"
_CRASHES = (
    "by exit codes a mixture whose parts do not fit each other counts as bad like one with the "
    "fault: look into the logs of the proof's bad probes, or take evidence instead"
)
_NAMED = 3
"""So many components are named in a label; more are counted."""


def settled(good: Candidate, bad: Candidate, record: Record, rule: Rule) -> Ends | None:
    """What everything between two stacks is compared with; None where one of them is not sound."""
    return probing.settled_ends([good.id, bad.id], record.seen(), rule)


@dataclass(frozen=True)
class Stacks:
    """Two stacks and what can be swapped between them: mixtures of the two."""

    good: Candidate
    bad: Candidate
    inventory: Inventory

    @property
    def everything(self) -> Mixture:
        """The mixture that is the bad stack itself."""
        return frozenset(each.id for each in self.inventory.components)

    def of(self, mixture: Mixture) -> tuple[Component, ...]:
        """Components by id, in the inventory's order."""
        return tuple(each for each in self.inventory.components if each.id in mixture)

    def candidate_of(self, mixture: Mixture) -> Candidate:
        """The bad stack with all but `mixture` taken from the good one."""
        swapped = self.of(self.everything - mixture)
        steps = [swap(self.good, swapped)] if swapped else []
        return derived(self.bad, steps, self.label(mixture))

    def mixture_of(self, candidate: Candidate) -> Mixture | None:
        """The inverse of `candidate_of`; None where a candidate is no mixture of these two."""
        if candidate.id == self.bad.id:
            return self.everything
        made = candidate.details.get(DERIVED)
        if made is None or made["base"]["id"] != self.bad.id:
            return None
        steps = made["steps"]
        if len(steps) != 1 or steps[0]["kind"] != "swap":
            return None
        if steps[0]["donor"]["id"] != self.good.id:
            return None
        swapped = {Component.from_json(each).id for each in steps[0]["components"]}
        return self.everything - swapped

    def label(self, mixture: Mixture) -> str:
        """What people call a mixture."""
        swapped, kept = self.of(self.everything - mixture), self.of(mixture)
        if not swapped:
            return self.bad.label
        if len(swapped) <= _NAMED:
            names = wording.listed([wording.name(each) for each in swapped])
            return f"{self.bad.label} with {names} of {self.good.label}"
        if not kept:
            return f"{self.bad.label} with all {len(swapped)} components of {self.good.label}"
        if len(kept) <= _NAMED:
            names = wording.listed([wording.name(each) for each in kept])
            return f"{self.bad.label} with all components of {self.good.label} but {names}"
        count = f"{len(swapped)} of {len(swapped) + len(kept)}"
        return f"{self.bad.label} with {count} components of {self.good.label}"

    def tried(self, record: Record) -> dict[Mixture, list[ProbeResult]]:
        """Every finished probe of a mixture, whichever stage asked for it."""
        found: dict[Mixture, list[ProbeResult]] = {}
        seen = record.seen()
        for each in (self.bad, *record.derived.values()):
            mixture = self.mixture_of(each)
            if mixture is not None and seen.get(each.id):
                found[mixture] = seen[each.id]
        return found


@dataclass(frozen=True)
class Components:
    """The culprits between the two stacks where the bits change."""

    good: Candidate
    bad: Candidate
    rule: Rule
    context: Context
    name: str = NAME
    title: str = "which components change the bits"

    def begin(self, record: Record) -> Mapping[str, Any]:
        """What can be swapped; the machine is asked once."""
        if self.context.runtime is None:
            raise InfrastructureError("nothing to try components in")
        probes = [p.result for p in record.probes if p.candidate in (self.good.id, self.bad.id)]
        try:
            inventory = self.context.runtime.inventory(self.good, self.bad, probes)
        except Unsupported as error:
            return {"unsupported": str(error)}
        return {"inventory": inventory.to_json()}

    def next_steps(self, record: Record, jobs: int, under_way: Sequence[Ask]) -> Steps:
        """The next mixtures, or the culprits."""
        if "unsupported" in record.stages[self.name]:
            reason = record.stages[self.name]["unsupported"]
            return Done({"status": "unsupported", "reason": reason, "culprits": []})
        ends = settled(self.good, self.bad, record, self.rule)
        if ends is None:
            return Done(_unsettled(self.good, self.bad))
        stacks = stacks_of(record, self.good, self.bad)
        parts = _parts(stacks.inventory)
        step = culprits.next_steps(
            parts,
            stacks.tried(record),
            ends,
            self.rule,
            jobs=jobs,
            under_way=_asked(stacks, under_way),
        )
        if isinstance(step, culprits.Answer):
            return Done(_Told(stacks, record, ends, self.rule).answer(step))
        return Batch(tuple(_ask(stacks, each) for each in step.asks))

    def probes_left(self, record: Record) -> int:
        """For one culprit, all mixtures testable: each finished probe is one less.

        0 once that many were not enough: there is more than one, and nobody knows how many.
        """
        if "inventory" not in record.stages.get(self.name, {}):
            return 0
        count = len(_parts(stacks_of(record, self.good, self.bad).inventory))
        done = sum(probed.stage == self.name for probed in record.probes)
        # The bad stack is among them, and was tried before.
        return max(culprits.probes_of_one(count) - 1 - done, 0)

    def verdict(self, record: Record, candidate: Candidate) -> Verdict | None:
        """What is known of a mixture."""
        ends = settled(self.good, self.bad, record, self.rule)
        return None if ends is None else judge(record.seen()[candidate.id], ends, self.rule)

    def ahead(self, record: Record, under_way: Sequence[Ask], limit: int) -> Sequence[Candidate]:
        """Stacks that may be asked for next."""
        ends = settled(self.good, self.bad, record, self.rule)
        if ends is None or "inventory" not in record.stages.get(self.name, {}):
            return ()
        stacks = stacks_of(record, self.good, self.bad)
        mixtures = culprits.ahead(
            _parts(stacks.inventory),
            stacks.tried(record),
            ends,
            self.rule,
            jobs=max(len(under_way), 1),
            under_way=_asked(stacks, under_way),
            limit=limit,
        )
        return [stacks.candidate_of(mixture) for mixture, _ in mixtures]


def stacks_of(record: Record, good: Candidate, bad: Candidate) -> Stacks:
    """The two stacks with the inventory that the journal keeps."""
    return Stacks(good, bad, Inventory.from_json(record.stages[NAME]["inventory"]))


def _parts(inventory: Inventory) -> tuple[Mixture, ...]:
    names = [each.id for each in inventory.components]
    known = set(names)
    groups = [[name for name in group if name in known] for group in inventory.groups]
    return culprits.atoms(names, [group for group in groups if len(group) > 1])


def _asked(stacks: Stacks, under_way: Sequence[Ask]) -> list[culprits.Ask]:
    mixtures = ((stacks.mixture_of(ask.candidate), ask.attempt) for ask in under_way)
    return [culprits.Ask(mixture, attempt) for mixture, attempt in mixtures if mixture is not None]


def _ask(stacks: Stacks, wanted: culprits.Ask) -> Ask:
    return Ask(stacks.candidate_of(wanted.mixture), wanted.attempt, _why(stacks, wanted))


def _why(stacks: Stacks, wanted: culprits.Ask) -> str:
    if wanted.attempt > 1:
        return "do its bits repeat?"
    if wanted.mixture == EMPTY:
        return "does the change lie in what can be swapped?"
    return f"{len(wanted.mixture)} of {len(stacks.everything)} components changed"


def _unsettled(good: Candidate, bad: Candidate) -> dict[str, Any]:
    reason = f"the bits of {good.label} or {bad.label} do not repeat any more: nothing is blamed"
    return {"status": "unstable", "reason": reason, "culprits": []}


@dataclass(frozen=True)
class _Told:
    """An answer of the search in names, values and probes of this bisection."""

    stacks: Stacks
    record: Record
    ends: Ends
    rule: Rule

    def answer(self, answer: culprits.Answer) -> dict[str, Any]:
        """The stage's result as JSON values."""
        stacks = self.stacks
        at = None if answer.at is None else stacks.label(answer.at)
        return {
            "status": answer.status,
            "reason": self._reason(answer),
            "culprits": [self._culprit(each, answer) for each in answer.culprits],
            "left": [each.to_json() for each in stacks.of(answer.left)],
            "companions": [each.to_json() for each in stacks.of(answer.companions)],
            "whole": answer.whole,
            "at": at,
            "swap_test": self._swap_test(),
            "components": len(stacks.everything),
            "notes": self._notes(answer),
        }

    def _notes(self, answer: culprits.Answer) -> list[str]:
        found = list(self.stacks.inventory.notes)
        if self.rule.name == "exit-code" and answer.culprits:
            found.append(_CRASHES)
        return found

    def _culprit(self, culprit: culprits.Culprit, answer: culprits.Answer) -> dict[str, Any]:
        stacks = self.stacks
        return {
            "components": [each.to_json() for each in stacks.of(culprit.components)],
            "alone": self._shown(culprit.components | culprit.given, culprit.alone),
            "without": None
            if culprit.without is None
            else self._shown(self._without(culprit, answer), culprit.without),
            "inseparable": [each.to_json() for each in stacks.of(culprit.inseparable)],
            "given": [each.to_json() for each in stacks.of(culprit.given)],
            "versions": None,
        }

    def _swap_test(self) -> dict[str, Any] | None:
        """All components swapped; None where it was not tried."""
        seen = self.stacks.tried(self.record).get(EMPTY, [])
        verdict = judge(seen, self.ends, self.rule)
        return None if verdict is None else self._shown(EMPTY, verdict)

    def _shown(self, mixture: Mixture, verdict: Verdict) -> dict[str, Any]:
        candidate = self.stacks.candidate_of(mixture)
        probes = [p.number for p in self.record.probes if p.candidate == candidate.id]
        return {
            "label": candidate.label,
            "verdict": verdict.kind,
            "value": verdict.value or None,
            "reason": verdict.reason,
            "probes": probes,
        }

    def _without(self, culprit: culprits.Culprit, answer: culprits.Answer) -> Mixture:
        """The mixture of all but this culprit, those before it, and what had to go with them."""
        place = answer.culprits.index(culprit) + 1
        aside = EMPTY.union(*(each.components for each in answer.culprits[:place]))
        rest = self.stacks.everything - aside
        wholly = rest - answer.companions
        seen = self.stacks.tried(self.record)
        return wholly if wholly in seen or rest not in seen else rest

    def _reason(self, answer: culprits.Answer) -> str:
        at = "" if answer.at is None else self.stacks.label(answer.at)
        if answer.status == "found":
            return ""
        if answer.status == "elsewhere":
            return self._elsewhere()
        if answer.status == "same":
            return f"{at} gives the good bits now: it is not the stack that was tried before"
        if answer.status == "unstable":
            return f"nothing is blamed: {at}: {answer.reason}"
        where = f"{at} cannot be tested: " if at else ""
        return f"{where}{answer.reason}; {self._left(answer.left)} neither cleared nor blamed"

    def _left(self, left: Mixture) -> str:
        names = [wording.name(each) for each in self.stacks.of(left)]
        shown = wording.listed(names) if len(names) <= _NAMED else f"{len(names)} components"
        return f"{shown} {'is' if len(names) == 1 else 'are'}"

    def _elsewhere(self) -> str:
        stacks, setup = self.stacks, self.record.header.setup
        blame = _outside(setup)
        if not stacks.everything:
            between = f"{stacks.good.label} and {stacks.bad.label}"
            return f"{blame}; no component differs between {between}"
        seen = stacks.tried(self.record).get(EMPTY, [])
        verdict = judge(seen, self.ends, self.rule)
        bits = "still bad" if verdict is not None and verdict.kind == "bad" else "not good either"
        return f"{blame}; {stacks.label(EMPTY)}: the bits are {bits}"


def _outside(setup: Mapping[str, Any]) -> str:
    """Where a change is that no swap brings back."""
    if setup.get("components"):
        return f"the change is in none of the named: {', '.join(setup['components'])}"
    files = ", files outside packages (--files)" if setup.get("files") is False else ""
    return f"the change is in nothing that can be swapped: driver, host, base system{files}"
