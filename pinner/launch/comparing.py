"""Compares what two runs left: two traces, two run folders, or the evidence of two lockfiles."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pinner.compare import evidence, resume
from pinner.compare.evidence import Difference
from pinner.compare.locks import compare_locked
from pinner.compare.trace import TraceError, is_trace
from pinner.compare.traces import compare_traces
from pinner.launch import judge, session_dir
from pinner.launch.collect import Run, collect
from pinner.launch.session_dir import SessionError
from pinner.lockfile.codec import read_lock
from pinner.lockfile.errors import LedgerError, LockError

Say = Callable[[str], None]
Sides = tuple[Path, Path]
Kind = Literal["trace", "run", "lock"]

UNREADABLE = 65
_KINDS: Mapping[Kind, str] = {"trace": "a trace", "run": "the folder of a run", "lock": "a lock"}
_SHOWN = 8  # differences that are listed
_NAMES = ("A", "B")


@dataclass(frozen=True)
class Options:
    """jobs: how many ranks are compared at one time."""

    jobs: int = 1


@dataclass(frozen=True)
class Outcome:
    """What came of it. text is for people, its first line is the answer; json is for programs."""

    exit: int
    text: str
    json: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return dict(self.json)


def default_jobs() -> int:
    """As many as this process may use cores."""
    return len(os.sched_getaffinity(0))


def compare(a: Path, b: Path, options: Options, say: Say) -> Outcome:
    """Compares two things of one kind. Exit: 0 equal, 1 differ, 2 cannot be compared or nothing to
    compare, 65 unreadable."""
    try:
        kinds = _kind(a), _kind(b)
        for name, kind in zip(_NAMES, kinds, strict=True):
            if kind not in _KINDS:
                return _not("inactive", f"{name}: {kind}", a, b)
        if kinds[0] != kinds[1]:
            return _not("kinds", _mixed(kinds), a, b)
        if kinds[0] == "trace":
            say(f"comparing traces {a} and {b}")
            report = compare_traces(a, b, jobs=options.jobs)
            return Outcome(report.exit, report.text(), report.to_json())
        return _runs(a, b) if kinds[0] == "run" else _locks(a, b)
    except (TraceError, LedgerError, LockError, SessionError) as error:
        return _outcome(UNREADABLE, "unreadable", [str(error)], (a, b))


def _kind(path: Path) -> str:
    """What is there: one of `_KINDS`, or the reason why it is none of these."""
    if path.is_file():
        return "lock"
    if not path.is_dir():
        return f"there is nothing at {path}: no baseline yet, so nothing was compared; record one"
    if is_trace(path):
        return "trace"
    if (path / "session.json").is_file():
        return "run"
    inner = sorted(found.parent.name for found in path.glob("*/session.json"))
    if inner:
        return f"{path} holds several runs; name one of them: {', '.join(inner)}"
    return f"{path} is neither a trace nor the folder of a run: nothing was compared"


def _mixed(kinds: Sequence[str]) -> str:
    names = [text for kind in kinds for known, text in _KINDS.items() if known == kind]
    text = f"A is {names[0]} and B is {names[1]}: give two of one kind"
    if set(kinds) == {"lock", "run"}:
        text += (
            "; `pinner enforce --verify` and `pinner check LOCK --session FOLDER` compare a run "
        )
        text += "with a lock"
    return text


def _not(reason: str, text: str, a: Path, b: Path) -> Outcome:
    line = f"inactive: {text}" if reason == "inactive" else f"A and B cannot be compared: {text}"
    status = "inactive" if reason == "inactive" else "incomparable"
    return _outcome(judge.NOTHING, status, [line], (a, b), reason=reason)


def _outcome(
    code: int, status: str, lines: Sequence[str], sides: Sides, *, reason: str = "", **more: Any
) -> Outcome:
    a, b = sides
    fields = {"exit": code, "status": status, "text": lines[0], "a": str(a), "b": str(b)}
    text = "\n".join([*lines, *([] if code == UNREADABLE else [f"A = {a}", f"B = {b}"])])
    return Outcome(code, text, {**fields, "reason": reason or None, **more})


def _runs(a: Path, b: Path) -> Outcome:
    runs = [collect(session_dir.read(path)) for path in (a, b)]
    found = [run.evidence() for run in runs]
    for name, one in zip(_NAMES, found, strict=True):
        if one.empty:
            return _not("no-evidence", f"{name} left no evidence: {judge.WAYS}", a, b)
    algorithms = [evidence.algorithms(one) for one in found]
    if all(algorithms) and not algorithms[0] & algorithms[1]:
        names = (", ".join(sorted(each)) for each in algorithms)
        text = "A has digests by {}, B by {}: they say nothing about each other".format(*names)
        return _not("algorithm", text, a, b)
    notes = [line for name, run in zip(_NAMES, runs, strict=True) for line in _notes(name, run)]
    resumed = _resumed(runs)
    if resumed is not None:
        return _after_the_restore(resumed, notes, (a, b))
    differences = evidence.compare(*found)
    refused = judge.evidence_refusal(found[0], "first")
    if not differences and refused is not None:
        return _not(refused.status, refused.text, a, b)
    places = [(s, rank) for s, ranks in found[0].streams.items() for rank in ranks]
    steps = sum(len(found[0].streams[stream][rank]) for stream, rank in places)
    same = f"{steps} steps in {len(found[0].streams)} streams"
    return _judged(differences, same, (), notes, (a, b))


@dataclass(frozen=True)
class _Resumed:
    """Two runs of `pinner verify --resume`: which of them went on from which checkpoint."""

    name: str
    at: int
    findings: resume.Findings


def _resumed(runs: Sequence[Run]) -> _Resumed | None:
    """A whole run beside one that was restored, as `pinner verify --resume --dir` leaves them.

    Each counts its steps from 0, so they are paired as the verification pairs them.
    """
    ledgers = [[(each.process.rank, tuple(each.lines())) for each in run.ledgers] for run in runs]
    a, b = (resume.looked_at(lines for _, lines in each) for each in ledgers)
    if a is None or b is None or a[1] == b[1]:
        return None
    at = a[0] or b[0]
    if at is None or {a[0], b[0]} - {at, None}:
        return None
    told = [resume.by_rank(each, at) for each in ledgers]
    if b[1]:
        return _Resumed(_NAMES[1], at, resume.compare(told[0], {}, told[1]))
    findings = resume.compare(told[1], {}, told[0])
    turned = tuple(replace(d, first=d.second, second=d.first) for d in findings.differences)
    return _Resumed(_NAMES[0], at, replace(findings, differences=turned))


def _after_the_restore(resumed: _Resumed, notes: Sequence[str], sides: Sides) -> Outcome:
    findings = resumed.findings
    steps = sum(findings.compared.values())
    if not steps and not findings.differences:
        return _not("no-evidence", "neither left a step after the restore", *sides)
    same = f"{steps} steps in {len({stream for stream, _ in findings.compared})} streams"
    note = f"{resumed.name} goes on from checkpoint {resumed.at}: compared from there, at the same"
    return _judged(findings.differences, same, (), [f"{note} steps", *notes], sides)


def _notes(name: str, run: Run) -> list[str]:
    refused = judge.own_refusal(run)
    notes = [f"{name} is not a run to rely on: {refused.text}"] if refused is not None else []
    worthless = evidence.constant(run.evidence())
    if worthless:
        streams = ", ".join(map(repr, worthless))
        notes.append(f"{name}: {streams} never changed, so agreement on it shows nothing")
    return notes


def _locks(a: Path, b: Path) -> Outcome:
    locks = [read_lock(path) for path in (a, b)]
    for name, lock in zip(_NAMES, locks, strict=True):
        if not lock.evidence.streams:
            return _not("no-evidence", f"{name} keeps no evidence: seal it first", a, b)
    found = compare_locked(locks[0].evidence, locks[1].evidence)
    if not found.steps and not found.differences:
        return _not("nothing", "; ".join(found.partly), a, b)
    notes = [
        f"{name} is a draft: no validating run has shown its evidence again"
        for name, lock in zip(_NAMES, locks, strict=True)
        if not lock.run.sealed
    ]
    notes.append(f"their choices: `pinner diff {a} {b}`")
    same = f"{found.steps} steps of the evidence they keep"
    return _judged(found.differences, same, found.partly, notes, (a, b))


def _judged(
    differences: Sequence[Difference],
    same: str,
    partly: Sequence[str],
    notes: Sequence[str],
    sides: Sides,
) -> Outcome:
    if differences:
        code, status = judge.DIFFERS, "differ"
        first = evidence.describe(differences[0], _NAMES)
        lines = [f"A and B differ: first in {first}"]
        lines += [f"  {evidence.describe(d, _NAMES)}" for d in differences[1:_SHOWN]]
        if len(differences) > _SHOWN:
            lines.append(f"  and {len(differences) - _SHOWN} more streams and ranks")
        lines.append("next: trace both with `pinner trace`, and compare the traces")
    elif partly:
        code, status = judge.NOTHING, "incomplete"
        lines = [f"A and B are equal as far as both go ({same}), but not all could be compared"]
    else:
        code, status, lines = judge.DONE, "equal", [f"A and B are equal: {same}"]
    lines += [f"not compared: {line}" for line in partly]
    lines += [f"note: {line}" for line in notes]
    return _outcome(
        code,
        status,
        lines,
        sides,
        differences=[difference.to_json() for difference in differences],
        uncompared=list(partly),
        notes=list(notes),
    )
