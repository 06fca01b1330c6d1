"""The stack of a lock: facts sorted into hard and soft, and what differs in a process."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from pinner.inside.stack_rules import (
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
    """One line for each name in ``allow`` that is no hard fact of the lock: most likely a slip."""
    unknown = [name for name in allow if not any(named_by(field, [name]) for field in locked.hard)]
    return tuple(_in_vain(name, list(locked.hard)) for name in unknown)


def _in_vain(name: str, fields: list[str]) -> str:
    close = difflib.get_close_matches(name, fields, n=1)
    hint = f"did you mean {close[0]}?" if close else f"they are: {', '.join(sorted(fields))}"
    return f"--allow {name}: expected the name of a hard fact of the lock, found none; {hint}"
