"""Takes the fields of a parsed table one by one, strictly; an error names line, entry and field."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pinner.inside.values import Encoded

from .errors import LockError
from .schema import Scalar

_HEADER = re.compile(r"[ \t]*\[\[?[ \t]*([^\[\]#]+?)[ \t]*\]")
_NAMED = {
    bool: "a boolean",
    int: "an integer",
    float: "a float",
    str: "a string",
    list: "an array",
    dict: "a table",
}
_LONGEST_SHOWN = 60

# The tables that [end] counts, in the order of the file.
ENTRY_TABLES = ("triton", "inductor", "cublaslt", "setting")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_FINGERPRINT = re.compile(r"sha256:[0-9a-f]{64}|nh128:[0-9a-f]{32}")


@dataclass(frozen=True)
class Document:
    """The text of one lockfile and the name it goes by in messages."""

    text: str
    source: str

    def line_of(self, header: str, index: int, field: str) -> int | None:
        """The line of ``field`` in the ``index``-th table called ``header``, or the table's line.

        index: from 0. The parser keeps no positions; they are looked up once something is wrong.
        """
        assigns = re.compile(rf"[ \t]*[\"']?{re.escape(field)}[\"']?[ \t]*[=.]")
        seen, inside, line_of_table = -1, not header, None
        for number, line in enumerate(self.text.split("\n"), start=1):
            opened = _HEADER.match(line)
            if opened is None:
                if inside and field and assigns.match(line):
                    return number
                continue
            seen += opened.group(1) == header
            inside = opened.group(1) == header and seen == index
            line_of_table = number if inside else line_of_table
        return line_of_table

    def entry_at(self, line: int) -> str:
        """The entry (``[[triton]]`` …) that ``line`` is in, as messages name it, or nothing."""
        headers = [_HEADER.match(text) for text in self.text.split("\n")[:line]]
        names = [header.group(1) for header in headers if header is not None]
        kind = names[-1].split(".")[0] if names else ""
        if kind not in ENTRY_TABLES:
            return ""
        return f"[[{kind}]] entry {names.count(kind)}"


class Table:
    """One table: a method for each type takes a field, and `close` refuses what nobody took."""

    def __init__(
        self, data: Any, document: Document, header: str = "", index: int = 0, label: str = ""
    ) -> None:
        self._document = document
        self._header = header
        self._index = index
        self._asked: set[str] = set()
        self.label = label or (f"[{header}]" if header else "")
        if type(data) is not dict:
            raise self.error("", f"expected a table, found {described(data)}")
        self._data: dict[str, Any] = data

    def error(self, field: str, text: str) -> LockError:
        line = self._document.line_of(self._header, self._index, field)
        return LockError(
            text, source=self._document.source, line=line, entry=self.label, field=field
        )

    def has(self, field: str) -> bool:
        """Whether an optional field is there; it counts as known."""
        self._asked.add(field)
        return field in self._data

    def string(self, field: str, default: str | None = None) -> str:
        value: str = self._take(field, str, default)
        return value

    def boolean(self, field: str) -> bool:
        value: bool = self._take(field, bool)
        return value

    def integer(self, field: str, least: int | None = 0, default: int | None = None) -> int:
        value: int = self._take(field, int, default)
        if least is not None and value < least:
            raise self.error(field, f"expected an integer of at least {least}, found {value}")
        return value

    def strings(self, field: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        items = self.array(field, default)
        for item in items:
            if type(item) is not str:
                raise self.error(field, f"expected strings in the array, found {described(item)}")
        return tuple(items)

    def digest(self, field: str) -> str:
        """``sha256:`` and 64 hexadecimal digits."""
        return self._checked_digest(field, self.string(field))

    def digests(self, field: str) -> tuple[str, ...]:
        """Digests in an array; none where the field is not there."""
        return tuple(self._checked_digest(field, item) for item in self.strings(field, ()))

    def fingerprints(self, field: str) -> tuple[str, ...]:
        """Digests of values, by any algorithm that evidence was ever made with."""
        for item in self.strings(field, ()):
            if not _FINGERPRINT.fullmatch(item):
                raise self.error(
                    field,
                    "expected `sha256:` and 64 hexadecimal digits, or `nh128:` and 32, found "
                    f"{described(item)}; the file is damaged or edited: restore it or record again",
                )
        return self.strings(field, ())

    def _checked_digest(self, field: str, value: str) -> str:
        if not _DIGEST.fullmatch(value):
            raise self.error(
                field,
                f"expected `sha256:` and 64 hexadecimal digits, found {described(value)}; the file "
                "is damaged or edited: restore it or record again",
            )
        return value

    def integers(self, field: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        items = self.array(field, default)
        for item in items:
            if type(item) is not int:
                raise self.error(field, f"expected integers in the array, found {described(item)}")
        return tuple(items)

    def array(self, field: str, default: tuple[Any, ...] | None = None) -> Iterable[Any]:
        items: Iterable[Any] = self._take(field, list, default)
        return items

    def table(self, field: str) -> dict[str, Any]:
        value: dict[str, Any] = self._take(field, dict)
        return value

    def value(self, field: str) -> Encoded:
        """Any value in the tagged form."""
        if not self.has(field):
            raise self.error(field, f"expected a value, found {self._instead_of(field)}")
        value: Encoded = self._data[field]
        wrong = _not_tagged(value)
        if wrong:
            raise self.error(field, wrong)
        return value

    def member(self, field: str, allowed: Sequence[str]) -> str:
        """One of a few words."""
        word = self.string(field)
        if word not in allowed:
            raise self.error(field, f"expected one of {', '.join(allowed)}; found {word!r}")
        return word

    def values(self, field: str, default: dict[str, Encoded] | None = None) -> dict[str, Encoded]:
        """A table of values in the tagged form."""
        return self.checked_values(field, self._take(field, dict, default))

    def checked_values(self, field: str, table: Any) -> dict[str, Encoded]:
        if type(table) is not dict:
            raise self.error(field, f"expected a table of values, found {described(table)}")
        for name, value in table.items():
            wrong = _not_tagged(value)
            if wrong:
                raise self.error(field, f"{name}: {wrong}")
        return table

    def all_values(self) -> dict[str, Encoded]:
        """The whole of this table: any names, values in the tagged form."""
        for name, value in self._data.items():
            wrong = _not_tagged(value)
            if wrong:
                raise self.error(name, wrong)
        return self._data

    def all_scalars(self) -> dict[str, Scalar]:
        """The whole of this table: any names, values that are strings, numbers or booleans."""
        for name, value in self._data.items():
            if type(value) not in (bool, int, float, str):
                raise self.error(
                    name, f"expected a string, number or boolean, found {described(value)}"
                )
        return self._data

    def close(self) -> None:
        """Refuses the fields that no method above was asked for."""
        for name in self._data:
            if name not in self._asked:
                raise self.error(name, self._unknown(name))

    def _unknown(self, name: str) -> str:
        close = difflib.get_close_matches(name, self._asked, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        return f"expected one of {', '.join(sorted(self._asked))}; found an unknown field{hint}"

    def _instead_of(self, field: str) -> str:
        close = difflib.get_close_matches(field, self._data, n=1)
        return f"no such field but {close[0]!r}" if close else "no such field"

    def _take(self, field: str, kind: type, default: Any = None) -> Any:
        self._asked.add(field)
        if field not in self._data:
            if default is None:
                raise self.error(field, f"expected {_NAMED[kind]}, found {self._instead_of(field)}")
            return default
        value = self._data[field]
        if type(value) is not kind:
            raise self.error(field, f"expected {_NAMED[kind]}, found {described(value)}")
        return value


def described(value: Any) -> str:
    """A parsed value for a message: its type and, where it is short, itself."""
    kind = _NAMED.get(type(value))
    if kind is None:
        return f"a {type(value).__name__}"
    shown = repr(value)
    if isinstance(value, (list, dict)) or len(shown) > _LONGEST_SHOWN:
        return kind
    return f"{kind} ({shown})"


def _not_tagged(value: Any) -> str:
    """Why ``value`` is not in the tagged form; nothing where it is."""
    kind = type(value)
    if kind in (bool, int, float, str):
        return ""
    if kind is list:
        return next(filter(None, map(_not_tagged, value)), "")
    if kind is dict:
        return _not_a_tag(value)
    return f"expected a number, string, boolean, array or tag, found {described(value)}"


def _not_a_tag(table: dict[str, Any]) -> str:
    if len(table) == 1 and (table.get("none") is True or type(table.get("dtype")) is str):
        return ""
    return (
        'expected { none = true } or { dtype = "…" } where a value is a table, '
        f"found the names {', '.join(sorted(table)) or 'nothing'}"
    )
