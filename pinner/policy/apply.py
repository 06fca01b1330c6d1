"""What a profile means for one run: what the processes are told, what stands in the lock, and
whether an environment is that of a lock. Pure: environments come as arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pinner.inside import policy as inside
from pinner.inside.faults import PinnerError
from pinner.inside.policy_rules import accepts, expected, shown
from pinner.inside.values import Encoded
from pinner.lockfile.errors import LockError

from .profiles import Judged, Profile, Role, judge, load

Values = Mapping[str, Encoded]


class PolicyRefused(Exception):
    """An environment with values that a profile does not accept; nothing was started."""


@dataclass(frozen=True)
class Policy:
    """A profile, for processes of one role, in one environment that it refuses nothing of."""

    profile: Profile
    role: Role | None
    judged: Judged

    def settings(self, *, told: bool = True) -> dict[str, Any]:
        """What a session's processes need of it (`pinner/inside/policy.py`).

        told: whether they write the values in force, to be locked or compared with a lock's.
        """
        return {
            "profile": self.profile.name,
            "role": self.role,
            "digest": self.profile.digest,
            "sets": dict(self.judged.sets),
            "rules": [rule.as_json() for rule in self.profile.of(self.role) if not rule.phantom],
            "told": told,
        }

    @property
    def variables(self) -> dict[str, str]:
        """The variables of the rules with the values in force, a user's own included."""
        return {
            row.rule.name: str(row.value)
            for row in self.judged.rows
            if row.state in ("set", "accepted", "kept")
        }

    def lines(self) -> tuple[str, ...]:
        """What a person is told before anything starts."""
        of = f" for {self.role}" if self.role else ""
        sets = ", ".join(f"{name}={shown(value)}" for name, value in self.judged.sets.items())
        lines = [
            f"profile {self.profile.name}{of}: " + (f"sets {sets}" if sets else "sets nothing")
        ]
        if self.role is None and self.profile.roles:
            roles = " and ".join(self.profile.roles)
            lines.append(f"note: it has rules for {roles}, which hold with --role only")
        return (*lines, *(f"note: {text}" for text in self.judged.loud))

    def as_json(self) -> dict[str, Any]:
        """The same for programs, a row for each rule."""
        return {
            "profile": self.profile.name,
            "role": self.role,
            "extends": list(self.profile.extends),
            "source": self.profile.source,
            "sets": dict(self.judged.sets),
            "rows": [row.as_json() for row in self.judged.rows],
        }


def policy_of(name: str, role: Role | None, environ: Mapping[str, str]) -> Policy:
    """The policy of a profile here. Raises `ProfileError`, and `PolicyRefused` with every cause."""
    profile = load(name)
    judged = judge(profile, environ, role)
    if judged.refusals:
        raise PolicyRefused("\n".join(judged.refusals))
    return Policy(profile, role, judged)


def for_lock(settings: Mapping[str, Any] | None) -> dict[str, Encoded]:
    """What `[policy]` of a lock says of the profile that a session's processes were under."""
    if settings is None:
        return {}
    at_start = [
        rule["name"]
        for rule in settings["rules"]
        if rule["kind"] == "variable" and rule["read"] == inside.START
    ]
    return {
        inside.PROFILE: settings["profile"],
        inside.DIGEST: settings["digest"],
        **({inside.ROLE: settings["role"]} if settings["role"] else {}),
        **({inside.AT_START: at_start} if at_start else {}),
    }


def profile_of(policy: Values) -> str | None:
    """The profile that a lock was recorded under."""
    name = policy.get(inside.PROFILE)
    return name if isinstance(name, str) else None


def role_of(policy: Values) -> str | None:
    """The role of the processes that a lock was recorded from."""
    role = policy.get(inside.ROLE)
    return role if isinstance(role, str) else None


def _rules(policy: Values, allow: Sequence[str] = ()) -> list[dict[str, Any]]:
    """A rule for each locked value. Raises `LockError` for what cannot be held."""
    try:
        return inside.rules_of_lock(policy, allow)
    except PinnerError as error:
        raise LockError(str(error)) from error


def variables_of(policy: Values) -> dict[str, str]:
    """The variables that a lock's profile held, with the locked values."""
    return {
        rule["name"]: rule["default"]
        for rule in _rules(policy)
        if rule["kind"] == "variable" and rule["default"] is not None
    }


def values_of(policy: Values) -> dict[str, Any]:
    """The values that a lock's profile held, by the name of the rule; None was not set."""
    return {rule["name"]: rule["default"] for rule in _rules(policy)}


def differing(policy: Values, environ: Mapping[str, str], allow: Sequence[str]) -> tuple[str, ...]:
    """One line for each variable that somebody set to another value than the lock holds."""
    return tuple(
        f"{rule['name']}={shown(value)}: the lock was recorded under the profile "
        f"{profile_of(policy)} with {rule['name']} {_set_to(rule)}; unset it, or record again"
        for rule, value in against(policy, environ, allow)
    )


def against(
    policy: Values, environ: Mapping[str, str], allow: Sequence[str] = ()
) -> Iterator[tuple[dict[str, Any], str]]:
    """The variables that somebody set to another value than a lock's profile held: rule, value."""
    for rule in _rules(policy, allow):
        value = environ.get(rule["name"])
        if rule["kind"] == "variable" and value is not None and not accepts(rule, value):
            yield rule, value


def late(policy: Values, environ: Mapping[str, str]) -> tuple[str, ...]:
    """One line for each variable that a process which runs already should have started with."""
    return tuple(
        f"{rule['name']} is read when a process starts: start the program with "
        f"{rule['name']}={shown(rule['default'])}, which the lock was recorded with"
        for rule in _rules(policy)
        if rule["read"] == inside.START
        and rule["default"] is not None
        and rule["name"] not in environ
    )


def _set_to(rule: Mapping[str, Any]) -> str:
    return f"= {expected(rule)}" if rule["accept"] else "not set"
