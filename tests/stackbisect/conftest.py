"""Fixtures of the container tests: a Docker daemon, registries, repositories to push images to.

They start what is missing and end it with the session; they install nothing. Tests that use them
are marked `service` and run in one worker: pulls and containers share two cores badly.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from stackbisect.runtimes.docker_engine import DERIVED_LABEL
from tests import lanes
from tests.stackbisect import images, services

RepositoryFactory = Callable[..., images.Repository]


@pytest.fixture(scope="session")
def docker_host() -> Iterator[str]:
    """The address of a Docker daemon, which DOCKER_HOST names meanwhile."""
    pytest.importorskip("docker", reason="needs the Docker SDK for Python")
    before = os.environ.get("DOCKER_HOST")
    try:
        address = services.docker_address()
    except services.ServiceMissing as error:
        lanes.require(False, str(error))
        raise
    os.environ["DOCKER_HOST"] = address
    yield address
    if before is None:
        del os.environ["DOCKER_HOST"]
    else:
        os.environ["DOCKER_HOST"] = before
    for daemon in reversed(services.STARTED):
        daemon.stop()


@pytest.fixture(scope="session")
def registry(docker_host: str) -> services.RegistryService:
    """A registry that lets everybody in."""
    return _registry(login=False)


@pytest.fixture(scope="session")
def login_registry(docker_host: str) -> services.RegistryService:
    """A registry of the same images that wants a login."""
    return _registry(login=True)


def _registry(*, login: bool) -> services.RegistryService:
    try:
        images.base()
        return services.registry(login=login)
    except services.ServiceMissing as error:
        lanes.require(False, str(error))
        raise


@pytest.fixture(scope="session")
def spare_docker() -> Iterator[services.Daemon]:
    """A second Docker daemon, which a test may stop and start."""
    lanes.require(os.getuid() == 0, "only root can start a Docker daemon")
    lanes.require_command("dockerd", "docker.io")
    daemon = services.spare_docker_daemon()
    daemon.start()
    yield daemon
    daemon.stop()
    subprocess.run(["ip", "link", "del", services.SPARE_BRIDGE], capture_output=True)


@pytest.fixture(scope="session")
def new_repository(registry: services.RegistryService) -> Iterator[RepositoryFactory]:
    """Makes a repository under a name that nothing else uses; its pulled images go at the end."""
    made: list[str] = []

    def make(service: services.RegistryService = registry) -> images.Repository:
        made.append(f"t{secrets.token_hex(4)}/train")
        return images.Repository(service, made[-1])

    yield make
    _remove_images(made)


def _is_one_of(image: Mapping[str, Any], repositories: list[str]) -> bool:
    references = [*(image["RepoDigests"] or ()), *(image["RepoTags"] or ())]
    return any(f"/{name}" in reference for name in repositories for reference in references)


def _remove_images(repositories: list[str]) -> None:
    import docker
    import docker.errors

    try:
        api = docker.from_env().api
    except docker.errors.DockerException:  # gone, and its images with it: another session's daemon
        return
    made = [image["Id"] for image in api.images() if _is_one_of(image, repositories)]
    for image in api.images(filters={"label": DERIVED_LABEL}):
        with contextlib.suppress(docker.errors.APIError):
            if api.inspect_image(image["Id"])["Parent"] in made:
                api.remove_image(image["Id"], force=True)
    for image in api.images():
        for reference in [*(image["RepoDigests"] or ()), *(image["RepoTags"] or ())]:
            if any(f"/{name}" in reference for name in repositories):
                with contextlib.suppress(docker.errors.APIError):
                    api.remove_image(reference, force=True)
    api.close()


@pytest.fixture
def docker_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Docker config file that DOCKER_CONFIG leads to."""
    file = tmp_path / "docker-config" / "config.json"
    file.parent.mkdir()
    file.write_text("{}")
    monkeypatch.setenv("DOCKER_CONFIG", str(file.parent))
    return file


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Ctrl-C is not ignored here and in children, also where pytest is a background job."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Journals are written without waiting for the disk: what is tested is not about power cuts."""
    monkeypatch.setattr("stackbisect.journal.os.fsync", lambda descriptor: None)


@pytest.fixture(scope="session")
def slurm() -> Iterator[services.Slurm]:
    """A Slurm of two nodes, which SLURM_CONF names meanwhile."""
    try:
        found = services.slurm()
    except services.ServiceMissing as error:
        lanes.require(False, str(error))
        raise
    before = os.environ.get("SLURM_CONF")
    os.environ.update(found.environ)
    yield found
    started = [daemon for daemon in services.STARTED if daemon.name.startswith("slurm")]
    if started:
        found.cancel_all()
    if before is None:
        del os.environ["SLURM_CONF"]
    else:
        os.environ["SLURM_CONF"] = before
    for daemon in reversed(started):
        daemon.stop()
