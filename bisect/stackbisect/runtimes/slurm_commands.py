"""Slurm's programs: sbatch, squeue, scancel, scontrol, and sacct where accounting is kept.

A controller that does not answer for a while (a restart, a busy one) is waited for: jobs go on
meanwhile.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from stackbisect.errors import UsageError
from stackbisect.probe import InfrastructureError
from stackbisect.runtimes import process
from stackbisect.runtimes.slurm_states import State

_PROGRAMS = ("sbatch", "squeue", "scancel", "scontrol")
_CALL_S = 90.0
_FORMAT = "%i|%T|%r|%N|%l|%j"
# The controller is busy, restarting, or unreachable.
_PASSING = re.compile(
    r"Unable to contact slurm controller|Socket timed out|Connection refused|Connection timed out"
    r"|temporarily unable|Zero Bytes were transmitted|Communication connection failure"
    r"|Transport endpoint|Slurm backup controller in standby|Unexpected message received"
)
_UNKNOWN = "Invalid job id"


@dataclass(frozen=True)
class Commands:
    """Calls of Slurm's programs. `patience` is for how long a controller may not answer, in s."""

    environ: Mapping[str, str]
    patience: float = 600.0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _seen: dict[str, State] = field(default_factory=dict, repr=False)
    _when: list[float] = field(default_factory=lambda: [float("-inf")], repr=False)

    def check(self) -> None:
        """Raise UsageError where the programs are not here."""
        path = self.environ.get("PATH")
        missing = [name for name in _PROGRAMS if shutil.which(name, path=path) is None]
        if missing:
            raise UsageError(
                f"--runtime slurm: expected Slurm's programs in PATH, found no {', '.join(missing)}"
            )

    def submit(
        self,
        script: Path,
        name: str,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        stopped: Callable[[], bool],
    ) -> str:
        """Submit a job and return its id. Raises InfrastructureError, process.Stopped."""
        argv = ["sbatch", "--parsable", f"--job-name={name}", *arguments, str(script)]
        deadline = time.monotonic() + self.patience
        while True:
            done = self._once(argv, environ)
            if done.returncode == 0:
                return done.stdout.strip().splitlines()[-1].partition(";")[0]
            if not _PASSING.search(done.stderr):
                raise InfrastructureError(f"sbatch {' '.join(arguments)}: {_words(done.stderr)}")
            _wait(5.0, deadline, done.stderr, stopped)
            # The controller may have taken it all the same.
            found = self.named(name, stopped)
            if found:
                return found[-1].id

    def state(self, job: str, age: float, stopped: Callable[[], bool]) -> State | None:
        """The state of a job, at most `age` seconds old; None where Slurm knows none.

        One call answers for every job of this user, and for every thread that asks.
        """
        with self._lock:
            if time.monotonic() - self._when[0] >= age:
                self._seen.clear()
                self._seen.update({each.id: each for each in self._all(stopped)})
                self._when[0] = time.monotonic()
            found = self._seen.get(job)
        return found or self._past(job)

    def named(self, name: str, stopped: Callable[[], bool] = lambda: False) -> list[State]:
        """Jobs whose name is `name`, or begins with it where it ends with a dot."""
        every = self._all(stopped)
        if name.endswith("."):
            return [each for each in every if each.name.startswith(name)]
        return [each for each in every if each.name == name]

    def cancel(self, name: str) -> int:
        """Cancel the jobs of a name (`named`) and wait until they are over; return their number.

        Raises InfrastructureError where Slurm does not answer within half a minute.
        """
        patient = replace(self, patience=min(self.patience, 30.0))
        jobs = [each.id for each in patient.named(name) if not each.over]
        if not jobs:
            return 0
        patient._call(["scancel", "--quiet", *jobs], lambda: False)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if all(each.over for each in patient.named(name)):
                break
            time.sleep(0.2)
        return len(jobs)

    def cluster(self) -> str:
        """The cluster's name. Raises InfrastructureError."""
        shown = self._call(["scontrol", "show", "config"], lambda: False, patience=20).stdout
        match = re.search(r"^ClusterName\s*=\s*(\S+)", shown, re.MULTILINE)
        return match[1] if match else ""

    def containers(self) -> bool:
        """Whether srun can start containers: pyxis is there."""
        return "--container-image" in self._once(["srun", "--help"], self.environ).stdout

    def _all(self, stopped: Callable[[], bool]) -> list[State]:
        argv = ["squeue", "--noheader", "--states=all", f"--user={os.getuid()}"]
        lines = self._call([*argv, f"--format={_FORMAT}"], stopped).stdout.splitlines()
        found = [line.split("|", 5) for line in lines if line.count("|") >= 5]
        return [State(*fields) for fields in found]

    def _past(self, job: str) -> State | None:
        """A job that the controller has forgotten, from accounting where that is kept."""
        if shutil.which("sacct", path=self.environ.get("PATH")) is None:
            return None
        fields = ["--format=State,Reason,NodeList,Timelimit", f"--jobs={job}"]
        done = self._once(["sacct", "--noheader", "-X", "--parsable2", *fields], self.environ)
        row = done.stdout.strip().splitlines()[-1:]
        if done.returncode or not row or row[0].count("|") < 3:
            return None
        state, reason, nodes, limit = row[0].split("|")[:4]
        return State(job, state.split()[0], reason, nodes, limit)

    def _call(
        self,
        argv: Sequence[str],
        stopped: Callable[[], bool],
        patience: float | None = None,
    ) -> subprocess.CompletedProcess[str]:
        deadline = time.monotonic() + (self.patience if patience is None else patience)
        while True:
            done = self._once(argv, self.environ)
            if done.returncode == 0 or _UNKNOWN in done.stderr:
                return done
            if not _PASSING.search(done.stderr):
                raise InfrastructureError(f"{argv[0]}: {_words(done.stderr)}")
            _wait(2.0, deadline, done.stderr, stopped)

    def _once(
        self, argv: Sequence[str], environ: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        try:
            # In a session of its own: a terminal's Ctrl-C must not end it half-way.
            return subprocess.run(
                list(argv),
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_CALL_S,
                start_new_session=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(list(argv), 1, "", "Socket timed out (no answer)")
        except OSError as error:
            raise InfrastructureError(f"{argv[0]}: cannot be started: {error.strerror}") from error


def _wait(seconds: float, deadline: float, said: str, stopped: Callable[[], bool]) -> None:
    """Wait before another try; raise where there is no time left for one."""
    if time.monotonic() + seconds > deadline:
        raise InfrastructureError(f"Slurm does not answer: {_words(said)}; resume when it does")
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if stopped():
            raise process.Stopped("the program stops")
        time.sleep(0.1)


def _words(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return " / ".join(lines[-3:]) or "it gave no reason"
