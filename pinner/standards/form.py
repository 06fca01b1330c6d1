"""The file of a standard: TOML for review, read strictly; an error names entry and field.

version = 1
name = "tiny"

[recorded]
created = "2026-01-31T12:00:00+00:00"
command = ["python", "train.py"]
runs = 2
streams = "loss|norm"          only streams of which the name matches; absent: all
lock = "sha256:…"              the lock the runs were under; absent: none

[stack.hard]
[stack.soft]

[[series]]
stream = "loss"
rank = 0                       or process = 0, of processes without a rank
points = ["0 float32 0x1.8000000000000p+1", "1 nh128:…"]

[[tolerance]]
stream = "loss"
absolute = "0x1.0p-20"
reason = "why bits cannot be asked for"

[end]
series = 1
points = 2
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pinner.lockfile.errors import LockError
from pinner.standards import points as point_text

if sys.version_info >= (3, 11):
    import tomllib as toml
else:
    import tomli as toml

VERSION = 1
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LOCK = re.compile(r"sha256:[0-9a-f]{64}")
_STEP = re.compile(r"(0|-?[1-9]\d{0,17}) (.+)")
Scalar = str | int | float | bool


@dataclass(frozen=True, order=True)
class Place:
    """Whose series: a stream, and the number of a rank, or of a process without one."""

    stream: str
    number: int
    ranked: bool = True

    def __str__(self) -> str:
        return f"stream {self.stream!r}, {'rank' if self.ranked else 'process'} {self.number}"


# (step, point) in the order of the steps.
Points = tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Tolerance:
    """How far each number of a stream may be from the standard's, and why not bit for bit."""

    stream: str
    absolute: float
    reason: str


@dataclass(frozen=True)
class Standard:
    """What an author recorded.

    runs: how many runs left these bits. streams: a regular expression, or None for all. lock: the
    digest of the lock they were under, or None. hard, soft: the stack, as a lock has it.
    """

    name: str
    created: str
    command: tuple[str, ...]
    runs: int
    series: Mapping[Place, Points]
    hard: Mapping[str, Scalar] = field(default_factory=dict)
    soft: Mapping[str, Scalar] = field(default_factory=dict)
    streams: str | None = None
    lock: str | None = None
    tolerances: tuple[Tolerance, ...] = ()

    def tolerance(self, stream: str) -> Tolerance | None:
        """What is registered for a stream; None means bit for bit."""
        return next((each for each in self.tolerances if each.stream == stream), None)


def path_of(folder: Path, name: str) -> Path:
    """The file of a standard in a folder of them."""
    return folder / f"{name}.toml"


def read(path: Path) -> Standard:
    """The standard in a file. Raises `LockError`, naming entry and field, and `OSError`."""
    return parse(path.read_bytes(), path)


def parse(data: bytes, path: Path) -> Standard:
    """The standard that a file of this name and content has. Raises `LockError`."""
    try:
        tables = toml.loads(data.decode("utf-8"))
    except ValueError as error:  # TOML and UTF-8
        raise LockError(f"is not TOML: {error}", source=os.fspath(path)) from error
    reader = _Reader(os.fspath(path))
    found = reader.standard(tables)
    if found.name != path.stem:
        raise reader.error("", "name", f"expected {path.stem!r}, as the file, found {found.name!r}")
    return found


def dumps(standard: Standard) -> str:
    """The text of the file."""
    import tomli_w

    recorded: dict[str, Any] = {
        "created": standard.created,
        "command": list(standard.command),
        "runs": standard.runs,
    }
    if standard.streams is not None:
        recorded["streams"] = standard.streams
    if standard.lock is not None:
        recorded["lock"] = standard.lock
    series: list[dict[str, Any]] = [
        {
            "stream": place.stream,
            "rank" if place.ranked else "process": place.number,
            "points": [f"{step} {text}" for step, text in points],
        }
        for place, points in sorted(standard.series.items())
    ]
    tolerances = [
        {"stream": each.stream, "absolute": each.absolute.hex(), "reason": each.reason}
        for each in standard.tolerances
    ]
    return tomli_w.dumps(
        {
            "version": VERSION,
            "name": standard.name,
            "recorded": recorded,
            "stack": {"hard": dict(standard.hard), "soft": dict(standard.soft)},
            "series": series,
            **({"tolerance": tolerances} if tolerances else {}),
            "end": {"series": len(series), "points": sum(len(s["points"]) for s in series)},
        }
    )


class _Reader:
    """Takes the tables apart; refuses what is not as the docstring of this file has it."""

    def __init__(self, source: str) -> None:
        self._source = source

    def error(self, entry: str, field: str, text: str) -> LockError:
        return LockError(text, source=self._source, entry=entry, field=field)

    def standard(self, tables: dict[str, Any]) -> Standard:
        version = tables.get("version")
        if type(version) is not int or version != VERSION:
            raise self.error("", "version", f"expected {VERSION}, found {version!r}")
        fields = ("version", "name", "recorded", "stack", "series", "end")
        self._only(tables, "", fields, ("tolerance",))
        recorded = self._table(tables["recorded"], "[recorded]")
        self._only(recorded, "[recorded]", ("created", "command", "runs"), ("streams", "lock"))
        stack = self._table(tables["stack"], "[stack]")
        self._only(stack, "[stack]", ("hard", "soft"))
        series = self._series(tables["series"])
        self._end(tables["end"], series)
        return Standard(
            name=self._text(tables, "", "name", NAME),
            created=self._text(recorded, "[recorded]", "created"),
            command=self._command(recorded["command"]),
            runs=self._count(recorded, "[recorded]", "runs", 2),
            series=series,
            hard=self._facts(stack["hard"], "[stack.hard]"),
            soft=self._facts(stack["soft"], "[stack.soft]"),
            streams=self._expression(recorded),
            lock=self._text(recorded, "[recorded]", "lock", _LOCK) if "lock" in recorded else None,
            tolerances=self._tolerances(tables.get("tolerance", []), series),
        )

    def _series(self, entries: Any) -> dict[Place, Points]:
        found: dict[Place, Points] = {}
        for number, entry in enumerate(self._tables(entries, "[[series]]"), start=1):
            name = f"[[series]] {number}"
            owner = "process" if "process" in entry else "rank"
            self._only(entry, name, ("stream", owner, "points"))
            stream = self._text(entry, name, "stream")
            place = Place(stream, self._count(entry, name, owner, 0), owner == "rank")
            if place in found:
                raise self.error(name, "stream", f"{place} stands there twice")
            found[place] = self._points(entry["points"], f"{name} ({place})")
        if not found:
            raise self.error("[[series]]", "", "expected at least one, found none")
        return found

    def _points(self, texts: Any, name: str) -> Points:
        if not isinstance(texts, list) or not texts:
            raise self.error(name, "points", "expected an array of points, found none")
        found: list[tuple[int, str]] = []
        for text in texts:
            match = _STEP.fullmatch(text) if isinstance(text, str) else None
            if match is None or not point_text.is_point(match[2]):
                raise self.error(
                    name, "points", f'expected "STEP DTYPE HEX" or "STEP DIGEST", found {text!r}'
                )
            value = point_text.number(match[2])
            if value is not None and not math.isfinite(value):
                raise self.error(name, "points", f"expected finite numbers, found {text!r}")
            if found and int(match[1]) < found[-1][0]:
                raise self.error(name, "points", f"step {match[1]} follows step {found[-1][0]}")
            found.append((int(match[1]), match[2]))
        return tuple(found)

    def _tolerances(self, entries: Any, series: Mapping[Place, Points]) -> tuple[Tolerance, ...]:
        found: dict[str, Tolerance] = {}
        for number, entry in enumerate(self._tables(entries, "[[tolerance]]"), start=1):
            name = f"[[tolerance]] {number}"
            self._only(entry, name, ("stream", "absolute", "reason"))
            stream = self._text(entry, name, "stream")
            texts = [t for place, all_ in series.items() if place.stream == stream for _, t in all_]
            if not texts:
                raise self.error(name, "stream", f"expected one with a series, found {stream!r}")
            if any(point_text.number(text) is None for text in texts):
                raise self.error(
                    name, "stream", f"{stream!r} has digests: nothing is near a digest but itself"
                )
            if stream in found:
                raise self.error(name, "stream", f"{stream!r} has a tolerance already")
            reason = self._text(entry, name, "reason")
            found[stream] = Tolerance(stream, self._distance(entry, name), reason)
        return tuple(found.values())

    def _distance(self, entry: dict[str, Any], name: str) -> float:
        text = self._text(entry, name, "absolute")
        try:
            value = float.fromhex(text) if "0x" in text.lower() else float(text)
        except (ValueError, OverflowError):
            value = math.nan
        if not 0 < value < math.inf:
            raise self.error(
                name, "absolute", f'expected a positive distance such as "1e-6", found {text!r}'
            )
        return value

    def _end(self, table: Any, series: Mapping[Place, Points]) -> None:
        end = self._table(table, "[end]")
        self._only(end, "[end]", ("series", "points"))
        for name, here in (("series", len(series)), ("points", sum(map(len, series.values())))):
            if self._count(end, "[end]", name, 1) != here:
                raise self.error("[end]", name, f"expected {end[name]}, found {here} in the file")

    def _only(
        self, table: dict[str, Any], entry: str, needed: tuple[str, ...], may: tuple[str, ...] = ()
    ) -> None:
        for name in table:
            if name not in needed and name not in may:
                raise self.error(entry, name, "is no field of a standard")
        for name in needed:
            if name not in table:
                raise self.error(entry, name, "is missing")

    def _table(self, value: Any, entry: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.error(entry, "", f"expected a table, found {value!r}")
        return value

    def _tables(self, value: Any, entry: str) -> list[dict[str, Any]]:
        if not isinstance(value, list):
            raise self.error(entry, "", f"expected an array of tables, found {value!r}")
        return [self._table(each, entry) for each in value]

    def _text(
        self, table: dict[str, Any], entry: str, name: str, form: re.Pattern[str] | None = None
    ) -> str:
        value = table[name]
        if not isinstance(value, str) or not value.strip():
            raise self.error(entry, name, f"expected a text, found {value!r}")
        if form is not None and not form.fullmatch(value):
            raise self.error(entry, name, f"expected {form.pattern}, found {value!r}")
        return value

    def _count(self, table: dict[str, Any], entry: str, name: str, least: int) -> int:
        value = table[name]
        if type(value) is not int or value < least:
            raise self.error(entry, name, f"expected a number of at least {least}, found {value!r}")
        return value

    def _command(self, words: Any) -> tuple[str, ...]:
        if not isinstance(words, list) or not words or not all(isinstance(w, str) for w in words):
            raise self.error("[recorded]", "command", f"expected words, found {words!r}")
        return tuple(words)

    def _expression(self, recorded: dict[str, Any]) -> str | None:
        if "streams" not in recorded:
            return None
        text = self._text(recorded, "[recorded]", "streams")
        try:
            re.compile(text)
        except re.error as error:
            raise self.error("[recorded]", "streams", f"no regular expression: {error}") from error
        return text

    def _facts(self, value: Any, entry: str) -> dict[str, Scalar]:
        facts = self._table(value, entry)
        for name, fact in facts.items():
            if not isinstance(fact, (str, int, float, bool)):
                raise self.error(entry, name, f"expected one value, found {fact!r}")
        return facts
