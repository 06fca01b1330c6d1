"""Tells apart the times that one step of a stream was fingerprinted. Pure."""

from __future__ import annotations

from collections.abc import Iterable


def by_occurrence(steps: Iterable[tuple[int, str]]) -> dict[tuple[int, int], str]:
    """Digests by (step, how often that step was seen before), in the order given."""
    seen: dict[int, int] = {}
    found = {}
    for step, digest in steps:
        seen[step] = seen.get(step, -1) + 1
        found[step, seen[step]] = digest
    return found
