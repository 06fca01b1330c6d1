"""A small registry over HTTP that can be told to misbehave: pages, logins, rate limits, expiry.

It speaks only the part of the OCI distribution API that is read. `test_registry.py` holds its
answers to those of a real registry with the same content.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import ssl
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
USER, PASSWORD, IDENTITY = "tester", "open-sesame-42", "identity-token-4711"


@dataclass
class Behaviour:
    """How the registry behaves; may be changed while it runs.

    `auth`: none, basic or token. `link`: relative, absolute or foreign (another host, as behind
    a proxy that does not know its name). `page`: tags a page at most, whatever is asked for.
    `limited`: how many requests are answered 429, with `retry_after`. `broken`: how many are
    answered 503. `token_uses`: requests after which a token is expired. `redirect`: blobs are at
    another address.
    """

    auth: str = "none"
    link: str = "relative"
    page: int = 1000
    limited: int = 0
    retry_after: str | None = "1"
    broken: int = 0
    token_uses: int = 1_000_000
    anonymous: bool = False
    redirect: str = ""
    loop: bool = False
    realm: str = ""


@dataclass
class Content:
    """What one repository holds."""

    tags: dict[str, str] = field(default_factory=dict)
    manifests: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)

    def image(
        self,
        tag: str,
        env: Mapping[str, str] | None = None,
        created: str = "2026-01-01T00:00:00Z",
        architecture: str = "amd64",
        labels: Mapping[str, str] | None = None,
    ) -> str:
        """Put an image of one empty-looking layer under a tag; returns its digest."""
        config = {
            "architecture": architecture,
            "os": "linux",
            "created": created,
            "config": {
                "Env": [f"{name}={value}" for name, value in (env or {}).items()],
                "Labels": dict(labels or {}),
            },
            "rootfs": {"type": "layers", "diff_ids": []},
        }
        blob = json.dumps(config).encode()
        kind = "application/vnd.docker.container.image.v1+json"
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": kind, "size": len(blob), "digest": self.blob(blob)},
            "layers": [],
        }
        return self.manifest(tag, manifest)

    def index(self, tag: str, entries: Mapping[str, str]) -> str:
        """Put an index under a tag: platform → digest."""
        manifests = []
        for platform, digest in entries.items():
            parts = dict(zip(("os", "architecture", "variant"), platform.split("/"), strict=False))
            size = len(self.manifests[digest][1])
            manifests.append(
                {"mediaType": MANIFEST, "digest": digest, "size": size, "platform": parts}
            )
        return self.manifest(tag, {"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests})

    def manifest(self, tag: str, value: Mapping[str, Any]) -> str:
        """Put a manifest under a tag."""
        body = json.dumps(value).encode()
        digest = digest_of(body)
        self.manifests[digest] = (str(value.get("mediaType", "")), body)
        self.tags[tag] = digest
        return digest

    def blob(self, data: bytes) -> str:
        """Put a blob."""
        self.blobs[digest_of(data)] = data
        return digest_of(data)


@dataclass
class FakeRegistry:
    """A running registry with one repository, `team/train`."""

    host: str
    behaviour: Behaviour
    content: Content
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    tokens: dict[str, int] = field(default_factory=dict)
    token_requests: list[dict[str, str]] = field(default_factory=list)
    issue: Callable[[], str] | None = None

    name = "team/train"

    @property
    def reference(self) -> str:
        """What `--image` takes."""
        return f"{self.host}/{self.name}"


def digest_of(data: bytes) -> str:
    """The digest of some bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


@contextmanager
def serve(tls: ssl.SSLContext | None = None, **behaviour: Any) -> Iterator[FakeRegistry]:
    """Run a registry on a loopback port until the block ends, over TLS where a context is given."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    host = f"127.0.0.1:{server.server_address[1]}"
    fake = FakeRegistry(host, Behaviour(**behaviour), Content())
    server.fake = fake  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def fake(self) -> FakeRegistry:
        return self.server.fake  # type: ignore[attr-defined, no-any-return]

    def handle(self) -> None:
        """A client that breaks off (it tried TLS, say) is nothing to tell."""
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            super().handle()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        """A refresh token for an access token."""
        length = int(self.headers.get("Content-Length", 0))
        form = dict(urllib.parse.parse_qsl(self.rfile.read(length).decode()))
        self._token(form, form.get("refresh_token") == IDENTITY)

    def do_GET(self) -> None:
        """Everything else."""
        behaviour = self.fake.behaviour
        parts = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(parts.query))
        self.fake.requests.append((self.path, self.headers.get("Authorization")))
        if parts.path == "/token":
            known = self._basic() == (USER, PASSWORD)
            self._token(query, known or behaviour.anonymous)
            return
        if parts.path.startswith("/elsewhere/"):
            digest = parts.path.removeprefix("/elsewhere/")
            self._answer(200, self.fake.content.blobs[digest], {})
            return
        if behaviour.limited > 0:
            behaviour.limited -= 1
            wait = {"Retry-After": behaviour.retry_after} if behaviour.retry_after else {}
            self._refuse(429, "TOOMANYREQUESTS", "too many requests", wait)
            return
        if behaviour.broken > 0:
            behaviour.broken -= 1
            self._refuse(503, "UNAVAILABLE", "service unavailable")
            return
        if self._is_let_in(parts.path):
            self._serve(parts.path, query)

    def _is_let_in(self, path: str) -> bool:
        behaviour = self.fake.behaviour
        if behaviour.auth == "none":
            return True
        if behaviour.auth == "basic":
            if self._basic() == (USER, PASSWORD):
                return True
            challenge = 'Basic realm="test"'
        else:
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            left = self.fake.tokens.get(token, 0)
            if left > 0:
                self.fake.tokens[token] = left - 1
                return True
            realm = behaviour.realm or f"http://{self.fake.host}/token"
            scope = f"repository:{self.fake.name}:pull"
            challenge = f'Bearer realm="{realm}",service="test, quoted",scope="{scope}"'
            if token:
                challenge += ',error="invalid_token"'
        self._refuse(
            401, "UNAUTHORIZED", "authentication required", {"WWW-Authenticate": challenge}
        )
        return False

    def _serve(self, path: str, query: Mapping[str, str]) -> None:
        content = self.fake.content
        start = f"/v2/{self.fake.name}/"
        if path == "/v2/":
            self._answer(200, b"{}", {"Content-Type": "application/json; charset=utf-8"})
        elif not path.startswith(start):
            self._refuse(404, "NAME_UNKNOWN", "repository name not known to registry")
        elif path == f"{start}tags/list":
            self._tags(query)
        elif path.startswith(f"{start}manifests/"):
            reference = path.rpartition("/")[2]
            digest = content.tags.get(reference, reference)
            if digest not in content.manifests:
                self._refuse(404, "MANIFEST_UNKNOWN", "manifest unknown")
                return
            kind, body = content.manifests[digest]
            self._answer(200, body, {"Content-Type": kind, "Docker-Content-Digest": digest})
        else:
            digest = path.rpartition("/")[2]
            if digest not in content.blobs:
                self._refuse(404, "BLOB_UNKNOWN", "blob unknown to registry")
            elif self.fake.behaviour.redirect:
                place = f"{self.fake.behaviour.redirect}/elsewhere/{digest}"
                self._answer(307, b"", {"Location": place})
            else:
                kind = {"Content-Type": "application/octet-stream"}
                self._answer(200, content.blobs[digest], kind | {"Docker-Content-Digest": digest})

    def _tags(self, query: Mapping[str, str]) -> None:
        behaviour = self.fake.behaviour
        names = sorted(self.fake.content.tags)
        last = query.get("last", "")
        size = min(int(query.get("n", behaviour.page)), behaviour.page)
        rest = [name for name in names if name > last]
        page = rest[:size]
        headers = {"Content-Type": "application/json; charset=utf-8"}
        if len(rest) > size or behaviour.loop:
            last = "" if behaviour.loop else page[-1]
            target = f"/v2/{self.fake.name}/tags/list?last={last}&n={size}"
            start = {"relative": "", "absolute": f"http://{self.fake.host}"}
            target = start.get(behaviour.link, "https://inner.example") + target
            headers["Link"] = f'<{target}>; rel="next"'
        body = json.dumps({"name": self.fake.name, "tags": page or None}).encode()
        self._answer(200, body, headers)

    def _token(self, asked: Mapping[str, str], allowed: bool) -> None:
        self.fake.token_requests.append(dict(asked))
        if not allowed:
            self._refuse(401, "UNAUTHORIZED", "incorrect username or password")
            return
        token = self.fake.issue() if self.fake.issue else f"token-{len(self.fake.tokens)}"
        self.fake.tokens[token] = self.fake.behaviour.token_uses
        body = json.dumps({"token": token, "expires_in": 60}).encode()
        self._answer(200, body, {"Content-Type": "application/json"})

    def _basic(self) -> tuple[str, str] | None:
        kind, _, text = self.headers.get("Authorization", "").partition(" ")
        if kind != "Basic":
            return None
        user, _, password = base64.b64decode(text).decode().partition(":")
        return user, password

    def _refuse(
        self, code: int, name: str, words: str, headers: Mapping[str, str] | None = None
    ) -> None:
        body = json.dumps({"errors": [{"code": name, "message": words, "detail": None}]}).encode()
        kind = {"Content-Type": "application/json; charset=utf-8"}
        self._answer(code, body, kind | dict(headers or {}))

    def _answer(self, code: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
