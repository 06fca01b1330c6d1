"""What a library chose for one of its calls, as a trace has it, and how two choices differ. Pure.

A call of cuBLASLt is a kernel with a `config`. It has the digests of the operation that made it
where that made no other call, and none elsewhere: then only the choices can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pinner.compare.trace import Event
from pinner.inside.choosers.cublaslt import fields

_CUBLASLT = "cublaslt:"
_DECIDING = ("splitk", "reduction", "id", "stages")
_HOW = {
    "heuristic": "by its heuristic",
    "forced": "by the lock",
    "fallback": "by its heuristic, not in the lock",
    "bypass": "past the lock",
    "unasked": "by the caller, who asked nobody",
    "implicit": "inside cuBLASLt",
}


class Choice(NamedTuple):
    """One call for which two runs took another algorithm."""

    first: Event
    second: Event


def choice_of(first: Event, second: Event) -> Choice | None:
    """The pair, where both are one call of a library and it took another algorithm."""
    if not is_call(first) or first.label != second.label:
        return None
    return Choice(first, second) if _config(first) != _config(second) else None


def is_call(event: Event) -> bool:
    """Whether an event is a call of cuBLASLt."""
    return event.kind == "kernel" and event.name.startswith(_CUBLASLT)


def both(choice: Choice) -> str:
    """Both algorithms in words: what decides the order of the sum, and whatever differs."""
    first, second = _config(choice.first), _config(choice.second)
    named = [n for n in fields.ORDER if n in _DECIDING or first.get(n) != second.get(n)]
    text = f"{_algorithm(choice.first, named)} in A and {_algorithm(choice.second, named)} in B"
    unnamed = {**first, "blob": ""} == {**second, "blob": ""}
    return text + (f" ({fields.changes(first, second)[0]})" if unnamed else "")


def same(event: Event) -> str:
    """The algorithm of a call, and who chose it."""
    return _algorithm(event, fields.ORDER)


def operation(event: Event) -> str:
    """The operation that made a call; "" where none did."""
    return str(event.extra.get("op") or "")


def _algorithm(event: Event, named: Sequence[str]) -> str:
    config = {name: value for name, value in _config(event).items() if name in named}
    text = fields.readable(config) if config else "one that is not known"
    how = _HOW.get(str(event.extra.get("how", "")))
    return text + (f" ({how})" if how else "")


def _config(event: Event) -> Mapping[str, Any]:
    config = event.extra.get("config")
    return config if isinstance(config, dict) else {}
