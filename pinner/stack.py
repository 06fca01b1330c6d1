"""The stack of a lock: facts sorted into hard and soft, and what differs in a process."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from pinner.inside.facts import DISTRIBUTIONS, PTXAS_VARIABLES
from pinner.inside.stack_rules import (
    ABSENT,
    ONLY_WHEN_LOADED,
    SEPARATOR,
    SOFT,
    Mismatch,
    differences,
    evidence_from_cpu,
    hard_mismatches,
    is_hard,
    is_known,
    named_by,
)
from pinner.lockfile.schema import Scalar, Stack


def classify(facts: Mapping[str, Any]) -> Stack:
    """The facts of a process as a lock keeps them; facts without a known value are left out."""
    on_cpu = evidence_from_cpu(facts)
    hard: dict[str, Scalar] = {}
    soft: dict[str, Scalar] = {}
    for field, value in sorted(known(facts).items()):
        (hard if is_hard(field, on_cpu) else soft)[field] = value
    return Stack(hard, soft)


def known(facts: Mapping[str, Any]) -> dict[str, Scalar]:
    """The facts that have a known value: what one process could not see, another one may have."""
    return {field: value for field, value in facts.items() if is_known(value)}


def combine(processes: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The facts of a run from those of its processes, for `classify`.

    Where processes differ in a hard fact, its value lists what was seen (``"1 | not there"``):
    enforcing takes any of it. A soft fact in which they differ says nothing and is left out.
    """
    every = [{name: fact for name, fact in each.items() if is_known(fact)} for each in processes]
    names = sorted({name for each in every for name in each})
    seen = {name: _seen(name, every) for name in names}
    on_cpu = evidence_from_cpu(seen)
    return {
        name: values[0] if len(values) == 1 else SEPARATOR.join(sorted(map(str, values)))
        for name, values in seen.items()
        if len(values) == 1 or is_hard(name, on_cpu)
    }


def _seen(name: str, processes: list[dict[str, Any]]) -> list[Any]:
    """The different values of one fact; a process that did not load a library has no say."""
    values = [each.get(name, ABSENT) for each in processes]
    if name.startswith(ONLY_WHEN_LOADED):
        values = [value for value in values if value != ABSENT]
    return [value for i, value in enumerate(values) if value not in values[:i]]


def mismatches(
    locked: Stack, here: Mapping[str, Any], allow: Iterable[str] = ()
) -> tuple[Mismatch, ...]:
    """The hard facts that differ in a process and that ``allow`` does not name: refused."""
    return tuple(hard_mismatches(locked.hard, here, allow))


def notes(locked: Stack, here: Mapping[str, Any]) -> tuple[Mismatch, ...]:
    """The soft facts that both have and that differ: said, never refused."""
    both = {field: value for field, value in known(here).items() if field in locked.soft}
    return tuple(differences({field: locked.soft[field] for field in both}, both))


def allowed_in_vain(locked: Stack, allow: Iterable[str]) -> tuple[str, ...]:
    """One line for each name in ``allow`` that can be no hard fact: most likely a slip.

    A fact that the lock lacks can be allowed too: it may be there now (``env:NCCL_ALGO``).
    """
    return tuple(
        _in_vain(name, list(locked.hard))
        for name in allow
        if not any(named_by(field, [name]) for field in locked.hard) and not _may_appear(name)
    )


def _may_appear(name: str) -> bool:
    """Whether a process can have a hard fact of this name that a lock lacks."""
    if name in DISTRIBUTIONS or name in PTXAS_VARIABLES.values():
        return True
    kinds = ("env:", "cpu:", "loaded:", "gpu")
    return name.startswith(kinds) and not named_by(name, SOFT)


def _in_vain(name: str, fields: list[str]) -> str:
    close = difflib.get_close_matches(name, fields, n=1)
    hint = f"did you mean {close[0]}?" if close else f"they are: {', '.join(sorted(fields))}"
    return f"--allow {name}: expected the name of a hard fact of the lock, found none; {hint}"
