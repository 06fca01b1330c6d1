"""Names of image repositories, as people write them and as registries are asked for them."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from stackbisect.errors import UsageError

_PATH = re.compile(
    r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*"
)
_HOST = re.compile(r"(?:\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+)(?::\d+)?")
_DOCKER_HUB = "docker.io"


@dataclass(frozen=True)
class Repository:
    """A repository: `host` as people write it, `path` as the registry knows it."""

    host: str
    path: str

    @property
    def name(self) -> str:
        """The name a daemon understands."""
        return f"{self.host}/{self.path}"

    @property
    def address(self) -> str:
        """The host that answers for the registry's API."""
        return "registry-1.docker.io" if self.host == _DOCKER_HUB else self.host

    @property
    def login_key(self) -> str:
        """The key under which Docker's configuration keeps its login."""
        return "https://index.docker.io/v1/" if self.host == _DOCKER_HUB else self.host

    @property
    def loopback(self) -> bool:
        """Whether the registry is on this machine; Docker then allows plain HTTP."""
        name = re.sub(r":\d+$", "", self.host).strip("[]")
        if name == "localhost":
            return True
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False


def parse(text: str) -> Repository:
    """Read `HOST[:PORT]/NAME`, or a Docker Hub name such as `python` or `vendor/train`."""
    first, slash, rest = text.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        host, path = first, rest
    else:
        host, path = _DOCKER_HUB, text if slash else f"library/{text}"
    if host in ("index.docker.io", "registry-1.docker.io"):
        host = _DOCKER_HUB
    last = path.rpartition("/")[2]
    if "@" in last or ":" in last:
        raise UsageError(
            f"--image {text}: expected a repository without a tag or digest; "
            "tags are given by --good and --bad"
        )
    if not _HOST.fullmatch(host) or not _PATH.fullmatch(path):
        raise UsageError(f"--image: expected HOST[:PORT]/NAME, found {text!r}")
    return Repository(host, path)
