"""Notices the first use of a module's function without a frame of ours on any later one.

Until then the module has a class with a property of that name, which stands before the module's
own dictionary. The first look-up calls it, the module gets its class back, and from there on every
look-up and call is what it would be without us. The function itself is never replaced: whoever
keeps it keeps the library's own, and a compiler that knows it by identity still does.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Callable, Dict, Iterable, Tuple

    Seen = Callable[[str, str], bool]


def watch(module: ModuleType, names: Iterable[str], seen: Seen) -> None:
    """Call `seen(name, by)` when one of `names` is looked up in `module`, by code of a module `by`.

    It answers whether that was the use that was waited for; then that name is watched no more.
    Functions of the module itself see its dictionary, not this.
    """
    base = type(module)
    watched = [name for name in names if name in vars(module)]
    if not watched:
        return
    body: Dict[str, Any] = {name: _property(name, seen) for name in watched}
    body.update(__module__=base.__module__, __reduce_ex__=_by_name, _watched=watched)
    kind = type(base.__name__, (base,), body)
    module.__class__ = kind


def _property(name: str, seen: Seen) -> property:
    def get(module: Any) -> Any:
        by = sys._getframe(1).f_globals.get("__name__", "")
        if seen(name, str(by)):
            _stop(module, name)
        return _own(module, name)

    def put(module: Any, value: Any) -> None:
        vars(module)[name] = value

    def take(module: Any) -> None:
        _own(module, name)
        del vars(module)[name]

    return property(get, put, take)


def _stop(module: Any, name: str) -> None:
    for kind in type(module).__mro__:
        watched = vars(kind).get("_watched", ())
        if name in watched:
            watched.remove(name)
            delattr(kind, name)
    while vars(type(module)).get("_watched") == []:
        module.__class__ = type(module).__base__


def _own(module: Any, name: str) -> Any:
    try:
        return vars(module)[name]
    except KeyError:
        raise AttributeError("module %r has no attribute %r" % (module.__name__, name)) from None


def _by_name(module: Any, _protocol: Any) -> Tuple[Any, Tuple[str]]:
    """Pickle a watched module as cloudpickle pickles any module."""
    return importlib.import_module, (module.__name__,)
