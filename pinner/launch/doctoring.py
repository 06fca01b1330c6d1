"""Gathers what the doctor judges: environment, compiler, a run or a look at a Python, a lock."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pinner.inside import c_compiler
from pinner.launch import environment, judge, one_run, session_dir
from pinner.launch.collect import Run, collect
from pinner.launch.command_line import needs_shared_folder
from pinner.lockfile.codec import read_lock
from pinner.lockfile.ledgers import FactsRecord, ProblemRecord, SettingRecord
from pinner.lockfile.schema import Lock
from pinner.policy import apply, doctor, features
from pinner.policy.doctor import Compiler, Finding, Seen
from pinner.policy.profiles import Profile, Role, load

Say = Callable[[str], None]
DEFAULT_PROFILE = "deterministic"
# What a lock says of the processes has codes of its own; see `exit_of`.
_OF_LOCK = ("lock-draft", "lock-env", "lock-stack")


@dataclass(frozen=True)
class Options:
    """What `pinner doctor` was asked for.

    job: the command to run; without one (an empty argv) the Python that runs pinner is looked at.
    profile: a name or a file; None is the lock's, else `DEFAULT_PROFILE`. lock: None for none.
    """

    job: one_run.Job
    profile: str | None = None
    role: Role | None = None
    lock: Path | None = None


@dataclass(frozen=True)
class Outcome:
    """What was found. failed: why the command's run says less than it could, or nothing."""

    exit: int
    profile: Profile
    findings: tuple[Finding, ...]
    facts: Mapping[str, Any]
    failed: str = ""

    @property
    def text(self) -> str:
        """For people: the findings, the gravest first, and a line that counts them."""
        counts = ", ".join(
            f"{sum(each.severity == name for each in self.findings)} {name}s"
            for name in doctor.ORDER
        )
        last = f"profile {self.profile.name}: {counts}"
        return "\n".join([*(each.text() for each in self.findings), last])

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return {
            "exit": self.exit,
            "profile": self.profile.name,
            "findings": [each.as_json() for each in self.findings],
            "facts": dict(self.facts),
            "failed": self.failed,
        }


def examine(options: Options, environ: Mapping[str, str], say: Say) -> Outcome:
    """Looks, and judges. Raises `ProfileError`, `LockError`, `SessionError`, `LedgerError`."""
    lock = None if options.lock is None else read_lock(options.lock)
    profile = load(options.profile or _profile_of(lock))
    role = options.role or _role_of(lock, profile)
    watched = replace(options.job, policy=_watching(profile, role))
    if options.job.argv:
        seen, refused = _run(watched, environ, say)
    else:
        seen, refused = _look(watched, environ), None
    given = doctor.Examined(environ, profile, role, compiler(environ), seen, lock, features.load())
    findings = doctor.examine(given)
    code = exit_of(findings, 0 if refused is None else refused.exit)
    failed = "" if refused is None else refused.text
    return Outcome(code, profile, findings, seen.facts, failed)


def exit_of(findings: tuple[Finding, ...], of_run: int) -> int:
    """4 where a lock does not fit, else the run's own code, else 1 where more than notes were
    found."""
    if any(each.id in _OF_LOCK for each in findings):
        return judge.REFUSED
    if of_run:
        return of_run
    return judge.DIFFERS if any(each.severity != "note" for each in findings) else judge.DONE


def compiler(environ: Mapping[str, str]) -> Compiler:
    """The C compiler that pinner would take here."""
    try:
        words = c_compiler.wanted(environ)
    except ValueError:
        return Compiler(environ.get("CC", ""))
    for each in [words] if words else [[name] for name in c_compiler.NAMES]:
        found = c_compiler.program(each, environ)
        if found is not None:
            return Compiler(" ".join(words), found[0])
    return Compiler(" ".join(words))


def _profile_of(lock: Lock | None) -> str:
    recorded = None if lock is None else apply.profile_of(lock.policy)
    return recorded or DEFAULT_PROFILE


def _role_of(lock: Lock | None, profile: Profile) -> str | None:
    """The lock's role, where the profile is the lock's."""
    if lock is None or apply.profile_of(lock.policy) != profile.name:
        return None
    return apply.role_of(lock.policy)


def _watching(profile: Profile, role: str | None) -> dict[str, Any]:
    """A session's policy that looks and sets nothing (`pinner/inside/checkup.py`)."""
    rules = [rule.as_json() for rule in profile.of(role) if not rule.phantom]
    return {"profile": profile.name, "role": role, "watch": True, "sets": {}, "rules": rules}


def _run(
    job: one_run.Job, environ: Mapping[str, str], say: Say
) -> tuple[Seen, judge.Refusal | None]:
    if hint := needs_shared_folder(job.argv, environ):
        say(f"note: {hint}")
    folder = Path(tempfile.mkdtemp(prefix="pinner-doctor-"))
    # With evidence: a program without torch takes part by what it fingerprints.
    session = session_dir.create(folder / "doctor", job.settings("observe", "doctor", environ))
    ended = one_run.run(session, job, environ, say)
    run = collect(session)
    seen = _seen(run)
    seen = replace(seen, commands=(job.argv, *seen.commands))
    found = seen, judge.refusal(run, own=one_run.own_place())
    if ended.survivors:
        say(f"note: processes outlive the command; the run's folder stays for them: {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def _look(job: one_run.Job, environ: Mapping[str, str]) -> Seen:
    """At the Python that runs pinner, without a command."""
    settings = replace(job.settings("observe", "doctor", environ), cublaslt="off")
    with tempfile.TemporaryDirectory(prefix="pinner-doctor-") as folder:
        session = session_dir.create(Path(folder) / "doctor", settings)
        environment.report_facts([sys.executable], session, environ)
        return replace(_seen(collect(session)), running=False)


def _seen(run: Run) -> Seen:
    facts: dict[str, Any] = {}
    settings: list[SettingRecord] = []
    problems: list[ProblemRecord] = []
    for ledger in run.ledgers:
        for record in ledger.records():
            if isinstance(record, FactsRecord):
                facts.update(record.facts)
            elif isinstance(record, SettingRecord):
                settings.append(record)
            elif isinstance(record, ProblemRecord):
                problems.append(record)
    return Seen(
        running=True,
        facts=facts,
        settings=tuple(settings),
        problems=tuple(problems),
        commands=tuple(ledger.process.argv for ledger in run.ledgers),
    )
