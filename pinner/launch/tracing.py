"""Traces a command, and shows whether the trace can be believed: did looking change the bits?

```
DIR/trace.json         what was traced, and whether it is valid
DIR/rank-R/*.jsonl     one log a process (pinner/inside/evidence/trace)
DIR/rank-R/bytes/      the tensors themselves, one file a digest, with --keep-bytes
DIR/runs/untraced      the session of the run that nothing looked into, where there was one
DIR/runs/traced        the session of the traced run
```
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pinner.compare import evidence, locked
from pinner.durable import replace_text
from pinner.inside import VERSION
from pinner.launch import enforce, judge, one_run, session_dir
from pinner.launch.collect import Run, collect
from pinner.launch.session_dir import SessionTaken
from pinner.lockfile.compiled import pins_text
from pinner.lockfile.schema import Lock

Level = Literal["steps", "modules", "ops", "kernels"]
Say = Callable[[str], None]

FORMAT = 1


@dataclass(frozen=True)
class Options:
    """What `pinner trace` was asked for.

    out: the folder of the trace. first, last: steps, both included; None where it is open.
    modules: what a module's path must match. lock: run under these choices.
    check: compare with a run that is not traced. defer: read a device's digests at a step's end.
    keep: how many bytes of tensors are kept for each rank at most; None where none are.
    """

    job: one_run.Job
    out: Path
    level: Level = "ops"
    first: int | None = None
    last: int | None = None
    modules: str | None = None
    lock: Path | None = None
    check: bool = True
    defer: bool = False
    keep: int | None = None
    expect: int | None = None

    @property
    def window(self) -> dict[str, Any]:
        """The window as trace.json has it."""
        return {"from": self.first, "to": self.last, "modules": self.modules}


@dataclass(frozen=True)
class Validity:
    """Whether a trace counts: its evidence is that of a run that nothing looked into.

    valid: None where that is not known. compared: how many streams were.
    """

    valid: bool | None
    why: str
    compared: int = 0


@dataclass(frozen=True)
class Outcome:
    """What came of it. status is one word for programs, text is for people."""

    exit: int
    status: str
    text: str
    out: Path
    validity: Validity
    command_exit: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return {
            "exit": self.exit,
            "status": self.status,
            "text": self.text,
            "trace": str(self.out),
            "valid": self.validity.valid,
            "why": self.validity.why,
            "command_exit": self.command_exit,
        }


def trace(options: Options, environ: Mapping[str, str], say: Say) -> Outcome:
    """Traces the command. Raises `LockRefused`, `SessionError`, `LedgerError` and `OSError`."""
    loaded = None if options.lock is None else enforce.load(options.lock)
    if loaded is not None:
        enforce.check_watched(loaded[0], options.job.cublaslt)
    _claim(options.out)
    tracing = _Tracing(options, loaded, environ, say)
    outcome = tracing.outcome()
    _write(options, outcome, tracing.world)
    return outcome


class _Tracing:
    """One trace in the making. loaded: the lock and its digest."""

    def __init__(
        self,
        options: Options,
        loaded: tuple[Lock, str] | None,
        environ: Mapping[str, str],
        say: Say,
    ) -> None:
        self._options = options
        self._lock = None if loaded is None else loaded[0]
        self._pins = None if loaded is None else pins_text(*loaded)
        self._environ = environ
        self._say = say
        self._code: int | None = None
        self.world: int | None = None

    def outcome(self) -> Outcome:
        untraced: Run | None = None
        if self._options.check and not self._compares_with_lock():
            self._say("first without a trace: " + " ".join(self._options.job.argv))
            untraced = self._run("untraced", None)
            refused = self._refusal(untraced)
            if refused is not None:
                return self._refused(refused, "the untraced run")
        self._say(f"tracing {self._options.level} to {self._options.out}")
        traced = self._run("traced", self._fields())
        if self._options.modules is not None and not in_modules(self._options.out):
            self._say(
                f"WARNING: no module of the window matched {self._options.modules!r}: the trace "
                "holds steps only; `--level modules` without --modules shows the paths"
            )
        self.world = judge.participation(traced, own=one_run.own_place()).world
        refused = self._refusal(traced)
        if refused is not None:
            return self._refused(refused, "the traced run")
        return self._judged(self._validity(untraced, traced))

    def _compares_with_lock(self) -> bool:
        return self._lock is not None and bool(self._lock.evidence.streams)

    def _fields(self) -> dict[str, Any]:
        options = self._options
        return {
            "folder": str(options.out.absolute()),
            "level": options.level,
            "defer": options.defer,
            "keep": options.keep,
            **options.window,
        }

    def _run(self, name: str, fields: Mapping[str, Any] | None) -> Run:
        job = self._options.job
        if self._lock is not None:
            job = enforce.with_recorded(job, self._lock)
        mode: session_dir.Mode = "observe" if self._lock is None else "enforce"
        settings = replace(job.settings(mode, name, self._environ), trace=fields)
        session = session_dir.create(self._options.out / "runs" / name, settings, self._pins)
        seen = one_run.run(session, job, self._environ, self._say)
        self._code = seen.ended.code
        return collect(session)

    def _refusal(self, run: Run) -> judge.Refusal | None:
        return judge.refusal(run, expect=self._options.expect, own=one_run.own_place())

    def _refused(self, refused: judge.Refusal, run: str) -> Outcome:
        why = f"{run} cannot be used: {refused.text.replace('; nothing was sealed', '')}"
        validity = Validity(None, why)
        return Outcome(
            refused.exit, refused.status, why, self._options.out, validity, command_exit=self._code
        )

    def _validity(self, untraced: Run | None, traced: Run) -> Validity:
        if not self._options.check:
            return Validity(None, "not compared with a run that is not traced (--no-check)")
        found = traced.evidence()
        refused = judge.evidence_refusal(found, "traced")
        if refused is not None:
            return Validity(None, refused.text)
        if untraced is not None:
            return against_run(untraced.evidence(), found)
        assert self._lock is not None
        return against_lock(locked.verify(self._lock.evidence, found))

    def _judged(self, validity: Validity) -> Outcome:
        out = self._options.out
        if validity.valid is not False and not any(out.glob("rank-*/*.jsonl")):
            why = (
                "expected a log of at least one process, found none: what is traced is torch, or "
                "numpy without it, and no process imported either, or none came to a step of the "
                "window"
            )
            validity = Validity(None, why)
            return Outcome(
                judge.NOTHING, "nothing", f"{out}: {why}", out, validity, command_exit=self._code
            )
        exits = {True: judge.DONE, False: judge.DIFFERS, None: judge.NOTHING}
        statuses = {True: "valid", False: "invalid", None: "unknown"}
        code = exits[validity.valid] if self._options.check else judge.DONE
        text = f"{out}: {statuses[validity.valid]} trace: {validity.why}"
        return Outcome(code, statuses[validity.valid], text, out, validity, command_exit=self._code)


def against_run(untraced: evidence.RunEvidence, traced: evidence.RunEvidence) -> Validity:
    """Whether two runs left the same bits, of which one was traced. Pure."""
    differences = evidence.compare(untraced, traced)
    streams = len(traced.streams)
    if not differences:
        return Validity(True, f"the untraced run left the same bits in {streams} streams", streams)
    where = evidence.describe(differences[0], ("the untraced run", "the traced run"))
    return Validity(
        False,
        f"the traced run left other bits, so either looking changed them or the command does not "
        f"repeat itself: {where}",
        streams,
    )


def against_lock(found: locked.Verification) -> Validity:
    """The same against the evidence of a lock. Pure."""
    streams = len({stream for stream, _ in found.compared})
    if found.differences:
        where = evidence.describe(found.differences[0], ("the lock", "the traced run"))
        return Validity(
            False, f"the traced run left other bits than the lock has: {where}", streams
        )
    if not streams:
        return Validity(None, "nothing could be compared with the lock's evidence")
    return Validity(True, f"the lock's evidence has the same bits: {found.line}", streams)


def in_modules(out: Path) -> bool:
    """Whether any event of a trace lies in a module."""
    for path in out.glob("rank-*/*.jsonl"):
        with open(path, "rb") as log:
            if any(b',"m":"' in line for line in log):
                return True
    return False


def _claim(out: Path) -> None:
    """Makes the folder. One that holds something is another trace's, or somebody else's."""
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        raise SessionTaken(
            f"expected an empty folder for the trace, found files in {out}: give another with -o"
        )


def _write(options: Options, outcome: Outcome, world: int | None) -> None:
    fields = {
        "version": FORMAT,
        "command": list(options.job.argv),
        "level": options.level,
        "window": options.window,
        "pinner": VERSION,
        "world": world,
        "lock": None if options.lock is None else str(options.lock),
        "keep": options.keep,
        "valid": outcome.validity.valid,
        "why": outcome.validity.why,
        "code": outcome.command_exit,
        "created": session_dir.now(),
    }
    path = options.out / "trace.json"
    try:
        replace_text(path, json.dumps(fields, indent=1) + "\n")
    except OSError as error:
        text = f"{outcome.text}; and this cannot be written: {error.strerror}"
        raise OSError(error.errno, text, str(path)) from error
