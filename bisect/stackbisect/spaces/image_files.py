"""Every file of one image: what it is, a digest of what is in it, and the texts that name owners.

Read from the exported file system in one pass, so that nothing of the image runs. From two of these
everything else follows without a container: what differs, what belongs to whom, what a graft must
remove and copy.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from stackbisect.runtimes.archive import members

FORMAT = 1
"""Version of the cached form; a cache of another version is read anew."""

DIGEST = 16
"""Hex digits of a file's SHA-256 that are kept: enough to tell the files of two images apart."""

# Made by the daemon in every container, never part of the image.
_NOT_OF_THE_IMAGE = frozenset(
    (".dockerenv", "dev/console", "etc/hostname", "etc/hosts", "etc/mtab", "etc/resolv.conf")
)
_KERNEL = ("proc", "sys", "dev")
_LINKS_LIMIT = 40
_CHUNK = 1 << 20

DPKG = "var/lib/dpkg"
_DPKG_TEXT = re.compile(
    r"var/lib/dpkg/(?:status|status\.d/[^/]+|info/[^/]+\.list|alternatives/[^/]+)"
)
_METADATA_LIMIT = 4 << 20


class Entry(NamedTuple):
    """One path. `kind`: f(ile), d(irectory), l(ink), o(ther). A hard link is a file.

    `mark` is the digest of a file's content, or where a symbolic link leads.
    """

    kind: str
    mode: int
    uid: int
    gid: int
    mark: str


@dataclass(frozen=True)
class ImageFiles:
    """The files of one image by path, without the leading slash.

    `texts` holds the content of what names owners: METADATA, RECORD and the like, dpkg's lists.
    """

    entries: Mapping[str, Entry] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)

    def canonical(self, path: str, without: Collection[str] = ()) -> str:
        """The path with every linked folder on the way resolved; the last part is not followed.

        dpkg says /lib/x where the file is in /usr/lib (the merged /usr), Python says lib64. The
        links `without` are taken for folders.
        """
        parent, _, name = path.strip("/").rpartition("/")
        folder = self._follow(parent, without) if without else self.folder(parent)
        return f"{folder}/{name}".lstrip("/") if parent else name

    def folder(self, path: str) -> str:
        """A folder's real path: every link followed. A path that is not there stays as it is."""
        found = self._folders.get(path)
        if found is None:
            found = self._follow(path)
            self._folders[path] = found
        return found

    def target(self, path: str) -> str:
        """The real path of what `path` leads to in the end: every link followed."""
        return self._follow(path.strip("/"))

    @cached_property
    def _folders(self) -> dict[str, str]:
        return {}

    def _follow(self, path: str, without: Collection[str] = ()) -> str:
        left = [part for part in path.split("/") if part not in ("", ".")]
        done: list[str] = []
        followed = 0
        while left:
            part = left.pop(0)
            if part == "..":
                done[-1:] = []
                continue
            here = "/".join([*done, part])
            entry = None if here in without else self.entries.get(here)
            if entry is None or entry.kind != "l" or followed >= _LINKS_LIMIT:
                done.append(part)
                continue
            followed += 1
            if entry.mark.startswith("/"):
                done = []
            left[:0] = [each for each in entry.mark.split("/") if each not in ("", ".")]
        return "/".join(done)

    @cached_property
    def children(self) -> Mapping[str, tuple[str, ...]]:
        """The names in each folder; the image's root is ""."""
        found: dict[str, list[str]] = {}
        for path in self.entries:
            parent, _, name = path.rpartition("/")
            found.setdefault(parent, []).append(name)
        return {folder: tuple(sorted(names)) for folder, names in found.items()}

    def below(self, folder: str) -> list[str]:
        """Every path below a folder that is no folder itself."""
        found: list[str] = []
        pending = [folder]
        while pending:
            place = pending.pop()
            for name in self.children.get(place, ()):
                path = f"{place}/{name}".lstrip("/")
                (pending if self.entries[path].kind == "d" else found).append(path)
        return sorted(found)


def read(export: Iterable[bytes]) -> ImageFiles:
    """Read an exported file system (tar chunks). Raises ArchiveError where it is cut."""
    entries: dict[str, Entry] = {}
    texts: dict[str, str] = {}
    for info, content in members(export):
        path = plain(info.name)
        if not path or _is_not_of_the_image(path):
            continue
        kind, mark = "d" if info.isdir() else "o", ""
        if content is not None:
            kind, mark = "f", _take(path, content, texts)
        elif info.issym():
            kind, mark = "l", info.linkname
        elif info.islnk():
            kind, mark = _take_twin(path, plain(info.linkname), entries, texts)
        entries[path] = Entry(kind, info.mode & 0o7777, info.uid, info.gid, mark)
    return ImageFiles(entries, texts)


def plain(name: str) -> str:
    """A member's name as a path without the leading `./` or `/`."""
    return "/".join(part for part in name.split("/") if part not in ("", "."))


def _is_not_of_the_image(path: str) -> bool:
    top, inside, _ = path.partition("/")
    return path in _NOT_OF_THE_IMAGE or (top in _KERNEL and bool(inside))


def digest(content: io.RawIOBase) -> str:
    """A file's digest as it stands in `Entry.mark`."""
    found = hashlib.sha256()
    while piece := content.read(_CHUNK):
        found.update(piece)
    return found.hexdigest()[:DIGEST]


def _take(path: str, content: io.RawIOBase, texts: dict[str, str]) -> str:
    found = hashlib.sha256()
    wanted = names_owners(path)
    kept = b""
    while piece := content.read(_CHUNK):
        found.update(piece)
        if wanted and len(kept) < _METADATA_LIMIT:
            kept += piece
    if wanted:
        texts[path] = kept.decode("utf-8", "surrogateescape")
    return found.hexdigest()[:DIGEST]


def _take_twin(
    path: str, twin: str, entries: Mapping[str, Entry], texts: dict[str, str]
) -> tuple[str, str]:
    """A second name of a file that came before: installers that keep a cache link from it."""
    first = entries.get(twin)
    if first is None or first.kind != "f":
        return "o", ""
    if twin in texts and names_owners(path):
        texts[path] = texts[twin]
    return "f", first.mark


def names_owners(path: str) -> bool:
    """True for the files that say which files belong to what."""
    place = PurePosixPath(path)
    if place.parent.suffix == ".dist-info":
        return place.name in ("METADATA", "RECORD", "top_level.txt")
    if place.parent.suffix == ".egg-info":
        return place.name in ("PKG-INFO", "installed-files.txt", "top_level.txt")
    return place.suffix == ".egg-info" or _DPKG_TEXT.fullmatch(path) is not None


def dumps(files: ImageFiles) -> str:
    """The cached text of one image's files."""
    value = {"format": FORMAT, "entries": dict(files.entries), "texts": dict(files.texts)}
    return json.dumps(value, separators=(",", ":"))


def loads(text: str) -> ImageFiles | None:
    """The inverse of `dumps`; None where it is torn or of another version."""
    try:
        value: Any = json.loads(text)
        if value["format"] != FORMAT:
            return None
        entries = {path: Entry(*fields) for path, fields in value["entries"].items()}
        return ImageFiles(entries, value["texts"])
    except (ValueError, KeyError, TypeError):
        return None
