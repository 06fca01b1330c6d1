"""A stack as a place to run things in: an interpreter here, or a candidate of any runtime.

What is run is one of two things. A repro: files go in, a command runs in a fresh process, files
come back, and nothing of pinner takes part. The user's own command: under pinner, in a session
whose trace says what is looked for.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from pinner import shipped
from stackbisect.errors import UsageError
from stackbisect.probe import Candidate, EvidenceOptions, InfrastructureError, Job, Runtime
from stackbisect.runtimes import caches, container_options, here, process
from stackbisect.sessions import Sessions

# In a session's folder: the trace of the command, relative so that containers find it too.
TRACE = "trace"
_WORK = "work"
# `cp` makes a folder of the command's own user; what pinner set is taken back before the command.
_IN_WORK = """
own=$PINNER_SESSION; unset PINNER_SESSION PINNER_MODE
if [ "$1" = python ] && ! command -v python > /dev/null; then shift; set -- python3 "$@"; fi
cp -R "$own/work" "$own/ran" && cd "$own/ran" && exec "$@"
"""
_PYTHONS = ("python", "python3")
# They speak of another interpreter, or of a pinner that runs around this program.
_NOT_OURS = ("PYTHONHOME", "VIRTUAL_ENV", "PINNER_SESSION", "PINNER_MODE")


@dataclass(frozen=True)
class Ran:
    """How a command ended in a stack.

    code: None where it could not be run to its end; `reason` says why then. output: all it printed,
    standard error included. files: those in its working folder that are new or other than before.
    """

    code: int | None
    stdout: str
    output: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    reason: str = ""

    @property
    def failure(self) -> str:
        """Why it did not end with 0, in one line; "" where it did."""
        if self.code == 0:
            return ""
        if self.reason:
            return self.reason
        return f"it ended with {self.code}: {here.last_lines(self.output, 4) or 'no output'}"

    @property
    def table(self) -> dict[str, Any]:
        """The JSON object in the last line that it printed; empty where it failed or has none.

        What stands before it is not looked at: a `sitecustomize` of the stack may print, too.
        """
        lines = [] if self.failure else self.stdout.strip().splitlines()
        try:
            found = json.loads(lines[-1]) if lines else {}
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True)
class Watched:
    """How the user's command ended under pinner. session: its folder, what it left included."""

    code: int | None
    session: Path
    log: Path
    reason: str = ""

    @property
    def trace(self) -> Path:
        """The folder of its trace."""
        return self.session / TRACE

    @property
    def failure(self) -> str:
        """Why nothing counts that it left, in one line; "" where it counts."""
        if self.reason:
            return self.reason
        if self.code == 0:
            return ""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return f"the command ended with {self.code}: {here.last_lines(text, 4) or 'no output'}"


class Stack(Protocol):
    """One of the two stacks. Methods raise InfrastructureError; threads may call them at once."""

    @property
    def name(self) -> str:
        """ "good" or "bad"."""

    @property
    def variables(self) -> Mapping[str, str]:
        """The environment variables that make it what it is, for repro.toml."""

    def run(
        self,
        files: Mapping[str, bytes],
        argv: Sequence[str],
        *,
        environ: Mapping[str, str] | None = None,
        time_limit: float | None = None,
    ) -> Ran:
        """Run `argv` in a fresh process, in a folder that holds `files` (names may have "/").

        `python` is the stack's interpreter. `environ` is set on top of the stack's own. Nothing of
        pinner takes part.
        """

    def watch(
        self,
        argv: Sequence[str],
        place: Path,
        trace: Mapping[str, Any],
        *,
        time_limit: float | None = None,
    ) -> Watched:
        """Run the user's command, where the user runs it, in a session made in `place`.

        `trace` are the fields of the session's trace but for the folder (`Settings` in
        pinner/inside/evidence/trace/settings.py).
        """


@dataclass(frozen=True)
class PythonStack:
    """An interpreter on this machine and the variables set for it, on top of `environ`.

    interpreter: None where `python` is what PATH finds. workdir: where the user's command runs.
    """

    name: str
    interpreter: Path | None
    environ: Mapping[str, str]
    workdir: Path
    variables: Mapping[str, str] = field(default_factory=dict)

    def run(
        self,
        files: Mapping[str, bytes],
        argv: Sequence[str],
        *,
        environ: Mapping[str, str] | None = None,
        time_limit: float | None = None,
    ) -> Ran:
        """See `Stack`."""
        with folder() as place:
            work = place / _WORK
            _fill(work, files)
            log, stdout = place / "log", place / "stdout"
            ended = process.run(
                self._argv(argv),
                {**self._environ(), **_caches(place), **(environ or {})},
                work,
                log=log,
                stdout=stdout,
                time_limit=time_limit,
            )
            back = _new_files(work, files)
            if ended.timed_out:
                late = f"it did not end within {time_limit or 0:g} s"
                return Ran(None, _text(stdout), _text(log), back, late)
            return Ran(ended.code, _text(stdout), _text(log), back)

    def watch(
        self,
        argv: Sequence[str],
        place: Path,
        trace: Mapping[str, Any],
        *,
        time_limit: float | None = None,
    ) -> Watched:
        """See `Stack`."""
        environ = self._environ()
        sessions = Sessions(place, environ.get("PYTHONPATH"), trace={**trace, "folder": TRACE})
        job = _job(place, self._argv(argv), sessions, Candidate(self.name, self.name, 0))
        job = _with(job, workdir=self.workdir, time_limit=time_limit)
        secrets = container_options.secret_values(environ, frozenset())
        result = here.run(job, environ, secrets, 0.0)
        return Watched(result.exit_code, job.session, job.log, result.reason)

    def _argv(self, argv: Sequence[str]) -> list[str]:
        """The words with the stack's interpreter for `python`."""
        if self.interpreter is None or argv[0] not in _PYTHONS:
            return list(argv)
        return [str(self.interpreter), *argv[1:]]

    def _environ(self) -> dict[str, str]:
        found = {name: value for name, value in self.environ.items() if name not in _NOT_OURS}
        if self.interpreter is not None:
            beside = str(self.interpreter.parent)
            found["PATH"] = os.pathsep.join(filter(None, (beside, found.get("PATH"))))
        return {**found, **self.variables}


@dataclass(frozen=True)
class CandidateStack:
    """A candidate of a bisection, or an image: whatever a runtime can try.

    env: variables set for every command, as the bisection set them. scratch: where its sessions
    are made, a folder that the stack's machine sees too; None where any will do.
    """

    name: str
    runtime: Runtime
    candidate: Candidate
    workdir: Path
    hidden_pythonpath: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    scratch: Path | None = None

    def run(
        self,
        files: Mapping[str, bytes],
        argv: Sequence[str],
        *,
        environ: Mapping[str, str] | None = None,
        time_limit: float | None = None,
    ) -> Ran:
        """See `Stack`. The files travel in the session's folder."""
        with folder(self.scratch) as place:
            command = ("sh", "-c", _IN_WORK, "sh", *argv)
            sessions = Sessions(place, self.hidden_pythonpath)
            job = _job(place, command, sessions, self.candidate)
            _fill(job.session / _WORK, files)
            env = {**self.env, **(environ or {})}
            job = _with(job, workdir=self.workdir, time_limit=time_limit, env=env)
            code, reason = self._tried(job)
            back = _new_files(job.session / "ran", files)
            return Ran(code, _text(job.stdout), _text(job.log), back, reason)

    def watch(
        self,
        argv: Sequence[str],
        place: Path,
        trace: Mapping[str, Any],
        *,
        time_limit: float | None = None,
    ) -> Watched:
        """See `Stack`."""
        sessions = Sessions(place, self.hidden_pythonpath, trace={**trace, "folder": TRACE})
        job = _job(place, argv, sessions, self.candidate)
        job = _with(job, workdir=self.workdir, time_limit=time_limit, env=self.env)
        code, reason = self._tried(job)
        return Watched(code, job.session, job.log, reason)

    def _tried(self, job: Job) -> tuple[int | None, str]:
        result = self.runtime.run(self.candidate, job)
        if result.status == "infrastructure":
            raise InfrastructureError(result.reason)
        return result.exit_code if result.status == "ran" else None, result.reason


def _job(place: Path, argv: Sequence[str], sessions: Sessions, candidate: Candidate) -> Job:
    """A job in the folder `place`, which is made."""
    scratch = place / "scratch"
    scratch.mkdir(parents=True)
    session = sessions.create(place / "session", candidate, f"extract {candidate.label}")
    return Job(
        command=tuple(argv),
        evidence=EvidenceOptions(),
        session=session.folder,
        inside=shipped.inside_dir(),
        log=place / "log",
        stdout=place / "stdout",
        scratch=scratch,
        workdir=place,
        mode=session.mode,
        lock=session.lock,
        stop=threading.Event(),
    )


def _with(
    job: Job, *, workdir: Path, time_limit: float | None, env: Mapping[str, str] | None = None
) -> Job:
    return replace(job, workdir=workdir, time_limit=time_limit, env=dict(env or {}))


def _fill(target: Path, files: Mapping[str, bytes]) -> None:
    target.mkdir(parents=True)
    for name, content in files.items():
        place = target / name
        if not place.resolve().is_relative_to(target.resolve()):
            raise UsageError(f"expected a file below the working folder, found {name!r}")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)


def _new_files(work: Path, before: Mapping[str, bytes]) -> dict[str, bytes]:
    found = {
        path.relative_to(work).as_posix(): path.read_bytes()
        for path in sorted(work.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    return {name: content for name, content in found.items() if before.get(name) != content}


def _caches(place: Path) -> dict[str, str]:
    return {name: str(place / "caches" / each) for name, each in caches.FOLDERS.items()}


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


@contextmanager
def folder(root: Path | None = None) -> Iterator[Path]:
    """A folder that is gone afterwards, in `root` where there is one."""
    if root is not None:
        root.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix="stackbisect-", dir=root))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
