"""Runs the `pinner` command in a folder of its own, as a user would, and reads what it said."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
# A program that takes part, says so, and waits to be ended.
READY = (
    "import pinner, time; pinner.fingerprint('a', 1); print('ready', flush=True); time.sleep(60)"
)
OWN_TRACEBACK = re.compile(r'File ".*/pinner/(launch|compare|lockfile|cli)')
WORKLOADS = REPO / "tests" / "workloads"


@dataclass(frozen=True)
class Said:
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one object on standard output."""
        value = json.loads(self.out)
        assert isinstance(value, dict)
        return value

    @property
    def lines(self) -> list[str]:
        """What pinner itself said."""
        prefix = "pinner: "
        return [t.removeprefix(prefix) for t in self.err.splitlines() if t.startswith(prefix)]

    @property
    def text(self) -> str:
        """All that pinner itself said."""
        return "\n".join(self.lines)

    @property
    def last(self) -> str:
        """The last line pinner said."""
        return self.lines[-1] if self.lines else ""


class Pinner:
    """The command, in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *words: object, timeout: float = 300, **environ: str) -> Said:
        done = subprocess.run(
            [sys.executable, "-m", "pinner", *(str(word) for word in words)],
            cwd=self.folder,
            env=self.environ(**environ),
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert not OWN_TRACEBACK.search(done.stderr), done.stderr
        return Said(done.returncode, done.stdout, done.stderr)

    def environ(self, **more: str) -> dict[str, str]:
        """The environment of a command; what a failed recording keeps goes beside the folder."""
        temporary = self.folder.with_name(f"{self.folder.name}-tmp")
        temporary.mkdir(exist_ok=True)
        return {**os.environ, "PYTHONPATH": str(REPO), "TMPDIR": str(temporary), **more}

    def path(self, name: str) -> Path:
        return self.folder / name


def python(workload: str, *words: str) -> list[str]:
    """The command line of a workload of tests/workloads."""
    return [sys.executable, str(WORKLOADS / workload), *words]
