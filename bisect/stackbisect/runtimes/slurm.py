"""Tries candidates as Slurm jobs: another runtime makes the stack, Slurm runs the command in it."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, Protocol

from stackbisect.probe import Candidate, InfrastructureError, Job, ProbeResult, Runtime
from stackbisect.runtimes import host_probe
from stackbisect.runtimes.slurm_batch import Batch
from stackbisect.runtimes.slurm_commands import Commands
from stackbisect.spaces.components import Component, Inventory


class _Inner(Runtime, Protocol):
    def clean(self) -> int:
        """Remove what the runtime left."""


class SlurmRuntime:
    """Probes as Slurm jobs (the Runtime of `probe.py`). `inner` runs its commands on `batch`.

    `lasting`: what `inner` made for a probe is still there when a killed program is taken up again,
    so that a job it left may go on; else such jobs are cancelled first.
    """

    name = "slurm"

    def __init__(
        self,
        inner: _Inner,
        commands: Commands,
        batch: Batch,
        arguments: Sequence[str],
        *,
        lasting: bool = True,
    ) -> None:
        self._inner = inner
        self._begun = lasting
        self._guard = threading.Lock()
        self._commands = commands
        self._batch = batch
        self._arguments = tuple(arguments)

    def describe(self) -> dict[str, Any]:
        """The cluster, sbatch's arguments, and the inner runtime; not the host that submits."""
        inner = {name: value for name, value in self._inner.describe().items() if name != "host"}
        return {
            **inner,
            "runtime": self.name,
            "inner": self._inner.name,
            "cluster": self._commands.cluster(),
            "sbatch_args": list(self._arguments),
        }

    def run(self, candidate: Candidate, job: Job) -> ProbeResult:
        """Try one candidate."""
        with self._guard:
            if not self._begun:
                try:
                    self._batch.abandon()
                except InfrastructureError as error:
                    return host_probe.failed("infrastructure", str(error), time.time(), job)
                self._begun = True
        return self._inner.run(candidate, job)

    def difference(self, good: Candidate, bad: Candidate) -> dict[str, dict[str, list[str | None]]]:
        """What differs between two candidates."""
        return self._inner.difference(good, bad)

    def inventory(
        self, good: Candidate, bad: Candidate, probes: Sequence[ProbeResult]
    ) -> Inventory:
        """What can be swapped between two candidates."""
        return self._inner.inventory(good, bad, probes)

    def versions(self, component: Component, good: Candidate, bad: Candidate) -> list[str]:
        """The versions between a component's two ends."""
        return self._inner.versions(component, good, bad)

    def prefetch(self, candidate: Candidate) -> None:
        """Do ahead what the inner runtime can."""
        self._inner.prefetch(candidate)

    def close(self) -> None:
        """End what is under way; cancel jobs of a killed program that nobody took over."""
        self._inner.close()
        self._batch.close()

    def clean(self) -> int:
        """Cancel this bisection's jobs and remove what the inner runtime left."""
        return self._batch.clean() + self._inner.clean()
