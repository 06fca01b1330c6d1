"""Compares two traces, the ranks side by side in processes, and finds where they part first."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from pinner.compare import trace_bytes, trace_reading
from pinner.compare.trace import LEVELS, Event, Log, Scope, Trace, Window, read_trace
from pinner.compare.trace_align import LIMITS, Limits
from pinner.compare.trace_bytes import Figures
from pinner.compare.trace_findings import (
    Incomparable,
    RankFinding,
    Sides,
    ranks_text,
    window_text,
)
from pinner.compare.trace_reading import ARRIVED
from pinner.compare.trace_report import Report
from pinner.compare.trace_walk import walk


def compare_traces(a: Path, b: Path, *, jobs: int, limits: Limits = LIMITS) -> Report:
    """Compares the traces in two folders. Raises `TraceError` for a damaged one.

    jobs: how many ranks at one time; 1 compares them in this process.
    """
    first, second = read_trace(a), read_trace(b)
    sides = Sides(first, second)
    obstacle = _obstacle(first, second)
    if obstacle is not None:
        return Report(sides, incomparable=obstacle)
    pairs = [pair for rank in first.ranks for pair in _pairs(rank, first, second)]
    found = _each(pairs, jobs, limits)
    head = _head([finding for finding in found if finding.mismatch is not None])
    report = Report(
        sides,
        ranks=tuple(found),
        head=head,
        figures=_figures(head),
        notes=(*_notes(first, second, pairs), *_unseeded(found)),
        warnings=tuple(_warnings(first, second)),
        missing=tuple(_missing(first, second)),
    )
    if report.head is None and not any(finding.walk.hashed for finding in found):
        return Report(sides, incomparable=_nothing(first, second))
    return report


@dataclass(frozen=True)
class _Pair:
    """Two logs of one rank. scope: what both had to see; None where that is everything."""

    rank: int | None
    first: Log
    second: Log
    scope: Scope | None = field(default=None)


def _obstacle(first: Trace, second: Trace) -> Incomparable | None:
    """Why two traces have nothing in common; None where they have something."""
    for name, trace in (("A", first), ("B", second)):
        if not trace.ranks:
            return Incomparable(
                "nothing",
                f"{name} ({trace.path}) holds no events: nothing was traced there"
                + (f" ({trace.why})" if trace.why else ""),
            )
    known = first.world is not None and second.world is not None
    if known and first.world != second.world:
        return Incomparable(
            "world",
            f"A ran with world size {first.world}, B with {second.world}: each rank did other "
            "work; trace both with one layout",
        )
    common = [rank for rank in first.ranks if rank in second.ranks]
    if not common:
        return Incomparable(
            "ranks",
            f"no rank is in both: A has {ranks_text(first.ranks)}, "
            f"B has {ranks_text(second.ranks)}",
        )
    logs = [log for trace in (first, second) for rank in common for log in trace.ranks[rank]]
    algorithms = sorted({log.algorithm for log in logs})
    if len(algorithms) > 1:
        return Incomparable(
            "algorithm",
            f"digests of different algorithms ({', '.join(algorithms)}) say nothing about each "
            "other: trace both with one version of pinner",
        )
    here, there = (trace.ranks[common[0]][0].window for trace in (first, second))
    if here.common(there) is None:
        return Incomparable(
            "window",
            f"no step is in both: A was traced {window_text(here)}, B {window_text(there)}",
        )
    return None


def _nothing(first: Trace, second: Trace) -> Incomparable:
    return Incomparable(
        "nothing",
        f"no event with a digest is in both (levels {first.level or '?'} and "
        f"{second.level or '?'}): nothing was compared; trace both again with one level and window",
    )


def _pairs(rank: int | None, first: Trace, second: Trace) -> list[_Pair]:
    """Which process of a rank is which: those that begin alike, else in order of time."""
    here, there = list(first.ranks[rank]), list(second.ranks.get(rank, ()))
    pairs = []
    heads = (
        {log.path: _beginning(log) for log in (*here, *there)} if len(here) + len(there) > 2 else {}
    )
    for log in here:
        if not there:
            break
        alike = [_common(heads.get(log.path, ()), heads.get(other.path, ())) for other in there]
        other = there.pop(alike.index(max(alike)))
        pairs.append(_Pair(rank, log, other, _scope(log, other)))
    return pairs


_BEGINNING = 64


def _beginning(log: Log) -> Sequence[object]:
    cursor = log.cursor()
    try:
        events = zip(range(_BEGINNING), cursor.events(), strict=False)
        return [(e.label, e.step, [row[1] for row in e.outs]) for _, e in events]
    finally:
        cursor.close()


def _common(first: Sequence[object], second: Sequence[object]) -> int:
    count = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        count += 1
    return count


def _scope(first: Log, second: Log) -> Scope | None:
    if first.level == second.level and first.window == second.window:
        return None
    window = first.window.common(second.window)
    levels = [LEVELS.index(log.level) for log in (first, second) if log.level in LEVELS]
    modules = {log.window.modules for log in (first, second)}
    return Scope(
        window or Window(),
        min(levels, default=len(LEVELS)),
        tuple(sorted(m for m in modules if m is not None and _valid(m)))
        if len(modules) > 1
        else (),
    )


def _valid(expression: str) -> bool:
    try:
        re.compile(expression)
    except re.error:
        return False
    return True


def _each(pairs: Sequence[_Pair], jobs: int, limits: Limits) -> list[RankFinding]:
    if jobs <= 1 or len(pairs) <= 1:
        return [_compare(pair, limits) for pair in pairs]
    # Forked: a program that calls this need not guard its main module against being run again.
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(min(jobs, len(pairs)), mp_context=context) as pool:
        return list(pool.map(_compare, pairs, [limits] * len(pairs)))


def _compare(pair: _Pair, limits: Limits) -> RankFinding:
    found = walk(pair.first, pair.second, pair.scope, limits)
    reading, place = None, 0
    if found.mismatches:
        mismatch = found.mismatches[0]
        reading = trace_reading.read(mismatch, pair.first, pair.second)
        place = mismatch.first.line - _begin(pair.first, mismatch.first)
    return RankFinding(pair.rank, pair.first, pair.second, found, reading, place)


def _begin(log: Log, event: Event) -> int:
    """The line at which the step of an event begins."""
    mark = re.compile(rb'"s": ?%d[,}]' % event.step).search
    cursor = log.cursor()
    try:
        while cursor.ahead is not None and cursor.line < event.line:
            if mark(cursor.ahead):
                return cursor.line
            cursor.advance()
        return event.line
    finally:
        cursor.close()


def _head(findings: Sequence[RankFinding]) -> RankFinding | None:
    """Where the runs part first, over all ranks: by step, then by place in the step.

    What arrived from another rank comes after what that rank did before it sent.
    """
    if not findings:
        return None
    arrived = [f for f in findings if f.reading is not None and f.reading.kind == ARRIVED]
    others = [f for f in findings if f not in arrived]
    if not others or not arrived:
        return min(findings, key=_order)
    own, other = min(others, key=_order), min(arrived, key=_order)
    if other.event.step != own.event.step:
        return min((own, other), key=_order)
    blamed = [f for f in others if f.event.step == own.event.step and not _after(f, other.event)]
    return min(blamed, key=_order) if blamed else other


def _figures(head: RankFinding | None) -> tuple[Figures, ...]:
    if head is None or head.mismatch is None:
        return ()
    return trace_bytes.figures(head.mismatch, head.first, head.second)


def _order(finding: RankFinding) -> tuple[int, int, int]:
    rank = finding.rank
    return finding.event.step, finding.place, -1 if rank is None else rank


def _after(finding: RankFinding, collective: Event) -> bool:
    """Whether a rank's first mismatch came after a collective that it took part in."""
    name = collective.name.encode()
    cursor = finding.first.cursor()
    try:
        while cursor.ahead is not None and cursor.line < finding.event.line:
            if name in cursor.ahead:
                event = cursor.event()
                if _same(event, collective):
                    return True
            cursor.advance()
        return False
    finally:
        cursor.close()


def _same(event: Event, other: Event) -> bool:
    return (event.label, event.step, event.nth) == (other.label, other.step, other.nth)


def _missing(first: Trace, second: Trace) -> Iterable[str]:
    """What one trace lacks that the other has, or that its world size asks for."""
    for name, trace, other in (("A", first, second), ("B", second, first)):
        lacks = [rank for rank in other.ranks if rank not in trace.ranks]
        if lacks:
            yield f"{name} has no log of {ranks_text(lacks)}"
    for rank in first.ranks:
        counts = len(first.ranks[rank]), len(second.ranks.get(rank, ()))
        if 0 < counts[1] != counts[0]:
            yield (
                f"{ranks_text([rank])}: A has the logs of {counts[0]} processes, B of {counts[1]}"
            )


def _unseeded(findings: Sequence[RankFinding]) -> Iterable[str]:
    for name in dict.fromkeys(name for finding in findings for name in finding.walk.unseeded):
        yield (
            f"the random number generator of {name} was never in the same state: it is not seeded; "
            "that alone is no mismatch, what is drawn from it would be"
        )


def _warnings(first: Trace, second: Trace) -> Iterable[str]:
    unknown = []
    for name, trace in (("A", first), ("B", second)):
        why = f" ({trace.why})" if trace.why else ""
        if trace.valid is False:
            yield (
                f"trace {name} is not valid{why}: tracing changed its bits, so that what is found "
                "here need not be what the untraced run does"
            )
        elif trace.valid is None:
            unknown.append(name + why)
    if unknown:
        yield f"not shown that tracing left the bits alone: {' and '.join(unknown)}"


def _notes(first: Trace, second: Trace, pairs: Sequence[_Pair]) -> Iterable[str]:
    ranks = {*first.ranks, *second.ranks}
    alone = first.world == 1 and None in ranks  # one process, which was given no rank
    untraced = [] if alone else [r for r in range(first.world or 0) if r not in ranks]
    if untraced:
        yield f"neither was traced on {ranks_text(untraced)}: what happened there is not known"
    if first.level != second.level:
        yield f"levels differ (A {first.level}, B {second.level}): only what both see is compared"
    windows = {(pair.first.window, pair.second.window) for pair in pairs}
    for here, there in sorted(windows, key=repr):
        if here != there:
            yield (
                f"windows differ (A {window_text(here)}, B {window_text(there)}): only what is in "
                "both is compared"
            )
    for library in ("torch", "numpy"):
        versions = {(getattr(p.first, library), getattr(p.second, library)) for p in pairs}
        for here_, there_ in sorted(versions):
            if here_ != there_:
                yield f"{library} {here_ or 'none'} in A, {there_ or 'none'} in B"
