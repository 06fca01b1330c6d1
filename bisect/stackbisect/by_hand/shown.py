"""A bisection by hand as JSON values and as text."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stackbisect import wording
from stackbisect.by_hand.search import Next, Waiting, step
from stackbisect.by_hand.verdicts import in_force
from stackbisect.journal import Mark, Record
from stackbisect.probe import Candidate
from stackbisect.search.probing import Same

_STATUS: Mapping[type, str] = {Next: "unfinished", Waiting: "unfinished", Same: "not_reproduced"}
_EXIT = {"found": 0, "unfinished": 0, "not_reproduced": 1, "range": 2}


def outcome(record: Record, name: str) -> dict[str, Any]:
    """What is known, as JSON values."""
    now, header = step(record), record.header
    marks = {mark.candidate: mark for mark in record.marks}
    labels = [each.label for each in header.candidates]
    found: dict[str, Any] = {
        "status": _STATUS.get(type(now), "found"),
        "name": name,
        "by_hand": True,
        "reason": "",
        "last_good": None,
        "first_bad": None,
        "range": None,
        "next": None,
        "left": None,
        "steps": None,
        "probes": len(marks),
        "transitions": [],
        "monotonic": None,
        "culprits": [],
        "verdicts": [_verdict(each, marks.get(each.id)) for each in header.candidates],
        "excluded": [dict(each) for each in header.excluded],
        "notes": list(header.notes),
        "workdir": header.workdir,
        "again": shlex.join(header.again),
    }
    if isinstance(now, Next):
        found.update(next=now.candidate.label, left=now.left, steps=now.steps)
    elif isinstance(now, Waiting):
        found.update(reason=waits_for(now))
    elif isinstance(now, Same):
        found.update(reason=now.reason)
    else:
        answer = now.answer
        pair = labels[answer.last_good], labels[answer.first_bad]
        found.update(last_good=pair[0], first_bad=pair[1], monotonic=True)
        found["transitions"] = [{"from": pair[0], "to": pair[1], "adjacent": not answer.ambiguous}]
        if answer.ambiguous:
            found.update(status="range", range=labels[answer.last_good : answer.first_bad + 1])
    found["exit_code"] = _EXIT[found["status"]]
    return found


def _verdict(candidate: Candidate, mark: Mark | None) -> dict[str, Any]:
    return {
        "label": candidate.label,
        "id": candidate.id,
        "verdict": None if mark is None else mark.verdict,
        "note": "" if mark is None else mark.note,
    }


def waits_for(now: Waiting) -> str:
    """What must be said first."""
    return f"waiting for {now.missing} candidate: stackbisect good NAME, stackbisect bad NAME"


def left_text(now: Next) -> str:
    """How much there is to do."""
    left = wording.counted(now.left, "candidate")
    return f"{left} left, at most {wording.counted(now.steps, 'step')} to go"


def text(found: Mapping[str, Any]) -> str:
    """What is known, for people."""
    return "\n".join(_lines(found)) + "\n"


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"bisection {found['name']}, by hand: {_headline(found)}"
    if found["reason"]:
        yield f"  {found['reason']}"
    if found["last_good"] is not None:
        yield f"  last good  {found['last_good']}"
        yield f"  first bad  {found['first_bad']}"
    if found["range"]:
        yield f"  skipped between them, and any of these may be the first bad one: {_inner(found)}"
    if found["next"]:
        yield f"  next: {found['next']}"
    yield ""
    yield "candidates, from good to bad"
    yield from _verdict_lines(found["verdicts"])
    yield from (f"left out: {each['label']}: {each['reason']}" for each in found["excluded"])
    yield from (f"note: {note}" for note in found["notes"])
    yield ""
    yield f"{wording.counted(found['probes'], 'verdict')}; `stackbisect log {found['name']}` " + (
        "has them as commands"
    )


def _inner(found: Mapping[str, Any]) -> str:
    return ", ".join(found["range"][1:-1])


def _headline(found: Mapping[str, Any]) -> str:
    return {
        "found": "found",
        "range": "narrowed to a range that was skipped",
        "not_reproduced": "nothing is good",
        "unfinished": "not finished",
    }[found["status"]]


def _verdict_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    width = max(len(row["label"]) for row in rows)
    untried = 0
    for row in [*rows, None]:
        if row is not None and row["verdict"] is None:
            untried += 1
            continue
        if untried:
            yield f"  ... {untried} not tried"
        untried = 0
        if row is not None:
            note = f"  ({row['note']})" if row["note"] else ""
            yield f"  {row['label']:{width}}  {row['verdict']}{note}"


def state(folder: Path, record: Record) -> dict[str, Any]:
    """The state, with the fields that every bisection has."""
    found, now = outcome(record, folder.name), step(record)
    last, first = _nearest_marks(record)
    return {
        "name": folder.name,
        "state": "by hand" if found["status"] == "unfinished" else found["status"],
        "stage": None,
        "probes": found["probes"],
        "probes_left": now.steps if isinstance(now, Next) else None,
        "seconds_left": None,
        "between": None if last is None or first is None else [last, first],
        "under_way": [found["next"]] if found["next"] else None,
        "stopped": found["reason"] or None,
        "verdicts": {row["label"]: row["verdict"] for row in found["verdicts"]},
    }


def _nearest_marks(record: Record) -> tuple[str | None, str | None]:
    """The last candidate that is good, and the first that is bad."""
    said = in_force(record)
    good = [each.label for each in record.header.candidates if said.get(each.id) == "good"]
    bad = [each.label for each in record.header.candidates if said.get(each.id) == "bad"]
    return (good[-1] if good else None), (bad[0] if bad else None)
