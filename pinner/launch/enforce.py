"""Runs a command under a lock, and says afterwards whether the pins held."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pinner.compare import evidence, locked
from pinner.durable import replace_text
from pinner.inside import agree
from pinner.launch import command_line, judge, one_run, participation, session_dir
from pinner.launch.collect import Run, collect
from pinner.launch.command_line import needs_shared_folder
from pinner.launch.coverage import Coverage, cover
from pinner.launch.outside import OutsideEvidence
from pinner.launch.session_dir import OnMiss, Settings
from pinner.launch.taps import TapError
from pinner.launch.watch import Unpinned
from pinner.lockfile.codec import read_lock_with_digest
from pinner.lockfile.compiled import pins_text
from pinner.lockfile.errors import LedgerError, LockError
from pinner.lockfile.schema import Lock
from pinner.policy import apply
from pinner.stack import allowed_in_vain

# Exit codes of `enforce` itself; all others are the command's.
REFUSED = 96
BROKEN = 97

_TUNES_APART = (
    "--on-miss tune is for one process, found a world of {world}: ranks would tune apart; "
    "record the keys that were missed, or take --on-miss fallback"
)

_NOBODY_ASKED = (
    "--agree: nothing was exchanged in a world of {world}: no rank came through "
    "torch.distributed.init_process_group"
)

Say = Callable[[str], None]


class LockRefused(Exception):
    """The command cannot run under the lock; nothing was started."""


@dataclass(frozen=True)
class Options:
    """What `pinner enforce` was asked for.

    verify: whether the evidence is compared with the lock's. report: a file for the coverage.
    folder: where the run's folder stays; None for a temporary one.
    agree: seconds within which the ranks must show that they have one lock and one stack; None
    where nobody asked.
    """

    job: one_run.Job
    lock: Path
    on_miss: OnMiss = "fallback"
    allow: tuple[str, ...] = ()
    allow_draft: bool = False
    verify: bool = False
    report: Path | None = None
    expect: int | None = None
    folder: Path | None = None
    agree: float | None = None


@dataclass(frozen=True)
class Outcome:
    """How an enforced run ended.

    lines: what a person is told, the coverage last. said: those that the command said by itself.
    """

    exit: int
    lines: tuple[str, ...]
    command_exit: int | None = None
    coverage: Coverage | None = None
    said: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return {
            "exit": self.exit,
            "command_exit": self.command_exit,
            "messages": list(self.lines),
            "report": None if self.coverage is None else self.coverage.report(),
            **self.details,
        }


def load(path: Path, *, allow_draft: bool = False, allow: Sequence[str] = ()) -> tuple[Lock, str]:
    """The lock in a file and its digest. Raises `LockRefused` where it may not be enforced."""
    try:
        lock, digest = read_lock_with_digest(path)
    except LockError as error:
        raise LockRefused(str(error)) from error
    if not lock.run.sealed and not allow_draft:
        raise LockRefused(
            f"{path} is a draft: no validating runs have shown that its choices give one result; "
            "record again, or allow it with --allow-draft"
        )
    slips = allowed_in_vain(lock.stack, allow)
    if slips:
        raise LockRefused("; ".join(slips))
    return lock, digest


def check_watched(lock: Lock, cublaslt: session_dir.CublasLt) -> None:
    """Raises `LockRefused` where cuBLASLt's locked choices would be let go."""
    if cublaslt == "off" and lock.cublaslt:
        raise LockRefused(
            f"the lock holds {len(lock.cublaslt)} choices of cuBLASLt, and --cublaslt off would "
            "force none of them: leave it out, or record a lock with --cublaslt off"
        )


def check_policy(lock: Lock, environ: Mapping[str, str], allow: Sequence[str]) -> None:
    """Raises `LockRefused` where the environment has other values than the lock's profile held."""
    try:
        found = apply.differing(lock.policy, environ, allow)
    except LockError as error:
        raise LockRefused(str(error)) from error
    if found:
        raise LockRefused("\n".join(found))


def enforce(options: Options, environ: Mapping[str, str], say: Say) -> Outcome:
    """Runs the command under the lock. Raises `SessionError` and `LedgerError`."""
    try:
        lock, digest = load(options.lock, allow_draft=options.allow_draft, allow=options.allow)
        check_watched(lock, options.job.cublaslt)
        check_policy(lock, environ, options.allow)
        _check_command(options)
        _check_alone(options)
        _check_report(options)
        job = with_recorded(options.job, lock) if options.verify else options.job
        settings = _settings(options, job, environ)
    except (LockRefused, TapError) as error:
        return Outcome(REFUSED, (str(error),))
    temporary = options.folder is None
    if temporary and (hint := needs_shared_folder(options.job.argv, environ)):
        say(f"note: {hint}")
    folder = options.folder or Path(tempfile.mkdtemp(prefix="pinner-enforce-"))
    session = session_dir.create(folder / "enforce", settings, pins_text(lock, digest))
    seen = one_run.run(session, job, environ, say)
    outcome = _judged_and_reported(options, lock, session, seen.ended.code)
    if seen.survivors:
        say(
            f"note: {len(seen.survivors)} processes outlive the command; what they decide from now "
            f"on is not counted, and the run's folder stays for them: {folder}"
        )
    elif temporary:
        shutil.rmtree(folder, ignore_errors=True)
    return outcome


def _judged_and_reported(
    options: Options, lock: Lock, session: session_dir.SessionDir, code: int
) -> Outcome:
    """The outcome; the command has run, so whatever fails from here on is not a refusal."""
    try:
        outcome = judged(options, lock, collect(session), code)
    except (LedgerError, OSError) as error:
        text = f"broken pins: what the processes did cannot be read: {error}"
        return Outcome(code or BROKEN, (text,), code)
    if options.report is None or outcome.coverage is None:
        return outcome
    try:
        replace_text(options.report, json.dumps(outcome.coverage.report(), indent=1) + "\n")
    except OSError as error:
        text = f"cannot write the report {options.report}: {error.strerror}"
        return replace(outcome, lines=(text, *outcome.lines))
    return outcome


def judged(options: Options, lock: Lock, run: Run, code: int) -> Outcome:
    """What a finished run under a lock came to. code: the command's exit code."""
    coverage = cover(lock, run.ledgers)
    verification = _verification(options, lock, run)
    unpinned = judge.unpinned(run)
    part = judge.participation(run, expect=options.expect, own=one_run.own_place())
    broken = [*_broken(options, run, coverage), *(item.text for item in unpinned if item.loaded)]
    broken += _absent(options, run, part.missing, unpinned)
    grown = participation.larger(lock.run, part)
    differing, uncompared = _compared(verification)
    exit_code = _exit(code, run, broken, differing, uncompared)
    lines = (
        *(x.fields["failure"] for x in run.launchers if x.fields.get("failure")),
        *judge.fault_texts(run),
        *(f"broken pins: {text}" for text in broken),
        *(f"note: {item.text}" for item in unpinned if not item.loaded),
        *([] if grown is None else [f"note: {grown}"]),
        *(f"note: {text}" for text in coverage.notes),
        *(f"note: {text}" for x in run.launchers for text in x.texts("missing")),
        *(f"note: {text}" for text in judge.silent_taps(run)),
        *differing,
        *uncompared,
        *(() if verification is None else (verification.line,)),
        *coverage.closing(),
    )
    return Outcome(
        exit=exit_code,
        lines=lines,
        command_exit=code,
        coverage=coverage,
        said=judge.said_already(run),
        details={
            "processes": part.processes,
            "ranks": list(part.ranks),
            "missing": list(part.missing),
            "unpinned": [item.to_json() for item in unpinned],
            "faults": [dict(fault) for fault in run.faults],
            "verify": None if verification is None else _verify_details(verification),
        },
    )


def _check_command(options: Options) -> None:
    """Refuses a command no process of which could ever take part."""
    for obstacle in command_line.obstacles(options.job.argv):
        if obstacle.certain:
            raise LockRefused(f"the command cannot be pinned: {obstacle.text}")


def _check_alone(options: Options) -> None:
    """Ranks that tune would tune apart."""
    own = one_run.own_place()
    if options.on_miss == "tune" and own is not None:
        raise LockRefused(_TUNES_APART.format(world=own.world))


def _check_report(options: Options) -> None:
    """A report that cannot be written is told before the work, not after it."""
    if options.report is None:
        return
    folder = options.report.absolute().parent
    if not os.access(folder, os.W_OK | os.X_OK):
        raise LockRefused(f"the report cannot be written: {folder} is no folder for new files")


def _settings(options: Options, job: one_run.Job, environ: Mapping[str, str]) -> Settings:
    return replace(
        job.settings("enforce", "enforce", environ),
        on_miss=options.on_miss,
        evidence=options.verify,
        allow=options.allow,
        agree=options.agree,
    )


def with_recorded(job: one_run.Job, lock: Lock) -> one_run.Job:
    """The job; it looks at the evidence the lock was recorded with, where none is named."""
    recorded = OutsideEvidence(
        files=recorded_with(lock, "evidence_files"), stdout=recorded_with(lock, "evidence_stdout")
    )
    taps = job.taps or recorded_with(lock, "taps")
    return replace(job, outside=job.outside or recorded, taps=taps)


def recorded_with(lock: Lock, option: str) -> tuple[str, ...]:
    """The values of an option of evidence with which a lock was recorded."""
    value = lock.policy.get(option)
    return tuple(str(item) for item in value) if isinstance(value, (list, tuple)) else ()


def _verification(options: Options, lock: Lock, run: Run) -> locked.Verification | None:
    return locked.verify(lock.evidence, run.evidence()) if options.verify else None


def _broken(options: Options, run: Run, coverage: Coverage) -> list[str]:
    found = []
    for name in coverage.broken(options.on_miss):
        found.append(coverage.broken_text(name))
    worlds = [ledger.process.world for ledger in run.ledgers if ledger.process.world is not None]
    if options.on_miss == "tune" and max([1, *worlds]) > 1:
        found.append(_TUNES_APART.format(world=max(worlds)))
    if options.agree is not None and max([1, *worlds]) > 1 and not _agreed(run):
        found.append(_NOBODY_ASKED.format(world=max(worlds)))
    return found


def _agreed(run: Run) -> bool:
    return any(problem.chooser == agree.CHOOSER for _, problem in run.problems("note"))


def _absent(
    options: Options, run: Run, missing: Sequence[str], unpinned: Sequence[Unpinned]
) -> list[str]:
    if not missing or run.ledgers or any(item.loaded for item in unpinned):
        return list(missing)
    return [f"{missing[0]}: {one_run.nobody_because(options.job.argv, unpinned)}"]


def _compared(verification: locked.Verification | None) -> tuple[list[str], list[str]]:
    """The lines for bits that differ, and for evidence that could not be compared."""
    if verification is None:
        return [], []
    differing = [
        evidence.describe(difference, ("the lock", "this run"))
        for difference in verification.differences
    ]
    uncompared = [f"not compared: {text}" for text in verification.uncompared]
    if not verification.compared:
        uncompared.append("nothing could be compared with the lock's evidence")
    return [f"bits differ: {text}" for text in differing], uncompared


def _exit(
    code: int, run: Run, broken: Sequence[str], differing: Sequence[str], uncompared: Sequence[str]
) -> int:
    """The command's own code, unless it is 0 and something else is to be said."""
    if run.faults:
        return REFUSED
    if code != 0:
        return code
    if broken:
        return BROKEN
    if differing:
        return judge.DIFFERS
    return judge.NOTHING if uncompared else 0


def _verify_details(verification: locked.Verification) -> dict[str, Any]:
    return {
        "differences": [difference.to_json() for difference in verification.differences],
        "compared": [
            {"stream": stream, "rank": rank, "steps": steps}
            for (stream, rank), steps in verification.compared.items()
        ],
        "uncompared": list(verification.uncompared),
        "locked_steps": verification.locked_steps,
    }
