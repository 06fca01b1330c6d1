"""Says where two values differ that were digested row by row, or with their scales. Pure.

`pinner/inside/evidence/detail.py` writes what is read here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pinner.inside.evidence.detail import ROW_DIGITS

What = Mapping[str, Any]


def kept(what: What) -> dict[str, Any]:
    """The part of what is known of a value that says more than its digest."""
    found = {name: what[name] for name in ("rows", "parts", "number") if name in what}
    return {**found, "dtype": what.get("dtype")} if "number" in found else found


def where(first: What, second: What) -> str:
    """Where two different values differ, as far as is known of both; else empty."""
    found = [_parts(first.get("parts"), second.get("parts"))]
    found.append(_rows(first.get("rows"), second.get("rows")))
    return "; ".join(text for text in found if text)


def _parts(first: Any, second: Any) -> str:
    if not isinstance(first, list) or not isinstance(second, list):
        return ""
    if len(first) != len(second):
        return f"{len(first) - 1} and {len(second) - 1} scales"
    names = [_part(number, len(first)) for number in range(len(first))]
    differ = [name for name, a, b in zip(names, first, second, strict=True) if a != b]
    same = [name for name in names if name not in differ]
    text = f"{_listed(differ)} differ" if differ else ""
    return text + (f", {_listed(same)} are equal" if differ and same else "")


def _listed(names: list[str]) -> str:
    *others, last = [f"the {name}" for name in names]
    return f"{', '.join(others)} and {last}" if others else last


def _part(number: int, count: int) -> str:
    if number == 0:
        return "packed values"
    return "scales" if count == 2 else f"scales {number - 1}"


def _rows(first: Any, second: Any) -> str:
    here, there = _digests(first), _digests(second)
    if here is None or there is None:
        return ""
    counts = first["count"], second["count"]
    if counts[0] != counts[1] or first["each"] != second["each"]:
        return f"{counts[0]} and {counts[1]} rows"
    differ = [at for at, (a, b) in enumerate(zip(here, there, strict=True)) if a != b]
    if not differ:
        return ""
    count, each = counts[0], first["each"]
    row = _row(differ[0], each, count)
    if each > 1:
        return f"first differing rows {row} of {count:,}; {len(differ)} of {len(here)} groups"
    return f"first differing row {row} of {count:,}; {len(differ)} {_differ(len(differ))}" + _which(
        differ
    )


def _row(at: int, each: int, count: int) -> str:
    last = min((at + 1) * each, count) - 1
    return str(at) if each == 1 else f"{at * each} to {last}"


def _differ(count: int) -> str:
    return "differs" if count == 1 else "differ"


def _which(rows: list[int]) -> str:
    """A few rows by their numbers: of two that changed places, both."""
    return f" ({', '.join(map(str, rows))})" if 1 < len(rows) <= 4 else ""


def _digests(rows: Any) -> list[str] | None:
    try:
        text, count, each = rows["digests"], rows["count"], rows["each"]
        found = [text[at : at + ROW_DIGITS] for at in range(0, len(text), ROW_DIGITS)]
    except (TypeError, KeyError):
        return None
    return found if each > 0 and len(found) == -(-count // each) else None
