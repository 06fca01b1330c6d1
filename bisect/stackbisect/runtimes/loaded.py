"""What a probe's processes really loaded, held against what was asked for."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stackbisect.spaces import versions

# Top-level names that wheels bring by mistake and projects have of their own.
_ANYBODYS = frozenset(("benchmarks", "docs", "examples", "scripts", "test", "tests", "tools"))


@dataclass(frozen=True)
class Loaded:
    """What the processes of one probe loaded from where.

    `processes`: how many interpreters of the environment were started; `ended`: how many of them
    came to a normal end and told the rest. `modules`: top-level module → version and file.
    `libraries`: shared libraries mapped.
    """

    processes: int = 0
    ended: int = 0
    modules: Mapping[str, tuple[str | None, str]] = field(default_factory=dict)
    libraries: tuple[str, ...] = ()


@dataclass(frozen=True)
class Asked:
    """What a candidate is supposed to be. `modules`: top-level modules of the package."""

    package: str
    version: str
    installed: str
    modules: tuple[str, ...]
    prefix: Path


def read(folder: Path) -> Loaded:
    """Put together what every process wrote (`loaded_hook`)."""
    found = [_read_one(path) for path in sorted(folder.glob("*.json"))]
    modules: dict[str, tuple[str | None, str]] = {}
    libraries: set[str] = set()
    for each in found:
        for name, (version, file) in each.get("modules", {}).items():
            modules[name] = (version, file)
        libraries.update(each.get("libraries", ()))
    return Loaded(
        processes=len(found),
        ended=sum(bool(each.get("ended")) for each in found),
        modules=modules,
        libraries=tuple(sorted(libraries)),
    )


def fault(asked: Asked, found: Loaded) -> str:
    """Why what was loaded is not what was asked for; "" where it is."""
    if not versions.same(asked.installed, asked.version):
        installed = asked.installed or "nothing"
        return f"asked for {asked.package} {asked.version}, installed is {installed}"
    if not found.processes:
        return (
            f"no Python of the candidate's environment ran ({asked.prefix}/bin/python); "
            "name the interpreter `python` in the command, not by another path"
        )
    for name in asked.modules:
        if name not in found.modules:
            continue
        version, file = found.modules[name]
        if not _below(file, asked.prefix):
            return f"{name} was loaded from {file}, not from the candidate's environment"
        if version and versions.is_version(version) and not versions.same(version, asked.version):
            return (
                f"asked for {asked.package} {asked.version}, but {name}.__version__ is {version}: "
                "another distribution has overwritten it"
            )
    return ""


def elsewhere(
    name: str, modules: Sequence[str], libraries: Sequence[Path], prefix: Path, found: Loaded
) -> str:
    """Where a distribution of the environment was loaded from instead; "" where it was not.

    A shared library counts by its file's name, and only where no process mapped the environment's
    own: a system's cuBLAS shadows the wheel's that way (flashinfer-ai/flashinfer#2468).
    """
    for module in set(modules) - _ANYBODYS:
        file = found.modules.get(module, (None, ""))[1]
        if file and not _below(file, prefix):
            return (
                f"{module} of {name} was loaded from {file}, not from the candidate's environment"
            )
    own = {os.path.basename(path) for path in found.libraries if _below(path, prefix)}
    wanted = {path.name for path in libraries} - own
    for path in found.libraries:
        if os.path.basename(path) in wanted:
            return f"{path} was loaded, not the one of {name} in the candidate's environment"
    return ""


def to_json(asked: Asked, found: Loaded) -> dict[str, Any]:
    """What goes into the journal: paths below the environment are written from `{env}`."""
    return {
        "package": asked.package,
        "asked": asked.version,
        "installed": asked.installed,
        "processes": found.processes,
        "ended_normally": found.ended,
        "modules": {
            name: [version, _short(file, asked.prefix)]
            for name, (version, file) in sorted(found.modules.items())
            if version or name in asked.modules
        },
        "libraries": _short_all(found.libraries, asked.prefix),
    }


def _short_all(paths: Sequence[str], prefix: Path) -> list[str]:
    return [_short(path, prefix) for path in paths]


def _short(path: str, prefix: Path) -> str:
    return "{env}" + path[len(str(prefix)) :] if _below(path, prefix) else path


def _below(path: str, prefix: Path) -> bool:
    return path.startswith(str(prefix) + "/")


def _read_one(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
