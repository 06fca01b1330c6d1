"""Finds the evidence files a command wrote in its container, by glob, without running anything."""

from __future__ import annotations

import io
import posixpath
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Protocol

from stackbisect.probe import InfrastructureError
from stackbisect.runtimes.archive import ArchiveError, members


class Source(Protocol):
    """What is asked of a container that has ended (`docker_engine.Engine` has it)."""

    def changes(self, container: str) -> list[str]:
        """Paths made or changed outside mounts."""

    def get(self, container: str, path: str) -> Iterator[bytes]:
        """The tar of a path; FileNotFoundError where there is none."""


@dataclass(frozen=True)
class Ended:
    """A container that has ended: its mounts' targets, and its start by the daemon's clock."""

    id: str
    workdir: str
    mounts: tuple[str, ...]
    started: float


def fetch(source: Source, ended: Ended, globs: Sequence[str], target: Path) -> Mapping[str, Path]:
    """Copy the files that match `globs` and were written by the command below `target`.

    Relative globs count from the working folder. Returns each file under the name it had there
    (relative where its glob was). Raises InfrastructureError where the daemon's archive is torn.
    """
    found: dict[str, Path] = {}
    if not globs:
        return found
    changed = source.changes(ended.id)
    for glob in globs:
        whole = posixpath.normpath(posixpath.join(ended.workdir, glob))
        pattern = re.compile(translate(whole))
        places = [path for path in changed if pattern.fullmatch(path)]
        places += _in_mounts(whole, ended.mounts)
        for path, content in _files(source, ended, places):
            if not pattern.fullmatch(path):
                continue
            name = path if glob.startswith("/") else posixpath.relpath(path, ended.workdir)
            place = target / f"{len(found)}"
            found.setdefault(name, place)
            with found[name].open("wb") as out:
                shutil.copyfileobj(content, out)
    return found


def translate(glob: str) -> str:
    """Return a regular expression for a glob: `*` and `?` stay within a folder, `**` does not."""
    parts = []
    for token in re.findall(r"\*\*/|\*\*|\*|\?|\[!?\]?[^\]]*\]|.", glob, re.DOTALL):
        if token == "**/":
            parts.append("(?:.*/)?")
        elif token == "**":
            parts.append(".*")
        elif token == "*":
            parts.append("[^/]*")
        elif token == "?":
            parts.append("[^/]")
        elif token[0] == "[" and len(token) > 1:
            inner = token[1:-1].replace("\\", "\\\\")
            parts.append(f"[^{inner[1:]}]" if inner.startswith("!") else f"[{inner}]")
        else:
            parts.append(re.escape(token))
    return "".join(parts)


def seconds(stamp: str) -> float:
    """Return the engine's time (`2026-01-02T03:04:05.678901234Z`) as seconds since the epoch."""
    match = re.fullmatch(r"([\d-]+T[\d:]+)(?:\.\d+)?(Z|[+-][\d:]+)", stamp)
    if match is None:
        return 0.0
    zone = "+00:00" if match[2] == "Z" else match[2]
    return datetime.fromisoformat(match[1] + zone).timestamp()


def _in_mounts(glob: str, mounts: Iterable[str]) -> list[str]:
    """Where in mounts files of `glob` can be: the changes of a container leave mounts out."""
    fixed = PurePosixPath(*_fixed(PurePosixPath(glob).parts))
    found = []
    for mount in map(PurePosixPath, mounts):
        if fixed.is_relative_to(mount):
            found.append(str(fixed))
        elif mount.is_relative_to(fixed):
            found.append(str(mount))
    return found


def _fixed(parts: Sequence[str]) -> Iterator[str]:
    for part in parts:
        if re.search(r"[*?[]", part):
            return
        yield part


def _files(
    source: Source, ended: Ended, places: Iterable[str]
) -> Iterator[tuple[str, io.RawIOBase]]:
    """Yield path and content of every regular file at or below `places` the command wrote."""
    for place in dict.fromkeys(places):
        try:
            stream = source.get(ended.id, place)
        except FileNotFoundError:
            continue
        parent = posixpath.dirname(place)
        try:
            for info, content in members(stream):
                if content is not None and info.mtime >= ended.started:
                    yield posixpath.normpath(posixpath.join(parent, info.name)), content
        except ArchiveError as error:
            raise InfrastructureError(f"{place} in container {ended.id[:12]}: {error}") from error
