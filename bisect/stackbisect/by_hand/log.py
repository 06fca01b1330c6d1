"""The log of a bisection by hand: commands that bring another one to the same state."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from stackbisect.by_hand.verdicts import VERDICTS
from stackbisect.errors import UsageError
from stackbisect.journal import Record


def lines(record: Record, name: str) -> list[str]:
    """Lines that `replay` (or a shell) brings to the same state: comments and commands.

    Candidates stand there by name, so that neither a registry nor a repository is needed again.
    """
    header = record.header
    candidates = {each.id: each for each in header.candidates}
    labels = [each.label for each in header.candidates]
    begun = f"# begun {header.created} in {header.workdir}: {shlex.join(header.again)}"
    found = [begun, shlex.join(["stackbisect", "start", "--name", name, *labels])]
    for mark in record.marks:
        candidate = candidates[mark.candidate]
        if candidate.id != candidate.label:
            found.append(f"# {candidate.label} is {candidate.id}")
        noted = ["--note", mark.note] if mark.note else []
        found.append(shlex.join(["stackbisect", mark.verdict, *noted, candidate.label]))
    return found


@dataclass(frozen=True)
class Line:
    """One command of a log that is replayed. `words` are without the program's name."""

    number: int
    words: tuple[str, ...]


def read(path: Path) -> list[Line]:
    """The commands in a log: `start` first, then marks. Raises UsageError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UsageError(f"{path}: cannot be read: {reason}") from error
    found: list[Line] = []
    for number, raw in enumerate(text.splitlines(), start=1):
        try:
            program, *words = shlex.split(raw, comments=True) or [""]
        except ValueError as error:
            raise UsageError(f"{path}, line {number}: {error}") from error
        if not program:
            continue
        expected = ("start",) if not found else (*VERDICTS, "unmark")
        if program != "stackbisect" or not words or words[0] not in expected:
            raise UsageError(
                f"{path}, line {number}: expected `stackbisect {' | '.join(expected)} ...`, "
                f"found {raw.strip()!r}; `stackbisect log` writes such files"
            )
        found.append(Line(number, tuple(words)))
    if not found:
        raise UsageError(f"{path}: expected a log that begins with `stackbisect start`, found none")
    return found
