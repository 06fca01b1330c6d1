"""Runs one bisection: asks the stages what to try, tries it, writes it down, to the answer.

Here the stages, the journal and a runtime meet. Whatever happened before (another program, a kill)
is in the journal and nowhere else: it is written before anything goes on, by this thread alone.
Several probes may be under way at once, each in a thread of its own (`workers`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from pinner import shipped
from stackbisect.journal import Header, Journal, Record
from stackbisect.probe import Candidate, InfrastructureError, Job, ProbeResult, Runtime
from stackbisect.search.verdict import Verdict, aborts
from stackbisect.sessions import Sessions
from stackbisect.stage import Ask, Batch, Context, Stage
from stackbisect.stages import chain
from stackbisect.stages.search import Search
from stackbisect.workers import Ended, Running, Workers

PROBES = "probes"
SCRATCH = "scratch"


class Watcher(Protocol):
    """Who is told how it goes (`progress`)."""

    def begins(self, number: int, ask: Ask, left: int) -> None:
        """A probe begins; `left` is the most probes that are still to come in its stage."""

    def ends(self, number: int, ask: Ask, result: ProbeResult, verdict: Verdict | None) -> None:
        """A probe ended; None where its verdict is not known yet."""

    def given_up(self, number: int, ask: Ask) -> None:
        """A probe was stopped: it can change nothing any more."""

    def says(self, text: str) -> None:
        """Something else happened."""


class Aborted(Exception):
    """The command asked to stop the bisection (git's rule: exit code 128 and above)."""


@dataclass(frozen=True)
class Bisection:
    """What it takes to go on with a journal.

    `pythonpath` is what the command would have as PYTHONPATH by itself; `env` are variables to
    set for it; `taps` are compiled metric taps; `jobs` is how many probes may be under way at once.
    """

    journal: Journal
    runtime: Runtime
    watcher: Watcher
    pythonpath: str | None
    env: Mapping[str, str]
    taps: tuple[Mapping[str, Any], ...] = ()
    jobs: int = 1
    clock: Callable[[], float] = time.time
    _workers: Workers = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Nothing is under way yet."""
        object.__setattr__(self, "_workers", Workers(self.runtime))

    @property
    def header(self) -> Header:
        """What it is about."""
        return self.record.header

    @property
    def record(self) -> Record:
        """What is known."""
        return self.journal.record

    def run(self) -> Record:
        """Go on until every stage is concluded.

        Raises InfrastructureError or Aborted where it must stop; that is in the journal then, and
        it can be resumed. A KeyboardInterrupt passes through. Nothing is under way afterwards.
        """
        for left in (self.journal.folder / PROBES).glob(f"*/{SCRATCH}"):
            shutil.rmtree(left, ignore_errors=True)  # of a probe that was killed
        try:
            while (stage := self._stage()) is not None:
                self._go_through(stage)
        except (InfrastructureError, Aborted) as error:
            self._stop(str(error))
            raise
        except KeyboardInterrupt:
            self._stop("interrupted")
            raise
        except BaseException:
            self._end_all()
            raise
        return self.record

    def _stage(self) -> Stage | None:
        """The stage to go on with, begun."""
        context = Context(self.runtime, self.journal.folder)
        stage = chain.current(self.record, context)
        if stage is None or stage.name in self.record.stages:
            return stage
        if self.record.stages:
            self.watcher.says(f"now: {stage.title}")
        self.journal.begin_stage(stage.name, stage.begin(self.record), self.clock())
        return chain.current(self.record, context)

    def _go_through(self, stage: Stage) -> None:
        while True:
            asked = [each.ask for each in self._workers.running]
            step = stage.next_steps(self.record, self.jobs, asked)
            if not isinstance(step, Batch):
                self._give_up(asked)
                self.journal.conclude(stage.name, step.result, self.clock())
                return
            if step.needless:
                self._give_up(step.needless)
                continue
            for ask in step.asks:
                self._start(stage, ask)
            running = [each.ask for each in self._workers.running]
            if not running:
                raise RuntimeError(f"stage {stage.name} neither ends nor asks for a probe")
            self._workers.fetch_ahead(stage.ahead(self.record, running, self.jobs))
            self._take(stage, self._workers.wait())

    def _start(self, stage: Stage, ask: Ask) -> None:
        number = self.journal.start(ask.candidate, ask.attempt, self.clock(), stage.name)
        self.watcher.begins(number, ask, stage.probes_left(self.record))
        try:
            job = self._job(number, ask.candidate)
        except OSError as error:
            raise InfrastructureError(f"cannot prepare a probe: {error}") from error
        self._workers.start(Running(number, ask, stage.name, job))

    def _take(self, stage: Stage, ended: Ended) -> None:
        """Write down what a probe found. Raises where the bisection cannot go on."""
        failure = self._failure(ended)
        if failure is None:
            self._finish(stage, ended)
            return
        if isinstance(failure, InfrastructureError) and self._workers.running:
            left = len(self._workers.running)
            self.watcher.says(
                f"probe {ended.running.number} failed: {failure}; nothing new is begun, "
                f"{left} under way {'is' if left == 1 else 'are'} waited for"
            )
            while self._workers.running:
                other = self._workers.wait()
                also = self._failure(other)
                if also is None:
                    self._finish(stage, other)
                elif not isinstance(also, InfrastructureError):
                    raise also
        raise failure

    def _failure(self, ended: Ended) -> BaseException | None:
        """Why the bisection cannot go on after a probe; None where it can."""
        running, result = ended.running, ended.result
        shutil.rmtree(running.job.scratch, ignore_errors=True)
        if result is None:
            return ended.error
        if result.status == "infrastructure":
            return InfrastructureError(result.reason)
        if aborts(Search.of(self.header).rule, result):
            return Aborted(
                f"the command ended with {result.exit_code} at {running.ask.candidate.label}: 128 "
                f"and above stop the bisection; its output is in {result.log}"
            )
        return None

    def _finish(self, stage: Stage, ended: Ended) -> None:
        running, result = ended.running, ended.result
        assert result is not None
        # Relative, so that a bisection that was set aside still knows where its logs are.
        kept = replace(result, log=os.path.relpath(running.job.log, self.journal.folder))
        ask = running.ask
        # In the order they end: of two that were begun together the second may be all there is.
        attempt = len(self.record.seen().get(ask.candidate.id, ())) + 1
        self.journal.finish(running.number, ask.candidate, attempt, kept, running.stage)
        self.watcher.ends(running.number, ask, result, stage.verdict(self.record, ask.candidate))

    def _give_up(self, asks: Sequence[Ask]) -> None:
        """Stop probes that can change nothing any more."""
        keys = {(ask.candidate.id, ask.attempt) for ask in asks}
        needless = [
            each
            for each in self._workers.running
            if (each.ask.candidate.id, each.ask.attempt) in keys
        ]
        self._workers.give_up([each.number for each in needless])
        for each in needless:
            shutil.rmtree(each.job.scratch, ignore_errors=True)
            self.journal.drop(each.number, "needless", self.clock())
            self.watcher.given_up(each.number, each.ask)

    def _stop(self, reason: str) -> None:
        """Leave nothing under way, and write down why."""
        try:
            self._end_all()
        finally:
            with contextlib.suppress(InfrastructureError):  # a full disk is what we stop for
                self.journal.stop(reason, self.clock())

    def _end_all(self) -> None:
        running = self._workers.running
        if len(running) > 1:
            self.watcher.says(f"stopping {len(running)} probes")
        with contextlib.suppress(KeyboardInterrupt):  # they are gone then, and we stop anyway
            self._workers.give_up([each.number for each in running])
        for each in running:
            shutil.rmtree(each.job.scratch, ignore_errors=True)

    def _job(self, number: int, candidate: Candidate) -> Job:
        header = self.header
        folder = (self.journal.folder / PROBES / f"{number:04d}").absolute()
        folder.mkdir(parents=True)
        hidden = self.env.get("PYTHONPATH", self.pythonpath)
        sessions = Sessions(self.journal.folder.absolute(), hidden, self.taps)
        run = f"{self.journal.folder.name}-{number:04d}"
        session = sessions.create(folder / "session", candidate, run)
        scratch = folder / SCRATCH
        scratch.mkdir()
        return Job(
            command=header.command,
            evidence=header.evidence,
            session=session.folder,
            inside=shipped.inside_dir(),
            log=folder / "log",
            stdout=folder / "stdout",
            scratch=scratch,
            workdir=Path(header.workdir),
            env=self.env,
            time_limit=header.time_limit,
            mode=session.mode,
            lock=session.lock,
        )
