"""What a probe left in its session folder and its output: evidence, start-up faults, facts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pinner.launch import collect, session_dir
from pinner.launch.outside import Lines
from pinner.lockfile.errors import LedgerError
from stackbisect.probe import Evidence, EvidenceOptions


@dataclass(frozen=True)
class Harvest:
    """What one probe left.

    `faults`: why pinner could not start in a process, one text each. `damage`: why what was
    written cannot be read; evidence is then empty. `facts`: the last stack facts that a process
    reported.
    """

    evidence: Evidence
    faults: tuple[str, ...] = ()
    damage: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


def read(
    session: Path, stdout: Path, options: EvidenceOptions, files: Mapping[str, Path]
) -> Harvest:
    """Read one probe's session folder, its standard output and its evidence files.

    `files` are the files that matched `options.files`, under the name they had for the command.
    They and the standard output become the record that pinner's own launcher would have left.
    """
    try:
        _write_record(session, stdout, options.stdout, files)
        run = collect.collect(session_dir.read(session))
        found = run.evidence()
        facts = [facts for _, facts in run.facts()]
    except (LedgerError, session_dir.SessionError, OSError) as error:
        return Harvest(Evidence(), damage=str(error))
    streams = {
        stream: {str(rank): tuple(digest for _, digest in steps) for rank, steps in ranks.items()}
        for stream, ranks in found.streams.items()
    }
    return Harvest(
        evidence=Evidence(streams),
        faults=tuple(str(fault.get("cause", fault)) for fault in run.faults),
        facts=dict(facts[-1]) if facts else {},
    )


def _write_record(
    session: Path, stdout: Path, expressions: Sequence[str], files: Mapping[str, Path]
) -> None:
    lines = Lines(expressions)
    if expressions and stdout.exists():
        with stdout.open("rb") as output:
            while piece := output.read(1 << 20):
                lines.feed(piece)
    record = {
        "task": 0,
        "files": {name: [0, _digest(path)] for name, path in sorted(files.items())},
        "stdout": lines.close(),
    }
    folder = session / "launchers"
    folder.mkdir(exist_ok=True)
    (folder / "probe.json").write_text(json.dumps(record) + "\n", encoding="utf-8")


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return "sha256:" + digest.hexdigest()
