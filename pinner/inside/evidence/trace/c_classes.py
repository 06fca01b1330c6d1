"""Replaces methods of classes that are written in C, so that calls from C come by too.

What is called through a slot of the class (`a @ b` calls the ufunc `matmul`) passes by no attribute
of any module. CPython fills the slots of a class when an attribute of it is set, and refuses that
for classes in C by one bit of their flags: the bit is taken off meanwhile. Measured with CPython
3.8 to 3.13.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, Iterator

# Words of a class, as cpython/object.h has them: the object's head with its size, and the flags
# behind 18 pointers.
_WORD = ctypes.sizeof(ctypes.c_void_p)
_FLAGS = object.__basicsize__ + _WORD + 18 * _WORD
_HEAP = 1 << 9  # before 3.10 only classes made in Python may be changed
_IMMUTABLE = 1 << 8
_VECTORCALL = 1 << 11


def can_replace(kind: type) -> bool:
    """Whether this interpreter lays out its classes as we know it."""
    if sys.implementation.name != "cpython":
        return False
    return _flags(kind).value == kind.__flags__


def replace(kind: type, name: str, method: Any) -> Any:
    """Give a class another method; returns what it had.

    Only where `can_replace`. Instances that are called are called through `__call__` from here on,
    until `restore`.
    """
    before = kind.__dict__[name]
    with _opened(kind):
        setattr(kind, name, method)
    if name == "__call__":  # else the interpreter goes on to the function that each instance holds
        _flags(kind).value &= ~_VECTORCALL
    return before


def restore(kind: type, name: str, before: Any, flags: int) -> None:
    """Undo `replace`. flags: `kind.__flags__` as they were before it."""
    with _opened(kind):
        setattr(kind, name, before)
    _flags(kind).value |= flags & _VECTORCALL


@contextlib.contextmanager
def _opened(kind: type) -> Iterator[None]:
    word, before = _flags(kind), kind.__flags__
    may_be_changed = before & ~_IMMUTABLE if sys.version_info >= (3, 10) else before | _HEAP
    changed = before ^ may_be_changed
    word.value ^= changed
    try:
        yield
    finally:  # setting an attribute may change other flags
        word.value ^= changed


def _flags(kind: type) -> ctypes.c_ulong:
    return ctypes.c_ulong.from_address(id(kind) + _FLAGS)
