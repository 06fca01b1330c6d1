"""Containers that stand in for an autotuner's own where plain ones cannot be watched.

`CatchOnce` and `FirstUse` are met once, by a call that is not decided yet, and step aside.
"""

from __future__ import annotations

import functools
import operator
import sys
import weakref
from typing import Any, Callable, Dict, List, Set, Tuple, Type


class CatchOnce(dict):  # type: ignore[type-arg]
    """A copy of a cache that reports the first item set under one key, then steps aside."""

    def __init__(
        self,
        plain: Dict[Any, Any],
        expected: Tuple[Any, ...],
        report: Callable[[Any], None],
    ) -> None:
        super().__init__(plain)
        self.plain = plain
        self.expected = expected
        self.report = report

    def __setitem__(self, key: Any, config: Any) -> None:
        super().__setitem__(key, config)
        if key == self.expected:
            self.report(config)
        else:  # somebody else's write while the tuner is deciding
            self.plain[key] = config


class AskAgain(dict):  # type: ignore[type-arg]
    """A cache that never admits to hold some keys: calls under these are decided each time."""

    def __init__(self, plain: Dict[Any, Any]) -> None:
        super().__init__(plain)
        self.never: Set[Any] = set()

    def __contains__(self, key: object) -> bool:
        return key not in self.never and super().__contains__(key)


class FirstUse(list):  # type: ignore[type-arg]
    """The configs of an autotuner that has one: reports the first `run`, then steps aside."""

    def __init__(
        self, plain: List[Any], tuner: weakref.ref[Any], report: Callable[[Any], None]
    ) -> None:
        super().__init__(plain)
        self.plain = plain
        self.tuner = tuner
        self.report = report

    def __getitem__(self, index: Any) -> Any:
        tuner: Any = self.tuner()
        asker = sys._getframe(1)
        if asker.f_code.co_name == "run" and asker.f_locals.get("self") is tuner is not None:
            tuner.configs = self.plain
            self.report(tuner)
        return super().__getitem__(index)


class _Exact:
    """A stored key element that is equal to one type's value only: 1, not True, not 1.0.

    Its comparison is a C function, so that a hit runs no Python frame of ours.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return repr(self.value)


_EXACT_TYPES: Dict[Tuple[type, Any], Type[_Exact]] = {}


def exact_key(key: Tuple[Any, ...]) -> Tuple[Any, ...]:
    """`key` in a form that Triton's lookup finds, and a key of other types does not.

    Triton looks up plain tuples, in which True == 1 == 1.0.
    """
    return tuple(_exact(element) for element in key)


def plain_key(key: Any) -> Any:
    """The inverse of `exact_key`."""
    if isinstance(key, tuple):
        return tuple(plain_key(element) for element in key)
    return key.value if isinstance(key, _Exact) else key


def _exact(value: Any) -> Any:
    if isinstance(value, tuple):
        return exact_key(value)
    if type(value) not in (bool, int):
        return value
    kind = _EXACT_TYPES.get((type(value), value))
    if kind is None:
        kind = _exact_type(value)
        _EXACT_TYPES[(type(value), value)] = kind
    return kind(value)


def _exact_type(value: Any) -> Type[_Exact]:
    if value in (
        0,
        1,
    ):  # bool is an int: int.__eq__ would take True for 1, but these are singletons
        equals: Callable[[Any], Any] = functools.partial(operator.is_, value)
    else:
        equals = int(value).__eq__
    members = {
        "__slots__": (),
        "__eq__": staticmethod(equals),
        "__hash__": staticmethod(value.__hash__),
    }
    return type("_Exact", (_Exact,), members)
