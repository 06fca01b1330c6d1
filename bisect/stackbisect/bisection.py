"""Runs one bisection: asks the search what to try, tries it, writes it down, to the answer.

Here the pure search, the journal and a runtime meet. Whatever happened before (another program, a
kill) is in the journal and nowhere else.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from pinner import shipped
from pinner.launch import session_dir
from stackbisect.journal import Header, Journal, Record
from stackbisect.probe import Candidate, InfrastructureError, Job, ProbeResult, Runtime
from stackbisect.search import probing
from stackbisect.search.verdict import Rule, Verdict, aborts

PROBES = "probes"
SCRATCH = "scratch"


class Watcher(Protocol):
    """Who is told how it goes (`progress`)."""

    def begins(self, candidate: Candidate, number: int, step: probing.Try, left: int) -> None:
        """A probe begins; `left` is the most probes that are still to come."""

    def ends(self, candidate: Candidate, result: ProbeResult, verdict: Verdict | None) -> None:
        """A probe ended; None where its verdict is not known yet."""

    def says(self, text: str) -> None:
        """Something else happened."""


class Aborted(Exception):
    """The command asked to stop the bisection (git's rule: exit code 128 and above)."""


@dataclass(frozen=True)
class Bisection:
    """What it takes to go on with a journal.

    `pythonpath` is what the command would have as PYTHONPATH by itself; `env` are variables to
    set for it; `taps` are compiled metric taps.
    """

    journal: Journal
    runtime: Runtime
    watcher: Watcher
    pythonpath: str | None
    env: Mapping[str, str]
    taps: tuple[Mapping[str, Any], ...] = ()
    clock: Callable[[], float] = time.time

    @property
    def header(self) -> Header:
        """What it is about."""
        return self.journal.record.header

    def run(self) -> probing.Step:
        """Go on to the answer.

        Raises InfrastructureError or Aborted where it must stop; that is in the journal then, and
        it can be resumed. A KeyboardInterrupt passes through.
        """
        for left in (self.journal.folder / PROBES).glob(f"*/{SCRATCH}"):
            shutil.rmtree(left, ignore_errors=True)  # of a probe that was killed
        rule = rule_of(self.header)
        ids = [candidate.id for candidate in self.header.candidates]
        while True:
            step = probing.next_step(ids, self.journal.record.seen(), rule)
            if not isinstance(step, probing.Try):
                return step
            try:
                self._try(step, rule)
            except (InfrastructureError, Aborted) as error:
                self.journal.stop(str(error), self.clock())
                raise
            except KeyboardInterrupt:
                self.journal.stop("interrupted", self.clock())
                raise

    def _try(self, step: probing.Try, rule: Rule) -> None:
        candidate = self.header.candidates[step.position]
        number = self.journal.start(candidate, step.attempt, self.clock())
        self.watcher.begins(candidate, number, step, probes_left(self.journal.record))
        try:
            job = self._job(number)
        except (OSError, session_dir.SessionError) as error:
            raise InfrastructureError(f"cannot prepare a probe: {error}") from error
        try:
            result = self.runtime.run(candidate, job)
        finally:
            shutil.rmtree(job.scratch, ignore_errors=True)
        if result.status == "infrastructure":
            raise InfrastructureError(result.reason)
        if aborts(rule, result):
            raise Aborted(
                f"the command ended with {result.exit_code} at {candidate.label}: 128 and above "
                f"stop the bisection; its output is in {result.log}"
            )
        # Relative, so that a bisection that was set aside still knows where its logs are.
        kept = replace(result, log=os.path.relpath(job.log, self.journal.folder))
        self.journal.finish(number, candidate, step.attempt, kept)
        verdict = verdicts(self.journal.record)[step.position]
        self.watcher.ends(candidate, result, verdict)

    def _job(self, number: int) -> Job:
        header = self.header
        folder = (self.journal.folder / PROBES / f"{number:04d}").absolute()
        folder.mkdir(parents=True)
        settings = session_dir.Settings(
            mode="observe",
            run=f"{self.journal.folder.name}-{number:04d}",
            created=session_dir.now(),
            taps=self.taps,
            hidden_pythonpath=self.env.get("PYTHONPATH", self.pythonpath),
        )
        scratch = folder / SCRATCH
        scratch.mkdir()
        return Job(
            command=header.command,
            evidence=header.evidence,
            session=session_dir.create(folder / "session", settings).path,
            inside=shipped.inside_dir(),
            log=folder / "log",
            stdout=folder / "stdout",
            scratch=scratch,
            workdir=Path(header.workdir),
            env=self.env,
            time_limit=header.time_limit,
        )


def rule_of(header: Header) -> Rule:
    """How this bisection reads its probes."""
    return Rule.of("exit-code" if header.verdict == "exit-code" else "evidence", header.command)


def verdicts(record: Record) -> list[Verdict | None]:
    """Every candidate's verdict so far."""
    ids = [candidate.id for candidate in record.header.candidates]
    return probing.verdicts(ids, record.seen(), rule_of(record.header))


def next_step(record: Record) -> probing.Step:
    """What comes next."""
    ids = [candidate.id for candidate in record.header.candidates]
    return probing.next_step(ids, record.seen(), rule_of(record.header))


def probes_left(record: Record) -> int:
    """The most probes still to come, with two classes of bits and no more untestable ones."""
    ids = [candidate.id for candidate in record.header.candidates]
    return probing.probes_left(ids, record.seen(), rule_of(record.header))
