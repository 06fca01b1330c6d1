"""Between which versions of one culprit the bits change: a transition over derived stacks.

Both ends are proofs of the culprit that are in the journal already: the bad stack with it (and all
other culprits) swapped, whose bits are good, and with it in place, whose bits are not. Between them
each version is installed by itself into the same stack. A version that is yanked, missing or does
not go with the rest is untestable there, so the answer may be a range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stackbisect import wording
from stackbisect.probe import Candidate, InfrastructureError, Unsupported
from stackbisect.search import probing, transition
from stackbisect.search.verdict import EndsFailure, Rule, Verdict
from stackbisect.spaces.components import Component, derived, install, swap
from stackbisect.stage import Ask, Batch, Context, Done, Steps

if TYPE_CHECKING:
    from stackbisect.journal import Record

PREFIX = "versions:"


@dataclass(frozen=True)
class Versions:
    """The versions of `component` in the bad stack whose `others` come from the good stack."""

    component: Component
    others: tuple[Component, ...]
    good: Candidate
    bad: Candidate
    rule: Rule
    context: Context

    @property
    def name(self) -> str:
        """Unique in its bisection."""
        return PREFIX + self.component.name

    @property
    def title(self) -> str:
        """What people read."""
        return f"which version of {wording.name(self.component)} changes the bits"

    def begin(self, record: Record) -> Mapping[str, Any]:
        """The versions; the index is asked once."""
        if self.context.runtime is None:
            raise InfrastructureError("nothing to try versions in")
        try:
            listed = self.context.runtime.versions(self.component, self.good, self.bad)
        except Unsupported as error:
            return {"unsupported": str(error), "versions": _between(self.component, ())}
        return {"versions": _between(self.component, listed)}

    def next_steps(self, record: Record, jobs: int, under_way: Sequence[Ask]) -> Steps:
        """The next version, or between which two the bits change."""
        if "unsupported" in record.stages[self.name]:
            reason = record.stages[self.name]["unsupported"]
            return Done({"status": "unsupported", "reason": reason})
        if len(self._versions(record)) == 2:
            return Done(self._neighbours())
        candidates = self._candidates(record)
        ids = [each.id for each in candidates]
        tries = [
            probing.Try(ids.index(ask.candidate.id), ask.attempt, ask.why)
            for ask in under_way
            if ask.candidate.id in ids
        ]
        step = probing.next_steps(ids, record.seen(), self.rule, jobs=jobs, under_way=tries)
        if isinstance(step, probing.Batch):
            return Batch(
                tuple(_ask(candidates, each) for each in step.tries),
                tuple(_ask(candidates, each) for each in step.needless),
            )
        return Done(self._result(record, step))

    def probes_left(self, record: Record) -> int:
        """The most, with two classes of bits."""
        if self.name not in record.stages or len(self._versions(record)) == 2:
            return 0
        ids = [each.id for each in self._candidates(record)]
        return probing.probes_left(ids, record.seen(), self.rule)

    def verdict(self, record: Record, candidate: Candidate) -> Verdict | None:
        """What is known of a version."""
        ids = [each.id for each in self._candidates(record)]
        return probing.verdicts(ids, record.seen(), self.rule)[ids.index(candidate.id)]

    def ahead(self, record: Record, under_way: Sequence[Ask], limit: int) -> Sequence[Candidate]:
        """Versions that may be asked for next."""
        if self.name not in record.stages:
            return ()
        candidates = self._candidates(record)
        ids = [each.id for each in candidates]
        tries = [
            probing.Try(ids.index(ask.candidate.id), ask.attempt, ask.why)
            for ask in under_way
            if ask.candidate.id in ids
        ]
        found = probing.ahead(
            ids, record.seen(), self.rule, jobs=max(len(tries), 1), under_way=tries, limit=limit
        )
        return [candidates[each.position] for each in found]

    def _versions(self, record: Record) -> list[str]:
        return list(record.stages[self.name]["versions"])

    def _candidates(self, record: Record) -> list[Candidate]:
        """From the good version to the bad one, each in the same stack."""
        versions = self._versions(record)
        others = [swap(self.good, self.others)] if self.others else []
        ends = [
            derived(self.bad, [swap(self.good, (*self.others, self.component))], ""),
            derived(self.bad, others, ""),
        ]
        inner = [
            derived(self.bad, [*others, install(self.component, version)], "")
            for version in versions[1:-1]
        ]
        ordered = [ends[0], *inner, ends[1]]
        return [
            Candidate(each.id, f"{self.bad.label} with {self.component.name} {v}", p, each.details)
            for p, (each, v) in enumerate(zip(ordered, versions, strict=True))
        ]

    def _neighbours(self) -> dict[str, Any]:
        """There is nothing between the two: what shows the culprit shows this."""
        return {
            "status": "found",
            "reason": "no version lies between them",
            "component": self.component.to_json(),
            "last_good": self.component.good,
            "first_bad": self.component.bad,
            "range": None,
            "versions": [],
            "monotonic": True,
        }

    def _result(self, record: Record, step: probing.Outcome) -> dict[str, Any]:
        versions = self._versions(record)
        result: dict[str, Any] = {
            "status": "unresolved",
            "reason": "",
            "component": self.component.to_json(),
            "last_good": None,
            "first_bad": None,
            "range": None,
            "versions": self._shown(record),
            "monotonic": None,
        }
        if isinstance(step, EndsFailure):
            return {**result, "status": "unstable", "reason": step.reason}
        if isinstance(step, probing.Same):
            return {**result, "reason": step.reason}
        answer = step.answer
        pair = versions[answer.last_good : answer.first_bad + 1]
        return {
            **result,
            "status": "range" if answer.ambiguous else "found",
            "reason": _told(answer, versions),
            "last_good": versions[answer.last_good],
            "first_bad": versions[answer.first_bad],
            "range": pair if answer.ambiguous else None,
            "monotonic": answer.monotonic,
        }

    def _shown(self, record: Record) -> list[dict[str, Any]]:
        """Every version that was tried, with its verdict."""
        candidates = self._candidates(record)
        ids = [each.id for each in candidates]
        known = probing.verdicts(ids, record.seen(), self.rule)
        return [
            {
                "version": version,
                "label": each.label,
                "verdict": verdict.kind,
                "value": verdict.value or None,
                "reason": verdict.reason,
                "probes": [p.number for p in record.probes if p.candidate == each.id],
            }
            for version, each, verdict in zip(
                self._versions(record), candidates, known, strict=True
            )
            if verdict is not None
        ]


def _told(answer: transition.Answer, versions: Sequence[str]) -> str:
    """What else is to be said of where the bits change."""
    told = []
    untestable = [versions[p] for each in answer.transitions for p in each.between if each.narrowed]
    if untestable:
        told.append(f"cannot be tested: {wording.listed(untestable)}")
    if len(answer.transitions) > 1:
        pairs = [f"{versions[each.left]} → {versions[each.right]}" for each in answer.transitions]
        told.append(f"the bits change more than once: {wording.listed(pairs)}")
    return "; ".join(told)


def _between(component: Component, listed: Sequence[str]) -> list[str]:
    """The component's own two values and what is listed between them, in that order."""
    good, bad = str(component.good), str(component.bad)
    inner = [version for version in listed if version not in (good, bad)]
    return [good, *dict.fromkeys(inner), bad]


def _ask(candidates: Sequence[Candidate], wanted: probing.Try) -> Ask:
    return Ask(candidates[wanted.position], wanted.attempt, wanted.why)
