"""Real versions of numpy and scipy, each in an environment without torch that is made once."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests import lanes
from tests.stackbisect import services


def packages(interpreter: str, requirements: Sequence[str]) -> Path:
    """A folder for sys.path with these distributions for an interpreter, and no others.

    Made once and kept under a name that says what it was made from. A skip where the index has
    none of them, and a failure where services are required.
    """
    text = json.dumps([interpreter, *requirements])
    name = f"packages-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    with services.locked(name) as place:
        folder = place / name
        if folder.exists():
            return folder
        draft = place / f"{name}.draft"
        shutil.rmtree(draft, ignore_errors=True)
        pip = [interpreter, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:"]
        done = subprocess.run(
            [*pip, "--target", str(draft), *requirements], capture_output=True, text=True
        )
        wanted = ", ".join(requirements)
        lanes.require(done.returncode == 0, f"{wanted} cannot be had: {done.stderr.strip()[-200:]}")
        draft.rename(folder)
        return folder


def environment(folder: Path, requirements: Sequence[str]) -> Path:
    """The interpreter of a new environment in `folder` with these distributions, and no others."""
    found = packages(sys.executable, requirements)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    # A link each, as an installed package: a path file would bring them in after all others.
    for path in found.iterdir():
        (site / path.name).symlink_to(path)
    return folder / "bin" / "python"
