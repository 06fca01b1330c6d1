"""Features that are known to give other bits from run to run: the rules of `configs/features.toml`,
and which of them a command, its processes and an environment ask for. Pure but for reading."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pinner import shipped
from pinner.inside.policy_rules import shown
from pinner.inside.policy_switches import SWITCHES

from .rules import ProfileError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

VERSION = 1
_TEXTS = ("name", "reason", "todo", "source")
_DETECTORS = ("flags", "variables", "held_by")
_OFF = ("0", "false", "no", "off")


@dataclass(frozen=True)
class Feature:
    """One feature, and what shows it.

    flags: words of a command line. variables: expressions for the whole value of variables of the
    environment. held_by: the switch of torch that makes torch itself refuse it; no detector then.
    """

    name: str
    reason: str
    todo: str
    source: str
    flags: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    held_by: str = ""


def load(path: Path | None = None) -> tuple[Feature, ...]:
    """The features of a file, or those that ship with pinner. Raises `ProfileError`."""
    path = path or shipped.configs_dir() / "features.toml"
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProfileError(f"cannot read the features {path}: {error.strerror}") from None
    except ValueError as error:
        raise ProfileError(f"{path}: expected TOML, found: {error}") from None
    tables = data.get("feature")
    if data.get("version") != VERSION or not isinstance(tables, list):
        raise ProfileError(f"{path}: expected version = {VERSION} and tables [[feature]]")
    return tuple(_feature(each, f"{path}: [[feature]] {n}") for n, each in enumerate(tables, 1))


def _feature(data: Any, place: str) -> Feature:
    if not isinstance(data, dict):
        raise ProfileError(f"{place}: expected a table, found {data!r}")
    unknown = sorted(set(data) - {*_TEXTS, *_DETECTORS})
    if unknown:
        known = ", ".join((*_TEXTS, *_DETECTORS))
        raise ProfileError(f"{place}: {unknown[0]}: expected one of {known}")
    for name in _TEXTS:
        if not isinstance(data.get(name), str) or not data[name]:
            raise ProfileError(f"{place}: {name}: expected a text, found {data.get(name)!r}")
    if not any(name in data for name in _DETECTORS):
        raise ProfileError(f"{place}: expected one of {', '.join(_DETECTORS)}, found none of them")
    if data.get("held_by", "") not in ("", *SWITCHES):
        raise ProfileError(f"{place}: held_by: expected a switch, found {data['held_by']!r}")
    return Feature(
        name=data["name"],
        reason=data["reason"],
        todo=data["todo"],
        source=data["source"],
        flags=_flags(data.get("flags", []), place),
        variables=_variables(data.get("variables", {}), place),
        held_by=data.get("held_by", ""),
    )


def _flags(found: Any, place: str) -> tuple[str, ...]:
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ProfileError(f"{place}: flags: expected an array of words, found {found!r}")
    return tuple(found)


def _variables(found: Any, place: str) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        raise ProfileError(f"{place}: variables: expected names and expressions, found {found!r}")
    for name, pattern in found.items():
        try:
            re.compile(pattern)
        except re.error as error:
            raise ProfileError(f"{place}: variables: {name}: {pattern!r}: {error}") from None
    return found


def asked_for(
    features: Iterable[Feature], commands: Iterable[Sequence[str]], environ: Mapping[str, str]
) -> Iterator[tuple[Feature, str]]:
    """The features that something here asks for, and what does: a flag, or a variable."""
    words = [word for command in commands for word in command]
    for feature in features:
        found = dict.fromkeys(word for word in words if _is_on(feature.flags, word))
        for name, pattern in feature.variables.items():
            if name in environ and re.fullmatch(pattern, environ[name]):
                found[f"{name}={shown(environ[name])}"] = None
        if found:
            yield feature, ", ".join(found)


def _is_on(flags: Sequence[str], word: str) -> bool:
    flag, _, value = word.partition("=")
    return flag in flags and value.lower() not in _OFF
