"""The window of an ordered list between a good and a bad end, and what was left out of it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stackbisect.errors import UsageError
from stackbisect.probe import Candidate
from stackbisect.spaces import versions

_NEAREST = 5


@dataclass(frozen=True)
class Space:
    """Candidates from the good end to the bad end.

    `excluded`: what was left out between them, each with `label` and `reason`. `notes` are for
    the reader of the plan and the report.
    """

    candidates: tuple[Candidate, ...]
    excluded: tuple[Mapping[str, str], ...] = ()
    notes: tuple[str, ...] = ()


def nearest(wanted: str, known: Sequence[str]) -> list[str]:
    """The names most like one that does not exist: by spelling, and by place in the order."""
    spelled = difflib.get_close_matches(wanted, known, n=3, cutoff=0.6)
    key = versions.tag_key(wanted)
    ordered = sorted((k, name) for name in known if (k := versions.tag_key(name)) is not None)
    around: list[str] = []
    if key is not None and ordered:
        place = sum(k < key for k, _ in ordered)
        around = [name for _, name in ordered[max(place - 1, 0) : place + 1]]
    return list(dict.fromkeys([*around, *spelled]))[:_NEAREST]


def no_such(what: str, wanted: str, known: Sequence[str]) -> UsageError:
    """The error for an end that does not exist; offers the nearest ones."""
    found = nearest(wanted, known)
    offer = f"; nearest: {', '.join(found)}" if found else f"; there are {len(known)} in all"
    return UsageError(f"{what} {wanted!r} does not exist{offer}")


def cut(ordered: Sequence[str], good: str | None, bad: str) -> tuple[list[str], tuple[str, ...]]:
    """The names from the good to the bad end, both included, and notes.

    Where the good end is the later one the list runs backwards: the search is for a repair. Without
    a good end it begins with the oldest.
    """
    if good is None:
        note = f"no good end was given: good means no more than other bits than those of {bad}"
        return list(ordered[: ordered.index(bad) + 1]), (note,)
    first, last = ordered.index(good), ordered.index(bad)
    if first <= last:
        return list(ordered[first : last + 1]), ()
    names = list(reversed(ordered[last : first + 1]))
    return names, (f"the good end {good} comes after the bad end {bad}: searched backwards",)
