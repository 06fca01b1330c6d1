"""Policy profiles: reads them, what they extend included, and judges an environment by one. Pure
but for the reading of files.

A profile never flips what a user set. Everything is judged first; then either all refusals are
told together and nothing is set, or what nobody set gets its default.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pinner import shipped
from pinner.inside.policy_rules import shown
from pinner.inside.values import canonical

from .rules import ON_CONFLICT, ROLES, ProfileError, Role, Rule, Table, Words, identity_of, member
from .rules import read_rule as _read_rule

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["ROLES", "Judged", "Profile", "ProfileError", "Role", "Row", "Rule", "judge", "load"]

VERSION = 1
_FIELDS = {"version", "about", "extends", "on_conflict", "rule"}

State = Literal[
    "set", "accepted", "unset", "kept", "refused", "phantom", "in process", "other role"
]


@dataclass(frozen=True)
class Profile:
    """Rules, each of one variable or switch for some roles.

    extends: the profiles it builds on, the next one first. source: the file.
    """

    name: str
    about: str = ""
    rules: tuple[Rule, ...] = ()
    extends: tuple[str, ...] = ()
    source: str = ""

    def of(self, role: str | None) -> tuple[Rule, ...]:
        """The rules that hold for processes of a role: its own go before those for every role."""
        own = {(rule.kind, rule.name) for rule in self.rules if rule.roles and rule.for_role(role)}
        return tuple(
            rule
            for rule in self.rules
            if rule.for_role(role) and (rule.roles or (rule.kind, rule.name) not in own)
        )

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles for which the profile has rules of their own."""
        return tuple(role for role in ROLES if any(role in rule.roles for rule in self.rules))

    @property
    def digest(self) -> str:
        """Of all that the rules ask for; reasons and sources are for readers."""
        asked = [
            {
                k: v
                for k, v in {**rule.as_json(), "roles": list(rule.roles)}.items()
                if k != "reason"
            }
            for rule in self.rules
        ]
        return "sha256:" + hashlib.sha256(canonical(asked).encode()).hexdigest()


@dataclass(frozen=True)
class Row:
    """What became of one rule.

    state: "set" (nobody set it: the default is), "accepted" (a user's), "unset" (nobody's, and no
    default), "kept" (a user's that the profile does not accept, kept), "refused", "phantom" (set,
    and nothing reads it), "in process" (a switch: each process sets it), "other role".
    value: the user's, or the default. loud: a person must see it.
    """

    rule: Rule
    state: State
    value: Any
    text: str = ""

    @property
    def loud(self) -> bool:
        return self.state in ("kept", "refused", "phantom")

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.rule.name,
            "kind": self.rule.kind,
            "state": self.state,
            "value": self.value,
            "loud": self.loud,
            "text": self.text,
            "read": self.rule.read,
            "roles": list(self.rule.roles),
            "reason": self.rule.reason,
            "source": self.rule.source,
        }


@dataclass(frozen=True)
class Judged:
    """An environment judged by a profile.

    sets: the variables to set, none where something is refused. rows: one a rule. refusals: one
    line for each value that is not accepted, all of them.
    """

    sets: Mapping[str, str] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()
    refusals: tuple[str, ...] = ()

    @property
    def loud(self) -> tuple[str, ...]:
        """One line for each row that a person must see though nothing is refused."""
        return tuple(row.text for row in self.rows if row.loud and row.state != "refused")


def judge(profile: Profile, environ: Mapping[str, str], role: str | None = None) -> Judged:
    """What a profile sets in an environment, keeps and refuses. Changes nothing.

    role: of the processes ("trainer", "rollout"), or None, to which the rules of no role apply.
    """
    held = profile.of(role)
    rows = tuple(
        _row(profile, rule, environ) if rule in held else _other_role(rule)
        for rule in profile.rules
    )
    refusals = tuple(row.text for row in rows if row.state == "refused")
    sets = {row.rule.name: str(row.value) for row in rows if row.state == "set"}
    return Judged({} if refusals else sets, rows, refusals)


def _other_role(rule: Rule) -> Row:
    of = " and ".join(rule.roles) or "roles that have none of their own"
    return Row(rule, "other role", None, f"{rule.name}: a rule for {of}")


def _row(profile: Profile, rule: Rule, environ: Mapping[str, str]) -> Row:
    if rule.kind == "switch":
        return _switch_row(rule, environ)
    value = environ.get(rule.name)
    if value is None:
        return Row(rule, "unset" if rule.default is None else "set", rule.default)
    where = f"{rule.name}={shown(value)}"
    if rule.phantom:
        return Row(rule, "phantom", value, f"{where} does nothing: {rule.reason}")
    if rule.accepts(value):
        return Row(rule, "accepted", value)
    text = f"{where}: the profile {profile.name} accepts {rule.expected}: {rule.reason}"
    if rule.on_conflict == "keep":
        return Row(rule, "kept", value, f"kept as you set it, {text}")
    way = "unset it, set what is accepted, or accept it in a profile of your own"
    return Row(rule, "refused", value, f"{text}; {way}")


def _switch_row(rule: Rule, environ: Mapping[str, str]) -> Row:
    if rule.given_by and rule.given_by in environ:
        text = f"{rule.name} is left to {rule.given_by}={shown(environ[rule.given_by])}"
        return Row(rule, "in process", None, text)
    return Row(rule, "in process", rule.default)


def load(name: str | os.PathLike[str]) -> Profile:
    """A profile that ships with pinner, by name, or one in a file. Raises `ProfileError`.

    A file is TOML: `version = 1`, `about`, `extends` (a name, or a file relative to this one),
    `on_conflict` for its rules ("refuse", the default, or "keep"), and tables `[[rule]]`. A rule of
    a variable or switch that the extended profile has changes that rule: what it leaves out stays.
    """
    return _load(_path(os.fspath(name), None), ())


def shipped_names() -> tuple[str, ...]:
    """The profiles that ship with pinner."""
    try:
        return tuple(sorted(path.stem for path in shipped.profiles_dir().glob("*.toml")))
    except FileNotFoundError:
        return ()


def _path(name: str, beside: Path | None) -> Path:
    if os.sep in name or name.endswith(".toml"):
        return Path(name) if beside is None else beside.parent / name
    return shipped.profiles_dir() / f"{name}.toml"


def _load(path: Path, seen: Sequence[Path]) -> Profile:
    if path.resolve() in seen:
        chain = " → ".join(each.name for each in [*seen, path])
        raise ProfileError(f"{path}: extends: expected a chain that ends, found {chain}")
    data = _parsed(path)
    top = Table(data, str(path), path.stem, "refuse")
    unknown = sorted(set(data) - _FIELDS)
    if unknown:
        raise top.error(
            unknown[0], f"one of {', '.join(sorted(_FIELDS))}", Words("an unknown field")
        )
    if data.get("version") != VERSION or isinstance(data.get("version"), bool):
        raise top.error("version", str(VERSION), data.get("version", Words("no such field")))
    for name in ("about", "extends"):
        if not isinstance(data.get(name, ""), str):
            raise top.error(name, "a string", data[name])
    if "on_conflict" in data:
        top = Table(data, str(path), path.stem, member(top, "on_conflict", ON_CONFLICT))
    tables = data.get("rule", [])
    if not isinstance(tables, list):
        raise top.error("rule", "tables [[rule]]", tables)
    base = None
    if data.get("extends"):
        base = _load(_path(data["extends"], path), [*seen, path.resolve()])
    rules = _merged(base, tables, top)
    return Profile(
        name=path.stem,
        about=data.get("about", ""),
        rules=tuple(rules),
        extends=() if base is None else (base.name, *base.extends),
        source=str(path),
    )


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        offer = ", ".join(shipped_names())
        raise ProfileError(
            f"expected a profile at {path}, found none; pinner brings: {offer}; a file of your own "
            "is named with .toml"
        ) from None
    except OSError as error:
        raise ProfileError(f"cannot read the profile {path}: {error.strerror}") from None
    except ValueError as error:
        raise ProfileError(f"{path}: expected TOML, found: {error}") from None


def _merged(base: Profile | None, tables: Iterable[Any], top: Table) -> list[Rule]:
    """The rules of the extended profile, changed and added to by the tables of a file."""
    rules = list(base.rules if base else ())
    own: list[Rule] = []
    unchanged = list(rules)
    for number, data in enumerate(tables, start=1):
        kind, name = identity_of(data, f"{top.place}: [[rule]] {number}")
        place = f"{top.place}: [[rule]] {number} {name}"
        inherited = _inherited(
            data, [r for r in unchanged if (r.kind, r.name) == (kind, name)], place
        )
        rule = _read_rule(Table(data, place, top.origin, top.on_conflict, inherited))
        others = [r for r in [*rules, *own] if r is not inherited]
        _check_alone(rule, others, place)
        if inherited is None:
            own.append(rule)
        else:
            rules[rules.index(inherited)] = rule
    return rules + own


def _inherited(data: Mapping[str, Any], same: Sequence[Rule], place: str) -> Rule | None:
    """The rule of the extended profile that a table changes: the one of its roles."""
    if "roles" not in data:
        if len(same) > 1:
            listed = "; ".join(", ".join(rule.roles) or "every role" for rule in same)
            raise ProfileError(
                f"{place}: roles: expected the roles of the rule to change, found no such field; "
                f"the extended profile has rules for {listed}"
            )
        return same[0] if same else None
    wanted = data["roles"] if isinstance(data["roles"], list) else []
    return next((rule for rule in same if sorted(rule.roles) == sorted(map(str, wanted))), None)


def _check_alone(rule: Rule, others: Iterable[Rule], place: str) -> None:
    """No role may have two rules of one variable or switch."""
    for other in others:
        if (other.kind, other.name) != (rule.kind, rule.name):
            continue
        if rule.roles == other.roles or set(rule.roles) & set(other.roles):
            of = ", ".join(other.roles) or "every role"
            raise ProfileError(
                f"{place}: roles: expected one rule for a role, found another for {of} "
                f"in {other.origin}"
            )
