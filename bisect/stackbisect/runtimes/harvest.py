"""What a probe left in its session folder and its output: evidence, start-up faults, facts."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pinner.compare.evidence import Emitter, RunEvidence, gather
from pinner.launch import collect, session_dir
from pinner.lockfile.errors import LedgerError
from stackbisect.probe import Evidence, EvidenceOptions


@dataclass(frozen=True)
class Harvest:
    """What one probe left.

    `faults`: why pinner could not start in a process, one text each. `damage`: why what was
    written cannot be read; evidence is then empty. `facts`: the last stack facts that a process
    reported. `loaded`: `python`, version → how many processes with a ledger.
    """

    evidence: Evidence
    faults: tuple[str, ...] = ()
    damage: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    loaded: Mapping[str, Any] = field(default_factory=dict)


def read(
    session: Path, stdout: Path, options: EvidenceOptions, files: Mapping[str, Path]
) -> Harvest:
    """Read one probe's session folder, its standard output and its evidence files.

    `files` are the files that matched `options.files`, under the name they had for the command.
    """
    try:
        run = collect.collect(session_dir.read(session))
    except (LedgerError, session_dir.SessionError, OSError) as error:
        return Harvest(Evidence(), damage=str(error))
    emitters = [
        Emitter(process.rank, tuple(_fingerprint(line) for line in process.of_kind("evidence")))
        for process in run.processes
    ]
    outside = [*_printed(stdout, options.stdout), *_written(files)]
    facts = [line["facts"] for _, line in run.of_kind("facts") if "facts" in line]
    pythons = [str(process.header.get("python", "?")) for process in run.processes]
    return Harvest(
        evidence=_evidence(gather([*emitters, Emitter(0, tuple(outside))])),
        faults=tuple(str(fault.get("cause", fault)) for fault in run.faults),
        facts=dict(facts[-1]) if facts else {},
        loaded={"python": {version: pythons.count(version) for version in sorted(set(pythons))}},
    )


def _evidence(run: RunEvidence) -> Evidence:
    return Evidence(
        {
            stream: {
                str(rank): tuple(digest for _, digest in steps) for rank, steps in ranks.items()
            }
            for stream, ranks in run.streams.items()
        }
    )


def _fingerprint(line: Mapping[str, Any]) -> tuple[str, int, str]:
    return str(line["stream"]), int(line["step"]), str(line["digest"])


def _printed(stdout: Path, expressions: Sequence[str]) -> Iterator[tuple[str, int, str]]:
    """Yield one step for each match of each expression in the lines of standard output."""
    patterns = [(text, re.compile(text)) for text in expressions]
    if not patterns or not stdout.exists():
        return
    steps = dict.fromkeys(expressions, 0)
    with stdout.open(encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            for text, pattern in patterns:
                for match in pattern.finditer(line):
                    found = match[1] if pattern.groups else match[0]
                    data = (found or "").encode("utf-8", "surrogateescape")
                    yield f"stdout:{text}", steps[text], _digest(data)
                    steps[text] += 1


def _written(files: Mapping[str, Path]) -> Iterator[tuple[str, int, str]]:
    for name, path in sorted(files.items()):
        yield f"file:{name}", 0, _digest(path.read_bytes())


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()
