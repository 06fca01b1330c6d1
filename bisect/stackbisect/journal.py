"""The journal of one bisection: append-only JSON lines that survive a kill at any moment.

```
.stackbisect/NAME/journal.jsonl   header, then one line for each thing that happened:
    open         a program took the bisection up: what was under way before is not any more
    start probe  a probe began, and what it found
    dropped      a probe was given up before it ended
    stage        a stage of the bisection began: what it is about
    conclusion   a stage is over: its result
    mark unmark  a verdict given by hand, and taken back
    stop answer  why a program stopped before there was an answer; the answer
    deeper       it goes on behind its answer, to another depth
.stackbisect/NAME/lock            held while a program works on this bisection
.stackbisect/NAME/probes/0001/    one folder a probe: session/, log, stdout
```
Every line is written with one call and synced before anything goes on. A last line that was cut
off by a kill is dropped; a damaged line anywhere else is an error that names file and line.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time as clock
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from pinner.durable import replace_text
from stackbisect.errors import UsageError
from stackbisect.probe import Candidate, EvidenceOptions, InfrastructureError, ProbeResult

VERSION = 1
ROOT = Path(".stackbisect")
FILE = "journal.jsonl"
LOCK = "lock"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class JournalError(Exception):
    """A journal that cannot be read; names file and line."""


class ChangedError(UsageError):
    """A bisection was resumed with something else than it was begun with."""

    def __init__(self, name: str, differences: Sequence[str]) -> None:
        """`differences`: one text each, old and new."""
        self.differences = tuple(differences)
        listed = "\n".join(f"  {text}" for text in differences)
        super().__init__(
            f"bisection {name!r} was begun with something else, and probes of both "
            "cannot be compared:\n"
            f"{listed}\n"
            "Give what it was begun with, another --name, or --fresh to begin again."
        )


@dataclass(frozen=True)
class Header:
    """What a bisection is about. All but `created` and `again` must stay equal over a resume.

    `runtime` is what the runtime says of itself, `setup` is what it takes to make it again.
    `excluded` are candidates that were left out, each with label and reason. `again` is the
    command that runs it again.
    """

    command: tuple[str, ...]
    workdir: str
    verdict: str
    evidence: EvidenceOptions
    time_limit: float | None
    candidates: tuple[Candidate, ...]
    setup: Mapping[str, Any]
    runtime: Mapping[str, Any]
    excluded: tuple[Mapping[str, str], ...]
    notes: tuple[str, ...]
    again: tuple[str, ...]
    created: str

    def to_json(self) -> dict[str, Any]:
        """The header as plain JSON values."""
        return {
            "t": "header",
            "version": VERSION,
            "command": list(self.command),
            "workdir": self.workdir,
            "verdict": self.verdict,
            "evidence": self.evidence.to_json(),
            "time_limit": self.time_limit,
            "candidates": [candidate.to_json() for candidate in self.candidates],
            "setup": dict(self.setup),
            "runtime": dict(self.runtime),
            "excluded": [dict(each) for each in self.excluded],
            "notes": list(self.notes),
            "again": list(self.again),
            "created": self.created,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Header:
        """The inverse of `to_json`."""
        return cls(
            command=tuple(value["command"]),
            workdir=value["workdir"],
            verdict=value["verdict"],
            evidence=EvidenceOptions(
                tuple(value["evidence"]["files"]), tuple(value["evidence"]["stdout"])
            ),
            time_limit=value["time_limit"],
            candidates=tuple(Candidate.from_json(each) for each in value["candidates"]),
            setup=value["setup"],
            runtime=value["runtime"],
            excluded=tuple(value["excluded"]),
            notes=tuple(value["notes"]),
            again=tuple(value["again"]),
            created=value["created"],
        )


# The stage of probes that name none.
SEARCH = "search"

# What may be given differently when a bisection goes on: it changes no answer.
_MAY_CHANGE = frozenset({"jobs"})


@dataclass(frozen=True)
class Probed:
    """One finished probe; `candidate` is its candidate's id, `label` what people call that."""

    number: int
    candidate: str
    attempt: int
    result: ProbeResult
    stage: str = SEARCH
    label: str = ""


@dataclass(frozen=True)
class UnderWay:
    """A probe that was started and did not end yet."""

    candidate: str
    label: str
    attempt: int
    stage: str = SEARCH


@dataclass(frozen=True)
class Mark:
    """A verdict given by hand. `verdict` is "good", "bad" or "skip"; `candidate` is an id."""

    candidate: str
    verdict: str
    note: str = ""
    time: float = 0.0


@dataclass(frozen=True)
class Record:
    """What a journal holds. `started` counts probes begun; `stopped` is why it last stopped.

    `under_way` is by probe number. `derived` are candidates that were begun and are none of the
    header's, by id. `stages` is what each stage that began is about, `conclusions` the results of
    those that are over, by name, in the order they came. `marks` are those in force.
    """

    header: Header
    probes: tuple[Probed, ...] = ()
    started: int = 0
    under_way: Mapping[int, UnderWay] = field(default_factory=dict)
    stopped: str | None = None
    answer: Mapping[str, Any] | None = None
    stages: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    conclusions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    marks: tuple[Mark, ...] = ()
    derived: Mapping[str, Candidate] = field(default_factory=dict)

    def candidate(self, id: str) -> Candidate:
        """A candidate that was begun, or one of the header's. Raises KeyError."""
        own = (each for each in self.header.candidates if each.id == id)
        return next(own, None) or self.derived[id]

    def seen(self) -> dict[str, list[ProbeResult]]:
        """Finished probes of all stages by candidate, in order."""
        found: dict[str, list[ProbeResult]] = {}
        for probed in self.probes:
            found.setdefault(probed.candidate, []).append(probed.result)
        return found


@dataclass
class Journal:
    """A bisection's journal, held by this program alone until it is closed."""

    folder: Path
    record: Record
    _file: int = field(repr=False)
    _lock: int = field(repr=False)

    def __enter__(self) -> Journal:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the bisection back."""
        self.close()

    def start(self, candidate: Candidate, attempt: int, time: float, stage: str = SEARCH) -> int:
        """Write that a probe begins; returns its number, which no other probe has."""
        number = self.record.started + 1
        line = {
            "t": "start",
            "probe": number,
            "candidate": candidate.id,
            "label": candidate.label,
            "attempt": attempt,
            "stage": stage,
            "time": time,
        }
        known = {each.id for each in self.record.header.candidates} | {*self.record.derived}
        if candidate.id not in known:
            line["derived"] = candidate.to_json()
        self._append(line)
        return number

    def finish(
        self,
        number: int,
        candidate: Candidate,
        attempt: int,
        result: ProbeResult,
        stage: str = SEARCH,
    ) -> None:
        """Write what a probe found. From here on it is never made again."""
        self._append(
            {
                "t": "probe",
                "probe": number,
                "candidate": candidate.id,
                "label": candidate.label,
                "attempt": attempt,
                "stage": stage,
                "result": result.to_json(),
            }
        )

    def drop(self, number: int, reason: str, time: float) -> None:
        """Write that a probe was given up before it ended."""
        self._append({"t": "dropped", "probe": number, "reason": reason, "time": time})

    def begin_stage(self, name: str, data: Mapping[str, Any], time: float) -> None:
        """Write that a stage begins, and what it is about."""
        self._append({"t": "stage", "stage": name, "data": dict(data), "time": time})

    def conclude(self, name: str, result: Mapping[str, Any], time: float) -> None:
        """Write a stage's result. From here on it is not searched any more."""
        self._append({"t": "conclusion", "stage": name, "result": dict(result), "time": time})

    def mark(self, mark: Mark) -> None:
        """Write a verdict given by hand; it takes the place of an earlier one."""
        self._append({"t": "mark", **vars(mark)})

    def unmark(self, candidate: str, time: float) -> None:
        """Take back the verdict given by hand for one candidate."""
        self._append({"t": "unmark", "candidate": candidate, "time": time})

    def stop(self, reason: str, time: float) -> None:
        """Write why the program stops before there is an answer."""
        self._append({"t": "stop", "reason": reason, "time": time})

    def answer(self, answer: Mapping[str, Any], time: float) -> None:
        """Write the answer."""
        self._append({"t": "answer", "answer": dict(answer), "time": time})

    def deepen(self, depth: str, time: float) -> None:
        """Write that the bisection goes on to another depth: it has no answer until then."""
        self._append({"t": "deeper", "depth": depth, "time": time})

    def close(self) -> None:
        """Give the bisection back. May be called twice."""
        for descriptor in (self._file, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._lock = -1

    def _append(self, line: dict[str, Any]) -> None:
        data = (json.dumps(line, separators=(",", ":")) + "\n").encode()
        end = os.lseek(self._file, 0, os.SEEK_END)
        try:
            _write_all(self._file, data)
            os.fsync(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, end)
            raise InfrastructureError(
                f"cannot write {self.folder / FILE}: {error.strerror}; make room and resume"
            ) from error
        self.record = _add(self.record, line)


def check_name(name: str) -> str:
    """Return the name of a bisection, or raise UsageError."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"--name: expected letters, digits, '.', '_' and '-' (not first), found {name!r}"
        )
    return name


def exists(folder: Path) -> bool:
    """Whether there is a bisection in this folder."""
    return (folder / FILE).exists()


def names(root: Path) -> list[str]:
    """The bisections under `root`, by name."""
    if not root.is_dir():
        return []
    return sorted(folder.name for folder in root.iterdir() if exists(folder))


def create(folder: Path, header: Header) -> Journal:
    """Begin a bisection; the folder must hold none."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{folder}: expected a folder that can be made and written, found: {error.strerror}; "
            "start from a folder of your own"
        ) from error
    lock = _hold(folder)
    try:
        if exists(folder):
            raise UsageError(f"expected no bisection in {folder} yet, found one")
        text = json.dumps(header.to_json(), separators=(",", ":")) + "\n"
        replace_text(folder / FILE, text)
        return Journal(folder, Record(header), _open(folder), lock)
    except BaseException:
        os.close(lock)
        raise


def resume(folder: Path) -> Journal:
    """Take up a bisection. Raises JournalError, and UsageError where another program has it."""
    if not exists(folder):
        raise UsageError(_no_such(folder))
    lock = _hold(folder)
    try:
        record, sound = _read(folder / FILE)
        file = _open(folder)
        os.ftruncate(file, sound)
        journal = Journal(folder, record, file, lock)
        if record.under_way:
            journal._append({"t": "open", "pid": os.getpid(), "time": clock.time()})
        return journal
    except BaseException:
        os.close(lock)
        raise


def read(folder: Path) -> Record:
    """What the journal says at this moment; a program may be working on it."""
    if not exists(folder):
        raise UsageError(_no_such(folder))
    return _read(folder / FILE)[0]


def in_use(folder: Path) -> bool:
    """Whether a program is working on this bisection."""
    try:
        lock = _hold(folder)
    except UsageError:
        return True
    os.close(lock)
    return False


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Keep every other program from this bisection. Raises UsageError where one has it."""
    lock = _hold(folder)
    try:
        yield
    finally:
        os.close(lock)


def set_aside(folder: Path) -> Path | None:
    """Rename a bisection's folder so that a new one can begin; returns its new name."""
    if not exists(folder):
        return None
    with hold(folder):
        taken = {path.name for path in folder.parent.iterdir()}
        number = next(n for n in range(1, 10_000) if f"{folder.name}.{n}" not in taken)
        aside = folder.with_name(f"{folder.name}.{number}")
        folder.rename(aside)
    return aside


def check_same(name: str, old: Header, new: Header) -> None:
    """Raise ChangedError where a bisection is taken up with something else than it began with."""
    found = differences(old, new)
    if found:
        raise ChangedError(name, found)


def differences(old: Header, new: Header) -> list[str]:
    """What differs between two headers, one text each."""
    before, after = old.to_json(), new.to_json()
    for each in (before, after):
        each["setup"] = {k: v for k, v in each["setup"].items() if k not in _MAY_CHANGE}
    found: list[str] = []
    for key in ("command", "workdir", "verdict", "evidence", "time_limit", "setup", "runtime"):
        found.extend(_differing(key, before[key], after[key]))
    return found + _differing_candidates(old.candidates, new.candidates)


def _differing(name: str, old: Any, new: Any) -> list[str]:
    if old == new:
        return []
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = [*old, *(key for key in new if key not in old)]
        return [
            text for key in keys for text in _differing(f"{name}.{key}", old.get(key), new.get(key))
        ]
    return [f"{name}: was {json.dumps(old)}, is {json.dumps(new)}"]


def _differing_candidates(old: Sequence[Candidate], new: Sequence[Candidate]) -> list[str]:
    before = {candidate.label: candidate.id for candidate in old}
    after = {candidate.label: candidate.id for candidate in new}
    found = [f"candidate {label}: gone" for label in before if label not in after]
    found += [f"candidate {label}: new" for label in after if label not in before]
    found += [
        f"candidate {label}: was {before[label]}, is {after[label]}"
        for label in before
        if label in after and before[label] != after[label]
    ]
    if not found and list(before) != list(after):
        found.append(f"order of candidates: was {list(before)}, is {list(after)}")
    return found


def _no_such(folder: Path) -> str:
    known = ", ".join(names(folder.parent)) or "none"
    return f"expected a bisection {folder.name!r} in {folder.parent}, found none; known: {known}"


def _open(folder: Path) -> int:
    return os.open(folder / FILE, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)


def _hold(folder: Path) -> int:
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.read(descriptor, 32).decode(errors="replace").strip()
        os.close(descriptor)
        raise UsageError(
            f"another program (process {owner or 'unknown'}) works on bisection {folder.name!r}; "
            "wait for it or give another --name"
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def _write_all(descriptor: int, data: bytes) -> None:
    written = 0
    while written < len(data):
        written += os.write(descriptor, data[written:])


def _read(path: Path) -> tuple[Record, int]:
    """The record, and how many bytes of the file are sound."""
    data = path.read_bytes()
    sound = data.rfind(b"\n") + 1
    lines = data[:sound].split(b"\n")[:-1]
    if not lines:
        raise JournalError(f"{path}: expected a header, found an empty file")
    record = Record(_header(path, lines[0]))
    for number, text in enumerate(lines[1:], start=2):
        try:
            line = json.loads(text)
            record = _add(record, line)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise JournalError(f"{path}, line {number}: not a journal line: {error}") from error
    return record, sound


def _header(path: Path, text: bytes) -> Header:
    try:
        value = json.loads(text)
        if value["t"] != "header":
            raise ValueError("expected the header")
    except (ValueError, KeyError, TypeError) as error:
        raise JournalError(f"{path}, line 1: not a journal header: {error}") from error
    if value.get("version") != VERSION:
        raise JournalError(
            f"{path}: version {value.get('version')!r}, this program reads version {VERSION}"
        )
    try:
        return Header.from_json(value)
    except (KeyError, TypeError, AttributeError) as error:
        raise JournalError(f"{path}, line 1: the header lacks {error}") from error


def _add(record: Record, line: Mapping[str, Any]) -> Record:
    kind = line["t"]
    fields: dict[str, Any] = dict(vars(record))
    if kind == "start":
        begun = UnderWay(line["candidate"], line["label"], line["attempt"], _stage_of(line))
        under_way = {**record.under_way, int(line["probe"]): begun}
        fields.update(started=int(line["probe"]), under_way=under_way, stopped=None)
        if "derived" in line:
            made = Candidate.from_json(line["derived"])
            fields.update(derived={**record.derived, made.id: made})
    elif kind == "probe":
        result = ProbeResult.from_json(line["result"])
        probed = Probed(
            line["probe"],
            line["candidate"],
            line["attempt"],
            result,
            _stage_of(line),
            line["label"],
        )
        fields.update(probes=(*record.probes, probed), under_way=_without(record, probed.number))
    elif kind == "dropped":
        fields.update(under_way=_without(record, line["probe"]))
    elif kind == "open":
        fields.update(under_way={})
    elif kind == "stage":
        fields.update(stages={**record.stages, line["stage"]: line["data"]})
    elif kind == "conclusion":
        fields.update(conclusions={**record.conclusions, line["stage"]: line["result"]})
    elif kind in ("mark", "unmark"):
        marks = tuple(each for each in record.marks if each.candidate != line["candidate"])
        if kind == "mark":
            mark = Mark(line["candidate"], line["verdict"], line["note"], line["time"])
            marks = (*marks, mark)
        fields.update(marks=marks)
    elif kind == "stop":
        fields.update(stopped=str(line["reason"]), under_way={})
    elif kind == "deeper":
        setup = {**record.header.setup, "depth": line["depth"]}
        fields.update(header=replace(record.header, setup=setup), answer=None, stopped=None)
    elif kind == "answer":
        fields.update(answer=dict(line["answer"]), stopped=None)
    else:
        raise ValueError(f"unknown kind {kind!r}")
    return Record(**fields)


def _stage_of(line: Mapping[str, Any]) -> str:
    return str(line.get("stage", SEARCH))


def _without(record: Record, number: int) -> dict[int, UnderWay]:
    return {n: each for n, each in record.under_way.items() if n != number}
