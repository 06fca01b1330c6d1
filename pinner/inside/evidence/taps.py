"""Metric taps: fingerprints of what a named function takes or returns, without editing it."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING

from .. import faults, imports, session
from . import fingerprint

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Callable, Dict, Optional, Tuple

    Function = Callable[..., Any]


_torch: Any = None


def _know_torch(module: ModuleType) -> None:
    global _torch
    _torch = module


imports.after("torch", _know_torch)


class Tap:
    """One tap: where the function is, which of its values is meant, and the stream it feeds.

    argument: the name of an argument, or None for the return value
    index, key: a place inside the value, looked up in this order
    """

    __slots__ = ("argument", "function", "index", "key", "module", "stream")

    def __init__(self, fields: Dict[str, Any]) -> None:
        value = fields.get("value", "return")
        self.module: str = fields["module"]
        self.function: str = fields["function"]
        self.stream: str = fields["stream"]
        self.argument: Optional[str] = None if value == "return" else value["argument"]
        self.index: Optional[int] = fields.get("index")
        self.key: Optional[str] = fields.get("key")

    def pick(self, value: Any) -> Any:
        """Return the part of `value` that is meant. Raises EvidenceError where it has none."""
        try:
            if self.index is not None:
                value = value[self.index]
            return value if self.key is None else value[self.key]
        except (LookupError, TypeError) as error:
            raise faults.EvidenceError(
                "%s:%s gave no value at index %r, key %r (%s: %s)"
                % (self.module, self.function, self.index, self.key, type(error).__name__, error)
            ) from None


def install(fields: Dict[str, Any], module: ModuleType) -> None:
    """Put the wrapped function in the place of the plain one; say so where there is none.

    fields: {"module", "function", "stream", "value": "return" | {"argument": name}} and, where the
        value is inside another, "index" and "key"
    module: the module the tap names, just imported: nobody has taken the plain function from it
    """
    tap = Tap(fields)
    owner, name = _place(tap, module)
    plain = None if owner is None else inspect.getattr_static(owner, name, None)
    function = plain.__func__ if isinstance(plain, (staticmethod, classmethod)) else plain
    if not callable(function):
        return fingerprint.refuse(
            tap.stream, "expected a function %s in %s, found none" % (tap.function, tap.module)
        )
    signature = _signature(function)
    if tap.argument is not None and not _takes(signature, tap.argument):
        return fingerprint.refuse(
            tap.stream,
            "expected an argument %r of %s:%s, found %s"
            % (tap.argument, tap.module, tap.function, signature or "no signature"),
        )
    wrapped: Any = wrap(function, tap, signature)
    if isinstance(plain, (staticmethod, classmethod)):
        wrapped = type(plain)(wrapped)
    try:
        setattr(owner, name, wrapped)
    except (AttributeError, TypeError) as error:
        fingerprint.refuse(
            tap.stream, "%s:%s cannot be replaced: %s" % (tap.module, tap.function, error)
        )
    return None


def wrap(function: Function, tap: Tap, signature: Optional[inspect.Signature]) -> Function:
    """Return `function` with its tapped value recorded at each call.

    An argument is recorded before the call, because the function may change it in place. Inside a
    compiled region the plain function runs, untraced: a digest there would change what is
    compiled, and so the bits.
    """

    @functools.wraps(function)
    def tapped(*args: Any, **kwargs: Any) -> Any:
        if _torch is not None and _torch.compiler.is_compiling():
            return function(*args, **kwargs)
        if tap.argument is not None:
            _record(tap, *_argument(tap.argument, signature, args, kwargs))
            return function(*args, **kwargs)
        value = function(*args, **kwargs)
        _record(tap, True, value)
        return value

    return tapped


def _record(tap: Tap, given: bool, value: Any) -> None:
    active = session.current()
    if active is None or not active.evidence or not given:
        return
    try:
        part = tap.pick(value)
    except faults.EvidenceError as error:
        fingerprint.refuse(tap.stream, str(error))
        return
    fingerprint.record(tap.stream, part)


def _argument(
    name: str, signature: Optional[inspect.Signature], args: Tuple[Any, ...], kwargs: Dict[str, Any]
) -> Tuple[bool, Any]:
    """Return (True, value) of the argument; (False, None) for a call that will fail anyway."""
    if name in kwargs:
        return True, kwargs[name]
    try:
        bound = signature.bind(*args, **kwargs) if signature is not None else None
    except TypeError:
        return False, None
    if bound is None:
        return False, None
    bound.apply_defaults()
    return name in bound.arguments, bound.arguments.get(name)


def _place(tap: Tap, module: ModuleType) -> Tuple[Any, str]:
    """Return the module or class that holds the function, or None, and the function's name."""
    *classes, name = tap.function.split(".")
    owner: Any = module
    for each in classes:
        owner = getattr(owner, each, None)
    return owner, name


def _signature(function: Function) -> Optional[inspect.Signature]:
    try:
        return inspect.signature(function)
    except (ValueError, TypeError):
        return None


def _takes(signature: Optional[inspect.Signature], name: str) -> bool:
    if signature is None:
        return False
    any_keyword = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    return name in signature.parameters or any_keyword
