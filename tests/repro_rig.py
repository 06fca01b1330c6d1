"""Folders of repros/ in the tests: copies to run in, their commands, their repro.py as a module."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from tests.command_rig import REPO

REPROS = REPO / "repros"


def copied(name: str, place: Path) -> Path:
    """A copy of one folder, so that what runs in it leaves nothing behind."""
    left_out = shutil.ignore_patterns("__pycache__", ".stackbisect")
    return Path(shutil.copytree(REPROS / name, place / name, ignore=left_out))


def words(command: Iterable[str]) -> list[str]:
    """A command of ours without its own name, with the interpreter of the tests as python."""
    _, *rest = command
    return [sys.executable if word == "python" else word for word in rest]


def shown(name: str, start: str) -> list[str]:
    """The lines of a folder's README that begin so: what a command is said to print."""
    text = (REPROS / name / "README.md").read_text()
    return [line for line in text.splitlines() if line.startswith(start)]


def programs(place: Path) -> Path:
    """A folder for PATH: our commands as if they were installed, and the tests' interpreter."""
    place.mkdir()
    sources = f"{REPO}:{REPO / 'bisect'}"
    for name in ("pinner", "stackbisect", "python"):
        script = f'exec {sys.executable} "$@"'
        if name != "python":
            script = f'PYTHONPATH={sources} exec {sys.executable} -m {name} "$@"'
        (place / name).write_text(f"#!/bin/sh\n{script}\n")
        (place / name).chmod(0o755)
    return place


def module(name: str, file: str = "repro.py") -> ModuleType:
    """A program of a folder, imported anew: that computes nothing."""
    spec = importlib.util.spec_from_file_location(f"{file[:-3]}_{name}", REPROS / name / file)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found  # where dataclasses look their module up
    spec.loader.exec_module(found)
    return found
