"""The parts of a stack that can be swapped, and the stacks made by swapping some of them.

A derived candidate is a base candidate and the steps that change it. Its id is made from these
alone: the same stack has the same id in every stage, and is built and tried once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from stackbisect.probe import Candidate

Kind = Literal["distribution", "package", "library", "environment", "file"]

DERIVED = "derived"
"""The key of a derived candidate's details: {"base": candidate, "steps": [...]}, all as JSON."""


@dataclass(frozen=True)
class Component:
    """One part. `good` and `bad` are its values at the two ends (versions, digests); None: absent.

    Names: a distribution's normalised name; a Debian package's name; a shared library's family (its
    file name without version: `libcublas.so`); an environment variable; an absolute path.
    """

    kind: Kind
    name: str
    good: str | None
    bad: str | None

    @property
    def id(self) -> str:
        """What a mixture names it by: `distribution:numpy`."""
        return f"{self.kind}:{self.name}"

    def to_json(self) -> dict[str, Any]:
        """The component as plain JSON values."""
        return {"kind": self.kind, "name": self.name, "good": self.good, "bad": self.bad}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Component:
        """The inverse of `to_json`."""
        return cls(value["kind"], value["name"], value["good"], value["bad"])


@dataclass(frozen=True)
class Inventory:
    """What can be swapped between a good and a bad stack.

    `components` are in an order where what belongs together stands together. `groups` are exact-pin
    groups, by component id. `notes` say what differs and cannot be swapped.
    """

    components: tuple[Component, ...]
    groups: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The inventory as plain JSON values."""
        return {
            "components": [each.to_json() for each in self.components],
            "groups": [list(group) for group in self.groups],
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Inventory:
        """The inverse of `to_json`."""
        return cls(
            tuple(Component.from_json(each) for each in value["components"]),
            tuple(tuple(group) for group in value["groups"]),
            tuple(value["notes"]),
        )


def swap(donor: Candidate, components: Sequence[Component]) -> dict[str, Any]:
    """The step that takes `components` from `donor` (its `good` values)."""
    ordered = sorted(components, key=lambda each: each.id)
    return {
        "kind": "swap",
        "donor": donor.to_json(),
        "components": [each.to_json() for each in ordered],
    }


def install(component: Component, version: str) -> dict[str, Any]:
    """The step that installs one version of one distribution or Debian package, nothing else."""
    return {
        "kind": "install",
        "component": {"kind": component.kind, "name": component.name},
        "version": version,
    }


def lock(file: str, digest: str) -> dict[str, Any]:
    """The step that enforces a lockfile: `file` is relative to the bisection's folder."""
    return {"kind": "lock", "file": file, "digest": digest}


def derived(base: Candidate, steps: Sequence[Mapping[str, Any]], label: str) -> Candidate:
    """The candidate that is `base` with `steps` applied in order; `base` itself where none are."""
    if not steps:
        return base
    identity = [base.id, [_identity(step) for step in steps]]
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return Candidate(
        id="derived:sha256:" + hashlib.sha256(text.encode()).hexdigest(),
        label=label,
        position=base.position,
        details={DERIVED: {"base": base.to_json(), "steps": [dict(step) for step in steps]}},
    )


def _identity(step: Mapping[str, Any]) -> dict[str, Any]:
    """What of a step makes another stack: labels and places of files do not."""
    kept = {name: value for name, value in step.items() if name != "file"}
    if "donor" in kept:
        kept["donor"] = kept["donor"]["id"]
    return kept
