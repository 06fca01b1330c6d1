"""Reads metric taps from TOML, strictly, in the form the processes take them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pinner import shipped

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_TEXTS = ("module", "function", "stream")
_FIELDS = {*_TEXTS, "value", "index", "key", "reason"}


class TapError(ValueError):
    """A tap file that cannot be used: names file, tap and field."""


def read_taps(names: Sequence[str]) -> tuple[Mapping[str, Any], ...]:
    """The taps in files, or in files that ship with pinner ("megatron"). Raises `TapError`.

    A file holds tables `[[tap]]`: `module`, `function` (dotted within the module), `stream`,
    `value` ("return", the default, or `{ argument = "name" }`), where the value lies inside another
    one `index` and `key`, and `reason`, which is for readers.
    """
    return tuple(tap for name in names for tap in _read(_path(name)))


def _path(name: str) -> Path:
    if os.sep in name or name.endswith(".toml"):
        return Path(name)
    return shipped.taps_dir() / f"{name}.toml"


def _read(path: Path) -> list[Mapping[str, Any]]:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TapError(f"expected a file of taps at {path}, found none{_offer()}") from None
    except OSError as error:
        raise TapError(f"cannot read the taps {path}: {error.strerror}") from None
    except ValueError as error:
        raise TapError(f"{path}: expected TOML, found: {error}") from None
    unknown = sorted(set(data) - {"tap"})
    taps = data.get("tap")
    if unknown or not isinstance(taps, list) or not taps:
        found = ", ".join(unknown) or "none"
        raise TapError(
            f"{path}: expected one or more [[tap]] tables and nothing else, found {found}"
        )
    return [_tap(tap, f"{path}: [[tap]] {number}") for number, tap in enumerate(taps, start=1)]


def _tap(tap: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(tap, dict):
        raise TapError(f"{place}: expected a table, found {tap!r}")
    unknown = sorted(set(tap) - _FIELDS)
    if unknown:
        raise TapError(
            f"{place}: unknown field {unknown[0]!r}; known: {', '.join(sorted(_FIELDS))}"
        )
    for name in _TEXTS:
        if not isinstance(tap.get(name), str) or not tap[name]:
            raise TapError(f"{place}: {name}: expected a string, found {tap.get(name)!r}")
    if not _is_value(tap.get("value", "return")):
        raise TapError(
            f'{place}: value: expected "return" or {{ argument = "NAME" }}, found {tap["value"]!r}'
        )
    if not isinstance(tap.get("index", 0), int) or isinstance(tap.get("index"), bool):
        raise TapError(f"{place}: index: expected an integer, found {tap['index']!r}")
    if not isinstance(tap.get("key", ""), str):
        raise TapError(f"{place}: key: expected a string, found {tap['key']!r}")
    return {name: tap[name] for name in sorted(tap) if name != "reason"}


def _is_value(value: Any) -> bool:
    if value == "return":
        return True
    return (
        isinstance(value, dict)
        and set(value) == {"argument"}
        and isinstance(value["argument"], str)
    )


def _offer() -> str:
    """Which taps ship with pinner; nothing where none do."""
    try:
        names = sorted(path.stem for path in shipped.taps_dir().glob("*.toml"))
    except FileNotFoundError:
        return ""
    return f"; pinner brings: {', '.join(names)}" if names else ""
