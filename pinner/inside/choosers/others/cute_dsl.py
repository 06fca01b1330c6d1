"""CuTeDSL's `cutlass.testing.tune` and `autotune_jit`: a kernel's parameters, picked by timing.

`tune` returns the parameters it found fastest and keeps nothing: enforcing, it returns the locked
ones and times nothing. `autotune_jit` keeps the compiled winner inside its decorator, out of reach:
its pick is written down and named. (nvidia-cutlass-dsl 4.7.0, cutlass/testing.py and
cutlass/cute/testing.py; `tune` stood in the latter before)
"""

from __future__ import annotations

import functools
import hashlib
from typing import TYPE_CHECKING, Any, Dict

from ... import values
from . import settings

if TYPE_CHECKING:
    from types import ModuleType
    from typing import List

CHOOSER = "cute_dsl"
_TIMED = "parameters that were picked by timing"
_KEPT = (
    "autotune_jit picks by timing and keeps the compiled kernel to itself: "
    "use cutlass.testing.tune, or compile with fixed parameters"
)


def install(testing: ModuleType) -> None:
    """Hook the tuners that this file defines."""
    tune = getattr(testing, "tune", None)
    if tune is not None and tune.__module__ == testing.__name__:
        _wrap_tune(testing)
    decorator = getattr(testing, "autotune_jit", None)
    if decorator is not None and decorator.__module__ == testing.__name__:
        _wrap_decorator(decorator)


def _wrap_tune(testing: Any) -> None:
    original = testing.tune

    @functools.wraps(original)
    def tune(
        func: Any, params_dict: Any = None, kernel_arguments: Any = None, *rest: Any, **kwargs: Any
    ) -> Any:
        name = name_of(func, params_dict, kernel_arguments)
        locked = settings.forced(CHOOSER).get(name)
        found = None if locked is None else _among(params_dict or {}, locked)
        if locked is not None and found is None:
            text = "the locked parameters %s are not among those to try" % values.readable(locked)
            settings.problem("invalid", CHOOSER, name, text)
        if found is None and settings.on_miss() != "tune":
            settings.refuse_miss(CHOOSER, name, "the first parameters of the list are taken")
            found = {each: options[0] for each, options in (params_dict or {}).items()}
        if found is None:
            given = () if kernel_arguments is None else (kernel_arguments,)
            found = original(func, params_dict, *given, *rest, **kwargs)
        settings.report_forced(CHOOSER, name, _named(found), _TIMED)
        return found

    testing.tune = tune


def _named(config: Any) -> List[Any]:
    """Parameters as pairs of name and value, in order of their names."""
    return [[name, _encodable(config[name])] for name in sorted(config)]


def _among(params: Any, locked: Any) -> Any:
    """The options that the locked pairs stand for, or None."""
    found = {}
    for name, options in params.items():
        wanted = [value for each, value in locked if each == name]
        fitting = [
            each for each in options if wanted and settings.same(_encodable(each), wanted[0])
        ]
        if not fitting:
            return None
        found[name] = fitting[0]
    return found


def name_of(func: Any, params: Any, arguments: Any) -> str:
    """The function, and a digest of what it chooses among and of the kind of its arguments."""
    given = [
        sorted(
            (str(name), [_encodable(each) for each in options])
            for name, options in (params or {}).items()
        ),
        [_kind(each) for each in getattr(arguments, "args", ())],
        sorted((name, _kind(each)) for name, each in getattr(arguments, "kwargs", {}).items()),
    ]
    digest = hashlib.sha256(repr(given).encode("utf-8")).hexdigest()[:16]
    where = getattr(func, "__module__", ""), getattr(func, "__qualname__", type(func).__name__)
    return "%s:%s %s" % (*where, digest)


def _kind(argument: Any) -> Any:
    """What of an argument a kernel is made for: a tensor's shape and type, a number itself."""
    shape, dtype = getattr(argument, "shape", None), getattr(argument, "dtype", None)
    if dtype is None:
        dtype = getattr(argument, "element_type", None)
    if shape is not None:
        return (str(tuple(shape)), str(dtype))
    return _encodable(argument)


def _encodable(value: Any) -> Any:
    """A value that can be written down; of any other its type alone."""
    try:
        return values.encode(value)
    except values.Unpinnable:
        return getattr(value, "__qualname__", values.type_name(value))


def _wrap_decorator(decorator: Any) -> None:
    original = decorator.__dict__["_create_tuning_wrapper"].__func__

    @functools.wraps(original)
    def _create_tuning_wrapper(cls: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        wrapper = original(cls, func, *args, **kwargs)
        picks = getattr(func, "_best_config", None)
        if type(picks) is dict:
            func._best_config = _Picks(picks, func)
        return wrapper

    decorator._create_tuning_wrapper = classmethod(_create_tuning_wrapper)


class _Picks(Dict[Any, Any]):
    """The winners of one decorated function; only storing has a method of ours."""

    def __init__(self, content: Any, func: Any) -> None:
        super().__init__(content)
        self._func = func

    def __setitem__(self, key: Any, config: Any) -> None:
        super().__setitem__(key, config)
        kinds = hashlib.sha256(repr([_kind(each) for each in key]).encode("utf-8")).hexdigest()[:16]
        where = getattr(self._func, "__module__", ""), getattr(self._func, "__qualname__", "")
        name = "autotune_jit %s:%s %s" % (*where, kinds)
        settings.report(CHOOSER, name, _named(config), settings.NOT_HELD, _KEPT)
