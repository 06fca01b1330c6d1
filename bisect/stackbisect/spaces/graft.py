"""What makes one image out of another by copying components: removed paths, copied paths, and tars.

A component's own files go from the base where the donor lacks them and come from the donor as they
are there. Everything is decided from the two images' files before a container is touched.
"""

from __future__ import annotations

import posixpath
import re
import shlex
import tarfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from stackbisect.runtimes.archive import members
from stackbisect.spaces.components import Component
from stackbisect.spaces.image_files import ImageFiles, plain
from stackbisect.spaces.inventory import Pair, family
from stackbisect.spaces.ownership import STATUS, Owned, stanzas

_AT_ONCE = 200
"""Paths on one line of the script: far below what a command's arguments may be (ARG_MAX)."""


@dataclass(frozen=True)
class Graft:
    """What is done to the base's files. Paths are without the leading slash.

    `remove` are files and links, `remove_folders` folders that become empty, deepest first.
    `copy` maps a donor's path to its place in the base; `folders` are made for them, as path →
    the donor's folder they are like. `write` are new contents of files of the base.
    """

    remove: tuple[str, ...] = ()
    remove_folders: tuple[str, ...] = ()
    copy: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[str, str] = field(default_factory=dict)
    write: Mapping[str, str] = field(default_factory=dict)

    @property
    def changes_libraries(self) -> bool:
        """True where the loader's cache may be wrong afterwards."""
        paths = [*self.remove, *self.copy.values()]
        return any(family(path) or path.startswith("etc/ld.so") for path in paths)

    @property
    def removes_first(self) -> bool:
        """True where something to be removed stands in the way of what is copied."""
        gone = set(self.remove)
        return any(not gone.isdisjoint(_parents(path)) for path in self.copy.values())

    @property
    def empty(self) -> bool:
        """True where the base stays as it is."""
        return not (self.remove or self.copy or self.write)


def plan(pair: Pair, components: Sequence[Component]) -> Graft:
    """How `components` come from the good image (the donor) into the bad one (the base).

    Variables are no files and left out.
    """
    base, donor = pair.bad, pair.good
    swapped = frozenset(component.id for component in components)
    own = _own(pair, components, swapped)
    # What is a link here and on the way to a donor's file is a folder there: it goes.
    links = frozenset(path for path in own if base.files.entries[path].kind == "l")
    copy: dict[str, str] = {}
    for component in components:
        here, there = pair.paths(component, base), pair.paths(component, donor)
        moved = _moved_folders(here, there) if component.kind == "library" else {}
        for path in there:
            folder, name = posixpath.split(path)
            copy[path] = base.files.canonical(f"{moved.get(folder, folder)}/{name}", links)
    for path in _switches(base, donor, components) - set(copy):
        copy[path] = base.files.canonical(path, links)
    targets = set(copy.values())
    remove = own - targets
    changed = {path: target for path, target in copy.items() if not _is_same(pair, path, target)}
    return Graft(
        remove=tuple(sorted(remove)),
        remove_folders=tuple(emptied(base.files, remove, targets)),
        copy=changed,
        folders=_new_folders(pair, changed),
        write=_status(base, donor, components),
    )


def _own(pair: Pair, components: Sequence[Component], swapped: frozenset[str]) -> set[str]:
    """The base's files that go where the donor does not bring them again."""
    found: set[str] = set()
    for component in components:
        here = pair.paths(component, pair.bad)
        if component.kind in ("distribution", "package"):
            # Two distributions may bring one file (nvidia/__init__.py): it goes with the last.
            here = frozenset(path for path in here if pair.bad.owners[path] <= swapped)
        found |= here
    return found


def _moved_folders(here: Collection[str], there: Collection[str]) -> dict[str, str]:
    """Donor's folder → the base's, where a library lies in folders named after a release.

    The base's loader looks in its own (/usr/local/cuda-12.4), not in the donor's (cuda-12.2).
    Copies in a folder that both have stay there.
    """
    base, donor = ({posixpath.dirname(path) for path in paths} for paths in (here, there))
    ours, theirs = sorted(base - donor), sorted(donor - base)
    if len(ours) != len(theirs):
        return {}
    return dict(zip(theirs, ours, strict=True))


def _switches(base: Owned, donor: Owned, components: Sequence[Component]) -> set[str]:
    """Alternatives that a removed package was chosen for: the donor's choice takes its place."""
    found: set[str] = set()
    for component in components:
        part = base.packages.get(component.name) if component.kind == "package" else None
        if part is not None:
            found |= {path for path in part.switches if path in donor.files.entries}
    return found


def _is_same(pair: Pair, path: str, target: str) -> bool:
    theirs, ours = pair.good.files.entries[path], pair.bad.files.entries.get(target)
    return theirs == ours


def emptied(files: ImageFiles, removed: Collection[str], targets: Iterable[str]) -> list[str]:
    """The folders in which nothing is left, deepest first.

    An empty NAME.dist-info would still be a distribution to Python.
    """
    gone = set(removed)
    kept = {parent for path in targets for parent in _parents(path)}
    found: list[str] = []
    folders = {parent for path in removed for parent in _parents(path)} - kept
    for folder in sorted(folders, key=lambda path: (-path.count("/"), path)):
        inside = files.children.get(folder, ())
        if all(f"{folder}/{name}" in gone for name in inside):
            gone.add(folder)
            found.append(folder)
    return found


def _parents(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _new_folders(pair: Pair, copy: Mapping[str, str]) -> dict[str, str]:
    """The folders that the base lacks, outermost first, each with the donor's."""
    found: dict[str, str] = {}
    for path, target in copy.items():
        theirs = list(_parents(path))
        for place, parent in enumerate(_parents(target)):
            entry = pair.bad.files.entries.get(parent)
            if entry is None or entry.kind != "d":
                found[parent] = theirs[place] if place < len(theirs) else ""
    return dict(sorted(found.items()))


def _status(base: Owned, donor: Owned, components: Sequence[Component]) -> dict[str, str]:
    """dpkg's `status` with the packages' own paragraphs taken from the donor."""
    packages = [component.name for component in components if component.kind == "package"]
    if not packages or STATUS not in base.files.texts:
        return {}
    paragraphs = stanzas(base.files.texts[STATUS])
    for name in packages:
        part = donor.packages.get(name)
        if part is None:
            paragraphs.pop(name, None)
        else:
            paragraphs[name] = part.stanza
    return {STATUS: "".join(f"{text}\n\n" for text in paragraphs.values())}


# -- scripts and tars ------------------------------------------------------------------------------


def removal(graft: Graft) -> str:
    """Lines for a POSIX shell that remove what must go."""
    lines = [f"rm -f -- {words}" for words in _quoted(graft.remove)]
    # A folder stays where the container's start put something in.
    lines += [f"rmdir -- {words} 2>/dev/null || :" for words in _quoted(graft.remove_folders)]
    return "".join(f"{line}\n" for line in lines)


def _quoted(paths: Sequence[str]) -> Iterator[str]:
    for start in range(0, len(paths), _AT_ONCE):
        yield " ".join(shlex.quote(f"/{path}") for path in paths[start : start + _AT_ONCE])


def roots(files: ImageFiles, wanted: Collection[str]) -> list[str]:
    """The fewest paths that hold all that is wanted and no other file: whole folders, or files."""
    left: dict[str, int] = {}
    for path in wanted:
        for parent in _parents(path):
            left[parent] = left.get(parent, 0) + 1
    whole = {folder for folder, count in left.items() if len(files.below(folder)) == count}
    found = set()
    for path in wanted:
        covering = [parent for parent in _parents(path) if parent in whole]
        found.add(covering[-1] if covering else path)
    return sorted(found)


class Readable(Protocol):
    """A member's content."""

    def read(self, size: int = -1, /) -> bytes | None:
        """Up to `size` bytes; nothing at the end."""


Piece = tuple[tarfile.TarInfo, Readable | None]


@dataclass
class Copier:
    """Turns tars of the donor's paths into members for the base.

    `missing` are the paths that were wanted and not seen yet. A hard link to a file that is not
    copied stays in it: that path must be fetched by itself, which gives a file.
    """

    graft: Graft
    missing: set[str] = field(default_factory=set)
    _sent: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Nothing was seen yet."""
        self.missing = set(self.graft.copy)

    def pieces(self, stream: Iterable[bytes], parent: str) -> Iterator[Piece]:
        """The wanted members of one tar, whose names are relative to the folder `parent`."""
        own: set[str] = set()
        for info, content in members(stream):
            path = plain(f"{parent}/{info.name}")
            target = self.graft.copy.get(path)
            if target is None or path not in self.missing or info.isdir():
                continue
            if info.islnk():
                twin = plain(f"{parent}/{info.linkname}")
                if twin not in own:
                    continue
                info.linkname = self.graft.copy[twin]
            own.add(path)
            self.missing.discard(path)
            info.name = target
            info.pax_headers = {k: v for k, v in info.pax_headers.items() if _is_kept(k)}
            yield info, content


def _is_kept(header: str) -> bool:
    """Extended attributes (capabilities of a program) stay; names are written anew."""
    return re.match(r"(SCHILY|LIBARCHIVE)\.xattr\.", header) is not None


def folders(graft: Graft, donor: ImageFiles) -> Iterator[Piece]:
    """The members for new folders."""
    for path, like in graft.folders.items():
        info = tarfile.TarInfo(path)
        entry = donor.entries.get(like)
        info.type, info.mode = tarfile.DIRTYPE, 0o755 if entry is None else entry.mode
        if entry is not None:
            info.uid, info.gid = entry.uid, entry.gid
        yield info, None


def tar(pieces: Iterable[Piece]) -> Iterator[bytes]:
    """A tar of members, in chunks; nothing is held in memory."""
    for info, content in pieces:
        yield info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
        if content is None:
            continue
        left = info.size
        while left > 0:
            chunk = content.read(min(left, 1 << 20)) or b""
            if not chunk:
                raise EOFError(f"{info.name} ends {left} bytes too early")
            left -= len(chunk)
            yield chunk
        yield b"\0" * (-info.size % tarfile.BLOCKSIZE)
    yield b"\0" * (2 * tarfile.BLOCKSIZE)
