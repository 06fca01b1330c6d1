"""Tries versions of a Python package, and mixtures of two of them, in virtual environments.

The environments are made and kept by `venv_build`. What the command's processes really imported and
mapped is held against what was asked for.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stackbisect.probe import Candidate, InfrastructureError, Job, ProbeResult, Unsupported
from stackbisect.runtimes import container_options, harvest, here, host, host_probe, loaded, process
from stackbisect.runtimes.base_python import Base
from stackbisect.runtimes.machine import Here, Machine
from stackbisect.runtimes.turns import Turns
from stackbisect.runtimes.venv_build import Environment, Environments, Refused, Work, swapped
from stackbisect.spaces import index, pins
from stackbisect.spaces.components import DERIVED, Component, Inventory
from stackbisect.spaces.image_contents import normalised


class VenvRuntime:
    """Probes in virtual environments (the Runtime of `probe.py`).

    They are made on this machine; the command runs on `machine`. `folder` holds the environments;
    `extras` are requirements installed next to the package; `secret` names variables whose values
    no log may hold. Any number of threads may call `run` at
    once. Where files are evidence they take turns: they share the command's folder.
    """

    name = "venv"

    def __init__(
        self,
        base: Base,
        package: str,
        extras: Sequence[str],
        folder: Path,
        environ: Mapping[str, str] = os.environ,
        *,
        secret: frozenset[str] = frozenset(),
        machine: Machine | None = None,
    ) -> None:
        self._base = base
        self._package = package
        self._folder = Path(os.path.abspath(folder))
        self._environ = dict(environ)
        self._secret = secret
        self._environments = Environments(
            base, package, tuple(extras), self._folder, self._environ, self._secrets(environ)
        )
        self._machine = machine or Here()
        self._closed = threading.Event()
        self._turns = Turns()

    def describe(self) -> dict[str, Any]:
        """Interpreter, this machine, and the variables that bear on numbers."""
        machine = host.facts()
        gpus = [*machine["gpus"], *([f"driver {machine['driver']}"] if machine["driver"] else [])]
        return {
            "runtime": self.name,
            "python": self._base.python,
            "python_version": self._base.version,
            "host": {"machine": machine["machine"], "cpu": machine["cpu"], "gpus": gpus},
            "environment": host_probe.numeric(self._environ),
        }

    def run(self, candidate: Candidate, job: Job) -> ProbeResult:
        """Install the candidate where it is not yet, and run the job's command in it."""
        started = time.time()
        facts = {"host": host.facts(), "python": self._base.version}

        def work() -> ProbeResult:
            found = self._environments.get(candidate, Work(job.log, lambda: self._stopped(job)))
            with self._turn(job):
                return self._run_in(found, candidate, job, started, facts)

        return here.told(work, started, job, facts)

    def difference(self, good: Candidate, bad: Candidate) -> dict[str, dict[str, list[str | None]]]:
        """Which distributions differ between two environments."""
        left, right = (self._known(each) for each in (good, bad))
        names = sorted({*left, *right})
        differing = {
            name: [left.get(name), right.get(name)]
            for name in names
            if left.get(name) != right.get(name)
        }
        return {"distributions": differing, "packages": {}, "environment": {}}

    def inventory(
        self, good: Candidate, bad: Candidate, probes: Sequence[ProbeResult]
    ) -> Inventory:
        """The distributions that differ, exact-pin groups together. `probes` add nothing here."""
        work = Work(self._folder / "inventory.log", self._closed.is_set)
        try:
            left, right = (self._environments.get(each, work) for each in (good, bad))
        except Refused as refused:
            raise Unsupported(f"an end cannot be taken apart: {refused}") from refused
        except process.Stopped as stopped:
            raise InfrastructureError("the bisection was stopped") from stopped
        return between(left, right)

    def versions(self, component: Component, good: Candidate, bad: Candidate) -> list[str]:
        """The index's versions of a distribution from its good to its bad one."""
        if component.kind != "distribution" or component.good is None or component.bad is None:
            raise Unsupported(f"{component.id} has no versions between its two ends")
        return index.between(
            self._base, component.name, component.good, component.bad, environ=self._environ
        )

    def prefetch(self, candidate: Candidate) -> None:
        """Nothing is done ahead: an environment that nobody asks for may take gigabytes."""

    def close(self) -> None:
        """End what is under way."""
        self._closed.set()

    def clean(self) -> int:
        """Remove the environments; return their number."""
        return self._environments.clean()

    def _known(self, candidate: Candidate) -> Mapping[str, str]:
        found = self._environments.known(candidate)
        return {} if found is None else found.distributions

    def _stopped(self, job: Job) -> bool:
        return self._closed.is_set() or job.stop.is_set()

    @contextlib.contextmanager
    def _turn(self, job: Job) -> Iterator[None]:
        """Wait for the command's folder where its files are evidence."""
        if not job.evidence.files:
            yield
            return
        with self._turns.alone("", lambda: self._stopped(job)):
            yield

    def _run_in(
        self,
        found: Environment,
        candidate: Candidate,
        job: Job,
        started: float,
        facts: Mapping[str, Any],
    ) -> ProbeResult:
        environ = command_environ(found, self._environ, job)
        before = host_probe.stamps(job)
        ended = self._machine.run(
            job.command,
            environ,
            job.workdir,
            log=job.log,
            stdout=job.stdout,
            time_limit=job.time_limit,
            secrets=self._secrets(environ),
            stopped=lambda: self._stopped(job),
            own=(job.session, job.scratch),
            key=host_probe.key(candidate.id, job),
        )
        written = host_probe.written(job, before, ended.since)
        left = harvest.read(job.session, job.stdout, job.evidence, written)
        seen = loaded.read(job.scratch / "loaded")
        fault = shadowed(found, self._package, candidate, seen) if ended.code == 0 else ""
        reason = host_probe.reason(job, left, ended.code, timed_out=ended.timed_out) or fault
        return ProbeResult(
            status="untestable" if reason else "ran",
            exit_code=ended.code,
            reason=reason,
            evidence=left.evidence,
            facts={**left.facts, **facts, **ended.facts},
            loaded=loaded_json(found, self._package, candidate, seen),
            started=started,
            ended=time.time(),
            log=str(job.log),
        )

    def _secrets(self, environ: Mapping[str, str]) -> list[str]:
        return container_options.secret_values(environ, self._secret)


def command_environ(found: Environment, environ: Mapping[str, str], job: Job) -> dict[str, str]:
    """The environment of a command that runs in an environment."""
    told = job.scratch / "loaded"
    told.mkdir(parents=True, exist_ok=True)
    made = host_probe.environment(environ, job)
    made["PATH"] = f"{found.bin}{os.pathsep}{made.get('PATH', os.defpath)}"
    made["VIRTUAL_ENV"] = str(found.folder)
    made["STACKBISECT_LOADED"] = str(told)
    return made


def between(good: Environment, bad: Environment) -> Inventory:
    """What can be swapped between two environments."""
    names = [
        name
        for name in sorted({*good.distributions, *bad.distributions})
        if good.distributions.get(name) != bad.distributions.get(name)
    ]
    groups = pins.groups(names, good.pins, bad.pins)
    together = [name for group in groups for name in group]
    ordered = [*together, *(name for name in names if name not in together)]
    return Inventory(
        tuple(
            Component(
                "distribution", name, good.distributions.get(name), bad.distributions.get(name)
            )
            for name in ordered
        ),
        tuple(tuple(f"distribution:{name}" for name in group) for group in groups),
    )


def shadowed(found: Environment, package: str, candidate: Candidate, seen: loaded.Loaded) -> str:
    """Why what was loaded is not what the candidate asks for; "" where it is."""
    fault = loaded.fault(_asked(found, package, candidate), seen)
    if fault:
        return fault
    for name in swapped(candidate):
        fault = loaded.elsewhere(
            name, found.modules.get(name, ()), found.libraries(name), found.folder, seen
        )
        if fault:
            return fault
    return ""


def loaded_json(
    found: Environment, package: str, candidate: Candidate, seen: loaded.Loaded
) -> dict[str, Any]:
    """What was loaded, as the journal keeps it."""
    return {
        **loaded.to_json(_asked(found, package, candidate), seen),
        "distributions": dict(found.distributions),
        "artifacts": dict(found.artifacts),
    }


def _asked(found: Environment, package: str, candidate: Candidate) -> loaded.Asked:
    name = normalised(re.sub(r"\[.*\]", "", package))
    installed = found.distributions.get(name, "")
    return loaded.Asked(
        package=package,
        # A mixture was held against what it asks for when it was made.
        version=installed if DERIVED in candidate.details else candidate.id,
        installed=installed,
        modules=found.modules.get(name, ()),
        prefix=found.folder,
    )
