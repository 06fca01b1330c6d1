"""Evidence that only the launcher can see: files the command wrote, and lines it printed."""

from __future__ import annotations

import glob
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

_LINE_END = re.compile(rb"[\r\n]")

# What tells a file that was written again: inode, size, and both times (a copied file keeps one).
_State = tuple[int, int, int, int]


@dataclass(frozen=True)
class OutsideEvidence:
    """What to look at: globs, relative to the command's folder, and regular expressions."""

    files: tuple[str, ...] = ()
    stdout: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.files or self.stdout)


@dataclass(frozen=True)
class Written:
    """Files the command wrote, with time of change (ns) and digest; globs it wrote none of."""

    files: dict[str, tuple[int, str]] = field(default_factory=dict)
    missing: tuple[str, ...] = ()


class Files:
    """Remembers the files as they are before the run. A file left over from another run is none."""

    def __init__(self, globs: Sequence[str]) -> None:
        self._globs = tuple(globs)
        self._before = dict(_states(globs))

    def written(self) -> Written:
        """The files that were made or written again since."""
        files: dict[str, tuple[int, str]] = {}
        missing = []
        for pattern in self._globs:
            changed = [(n, s) for n, s in _states([pattern]) if self._before.get(n) != s]
            for name, state in changed:
                try:
                    files[name] = (state[2], _digest(name))
                except OSError as error:
                    missing.append(f"{name}: cannot be read: {error.strerror}")
            if not changed:
                missing.append(self._describe(pattern))
        return Written(files, tuple(missing))

    def _describe(self, pattern: str) -> str:
        there = sum(1 for _ in _states([pattern]))
        if not there:
            return f"{pattern}: no such file"
        return f"{pattern}: {there} there, none was written by this run"


class Lines:
    """Finds matches in the lines of a byte stream that arrives in pieces.

    A match's first group is what counts, or all of it where there is none; its step is how often
    that expression matched before.
    """

    def __init__(self, expressions: Sequence[str]) -> None:
        self._expressions = [(text, re.compile(text.encode())) for text in expressions]
        self._rest = b""
        self._count = dict.fromkeys(expressions, 0)
        self._found: list[tuple[str, int, str]] = []

    def feed(self, data: bytes) -> None:
        """Takes the next piece."""
        *lines, self._rest = _LINE_END.split(self._rest + data)
        for line in lines:
            self._read(line)

    def close(self) -> list[tuple[str, int, str]]:
        """(stream, step, digest) of every match; a last line without an end counts."""
        self._read(self._rest)
        self._rest = b""
        return list(self._found)

    def missing(self) -> tuple[str, ...]:
        """The expressions that nothing matched."""
        return tuple(text for text, count in self._count.items() if not count)

    def _read(self, line: bytes) -> None:
        for text, expression in self._expressions:
            match = expression.search(line)
            if match is None:
                continue
            value = match.group(1) if expression.groups else match.group(0)
            digest = "sha256:" + hashlib.sha256(value or b"").hexdigest()
            self._found.append((f"stdout:{text}", self._count[text], digest))
            self._count[text] += 1


def _states(globs: Sequence[str]) -> Iterator[tuple[str, _State]]:
    """Names (as the globs give them) and states of the regular files that match."""
    for name in sorted({name for text in globs for name in glob.glob(text, recursive=True)}):
        if os.path.isfile(name):
            found = os.stat(name)
            yield name, (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _digest(name: str) -> str:
    digest = hashlib.sha256()
    with open(name, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return "sha256:" + digest.hexdigest()
