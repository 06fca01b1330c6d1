"""Runs the command once in a session: under injection, watched, and its end written down."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pinner import shipped
from pinner.durable import replace_text
from pinner.inside import ledger
from pinner.launch import command, command_line, session_dir
from pinner.launch.outside import Files, Lines, OutsideEvidence
from pinner.launch.participation import Place
from pinner.launch.session_dir import CublasLt, SessionDir, Settings, now
from pinner.launch.taps import read_taps
from pinner.launch.watch import Unpinned, Watch

# When to say that no process has reported yet.
SILENCE_S = 60.0
# How long helpers (multiprocessing's resource tracker, say) may take to end after the command.
LAST_BREATH_S = 1.0
# How often to look at the processes: at first, when most are started, and after some seconds.
FIRST_LOOKS_S, FIRST_S, LATER_LOOKS_S = 0.1, 5.0, 0.5


@dataclass(frozen=True)
class Job:
    """The command, and how to run it.

    outside: evidence that only the launcher sees. taps: files or names of metric taps.
    cublaslt: whether cuBLASLt is watched: "auto" (where it can be), "on" or "off".
    policy: the profile that its processes are under (`Policy.settings`), or None.
    output: a descriptor for the command's standard output; None is pinner's own.
    silence_s: seconds after which it is said that nothing has reported.
    """

    argv: tuple[str, ...]
    outside: OutsideEvidence = field(default_factory=OutsideEvidence)
    taps: tuple[str, ...] = ()
    cublaslt: CublasLt = "auto"
    policy: Mapping[str, Any] | None = None
    output: int | None = None
    silence_s: float = SILENCE_S

    def settings(self, mode: session_dir.Mode, run: str, environ: Mapping[str, str]) -> Settings:
        """What a session of this job asks of its processes. Raises `TapError`."""
        return Settings(
            mode=mode,
            run=run,
            created=now(),
            taps=read_taps(self.taps),
            cublaslt=self.cublaslt,
            hidden_pythonpath=session_dir.hidden_pythonpath(environ),
            policy=self.policy,
        )


@dataclass(frozen=True)
class Seen:
    """How the run went, as far as this launcher can tell.

    record: this launcher's file in the session.
    survivors: processes that outlive the command; they still need the session's folder.
    """

    ended: command.Ended
    record: Path
    survivors: tuple[int, ...] = ()


def run(
    session: SessionDir, job: Job, environ: Mapping[str, str], say: Callable[[str], None]
) -> Seen:
    """Starts the command in `session` and waits for it.

    What happened is in the launcher's record in the session's folder, too, for whoever reads it
    later: started and never ended says that this launcher was killed.
    """
    record = _Record(session, job)
    record.write()
    files, lines = Files(job.outside.files), Lines(job.outside.stdout)
    watching = _Watching(session, job, say)
    ended = command.run(
        job.argv,
        session.environment(environ),
        output=command.Output(job.output, lines.feed if job.outside.stdout else None),
        on_start=watching.begin,
        on_tick=watching.look,
        tick_s=FIRST_LOOKS_S,
        descendants=watching.descendants,
        say=say,
    )
    written = files.written()
    unpinned = watching.findings()
    printed = lines.close()
    missing = (
        *(f"evidence file {text}" for text in written.missing),
        *(f"evidence on standard output: nothing matched {text!r}" for text in lines.missing()),
    )
    record.write_end(
        say,
        code=ended.code,
        seconds=round(ended.seconds, 3),
        failure=ended.failure,
        interrupted=list(ended.interrupted),
        files=written.files,
        stdout=printed,
        missing=list(missing),
        unpinned=[item.to_json() for item in unpinned],
    )
    return Seen(ended, record.path, watching.survivors())


def own_place() -> Place | None:
    """This launcher's place among others, if the environment gives it one."""
    place = ledger.layout()
    if place["rank"] is None or place["world"] == 1:
        return None
    return Place(place["rank"], place["world"])


class _Record:
    """This launcher's file in the session: written before the command starts, and at its end."""

    def __init__(self, session: SessionDir, job: Job) -> None:
        place = own_place()
        host = os.uname().nodename
        self.path = session.launchers / f"{host}-{os.getpid()}-{os.urandom(3).hex()}.json"
        self._fields: dict[str, Any] = {
            "host": host,
            "pid": os.getpid(),
            "task": place.rank if place else 0,
            "tasks": place.world if place else 1,
            "command": list(job.argv),
            "evidence_files": list(job.outside.files),
            "evidence_stdout": list(job.outside.stdout),
            "taps": list(job.taps),
            "cwd": os.getcwd(),
            "started": now(),
            "code": None,
        }

    def write(self, **more: Any) -> None:
        self._fields.update(more)
        replace_text(self.path, json.dumps(self._fields) + "\n")

    def write_end(self, say: Callable[[str], None], **more: Any) -> None:
        """The command has done its work: a full disk must not hide how that ended."""
        try:
            self.write(**more)
        except OSError as error:
            say(f"cannot write {self.path}: {error.strerror}")


class _Watching:
    """The eyes on the command while it runs; blind until it has a process id."""

    def __init__(self, session: SessionDir, job: Job, say: Callable[[str], None]) -> None:
        self._session = session
        self._job = job
        self._say = say
        self._watch: Watch | None = None
        self._begun = time.monotonic()
        self._silence_told = False
        self._next_look = 0.0
        self._strangers = command.children()

    def begin(self, pid: int) -> None:
        self._watch = Watch(
            root=pid,
            session=str(self._session.path),
            inject=str(shipped.inject_dir()),
            ledger=Path(self._session.ledger),
            reaper=os.getpid(),
            strangers=self._strangers,
        )

    def look(self) -> None:
        age = time.monotonic() - self._begun
        if self._watch is None or (age > FIRST_S and age < self._next_look):
            return
        self._next_look = age + LATER_LOOKS_S
        self._watch.look()
        if self._silence_told or age < self._job.silence_s:
            return
        self._silence_told = True
        if not self._watch.reported():
            self._say(
                f"no process has reported within {self._job.silence_s:g} s of the start: "
                + nobody_because(self._job.argv, self._watch.findings())
            )

    def descendants(self) -> tuple[int, ...]:
        return () if self._watch is None else self._watch.descendants()

    def survivors(self) -> tuple[int, ...]:
        """Processes of the command that live on; helpers get a moment to notice the end."""
        end = time.monotonic() + LAST_BREATH_S
        while living := self._watch.living() if self._watch is not None else ():
            if time.monotonic() > end:
                return living
            time.sleep(0.05)
        return ()

    def findings(self) -> tuple[Unpinned, ...]:
        """What was found until the end of the command, where it is looked once more."""
        if self._watch is None:
            return ()
        self._watch.look(rested=True)
        return self._watch.findings()


def _obstacles(argv: Sequence[str]) -> tuple[command_line.Obstacle, ...]:
    """What in the command, or in the shell script it runs, would keep pinner out."""
    found = command_line.obstacles(argv)
    script = command_line.script_of(argv)
    if script is None:
        return found
    kind, text = script
    if kind == "file":
        with contextlib.suppress(OSError):
            text = Path(text).read_text(encoding="utf-8", errors="replace")
    return (*found, *command_line.obstacles_in_script(text))


def nobody_because(argv: Sequence[str], unpinned: Sequence[Unpinned]) -> str:
    """Why no process of a command took part, as far as can be told."""
    causes = [item.text for item in unpinned]
    causes += [obstacle.text for obstacle in _obstacles(argv)]
    if causes:
        return "; ".join(causes)
    return (
        "none imported torch, decided anything or left a fingerprint; if some did, they run "
        "elsewhere: give them the variables of `pinner env`"
    )
