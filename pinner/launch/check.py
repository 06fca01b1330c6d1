"""Checks a lock: is it whole and sealed, is this its stack, did its pins hold elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pinner import stack
from pinner.launch import enforce, environment, judge, one_run, session_dir
from pinner.launch.collect import collect
from pinner.lockfile.check import findings
from pinner.lockfile.codec import read_lock, read_lock_with_digest
from pinner.lockfile.compiled import compile_pins
from pinner.lockfile.schema import Lock
from pinner.policy import apply


@dataclass(frozen=True)
class Checked:
    """What a check found; `lines` are for people."""

    exit: int
    lines: tuple[str, ...]
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return {"exit": self.exit, "messages": list(self.lines), **self.details}


def check(
    path: Path, python: Sequence[str], environ: Mapping[str, str], *, look_at_stack: bool = True
) -> Checked:
    """Whether a lock can be enforced in the environment of a Python interpreter.

    python: the interpreter's command; empty for the one that runs pinner. Raises `LockError`.
    """
    lock = read_lock(path)
    session_dir.cublaslt_pins(compile_pins(lock, "")["cublaslt"])
    found = findings(lock)
    lines = [f"note: {finding}" for finding in found]
    details: dict[str, Any] = {
        "sealed": lock.run.sealed,
        "complete": lock.run.complete,
        "findings": list(found),
    }
    fits = True
    if look_at_stack:
        fits, differing, stack_details = _stack(lock, list(python) or [sys.executable], environ)
        lines += differing
        details.update(stack_details)
    good = lock.run.sealed and fits
    lines.append(f"{path}: " + ("can be enforced here" if good else "cannot be enforced here"))
    return Checked(judge.DONE if good else judge.REFUSED, tuple(lines), details)


def check_session(path: Path, folder: Path, expect: int | None) -> Checked:
    """Whether the pins held in processes that were started with the variables of `pinner env`.

    Raises `LockError`, `SessionError`, `LedgerError`.
    """
    lock, digest = read_lock_with_digest(path)
    session = session_dir.read(folder)
    if session_dir.lock_digest(session) != digest:
        text = f"{folder} ran under another lock than {path} as it is now"
        return Checked(judge.REFUSED, (text,))
    options = enforce.Options(
        job=one_run.Job(argv=()),
        lock=path,
        on_miss=session.settings.on_miss,
        verify=session.settings.evidence,
        expect=expect,
    )
    outcome = enforce.judged(options, lock, collect(session), 0)
    codes = {enforce.REFUSED: judge.REFUSED, enforce.BROKEN: judge.BROKEN}
    exit_code = codes.get(outcome.exit, outcome.exit)
    return Checked(exit_code, outcome.lines, {**outcome.to_json(), "exit": exit_code})


def _stack(
    lock: Lock, python: Sequence[str], environ: Mapping[str, str]
) -> tuple[bool, list[str], dict[str, Any]]:
    try:
        held = apply.variables_of(lock.policy)  # what enforcing sets, facts of the stack among it
        facts = environment.facts_of(python, {**held, **environ})
    except environment.NoFacts as error:
        return False, [str(error)], {"mismatches": None}
    differing = stack.mismatches(lock.stack, facts)
    lines = [f"stack: {mismatch}" for mismatch in differing]
    lines += [f"note: {note}" for note in stack.notes(lock.stack, facts)]
    if any(mismatch.field == "torch" and mismatch.here is None for mismatch in differing):
        lines.append(f"{python[0]} has no torch; name the workload's Python: check LOCK -- PYTHON")
    details = [{"field": m.field, "locked": m.locked, "here": m.here} for m in differing]
    return not differing, lines, {"mismatches": details}
