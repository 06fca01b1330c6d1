"""Podman by its Docker-compatible socket: the docker runtime at another address.

Tried with Podman 4.3 as root. Two things differ there from Docker, and are said where they bear on
a probe: a request for GPUs is passed over in silence, and files below a mount cannot be copied out
of a container that has ended.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from stackbisect.probe import InfrastructureError
from stackbisect.runtimes.docker_engine import Engine

_HINT = "start it with `systemctl start podman.socket` (or `podman system service --time=0`)"


def address(environ: Mapping[str, str], user: int) -> str:
    """Where its socket is: CONTAINER_HOST as for podman itself, else the place of this user's."""
    named = environ.get("CONTAINER_HOST")
    if named:
        return named
    if user == 0:
        return "unix:///run/podman/podman.sock"
    folder = environ.get("XDG_RUNTIME_DIR") or f"/run/user/{user}"
    return f"unix://{folder}/podman/podman.sock"


def connect(environ: Mapping[str, str] = os.environ) -> Engine:
    """Connect to it. Raises InfrastructureError."""
    try:
        return Engine.connect(address(environ, os.getuid()))
    except InfrastructureError as error:
        raise InfrastructureError(f"{error}; for Podman: {_HINT}") from error
