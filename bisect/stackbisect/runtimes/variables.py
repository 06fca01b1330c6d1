"""Tries one stack under other environment variables: any runtime, with variables set in front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from stackbisect.probe import Candidate, Job, ProbeResult, Runtime, Unsupported
from stackbisect.spaces import environment
from stackbisect.spaces.components import Component, Inventory, derived


class _Cleanable(Runtime, Protocol):
    def clean(self) -> int:
        """Remove what the runtime left."""


class VariablesRuntime:
    """A runtime for candidates of `spaces.environment`; `inner` tries their base."""

    def __init__(self, inner: _Cleanable, environ: Mapping[str, str]) -> None:
        self._inner = inner
        self._environ = environ
        self.name = inner.name

    def describe(self) -> dict[str, Any]:
        """What the inner one says."""
        return self._inner.describe()

    def run(self, candidate: Candidate, job: Job) -> ProbeResult:
        """Try the base with the candidate's variables set for the command."""
        base, variables, others = environment.resolved(candidate)
        given = {n: self._environ.get(n, "") if v is None else v for n, v in variables.items()}
        stack = derived(base, others, candidate.label)
        return self._inner.run(stack, replace(job, env={**job.env, **given}))

    def difference(self, good: Candidate, bad: Candidate) -> dict[str, dict[str, list[str | None]]]:
        """The variables that differ."""
        found = environment.difference(good, bad)
        return {"distributions": {}, "packages": {}, "environment": found}

    def inventory(
        self, good: Candidate, bad: Candidate, probes: Sequence[ProbeResult]
    ) -> Inventory:
        """The variables that differ."""
        return environment.inventory(good, bad)

    def versions(self, component: Component, good: Candidate, bad: Candidate) -> list[str]:
        """Variables have none."""
        raise Unsupported(f"{component.id} has no versions")

    def prefetch(self, candidate: Candidate) -> None:
        """Fetch the base."""
        self._inner.prefetch(environment.resolved(candidate)[0])

    def close(self) -> None:
        """Give back what the inner one holds."""
        self._inner.close()

    def clean(self) -> int:
        """Remove what the inner one left."""
        return self._inner.clean()
