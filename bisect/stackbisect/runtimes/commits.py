"""Tries commits of a git repository, each in a checkout of its own, built first where asked."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from stackbisect.probe import Candidate, InfrastructureError, Job, ProbeResult
from stackbisect.runtimes import container_options, here, host, host_probe
from stackbisect.runtimes.checkouts import COMMIT, Checkouts
from stackbisect.runtimes.machine import Here, Machine
from stackbisect.runtimes.sources import environment
from stackbisect.runtimes.whole import Whole
from stackbisect.spaces.commits import Repository, reading
from stackbisect.spaces.components import DERIVED


class CommitRuntime(Whole):
    """Probes in checkouts on this machine (the Runtime of `probe.py`).

    `folder` is the bisection's; `build` is a shell command that is run in every checkout before it
    is tried; `secret` names variables whose values no log may hold.
    """

    name = "git"
    no_components = "commits have no components to swap"
    no_versions = "commits have no components with versions"

    def __init__(
        self,
        repository: Repository,
        folder: Path,
        build: str | None,
        environ: Mapping[str, str] = os.environ,
        *,
        budget: int | None = None,
        secret: frozenset[str] = frozenset(),
        machine: Machine | None = None,
    ) -> None:
        self._repository = repository
        self._build = build
        self._environ = environment(environ)
        self._secret = secret
        self._machine = machine or Here()
        self._checkouts = Checkouts(
            repository.path, folder.absolute(), build, budget, self._environ, secret
        )

    def describe(self) -> dict[str, Any]:
        """Repository, build, this machine, and the variables that bear on numbers."""
        return {
            "runtime": self.name,
            "repository": self._repository.path,
            "build": self._build,
            "host": described_host(),
            "environment": host_probe.numeric(self._environ),
        }

    def run(self, candidate: Candidate, job: Job) -> ProbeResult:
        """Check the candidate out, build it, and run the job's command in it."""
        started = time.time()
        base = underived(candidate)
        facts = {"host": host.facts(), "commit": base.details["commit"]}

        def work() -> ProbeResult:
            with self._checkouts.checkout(base, job) as place:
                environ = {**self._environ, COMMIT: base.details["commit"]}
                secrets = container_options.secret_values({**environ, **job.env}, self._secret)
                moved = replace(job, workdir=place)
                key = host_probe.key(base.id, job)
                return here.run(
                    moved, environ, secrets, started, facts, machine=self._machine, key=key
                )

        return here.told(work, started, job, facts)

    def difference(self, good: Candidate, bad: Candidate) -> dict[str, dict[str, list[str | None]]]:
        """Which files differ between two commits."""
        left, right = (underived(each).details["commit"] for each in (good, bad))
        with reading():
            changed = self._repository.files(left, right)
        words = {"A": [None, "added"], "D": ["deleted", None]}
        files = {each["path"]: words.get(each["status"], ["", "changed"]) for each in changed}
        return {"distributions": {}, "packages": {}, "environment": {}, "files": files}

    def clean(self) -> int:
        """Remove checkouts, builds and mirrors; return the number of builds."""
        return self._checkouts.clean()


def underived(candidate: Candidate) -> Candidate:
    """The candidate that a lock was put on: locks are the session's business, not the stack's.

    Raises InfrastructureError for any other step, which nobody can ask for here.
    """
    made = candidate.details.get(DERIVED)
    if made is None:
        return candidate
    others = [step["kind"] for step in made["steps"] if step["kind"] != "lock"]
    if others:
        raise InfrastructureError(f"a step {others[0]!r} cannot be applied to {candidate.label}")
    return underived(Candidate.from_json(made["base"]))


def described_host() -> dict[str, Any]:
    """What of this machine must be the same when a bisection goes on."""
    machine = host.facts()
    return {name: machine[name] for name in ("machine", "cpu", "gpus", "driver")}
