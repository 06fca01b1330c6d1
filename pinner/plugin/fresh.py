"""The same call in a fresh process: the test is started again there, up to the call.

The fresh process takes inputs and random state from a file, so that a test which draws its inputs
anew each time is compared all the same. Its compile caches are empty.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pinner.launch.session_dir import fresh_caches
from pinner.plugin.repeat import Call, NotRepeatable, one_run, prepared
from pinner.plugin.state import random_state
from pinner.plugin.values import Value

FOLDER = "PINNER_PLUGIN_FRESH"
_LONGEST_TAIL = 2000


@dataclass(frozen=True)
class Place:
    """How one test is started again. number: which call of `repeatable` in it, from 0."""

    words: tuple[str, ...]
    cwd: str
    number: int


def asked(environ: Mapping[str, str], number: int) -> Path | None:
    """The folder of a fresh process that is to make this call; None in any other process."""
    folder = environ.get(FOLDER)
    if not folder:
        return None
    wanted = (Path(folder) / "call").read_text(encoding="utf-8")
    return Path(folder) if wanted == str(number) else None


def inside_one(environ: Mapping[str, str]) -> bool:
    """Whether this process was started for one call."""
    return bool(environ.get(FOLDER))


def answer(call: Call, folder: Path) -> None:
    """In the fresh process: makes the call and leaves its values."""
    given = pickle.loads((folder / "given").read_bytes())
    with prepared(call) as inputs:
        inputs.replace(given["memory"])
        left = one_run(call, inputs, given["random"])
    (folder / "left").write_bytes(pickle.dumps(left))


def run(call: Call, place: Place, environ: Mapping[str, str], name: str) -> list[Value]:
    """In the test's process: the values of the call in a fresh one. Raises `NotRepeatable`."""
    with tempfile.TemporaryDirectory(prefix="pinner-fresh-") as text:
        folder = Path(text)
        with prepared(call) as inputs:
            given = {"memory": inputs.memory(), "random": random_state()}
        (folder / "given").write_bytes(pickle.dumps(given))
        (folder / "call").write_text(str(place.number), encoding="utf-8")
        done = _start(place.words, place.cwd, {**_bare(environ), FOLDER: text})
        if not (folder / "left").exists():
            tail = (done.stdout + done.stderr)[-_LONGEST_TAIL:]
            raise NotRepeatable(f"{name} did not come to the call; it said:\n{tail}")
        found: list[Value] = pickle.loads((folder / "left").read_bytes())
        return found


def _start(words: Sequence[str], cwd: str, environ: Mapping[str, str]) -> Any:
    with fresh_caches(environ) as own:
        return subprocess.run(
            [sys.executable, "-m", "pytest", *words],
            cwd=cwd,
            env=own,
            capture_output=True,
            text=True,
            errors="replace",
        )


def _bare(environ: Mapping[str, str]) -> dict[str, str]:
    """Without what a worker of xdist and this test have set; what pytest imports is found again."""
    dropped = ("PYTEST_XDIST_", "PYTEST_CURRENT_TEST")
    kept = {name: value for name, value in environ.items() if not name.startswith(dropped)}
    own = str(Path(__file__).resolve().parents[2])
    if own in sys.path:
        paths = kept.get("PYTHONPATH", "").split(os.pathsep)
        kept["PYTHONPATH"] = os.pathsep.join([*filter(None, paths), own])
    return kept
