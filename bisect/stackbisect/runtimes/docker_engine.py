"""The Docker engine as probes need it: each failure is the image's fault or the machine's."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from stackbisect.probe import InfrastructureError
from stackbisect.runtimes.archive import ArchiveError, unpack
from stackbisect.runtimes.sentry import Sentry

try:
    import docker
    import docker.errors
    import docker.utils
    import requests.exceptions
    import urllib3.exceptions
except ImportError:  # an extra: the other runtimes do without
    docker = None

BISECTION_LABEL = "stackbisect.bisection"
PROBE_LABEL = "stackbisect.probe"
DERIVED_LABEL = "stackbisect.derived"
"""On every image that was built here; nothing else is ever removed as one."""

START_LABEL = "stackbisect.start"
"""On such an image, how its base starts: entrypoint, user and working folder, as JSON."""

ANSWER_LIMIT = 300.0
"""Seconds without a byte from the daemon after which it counts as gone (slow disks are slow)."""

COMMIT_LIMIT = 3600.0
"""The same while it makes an image of a container."""

_PULL_TRIES = 4
_PULL_PAUSE = 5.0

# What the daemon says about a pull when the image is not to blame. Texts of distribution and moby.
_NOT_THE_IMAGE = re.compile(
    r"no space left|connection refused|connection reset|no such host|i/o timeout|timeout exceeded"
    r"|\btls: |x509: |server misbehaving|network is unreachable|no route to host"
    r"|gave http response|context deadline|status: 5\d\d|received unexpected http status: 5"
    r"|\beof\b|service unavailable|read-only file system|input/output error|context canceled",
    re.IGNORECASE,
)
_LOGIN = re.compile(
    r"unauthorized|authentication required|access denied|denied:|no basic auth|403 forbidden",
    re.IGNORECASE,
)
_TOO_MANY = re.compile(r"toomanyrequests|too many requests|rate limit|status: 429", re.IGNORECASE)


class Untestable(Exception):
    """This candidate cannot be tried; the text is the engine's own message."""


class Stopped(Exception):
    """The bisection was told to stop while a probe was under way."""


@dataclass(frozen=True)
class Image:
    """What an image's config says about how it starts."""

    id: str
    entrypoint: tuple[str, ...]
    env: tuple[str, ...]
    user: str
    workdir: str
    size: int

    @classmethod
    def from_inspect(cls, found: dict[str, Any]) -> Image:
        """Read the engine's `inspect` of an image."""
        config = found.get("Config") or {}
        return cls(
            id=found["Id"],
            entrypoint=tuple(config.get("Entrypoint") or ()),
            env=tuple(config.get("Env") or ()),
            user=config.get("User") or "",
            workdir=config.get("WorkingDir") or "/",
            size=int(found.get("Size") or 0),
        )

    def variable(self, name: str) -> str | None:
        """Return one variable of the image's environment; None where it is not set."""
        prefix = f"{name}="
        values = [text[len(prefix) :] for text in self.env if text.startswith(prefix)]
        return values[-1] if values else None


@dataclass(frozen=True)
class Ending:
    """How a container's command ended: its code, and whether memory ran out."""

    exit_code: int
    out_of_memory: bool
    error: str
    started_at: str


@dataclass
class Engine:
    """One connection to the Docker daemon.

    Not shared between threads. Methods raise InfrastructureError where the daemon, its disk or
    the network failed, and Untestable where the image is to blame.
    """

    address: str = ""
    _api: Any = field(default=None, repr=False)
    _sentries: dict[str, Sentry] = field(default_factory=dict, repr=False)
    _named: bool = field(default=False, repr=False)

    @classmethod
    def connect(cls, named: str | None = None) -> Engine:
        """Connect to the daemon at `named`; without one as the docker command would.

        That is DOCKER_HOST, else the current context.
        """
        if docker is None:
            raise InfrastructureError(
                "the docker runtime needs the Docker SDK for Python; "
                "install it with: pip install 'pinner-stackbisect[bisect]'"
            )
        settings = {"base_url": named} if named else docker.utils.kwargs_from_env()
        if "base_url" not in settings:
            settings = _context_settings() or settings
        address = str(settings.get("base_url") or "unix:///var/run/docker.sock")
        with _daemon(address):
            api = docker.APIClient(version="auto", timeout=ANSWER_LIMIT, **settings)
        return cls(address, api, _named=named is not None)

    def close(self) -> None:
        """Drop the connection."""
        self._api.close()

    @property
    def remote(self) -> bool:
        """True where the daemon is on another machine, so that paths here mean nothing there."""
        return not self.address.startswith(("unix://", "http+unix://", "npipe://"))

    def info(self) -> dict[str, Any]:
        """Return what the daemon says about itself and its host."""
        with _daemon(self.address):
            return {**self._api.info(), "ApiVersion": self._api.api_version}

    @property
    def is_podman(self) -> bool:
        """True where Podman answers for Docker: it ignores the config of a commit (4.3)."""
        with _daemon(self.address):
            parts = self._api.version().get("Components") or ()
        return any("podman" in str(part.get("Name", "")).lower() for part in parts)

    def alive(self) -> bool:
        """True where the daemon answers now."""
        try:
            with _daemon(self.address):
                return bool(self._api.ping())
        except InfrastructureError:
            return False

    def image(self, reference: str) -> Image | None:
        """Return an image that is already here; None where it is not."""
        with _daemon(self.address):
            try:
                return Image.from_inspect(self._api.inspect_image(reference))
            except docker.errors.ImageNotFound:
                return None

    def config(self, reference: str) -> dict[str, Any]:
        """Return an image's whole config, as its author wrote it."""
        with _daemon(self.address):
            return dict(self._api.inspect_image(reference).get("Config") or {})

    def pull(
        self,
        repository: str,
        digest: str,
        platform: str | None,
        stopped: Callable[[], bool],
        pause: Callable[[float], object] = time.sleep,
        *,
        saw: Callable[[dict[str, Any]], object] = lambda line: None,
    ) -> Image:
        """Pull `repository@digest` with the Docker config's login and return the image.

        `saw` gets every line of the daemon's.

        Trouble that passes (a dropped connection, too many requests) is tried again. Raises
        Stopped as soon as `stopped()` is true between two lines of progress.
        """
        for attempt in range(_PULL_TRIES):
            message = self._pull_once(repository, digest, platform, stopped, saw)
            if message is None:
                break
            why = _blame(message, repository)
            if why not in ("limit", "machine") or attempt == _PULL_TRIES - 1:
                raise _pull_failure(repository, digest, message)
            pause(_PULL_PAUSE * 3**attempt if why == "limit" else 1.0)
        image = self.image(f"{repository}@{digest}")
        if image is None:
            raise InfrastructureError(f"{repository}@{digest} was pulled and is gone again")
        return image

    def _pull_once(
        self,
        repository: str,
        digest: str,
        platform: str | None,
        stopped: Callable[[], bool],
        saw: Callable[[dict[str, Any]], object],
    ) -> str | None:
        """Pull once; return the daemon's message where it failed."""
        with _daemon(self.address):
            self._api.reload_config()  # a login may have been renewed since the last pull
            try:
                lines = self._api.pull(
                    repository, tag=digest, platform=platform, stream=True, decode=True
                )
                for line in lines:
                    if stopped():
                        raise Stopped
                    if "error" in line:
                        return str(line["error"])
                    saw(line)
            except docker.errors.APIError as error:
                return str(error.explanation or error)
        return None

    def create(self, image: str, settings: dict[str, Any]) -> str:
        """Create a container and return its id; `settings` are those of the engine's API.

        A sentry waits beside it until it is removed.
        """
        body = dict(settings)
        name = body.pop("Name")
        sentry = Sentry(name, self.address if self._named else None)
        with _daemon(self.address):
            try:
                found = self._api.create_container_from_config({"Image": image, **body}, name)
            except docker.errors.APIError as error:
                sentry.release()
                raise self._refused("the container could not be created", error) from error
        self._sentries[str(found["Id"])] = sentry
        return str(found["Id"])

    def start(self, container: str) -> None:
        """Start a container."""
        with _daemon(self.address):
            try:
                self._api.start(container)
            except docker.errors.APIError as error:
                raise self._refused("the container did not start", error) from error

    def _refused(self, what: str, error: Any) -> Exception:
        message = " ".join(str(error.explanation or error).split())
        if re.search("no space left|no such image", message, re.I) or not self.alive():
            return InfrastructureError(f"{what}: {message}")
        return Untestable(f"{what}: {message}")

    def ending(self, container: str) -> Ending | None:
        """Return how the container ended; None while it runs."""
        with _daemon(self.address):
            state = self._api.inspect_container(container)["State"]
        if state["Status"] not in ("exited", "dead"):
            return None
        return Ending(
            int(state["ExitCode"]),
            bool(state.get("OOMKilled")),
            str(state.get("Error") or ""),
            str(state.get("StartedAt") or ""),
        )

    def kill(self, container: str) -> None:
        """Kill a container; one that ended meanwhile is fine."""
        with _daemon(self.address), contextlib.suppress(docker.errors.APIError):
            self._api.kill(container)

    def remove(self, container: str) -> bool:
        """Remove a container with its anonymous volumes, running or not; False where it is gone."""
        removed = self._remove(container)
        sentry = self._sentries.pop(container, None)
        if sentry is not None:
            sentry.release()
        return removed

    def _remove(self, container: str) -> bool:
        for attempt in range(5):
            with _daemon(self.address):
                try:
                    self._api.remove_container(container, v=True, force=True)
                    return True
                except docker.errors.NotFound:
                    return False
                except docker.errors.APIError as error:
                    # 409: somebody else is removing it; 500: a mount is still busy.
                    if attempt == 4:
                        message = error.explanation or error
                        raise InfrastructureError(
                            f"container {container[:12]} cannot be removed: {message}"
                        ) from error
            time.sleep(0.2 * 2**attempt)
        return False

    def remove_image(self, reference: str) -> None:
        """Remove an image's name and what only it needs; one that is gone is fine.

        Raises InfrastructureError where a container still needs it.
        """
        with _daemon(self.address), contextlib.suppress(docker.errors.ImageNotFound):
            self._api.remove_image(reference)

    def labelled(self, bisection: str) -> list[str]:
        """Return the ids of every container of one bisection, running or not."""
        with _daemon(self.address):
            wanted = {"label": f"{BISECTION_LABEL}={bisection}"}
            return [str(found["Id"]) for found in self._api.containers(all=True, filters=wanted)]

    def output(self, container: str, *, follow: bool, stderr: bool = True) -> Iterator[bytes]:
        """Yield the command's output; with `follow` until it ends."""
        with _daemon(self.address):
            yield from self._api.logs(
                container, stdout=True, stderr=stderr, stream=True, follow=follow
            )

    def commit(self, container: str, repository: str, tag: str, config: dict[str, Any]) -> None:
        """Make an image of a container that has ended, with a config of its own.

        What `config` leaves out is taken from the container's. The daemon says nothing until all
        that is new in it is packed, which may be gigabytes.
        """
        self._api.timeout = COMMIT_LIMIT
        try:
            with _daemon(self.address):
                self._api.commit(container, repository=repository, tag=tag, conf=config)
        finally:
            self._api.timeout = ANSWER_LIMIT

    def derived(self, bisection: str) -> list[str]:
        """Return the ids of every image that was built for one bisection."""
        labels = [f"{BISECTION_LABEL}={bisection}", DERIVED_LABEL]
        with _daemon(self.address):
            return [str(each["Id"]) for each in self._api.images(filters={"label": labels})]

    def names(self, image: str) -> list[str]:
        """Return the names (NAME:TAG) of an image; none where it is gone."""
        with _daemon(self.address), contextlib.suppress(docker.errors.ImageNotFound):
            return [str(name) for name in self._api.inspect_image(image)["RepoTags"] or ()]
        return []

    def put(self, container: str, folder: str, archive: bytes | Iterator[bytes]) -> None:
        """Unpack a tar into a folder of a container that need not run."""
        with _daemon(self.address):
            self._api.put_archive(container, folder, archive)

    def get(self, container: str, path: str) -> Iterator[bytes]:
        """Yield the tar of a file or folder of a container that need not run.

        Raises FileNotFoundError at once where there is no such path.
        """
        with _daemon(self.address):
            try:
                chunks, _ = self._api.get_archive(container, path)
            except docker.errors.NotFound:
                raise FileNotFoundError(path) from None
        return self._guarded(chunks)

    def fetch(self, container: str, path: str, target: Path) -> list[Path]:
        """Write the files of a container's folder below `target`; return them."""
        try:
            return unpack(self.get(container, path), target)
        except ArchiveError as error:
            raise InfrastructureError(f"{path} of container {container[:12]}: {error}") from error

    def changes(self, container: str) -> list[str]:
        """Return paths that the command made or changed outside mounts."""
        with _daemon(self.address):
            found = self._api.diff(container) or []
        return [str(change["Path"]) for change in found if change["Kind"] != 2]

    def export(self, container: str) -> Iterator[bytes]:
        """Yield the tar of a container's whole file system, mounts left out."""
        with _daemon(self.address):
            chunks = self._api.export(container)
        return self._guarded(chunks)

    def _guarded(self, chunks: Any) -> Iterator[bytes]:
        with _daemon(self.address):
            yield from chunks


def _context_settings() -> dict[str, Any]:
    """Return where `docker context use` points, which the SDK itself leaves out."""
    try:
        context = docker.ContextAPI.get_current_context()
    except Exception:  # a context file that only newer docker commands can read
        return {}
    if context is None or context.name == "default" or not context.Host:
        return {}
    return {"base_url": context.Host, "tls": context.TLSConfig or False}


def _blame(message: str, repository: str) -> Literal["image", "login", "limit", "machine"]:
    """Say what a failed pull's message blames; names and digests in it say nothing."""
    words = re.sub(r"sha256:[0-9a-f]+", "", message.replace(repository, ""))
    if _TOO_MANY.search(words):
        return "limit"
    if _LOGIN.search(words):
        return "login"
    return "machine" if _NOT_THE_IMAGE.search(words) else "image"


def _pull_failure(repository: str, digest: str, message: str) -> Exception:
    what = f"{repository}@{digest} cannot be pulled: {' '.join(message.split())}"
    why = _blame(message, repository)
    if why == "image":
        return Untestable(what)
    if why == "login":
        host = repository.partition("/")[0]
        return InfrastructureError(f"{what}; log in with: docker login {host}")
    if why == "limit":
        return InfrastructureError(f"{what}; wait, or log in for a higher limit, then try again")
    return InfrastructureError(what)


@contextlib.contextmanager
def _daemon(address: str) -> Iterator[None]:
    """Turn what the SDK raises when the daemon is gone or broken into an InfrastructureError."""
    try:
        yield
    except docker.errors.APIError as error:
        message = " ".join(str(error.explanation or error).split())
        raise InfrastructureError(f"the Docker daemon refused: {message}") from error
    except (
        docker.errors.DockerException,
        requests.exceptions.RequestException,
        urllib3.exceptions.HTTPError,
        ConnectionError,
    ) as error:
        raise InfrastructureError(
            f"the Docker daemon at {address} does not answer ({_short(error)}); "
            "start it, or point DOCKER_HOST at one, then try again"
        ) from error


def _short(error: BaseException) -> str:
    """Return the innermost reason of a chain of wrapped connection errors."""
    while True:
        inner = error.__cause__ or error.__context__
        if inner is None:
            break
        error = inner
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return " ".join(str(error).split())[:200] or type(error).__name__
