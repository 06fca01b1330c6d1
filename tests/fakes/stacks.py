"""A runtime in memory: stacks are tables of components, and a function says what bits they give.

It reads derived candidates as the real ones do: from the base, step by step. What it keeps to
itself (which components matter) is what a bisection has to find.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stackbisect.probe import Candidate, Job, ProbeResult, Unsupported
from stackbisect.spaces.components import DERIVED, Component, Inventory
from tests.stackbisect.histories import ran, untestable

Values = dict[str, str | None]
"""Component id to value; absent ones are not there or None."""

LOCKED = "lock"
"""Where a table says which lock is enforced."""

Bits = Callable[[Values, int], str]
"""The bits of a stack at its so-manieth probe: a letter; `x` cannot be tested."""


@dataclass
class Simulated:
    """Candidates are tables by position. `index` lists versions by component id."""

    tables: Sequence[Values]
    bits: Bits
    groups: tuple[tuple[str, ...], ...] = ()
    index: Mapping[str, Sequence[str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    host: Mapping[str, Any] = field(default_factory=lambda: {"hostname": "one"})
    blind: bool = False
    tried: list[str] = field(default_factory=list)
    looked: int = 0
    name: str = "simulated"

    def describe(self) -> dict[str, Any]:
        """Nothing worth saying."""
        return {}

    def run(self, candidate: Candidate, job: Job | None) -> ProbeResult:
        """What the candidate's table gives."""
        self.tried.append(candidate.id)
        kind = self.bits(self.values(candidate), len(self.tried))
        if kind == "x":
            return untestable("it cannot be imported")
        found = ran(kind)
        return ProbeResult(
            found.status, 0, "", found.evidence, {"host": dict(self.host)}, {}, 0.0, 1.0, "log"
        )

    def values(self, candidate: Candidate) -> Values:
        """A candidate's table, built from its base."""
        made = candidate.details.get(DERIVED)
        if made is None:
            return dict(self.tables[candidate.position])
        values = self.values(Candidate.from_json(made["base"]))
        for step in made["steps"]:
            if step["kind"] == "install":
                component = step["component"]
                values[f"{component['kind']}:{component['name']}"] = step["version"]
                continue
            if step["kind"] == "lock":
                values[LOCKED] = step["digest"]
                continue
            assert step["kind"] == "swap", step
            donor = self.values(Candidate.from_json(step["donor"]))
            for each in map(Component.from_json, step["components"]):
                assert donor.get(each.id) == each.good, (each, donor.get(each.id))
                values[each.id] = donor.get(each.id)
        return values

    def inventory(
        self, good: Candidate, bad: Candidate, probes: Sequence[ProbeResult]
    ) -> Inventory:
        """What differs between two tables."""
        self.looked += 1
        if self.blind:
            raise Unsupported("nothing can be swapped here")
        assert probes, "what both loaded is known by now"
        left, right = self.values(good), self.values(bad)
        found = [
            Component(kind, name, left.get(each), right.get(each))  # type: ignore[arg-type]
            for each in dict.fromkeys([*left, *right])
            if left.get(each) != right.get(each)
            for kind, _, name in [each.partition(":")]
        ]
        return Inventory(tuple(found), self.groups, self.notes)

    def versions(self, component: Component, good: Candidate, bad: Candidate) -> list[str]:
        """What the index lists."""
        return list(self.index.get(component.id, ()))

    def difference(self, good: Candidate, bad: Candidate) -> dict[str, dict[str, list[str | None]]]:
        """By kind, without the libraries: these are known from what was loaded."""
        left, right = self.values(good), self.values(bad)
        found: dict[str, dict[str, list[str | None]]] = {
            "distributions": {},
            "packages": {},
            "environment": {},
        }
        for each in left:
            kind, _, name = each.partition(":")
            place = {"distribution": "distributions", "package": "packages"}.get(kind, kind)
            if place in found and left[each] != right.get(each):
                found[place][name] = [left[each], right.get(each)]
        return found

    def prefetch(self, candidate: Candidate) -> None:
        """Nothing is to be built."""

    def close(self) -> None:
        """Nothing is held."""
