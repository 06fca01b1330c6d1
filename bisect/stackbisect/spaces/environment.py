"""Environment variables as what is searched: ends that differ in them, or one variable's values.

Any base will do: one image, one version of a package, one commit, this machine as it is. Its
candidates are the base with variables set for the command. Between two ends the variables are the
components that are swapped (`inventory`); along an axis each value is a candidate.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stackbisect.errors import UsageError
from stackbisect.probe import Candidate, InfrastructureError
from stackbisect.runtimes import container_options
from stackbisect.spaces import window
from stackbisect.spaces.components import DERIVED, Component, Inventory

VARIABLES = "variables"
"""The key of a candidate's details: variable → value; None where it is taken from here."""

FROM_HERE = "(from here)"
"""The value that people and journals see of a variable given by its bare name."""

BASE = "base"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Variables = Mapping[str, str | None]


@dataclass(frozen=True)
class Axis:
    """What was asked for, as it was written (`NAME=VALUE`, bare `NAME`, `NAME=V1,V2,...`)."""

    good: tuple[str, ...] = ()
    bad: tuple[str, ...] = ()
    values: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The axis as plain JSON values."""
        return {"good": list(self.good), "bad": list(self.bad), "values": self.values}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Axis:
        """The inverse of `to_json`."""
        return cls(tuple(value["good"]), tuple(value["bad"]), value["values"])

    @property
    def bare(self) -> frozenset[str]:
        """Variables whose values come from the caller's environment and are never written down."""
        return frozenset(text for text in (*self.good, *self.bad) if "=" not in text)

    @property
    def names(self) -> frozenset[str]:
        """The variables that are searched: where an end does not set one, it is not set."""
        texts = (*self.good, *self.bad, *([self.values] if self.values else []))
        return frozenset(text.partition("=")[0] for text in texts)

    def check(self, environ: Mapping[str, str]) -> None:
        """Raise UsageError where it cannot be meant, or would put a secret into the journal."""
        if self.values is not None:
            if self.good or self.bad:
                raise UsageError("--env-values does not go with --env-good and --env-bad")
            _values(self.values)
            return
        good, bad = read("--env-good", self.good), read("--env-bad", self.bad)
        for option, found in (("--env-good", good), ("--env-bad", bad)):
            for name, value in found.items():
                if value is None and name not in environ:
                    raise UsageError(
                        f"{option} {name}: expected a variable that is set here, found none"
                    )
        if good == bad:
            raise UsageError(
                "--env-good and --env-bad: expected ends that differ, found the same variables"
            )


def read(option: str, texts: Sequence[str]) -> dict[str, str | None]:
    """Variables as they are written; None for a bare name. Raises UsageError."""
    found: dict[str, str | None] = {}
    for text in texts:
        name, given, value = text.partition("=")
        _check_name(option, name, text)
        if name in found:
            raise UsageError(f"{option} {name}: expected it once, found it twice")
        if given and container_options.hide_secret(text) != text:
            raise UsageError(
                f"{option} {name}=...: the value would be kept in the journal; "
                f"export {name} and write {option} {name}"
            )
        found[name] = value if given else None
    return found


def _values(text: str) -> tuple[str, list[str]]:
    name, given, values = text.partition("=")
    _check_name("--env-values", name, text)
    listed = values.split(",")
    if not given or len(listed) < 2 or len(set(listed)) < len(listed):
        raise UsageError(
            f"--env-values: expected NAME=V1,V2,... with two or more different values, from good "
            f"to bad, found {container_options.hide_secret(text)!r}"
        )
    if container_options.is_secret_name(name):
        raise UsageError(f"--env-values {name}=...: the values would be kept in the journal")
    return name, listed


def _check_name(option: str, name: str, text: str) -> None:
    if not _NAME.fullmatch(name):
        hidden = container_options.hide_secret(text)
        raise UsageError(f"{option}: expected NAME=VALUE or NAME, found {hidden!r}")


def space(base: window.Space, axis: Axis) -> window.Space:
    """The candidates: what `base` holds, with variables. Raises UsageError."""
    ids = {each.id for each in base.candidates}
    if len(ids) != 1:
        raise UsageError(
            f"variables are searched in one candidate, found {len(ids)}; give --good alone, or the "
            "same for --good and --bad"
        )
    stack = base.candidates[0]
    if axis.values is not None:
        name, values = _values(axis.values)
        made = [_candidate(stack, {name: v}, f"{name}={v}", n) for n, v in enumerate(values)]
    else:
        ends = (("good", axis.good), ("bad", axis.bad))
        made = [
            _candidate(stack, read(f"--env-{end}", texts), f"env-{end}", n)
            for n, (end, texts) in enumerate(ends)
        ]
    return window.Space(tuple(made), base.excluded, base.notes)


def _candidate(base: Candidate, variables: Variables, label: str, position: int) -> Candidate:
    text = json.dumps([base.id, sorted(variables.items())])
    return Candidate(
        id="environment:sha256:" + hashlib.sha256(text.encode()).hexdigest(),
        label=label,
        position=position,
        details={VARIABLES: dict(variables), BASE: base.to_json()},
    )


def resolved(candidate: Candidate) -> tuple[Candidate, dict[str, str | None], list[dict[str, Any]]]:
    """The base of a candidate, its variables, and the steps that are not about variables.

    A mixture is the bad end with some variables swapped for the good end's (`components.swap`).
    """
    made = candidate.details.get(DERIVED)
    if made is None:
        base = Candidate.from_json(candidate.details[BASE])
        return base, dict(candidate.details[VARIABLES]), []
    base, variables, others = resolved(Candidate.from_json(made["base"]))
    for step in made["steps"]:
        if step["kind"] != "swap":
            others.append(step)
            continue
        donor = resolved(Candidate.from_json(step["donor"]))[1]
        for each in step["components"]:
            if each["kind"] != "environment":
                raise InfrastructureError(f"{each['kind']}:{each['name']} is no variable")
            variables.pop(each["name"], None)
            if each["name"] in donor:
                variables[each["name"]] = donor[each["name"]]
    return base, variables, others


def inventory(good: Candidate, bad: Candidate) -> Inventory:
    """The variables that differ between two candidates."""
    left, right = resolved(good)[1], resolved(bad)[1]
    return Inventory(
        tuple(
            Component("environment", name, _value(left, name), _value(right, name))
            for name in sorted({*left, *right})
            if _value(left, name) != _value(right, name)
        )
    )


def difference(good: Candidate, bad: Candidate) -> dict[str, list[str | None]]:
    """The same as name → [value in good, value in bad]; None is absent."""
    return {each.name: [each.good, each.bad] for each in inventory(good, bad).components}


def _value(variables: Variables, name: str) -> str | None:
    if name not in variables:
        return None
    value = variables[name]
    return FROM_HERE if value is None else value
