"""Reads trace logs event by event, in constant memory; names file and line where one is damaged.

A trace is a folder: `trace.json` says what was traced, `rank-R/*.jsonl` is what each process saw,
one JSON object a line, and stays readable when the process is killed: a torn last line is left
out, damage anywhere else is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pinner.inside.faults import PinnerError

VERSION = 1
LEVELS = ("steps", "modules", "ops", "kernels")

# Kinds of events, and the coarsest level that has them; every level has the others.
_FROM_LEVEL = {"module": 1, "op": 2, "kernel": 3}
_EVENT = b'{"e":'
_LINE_END = b"}\n"
_BLOCK = 1 << 18

Label = tuple[str, str, str, str]  # kind, name, module scope, phase
Group = tuple[Label, int]  # and the step: what the invocation count counts
Rows = Sequence[Sequence[Any]]


class TraceError(PinnerError):
    """A trace that cannot be read. Commands end with 65."""


class Tensor(NamedTuple):
    """One tensor of an event. digest: None where it was not hashed. storage: None if unknown."""

    path: str
    digest: str | None
    dtype: str
    shape: tuple[int, ...]
    storage: int | None


class Event(NamedTuple):
    """One line of a log. `ins` and `outs` are as they stand there; `tensors` gives them types.

    nth: how often this label was seen in this step before. order: its running number. line: in
    the file.
    """

    label: Label
    step: int
    nth: int
    order: int
    ins: Rows
    outs: Rows
    extra: Mapping[str, Any]
    line: int

    @property
    def group(self) -> Group:
        return self.label, self.step

    @property
    def kind(self) -> str:
        return self.label[0]

    @property
    def name(self) -> str:
        return self.label[1]

    @property
    def module(self) -> str:
        return self.label[2]

    @property
    def phase(self) -> str:
        return self.label[3]


@dataclass(frozen=True)
class Window:
    """The part of a run that was traced: steps (None is open) and module scopes."""

    first: int | None = None
    last: int | None = None
    modules: str | None = None

    def common(self, other: Window) -> Window | None:
        """The steps in both; None where there are none. Scopes are matched by `Scope`."""
        first = max((n for n in (self.first, other.first) if n is not None), default=None)
        last = min((n for n in (self.last, other.last) if n is not None), default=None)
        if first is not None and last is not None and first > last:
            return None
        return Window(first, last, self.modules if self.modules == other.modules else None)


@dataclass(frozen=True)
class Scope:
    """Which events of two logs are in both, where level or window were different.

    finest: the place of the coarser level in `LEVELS`.
    """

    window: Window
    finest: int
    modules: tuple[str, ...] = ()

    def holds(self, event: Event) -> bool:
        """Whether both runs had to see this event."""
        if _FROM_LEVEL.get(event.kind, 0) > self.finest:
            return False
        if self.window.first is not None and event.step < self.window.first:
            return False
        if self.window.last is not None and event.step > self.window.last:
            return False
        return not event.module or all(re.search(m, event.module) for m in self.modules)


@dataclass(frozen=True)
class Log:
    """The log of one process. start: the offset of the line after the header."""

    path: Path
    rank: int | None
    world: int | None
    level: str
    window: Window
    algorithm: str
    torch: str
    numpy: str
    time: str
    start: int

    def cursor(self, scope: Scope | None = None) -> Cursor:
        """A new way through its events, from the first."""
        return Cursor(self, scope)


@dataclass(frozen=True)
class Trace:
    """What one traced run left. valid: None where nobody has shown that tracing kept the bits."""

    path: Path
    command: tuple[str, ...]
    level: str
    world: int | None
    valid: bool | None
    why: str
    ranks: Mapping[int | None, tuple[Log, ...]] = field(default_factory=dict)


def is_trace(folder: Path) -> bool:
    """Whether a folder is what `pinner trace` leaves."""
    return (folder / "trace.json").is_file() or any(folder.glob("rank-*/*.jsonl"))


def read_trace(folder: Path) -> Trace:
    """The trace in a folder; only the first line of each log is read. Raises `TraceError`."""
    meta = _meta(folder / "trace.json")
    ranks: dict[int | None, list[Log]] = {}
    for path in sorted(folder.glob("rank-*/*.jsonl")):
        log = _log(path)
        if log is not None:
            ranks.setdefault(log.rank, []).append(log)
    ordered = sorted(ranks, key=lambda rank: (rank is None, rank or 0))
    logs = {rank: tuple(sorted(ranks[rank], key=lambda log: log.time)) for rank in ordered}
    any_log = next((log for found in logs.values() for log in found), None)
    world = meta.get("world")
    command = meta.get("command")
    return Trace(
        path=folder,
        command=tuple(map(str, command)) if isinstance(command, list) else (),
        level=str(meta.get("level") or (any_log.level if any_log else "")),
        world=world if isinstance(world, int) else (any_log.world if any_log else None),
        valid=meta.get("valid") if isinstance(meta.get("valid"), bool) else None,
        why=str(meta.get("why") or ""),
        ranks=logs,
    )


def tensors(event: Event, rows: Rows, log: Log) -> dict[str, Tensor]:
    """Tensors of an event by path. Raises `TraceError` where a row is no tensor."""
    found = {}
    for row in rows:
        try:
            path, digest, *rest = row
            dtype, shape, _, storage = (*rest, None, None, None, None)[:4]
            known = storage if type(storage) is int and storage >= 0 else None
            tensor = Tensor(str(path), digest, str(dtype or ""), tuple(shape or ()), known)
        except (TypeError, ValueError) as error:
            raise TraceError(
                f"{log.path}:{event.line}: expected [path, digest, dtype, shape, …] for a tensor, "
                f"found {row!r}: trace the run again"
            ) from error
        found[tensor.path] = tensor
    return found


class Cursor:
    """Goes through the events of one log.

    ahead: the next event's line, None at the end. offset, line: where that line begins, and its
    number. torn: the last line was cut short. declared: how many events the log says it holds, None
    where the process did not come to its end.
    """

    def __init__(self, log: Log, scope: Scope | None, place: tuple[int, int] | None = None) -> None:
        self.log = log
        self.scope = scope
        self.torn = False
        self.declared: int | None = None
        self._file = open(log.path, "rb")  # noqa: SIM115 (closed by `close`)
        self.ahead: bytes | None = None
        self.offset, self.line = place or (log.start, 2)
        self._seek(self.offset, self.line)

    def close(self) -> None:
        self._file.close()

    @property
    def place(self) -> tuple[int, int]:
        """Where the next event stands, for `again`."""
        return self.offset, self.line

    def again(self, place: tuple[int, int]) -> Cursor:
        """Another cursor over the same log, from a place of this one."""
        return Cursor(self.log, self.scope, place)

    def advance(self) -> None:
        """Leaves the next event out."""
        if self.ahead is not None:
            self.offset += len(self.ahead)
            self.line += 1
        self.ahead = self._read()

    def event(self) -> Event:
        """The next event, without going on. Only where `ahead` is not None."""
        assert self.ahead is not None
        found = parse(self.ahead, self.line)
        if found is None:
            raise self._damage()
        return found

    def events(self) -> Iterator[Event]:
        """All events that are left."""
        while self.ahead is not None:
            found = self.event()
            self.advance()
            yield found

    def block(self) -> bytes:
        """Whole lines from the next event on, without going on; empty where not all are events."""
        self._file.seek(self.offset)
        data = self._file.read(_BLOCK)
        self._file.seek(self.offset + len(self.ahead or b""))
        data = data[: data.rfind(b"\n") + 1]
        lines = data.count(b"\n")
        framed = data.startswith(_EVENT) and data.count(_LINE_END + _EVENT) == lines - 1
        return data if lines and framed and data.endswith(_LINE_END) else b""

    def skip(self, block: bytes) -> int:
        """Leaves out a block that `block` gave; returns how many events that were."""
        lines = block.count(b"\n")
        self._seek(self.offset + len(block), self.line + lines)
        return lines

    def rest(self) -> tuple[int, int | None]:
        """Leaves out all that is left: how many events, and the step of the last one."""
        count, step = 0, None
        while self.ahead is not None:
            block = self.block() if self.scope is None else b""
            last = block[block.rfind(b"\n", 0, -1) + 1 :]
            if block and (event := parse(last, 0)) is not None:
                count, step = count + self.skip(block), event.step
                continue
            count, step = count + 1, self.event().step
            self.advance()
        return count, step

    def _seek(self, offset: int, line: int) -> None:
        self._file.seek(offset)
        self.offset, self.line = offset, line
        self.ahead = self._read()

    def _read(self) -> bytes | None:
        """The line of the next event that belongs to the scope."""
        while True:
            raw = self._file.readline()
            if not raw:
                return None
            usual = raw.startswith(_EVENT) and raw.endswith(_LINE_END)
            if usual or self._plain(raw):
                if self.scope is None or self._in_scope(raw):
                    return raw
            elif self.torn:
                return None
            self.offset += len(raw)
            self.line += 1

    def _in_scope(self, raw: bytes) -> bool:
        event = parse(raw, self.line)
        if event is None:
            raise self._damage()
        return self.scope is None or self.scope.holds(event)

    def _plain(self, raw: bytes) -> bool:
        """Whether an unusual line is an event all the same. Takes in the line of the end."""
        line = _json(raw)
        if line is None:
            if raw.endswith(b"\n"):
                raise self._damage()
            self.torn = True
            return False
        if line.get("t") == "end":
            events = line.get("events")
            self.declared = events if isinstance(events, int) else None
        return "e" in line

    def _damage(self) -> TraceError:
        return TraceError(
            f"{self.log.path}:{self.line}: expected an event as a JSON object, found a damaged "
            "line; what this process did is lost: trace the run again"
        )


def parse(raw: bytes, number: int) -> Event | None:
    """The event in a line; None where it is none. number: of the line in its file."""
    line = _json(raw)
    if line is None:
        return None
    get = line.get
    label = (get("e", ""), get("n", ""), get("m", ""), get("p", "f"))
    step, nth = get("s", 0), get("i", 0)
    ins, outs, extra = get("in", ()), get("out", ()), get("x") or {}
    for text in label:
        if type(text) is not str:
            return None
    if type(step) is not int or type(nth) is not int or not isinstance(extra, dict):
        return None
    if not isinstance(ins, (list, tuple)) or not isinstance(outs, (list, tuple)):
        return None
    return Event(label, step, nth, get("q", number), ins, outs, extra, number)


def events_in(lines: bytes) -> Iterator[Event]:
    """The events in a piece of a log; their line numbers are not known."""
    for line in lines.splitlines():
        event = parse(line, 0)
        if event is not None:
            yield event


_decode = json.JSONDecoder().raw_decode  # without the search for an encoding that `loads` makes


def _json(raw: bytes) -> dict[str, Any] | None:
    try:
        text = raw.decode("utf-8")
        line, end = _decode(text)
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) and not text[end:].strip() else None


def _meta(path: Path) -> dict[str, Any]:
    """The object in trace.json; empty where the launcher was killed before it wrote that."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise TraceError(f"{path}: cannot read it: {error.strerror or error}") from error
    found = _json(data)
    if found is None:
        raise TraceError(f"{path}: expected a JSON object, found a damaged file")
    return found


def _log(path: Path) -> Log | None:
    """The log in a file; None where its process died before the first line was whole."""
    try:
        with open(path, "rb") as file:
            raw = file.readline()
    except OSError as error:
        raise TraceError(f"{path}: cannot read it: {error.strerror or error}") from error
    line = _json(raw)
    if line is None and not raw.endswith(b"\n"):
        return None
    if line is None or line.get("t") != "trace":
        raise TraceError(f"{path}:1: expected the line of the trace first, found {raw[:60]!r}")
    if line.get("version") != VERSION:
        raise TraceError(
            f"{path}:1: expected version {VERSION}, found {line.get('version')!r}: "
            "compare with the pinner that traced it"
        )
    window = line.get("window") or {}
    return Log(
        path=path,
        rank=_integer(line.get("rank")),
        world=_integer(line.get("world")),
        level=str(line.get("level", "")),
        window=Window(
            _integer(window.get("from")),
            _integer(window.get("to")),
            window.get("modules") or None,
        ),
        algorithm=str(line.get("algorithm", "")),
        torch=str(line.get("torch", "")),
        numpy=str(line.get("numpy", "")),
        time=str(line.get("time", "")),
        start=len(raw),
    )


def _integer(value: Any) -> int | None:
    return value if type(value) is int else None
