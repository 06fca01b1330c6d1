"""A client of the OCI registry API: tags, manifests, configs. Reads only, pulls no layer.

Sources: OCI distribution specification 1.1; the token flow of distribution's documentation
("Token Authentication Specification"); Docker's rules for insecure registries and certs.d.
"""

from __future__ import annotations

import hashlib
import json
import re
import ssl
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import requests
import urllib3
from requests.adapters import HTTPAdapter

from stackbisect.errors import UsageError
from stackbisect.probe import InfrastructureError
from stackbisect.spaces.docker_login import Login
from stackbisect.spaces.reference import Repository

INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_TIMEOUT_S = (10, 60)
_PAGE = 1000
_TRIES = 5
# What all waits that a registry asks for may come to; after that, stop and let the user resume.
WAIT_BUDGET_S = 300.0
_CERTIFICATES = Path("/etc/docker/certs.d")


class NotFound(Exception):
    """The registry has no such thing."""


class BadAnswer(InfrastructureError):
    """The registry answered with something that is not what was asked for."""


@dataclass(frozen=True)
class Blob:
    """A manifest or config as it came: its own digest, media type and JSON value."""

    digest: str
    media_type: str
    value: Mapping[str, Any]


class Registry:
    """One repository of a registry.

    `login` gives the login when the registry asks for one. `insecure` allows plain HTTP and
    certificates that nobody vouches for. Every request may raise InfrastructureError (network,
    rate limit), UsageError (login refused) or NotFound.
    """

    def __init__(
        self,
        repository: Repository,
        login: Callable[[], Login | None],
        *,
        insecure: bool = False,
        sleep: Callable[[float], None] = time.sleep,
        certificates: Path = _CERTIFICATES,
    ) -> None:
        self._repository = repository
        self._login = login
        self._insecure = insecure or repository.loopback
        self._sleep = sleep
        self._waited = 0.0
        self._authorization: str | None = None
        self._session = _session(repository.address, self._insecure, certificates)
        self._root = ""

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def tags(self) -> list[str]:
        """Every tag, in the registry's order."""
        found: list[str] = []
        address: str | None = f"{self._base()}/tags/list?n={_PAGE}"
        seen: set[str] = set()
        while address is not None:
            if address in seen:
                raise BadAnswer(f"{self._repository.host} gives the same page of tags for ever")
            seen.add(address)
            response = self._get(address)
            found.extend(_json(response, self._repository.host).get("tags") or ())
            address = self._next(response)
        return list(dict.fromkeys(found))

    def manifest(self, reference: str) -> Blob:
        """A manifest or index, by tag or digest."""
        accept = ", ".join((*INDEX_TYPES, *MANIFEST_TYPES))
        response = self._get(f"{self._base()}/manifests/{reference}", {"Accept": accept})
        digest = _digest(response.content)
        expected = reference if ":" in reference else response.headers.get("Docker-Content-Digest")
        _check_digest(expected, digest, f"manifest {reference}")
        value = _json(response, self._repository.host)
        header = response.headers.get("Content-Type", "").partition(";")[0].strip()
        return Blob(digest, str(value.get("mediaType") or header), value)

    def config(self, digest: str) -> Mapping[str, Any]:
        """An image's config."""
        response = self._get(f"{self._base()}/blobs/{digest}")
        _check_digest(digest, _digest(response.content), "config")
        return _json(response, self._repository.host)

    def _base(self) -> str:
        """The repository's address; the first call finds out how the registry is reached."""
        if not self._root:
            self._root = self._find_root()
        return f"{self._root}/v2/{self._repository.path}"

    def _find_root(self) -> str:
        secure = f"https://{self._repository.address}"
        if not self._insecure:
            return secure
        # As Docker does: TLS where the registry speaks it, so that no login goes in the clear.
        proxies = requests.utils.get_environ_proxies(secure)
        try:
            self._session.get(f"{secure}/v2/", timeout=_TIMEOUT_S, proxies=proxies)
            return secure
        except requests.exceptions.RequestException:
            return f"http://{self._repository.address}"

    def _next(self, response: requests.Response) -> str | None:
        """The next page's address, always on this registry.

        `Link` may be relative, and behind a proxy an absolute one often names a scheme or host
        that cannot be reached from here; a login must not go there either.
        """
        link = response.links.get("next", {}).get("url")
        if not link:
            return None
        parts = urllib.parse.urlsplit(urllib.parse.urljoin(str(response.url), link))
        return urllib.parse.urlunsplit(
            (*urllib.parse.urlsplit(self._root)[:2], parts.path, parts.query, "")
        )

    def _get(self, address: str, headers: Mapping[str, str] | None = None) -> requests.Response:
        for attempt in range(2):
            sent = dict(headers or {})
            if self._authorization:
                sent["Authorization"] = self._authorization
            response = self._send("GET", address, sent)
            if response.status_code != 401:
                break
            # No token yet, or one that has expired.
            self._authorization = self._answer(response) if attempt == 0 else None
        return self._checked(response)

    def _checked(self, response: requests.Response) -> requests.Response:
        code = response.status_code
        if code < 300:
            return response
        host, words = self._repository.host, _message(response)
        if code == 404:
            raise NotFound(words)
        if code in (401, 403):
            raise UsageError(
                f"{host} refuses {self._repository.path} ({code}: {words}); "
                f"log in with `docker login {host}`, with an account that may read it"
            )
        raise InfrastructureError(f"{host} answered {code} ({words}); try again later")

    def _answer(self, response: requests.Response) -> str | None:
        """What to put into Authorization for the challenge of a 401, or None without a login."""
        offered = dict(reversed(challenges(response.headers.get("WWW-Authenticate", ""))))
        login = self._login()
        if login is not None and login.registry_token:
            return f"Bearer {login.registry_token}"
        if "bearer" in offered:
            return f"Bearer {self._token(offered['bearer'], login)}"
        if "basic" in offered and login is not None:
            return login.basic
        return None

    def _token(self, challenge: Mapping[str, str], login: Login | None) -> str:
        realm = challenge.get("realm", "")
        scope = challenge.get("scope") or f"repository:{self._repository.path}:pull"
        fields = {"service": challenge.get("service", ""), "scope": scope}
        fields = {name: value for name, value in fields.items() if value}
        self._check_realm(realm, login)
        if login is not None and login.identity_token:
            form = {
                **fields,
                "grant_type": "refresh_token",
                "client_id": "stackbisect",
                "refresh_token": login.identity_token,
            }
            response = self._send("POST", realm, {}, form)
        else:
            basic = login.basic if login is not None else None
            if login is not None and basic:
                fields["account"] = login.user
            query = urllib.parse.urlencode(fields)
            address = f"{realm}{'&' if '?' in realm else '?'}{query}"
            response = self._send("GET", address, {"Authorization": basic} if basic else {})
        value = _json(self._checked(response), urllib.parse.urlsplit(realm).netloc)
        token = value.get("token") or value.get("access_token")
        if not isinstance(token, str):
            raise BadAnswer(f"expected a token from {realm}, found none")
        return token

    def _check_realm(self, realm: str, login: Login | None) -> None:
        scheme = urllib.parse.urlsplit(realm).scheme
        if scheme not in ("http", "https"):
            raise BadAnswer(f"{self._repository.host} names no usable place for tokens: {realm!r}")
        if scheme == "http" and login is not None and not self._insecure:
            raise UsageError(
                f"{self._repository.host} wants the login sent in the clear to {realm}; "
                "--insecure-registry allows it"
            )

    def _send(
        self,
        method: str,
        address: str,
        headers: Mapping[str, str],
        form: Mapping[str, str] | None = None,
    ) -> requests.Response:
        """One request; waits and repeats where that can help, within bounds."""
        for attempt in range(_TRIES):
            last = attempt == _TRIES - 1
            try:
                response = self._session.request(
                    method,
                    address,
                    headers=dict(headers),
                    data=form,
                    timeout=_TIMEOUT_S,
                    proxies=requests.utils.get_environ_proxies(address),
                )
            except requests.exceptions.SSLError as error:
                raise InfrastructureError(
                    f"{_place(address)}: no trusted TLS connection: {_reason(error)}"
                ) from error
            except requests.exceptions.RequestException as error:
                if last:
                    raise InfrastructureError(
                        f"{_place(address)} cannot be reached: {_reason(error)}; try again later"
                    ) from error
                self._wait(2.0**attempt, address)
                continue
            if response.status_code == 429:
                asked = _retry_after(response)
                self._wait(asked if asked is not None else 2.0 ** (attempt + 1), address)
            elif response.status_code in (500, 502, 503, 504) and not last:
                asked = _retry_after(response)
                self._wait(asked if asked is not None else 2.0**attempt, address)
            else:
                return response
        raise InfrastructureError(f"{_place(address)} keeps limiting requests; try again later")

    def _wait(self, seconds: float, address: str) -> None:
        if self._waited + seconds > WAIT_BUDGET_S:
            raise InfrastructureError(
                f"{_place(address)} limits requests and asks to wait {seconds:g} s more; "
                "try again later (an account that is logged in may have a higher limit)"
            )
        self._waited += seconds
        self._sleep(seconds)


def challenges(header: str) -> list[tuple[str, dict[str, str]]]:
    """Schemes (lower case) and parameters of a WWW-Authenticate header (RFC 9110, 11.6.1)."""
    found: list[tuple[str, dict[str, str]]] = []
    for match in _CHALLENGE.finditer(header):
        if match["scheme"]:
            found.append((match["scheme"].lower(), {}))
        elif match["name"] and found:
            quoted = match["quoted"]
            value = match["token"] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
            found[-1][1][match["name"].lower()] = value
    return found


_WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_CHALLENGE = re.compile(
    rf"(?P<name>{_WORD})\s*=\s*(?:\"(?P<quoted>(?:[^\"\\]|\\.)*)\"|(?P<token>{_WORD}))"
    rf"|(?P<scheme>{_WORD})"
)


def pick_platform(index: Mapping[str, Any], platform: str) -> str | None:
    """The digest of an index's manifest for `os/architecture[/variant]`, or None."""
    wanted = platform.split("/")
    for entry in _entries(index):
        described = entry.get("platform") or {}
        own = [described.get("os"), described.get("architecture"), described.get("variant")]
        if own[: min(len(wanted), 2)] != wanted[:2]:
            continue
        if len(wanted) > 2 and own[2] != wanted[2]:
            continue
        return str(entry["digest"])
    return None


def platforms(index: Mapping[str, Any]) -> list[str]:
    """The platforms an index has images for."""
    found = []
    for entry in _entries(index):
        described = entry.get("platform") or {}
        parts = (described.get("os"), described.get("architecture"), described.get("variant"))
        text = "/".join(str(part) for part in parts if part)
        if text and not text.startswith("unknown"):
            found.append(text)
    return found


def _entries(index: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for entry in index.get("manifests") or ():
        if isinstance(entry, Mapping) and isinstance(entry.get("digest"), str):
            yield entry


class _Adapter(HTTPAdapter):
    """Trusts what the given TLS context trusts, not the list that comes with `requests`."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        super().__init__()

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> Any:
        """Use the context for direct connections."""
        return super().init_poolmanager(*args, ssl_context=self._context, **kwargs)

    def proxy_manager_for(self, *args: Any, **kwargs: Any) -> Any:
        """Use the context through proxies."""
        return super().proxy_manager_for(*args, ssl_context=self._context, **kwargs)

    def cert_verify(self, conn: Any, url: Any, verify: Any, cert: Any) -> None:
        """Leave everything to the context."""


def _session(address: str, insecure: bool, certificates: Path) -> requests.Session:
    session = requests.Session()
    # Without this, requests would send a login from ~/.netrc to any registry.
    session.trust_env = False
    session.max_redirects = 5
    session.headers["User-Agent"] = "stackbisect"
    context = ssl.create_default_context()
    folder = certificates / address
    for authority in sorted(folder.glob("*.crt")):
        context.load_verify_locations(authority)
    for own in sorted(folder.glob("*.cert")):
        context.load_cert_chain(own, own.with_suffix(".key"))
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        session.verify = False
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    session.mount("https://", _Adapter(context))
    return session


def _json(response: requests.Response, host: str) -> Mapping[str, Any]:
    try:
        value = json.loads(response.content)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        start = response.content[:80].decode("utf-8", "replace")
        raise BadAnswer(f"expected a JSON object from {host}, found {start!r}: is it a registry?")
    return value


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _check_digest(expected: str | None, found: str, what: str) -> None:
    if expected and expected.startswith("sha256:") and expected != found:
        raise BadAnswer(f"{what}: expected content {expected}, found {found}; damaged on the way")


def _message(response: requests.Response) -> str:
    """The registry's own words."""
    try:
        errors: Sequence[Mapping[str, Any]] = json.loads(response.content)["errors"]
        return str(errors[0].get("message") or errors[0].get("code"))
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return response.reason or "no reason given"


def _retry_after(response: requests.Response) -> float | None:
    """Seconds from a Retry-After header, which holds a number or a date."""
    text = response.headers.get("Retry-After", "").strip()
    if text.isdigit():
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return max((moment - datetime.now(timezone.utc)).total_seconds(), 0.0)


def _place(address: str) -> str:
    """An address for a message: no query (it may hold a login's name), no user part."""
    return urllib.parse.urlsplit(address).netloc.rpartition("@")[2]


def _reason(error: BaseException) -> str:
    """The innermost words of a nested network error; the outer ones hold whole addresses."""
    while error.__cause__ is not None or error.__context__ is not None:
        error = error.__cause__ or error.__context__ or error
    return f"{type(error).__name__}: {error}"
