"""A bisection by hand: people try candidates and say good, bad or skip; the search is the same.

A verdict is a mark in the journal. Nothing else is kept: what comes next is asked of the same pure
search that runs by itself, with the marks for its observations, each candidate marked once. All
that was marked good must come before all that was marked bad, for a list has one change here.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pinner.durable import replace_text
from stackbisect import journal, wording
from stackbisect.errors import UsageError
from stackbisect.journal import Header, Mark, Record
from stackbisect.probe import Candidate, Evidence, EvidenceOptions, Status
from stackbisect.search import gallop, probing
from stackbisect.search.probing import Found, Policy, Same
from stackbisect.search.verdict import EndsFailure, Rule
from stackbisect.spaces import window

RUNTIME = "by hand"
VERDICTS = ("good", "bad", "skip")

_RULE = Rule("exit-code")
_POLICY = Policy(ends=1, between=1, neighbours=1)
_SHORTEST = 4
"""So many characters of a digest or commit name it, where they name no other."""


@dataclass(frozen=True)
class _Said:
    """A mark as the search sees it: a command that succeeded, failed, or was not to be started."""

    status: Status
    exit_code: int | None
    reason: str = ""
    evidence: Evidence = field(default_factory=Evidence)


_SAID = {
    "good": _Said("ran", 0),
    "bad": _Said("ran", 1),
    "skip": _Said("untestable", None, "skipped"),
}


@dataclass(frozen=True)
class Waiting:
    """Nothing can be said before there is a mark of this kind."""

    missing: str


@dataclass(frozen=True)
class Next:
    """Try this candidate. `left` may still be tried, it among them; `steps`: the most needed."""

    candidate: Candidate
    left: int
    steps: int


Step = Waiting | Next | Found | Same


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
        verdict=_RULE.name,
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


# -- marks -----------------------------------------------------------------------------------------


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


def verdicts(record: Record) -> dict[str, str]:
    """The marks in force: verdicts by candidate id."""
    return {mark.candidate: mark.verdict for mark in record.marks}


# -- the search ------------------------------------------------------------------------------------


def step(record: Record) -> Step:
    """What comes next, or what was found."""
    candidates, said = record.header.candidates, verdicts(record)
    ids = [each.id for each in candidates]
    seen = {each: [_SAID[verdict]] for each, verdict in said.items()}
    good = [place for place, each in enumerate(ids) if said.get(each) == "good"]
    bad = [place for place, each in enumerate(ids) if said.get(each) == "bad"]
    if not bad:
        return Waiting("a bad" if good else "a good and a bad")
    if not good:
        return _back(candidates, ids[: bad[0] + 1], seen)
    left, right = good[-1], bad[0]
    inside = ids[left : right + 1]
    found = probing.next_steps(inside, seen, _RULE, _POLICY)
    if isinstance(found, probing.Batch):
        most = probing.probes_left(inside, seen, _RULE, _POLICY)
        return _next(candidates, left + found.tries[0].position, inside, seen, most)
    assert isinstance(found, Found)  # the two ends differ
    return Found(found.answer.shifted(left), found.notes)


def _back(candidates: Sequence[Candidate], ids: Sequence[str], seen: probing.Seen) -> Step:
    """Without a good candidate: back from the first bad one, in doubling steps."""
    found = gallop.next_steps(ids, seen, _RULE, _POLICY)
    if isinstance(found, probing.Batch):
        most = gallop.probes_left(ids, seen, _RULE, _POLICY)
        return _next(candidates, found.tries[0].position, ids, seen, most)
    assert isinstance(found, Same | EndsFailure)  # nothing is good
    return Same("no candidate before the bad ones is good")


def _next(
    candidates: Sequence[Candidate], place: int, ids: Sequence[str], seen: probing.Seen, most: int
) -> Next:
    return Next(candidates[place], sum(each not in seen for each in ids), max(most, 1))


# -- as JSON and text ------------------------------------------------------------------------------

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
    said = verdicts(record)
    good = [each.label for each in record.header.candidates if said.get(each.id) == "good"]
    bad = [each.label for each in record.header.candidates if said.get(each.id) == "bad"]
    return (good[-1] if good else None), (bad[0] if bad else None)


# -- log and replay --------------------------------------------------------------------------------


def log(record: Record) -> list[str]:
    """Lines that `replay` (or a shell) brings to the same state: comments and commands."""
    header = record.header
    labels = {each.id: each.label for each in header.candidates}
    lines = [
        f"# begun {header.created} in {header.workdir}: "
        f"{wording.counted(len(header.candidates), 'candidate')}",
        shlex.join(header.again),
    ]
    for mark in record.marks:
        noted = ["--note", mark.note] if mark.note else []
        lines.append(shlex.join(["stackbisect", mark.verdict, *noted, labels[mark.candidate]]))
    return lines


@dataclass(frozen=True)
class Line:
    """One command of a log that is replayed. `words` are without the program's name."""

    number: int
    words: tuple[str, ...]


def read_log(path: Path) -> list[Line]:
    """The commands in a log: `start` first, then marks. Raises UsageError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UsageError(f"{path}: cannot be read: {reason}") from error
    lines = []
    for number, raw in enumerate(text.splitlines(), start=1):
        try:
            program, *words = shlex.split(raw, comments=True) or [""]
        except ValueError as error:
            raise UsageError(f"{path}, line {number}: {error}") from error
        if not program:
            continue
        expected = ("start",) if not lines else (*VERDICTS, "unmark")
        if program != "stackbisect" or not words or words[0] not in expected:
            raise UsageError(
                f"{path}, line {number}: expected `stackbisect {' | '.join(expected)} ...`, "
                f"found {raw.strip()!r}; `stackbisect log` writes such files"
            )
        lines.append(Line(number, tuple(words)))
    if not lines:
        raise UsageError(f"{path}: expected a log that begins with `stackbisect start`, found none")
    return lines


# -- which one is worked on ------------------------------------------------------------------------

_CURRENT = ".by-hand"


def current(root: Path) -> str:
    """The name of the bisection by hand that is worked on in this folder. Raises UsageError."""
    try:
        name = (root / _CURRENT).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        name = ""
    if not name or not journal.exists(root / name):
        raise UsageError(
            "no bisection by hand is under way here: begin one with `stackbisect start`, or name "
            "one with --name"
        )
    return name


def set_current(root: Path, name: str | None) -> None:
    """Remember which one is worked on; None: none is."""
    if name is None:
        (root / _CURRENT).unlink(missing_ok=True)
        return
    replace_text(root / _CURRENT, name + "\n")
