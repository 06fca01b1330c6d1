"""The probes under way: each in a thread of its own, told to stop where it must, never left behind.

One thread, the one that made `Workers`, starts probes and takes what they found; it alone writes
the journal and talks to people.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from stackbisect.probe import Candidate, Job, ProbeResult
from stackbisect.stage import Ask

# A container takes a moment to be gone; a daemon that hangs must not hold us for ever.
_GONE_S = 90.0


class Tries(Protocol):
    """What a runtime does for a probe."""

    def run(self, candidate: Candidate, job: Job) -> ProbeResult:
        """Try one candidate."""

    def prefetch(self, candidate: Candidate) -> None:
        """Do ahead what a probe of it will need."""


@dataclass(frozen=True)
class Running:
    """A probe under way. `stage` is the name of the one that asked for it."""

    number: int
    ask: Ask
    stage: str
    job: Job


@dataclass(frozen=True)
class Ended:
    """A probe that ended: its result, or what the runtime raised."""

    running: Running
    result: ProbeResult | None
    error: BaseException | None = None


class Workers:
    """Runs probes in threads."""

    def __init__(self, runtime: Tries) -> None:
        """Nothing is under way yet."""
        self._runtime = runtime
        self._ended: queue.SimpleQueue[Ended] = queue.SimpleQueue()
        self._running: dict[int, Running] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._fetched: set[str] = set()
        self._fetching: threading.Thread | None = None

    @property
    def running(self) -> Sequence[Running]:
        """The probes under way, in the order they were started."""
        return [each for _, each in sorted(self._running.items())]

    def start(self, running: Running) -> None:
        """Start a probe."""
        self._fetched.add(running.ask.candidate.id)
        name = f"probe {running.number}"
        thread = threading.Thread(target=self._carry_out, args=(running,), name=name, daemon=True)
        self._threads[running.number] = thread
        self._running[running.number] = running
        thread.start()

    def wait(self) -> Ended:
        """Wait until one of the probes ends. An interrupt passes through."""
        while True:
            ended = self._ended.get()
            # One that was given up, and did not heed it in time, may still come to its end.
            if self._running.pop(ended.running.number, None) is not None:
                return ended

    def give_up(self, numbers: Sequence[int]) -> None:
        """Tell probes to stop and wait until they are gone; what they found is forgotten.

        An interrupt passes through once they are.
        """
        wanted = {number for number in numbers if number in self._running}
        left = set(wanted)
        for number in wanted:
            self._running[number].job.stop.set()
        others: list[Ended] = []
        interrupted = False
        deadline = time.monotonic() + _GONE_S
        while left and time.monotonic() < deadline:
            try:
                ended = self._ended.get(timeout=0.5)
            except queue.Empty:
                # An interrupt may have come before the thread was started.
                left = {number for number in left if self._threads[number].is_alive()}
                continue
            except KeyboardInterrupt:
                interrupted = True
                continue
            if ended.running.number in wanted:
                left.discard(ended.running.number)
            else:
                others.append(ended)
        for number in wanted:
            self._running.pop(number, None)
        for ended in others:
            self._ended.put(ended)
        if interrupted:
            raise KeyboardInterrupt

    def fetch_ahead(self, candidates: Sequence[Candidate]) -> None:
        """Fetch the first of these that was not fetched yet, if nothing is being fetched."""
        if self._fetching is not None and self._fetching.is_alive():
            return
        fresh = next((each for each in candidates if each.id not in self._fetched), None)
        if fresh is None:
            return
        self._fetched.add(fresh.id)
        self._fetching = threading.Thread(
            target=self._fetch, args=(fresh,), name="ahead", daemon=True
        )
        self._fetching.start()

    def _carry_out(self, running: Running) -> None:
        try:
            result = self._runtime.run(running.ask.candidate, running.job)
            self._ended.put(Ended(running, result))
        except BaseException as error:
            self._ended.put(Ended(running, None, error))

    def _fetch(self, candidate: Candidate) -> None:
        # Whatever is wrong with it, its own probe will say so.
        with contextlib.suppress(Exception):
            self._runtime.prefetch(candidate)
