"""Runs short programs against stand-in libraries, each in a fork of one process with torch."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pinner.inside import stack_rules
from tests.session_rig import NOTE, Line, SessionRig

PACKAGES = Path(__file__).parent / "fakes" / "packages"

_FORKS = (
    NOTE
    + """
import atexit, json, os
given = json.load(open("given.json"))
import torch
for name, code in given["programs"].items():
    child = os.fork()
    if not child:
        note(name)
        # Whoever looks a function up is told by the name of his module.
        exec(compile(code, name, "exec"), {"__name__": "program", "note": note, **given["names"]})
        atexit._run_exitfuncs()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(json.dumps([name, os.waitstatus_to_exitcode(status)]), flush=True)
"""
)


class Run:
    """What one program left behind; code: its exit code."""

    def __init__(self, lines: Sequence[Line], code: int) -> None:
        self.lines = lines
        self.code = code
        self.notes = [line["note"] for line in lines if line["t"] == "test"][1:]

    def rows(self, chooser: str = "") -> dict[str, tuple[Any, str]]:
        """The settings by name: value and held; of several, the last."""
        return {
            line["name"]: (line["value"], line["held"])
            for line in self.lines
            if line["t"] == "setting" and (not chooser or line["chooser"] == chooser)
        }

    def facts(self) -> dict[str, Any]:
        """The facts of the stack that can change bits."""
        found: dict[str, Any] = {}
        for line in self.lines:
            found.update(line["facts"] if line["t"] == "facts" else {})
        on_cpu = stack_rules.evidence_from_cpu(found)
        return {name: value for name, value in found.items() if stack_rules.is_hard(name, on_cpu)}

    def problems(self, kind: str = "") -> list[Line]:
        """The problems, of one kind or all."""
        return [
            line
            for line in self.lines
            if line["t"] == "problem" and (not kind or line["kind"] == kind)
        ]


def run_each(
    folder: Path,
    programs: Mapping[str, str],
    settings: Sequence[Mapping[str, Any]] | None = None,
    names: Mapping[str, Any] | None = None,
    *,
    on_miss: str = "fallback",
    hard: Mapping[str, Any] | None = None,
    policy: Mapping[str, Any] | None = None,
    expect_failures: Sequence[str] = (),
    **environment: str,
) -> dict[str, Run]:
    """Run every program in a process of one session; with `settings`, under a lock of these.

    hard: the lock's facts of the stack. policy: the session's, where it is under a profile
    """
    rig = SessionRig(folder, on_miss=on_miss, policy=policy)
    if settings is not None:
        rig.enforce({"settings": list(settings), "stack": {"hard": dict(hard or {})}})
    given = {"programs": dict(programs), "names": dict(names or {})}
    (folder / "given.json").write_text(json.dumps(given))
    path = os.pathsep.join([str(PACKAGES), str(PACKAGES.parents[2])])
    done = rig.script(_FORKS, PYTHONPATH=path, **environment)
    assert done.returncode == 0, done.stderr
    codes = dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith('["'))
    assert [name for name in codes if codes[name]] == list(expect_failures), done.stderr
    found = {}
    for lines in rig.ledgers():
        notes = [line["note"] for line in lines if line["t"] == "test"]
        if notes:
            found[notes[0]] = Run(lines, codes[notes[0]])
    assert sorted(found) == sorted(programs), done.stderr
    return found


def locked(*runs: Run) -> list[dict[str, Any]]:
    """The settings of a lock that was recorded from these runs."""
    return [
        {key: line[key] for key in ("chooser", "name", "value", "held")}
        for run in runs
        for line in run.lines
        if line["t"] == "setting"
    ]
