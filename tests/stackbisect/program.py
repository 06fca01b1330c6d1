"""Runs `stackbisect` as users do: a process of its own, in a folder of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

from stackbisect import cli, progress

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Ended:
    """How the program ended and what it said."""

    code: int
    out: str
    err: str

    @property
    def report(self) -> dict[str, Any]:
        """The object that --json prints."""
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found


@dataclass(frozen=True)
class Program:
    """The program. own_session: whether it leads a session, so that its group can be signalled."""

    folder: Path
    env: Mapping[str, str] = field(default_factory=dict)
    own_session: bool = False

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start it."""
        path = os.pathsep.join([str(ROOT), str(ROOT / "bisect")])
        return subprocess.Popen(
            [sys.executable, "-m", "stackbisect", *words],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": path, **self.env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=self.own_session,
        )

    def __call__(self, *words: str) -> Ended:
        """Run it to its end."""
        started = self.start(*words)
        out, err = started.communicate(timeout=300)
        return Ended(started.returncode, out, err)

    def journal(self) -> list[dict[str, Any]]:
        """Every whole line of the only bisection's journal; none before it has begun."""
        files = list(self.folder.glob(".stackbisect/*/journal.jsonl"))
        if not files:
            return []
        (file,) = files
        whole, _, _ = file.read_text().rpartition("\n")  # a kill may have cut the last line
        return [json.loads(line) for line in whole.splitlines()]

    def probes(self) -> list[dict[str, Any]]:
        """The finished probes."""
        return [line for line in self.journal() if line["t"] == "probe"]


def in_process(folder: Path, *words: str, environ: Mapping[str, str] | None = None) -> Ended:
    """Run the command in this process, in a folder that is the working folder already."""
    out, err = StringIO(), StringIO()
    world = cli.World(
        environ={**os.environ, **(environ or {})},
        workdir=folder,
        out=out.write,
        err=err.write,
        watcher=progress.Plain(err),
    )
    code = cli.run(words, world)
    return Ended(code, out.getvalue(), err.getvalue())
