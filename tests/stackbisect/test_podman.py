"""A bisection in Podman's containers, through its Docker-compatible socket."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stackbisect.probe import InfrastructureError
from stackbisect.runtimes import podman
from tests import lanes
from tests.stackbisect import images, services
from tests.stackbisect.conftest import RepositoryFactory
from tests.stackbisect.program import Program

pytestmark = [pytest.mark.service, pytest.mark.xdist_group("docker")]

WORK = """
import pinner
for step in range(3):
    values = [1e16, 1.0, -1e16 + step, 0.1 * step]
    pinner.fingerprint("total", sum(values if {forward} else sorted(values)))
open("/out.bin", "w").write("{forward}")
"""


@pytest.fixture(name="service", scope="module")
def _service(registry: services.RegistryService) -> Iterator[services.Daemon]:
    try:
        daemon = services.podman_service()
    except services.ServiceMissing as error:
        lanes.require(False, str(error))
        raise
    yield daemon
    for started in services.STARTED:
        if started.name == daemon.name:
            started.stop()


def test_a_bisection_runs_in_podman_and_leaves_no_container(
    service: services.Daemon,
    new_repository: RepositoryFactory,
    docker_config: Path,
    tmp_path: Path,
) -> None:
    repository = new_repository()
    for tag, forward in (("1.0", True), ("1.1", False)):
        files = images.files({"train.py": WORK.format(forward=forward)})
        repository.push(tag, images.Image([files]))
    # DOCKER_HOST names the Docker daemon of the other tests: it must not be asked.
    program = Program(tmp_path, {"CONTAINER_HOST": service.address, "DOCKER_HOST": "unix:///gone"})
    ended = program(
        *("run", "--json", "--runtime", "podman", "--image", repository.reference),
        *("--good", "1.0", "--bad", "1.1", "--depth", "search", "--evidence-file", "/*.bin"),
        *("--shm-size", "32m", "--", "python3", "/train.py"),
    )
    assert ended.code == 0, ended.err
    found = ended.report
    assert (found["status"], found["last_good"], found["first_bad"]) == ("found", "1.0", "1.1")
    streams = {name for line in program.probes() for name in line["result"]["evidence"]}
    assert {"total", "file:/out.bin"} <= {*streams}
    assert not _containers(service)


def _containers(service: services.Daemon) -> object:
    import docker

    api = docker.APIClient(base_url=service.address, version="auto")
    try:
        return api.containers(all=True)
    finally:
        api.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--gpus", "all"], "--gpus: Podman takes no notice of requests"),
        (["--device", "nvidia.com/gpu=all"], "--device: Podman takes no notice of requests"),
        (
            ["--mount", "type=bind,src=/tmp,dst=/out", "--evidence-file", "/out/*.bin"],
            "lies below a mount, and Podman copies nothing from there",
        ),
    ],
)
def test_what_podman_passes_over_in_silence_is_refused(
    tmp_path: Path, options: list[str], words: str
) -> None:
    ended = Program(tmp_path)(
        *("run", "--json", "--runtime", "podman", "--image", "127.0.0.1:9/a/b"),
        *("--good", "1", "--bad", "2", *options, "--", "true"),
    )
    assert (ended.code, words in json.loads(ended.out)["reason"]) == (64, True), ended.err


@pytest.mark.parametrize(
    ("environ", "user", "found"),
    [
        ({"CONTAINER_HOST": "tcp://h:1"}, 0, "tcp://h:1"),
        ({}, 0, "unix:///run/podman/podman.sock"),
        ({"XDG_RUNTIME_DIR": "/run/user/7"}, 7, "unix:///run/user/7/podman/podman.sock"),
        ({}, 7, "unix:///run/user/7/podman/podman.sock"),
    ],
)
def test_podmans_socket_is_where_podman_puts_it(
    environ: dict[str, str], user: int, found: str
) -> None:
    assert podman.address(environ, user) == found


def test_a_podman_that_is_not_there_is_the_machinerys_fault(tmp_path: Path) -> None:
    gone = f"unix://{tmp_path}/no.sock"
    with pytest.raises(InfrastructureError, match=r"no\.sock does not answer.*podman\.socket"):
        podman.connect({**os.environ, "CONTAINER_HOST": gone})
