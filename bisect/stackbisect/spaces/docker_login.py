"""Logins for registries, from Docker's configuration and its credential helpers.

Read as the docker command does (cli/config): a helper for this registry (`credHelpers`), else the
store for all (`credsStore`), else what the file itself holds (`auths`).
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stackbisect.errors import UsageError

_HELPER_TIME_S = 60
# The user name with which helpers mark an identity token.
_TOKEN_USER = "<token>"


@dataclass(frozen=True)
class Login:
    """What a registry may be told. Never shown: `repr` has no secrets."""

    user: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)
    registry_token: str = field(default="", repr=False)

    @property
    def basic(self) -> str | None:
        """The value of an Authorization header, where there is a user with a password."""
        if not self.user or not self.password:
            return None
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


Helper = Callable[[str, str], tuple[int, str, str]]


def call_helper(name: str, key: str) -> tuple[int, str, str]:
    """Ask `docker-credential-NAME` for a key: exit code, standard output, standard error."""
    try:
        done = subprocess.run(
            [f"docker-credential-{name}", "get"],
            input=key,
            capture_output=True,
            text=True,
            timeout=_HELPER_TIME_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, "", str(error)
    return done.returncode, done.stdout, done.stderr


def config_path(environ: Mapping[str, str]) -> Path:
    """Where Docker's configuration is."""
    folder = environ.get("DOCKER_CONFIG")
    if folder:
        return Path(folder, "config.json")
    return Path(environ.get("HOME") or os.path.expanduser("~"), ".docker", "config.json")


def find(key: str, environ: Mapping[str, str], helper: Helper = call_helper) -> Login | None:
    """The login for a registry, or None. Raises UsageError for a configuration that is broken."""
    path = config_path(environ)
    config = _load(path)
    helpers = config.get("credHelpers") or {}
    name = _by_host(helpers, key) or config.get("credsStore")
    if name:
        found = _ask(str(name), key, helper)
        if found is not None:
            return found
    entry = _by_host(config.get("auths") or {}, key)
    return _from_entry(entry, path, key) if entry else None


def _load(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    try:
        config = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise UsageError(f"{path}: expected an object")
    return config


def _ask(name: str, key: str, helper: Helper) -> Login | None:
    code, out, err = helper(name, key)
    if code:
        if "credentials not found" in out + err:
            return None
        reason = (err or out).strip().splitlines()[-1:] or ["no message"]
        raise UsageError(f"docker-credential-{name} failed for {key}: {reason[0]}")
    try:
        found = json.loads(out)
        user, secret = str(found["Username"]), str(found["Secret"])
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"docker-credential-{name}: expected an object with Username and Secret"
        ) from error
    if user == _TOKEN_USER:
        return Login(identity_token=secret)
    return Login(user, secret)


def _from_entry(entry: Mapping[str, Any], path: Path, key: str) -> Login | None:
    user, password = str(entry.get("username") or ""), str(entry.get("password") or "")
    if entry.get("auth"):
        try:
            text = base64.b64decode(str(entry["auth"]), validate=True).decode("utf-8")
        except (binascii.Error, UnicodeDecodeError):
            raise UsageError(f"{path}: the login for {key} is not base64; log in again") from None
        user, _, password = text.partition(":")
        password = password.strip("\0")
    found = Login(
        user,
        password,
        identity_token=str(entry.get("identitytoken") or ""),
        registry_token=str(entry.get("registrytoken") or ""),
    )
    empty = not (found.basic or found.identity_token or found.registry_token)
    return None if empty else found


def _by_host(table: Mapping[str, Any], key: str) -> Any:
    """The entry for a registry: by its key, else by its host (old entries are addresses)."""
    if key in table:
        return table[key]
    return next((value for name, value in table.items() if _host(name) == _host(key)), None)


def _host(key: str) -> str:
    return key.partition("://")[2].partition("/")[0] if "://" in key else key.partition("/")[0]
