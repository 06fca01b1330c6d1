"""Tries candidates in containers of a Docker daemon and leaves nothing behind.

Every container carries the bisection's label. It is removed when its probe ends, however it ends;
what a program that was killed left is removed before the next probe of that bisection.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stackbisect.probe import (
    Candidate,
    ContainerOptions,
    Evidence,
    InfrastructureError,
    Job,
    ProbeResult,
    Status,
)
from stackbisect.runtimes import container_options
from stackbisect.runtimes.docker_engine import Engine, Stopped, Untestable
from stackbisect.runtimes.docker_probe import Probe, Setup, Transfer
from stackbisect.runtimes.image_store import ImageStore
from stackbisect.spaces import image_contents


class DockerRuntime:
    """Probes in containers of one Docker daemon (the Runtime of `probe.py`).

    `bisection` is written on every container as a label. `folder` keeps what is known of images
    from run to run: which were pulled, what is in them. `image_budget` is in bytes; None is no
    limit. Any number of threads may call `run` at once.
    """

    name = "docker"

    def __init__(
        self,
        options: ContainerOptions,
        bisection: str,
        *,
        transfer: Transfer = "auto",
        folder: Path | None = None,
        image_budget: int | None = None,
        environ: Mapping[str, str] = os.environ,
        connect: Callable[[], Engine] = Engine.connect,
    ) -> None:
        """Read the options; raises OptionError. The daemon is first asked by other methods."""
        self._setup = Setup(options, bisection, dict(environ), connect)
        container_options.host_config(options)
        container_options.environment(options, environ)
        self._transfer = transfer
        self._images = ImageStore(folder, image_budget, self._setup.labels())
        self._lock = threading.Lock()
        self._swept = False
        self._closed = threading.Event()
        self._attempts: set[_Attempt] = set()

    def describe(self) -> dict[str, Any]:
        """Return options and host; secrets hidden. Raises InfrastructureError without a daemon."""
        with self._engine() as engine:
            info = engine.info()
        options = self._setup.options
        shown = tuple(container_options.hide_secret(text) for text in options.env)
        return {
            "runtime": self.name,
            "host": info.get("Name"),
            "architecture": info.get("Architecture"),
            "options": replace(options, env=shown).to_json(),
        }

    def run(self, candidate: Candidate, job: Job) -> ProbeResult:
        """Try one candidate. An interrupt passes through once the container is gone.

        The work is done in a thread of its own: there no KeyboardInterrupt can fall between the
        moment the daemon makes a container and the moment its id is known here.
        """
        attempt = _Attempt(candidate, job)
        with self._lock:
            self._attempts.add(attempt)
        try:
            threading.Thread(target=self._work, args=(attempt,), daemon=True).start()
            while not attempt.ended.wait(1):
                pass
        except BaseException:
            attempt.stopped.set()
            attempt.wait_for_container()
            raise
        finally:
            with self._lock:
                self._attempts.discard(attempt)
        if attempt.error is not None:
            raise attempt.error
        return attempt.result or _failed(attempt, "infrastructure", "the bisection was stopped")

    def difference(self, good: Candidate, bad: Candidate) -> image_contents.Difference:
        """Return what differs between two images; pulls one that is gone."""
        with self._engine() as engine:
            found = [
                self._images.contents(engine, candidate, self._closed.is_set)
                for candidate in (good, bad)
            ]
        return image_contents.difference(found[0], found[1])

    def clean(self) -> int:
        """Remove every container of this bisection, running or not; return their number."""
        with self._engine() as engine:
            left = engine.labelled(self._setup.bisection)
            for container in left:
                engine.remove(container)
        return len(left)

    def close(self) -> None:
        """Stop the probes that are under way and wait until their containers are gone."""
        self._closed.set()
        with self._lock:
            attempts = list(self._attempts)
        for attempt in attempts:
            attempt.wait_for_container()

    def _work(self, attempt: _Attempt) -> None:
        """Make one probe; its end is in `attempt.result`, or in `error` if nobody foresaw it."""
        try:
            with self._engine() as engine:
                attempt.result = self._probe(engine, attempt)
        except Stopped:
            pass
        except Untestable as error:
            attempt.result = _failed(attempt, "untestable", str(error))
        except (InfrastructureError, OSError) as error:
            attempt.result = _failed(attempt, "infrastructure", str(error))
        except BaseException as error:
            attempt.error = error
        finally:
            attempt.ended.set()

    def _probe(self, engine: Engine, attempt: _Attempt) -> ProbeResult:
        def stopped() -> bool:
            return attempt.stopped.is_set() or self._closed.is_set()

        self._sweep_once(engine)
        with self._images.use(engine, attempt.candidate, stopped) as image:
            attempt.holds_container = True
            probe = Probe(
                setup=self._setup,
                engine=engine,
                reference=str(attempt.candidate.details["reference"]),
                image=image,
                job=attempt.job,
                transfer=self._transfer_for(engine, attempt.job),
                stopped=stopped,
            )
            try:
                return probe.run()
            finally:
                self._transfer = probe.transfer

    def _transfer_for(self, engine: Engine, job: Job) -> Transfer:
        if self._transfer != "auto":
            return self._transfer
        # Under SELinux a mount without a label of its own cannot be read in the container.
        labelled = any("selinux" in text for text in engine.info().get("SecurityOptions") or ())
        hidden = [path for path in (job.inside, *job.inside.rglob("*")) if not _for_others(path)]
        return "copy" if engine.remote or labelled or hidden else "auto"

    @contextlib.contextmanager
    def _engine(self) -> Iterator[Engine]:
        engine = self._setup.connect()
        try:
            yield engine
        finally:
            engine.close()

    def _sweep_once(self, engine: Engine) -> None:
        """Remove what a killed program left, before this one's first container."""
        with self._lock:
            if self._swept:
                return
            for container in engine.labelled(self._setup.bisection):
                engine.remove(container)
            self._swept = True


@dataclass(eq=False)
class _Attempt:
    """One probe under way in a thread.

    `holds_container` is set before the daemon is asked to make one. `ended` is an event because an
    interrupted `Thread.join` takes a thread that runs for one that has ended (Python up to 3.12).
    """

    candidate: Candidate
    job: Job
    stopped: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    started: float = field(default_factory=time.time)
    holds_container: bool = False
    result: ProbeResult | None = None
    error: BaseException | None = None

    def wait_for_container(self) -> None:
        """Wait until an attempt that was told to stop has removed its container.

        Another interrupt changes nothing: removal takes a moment, and a container that stays
        behind may hold GPUs for days.
        """
        deadline = time.monotonic() + 60
        while self.holds_container and time.monotonic() < deadline:
            with contextlib.suppress(KeyboardInterrupt):
                if self.ended.wait(0.2):
                    return


def _failed(attempt: _Attempt, status: Status, reason: str) -> ProbeResult:
    return ProbeResult(
        status=status,
        exit_code=None,
        reason=reason,
        evidence=Evidence(),
        facts={"reference": attempt.candidate.details.get("reference")},
        loaded={},
        started=attempt.started,
        ended=time.time(),
        log=str(attempt.job.log),
    )


def _for_others(path: Path) -> bool:
    """True where any user may read the file, or enter the folder."""
    mode = path.stat().st_mode
    wanted = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(mode) else 0)
    return mode & wanted == wanted
