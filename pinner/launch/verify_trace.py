"""The two ends of a chase on the real thing: a traced run, and the comparison of two traces."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from pinner.compare import trace_bytes
from pinner.compare.trace import TraceError
from pinner.compare.trace_report import Report
from pinner.compare.traces import compare_traces
from pinner.launch import judge
from pinner.launch.collect import Run
from pinner.launch.verify_chase import Incomparable, Level, Sighting, Window
from pinner.launch.verify_run import Runs


def trace(
    runs: Runs,
    name: str,
    level: Level,
    window: Window,
    keep: int | None = None,
    *,
    look: Callable[[Run], None] | None = None,
) -> Path | Incomparable:
    """Runs the command once more under tracing; why there is no trace where that run failed.

    keep: how many bytes of tensors are kept for each rank; None where none are. look: is shown the
    run.
    """
    folder = runs.folder / "traces" / name
    folder.mkdir(parents=True)
    run = runs.run(
        f"trace-{name}",
        trace={
            "folder": str(folder.absolute()),
            "level": level,
            "from": window.first,
            "to": window.last,
            "modules": window.modules,
            "keep": keep,
        },
    )
    refused = judge.own_refusal(run)
    if refused is None:
        if look is not None:
            look(run)
        return folder
    return Incomparable(refused.text.replace("; nothing was sealed", ""))


def compare(first: Path, second: Path) -> Sighting | Incomparable | None:
    """Where two traces part first, over all ranks; None where they do not."""
    try:
        return sighting(compare_traces(first, second, jobs=len(os.sched_getaffinity(0))))
    except TraceError as error:
        return Incomparable(str(error))


def sighting(report: Report) -> Sighting | Incomparable | None:
    """What a report says, in the words of a chase."""
    if report.incomparable is not None:
        return Incomparable(report.incomparable.text, report.incomparable.reason == "nothing")
    if report.head is None and report.exit == 2:  # equal as far as both go, which is not far enough
        return Incomparable("; ".join(report.uncompared))
    if report.head is None:
        return None
    event, mismatch = report.head.event, report.head.mismatch
    return Sighting(
        rank=report.head.rank,
        step=event.step,
        kind=event.kind,
        name=event.name,
        module=event.module,
        began_here=mismatch is None or not mismatch.ins,
        reading=_reading(report.text()),
        figures=tuple(trace_bytes.lines(report.figures)),
    )


def _reading(text: str) -> str:
    """The line of a report that says what was found: origin, downstream, not traced."""
    prefix = "reading: "
    lines = (line for line in text.splitlines() if line.startswith(prefix))
    return next(lines, "").removeprefix(prefix)
