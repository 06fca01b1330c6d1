"""One probe in one container: made, filled, started, waited for, emptied, removed.

What is the same in every probe, and why:
- The image's own entrypoint, user, working folder and PYTHONPATH are kept; pinner's folder goes in
  front of the PYTHONPATH. What was used stands in the result's facts.
- Compile caches are new and empty: a cache that an image or a mount brings would hide a flip.

Files travel in one of two ways. `bind`: pinner/inside and the session folder are bind-mounted.
`copy`: they are put into a volume of the container and fetched afterwards, for daemons that cannot
see this machine's files (remote, in a virtual machine, in another container). `auto` looks whether
the container shows the mounted session, and takes `copy` where it does not.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from stackbisect.probe import (
    ContainerOptions,
    Evidence,
    InfrastructureError,
    Job,
    ProbeResult,
    Status,
)
from stackbisect.runtimes import (
    archive,
    caches,
    container_files,
    container_loaded,
    container_options,
    harvest,
    host,
)
from stackbisect.runtimes.container_loaded import NOTHING, Expected, Told
from stackbisect.runtimes.container_output import OutputFile
from stackbisect.runtimes.docker_engine import (
    BISECTION_LABEL,
    PROBE_LABEL,
    Ending,
    Engine,
    Image,
    Stopped,
    Untestable,
)
from stackbisect.spaces import image_files

Transfer = Literal["auto", "bind", "copy"]

ROOT = "/opt/pinner"
INSIDE = f"{ROOT}/inside"
SESSION = f"{ROOT}/session"
CACHES = f"{ROOT}/caches"
_SESSION_FOLDERS = ("ledger", "faults", "launchers", container_loaded.LOADED)
_OPEN_TO_ALL = 0o1777
"""For folders that the command's user, whoever that is, must write in."""

_KILLED = (137, 143)
"""Codes of a command that SIGKILL or SIGTERM ended: a daemon that goes down sends these too."""


@dataclass(frozen=True)
class Setup:
    """What is the same for every probe of a bisection. `environ` is this program's environment."""

    options: ContainerOptions
    bisection: str
    environ: Mapping[str, str]
    connect: Callable[[], Engine]

    @property
    def env(self) -> dict[str, str]:
        """The variables of `--env`. Raises OptionError."""
        return container_options.environment(self.options, self.environ)

    @property
    def secrets(self) -> list[str]:
        """Values that no log may hold."""
        bare = frozenset(text for text in self.options.env if "=" not in text)
        return container_options.secret_values(self.env, bare)

    def labels(self, probe: str = "") -> dict[str, str]:
        """The labels by which a container of this bisection is found again."""
        return {BISECTION_LABEL: self.bisection, **({PROBE_LABEL: probe} if probe else {})}


@dataclass(frozen=True)
class Stack:
    """What a probe runs in: an image, and variables set and unset on top of its own.

    `image` has the environment with these changes made. `built`: the image was made here, and how
    it starts is said to the daemon: not every one (Podman 4.3) keeps the config that was asked for.
    """

    reference: str
    image: Image
    built: bool = False
    set: Mapping[str, str] = field(default_factory=dict, repr=False)
    unset: tuple[str, ...] = ()


@dataclass
class Probe:
    """One probe. `transfer` becomes what was used; `stopped` is asked between steps.

    `stack` is the image with the variables that a swap sets or takes away; `expected` is what must
    be loaded in it. `told` is what its processes said, once it ran.
    """

    setup: Setup
    engine: Engine
    stack: Stack
    job: Job
    transfer: Transfer
    stopped: Callable[[], bool]
    expected: Expected = NOTHING
    told: Told | None = None

    @property
    def reference(self) -> str:
        """The image's name."""
        return self.stack.reference

    @property
    def image(self) -> Image:
        """What the image's config says, swapped variables included."""
        return self.stack.image

    def run(self) -> ProbeResult:
        """Run the job's command in a fresh container of the image.

        Raises InfrastructureError or Stopped; the container is gone in any case but that of a
        daemon that does not answer.
        """
        started = time.time()
        hidden = self._pythonpath()
        try:
            return self._run(started, hidden)
        except Untestable as error:
            return failed("untestable", str(error), self._facts(hidden), started, self.job)

    def _run(self, started: float, hidden: str | None) -> ProbeResult:
        _write_hidden(self.job.session, hidden)
        container_loaded.place(self.job.session)
        if self.transfer != "copy":
            _open_up(self.job.session)
        container = self._create(hidden)
        try:
            if self.transfer == "auto":
                self.transfer = "bind"
                if not self._session_is_seen(container):
                    self.transfer = "copy"
                    self.engine.remove(container)
                    container = self._create(hidden)
            self._fill(container)
            ending = self._run_to_the_end(container)
            return self._result(container, ending, started, hidden)
        finally:
            self.engine.remove(container)

    def _pythonpath(self) -> str | None:
        """The PYTHONPATH the command would have had without pinner."""
        given = {**self.job.env, **self.setup.env}.get("PYTHONPATH")
        return given if given is not None else self.image.variable("PYTHONPATH")

    def _create(self, hidden: str | None) -> str:
        if self.stopped():
            raise Stopped
        name = f"stackbisect-{secrets.token_hex(8)}"
        try:
            return self.engine.create(self.reference, {"Name": name, **self._settings(hidden)})
        except Untestable as error:
            # Old daemons refuse a bind mount whose source is not on their host.
            if self.transfer != "auto" or str(self.job.session) not in str(error):
                raise
            self.transfer = "copy"
            return self._create(hidden)
        except InfrastructureError:
            # The daemon may have made it and only its answer been lost.
            with contextlib.suppress(InfrastructureError):
                self.engine.remove(name)
            raise

    def _settings(self, hidden: str | None) -> dict[str, Any]:
        options = self.setup.options
        given = {**self.job.env, **self.setup.env}
        asked = container_loaded.variables(SESSION, self.expected.distributions)
        own = f"{INSIDE}/inject:{SESSION}/{container_loaded.HOOK}"
        env = {
            **self.stack.set,
            **given,
            **self._cache_variables(given),
            "PINNER_SESSION": SESSION,
            "PINNER_MODE": self.job.mode,
            **asked,
            "PYTHONPATH": f"{own}:{hidden}" if hidden else own,
        }
        # A name alone takes a variable of the image's away.
        gone = [name for name in self.stack.unset if name not in env]
        host = container_options.host_config(options)
        mounts = [_volume(ROOT)] if self.transfer == "copy" else _bind_mounts(self.job)
        settings: dict[str, Any] = {
            "Cmd": list(self.job.command),
            "Env": [*(f"{name}={value}" for name, value in env.items()), *gone],
            "Labels": self.setup.labels(self.job.session.parent.name),
            "Healthcheck": {"Test": ["NONE"]},  # the image's would run beside the command
            "HostConfig": {
                **host,
                "Mounts": [*host["Mounts"], *mounts],
                "LogConfig": {"Type": "json-file", "Config": {}},  # the one that can be read back
            },
        }
        if self.stack.built:
            settings["Entrypoint"] = list(self.image.entrypoint) or [""]
            settings["WorkingDir"] = self.image.workdir
            settings["User"] = self.image.user
        if options.user:
            settings["User"] = options.user
        if options.entrypoint is not None:
            settings["Entrypoint"] = [options.entrypoint]  # [""] takes the image's own away
        return settings

    def _cache_variables(self, given: Mapping[str, str]) -> dict[str, str]:
        switched_on = {
            name: folder
            for name, folder in caches.FOLDERS_IF_SET.items()
            if given.get(name) or self.image.variable(name)
        }
        wanted = {**caches.FOLDERS, **switched_on}
        return {name: f"{CACHES}/{folder}" for name, folder in wanted.items()}

    def _session_is_seen(self, container: str) -> bool:
        """True where the daemon's host is ours, so that a bind mount shows our files."""
        try:
            found = archive.members(self.engine.get(container, f"{SESSION}/session.json"))
            content = next((file.read() for _, file in found if file is not None), b"")
        except (FileNotFoundError, archive.ArchiveError):
            return False
        return content == (self.job.session / "session.json").read_bytes()

    def _fill(self, container: str) -> None:
        """Put in what is not mounted, and the empty caches."""
        empty = [*caches.FOLDERS.values(), *caches.FOLDERS_IF_SET.values()]
        if self.transfer == "bind":
            folders = dict.fromkeys(empty, _OPEN_TO_ALL)
            self.engine.put(container, CACHES, archive.pack([], folders))
            return
        trees = [("inside", self.job.inside), ("session", self.job.session)]
        session = ["session", *(f"session/{name}" for name in _SESSION_FOLDERS)]
        opened = [*session, *(f"caches/{name}" for name in empty)]
        folders = {"caches": 0o755, **dict.fromkeys(opened, _OPEN_TO_ALL)}
        self.engine.put(container, ROOT, archive.pack(trees, folders))

    def _run_to_the_end(self, container: str) -> Ending:
        """Start the command, wait for it and keep its output. Raises Untestable at the limit."""
        self.engine.start(container)
        follower = _Follower(self.setup, container, self.job.log)
        follower.start()
        try:
            return self._wait(container)
        finally:
            self._keep_output(container, follower)

    def _wait(self, container: str) -> Ending:
        limit = self.job.time_limit
        deadline = None if limit is None else time.monotonic() + limit
        pause = 0.02
        while True:
            ending = self.engine.ending(container)
            if ending is not None:
                break
            if self.stopped():
                raise Stopped
            if deadline is not None and time.monotonic() > deadline:
                self.engine.kill(container)
                raise Untestable(f"the command did not end within {limit:g} s")
            time.sleep(pause)
            pause = min(pause * 1.5, 0.25)
        if ending.exit_code in _KILLED and not ending.out_of_memory:
            time.sleep(1)  # a daemon that is going down says so by now
            self.engine.ending(container)
        return ending

    def _keep_output(self, container: str, follower: _Follower) -> None:
        if self.stopped():
            return
        follower.join(30)
        if not follower.complete:
            self._write_output(container, self.job.log, stderr=True)
        self._write_output(container, self.job.stdout, stderr=False)

    def _write_output(self, container: str, path: Path, *, stderr: bool) -> None:
        with OutputFile(path, self.setup.secrets) as out:
            for chunk in self.engine.output(container, follow=False, stderr=stderr):
                out.write(chunk)

    def _result(
        self, container: str, ending: Ending, started: float, hidden: str | None
    ) -> ProbeResult:
        if self.transfer == "copy" or not _readable(self.job.session):
            self.engine.fetch(container, SESSION, self.job.session)
        left = harvest.read(
            self.job.session,
            self.job.stdout,
            self.job.evidence,
            self._evidence_files(container, ending),
        )
        self.told = container_loaded.read(self.job.session)
        reason = _reason(ending, left) or container_loaded.fault(
            self.expected, self.told, lambda path: self._digest(container, path)
        )
        return ProbeResult(
            status="untestable" if reason else "ran",
            exit_code=ending.exit_code,
            reason=reason,
            evidence=left.evidence,
            facts=self._facts(hidden),
            loaded={**left.facts, **self.told.to_json()},
            started=started,
            ended=time.time(),
            log=str(self.job.log),
        )

    def _digest(self, container: str, path: str) -> str | None:
        """The digest of a file in the container, as an image's files have it."""
        try:
            found = archive.members(self.engine.get(container, path))
            content = next((file for _, file in found if file is not None), None)
            return None if content is None else image_files.digest(content)
        except (FileNotFoundError, archive.ArchiveError):
            return None

    def _evidence_files(self, container: str, ending: Ending) -> Mapping[str, Path]:
        globs = self.job.evidence.files
        if not globs:
            return {}
        mounts = container_options.host_config(self.setup.options)["Mounts"]
        ended = container_files.Ended(
            id=container,
            workdir=self.image.workdir,
            mounts=tuple(mount["Target"] for mount in mounts),
            started=container_files.seconds(ending.started_at),
        )
        target = self.job.session / "files"
        target.mkdir(exist_ok=True)
        return container_files.fetch(self.engine, ended, globs, target)

    def _facts(self, hidden: str | None) -> dict[str, Any]:
        options = self.setup.options
        entrypoint = self.image.entrypoint
        if options.entrypoint is not None:
            entrypoint = tuple([options.entrypoint] if options.entrypoint else [])
        return {
            "image": self.image.id,
            "reference": self.reference,
            "entrypoint": list(entrypoint),
            "user": options.user or self.image.user,
            "workdir": self.image.workdir,
            "pythonpath": hidden,
            "ld_preload": self.image.variable("LD_PRELOAD"),
            "transfer": self.transfer,
            "host": _host(self.engine, self.told),
        }


class _Follower(threading.Thread):
    """Writes a container's output to a file while it runs, so that it can be watched."""

    def __init__(self, setup: Setup, container: str, path: Path) -> None:
        super().__init__(name=f"output of {container[:12]}", daemon=True)
        self.complete = False
        self._setup = setup
        self._container = container
        self._path = path

    def run(self) -> None:
        with contextlib.suppress(InfrastructureError, OSError):
            engine = self._setup.connect()
            try:
                with OutputFile(self._path, self._setup.secrets) as out:
                    for chunk in engine.output(self._container, follow=True):
                        out.write(chunk)
                self.complete = True
            finally:
                engine.close()


def failed(
    status: Status, reason: str, facts: Mapping[str, Any], started: float, job: Job
) -> ProbeResult:
    """The result of a probe whose command did not come to an end by itself."""
    return ProbeResult(
        status=status,
        exit_code=None,
        reason=reason,
        evidence=Evidence(),
        facts=facts,
        loaded={},
        started=started,
        ended=time.time(),
        log=str(job.log),
    )


def _host(engine: Engine, said: Told | None) -> dict[str, Any]:
    """The machine of the daemon: ours, or another one, as the daemon and the container tell."""
    told = engine.info()
    here = host.facts()
    if not engine.remote and told.get("KernelVersion") in (None, here["kernel"]):
        return here
    return {
        "hostname": str(told.get("Name") or ""),
        "kernel": str(told.get("KernelVersion") or ""),
        "machine": str(told.get("Architecture") or ""),
        **{name: (said.host if said else {}).get(name, "") for name in ("cpu", "driver")},
        "gpus": list((said.host if said else {}).get("gpus", ())),
    }


def _reason(ending: Ending, left: harvest.Harvest) -> str:
    """Why a command that was started says nothing about its candidate; "" where it does."""
    if ending.error:
        return f"the container did not start: {ending.error}"
    if ending.out_of_memory:
        return "the container ran out of memory"
    if left.damage:
        return left.damage
    if left.faults and (ending.exit_code != 0 or left.evidence.empty):
        return left.faults[0]
    return ""


def _bind_mounts(job: Job) -> list[dict[str, Any]]:
    return [
        {"Type": "bind", "Source": str(job.inside), "Target": INSIDE, "ReadOnly": True},
        {"Type": "bind", "Source": str(job.session), "Target": SESSION},
        _volume(CACHES),
    ]


def _volume(target: str) -> dict[str, Any]:
    """An anonymous volume: writable under a read-only root, and removed with its container."""
    return {"Type": "volume", "Target": target, "VolumeOptions": {"NoCopy": True}}


def _write_hidden(session: Path, hidden: str | None) -> None:
    """Tell the processes which PYTHONPATH they would have had, and where they find the pins."""
    place = session / "session.json"
    fields = json.loads(place.read_text(encoding="utf-8"))
    fields["hidden_pythonpath"] = hidden
    if fields["pins"] is not None:
        fields["pins"] = f"{SESSION}/pins.json"
    place.write_text(json.dumps(fields, indent=1) + "\n", encoding="utf-8")


def _open_up(session: Path) -> None:
    """Let any user write in the session's folders and read its files, whatever our umask is."""
    for parent, _, files in os.walk(session):
        os.chmod(parent, _OPEN_TO_ALL)
        for name in files:
            os.chmod(Path(parent, name), 0o644)


def _readable(session: Path) -> bool:
    """True where we may read all that the command's user wrote."""
    refused: list[OSError] = []
    found: Iterable[tuple[str, list[str], list[str]]] = os.walk(session, onerror=refused.append)
    files = [Path(parent, name) for parent, _, names in found for name in names]
    return not refused and all(os.access(file, os.R_OK) for file in files)
