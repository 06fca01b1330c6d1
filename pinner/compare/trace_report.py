"""Says what a comparison of traces found: for someone on call, and as JSON. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pinner.compare import detail as details
from pinner.compare import trace_bytes, trace_choices
from pinner.compare import trace_reading as reading_of
from pinner.compare.trace import LEVELS, Event
from pinner.compare.trace_bytes import Figures
from pinner.compare.trace_findings import (
    Incomparable,
    RankFinding,
    Sides,
    call,
    many,
    short,
    where,
)
from pinner.compare.trace_pair import Mismatch, TensorDiff
from pinner.compare.trace_words import in_words

EQUAL, DIFFERS, INCOMPARABLE = 0, 1, 2
_TENSORS = 3  # of one event that are shown


@dataclass(frozen=True)
class Report:
    """What came of a comparison.

    head: where the runs part first over all ranks. missing: what only one trace has as a whole.
    warnings: why the answer may not hold for the untraced runs. notes: what else differs in how the
    two came about. figures: what kept bytes say of the tensors of the first mismatch.
    """

    sides: Sides
    ranks: tuple[RankFinding, ...] = ()
    head: RankFinding | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    figures: tuple[Figures, ...] = ()
    incomparable: Incomparable | None = None

    @property
    def exit(self) -> int:
        """0 equal, 1 differ, 2 cannot be compared, or only in part and equal there."""
        if self.incomparable is not None:
            return INCOMPARABLE
        if self.head is not None:
            return DIFFERS
        return INCOMPARABLE if self.uncompared else EQUAL

    @property
    def status(self) -> str:
        """One word for programs."""
        if self.incomparable is not None:
            return "incomparable"
        if self.head is not None:
            return "differ"
        return "incomplete" if self.uncompared else "equal"

    @property
    def events(self) -> int:
        """How many events were compared."""
        return sum(finding.walk.events for finding in self.ranks)

    @property
    def uncompared(self) -> tuple[str, ...]:
        """Why equal bits in what both have would not show that the runs are equal."""
        lost = [line for finding in self.ranks for line in finding.lost]
        alone = sum(
            sum(finding.walk.only) - (sum(finding.walk.tail) if finding.lost else 0)
            for finding in self.ranks
        )
        if alone > self.events:
            lost.append(
                f"{many(alone, 'event')} have no partner, more than the {self.events} that have: "
                "these are not two runs of one program"
            )
        return (*self.missing, *lost)

    def text(self) -> str:
        """The report for people; the first line is the answer."""
        return "\n".join(_lines(self))

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        return {
            "exit": self.exit,
            "status": self.status,
            "text": _answer(self),
            "a": str(self.sides.first.path),
            "b": str(self.sides.second.path),
            "reason": self.incomparable.reason if self.incomparable else None,
            "events": self.events,
            "first": _finding_json(self.head, self) if self.head else None,
            "bytes": [each.to_json() for each in self.figures],
            "ranks": [_rank_json(finding) for finding in self.ranks],
            "uncompared": list(self.uncompared),
            "warnings": list(self.warnings),
            "notes": list(self.notes),
            "next": next_command(self),
        }


def _answer(report: Report) -> str:
    if report.incomparable is not None:
        return f"A and B cannot be compared: {report.incomparable.text}"
    if report.head is not None:
        finding = report.head
        event, mismatch = finding.event, report.head.mismatch
        assert mismatch is not None
        diff = (mismatch.outs or mismatch.ins)[0]
        if finding.reading is not None and finding.reading.kind in _READ_BY_INPUT:
            diff = mismatch.diffs[0]
        return (
            f"A and B differ: first in step {event.step}{_rank(', ', finding.rank)}, "
            f"{where(event)}: {call(event)}, {diff.side} {diff.path}"
        )
    same = f"{many(report.events, 'event')} of {_ranks(report)}{_steps(report)}"
    if report.uncompared:
        return f"A and B are equal as far as both go ({same}), but not all could be compared"
    return f"A and B are equal: {same}"


_READ_BY_INPUT = (
    reading_of.UNTRACED,
    reading_of.DOWNSTREAM,
    reading_of.OUTSIDE,
    reading_of.ASYNC,
)


def _lines(report: Report) -> Iterator[str]:
    yield _answer(report)
    yield from (f"WARNING: {warning}" for warning in report.warnings)
    if report.head is not None:
        yield from _chain(report.head)
        yield from trace_bytes.lines(report.figures)
        yield f"reading: {in_words(report.head, report.ranks)}"
        yield from _choices(report.head)
        yield from _later(report)
    yield from (f"not compared: {line}" for line in report.uncompared)
    if report.incomparable is None:
        yield from _alone(report)
        yield from _unhashed(report)
        yield from _same_bits(report)
    yield from (f"note: {note}" for note in report.notes)
    command = next_command(report)
    if command is None and report.head is not None:
        yield "next: nothing finer can be traced; this call is the one to reproduce alone"
    if command is not None:
        yield f"next, once for each side: {command}"
    yield from report.sides.names.splitlines()


def _chain(finding: RankFinding) -> Iterator[str]:
    mismatch, read = finding.mismatch, finding.reading
    assert mismatch is not None
    rank = finding.rank
    if read is not None and read.writers[0] is not None:
        yield f"  {_place(read.writers[0], rank)}  (last writer seen in A)"
    if read is not None and read.writers[1] is not None and _differ(*read.writers):
        yield f"  {_place(read.writers[1], rank)}  (last writer seen in B)"
    event, second = mismatch.first, mismatch.second
    renamed = f"; in B {call(second)}" if second.label != event.label else ""
    yield f"  {_place(event, rank)}{renamed}"
    if not mismatch.ins and mismatch.inputs:
        yield f"    inputs    {'equal' if mismatch.hashed else 'equal where they were hashed'}"
    shown = [*mismatch.ins[:_TENSORS], *mismatch.outs[:_TENSORS]]
    yield from (f"    {_tensor(diff)}" for diff in shown)
    detail = details.where(event.extra, second.extra)
    if detail:
        yield f"    {detail}"
    if len(mismatch.diffs) > len(shown):
        yield f"    and {len(mismatch.diffs) - len(shown)} more of this call"
    for later in finding.walk.mismatches[1:3]:
        yield f"  then {_place(later.first, rank)}"


def _place(event: Event, rank: int | None) -> str:
    return f"step {event.step}{_rank('  ', rank)}  {where(event)}  {call(event)}"


def _rank(before: str, rank: int | None) -> str:
    """A rank in a line; nothing where the process had none."""
    return "" if rank is None else f"{before}rank {rank}"


def _differ(first: Event | None, second: Event | None) -> bool:
    return first is None or second is None or first.group != second.group


def _tensor(diff: TensorDiff) -> str:
    first, second = diff.first, diff.second
    kind = _shape(first.dtype, first.shape)
    other = _shape(second.dtype, second.shape)
    both = kind if kind == other else f"{kind} in A, {other} in B"
    return f"{diff.side:<6} {diff.path}  {both}  {short(first.digest)} | {short(second.digest)}"


def _shape(dtype: str, shape: Sequence[int]) -> str:
    return f"{dtype}[{', '.join(map(str, shape))}]"


def _choices(finding: RankFinding) -> Iterator[str]:
    """Calls of a library that took another algorithm, no later than the runs part."""
    before = [each for each in finding.walk.choices if each.first.line <= finding.event.line]
    if not before or before[0].first is finding.event:
        return
    of = trace_choices.operation(before[0].first)
    inside = f", in {of}" if of else ""
    yield (
        f"before it cuBLASLt took another algorithm: {_place(before[0].first, finding.rank)}"
        f"{inside}: {trace_choices.both(before[0])}"
        + (f"; and {len(before) - 1} more" if len(before) > 1 else "")
    )


def _same_bits(report: Report) -> Iterator[str]:
    """Other algorithms that were found in runs whose bits agree."""
    chosen = sum(finding.walk.chosen for finding in report.ranks)
    if chosen and report.head is None:
        first = next(finding for finding in report.ranks if finding.walk.choices)
        choice = first.walk.choices[0]
        yield (
            f"note: cuBLASLt took another algorithm in {many(chosen, 'call')}, and what was "
            f"compared is equal all the same; first {_place(choice.first, first.rank)}: "
            f"{trace_choices.both(choice)}"
        )


def _later(report: Report) -> Iterator[str]:
    assert report.head is not None
    here = report.head.walk.differing - 1
    parts = [f"{many(here, 'mismatch')}{_rank(' on ', report.head.rank)}"] if here else []
    for finding in report.ranks:
        if finding is not report.head and finding.walk.differing:
            event = finding.event
            parts.append(
                f"{many(finding.walk.differing, 'mismatch')}{_rank(' on ', finding.rank)} "
                f"(first in step {event.step}, {where(event)}: {call(event)})"
            )
    yield "later: " + ("; ".join(parts) or "no other mismatch")


def _alone(report: Report) -> Iterator[str]:
    for side, name in enumerate("AB"):
        count = sum(finding.walk.only[side] for finding in report.ranks)
        if not count:
            continue
        events = [e for finding in report.ranks for e in finding.walk.examples[side]][:3]
        shown = "; ".join(f"{call(e)} in {where(e)}, step {e.step}" for e in events)
        yield f"only in {name}: {many(count, 'event')}: {shown}" + (
            "; …" if count > len(events) else ""
        )


def _unhashed(report: Report) -> Iterator[str]:
    """Where much was not compared, that is said; a few empty tensors are in every run."""
    counts = [sum(finding.walk.unhashed[side] for finding in report.ranks) for side in (0, 1)]
    if max(counts) * 10 > report.events:
        yield (
            f"not hashed: {many(counts[0], 'tensor')} in A, {counts[1]:,} in B (not written yet, "
            "on their way, or captured): what these held was not compared"
        )


def next_command(report: Report) -> str | None:
    """The trace that looks closer at the first mismatch; None where nothing looks closer."""
    if report.head is None or report.head.reading is None:
        return None
    if report.head.event.kind == "kernel" and report.head.reading.kind == reading_of.ORIGIN:
        return None
    event, read, log = report.head.event, report.head.reading, report.head.first
    level = log.level if log.level in LEVELS else "ops"
    finer = LEVELS[min(LEVELS.index(level) + 1, len(LEVELS) - 1)]
    first, modules = event.step, {event.module} - {""}
    if read.kind == reading_of.OUTSIDE:
        first = 0 if log.window.first is None else max(0, min(event.step, log.window.first) - 1)
        modules = set()
        finer = finer if level in ("steps", "modules") else level
    elif read.kind in (reading_of.RESULT, reading_of.ARRIVED, reading_of.STATE):
        modules = set()
        finer = finer if read.kind == reading_of.RESULT else max(level, "ops", key=LEVELS.index)
    else:
        writers = [writer for writer in read.writers if writer is not None]
        first = min([event.step, *(writer.step for writer in writers)])
        scopes = [event.module, *(writer.module for writer in writers)]
        modules = set(scopes) if all(scopes) else set()
    command = report.sides.first.command
    words = ["pinner", "trace", "-o", "DIR", "--level", finer]
    words += ["--from-step", str(first), "--to-step", str(event.step)]
    if modules:
        names = "|".join(re.escape(module) for module in sorted(modules))
        words += ["--modules", f"^({names})" if len(modules) > 1 else f"^{names}"]
    return shlex.join([*words, "--", *command]) + ("" if command else " CMD")


def _ranks(report: Report) -> str:
    count = len({finding.rank for finding in report.ranks})
    return "1 rank" if count == 1 else f"{count} ranks"


def _steps(report: Report) -> str:
    steps = [finding.walk.steps for finding in report.ranks if finding.walk.steps]
    if not steps:
        return ""
    first, last = min(a for a, _ in steps), max(b for _, b in steps)
    return f", step {first}" if first == last else f", steps {first} to {last}"


def _event_json(event: Event | None) -> dict[str, Any] | None:
    if event is None:
        return None
    return {
        "kind": event.kind,
        "name": event.name,
        "nth": event.nth,
        "module": event.module,
        "phase": event.phase,
        "step": event.step,
        "order": event.order,
        "line": event.line,
    }


def _mismatch_json(mismatch: Mismatch) -> dict[str, Any]:
    return {
        "event": _event_json(mismatch.first),
        "event_b": _event_json(mismatch.second),
        "tensors": [
            {
                "side": diff.side,
                "path": diff.path,
                "digest": [diff.first.digest, diff.second.digest],
                "dtype": [diff.first.dtype, diff.second.dtype],
                "shape": [list(diff.first.shape), list(diff.second.shape)],
            }
            for diff in mismatch.diffs
        ],
    }


def _finding_json(finding: RankFinding, report: Report | None = None) -> dict[str, Any] | None:
    if finding.mismatch is None or finding.reading is None:
        return None
    return {
        "rank": finding.rank,
        **_mismatch_json(finding.mismatch),
        "reading": finding.reading.kind,
        "tensor": finding.reading.tensor,
        "last_writers": [_event_json(writer) for writer in finding.reading.writers],
        **({"words": in_words(finding, report.ranks)} if report is not None else {}),
    }


def _choice_json(choice: trace_choices.Choice) -> dict[str, Any]:
    return {
        "event": _event_json(choice.first),
        "op": trace_choices.operation(choice.first),
        "algorithms": [choice.first.extra.get("config"), choice.second.extra.get("config")],
        "words": trace_choices.both(choice),
    }


def _rank_json(finding: RankFinding) -> dict[str, Any]:
    found = finding.walk
    return {
        "rank": finding.rank,
        "logs": [str(finding.first.path), str(finding.second.path)],
        "events": found.events,
        "mismatches": found.differing,
        "only": list(found.only),
        "unhashed": list(found.unhashed),
        "ended": list(found.ended),
        "other_algorithms": [_choice_json(each) for each in found.choices],
        "steps": list(found.steps) if found.steps else None,
        "first": _finding_json(finding),
    }
