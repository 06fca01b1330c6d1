"""What a failed pull blames: the image, the login, a limit or the machine; real messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("docker", reason="needs the Docker SDK for Python")

from stackbisect.probe import InfrastructureError
from stackbisect.runtimes.docker_engine import Engine, Stopped, Untestable
from stackbisect.runtimes.pull_progress import PullProgress

REPOSITORY = "127.0.0.1:42911/denied-eof/train"
DIGEST = f"sha256:{'4290' * 16}"
PLACE = f"{REPOSITORY}@{DIGEST}"


class _Api:
    """An engine whose pulls say what they are told to, one after another."""

    api_version = "1.41"

    def __init__(self, pulls: list[list[str]]) -> None:
        self._pulls = iter(pulls)
        self.pulled = False

    def reload_config(self) -> None:
        pass

    def pull(self, repository: str, **how: Any) -> Iterator[dict[str, str]]:
        errors = next(self._pulls)
        yield {"status": "Pulling"}
        for error in errors:
            yield {"error": error}
        self.pulled = True

    def inspect_image(self, reference: str) -> dict[str, Any]:
        assert self.pulled
        return {"Id": "sha256:1", "Config": None, "Size": 1}


def _pull(*pulls: str, stopped: bool = False) -> tuple[list[float], _Api]:
    pauses: list[float] = []
    api = _Api([[text] if text else [] for text in pulls])
    engine = Engine("unix:///x", api)
    engine.pull(REPOSITORY, DIGEST, None, lambda: stopped, pauses.append)
    return pauses, api


@pytest.mark.parametrize(
    "message",
    [
        f"manifest for {PLACE} not found: manifest unknown: manifest unknown",
        "no matching manifest for linux/amd64 in the manifest list entries",
        "unsupported media type application/vnd.oci.image.layer.v1.tar+zstd",
        f"filesystem layer verification failed for digest {DIGEST}",
    ],
)
def test_the_image_is_to_blame(message: str) -> None:
    with pytest.raises(Untestable, match="cannot be pulled"):
        _pull(message)


@pytest.mark.parametrize(
    "message",
    [
        f'Head "http://{REPOSITORY}/manifests/{DIGEST}": no basic auth credentials',
        "unauthorized: authentication required",
        f"pull access denied for {REPOSITORY}, repository does not exist or may require "
        "'docker login': denied: requested access to the resource is denied",
    ],
)
def test_a_login_is_asked_for(message: str) -> None:
    with pytest.raises(InfrastructureError, match=r"docker login 127\.0\.0\.1:42911"):
        _pull(message)


@pytest.mark.parametrize(
    "message",
    [
        'Get "http://127.0.0.1:42911/v2/": dial tcp 127.0.0.1:42911: connect: connection refused',
        "failed to register layer: write /usr/lib/x.so: no space left on device",
        "received unexpected HTTP status: 503 Service Unavailable",
        "net/http: request canceled (Client.Timeout exceeded while awaiting headers)",
        "dial tcp: lookup registry.test on 10.0.0.1:53: no such host",
        "Get https://r/v2/: x509: certificate signed by unknown authority",
        "unexpected EOF",
    ],
)
def test_the_machine_is_to_blame_after_a_few_tries(message: str) -> None:
    with pytest.raises(InfrastructureError, match="cannot be pulled"):
        _pull(*[message] * 4)


def test_trouble_that_passes_is_no_trouble() -> None:
    pauses, api = _pull("unexpected EOF", "toomanyrequests: rate limit exceeded", "")
    assert api.pulled
    assert pauses == [1.0, 15.0]


def test_too_many_requests_say_what_to_do() -> None:
    with pytest.raises(InfrastructureError, match="log in for a higher limit"):
        _pull(*["toomanyrequests: You have reached your pull rate limit."] * 4)


def test_a_long_pull_says_how_far_it_is() -> None:
    said: list[str] = []
    times = iter([0.0, 1.0, 16.0, 20.0, 40.0, 41.5])
    progress = PullProgress("24.05-py3", 20_000_000_000, said.append, lambda: next(times))
    for line in (
        {"status": "Pulling fs layer", "id": "a"},
        {"status": "Downloading", "id": "a", "progressDetail": {"current": 5e9, "total": 9e9}},
        {"status": "Download complete", "id": "a", "progressDetail": {}},
        {"status": "Extracting", "id": "a", "progressDetail": {"current": 1, "total": 9e9}},
    ):
        progress.saw(line)
    progress.done()
    assert said == [
        "pulling 24.05-py3 (20000 MB)...",
        "pulling 24.05-py3: 5000 of 20000 MB downloaded, 16 s",
        "unpacking 24.05-py3: 9000 of 20000 MB downloaded, 40 s",
        "pulled 24.05-py3 in 41.5 s",
    ]


def test_a_pull_can_be_stopped() -> None:
    with pytest.raises(Stopped):
        _pull("", stopped=True)
