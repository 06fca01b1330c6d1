"""How a wheel gets into an image that has no pip: which files go where, and what they replace.

As pip does it for one wheel without its dependencies (PyPA's binary distribution format): the
archive's root goes into site-packages, `.data` folders to their places, entry points into bin.
"""

from __future__ import annotations

import configparser
import io
import posixpath
import re
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from stackbisect.spaces.graft import Graft, Piece, emptied
from stackbisect.spaces.ownership import Owned

_SCRIPT = """#!/usr/bin/env python3
import sys
from {module} import {first}
if __name__ == "__main__":
    sys.exit({function}())
"""


class WheelError(Exception):
    """A file that is no wheel, or an image that has no place for one."""


@dataclass(frozen=True)
class WheelGraft:
    """One wheel into one image. `graft` says what is removed and which folders are new."""

    wheel: Path
    graft: Graft
    members: dict[str, str] = field(default_factory=dict)
    scripts: dict[str, str] = field(default_factory=dict)

    def pieces(self) -> Iterator[Piece]:
        """The wheel's files under their places in the image."""
        for path in self.graft.folders:
            info = tarfile.TarInfo(path)
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            yield info, None
        with zipfile.ZipFile(self.wheel) as archive:
            for path, member in self.members.items():
                mode = archive.getinfo(member).external_attr >> 16
                executable = "/bin/" in f"/{path}" or mode & stat.S_IXUSR
                yield _file(path, archive.read(member), 0o755 if executable else 0o644)
        for path, text in self.scripts.items():
            yield _file(path, text.encode(), 0o755)


def plan(base: Owned, name: str, wheel: Path) -> WheelGraft:
    """How a wheel of distribution `name` replaces what the image has of it. Raises WheelError."""
    site = site_of(base, name)
    prefix = site.rpartition("/lib")[0]
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [each for each in archive.namelist() if not each.endswith("/")]
            points = next((each for each in names if _is_points(each)), None)
            text = archive.read(points).decode() if points else ""
    except (OSError, zipfile.BadZipFile, KeyError) as error:
        raise WheelError(f"{wheel.name} is no wheel: {error}") from error
    members = {
        base.files.canonical(place): member
        for member in names
        if (place := _place(member, site, prefix)) is not None
    }
    scripts = {f"{prefix}/bin/{key}": value for key, value in _scripts(text).items()}
    targets = {*members, *scripts}
    part = base.distributions.get(name)
    own = {f"distribution:{name}"}
    old = {path for path in (part.paths if part else ()) if base.owners[path] <= own}
    remove = old - targets
    graft = Graft(
        remove=tuple(sorted(remove)),
        remove_folders=tuple(emptied(base.files, remove, targets)),
        folders=dict.fromkeys(_new_folders(base, targets), ""),
    )
    return WheelGraft(wheel, graft, members, scripts)


def site_of(base: Owned, name: str) -> str:
    """The site-packages that has the distribution, else the one with most. Raises WheelError."""
    counts: dict[str, int] = {}
    for other, part in base.distributions.items():
        for path in part.paths:
            match = re.match(r"(.*)/[^/]+\.(?:dist|egg)-info/[^/]+$", path)
            if match:
                counts[match[1]] = counts.get(match[1], 0) + (1 << 30 if other == name else 1)
    if not counts:
        raise WheelError(f"{name}: the image has no site-packages with distributions in it")
    return max(counts, key=lambda site: (counts[site], site))


def _place(member: str, site: str, prefix: str) -> str | None:
    match = re.match(r"[^/]+\.data/([^/]+)/(.+)", member)
    if match is None:
        return f"{site}/{member}" if ".." not in member.split("/") else None
    kind, rest = match.groups()
    folders = {"purelib": site, "platlib": site, "scripts": f"{prefix}/bin", "data": prefix}
    return None if kind not in folders or ".." in rest.split("/") else f"{folders[kind]}/{rest}"


def _is_points(member: str) -> bool:
    return re.fullmatch(r"[^/]+\.dist-info/entry_points\.txt", member) is not None


def _scripts(points: str) -> dict[str, str]:
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(points)
    except configparser.Error:
        return {}
    found = {}
    for name, target in parser.items("console_scripts") if "console_scripts" in parser else ():
        module, _, function = target.partition("[")[0].strip().partition(":")
        fields = {"module": module, "first": function.partition(".")[0], "function": function}
        found[name] = _SCRIPT.format(**fields)
    return found


def _new_folders(base: Owned, targets: set[str]) -> list[str]:
    found = set()
    for path in targets:
        parent = posixpath.dirname(path)
        while parent and parent not in base.files.entries:
            found.add(parent)
            parent = posixpath.dirname(parent)
    return sorted(found)


def _file(path: str, content: bytes, mode: int) -> Piece:
    info = tarfile.TarInfo(path)
    info.size, info.mode = len(content), mode
    return info, io.BytesIO(content)


# -- what a wheel must suit ------------------------------------------------------------------------


def python_of(base: Owned) -> str:
    """The version (3.11) of the Python with the most distributions; "" where none is seen."""
    counts: dict[str, int] = {}
    for path in base.files.texts:
        match = re.search(r"lib(?:64)?/python(3\.\d+)/(?:site|dist)-packages/", path)
        if match:
            counts[match[1]] = counts.get(match[1], 0) + 1
    return max(counts, key=lambda version: (counts[version], version), default="")


def platforms(base: Owned, machine: str) -> list[str]:
    """The platform tags of wheels that the image's C library can load (PEP 600), best first."""
    libc = base.packages.get("libc6")
    match = re.match(r"2\.(\d+)", libc.version) if libc is not None else None
    newest = int(match[1]) if match else 28
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(newest, 4, -1)]
    old = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
    return [*tags, *(f"{name}_{machine}" for minor, name in old.items() if minor <= newest)]
