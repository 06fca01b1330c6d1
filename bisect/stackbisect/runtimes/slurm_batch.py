"""Runs the commands of probes as Slurm jobs, and leaves none behind.

A command's files are in a folder of its own beside its log, on a file system that the nodes see
too. A job of a program that was killed goes on; a later program that runs the same command takes
over the job, under way or finished, instead of starting another. What nobody takes over is
cancelled when that program ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stackbisect.probe import InfrastructureError
from stackbisect.runtimes import host, process, slurm_script, slurm_states
from stackbisect.runtimes.container_output import OutputFile
from stackbisect.runtimes.machine import Unfit
from stackbisect.runtimes.slurm_commands import Commands

# How often the file that says the end is looked for; Slurm itself is asked far less often.
_LOOK_S = 0.2
_ASK_S = (0.5, 15.0)
# What is written of a job: renamed once its result is read, or once nobody wants it any more.
_SUBMITTED, _TAKEN, _GIVEN_UP = "job.json", "taken.json", "given-up.json"
_PIECE = 1 << 20
# Of a Slurm job that this program may itself be in: they would describe the new one.
_INHERITED = ("SLURM_", "SLURMD_", "PMI_", "PMIX_")
_KEPT = ("SLURM_CONF", "SLURM_CLUSTERS")


@dataclass(frozen=True)
class _Work:
    """One command on its way through Slurm. `place` is its folder, `id` its job."""

    place: Path
    name: str
    id: str
    key: str


class Batch:
    """A Slurm cluster as the machine of a bisection (`machine.Machine`).

    `label` tells this bisection's jobs from all others; `probes` is the folder that its probes'
    folders are in; `arguments` are the user's for sbatch; `environ` is the user's environment.
    """

    def __init__(
        self,
        commands: Commands,
        label: str,
        probes: Path,
        arguments: Sequence[str],
        environ: Mapping[str, str],
    ) -> None:
        self._commands = commands
        self._label = label
        self._probes = probes.absolute()
        self._arguments = tuple(arguments)
        self._environ = dict(environ)
        self._closed = threading.Event()
        self._guard = threading.Lock()
        self._left: list[_Work] | None = None

    def run(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        workdir: Path,
        *,
        log: Path,
        stdout: Path,
        time_limit: float | None = None,
        secrets: Sequence[str] = (),
        stopped: Callable[[], bool] | None = None,
        own: Sequence[Path] = (),
        key: str = "",
    ) -> process.Ended:
        """Run a command as a job, or take over the one that a killed program left."""

        def stop() -> bool:
            return self._closed.is_set() or (stopped is not None and stopped())

        whole_key = json.dumps([key, *argv])
        work = self._take_over(whole_key)
        if work is None:
            place = log.absolute().with_name(f"slurm-{log.name}")
            # By the probe's folder and the log, so that a job is known whose id was never written.
            name = f"{self._label}.{log.parent.name}.{log.name}"
            self._write(
                place,
                argv=argv,
                environ=environ,
                workdir=workdir,
                time_limit=time_limit,
                secrets=secrets,
                own=own,
            )
            work = self._submit(place, name, whole_key, environ, stop)
        try:
            reading, start = self._wait(work, stop)
        except InfrastructureError:  # nobody knows how it is: a resume takes it over
            raise
        except BaseException:
            self._give_up(work)
            raise
        _renamed(work, _TAKEN)
        ended = self._ended(work, start)
        self._bring(work, start, log=log, stdout=stdout, secrets=secrets, own=own)
        if reading.kind == "lost":
            self._give_up(work)
            raise InfrastructureError(f"{reading.text}{self._said(work)}; resume to try again")
        if reading.kind == "untestable":
            raise Unfit(f"{reading.text}{self._said(work)}")
        assert ended is not None
        return ended

    def close(self) -> None:
        """End what is under way, and cancel what nobody took over."""
        self._closed.set()
        with self._guard:
            left, self._left = self._left or [], []
        for work in left:
            self._give_up(work)

    def clean(self) -> int:
        """Cancel every job of this bisection; return their number. Raises InfrastructureError."""
        return self._commands.cancel(f"{self._label}.")

    def abandon(self) -> None:
        """Cancel what a killed program left; nothing of it is taken over."""
        with self._guard:
            for work in self._unread():
                _renamed(work, _GIVEN_UP)
            self._left = []
        self.clean()

    # -- a job's way -------------------------------------------------------------------------------

    def _take_over(self, key: str) -> _Work | None:
        """A job of this key that a killed program left, under way or finished."""
        with self._guard:
            if self._left is None:
                self._left = self._unread()
            for work in self._left:
                if work.key == key:
                    self._left.remove(work)
                    return work
        return None

    def _unread(self) -> list[_Work]:
        found = []
        for file in sorted(self._probes.glob(f"*/slurm-*/{_SUBMITTED}")):
            with contextlib.suppress(OSError, ValueError, KeyError):
                fields = json.loads(file.read_text())
                job = fields["id"] or self._id_of(fields["name"])
                # Slurm forgets a job some minutes after its end; its script has said how it was.
                if job or _wrote(_last_start(file.parent)).code is not None:
                    found.append(_Work(file.parent, fields["name"], job, fields["key"]))
        return found

    def _id_of(self, name: str) -> str:
        jobs = self._commands.named(name)
        return jobs[-1].id if jobs else ""

    def _write(
        self,
        place: Path,
        *,
        argv: Sequence[str],
        environ: Mapping[str, str],
        workdir: Path,
        time_limit: float | None,
        secrets: Sequence[str],
        own: Sequence[Path],
    ) -> None:
        """Make the command's folder: its script, and what each start begins with."""
        template = place / slurm_script.TEMPLATE
        template.mkdir(parents=True, mode=0o700)
        for name in (slurm_script.STDOUT, slurm_script.LOG):
            (template / name).touch()
        for folder in own:
            shutil.copytree(folder, template / folder.name, symlinks=True)
        shutil.copyfile(host.__file__, place / "host.py")
        changed = {
            name: value
            for name, value in environ.items()
            if self._environ.get(name) != value
            and name.isidentifier()
            and not any(each in value for each in secrets)
        }
        script = slurm_script.text(
            place=place,
            command=argv,
            workdir=workdir,
            exports=changed,
            own={str(folder): folder.name for folder in own},
            python=sys.executable,
            time_limit=time_limit,
        )
        (place / "script").write_text(script)

    def _submit(
        self, place: Path, name: str, key: str, environ: Mapping[str, str], stop: Callable[[], bool]
    ) -> _Work:
        arguments = [
            f"--output={place / 'slurm.out'}",
            "--open-mode=append",
            "--requeue",
            f"--comment=stackbisect {self._label}",
            *self._arguments,
        ]
        handed = {
            each: value
            for each, value in environ.items()
            if not each.startswith(_INHERITED) or each in _KEPT
        }
        _replace(place / _SUBMITTED, {"name": name, "key": key, "id": ""})
        try:
            job = self._commands.submit(place / "script", name, arguments, handed, stop)
        except BaseException:
            self._give_up(_Work(place, name, "", key))
            raise
        _replace(place / _SUBMITTED, {"name": name, "key": key, "id": job})
        return _Work(place, name, job, key)

    def _wait(
        self, work: _Work, stop: Callable[[], bool]
    ) -> tuple[slurm_states.Reading, Path | None]:
        """Wait until the command ended or will not: how, and the folder of its last start."""
        begun = asked = time.monotonic()
        over_since: float | None = None
        while True:
            start = _last_start(work.place)
            wrote = _wrote(start)
            if wrote.code == 0:
                return slurm_states.Reading("ended"), start
            now = time.monotonic()
            if now - asked >= _between_asks(now - begun) or wrote.code is not None:
                asked = now
                state = self._commands.state(work.id, _between_asks(now - begun), stop)
                if state is not None and not state.over and wrote.code is None:
                    over_since = None
                else:
                    over_since = now if over_since is None else over_since
                silent = 0.0 if over_since is None else now - over_since
                # Read again: the last word may have come between the two looks.
                start = _last_start(work.place)
                reading = slurm_states.read(work.id, state, _wrote(start), silent_s=silent)
                if reading.kind != "wait":
                    return reading, start
            if stop():
                raise process.Stopped("the program stops")
            time.sleep(_LOOK_S)

    def _give_up(self, work: _Work) -> None:
        _renamed(work, _GIVEN_UP)
        with contextlib.suppress(InfrastructureError):
            self._commands.cancel(work.name)

    # -- what it left ------------------------------------------------------------------------------

    def _ended(self, work: _Work, start: Path | None) -> process.Ended | None:
        code = _wrote(start).code
        if start is None or code is None:
            return None
        *_, nodes = (start / slurm_script.BEGAN).read_text().strip().split(" ")
        facts: dict[str, Any] = {
            "slurm": {"job": work.id, "nodes": nodes, "start": int(start.suffix[1:])}
        }
        with contextlib.suppress(OSError, ValueError):
            facts["host"] = json.loads((start / slurm_script.HOST).read_text())
        began = (start / slurm_script.BEGAN).stat().st_mtime_ns
        return process.Ended(code, (start / slurm_script.LATE).exists(), facts, began)

    def _bring(
        self,
        work: _Work,
        start: Path | None,
        *,
        log: Path,
        stdout: Path,
        secrets: Sequence[str],
        own: Sequence[Path],
    ) -> None:
        """Put what the last start left where the caller looks for it."""
        said = work.place / "slurm.out"
        _copy([] if start is None else [start / slurm_script.STDOUT], stdout, secrets)
        _copy([said, *([] if start is None else [start / slurm_script.LOG])], log, secrets)
        for folder in own if start is not None else ():
            assert start is not None
            if (start / folder.name).is_dir():
                shutil.rmtree(folder, ignore_errors=True)
                shutil.move(start / folder.name, folder)
        for each in work.place.glob(f"{slurm_script.START}*"):
            shutil.rmtree(each, ignore_errors=True)
        shutil.rmtree(work.place / slurm_script.TEMPLATE, ignore_errors=True)

    def _said(self, work: _Work) -> str:
        """The last line that Slurm itself wrote into the job's output."""
        with contextlib.suppress(OSError):
            lines = (work.place / "slurm.out").read_text(errors="replace").strip().splitlines()
            return f": {lines[-1].strip()}" if lines else ""
        return ""


def _renamed(work: _Work, name: str) -> None:
    """What it found is read, or not wanted: no later program takes it over."""
    with contextlib.suppress(OSError):
        (work.place / _SUBMITTED).rename(work.place / name)


def _between_asks(age: float) -> float:
    """How long not to ask Slurm about a job of this age, in seconds."""
    return min(max(age / 10, _ASK_S[0]), _ASK_S[1])


def _last_start(place: Path) -> Path | None:
    found = [
        (int(each.suffix[1:]), each)
        for each in place.glob(f"{slurm_script.START}*")
        if each.suffix[1:].isdigit() and (each / slurm_script.BEGAN).exists()
    ]
    return max(found)[1] if found else None


def _wrote(start: Path | None) -> slurm_states.Wrote:
    if start is None:
        return slurm_states.Wrote()
    try:
        return slurm_states.Wrote(True, int((start / slurm_script.ENDED).read_text()))
    except (OSError, ValueError):
        return slurm_states.Wrote(True)


def _copy(sources: Sequence[Path], target: Path, secrets: Sequence[str]) -> None:
    """Copy files one after the other, without secrets."""
    with OutputFile(target, secrets) as out:
        for source in sources:
            with contextlib.suppress(FileNotFoundError), source.open("rb") as file:
                while piece := file.read(_PIECE):
                    out.write(piece)


def _replace(path: Path, value: Mapping[str, Any]) -> None:
    draft = path.with_name(path.name + ".new")
    with draft.open("w", encoding="utf-8") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
