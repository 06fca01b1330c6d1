"""One rule of a policy profile, and the strict reading of its TOML table."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from pinner.inside import policy_rules
from pinner.inside.policy_switches import SWITCHES
from pinner.lockfile.fields import described

Kind = Literal["variable", "switch"]
Role = Literal["trainer", "rollout"]
OnConflict = Literal["refuse", "keep"]
# When a library looks at what a rule holds: whatever is set later does nothing.
Read = Literal[
    "process start",
    "torch import",
    "device start",
    "first matmul",
    "first attention",
    "process-group init",
    "kernel compile",
    "each call",
]
ROLES: tuple[Role, ...] = get_args(Role)
READ: tuple[Read, ...] = get_args(Read)
ON_CONFLICT: tuple[OnConflict, ...] = get_args(OnConflict)
_FORMS = ("accept", "tokens", "pattern")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class ProfileError(ValueError):
    """A profile that cannot be used: names file, rule, field, what was expected and found."""


@dataclass(frozen=True)
class Rule:
    """What one variable of the environment, or one switch of torch, may be.

    Of `accept` (values), `tokens` (the parts of a list with commas) and `pattern` (an expression
    for the whole text) a rule has one. default: what is set where nobody set anything; None sets
    nothing. roles: the kinds of process it is for, none for every one. given_by: the variable by
    which a user sets a switch. phantom: no library reads this variable. origin: the profile it
    stands in.
    """

    name: str
    kind: Kind
    read: Read
    reason: str
    source: str
    accept: tuple[Any, ...] = ()
    tokens: tuple[str, ...] = ()
    ignore_case: bool = False
    pattern: str = ""
    default: Any = None
    roles: tuple[Role, ...] = ()
    on_conflict: OnConflict = "refuse"
    given_by: str = ""
    phantom: bool = False
    origin: str = ""

    def accepts(self, value: Any) -> bool:
        """Whether the rule has nothing against a value that somebody set."""
        return policy_rules.accepts(self.as_json(), value)

    @property
    def expected(self) -> str:
        """What is accepted, for people."""
        return policy_rules.expected(self.as_json())

    def for_role(self, role: str | None) -> bool:
        """Whether the rule holds for processes of a role; None is a process that has none."""
        return not self.roles or role in self.roles

    def as_json(self) -> dict[str, Any]:
        """The rule as the processes read it (`pinner/inside/policy.py`)."""
        return {
            "name": self.name,
            "kind": self.kind,
            "accept": list(self.accept),
            "tokens": list(self.tokens),
            "ignore_case": self.ignore_case,
            "pattern": self.pattern,
            "default": self.default,
            "keep": self.on_conflict == "keep",
            "given_by": self.given_by,
            "read": self.read,
            "reason": self.reason,
        }


@dataclass(frozen=True)
class Table:
    """One `[[rule]]` table of a file, and the rule that it changes, if it changes one."""

    data: Mapping[str, Any]
    place: str
    origin: str
    on_conflict: OnConflict
    inherited: Rule | None = None

    def error(self, name: str, expected: str, found: Any) -> ProfileError:
        """Names file, rule and field. found: the value, or a text in `Words`."""
        text = str(found) if isinstance(found, Words) else described(found)
        return ProfileError(f"{self.place}: {name}: expected {expected}, found {text}")


class Words(str):
    """What was found, already in words."""


def identity_of(data: Any, place: str) -> tuple[Kind, str]:
    """Whether a table is of a variable or a switch, and its name."""
    if not isinstance(data, Mapping):
        raise ProfileError(f"{place}: expected a table, found {described(data)}")
    table = Table(data, place, "", "refuse")
    named: list[Kind] = [kind for kind in ("variable", "switch") if kind in data]
    if len(named) != 1:
        found = "both" if named else "neither"
        raise table.error("variable", "a rule of one variable or one switch", Words(found))
    kind = named[0]
    name = data[kind]
    if not isinstance(name, str) or not name:
        raise table.error(kind, "a name", name)
    if kind == "variable" and not _VARIABLE.fullmatch(name):
        raise table.error(kind, "the name of an environment variable", name)
    if kind == "switch" and name not in SWITCHES:
        close = difflib.get_close_matches(name, SWITCHES, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(SWITCHES)}"
        raise ProfileError(f"{place}: switch: expected one that pinner knows, found {name}; {hint}")
    return kind, name


def read_rule(table: Table) -> Rule:
    """The rule of a table, with what it leaves out taken from the one it changes, and checked."""
    kind, name = identity_of(table.data, table.place)
    unknown = sorted(set(table.data) - {kind, *_READERS})
    if unknown:
        close = difflib.get_close_matches(unknown[0], _READERS, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise table.error(
            unknown[0], f"one of {', '.join(sorted(_READERS))}", Words(f"an unknown field{hint}")
        )
    base = table.inherited or Rule(
        name, kind, "each call", "", "", on_conflict=table.on_conflict, origin=table.origin
    )
    given = {field: read(table, field) for field, read in _READERS.items() if field in table.data}
    if any(form in given for form in _FORMS):
        base = replace(base, accept=(), tokens=(), pattern="", ignore_case=False)
    rule = replace(base, **given, origin=table.origin)
    _check(table, rule)
    return rule


def _check(table: Table, rule: Rule) -> None:
    needed = ("reason", "source") if rule.phantom else ("read", "reason", "source")
    for name in needed:
        if table.inherited is None and name not in table.data:
            raise table.error(name, "a string", Words("no such field"))
    forms = [form for form in _FORMS if getattr(rule, form)]
    if rule.phantom:
        wrong = [*forms, *(["default"] if rule.default is not None else [])]
        if rule.kind == "switch" or wrong:
            found = Words("a switch" if rule.kind == "switch" else wrong[0])
            raise table.error("phantom", "a variable, with nothing accepted", found)
        return
    if len(forms) != 1:
        found = Words(" and ".join(forms) or "none of them")
        raise table.error("accept", f"one of {', '.join(_FORMS)}", found)
    if rule.kind == "switch":
        _check_switch(table, rule)
    else:
        _check_variable(table, rule)
    if rule.default is not None and not rule.accepts(rule.default):
        inherited = "" if "default" in table.data else " (inherited)"
        found = Words(policy_rules.shown(rule.default) + inherited)
        raise table.error("default", rule.expected, found)


def _check_switch(table: Table, rule: Rule) -> None:
    if not rule.accept:
        raise table.error("accept", "the values that a switch may have", Words("another form"))
    every = {"accept": SWITCHES[rule.name].values}
    for value in (*rule.accept, *(() if rule.default is None else (rule.default,))):
        if not policy_rules.accepts(every, value):
            where = "accept" if value in rule.accept else "default"
            raise table.error(where, policy_rules.expected(every), value)


def _check_variable(table: Table, rule: Rule) -> None:
    if rule.given_by:
        raise table.error("given_by", "it in the rule of a switch", Words("it in a variable's"))
    for value in (*rule.accept, *(() if rule.default is None else (rule.default,))):
        if not isinstance(value, str) or "\0" in value:
            raise table.error("accept", "strings, as the values of variables are", value)


def _text(table: Table, name: str) -> str:
    value = table.data[name]
    if not isinstance(value, str) or not value.strip():
        raise table.error(name, "a string", value)
    return value


def _name(table: Table, name: str) -> str:
    value = table.data[name]
    if not isinstance(value, str) or not _VARIABLE.fullmatch(value):
        raise table.error(name, "the name of an environment variable", value)
    return value


def _boolean(table: Table, name: str) -> bool:
    value = table.data[name]
    if not isinstance(value, bool):
        raise table.error(name, "a boolean", value)
    return value


def _array(table: Table, name: str) -> tuple[Any, ...]:
    value = table.data[name]
    if not isinstance(value, list) or not value:
        raise table.error(name, "an array with something in it", value)
    return tuple(value)


def _tokens(table: Table, name: str) -> tuple[str, ...]:
    for value in (found := _array(table, name)):
        if not isinstance(value, str) or policy_rules.tokens_of(value) != [value]:
            raise table.error(name, "strings without commas", value)
    return found


def _pattern(table: Table, name: str) -> str:
    text = _text(table, name)
    try:
        re.compile(text)
    except re.error as error:
        raise table.error(name, "a regular expression", Words(f"{text!r}: {error}")) from None
    return text


def _value(table: Table, name: str) -> Any:
    value = table.data[name]
    pair = isinstance(value, list) and all(isinstance(each, bool) for each in value)
    if not pair and not isinstance(value, (bool, str)):
        raise table.error(name, "a string, a boolean, or an array of booleans", value)
    return value


def _member(allowed: tuple[str, ...]) -> Callable[[Table, str], Any]:
    def read(table: Table, name: str) -> Any:
        return member(table, name, allowed)

    return read


def member(table: Table, name: str, allowed: tuple[str, ...]) -> Any:
    """A field that is one of a few words."""
    value = table.data[name]
    if value not in allowed or not isinstance(value, str):
        raise table.error(name, f"one of {', '.join(allowed)}", value)
    return value


def _roles(table: Table, name: str) -> tuple[Role, ...]:
    found = _array(table, name)
    for value in found:
        if value not in ROLES:
            raise table.error(name, f"some of {', '.join(ROLES)}", value)
    return tuple(role for role in ROLES if role in found)


_READERS: dict[str, Callable[[Table, str], Any]] = {
    "accept": _array,
    "tokens": _tokens,
    "ignore_case": _boolean,
    "pattern": _pattern,
    "default": _value,
    "read": _member(READ),
    "reason": _text,
    "source": _text,
    "roles": _roles,
    "on_conflict": _member(ON_CONFLICT),
    "given_by": _name,
    "phantom": _boolean,
}
