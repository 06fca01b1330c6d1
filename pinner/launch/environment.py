"""Makes a session for processes that something else starts, and looks at an environment's stack."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pinner import shipped
from pinner.inside.policy import DIGEST
from pinner.launch import enforce, session_dir
from pinner.launch.collect import collect
from pinner.launch.enforce import LockRefused, recorded_with
from pinner.launch.session_dir import CublasLt, OnMiss, SessionDir, Settings
from pinner.launch.taps import read_taps
from pinner.lockfile.compiled import pins_text
from pinner.lockfile.schema import Lock
from pinner.policy import apply
from pinner.policy.profiles import Role

# Where sessions for other launchers are made, if --dir does not say; all hosts must see it.
FOLDER_VARIABLE = "PINNER_DIR"

# A fingerprint opens the ledger and makes the process write its stack facts, with torch or without.
_REPORT_FACTS = """
try:
    import torch
except ImportError:
    pass
import pinner
pinner.fingerprint("stack", 0)
"""


class NoFacts(Exception):
    """A Python that could not be asked for its stack."""


@dataclass(frozen=True)
class Elsewhere:
    """A session whose processes pinner does not start.

    policy: the profile that they are under, for programs; None where the lock has none.
    """

    session: SessionDir
    variables: Mapping[str, str]
    policy: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """The object that `pinner env --json` prints.

        `prepend` is for launchers that keep a PYTHONPATH of their own, as an image does.
        """
        return {
            "session": str(self.session.path),
            "variables": dict(self.variables),
            "prepend": {"PYTHONPATH": str(shipped.inject_dir())},
            "policy": None if self.policy is None else dict(self.policy),
        }

    def shell(self) -> str:
        """Lines for a POSIX shell, which keep the PYTHONPATH it has."""
        inject = shlex.quote(str(shipped.inject_dir()))
        lines = [
            f"export {name}={shlex.quote(value)}"
            for name, value in self.variables.items()
            if name != "PYTHONPATH"
        ]
        return "\n".join([*lines, f'export PYTHONPATH={inject}"${{PYTHONPATH:+:$PYTHONPATH}}"'])


def elsewhere(
    lock: Lock,
    digest: str,
    folder: Path,
    environ: Mapping[str, str],
    *,
    on_miss: OnMiss = "fallback",
    allow: Sequence[str] = (),
    evidence: bool = False,
    cublaslt: CublasLt = "auto",
    policy: RolePolicy | None = None,
) -> Elsewhere:
    """Makes a session folder in `folder` under a new name. Raises `SessionError`."""
    name = session_dir.new_name()
    policy = policy or RolePolicy()
    settings = Settings(
        mode="enforce",
        run=name,
        created=session_dir.now(),
        on_miss=on_miss,
        taps=read_taps(recorded_with(lock, "taps")) if evidence else (),
        evidence=evidence,
        allow=(*allow, *policy.allow),
        policy=policy.settings,
        cublaslt=cublaslt,
        hidden_pythonpath=session_dir.hidden_pythonpath(environ),
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise session_dir.SessionError(
            f"cannot make {folder}: {error.strerror}; give a folder that can be written with --dir"
        ) from error
    session = session_dir.create(folder / name, settings, pins_text(lock, digest))
    variables = {**policy.variables, **session.variables({**environ, **policy.variables})}
    return Elsewhere(session, variables, policy.described)


@dataclass(frozen=True)
class RolePolicy:
    """The policy for processes of one role under a lock.

    variables: those of the profile, with a user's own values: elsewhere nobody else sets them.
    settings: the rules, where the role is another than the lock's. allow: facts of the stack that
    differ by these rules. described: for programs.
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] | None = None
    allow: tuple[str, ...] = ()
    described: Mapping[str, Any] | None = None


def role_policy(
    lock: Lock,
    environ: Mapping[str, str],
    allow: Sequence[str] = (),
    *,
    role: Role | None = None,
    profile: str | None = None,
) -> RolePolicy:
    """The policy for processes of a role; None is the role that the lock was recorded for.

    The lock's values hold for its own role. For another one the profile's rules are judged here:
    the one that the lock names, or `profile`, which must be the same. Raises `LockRefused` where
    the environment is not the lock's or the profile's, and `ProfileError`.
    """
    recorded, own = apply.profile_of(lock.policy), apply.role_of(lock.policy)
    if recorded is None:
        if role is None and profile is None:
            return RolePolicy()
        raise LockRefused(
            "the lock was recorded without a profile, so that there are no rules for a role: "
            "record it with --profile"
        )
    if role is None or role == own:
        enforce.check_policy(lock, environ, allow)
        values = apply.values_of(lock.policy)
        described = {"profile": recorded, "role": own, "from": "lock", "values": values}
        return RolePolicy(apply.variables_of(lock.policy), described=described)
    try:
        found = apply.policy_of(profile or recorded, role, environ)
    except apply.PolicyRefused as error:
        raise LockRefused(str(error)) from error
    if found.profile.digest != lock.policy.get(DIGEST):
        raise LockRefused(
            f"expected the profile {recorded} that the lock was recorded under, found another in "
            f"{found.profile.source}: record again, or name the file with --profile"
        )
    return RolePolicy(
        found.variables,
        found.settings(told=False),
        tuple(f"env:{rule.name}" for rule in found.profile.rules if rule.kind == "variable"),
        {**found.as_json(), "from": "profile"},
    )


def default_folder(lock: Path, environ: Mapping[str, str]) -> Path:
    """Where sessions for other launchers go: $PINNER_DIR, or a folder beside the lock."""
    given = environ.get(FOLDER_VARIABLE)
    return Path(given) if given else Path(os.path.abspath(lock)).parent / ".pinner"


def facts_of(python: Sequence[str], environ: Mapping[str, str]) -> dict[str, Any]:
    """The stack facts that a process of this Python reports. Raises `NoFacts`."""
    with tempfile.TemporaryDirectory(prefix="pinner-facts-") as folder:
        settings = Settings(mode="observe", run="facts", created=session_dir.now(), cublaslt="off")
        session = session_dir.create(Path(folder) / "facts", settings)
        done = report_facts(python, session, environ)
        facts: dict[str, Any] = {}
        for _, found in collect(session).facts():
            facts.update(found)
    if not facts:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise NoFacts(
            f"expected the stack facts of {shlex.join(python)}, found none (exit "
            f"{done.returncode}: {last}); name a Python interpreter after `--`"
        )
    return facts


def report_facts(
    python: Sequence[str], session: SessionDir, environ: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Makes a process of this Python write its stack facts. Raises `NoFacts` if none starts."""
    try:
        return subprocess.run(
            [*python, "-c", _REPORT_FACTS],
            env=session.environment(environ),
            capture_output=True,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise NoFacts(f"cannot start {python[0]}: {error.strerror}") from error
