"""What the processes of a container really loaded, held against what its image was made for.

Requested is not loaded: a library of the system's can shadow a wheel's (flashinfer#2468), another
site-packages can come first. A mismatch names what was asked for and what was found.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stackbisect.runtimes import loaded
from stackbisect.spaces import versions
from stackbisect.spaces.inventory import family

HOOK = "hook"
LOADED = "loaded"

_COPIED = {
    "sitecustomize.py": "container_hook.py",
    "_stackbisect_loaded.py": "loaded_hook.py",
    "_stackbisect_host.py": "host.py",
}
"""Name in the container → file here. They are read, never imported: the first acts when it is."""

Digest = Callable[[str], str | None]
"""The digest of a file in the container (as in an image's files); None where it has no content."""


@dataclass(frozen=True)
class Library:
    """A library family that was swapped.

    `what` asks for it. `wanted` are digests of which one must be loaded, where the family is at
    all; `gone` are of what was taken away.
    """

    what: str
    wanted: frozenset[str] = frozenset()
    gone: frozenset[str] = frozenset()

    def joined(self, other: Library) -> Library:
        """One family of which two components have copies."""
        wanted = self.wanted | other.wanted
        return Library(self.what, wanted, (self.gone | other.gone) - wanted)


@dataclass(frozen=True)
class Expected:
    """What must be loaded. `distributions`: name → version, None for none."""

    distributions: Mapping[str, str | None] = field(default_factory=dict)
    libraries: Mapping[str, Library] = field(default_factory=dict)


NOTHING = Expected()
"""Of an image that nothing was swapped in."""


@dataclass(frozen=True)
class Told:
    """What the processes of one probe told. `asked`: name → (version, site) each, None for none."""

    found: loaded.Loaded
    asked: Mapping[str, tuple[tuple[str, str] | None, ...]] = field(default_factory=dict)
    host: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """What goes into the journal."""
        return {
            "processes": self.found.processes,
            "ended_normally": self.found.ended,
            "modules": {
                name: [version, file]
                for name, (version, file) in sorted(self.found.modules.items())
                if version
            },
            "libraries": list(self.found.libraries),
        }


def place(session: Path) -> None:
    """Put the hook and an empty folder for what is told into a probe's session folder."""
    (session / LOADED).mkdir(exist_ok=True)
    hook = session / HOOK
    hook.mkdir(exist_ok=True)
    for name, source in _COPIED.items():
        (hook / name).write_bytes(Path(__file__).with_name(source).read_bytes())


def variables(session: str, asked: Iterable[str]) -> dict[str, str]:
    """What the hook reads; `session` is where the command sees that folder."""
    return {
        "STACKBISECT_LOADED": f"{session}/{LOADED}",
        "STACKBISECT_ASKED": ",".join(sorted(asked)),
    }


def read(session: Path) -> Told:
    """Read what was told."""
    folder = session / LOADED
    asked: dict[str, list[tuple[str, str] | None]] = {}
    seen: dict[str, Any] = {}
    for path in sorted(folder.glob("*.json")):
        one = _json(path)
        seen = one.get("host") or seen
        for name, value in (one.get("asked") or {}).items():
            asked.setdefault(name, []).append(None if value is None else (value[0], value[1]))
    return Told(
        found=loaded.read(folder),
        asked={name: tuple(values) for name, values in asked.items()},
        host=seen,
    )


def fault(expected: Expected, told: Told, digest: Digest) -> str:
    """Why what was loaded is not what was asked for; "" where it is, or where nobody can tell."""
    for name, version in expected.distributions.items():
        text = _fault_of_distribution(name, version, told.asked.get(name, ()))
        if text:
            return text
    by_family: dict[str, list[str]] = {}
    for path in told.found.libraries:
        name = family(path) or ""
        if name in expected.libraries:
            by_family.setdefault(name, []).append(path)
    for name, paths in by_family.items():
        text = _fault_of_library(expected.libraries[name], name, paths, digest)
        if text:
            return text
    return ""


def _fault_of_distribution(
    name: str, version: str | None, seen: Sequence[tuple[str, str] | None]
) -> str:
    found = [each for each in seen if each is not None]
    if not found:
        return ""  # an environment that the workload's Python does not look into
    if version is None:
        return f"asked for no {name}, Python finds {found[0][0]} in {found[0][1]}"
    if not versions.is_version(version) or any(versions.same(v, version) for v, _ in found):
        return ""
    return f"asked for {name} {version}, Python finds {found[0][0]} in {found[0][1]}"


def _fault_of_library(library: Library, name: str, paths: Sequence[str], digest: Digest) -> str:
    known = {path: mark for path in paths if (mark := digest(path)) is not None}
    wrong = [path for path, mark in known.items() if mark in library.gone]
    if library.wanted and library.wanted.isdisjoint(known.values()):
        wrong += known
    if not wrong:
        return ""
    found = f"{wrong[0]} ({known[wrong[0]][:8]})"
    return f"asked for {name} of {library.what}, loaded is {found}"


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
