"""The registry client: pages, logins, limits, expiry; a stand-in registry held to a real one."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import socket
import ssl
import stat
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import requests

from stackbisect.errors import UsageError
from stackbisect.probe import InfrastructureError
from stackbisect.spaces import docker_login, reference
from stackbisect.spaces.docker_login import Login
from stackbisect.spaces.registry import (
    WAIT_BUDGET_S,
    BadAnswer,
    NotFound,
    Registry,
    challenges,
    pick_platform,
    platforms,
)
from tests import lanes
from tests.fakes import registry as fakes
from tests.stackbisect import images, services

KNOWN = Login(fakes.USER, fakes.PASSWORD)
Serve = Callable[..., fakes.FakeRegistry]


@pytest.fixture(name="serve")
def _serve() -> Iterator[Serve]:
    """Starts stand-in registries that end with the test."""
    running = []

    def start(**behaviour: Any) -> fakes.FakeRegistry:
        context = fakes.serve(**behaviour)
        running.append(context)
        fake = context.__enter__()
        for number in range(7):
            fake.content.image(f"1.{number}", {"VERSION": str(number)})
        return fake

    yield start
    for context in running:
        context.__exit__(None, None, None)


def client(
    fake: fakes.FakeRegistry, login: Login | None = None, slept: list[float] | None = None
) -> Registry:
    """A client that sleeps into a list."""
    waits = [] if slept is None else slept
    return Registry(reference.parse(fake.reference), lambda: login, sleep=waits.append)


ALL = [f"1.{number}" for number in range(7)]


@pytest.mark.parametrize("link", ["relative", "absolute", "foreign"])
@pytest.mark.parametrize("page", [1, 2, 3, 7, 1000])
def test_all_pages_of_tags_are_read_however_the_link_is_written(
    serve: Serve, link: str, page: int
) -> None:
    fake = serve(link=link, page=page)
    assert client(fake).tags() == ALL


@pytest.mark.parametrize("auth", ["basic", "token"])
def test_a_login_never_follows_a_link_to_another_host(serve: Serve, auth: str) -> None:
    fake = serve(link="foreign", page=2, auth=auth)
    assert client(fake, KNOWN).tags() == ALL
    assert all(sent for path, sent in fake.requests[-3:])


def test_pages_that_go_round_in_a_circle_end_with_an_error(serve: Serve) -> None:
    with pytest.raises(BadAnswer, match="same page"):
        client(serve(page=2, loop=True)).tags()


def test_a_repository_without_tags_has_none(serve: Serve) -> None:
    fake = serve()
    fake.content.tags.clear()
    assert client(fake).tags() == []


def test_a_basic_login_is_sent_when_asked_for(serve: Serve) -> None:
    fake = serve(auth="basic")
    assert client(fake, KNOWN).tags() == ALL
    assert fake.requests[-1][1] == KNOWN.basic


@pytest.mark.parametrize("auth", ["basic", "token"])
@pytest.mark.parametrize("login", [None, Login("tester", "wrong")])
def test_a_refused_login_says_what_to_do_and_shows_no_password(
    serve: Serve, auth: str, login: Login | None
) -> None:
    fake = serve(auth=auth)
    with pytest.raises(UsageError, match=f"docker login {fake.host}") as raised:
        client(fake, login).tags()
    assert "wrong" not in str(raised.value)
    assert len(fake.requests) < 8


def test_a_token_is_got_once_and_used_for_all(serve: Serve) -> None:
    fake = serve(auth="token", page=2)
    reader = client(fake, KNOWN)
    assert reader.tags() == ALL
    reader.manifest("1.0")
    assert len(fake.token_requests) == 1
    assert fake.token_requests[0] == {
        "service": "test, quoted",
        "scope": "repository:team/train:pull",
        "account": "tester",
    }


def test_a_public_repository_needs_a_token_but_no_login(serve: Serve) -> None:
    fake = serve(auth="token", anonymous=True)
    assert client(fake).tags() == ALL
    assert "account" not in fake.token_requests[0]


def test_an_expired_token_is_replaced(serve: Serve) -> None:
    fake = serve(auth="token", token_uses=2, page=1)
    assert client(fake, KNOWN).tags() == ALL
    assert len(fake.token_requests) > 2


def test_an_identity_token_is_exchanged(serve: Serve) -> None:
    fake = serve(auth="token")
    assert client(fake, Login(identity_token=fakes.IDENTITY)).tags() == ALL
    assert fake.token_requests[0]["grant_type"] == "refresh_token"
    assert fake.token_requests[0]["scope"] == "repository:team/train:pull"


def test_a_registry_token_is_used_as_it_is(serve: Serve) -> None:
    fake = serve(auth="token")
    fake.tokens["given"] = 100
    assert client(fake, Login(registry_token="given")).tags() == ALL
    assert not fake.token_requests


@pytest.mark.parametrize("retry_after", ["3", "date", None])
def test_a_rate_limit_is_waited_out(serve: Serve, retry_after: str | None) -> None:
    slept: list[float] = []
    if retry_after == "date":
        retry_after = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 4))
    fake = serve(limited=2, retry_after=retry_after)
    assert client(fake, slept=slept).tags() == ALL
    assert len(slept) == 2
    assert 0 < sum(slept) <= 10


@pytest.mark.parametrize("retry_after", ["1", "100", "86400"])
def test_a_rate_limit_without_end_stops_and_can_be_resumed(serve: Serve, retry_after: str) -> None:
    slept: list[float] = []
    fake = serve(limited=10**6, retry_after=retry_after)
    with pytest.raises(InfrastructureError, match="try again later"):
        client(fake, slept=slept).tags()
    assert sum(slept) <= WAIT_BUDGET_S


def test_a_registry_that_is_down_for_a_moment_is_asked_again(serve: Serve) -> None:
    assert client(serve(broken=3)).tags() == ALL
    with pytest.raises(InfrastructureError, match="503"):
        client(serve(broken=100)).tags()


def test_a_registry_that_is_not_there_is_the_machinerys_fault() -> None:
    gone = Registry(reference.parse("127.0.0.1:9/team/train"), lambda: None, sleep=lambda _: None)
    with pytest.raises(InfrastructureError, match=r"127\.0\.0\.1:9 cannot be reached.*refused"):
        gone.tags()


def test_what_is_no_registry_is_told(serve: Serve) -> None:
    fake = serve()
    fake.content.manifests[fake.content.tags["1.0"]] = ("text/html", b"<html>hello")
    fake.content.tags["1.0"] = fakes.digest_of(b"<html>hello")
    fake.content.manifests[fake.content.tags["1.0"]] = ("text/html", b"<html>hello")
    with pytest.raises(BadAnswer, match="is it a registry"):
        client(fake).manifest("1.0")


def test_content_that_is_not_what_its_digest_says_is_refused(serve: Serve) -> None:
    fake = serve()
    digest = fake.content.tags["1.0"]
    kind, body = fake.content.manifests[digest]
    fake.content.manifests[digest] = (kind, body + b" ")
    with pytest.raises(BadAnswer, match="damaged"):
        client(fake).manifest("1.0")


def test_no_login_follows_a_blob_to_where_it_is_kept(serve: Serve) -> None:
    store = serve()
    fake = serve(auth="basic", redirect=f"http://localhost:{store.host.rpartition(':')[2]}")
    store.content.blobs.update(fake.content.blobs)
    reader = client(fake, KNOWN)
    digest = str(reader.manifest("1.3").value["config"]["digest"])
    assert reader.config(digest)["config"]["Env"] == ["VERSION=3"]
    assert [sent for path, sent in store.requests if path.startswith("/elsewhere/")] == [None]


def test_a_login_is_not_sent_in_the_clear_for_a_registry_that_is_not_on_this_machine() -> None:
    far = Registry(reference.parse("registry.example/team/train"), lambda: KNOWN)
    answer = requests.Response()
    answer.status_code = 401
    answer.headers["WWW-Authenticate"] = 'Bearer realm="http://tokens.example/t",service="s"'
    with pytest.raises(UsageError, match="in the clear"):
        far._answer(answer)


def test_a_missing_manifest_is_not_found(serve: Serve) -> None:
    with pytest.raises(NotFound):
        client(serve()).manifest("9.9")


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ('Basic realm="a b"', [("basic", {"realm": "a b"})]),
        (
            'Bearer realm="https://x/t",service="a,b",scope="repository:x:pull,push"',
            [
                (
                    "bearer",
                    {
                        "realm": "https://x/t",
                        "service": "a,b",
                        "scope": "repository:x:pull,push",
                    },
                )
            ],
        ),
        (
            'Negotiate, Bearer realm="r", Basic realm="q\\"q"',
            [("negotiate", {}), ("bearer", {"realm": "r"}), ("basic", {"realm": 'q"q'})],
        ),
        ("bearer realm=plain , error = x", [("bearer", {"realm": "plain", "error": "x"})]),
        ("", []),
    ],
)
def test_challenges_are_read(header: str, expected: list[tuple[str, dict[str, str]]]) -> None:
    assert challenges(header) == expected


def test_the_platforms_manifest_is_picked_and_attestations_are_not() -> None:
    index = {
        "manifests": [
            {"digest": "d1", "platform": {"os": "unknown", "architecture": "unknown"}},
            {"digest": "d2", "platform": {"os": "linux", "architecture": "arm64", "variant": "v8"}},
            {"digest": "d3", "platform": {"os": "linux", "architecture": "amd64"}},
        ]
    }
    assert pick_platform(index, "linux/amd64") == "d3"
    assert pick_platform(index, "linux/arm64") == "d2"
    assert pick_platform(index, "linux/arm64/v8") == "d2"
    assert pick_platform(index, "linux/arm64/v7") is None
    assert pick_platform(index, "linux/s390x") is None
    assert platforms(index) == ["linux/arm64/v8", "linux/amd64"]


# -- TLS -------------------------------------------------------------------------------------------


class Far(reference.Repository):
    """A repository that is treated as if it were on another machine."""

    @property
    def loopback(self) -> bool:
        """No."""
        return False


@pytest.fixture(name="authority", scope="module")
def _authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate for 127.0.0.1 that only itself vouches for."""
    openssl = lanes.require_command("openssl", "openssl")
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
        + ["-keyout", str(folder / "key.pem"), "-out", str(folder / "ca.crt")]
        + ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True,
        capture_output=True,
    )
    return folder


@pytest.fixture(name="secure")
def _secure(authority: Path) -> Iterator[fakes.FakeRegistry]:
    """A stand-in registry that speaks TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority / "ca.crt", authority / "key.pem")
    with fakes.serve(tls=context, auth="basic") as fake:
        fake.content.image("1.0")
        yield fake


def test_a_certificate_nobody_vouches_for_is_refused_before_a_login_is_sent(
    secure: fakes.FakeRegistry, tmp_path: Path
) -> None:
    far = Far(secure.host, secure.name)
    with pytest.raises(InfrastructureError, match="no trusted TLS connection"):
        Registry(far, lambda: KNOWN, certificates=tmp_path).tags()
    assert not secure.requests


def test_an_authority_for_one_registry_is_trusted_as_docker_does(
    secure: fakes.FakeRegistry, authority: Path, tmp_path: Path
) -> None:
    (tmp_path / secure.host).mkdir()
    shutil.copy(authority / "ca.crt", tmp_path / secure.host / "ca.crt")
    far = Far(secure.host, secure.name)
    assert Registry(far, lambda: KNOWN, certificates=tmp_path).tags() == ["1.0"]


def test_an_insecure_registry_is_still_asked_over_tls_where_it_speaks_it(
    secure: fakes.FakeRegistry, tmp_path: Path
) -> None:
    far = Far(secure.host, secure.name)
    reader = Registry(far, lambda: KNOWN, insecure=True, certificates=tmp_path)
    assert reader.tags() == ["1.0"]


def test_plain_http_is_refused_for_a_registry_on_another_machine(serve: Serve) -> None:
    fake = serve(auth="basic")
    with pytest.raises(InfrastructureError):
        Registry(Far(fake.host, fake.name), lambda: KNOWN, sleep=lambda _: None).tags()
    assert not fake.requests


# -- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "host", "path", "address", "loopback"),
    [
        ("127.0.0.1:5000/train", "127.0.0.1:5000", "train", "127.0.0.1:5000", True),
        ("localhost/a/b", "localhost", "a/b", "localhost", True),
        ("[::1]:5000/a", "[::1]:5000", "a", "[::1]:5000", True),
        ("nvcr.io/nvidia/pytorch", "nvcr.io", "nvidia/pytorch", "nvcr.io", False),
        ("python", "docker.io", "library/python", "registry-1.docker.io", False),
        ("vendor/train", "docker.io", "vendor/train", "registry-1.docker.io", False),
        ("index.docker.io/a/b", "docker.io", "a/b", "registry-1.docker.io", False),
    ],
)
def test_repository_names_are_read(
    text: str, host: str, path: str, address: str, loopback: bool
) -> None:
    found = reference.parse(text)
    assert (found.host, found.path, found.address) == (host, path, address)
    assert found.loopback is loopback


@pytest.mark.parametrize("text", ["a:1.0", "h.io/a@sha256:00", "", "h.io/", "h.io/A", "a b"])
def test_what_is_no_repository_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        reference.parse(text)


# -- logins ----------------------------------------------------------------------------------------


def config(folder: Path, value: Any) -> dict[str, str]:
    """An environment that leads to a Docker configuration."""
    (folder / "config.json").write_text(value if isinstance(value, str) else json.dumps(value))
    return {"DOCKER_CONFIG": str(folder)}


def encoded(text: str) -> str:
    """Base64, as `docker login` writes it."""
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("auths", "expected"),
    [
        ({"h:5000": {"auth": encoded("u:p:w")}}, Login("u", "p:w")),
        ({"https://h:5000/v2/": {"auth": encoded("u:p")}}, Login("u", "p")),
        ({"http://h:5000": {"username": "u", "password": "p"}}, Login("u", "p")),
        ({"h:5000": {"identitytoken": "t"}}, Login(identity_token="t")),
        (
            {"h:5000": {"auth": encoded("u:"), "identitytoken": "t"}},
            Login("u", identity_token="t"),
        ),
        ({"h:5000": {"registrytoken": "t"}}, Login(registry_token="t")),
        ({"h:5000": {}}, None),
        ({"h:5001": {"auth": encoded("u:p")}}, None),
        ({}, None),
    ],
)
def test_logins_in_the_file_are_found(
    tmp_path: Path, auths: Mapping[str, Any], expected: Login | None
) -> None:
    assert docker_login.find("h:5000", config(tmp_path, {"auths": auths})) == expected


def test_no_configuration_is_no_login(tmp_path: Path) -> None:
    assert docker_login.find("h", {"DOCKER_CONFIG": str(tmp_path / "none")}) is None
    assert docker_login.find("h", {"HOME": str(tmp_path)}) is None


@pytest.mark.parametrize("value", ["nonsense", "[]", {"auths": {"h": {"auth": "%%%"}}}])
def test_a_broken_configuration_is_named(tmp_path: Path, value: Any) -> None:
    with pytest.raises(UsageError, match=r"config\.json"):
        docker_login.find("h", config(tmp_path, value))


def test_helpers_come_before_the_store_and_the_store_before_the_file(tmp_path: Path) -> None:
    answers = {
        ("special", "h"): (0, '{"Username": "a", "Secret": "b"}', ""),
        ("store", "i"): (0, '{"Username": "<token>", "Secret": "t"}', ""),
        ("store", "j"): (1, "credentials not found in native keychain", ""),
    }
    environ = config(
        tmp_path,
        {
            "credHelpers": {"h": "special"},
            "credsStore": "store",
            "auths": {"h": {"auth": encoded("x:y")}, "j": {"auth": encoded("u:p")}},
        },
    )

    def ask(key: str) -> Login | None:
        return docker_login.find(key, environ, lambda name, k: answers[name, k])

    assert ask("h") == Login("a", "b")
    assert ask("i") == Login(identity_token="t")
    assert ask("j") == Login("u", "p")


def test_a_real_helper_program_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper = tmp_path / "docker-credential-mine"
    helper.write_text(
        "#!/bin/sh\nread key\n[ \"$1 $key\" = 'get h:5000' ] || exit 3\n"
        'echo \'{"ServerURL": "h:5000", "Username": "u", "Secret": "p"}\'\n'
    )
    helper.chmod(helper.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    environ = config(tmp_path, {"credsStore": "mine"})
    assert docker_login.find("h:5000", environ) == Login("u", "p")
    with pytest.raises(UsageError, match="docker-credential-mine failed for other"):
        docker_login.find("other", environ)
    with pytest.raises(UsageError, match="docker-credential-gone failed"):
        docker_login.find("h", config(tmp_path, {"credsStore": "gone"}))


def test_a_login_shows_no_secret() -> None:
    shown = repr(Login("u", "secret-1", "secret-2", "secret-3"))
    assert "secret" not in shown


# -- the real thing --------------------------------------------------------------------------------


def real(*, login: bool) -> services.RegistryService:
    """A real registry, or a skip that says what is missing."""
    try:
        return services.registry(login=login)
    except services.ServiceMissing as error:
        lanes.require(False, str(error))
        raise


def filled(service: services.RegistryService) -> tuple[images.Repository, dict[str, str]]:
    """A repository of a real registry with five images and an index."""
    name = f"t{hashlib.sha256(os.urandom(8)).hexdigest()[:8]}/train"
    repository = images.Repository(service, name)
    digests = {
        f"1.{number}": repository.push(
            f"1.{number}", images.Image(env={"VERSION": str(number)}, with_base=False)
        )
        for number in range(5)
    }
    return repository, digests


@pytest.mark.service
def test_a_real_registry_is_read(tmp_path: Path) -> None:
    repository, digests = filled(real(login=False))
    reader = Registry(reference.parse(repository.reference), lambda: None)
    assert sorted(reader.tags()) == sorted(digests)
    for tag, digest in digests.items():
        manifest = reader.manifest(tag)
        assert manifest.digest == digest
        assert reader.manifest(digest) == manifest
        value = reader.config(str(manifest.value["config"]["digest"]))
        assert f"VERSION={tag[-1]}" in value["config"]["Env"]
    with pytest.raises(NotFound):
        reader.manifest("9.9")


@pytest.mark.service
def test_a_real_registry_with_a_login_is_read(tmp_path: Path) -> None:
    repository, digests = filled(real(login=True))
    login = Login(services.USER, services.PASSWORD)
    reader = Registry(reference.parse(repository.reference), lambda: login)
    assert sorted(reader.tags()) == sorted(digests)
    for refused in (None, Login(services.USER, "wrong")):
        other = Registry(reference.parse(repository.reference), lambda login=refused: login)
        with pytest.raises(UsageError, match="docker login"):
            other.tags()


class Issuer:
    """Signs tokens that a real registry takes (distribution's token authentication)."""

    def __init__(self, authority: Path) -> None:
        self._authority = authority

    def token(self, name: str, seconds: int) -> str:
        """A token to pull from a repository for so long; negative is in the past."""
        now = int(time.time())
        der = ssl.PEM_cert_to_DER_cert((self._authority / "ca.crt").read_text())
        header = {"typ": "JWT", "alg": "RS256", "x5c": [base64.b64encode(der).decode()]}
        claims = {
            "iss": "tests",
            "sub": "tester",
            "aud": "registry",
            "exp": now + seconds,
            "nbf": now - 3600,
            "iat": now - 3600,
            "jti": str(time.monotonic_ns()),
            "access": [{"type": "repository", "name": name, "actions": ["pull", "push"]}],
        }
        text = b".".join(encoded_url(json.dumps(part).encode()) for part in (header, claims))
        signature = subprocess.run(
            ["openssl", "dgst", "-sha256", "-sign", str(self._authority / "key.pem")],
            input=text,
            capture_output=True,
            check=True,
        ).stdout
        return (text + b"." + encoded_url(signature)).decode()


def encoded_url(data: bytes) -> bytes:
    """Base64 for addresses, without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=")


@pytest.mark.service
def test_a_real_registry_takes_tokens_and_expired_ones_are_replaced(
    authority: Path, tmp_path: Path, serve: Serve
) -> None:
    program = lanes.require_command("docker-registry", "docker-registry")
    issuer = Issuer(authority)
    tokens = serve(auth="token")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{free.getsockname()[1]}"
    token_auth = {
        "realm": f"http://{tokens.host}/token",
        "service": "registry",
        "issuer": "tests",
        "rootcertbundle": str(authority / "ca.crt"),
    }
    settings = {
        "version": 0.1,
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(tmp_path / "data")}},
        "http": {"addr": host},
        "auth": {"token": token_auth},
    }
    (tmp_path / "registry.yml").write_text(json.dumps(settings))
    # The stand-in's token service hands out what the real registry was told to trust.
    lifetimes = iter([-600, *[600] * 10])
    tokens.issue = lambda: issuer.token("team/train", next(lifetimes))
    with subprocess.Popen([program, "serve", str(tmp_path / "registry.yml")]) as running:
        try:
            wait_until_up(host)
            pushed = Pushed(host, issuer.token("team/train", 600))
            images.Repository(pushed, "team/train").push("1.0", images.Image(with_base=False))
            repository = reference.parse(f"{host}/team/train")
            reader = Registry(repository, lambda: KNOWN)
            with pytest.raises(UsageError, match="docker login"):
                reader.tags()  # its first token is old already, and there is but one try
            assert reader.tags() == ["1.0"]
            reader._authorization = f"Bearer {issuer.token('team/train', -600)}"
            assert reader.manifest("1.0").media_type == images.MANIFEST
            assert len(tokens.token_requests) == 3
        finally:
            running.terminate()


class Pushed(services.RegistryService):
    """A registry one pushes to with a token."""

    def __init__(self, host: str, token: str) -> None:
        super().__init__(host, False)
        object.__setattr__(self, "token", token)

    @property
    def headers(self) -> dict[str, str]:
        """The token."""
        return {"Authorization": f"Bearer {self.token}"}  # type: ignore[attr-defined]


def wait_until_up(host: str) -> None:
    """Wait until something answers there."""
    deadline = time.monotonic() + 20
    while True:
        try:
            requests.get(f"http://{host}/v2/", timeout=5)
            return
        except requests.ConnectionError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.service
def test_the_stand_in_answers_as_a_real_registry_does() -> None:
    repository, digests = filled(real(login=False))
    with fakes.serve() as fake:
        fake.content.blobs.clear()
        base = f"http://{repository.service.host}/v2/{repository.name}"
        for tag, digest in digests.items():
            got = requests.get(
                f"{base}/manifests/{tag}", headers={"Accept": images.MANIFEST}, timeout=30
            )
            fake.content.tags[tag] = digest
            fake.content.manifests[digest] = (got.headers["Content-Type"], got.content)
            blob = got.json()["config"]["digest"]
            fake.content.blobs[blob] = requests.get(f"{base}/blobs/{blob}", timeout=30).content
        blob = got.json()["config"]["digest"]
        paths = ["tags/list", "tags/list?n=1000", "manifests/1.0", "manifests/9.9"]
        paths += [f"manifests/{digests['1.2']}"]
        paths += [f"blobs/{blob}", f"blobs/sha256:{'0' * 64}"]
        for path in paths:
            mine = told(f"http://{fake.host}/v2/{fake.name}/{path}", fake.name)
            theirs = told(f"{base}/{path}", repository.name)
            assert mine == theirs, path
        assert told(f"http://{fake.host}/v2/", "") == told(
            f"http://{repository.service.host}/v2/", ""
        )
        # This registry gives all tags on one page whatever `n` says; its catalog has pages.
        catalog = requests.get(f"http://{repository.service.host}/v2/_catalog?n=1", timeout=30)
        page = requests.get(f"http://{fake.host}/v2/{fake.name}/tags/list?n=1", timeout=30)
        link = re.compile(r'</v2/[^?]+\?last=[^&]+&n=1>; rel="next"')
        assert link.fullmatch(catalog.headers["Link"])
        assert link.fullmatch(page.headers["Link"])
        fake.behaviour.auth = "basic"
        closed = real(login=True)
        mine, theirs = (
            requests.get(f"http://{host}/v2/", timeout=30) for host in (fake.host, closed.host)
        )
        assert (mine.status_code, mine.headers["WWW-Authenticate"]) == (
            theirs.status_code,
            theirs.headers["WWW-Authenticate"],
        )
        assert mine.json()["errors"][0]["code"] == theirs.json()["errors"][0]["code"]


def told(address: str, name: str) -> list[Any]:
    """What a client sees of an answer, with the repository's name taken out."""
    got = requests.get(address, headers={"Accept": images.MANIFEST}, timeout=30)
    headers = ("Content-Type", "Docker-Content-Digest", "Link")
    seen: list[Any] = [got.status_code]
    seen += [got.headers.get(header, "").replace(f"/{name}/", "/NAME/") for header in headers]
    value = got.json()
    if got.status_code >= 400:
        return [*seen[:2], *((error["code"], error["message"]) for error in value["errors"])]
    value.pop("name", None)
    if "tags" in value:
        value["tags"].sort()  # a registry need not sort them
    return [*seen, value]
