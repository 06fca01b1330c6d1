"""Writes values as TOML, each field on one line: inline tables, quoted names, escapes.

tomli-w would give every key and config a section of its own. A lock is read in reviews, where one
field is one line, and one change is one line of a diff.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pinner.inside.values import in_order, type_name

from .errors import LockError

_BARE_NAME = re.compile(r"[A-Za-z0-9_-]+")
_SHORT_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def assignment(name: str, value: Any) -> str:
    """One line ``name = value``."""
    return f"{bare_or_quoted(name)} = {literal(value)}"


def list_assignment(name: str, items: Sequence[Any]) -> list[str]:
    """``name = [ … ]`` with one item a line where there is more than one."""
    if len(items) <= 1:
        return [assignment(name, list(items))]
    lines = [f"    {literal(item)}," for item in items]
    return [f"{bare_or_quoted(name)} = [", *lines, "]"]


def assignments(values: Mapping[str, Any]) -> list[str]:
    """A line for each of ``values``, by name."""
    return [assignment(name, value) for name, value in sorted(values.items())]


def literal(value: Any) -> str:
    """A value in the tagged form as TOML on one line. Raises `LockError` for any other type."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(literal(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return _inline_table(value)
    raise LockError(
        f"expected a value in the tagged form, found a {type_name(value)}: encode it first"
    )


def bare_or_quoted(name: str) -> str:
    return name if _BARE_NAME.fullmatch(name) else quoted(name)


def quoted(text: str) -> str:
    """A basic string; what does not print (controls, direction marks) is escaped, to be seen."""
    return '"' + "".join(_escaped(character) for character in text) + '"'


def _inline_table(table: Mapping[str, Any]) -> str:
    if not table:
        return "{}"
    return "{ " + ", ".join(assignment(name, table[name]) for name in in_order(table)) + " }"


def _float(value: float) -> str:
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return repr(value)


def _escaped(character: str) -> str:
    short = _SHORT_ESCAPES.get(character)
    if short is not None:
        return short
    if character.isprintable():
        return character
    code = ord(character)
    if 0xD800 <= code <= 0xDFFF:
        raise LockError(f"expected text that UTF-8 can hold, found a lone surrogate \\u{code:04x}")
    return f"\\u{code:04X}" if code <= 0xFFFF else f"\\U{code:08X}"
