"""Tries candidates in containers of a Docker daemon and leaves nothing behind.

Images that a search makes of two others are built by need (`derived`), and stay until they are
over the budget or cleaned.

Every container carries the bisection's label. It is removed when its probe ends, however it ends,
by its sentry where the program was killed; what is left even then is removed before the next probe
of that bisection.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from stackbisect.probe import (
    Candidate,
    ContainerOptions,
    InfrastructureError,
    Job,
    ProbeResult,
    Status,
)
from stackbisect.runtimes import container_options, pull_progress, version_lists
from stackbisect.runtimes.derived import DerivedImages, Recipe
from stackbisect.runtimes.docker_engine import Engine, Stopped, Untestable
from stackbisect.runtimes.docker_probe import Probe, Setup, Transfer, failed
from stackbisect.runtimes.image_store import ImageStore
from stackbisect.runtimes.installing import Swapping
from stackbisect.spaces import image_contents
from stackbisect.spaces.components import Component, Inventory
from stackbisect.spaces.inventory import Pair, inventory, restricted

_T = TypeVar("_T")


class DockerRuntime:
    """Probes in containers of one Docker daemon (the Runtime of `probe.py`).

    `bisection` is written on every container as a label. `folder` keeps what is known of images
    from run to run: which were pulled, what is in them. `image_budget` is in bytes; None is no
    limit. `tell` is told how pulls go. `swapping` is how components come from one image into
    another; `files`: files outside packages are components too; `only`: nothing but these
    components (`kind:name`), where any are named. Any number of threads may call `run` at once.
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
        tell: pull_progress.Tell = pull_progress.silent,
        swapping: Swapping | None = None,
        files: bool = False,
        only: Sequence[str] = (),
    ) -> None:
        """Read the options; raises OptionError. The daemon is first asked by other methods."""
        self._setup = Setup(options, bisection, dict(environ), connect)
        container_options.host_config(options)
        container_options.environment(options, environ)
        self._transfer = transfer
        self._images = ImageStore(folder, image_budget, self._setup.labels(), tell)
        self._derived = DerivedImages(self._setup, self._images, swapping or Swapping())
        self._files = files
        self._only = frozenset(only)
        self._lock = threading.Lock()
        self._swept = False
        self._closed = threading.Event()
        self._tasks: set[_Task] = set()

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
        """Try one candidate. An interrupt passes through once the container is gone."""
        started = time.time()
        for file in (job.log, job.stdout):
            file.touch()  # there to be read, also where no command ever ran
        status: Status = "infrastructure"
        try:
            return self._apart(lambda task: self._probe(candidate, job, task), job.stop)
        except Untestable as error:
            status, reason = "untestable", str(error)
        except Stopped:
            reason = "the bisection was stopped while this probe was under way"
        except (InfrastructureError, OSError) as error:
            reason = str(error)
        facts = {"reference": Recipe.of(candidate).base.details.get("reference")}
        return failed(status, reason, facts, started, job)

    def difference(self, good: Candidate, bad: Candidate) -> image_contents.Difference:
        """Return what differs between two images; pulls one that is gone."""
        try:
            return self._apart(lambda task: self._difference(good, bad, task))
        except (Untestable, Stopped) as error:
            raise InfrastructureError(str(error) or "the bisection was stopped") from error

    def inventory(
        self, good: Candidate, bad: Candidate, probes: Sequence[ProbeResult]
    ) -> Inventory:
        """Return what can be swapped between two images, neither of them derived.

        Raises InfrastructureError.
        """
        loaded = {path for probe in probes for path in probe.loaded.get("libraries", ())}
        try:
            pair = self._apart(lambda task: self._pair(good, bad, task))
        except (Untestable, Stopped) as error:
            raise InfrastructureError(str(error) or "the bisection was stopped") from error
        return restricted(inventory(pair, sorted(loaded), files=self._files), self._only)

    def versions(self, component: Component, good: Candidate, bad: Candidate) -> list[str]:
        """Return the versions from `component.good` to `component.bad`; the ends where none lists.

        Raises InfrastructureError.
        """

        def listed(task: _Task) -> list[str]:
            task.holds_container = True
            with self._engine() as engine:
                lists = version_lists.Lists(self._derived, engine, task.stopped)
                return lists.between(component, bad)

        try:
            return self._apart(listed)
        except (Untestable, Stopped) as error:
            raise InfrastructureError(str(error) or "the bisection was stopped") from error

    def prefetch(self, candidate: Candidate) -> None:
        """Pull or build the image that a probe of this candidate will need."""
        self._apart(lambda task: self._prefetch(candidate, task))

    def clean(self) -> int:
        """Remove every container of this bisection and every image it built; return their number.

        An image that somebody else's container needs stays.
        """
        with self._engine() as engine:
            left = engine.labelled(self._setup.bisection)
            for container in left:
                engine.remove(container)
            built = engine.derived(self._setup.bisection)
            for image in built:
                with contextlib.suppress(InfrastructureError):
                    self._images.forget(engine.names(image))
                    engine.remove_image(image)
        return len(left) + len(built)

    def close(self) -> None:
        """Stop the probes that are under way and wait until their containers are gone."""
        self._closed.set()
        with self._lock:
            tasks = list(self._tasks)
        for task in tasks:
            task.wait_for_container()

    def _apart(self, work: Callable[[_Task], _T], stop: threading.Event | None = None) -> _T:
        """Do `work` in a thread of its own, to its end or until `stop`; what it raises is raised.

        There no KeyboardInterrupt can fall between the moment the daemon makes a container and the
        moment its id is known. An interrupt here tells the thread to stop and waits for it.
        """
        task = _Task(self._closed, stop or threading.Event())
        results: list[_T] = []

        def carry_out() -> None:
            try:
                results.append(work(task))
            except BaseException as error:
                task.error = error
            finally:
                task.ended.set()

        with self._lock:
            self._tasks.add(task)
        try:
            threading.Thread(target=carry_out, daemon=True).start()
            while not task.ended.wait(1):
                pass
        except BaseException:
            task.told.set()
            task.wait_for_container()
            raise
        finally:
            with self._lock:
                self._tasks.discard(task)
        if task.error is not None:
            raise task.error
        return results[0]

    def _probe(self, candidate: Candidate, job: Job, task: _Task) -> ProbeResult:
        with self._engine() as engine:
            self._sweep_once(engine)
            task.holds_container = bool(Recipe.of(candidate).of_files)
            with self._derived.use(engine, candidate, task.stopped, job.log) as stack:
                task.holds_container = True
                probe = Probe(
                    setup=self._setup,
                    engine=engine,
                    stack=stack,
                    job=job,
                    transfer=self._transfer_for(engine, job),
                    stopped=task.stopped,
                    expected=self._derived.expected(engine, candidate, task.stopped),
                )
                try:
                    result = probe.run()
                finally:
                    self._transfer = probe.transfer
            if result.status == "ran" and probe.told is not None and probe.told.found.ended:
                self._images.remember_loaded(candidate, probe.told.found.libraries)
            return result

    def _prefetch(self, candidate: Candidate, task: _Task) -> None:
        task.holds_container = True
        with self._engine() as engine:
            self._sweep_once(engine)
            with self._derived.use(engine, candidate, task.stopped):
                return

    def _pair(self, good: Candidate, bad: Candidate, task: _Task) -> Pair:
        task.holds_container = True
        with self._engine() as engine:
            self._sweep_once(engine)
            return self._images.pair(engine, good, bad, task.stopped)

    def _difference(
        self, good: Candidate, bad: Candidate, task: _Task
    ) -> image_contents.Difference:
        task.holds_container = True
        with self._engine() as engine:
            found = [self._images.contents(engine, each, task.stopped) for each in (good, bad)]
        return image_contents.difference(found[0], found[1])

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
class _Task:
    """Work under way in a thread. `closed` is the runtime's, `told` is this task's own.

    `holds_container` is set before the daemon is asked to make one. `ended` is an event because an
    interrupted `Thread.join` takes a thread that runs for one that has ended (Python up to 3.12).
    """

    closed: threading.Event
    told: threading.Event
    ended: threading.Event = field(default_factory=threading.Event)
    holds_container: bool = False
    error: BaseException | None = None

    def stopped(self) -> bool:
        """True where the work should end."""
        return self.told.is_set() or self.closed.is_set()

    def wait_for_container(self) -> None:
        """Wait until work that was told to stop has removed its container.

        Another interrupt changes nothing: removal takes a moment, and a container that stays
        behind may hold GPUs for days.
        """
        deadline = time.monotonic() + 60
        while self.holds_container and time.monotonic() < deadline:
            with contextlib.suppress(KeyboardInterrupt):
                if self.ended.wait(0.2):
                    return


def _for_others(path: Path) -> bool:
    """True where any user may read the file, or enter the folder."""
    mode = path.stat().st_mode
    wanted = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(mode) else 0)
    return mode & wanted == wanted
