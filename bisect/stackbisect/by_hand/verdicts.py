"""Verdicts given by hand: on which candidates, what each may be, and what is in force.

All that is good must come before all that is bad, for a list has one change here.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from stackbisect.errors import UsageError
from stackbisect.journal import Header, Record
from stackbisect.probe import Candidate, EvidenceOptions
from stackbisect.spaces import window

RUNTIME = "by hand"
VERDICTS = ("good", "bad", "skip")

_SHORTEST = 4
"""So many characters of a digest or commit name it, where they name no other."""


def is_by_hand(header: Header) -> bool:
    """Whether a journal is of a bisection by hand."""
    return header.setup.get("runtime") == RUNTIME


def header(found: window.Space, *, workdir: Path, again: Sequence[str], created: str) -> Header:
    """What the journal of a bisection by hand begins with. An image under two tags stands once."""
    once: dict[str, Candidate] = {}
    for each in found.candidates:
        first = once.get(each.id)
        names = [] if first is None else [*first.details.get("tags", [first.label]), each.label]
        once[each.id] = each if first is None else _also(first, names)
    return Header(
        command=(),
        workdir=str(workdir),
        verdict="exit-code",
        evidence=EvidenceOptions(),
        time_limit=None,
        candidates=tuple(once.values()),
        setup={"runtime": RUNTIME},
        runtime={},
        excluded=tuple(found.excluded),
        notes=tuple(found.notes),
        again=tuple(again),
        created=created,
    )


def _also(candidate: Candidate, names: Sequence[str]) -> Candidate:
    return replace(candidate, details={**candidate.details, "tags": list(dict.fromkeys(names))})


def of_names(names: Sequence[str]) -> list[Candidate]:
    """Candidates that are no more than names, in their order. Raises UsageError."""
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise UsageError(f"expected every candidate once, found {', '.join(sorted(twice))} twice")
    return [Candidate(name, name, position) for position, name in enumerate(names)]


def find(candidates: Sequence[Candidate], name: str) -> Candidate:
    """The candidate of this name: its label, another tag of it, its id or the beginning of that.

    Raises UsageError.
    """
    for each in candidates:
        if name in (each.label, each.id, *each.details.get("tags", ())):
            return each
    short = [each for each in candidates if each.id.rpartition(":")[2].startswith(name)]
    if len(short) == 1 and len(name) >= _SHORTEST:
        return short[0]
    raise window.no_such("candidate", name, [each.label for each in candidates])


def find_all(candidates: Sequence[Candidate], names: Sequence[str]) -> list[Candidate]:
    """Candidates by name; `A..B` is what comes after A, up to and with B. Raises UsageError."""
    found: list[Candidate] = []
    labels = {each.label for each in candidates}
    for name in names:
        first, dots, last = name.partition("..")
        if not dots or name in labels:
            found.append(find(candidates, name))
            continue
        places = [candidates.index(find(candidates, each)) for each in (first, last)]
        if places[0] >= places[1]:
            raise UsageError(f"expected {first} before {last} in {name}, found it behind")
        found += candidates[places[0] + 1 : places[1] + 1]
    return found


def check(
    candidates: Sequence[Candidate], marks: Mapping[str, str], new: Candidate, verdict: str
) -> None:
    """Raise UsageError where a new mark contradicts those in force (verdicts by candidate id)."""
    before = marks.get(new.id)
    if before not in (None, "skip", verdict):
        raise UsageError(
            f"{new.label} is marked {before}; if that was a slip, take it back: {_unmark(new)}"
        )
    place = candidates.index(new)
    for other, each in enumerate(candidates):
        said = marks.get(each.id)
        if (verdict, said) == ("good", "bad") and other < place:
            raise UsageError(_contradiction(new, "good", each, "before it, is bad"))
        if (verdict, said) == ("bad", "good") and other > place:
            raise UsageError(_contradiction(new, "bad", each, "behind it, is good"))


def _contradiction(new: Candidate, verdict: str, other: Candidate, stands: str) -> str:
    return (
        f"{new.label} cannot be {verdict} where {other.label}, which stands {stands}: candidates "
        f"stand from good to bad. If that was a slip, take it back: {_unmark(other)}. If the list "
        "is the wrong way round, start again with --good and --bad. If the bits came back, there "
        "is more than one change: `stackbisect run --all-transitions` finds each"
    )


def _unmark(candidate: Candidate) -> str:
    return shlex.join(["stackbisect", "unmark", candidate.label])


def in_force(record: Record) -> dict[str, str]:
    """The marks in force: verdicts by candidate id."""
    return {mark.candidate: mark.verdict for mark in record.marks}
