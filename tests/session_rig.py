"""Runs real programs under injection, in session folders made by hand; reads what they left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pinner import shipped
from pinner.inside import pins as inside_pins

Line = dict[str, Any]
INJECT = shipped.inject_dir()
INSIDE = shipped.inside_dir()
REPO = Path(__file__).resolve().parents[1]


class SessionRig:
    """One session folder. `settings` are written to its session.json."""

    def __init__(self, folder: Path, inject: Path = INJECT, **settings: Any) -> None:
        self.folder = folder
        self.inject = inject
        self.settings = {
            "version": 1,
            "mode": "observe",
            "on_miss": "fallback",
            "pins": None,
            "taps": [],
            "evidence": True,
            "allow": [],
            "replay": False,
            "run": "test",
            "hidden_pythonpath": None,
            "created": "2026-01-02T03:04:05Z",
            **settings,
        }
        for name in ("ledger", "faults"):
            (folder / name).mkdir(parents=True)
        self.write_settings()

    def write_settings(self) -> None:
        """Write session.json as the settings are now."""
        (self.folder / "session.json").write_text(json.dumps(self.settings))

    def enforce(self, body: Mapping[str, Any] | None = None) -> Path:
        """Turn to enforcing pins with this body; returns their file."""
        path = self.folder / "pins.json"
        pins = {"version": 1, "lock": "sha256:00", "sealed": True, **(body or {})}
        pins["digest"] = inside_pins.digest(pins)
        path.write_text(json.dumps(pins) + "\n")
        self.settings.update(mode="enforce", pins=str(path))
        self.write_settings()
        return path

    def environ(self, **more: str) -> dict[str, str]:
        """The variables of a process of this session; PYTHONPATH in `more` is the hidden one."""
        env = {**os.environ, **more}
        hidden = more.get("PYTHONPATH")
        env["PINNER_SESSION"] = str(self.folder)
        env["PINNER_MODE"] = self.settings["mode"]
        env["PYTHONPATH"] = str(self.inject) + (os.pathsep + hidden if hidden else "")
        return env

    def run(
        self, command: Sequence[str], cwd: Path | None = None, timeout: float = 120, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as a process of this session."""
        return subprocess.run(
            [str(word) for word in command],
            env=self.environ(**more),
            cwd=cwd or self.folder,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def python(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run this Python as a process of this session."""
        return self.run([sys.executable, *words], **options)

    def script(self, code: str, *args: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run `code` as a script file in the session's folder."""
        path = self.folder / "program.py"
        path.write_text(code)
        return self.python(str(path), *args, **options)

    def ledgers(self) -> list[list[Line]]:
        """The lines of each process, in the order of their file names."""
        files = sorted((self.folder / "ledger").iterdir())
        return [[json.loads(text) for text in path.read_text().splitlines()] for path in files]

    def lines(self, kind: str | None = None) -> list[Line]:
        """The lines of all processes, of one kind or all."""
        return [
            line for each in self.ledgers() for line in each if kind is None or line["t"] == kind
        ]

    def notes(self) -> list[list[Any]]:
        """The `note` fields that test programs wrote, by process."""
        return [[line["note"] for line in each if line["t"] == "test"] for each in self.ledgers()]

    def facts(self) -> dict[str, Any]:
        """All facts of the one process that reported any."""
        found: dict[str, Any] = {}
        for line in self.lines("facts"):
            found.update(line["facts"])
        return found

    def faults(self) -> list[Line]:
        """What processes that refused to start left."""
        return [json.loads(path.read_text()) for path in sorted((self.folder / "faults").iterdir())]


NOTE = """
def note(text):
    from pinner.inside import ledger
    ledger.write({"t": "test", "note": text})
"""
"""Defines note(text) in a test's program: something was decided, and stands in the ledger."""
