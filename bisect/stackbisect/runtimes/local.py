"""Tries candidates that only the user knows how to prepare, in folders of this machine.

A candidate is a name. The user's own command prepares it, once: it gets the name in
STACKBISECT_CANDIDATE and a folder of the candidate's own in STACKBISECT_FOLDER. The command that is
tried gets the same two. Both run where the bisection was started.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stackbisect.probe import Candidate, Job, ProbeResult
from stackbisect.runtimes import container_options, here, host, host_probe
from stackbisect.runtimes.checkouts import Refused, remove
from stackbisect.runtimes.commits import described_host, underived
from stackbisect.runtimes.machine import Here, Machine
from stackbisect.runtimes.turns import Turns
from stackbisect.runtimes.whole import Whole

CANDIDATE, FOLDER = "STACKBISECT_CANDIDATE", "STACKBISECT_FOLDER"
CANDIDATES = "candidates"
# Written last, beside the folder: one without it was left half-prepared.
_COMPLETE = ".prepared"


class LocalRuntime(Whole):
    """Probes of candidates that `prepare` (a shell command) makes; None: nothing is prepared.

    `folder` is the bisection's. Any number of threads may call `run` at once; where files are
    evidence they take turns, because they share the command's working folder.
    """

    name = "local"
    no_components = "what --prepare makes cannot be taken apart"
    no_versions = "--runtime local knows no versions"

    def __init__(
        self,
        prepare: str | None,
        folder: Path,
        environ: Mapping[str, str] = os.environ,
        *,
        secret: frozenset[str] = frozenset(),
        machine: Machine | None = None,
    ) -> None:
        self._prepare = prepare
        self._folder = folder.absolute() / CANDIDATES
        self._environ = dict(environ)
        self._secret = secret
        self._machine = machine or Here()
        self._turns = Turns()

    def describe(self) -> dict[str, Any]:
        """How candidates are prepared, this machine, and the variables that bear on numbers."""
        return {
            "runtime": self.name,
            "prepare": self._prepare,
            "host": described_host(),
            "environment": host_probe.numeric(self._environ),
        }

    def run(self, candidate: Candidate, job: Job) -> ProbeResult:
        """Prepare the candidate where it is not yet, and run the job's command."""
        started = time.time()
        facts = {"host": host.facts()}
        base = underived(candidate)
        place = self._place(base)
        environ = {**self._environ, CANDIDATE: base.label, FOLDER: str(place)}
        secrets = container_options.secret_values({**environ, **job.env}, self._secret)

        def work() -> ProbeResult:
            with self._turns.alone(place.name, job.stop.is_set):
                self._prepared(place, environ, job, secrets)
            with self._files_turn(job):
                key = host_probe.key(base.id, job)
                return here.run(
                    job, environ, secrets, started, facts, machine=self._machine, key=key
                )

        return here.told(work, started, job, facts)

    def clean(self) -> int:
        """Remove the candidates' folders; return their number."""
        found = [each for each in self._folder.glob("*") if each.is_dir()]
        remove(self._folder)
        return len(found)

    def _files_turn(self, job: Job) -> contextlib.AbstractContextManager[None]:
        if not job.evidence.files:
            return contextlib.nullcontext()
        return self._turns.alone("", job.stop.is_set)

    def _place(self, candidate: Candidate) -> Path:
        digest = hashlib.sha256(f"{self._prepare}\0{candidate.id}".encode()).hexdigest()[:12]
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", candidate.label)[:60].lstrip(".")
        return self._folder / f"{name}-{digest}"

    def _prepared(
        self, place: Path, environ: Mapping[str, str], job: Job, secrets: Sequence[str]
    ) -> None:
        """Run the user's command where it did not succeed yet. Raises Refused."""
        marker = place.with_name(place.name + _COMPLETE)
        if marker.exists():
            return
        remove(place)
        place.mkdir(parents=True)
        if self._prepare is not None:
            log = job.log.with_name("prepare.log")
            ended = self._machine.run(
                ["/bin/sh", "-c", self._prepare],
                {**environ, **job.env},
                job.workdir,
                log=log,
                stdout=log.with_name("prepare.out"),
                secrets=secrets,
                stopped=job.stop.is_set,
                key=place.name,
            )
            if ended.code:
                text = here.last_lines(log.read_text(errors="replace"), 4) or "no output"
                remove(place)
                raise Refused(f"--prepare ended with {ended.code}: {text} (log {log.name})")
        marker.write_text("")
