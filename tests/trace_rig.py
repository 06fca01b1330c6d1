"""Traces code in the test's own process, or a program under injection, and reads the logs."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.session_rig import REPO, SessionRig

Event = dict[str, Any]


def read_log(path: Path) -> list[Event]:
    """The lines of one log; a last line that was torn by a kill is left out."""
    lines = path.read_text().split("\n")
    return [json.loads(line) for line in lines[:-1]]


def read_logs(folder: Path) -> dict[str, list[Event]]:
    """The logs of a trace, by their names below the folder."""
    paths = sorted(folder.glob("rank-*/*.jsonl"))
    return {str(path.relative_to(folder)): read_log(path) for path in paths}


def events_of(lines: list[Event], *kinds: str) -> list[Event]:
    """The events among the lines of a log, of some kinds or all."""
    return [line for line in lines if "e" in line and (not kinds or line["e"] in kinds)]


def label(event: Event) -> tuple[Any, ...]:
    """What names an event within its rank."""
    return event["e"], event["n"], event["i"], event.get("m", ""), event["p"], event["s"]


def digests(event: Event, side: str) -> list[Any]:
    """Path and digest of the tensors of one side."""
    return [(tensor[0], tensor[1]) for tensor in event[side]]


def first_difference(left: list[Event], right: list[Event]) -> Event | None:
    """The first event, in the order of execution, whose digests differ; None where all agree.

    A simple comparison for programs that do the same in both runs. A digest that one side lacks
    shows nothing.
    """
    assert [label(event) for event in left] == [label(event) for event in right]
    for one, other in zip(left, right, strict=True):
        for side in ("in", "out"):
            for (_, a), (_, b) in zip(digests(one, side), digests(other, side), strict=True):
                if a is not None and b is not None and a != b:
                    return other
    return None


@dataclass
class Recording:
    """What one recorder wrote."""

    folder: Path
    recorder: Any = None
    lines: list[Event] = field(default_factory=list)

    def events(self, *kinds: str) -> list[Event]:
        """The events so far."""
        self.recorder.log.flush()
        logs = read_logs(self.folder)
        assert len(logs) <= 1
        return events_of(next(iter(logs.values()), []), *kinds)

    def ops(self, name: str) -> list[Event]:
        """The events of operations whose name begins so."""
        return [event for event in self.events("op") if event["n"].startswith(name)]

    def op(self, name: str) -> Event:
        """The one event of an operation."""
        (found,) = self.ops(name)
        return found


@contextlib.contextmanager
def recording(folder: Path, defer: bool = False, **fields: Any) -> Iterator[Recording]:
    """The mode of the level "ops" in this process, for a while. fields: as in a session's trace."""
    import torch
    from torch.utils import _python_dispatch as modes

    from pinner.inside.evidence.trace import ops
    from pinner.inside.evidence.trace.hashing import Hashing
    from pinner.inside.evidence.trace.log import Log
    from pinner.inside.evidence.trace.recorder import Recorder
    from pinner.inside.evidence.trace.settings import Settings

    log = Log(str(folder))
    hashing = Hashing(defer)
    if defer:
        log.settle = hashing.settle
    recorder = Recorder(torch, Settings({"folder": str(folder), **fields}), log, hashing)
    mode = ops.mode(recorder)  # held, as a traced process does: torch 2.4 crashes where the
    modes._push_mode(mode)  # stack drops the last reference
    try:
        yield Recording(folder, recorder)
    finally:
        modes._pop_mode()
        log.close()


class Program:
    """A program under injection, with a trace. What it left stands in `logs` and `evidence`."""

    def __init__(self, folder: Path, level: str | None = "ops", **fields: Any) -> None:
        self.trace = folder / "trace"
        asked = {"trace": {"folder": str(self.trace), "level": level, **fields}} if level else {}
        self.rig = SessionRig(folder / "session", **asked)
        self.done: Any = None

    def run(self, code: str, **environ: str) -> Program:
        """Run the program to its end; it must succeed."""
        self.done = self.rig.script(code, PYTHONPATH=str(REPO), **environ)
        assert self.done.returncode == 0, self.done.stderr
        return self

    def python(self, *words: str, **environ: str) -> Program:
        """Run Python with these words; it must succeed."""
        self.done = self.rig.python(*words, **{"PYTHONPATH": str(REPO), **environ})
        assert self.done.returncode == 0, self.done.stderr
        return self

    @property
    def logs(self) -> list[list[Event]]:
        """The lines of each process."""
        return list(read_logs(self.trace).values())

    @property
    def lines(self) -> list[Event]:
        """The lines of the only process."""
        (lines,) = self.logs
        return lines

    def events(self, *kinds: str) -> list[Event]:
        """The events of the only process."""
        return events_of(self.lines, *kinds)

    @property
    def evidence(self) -> list[tuple[str, int, str]]:
        """Stream, step and digest of the run's evidence."""
        return [(e["stream"], e["step"], e["digest"]) for e in self.rig.lines("evidence")]


def environment(**more: str) -> dict[str, str]:
    """The variables of a program that finds this repository."""
    return {**os.environ, "PYTHONPATH": str(REPO), **more}
