"""Reads ledgers, what one process wrote line by line, as typed records and never all at once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pinner.inside.values import Encoded

from .errors import LedgerError
from .fields import described
from .schema import HELD, Values

Line = dict[str, Any]


@dataclass(frozen=True)
class ProcessRecord:
    """Who wrote the ledger. ``rank`` and ``world`` are None where no launcher gave them."""

    pid: int
    host: str
    rank: int | None
    world: int | None
    run: str
    argv: tuple[str, ...]
    time: str

    @property
    def name(self) -> str:
        if self.rank is not None:
            return f"rank {self.rank}"
        return f"pid {self.pid} on {self.host}"

    @property
    def order(self) -> tuple[bool, int, str, int, str]:
        """By rank, then processes without one: the same whatever order the files are read in."""
        return self.rank is None, self.rank or 0, self.host, self.pid, self.time


@dataclass(frozen=True)
class FactsRecord:
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class ChoiceRecord:
    """A decision. ``timings``: (config, milliseconds), infinite where the candidate failed."""

    chooser: str
    kernel: str
    source: str
    key: Values
    config: Values
    alternatives: int
    how: str
    timings: tuple[tuple[Values, float], ...] = ()
    heuristics: Values | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProblemRecord:
    """``fields`` is the whole line: candidates, nearest and what else a kind of problem says."""

    kind: str
    text: str
    chooser: str
    kernel: str
    key: Values | None
    fields: Line


@dataclass(frozen=True)
class CodeRecord:
    """What a config was compiled to for one specialisation; ``code`` is None without a binary.

    ``key`` and ``source`` are None where the process did not say which entry it belongs to.
    """

    chooser: str
    kernel: str
    source: str | None
    key: Values | None
    config: Values
    spec: str
    code: str | None
    options: Values


@dataclass(frozen=True)
class SettingRecord:
    """A switch of a library that was active.

    held: "set" (by pinner, recording and enforcing alike), "forced" (to the locked value),
    "recorded" (cannot be set) or "no" (nothing holds it). text: why, or what to do.
    """

    chooser: str
    name: str
    value: Encoded
    held: str
    text: str = ""


@dataclass(frozen=True)
class EvidenceRecord:
    stream: str
    step: int
    digest: str
    what: Mapping[str, Any]


@dataclass(frozen=True)
class ResumeRecord:
    """What `pinner verify --resume` reads: see `pinner.inside.evidence.resume`."""

    at: str
    fields: Line


@dataclass(frozen=True)
class EndRecord:
    time: str


Record = (
    FactsRecord
    | ChoiceRecord
    | ProblemRecord
    | CodeRecord
    | SettingRecord
    | EvidenceRecord
    | ResumeRecord
    | EndRecord
)


@dataclass(frozen=True)
class ProcessLedger:
    """One process's ledger: who it was, and a way to go through the rest as often as wanted.

    joined: what the same process left in other files.
    """

    source: str
    process: ProcessRecord
    numbered: Callable[[], Iterator[tuple[int, Line]]]
    joined: tuple[ProcessLedger, ...] = ()

    def lines(self) -> Iterator[Line]:
        """The lines after the first, as they are."""
        yield from (line for number, line in self.numbered() if number > 1)
        for other in self.joined:
            yield from other.lines()

    def records(self) -> Iterator[Record]:
        """The lines after the first, typed. Raises `LedgerError` at a damaged one."""
        for number, line in self.numbered():
            if number > 1:
                yield _record(_Reader(line, f"{self.source}:{number}"))
        for other in self.joined:
            yield from other.records()


def read_folder(folder: str | os.PathLike[str]) -> Iterator[ProcessLedger]:
    """The ledgers of a run, by file name; without those that hold no whole line."""
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".jsonl"))
    except OSError as error:
        raise LedgerError(f"{os.fspath(folder)}: cannot list ledgers: {error.strerror}") from error
    for name in names:
        ledger = read_ledger(os.path.join(folder, name))
        if ledger is not None:
            yield ledger


def read_ledger(path: str | os.PathLike[str]) -> ProcessLedger | None:
    """The ledger in a file; None if its process died before its first line was whole."""
    return ledger_from(os.fspath(path), lambda: _lines_of(path))


def join(ledgers: Iterable[ProcessLedger], others: Iterable[ProcessLedger]) -> list[ProcessLedger]:
    """The ledgers with what the same process wrote elsewhere; what nobody claims stands alone.

    A process is known by host and id. Where several ledgers have both (a program that replaced
    itself by another), the last that began before the other file did is the one.
    """
    kept = list(ledgers)
    places: dict[tuple[str, int], list[int]] = {}
    for place, ledger in enumerate(kept):
        places.setdefault(_who(ledger.process), []).append(place)
    for other in sorted(others, key=lambda each: each.process.time):
        same = places.setdefault(_who(other.process), [])
        if not same:
            same.append(len(kept))
            kept.append(other)
            continue
        before = [place for place in same if kept[place].process.time <= other.process.time]
        place = max(before or same, key=lambda each: kept[each].process.time)
        kept[place] = replace(kept[place], joined=(*kept[place].joined, other))
    return kept


def _who(process: ProcessRecord) -> tuple[str, int]:
    return process.host, process.pid


def ledger_of(lines: Iterable[Line], source: str = "ledger") -> ProcessLedger | None:
    """The ledger made of lines that were read already; None if there are none."""
    kept = list(lines)
    return ledger_from(source, lambda: iter(list(enumerate(kept, start=1))))


def ledger_from(
    source: str, numbered: Callable[[], Iterator[tuple[int, Line]]]
) -> ProcessLedger | None:
    """The ledger whose lines are read each time they are asked for; None if there are none."""
    first = next(numbered(), None)
    if first is None:
        return None
    reader = _Reader(first[1], f"{source}:1")
    if reader.string("t") != "process":
        raise reader.error("t", "expected the line of the process first", first[1]["t"])
    return ProcessLedger(source, _process(reader), numbered)


def _lines_of(path: str | os.PathLike[str]) -> Iterator[tuple[int, Line]]:
    """Lines with their numbers, without a last one that a kill cut short.

    Raises `LedgerError` for any other damage.
    """
    try:
        with open(path, "rb") as file:
            for number, data in enumerate(file, start=1):
                line = _parsed(data)
                if line is not None:
                    yield number, line
                elif data.endswith(b"\n"):
                    raise LedgerError(
                        f"{os.fspath(path)}:{number}: expected a JSON object, found a damaged "
                        "line; what this process decided is lost: make the run again"
                    )
    except OSError as error:
        raise LedgerError(f"{os.fspath(path)}: cannot read ledger: {error.strerror}") from error


def _parsed(data: bytes) -> Line | None:
    try:
        line = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) else None


class _Reader:
    """Takes the fields of one line with their types; it may hold more than it is asked for."""

    def __init__(self, line: Line, place: str) -> None:
        self.line = line
        self.place = place

    def error(self, field: str, expected: str, found: Any) -> LedgerError:
        kind = self.line.get("t")
        return LedgerError(
            f"{self.place}: {kind} line: {field}: {expected}, found {described(found)}"
        )

    def string(self, field: str, default: str | None = None) -> str:
        value = self.line.get(field, default)
        if not isinstance(value, str):
            raise self.error(field, "expected a string", value)
        return value

    def string_or_none(self, field: str) -> str | None:
        return None if self.line.get(field) is None else self.string(field)

    def integer(self, field: str) -> int:
        value = self.line.get(field)
        if type(value) is not int:
            raise self.error(field, "expected an integer", value)
        return value

    def integer_or_none(self, field: str) -> int | None:
        return None if self.line.get(field) is None else self.integer(field)

    def table(self, field: str) -> Line:
        value = self.line.get(field)
        if not isinstance(value, dict):
            raise self.error(field, "expected an object", value)
        return value

    def table_or_none(self, field: str) -> Line | None:
        return None if self.line.get(field) is None else self.table(field)

    def array(self, field: str) -> list[Any]:
        value = self.line.get(field, [])
        if not isinstance(value, list):
            raise self.error(field, "expected an array", value)
        return value


def _process(reader: _Reader) -> ProcessRecord:
    return ProcessRecord(
        pid=reader.integer("pid"),
        host=reader.string("host", ""),
        rank=reader.integer_or_none("rank"),
        world=reader.integer_or_none("world"),
        run=reader.string("run", ""),
        argv=tuple(str(word) for word in reader.array("argv")),
        time=reader.string("time", ""),
    )


def _record(reader: _Reader) -> Record:
    kind = reader.string("t")
    make = _KINDS.get(kind)
    if make is None:
        raise reader.error("t", f"expected one of {', '.join(_KINDS)}", kind)
    return make(reader)


def _facts(reader: _Reader) -> FactsRecord:
    return FactsRecord(reader.table("facts"))


def _choice(reader: _Reader) -> ChoiceRecord:
    return ChoiceRecord(
        chooser=reader.string("chooser"),
        kernel=reader.string("kernel"),
        source=reader.string("source"),
        key=reader.table("key"),
        config=reader.table("config"),
        alternatives=reader.integer("alternatives"),
        how=reader.string("how"),
        timings=tuple(_timing(reader, pair) for pair in reader.array("timings")),
        heuristics=reader.table_or_none("heuristics"),
        notes=tuple(str(note) for note in reader.array("notes")),
    )


def _timing(reader: _Reader, pair: Any) -> tuple[dict[str, Encoded], float]:
    if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], dict):
        config, time = pair
        if time == "inf":
            return config, float("inf")
        if isinstance(time, (int, float)) and not isinstance(time, bool):
            return config, float(time)
    raise reader.error("timings", 'expected pairs [config, milliseconds or "inf"]', pair)


def _problem(reader: _Reader) -> ProblemRecord:
    return ProblemRecord(
        kind=reader.string("kind"),
        text=reader.string("text"),
        chooser=reader.string("chooser", ""),
        kernel=reader.string("kernel", ""),
        key=reader.table_or_none("key"),
        fields=reader.line,
    )


def _code(reader: _Reader) -> CodeRecord:
    return CodeRecord(
        chooser=reader.string("chooser"),
        kernel=reader.string("kernel"),
        source=reader.string_or_none("source"),
        key=reader.table_or_none("key"),
        config=reader.table("config"),
        spec=reader.string("spec"),
        code=reader.string_or_none("code"),
        options=reader.table_or_none("options") or {},
    )


def _setting(reader: _Reader) -> SettingRecord:
    if "value" not in reader.line:
        raise reader.error("value", "expected a value", None)
    held = reader.string("held")
    if held not in ("set", *HELD):
        raise reader.error("held", f"expected one of set, {', '.join(HELD)}", held)
    return SettingRecord(
        chooser=reader.string("chooser"),
        name=reader.string("name"),
        value=reader.line["value"],
        held=held,
        text=reader.string("text", ""),
    )


def _evidence(reader: _Reader) -> EvidenceRecord:
    return EvidenceRecord(
        stream=reader.string("stream"),
        step=reader.integer("step"),
        digest=reader.string("digest"),
        what=reader.table_or_none("what") or {},
    )


def _resume(reader: _Reader) -> ResumeRecord:
    return ResumeRecord(reader.string("at"), reader.line)


def _end(reader: _Reader) -> EndRecord:
    return EndRecord(reader.string("time", ""))


_KINDS: dict[str, Callable[[_Reader], Record]] = {
    "facts": _facts,
    "choice": _choice,
    "problem": _problem,
    "code": _code,
    "setting": _setting,
    "evidence": _evidence,
    "resume": _resume,
    "end": _end,
}
