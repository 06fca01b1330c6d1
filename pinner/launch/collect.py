"""Reads what the processes of one run wrote: ledgers, start-up faults, launchers' records."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pinner.compare import detail
from pinner.compare.evidence import Emitter, RunEvidence, gather
from pinner.launch.session_dir import SessionDir
from pinner.lockfile.errors import LedgerError
from pinner.lockfile.ledgers import (
    EvidenceRecord,
    FactsRecord,
    ProblemRecord,
    ProcessLedger,
    join,
    ledger_from,
    read_folder,
)

Line = Mapping[str, Any]


@dataclass(frozen=True)
class Launcher:
    """What one launcher wrote of its own command: see `launch.one_run`."""

    file: Path
    fields: Line

    @property
    def ended(self) -> bool:
        """Whether the command came to an end while this launcher lived."""
        return self.fields.get("code") is not None

    @property
    def code(self) -> int | None:
        """The command's exit code."""
        return self.fields.get("code")

    @property
    def task(self) -> int:
        """Which launcher of the run it was, from 0."""
        return int(self.fields.get("task", 0))

    @property
    def rank(self) -> int | None:
        """The rank of what it started; None for one that started all of them."""
        return self.task if int(self.fields.get("tasks", 1)) > 1 else None

    def texts(self, name: str) -> tuple[str, ...]:
        """One of the lists of its record."""
        return tuple(str(item) for item in self.fields.get(name, ()))

    @property
    def name(self) -> str:
        """How people call it."""
        return f"task {self.task} (pid {self.fields.get('pid')} on {self.fields.get('host')})"


@dataclass(frozen=True)
class Run:
    """All that is left of one run.

    faults: what processes said that could not be started under pinner: "cause", "pid", "argv" ...
    """

    session: SessionDir
    ledgers: tuple[ProcessLedger, ...]
    launchers: tuple[Launcher, ...] = ()
    faults: tuple[Line, ...] = ()

    @property
    def name(self) -> str:
        """The name of the run."""
        return self.session.settings.run

    def problems(self, *kinds: str) -> Iterator[tuple[ProcessLedger, ProblemRecord]]:
        """The problems of some kinds, with the process that met them."""
        for ledger in self.ledgers:
            for record in ledger.records():
                if isinstance(record, ProblemRecord) and record.kind in kinds:
                    yield ledger, record

    def facts(self) -> Iterator[tuple[ProcessLedger, Mapping[str, Any]]]:
        """The stack facts each process found."""
        for ledger in self.ledgers:
            for record in ledger.records():
                if isinstance(record, FactsRecord):
                    yield ledger, record.facts

    def evidence(self) -> RunEvidence:
        """The fingerprints of the processes, and the evidence only launchers saw; read once."""
        return self._evidence

    @cached_property
    def _evidence(self) -> RunEvidence:
        return gather(
            [*(_emitter(ledger) for ledger in self.ledgers), *_seen_from_outside(self.launchers)]
        )


def collect(session: SessionDir) -> Run:
    """Reads a session folder. Raises `LedgerError`, naming file and line, for a damaged ledger.

    Processes come by rank, then by the time they began, so that a rank which was started again
    follows what it did before.
    """
    ledgers = sorted(read_ledgers(session.path), key=_order)
    return Run(
        session=session,
        ledgers=tuple(ledgers),
        launchers=tuple(launchers(session)),
        faults=tuple(_json(path) for path in _files(session.faults)),
    )


def read_ledgers(session: Path) -> list[ProcessLedger]:
    """The ledgers in a session's folder, with what cuBLASLt's interposer mapped beside them.

    Raises `LedgerError` for a file that is damaged.
    """
    maps = _files(session / "cublaslt")
    return join(read_folder(session / "ledger"), filter(None, map(_mapped, maps)))


def _mapped(path: Path) -> ProcessLedger | None:
    """What one process asked cuBLASLt; None where it was killed before it asked anything."""
    if path.suffix != ".map":
        return None
    return ledger_from(os.fspath(path), lambda: enumerate(_map_lines(path), start=1))


def _map_lines(path: Path) -> list[dict[str, Any]]:
    """Read anew each time: the maps of thousands of ranks are never held at once."""
    from pinner.inside.choosers.cublaslt import mapped

    try:
        return mapped.lines(os.fspath(path))
    except (OSError, ValueError, struct.error) as error:
        raise LedgerError(f"{path}: cannot read what cuBLASLt was asked: {error}") from error


def _order(ledger: ProcessLedger) -> tuple[bool, int, str, str, int]:
    process = ledger.process
    return process.rank is None, process.rank or 0, process.time, process.host, process.pid


def _emitter(ledger: ProcessLedger) -> Emitter:
    records = [record for record in ledger.records() if isinstance(record, EvidenceRecord)]
    known = ((record.digest, detail.kept(record.what)) for record in records)
    return Emitter(
        ledger.process.rank,
        tuple((record.stream, record.step, record.digest) for record in records),
        {digest: what for digest, what in known if what},
    )


def _seen_from_outside(launchers: Sequence[Launcher]) -> list[Emitter]:
    """Evidence of files and of standard output.

    Launchers on several hosts see one shared file: what counts is its last state. A file has no
    rank, so it is one stream of the run; standard output belongs to the task that printed it.
    """
    files: dict[str, tuple[int, str]] = {}
    emitters = []
    for launcher in launchers:
        for name, (changed, digest) in launcher.fields.get("files", {}).items():
            files[name] = max(files.get(name, (0, "")), (int(changed), str(digest)))
        printed = [(str(s), int(n), str(d)) for s, n, d in launcher.fields.get("stdout", ())]
        emitters.append(Emitter(launcher.rank, tuple(printed)))
    found = tuple((f"file:{name}", 0, digest) for name, (_, digest) in sorted(files.items()))
    return [*emitters, Emitter(None, found)]


def launchers(session: SessionDir) -> list[Launcher]:
    """What each launcher of a run wrote, by task; no ledger is read for it."""
    found = [Launcher(path, _json(path)) for path in _files(session.launchers)]
    return sorted(found, key=lambda launcher: (launcher.task, launcher.file.name))


def _files(folder: Path) -> list[Path]:
    """The finished files of a folder, in order of name."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _json(path: Path) -> Line:
    """The object in a file; what could be read of it where it is damaged."""
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"cause": text.strip() or "(an empty file)"}
