"""flash-attn's `deterministic`: whether its backward pass may add the parts of dQ in any order.

It is an argument of each call, with no switch above it, so it is recorded where the backward
kernel is launched: in flash-attn 2 and 3 inside an operator that no compiler looks into, in
flash-attn 4 in the Python function that compiles the kernel. Once one call was seen without it the
run has a hole, and nothing is watched any more; until then each backward pass has one frame of
ours. The forward pass is always deterministic. (flash-attn 2.8.4: flash_attn_interface.py in
flash_attn and in hopper, flash_attn/cute/interface.py)
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from . import settings

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Callable, Mapping, Sequence

CHOOSER = "flash_attention"
NAME = "deterministic"
_HELD = "each backward pass so far was called with deterministic=True"
_ANY_ORDER = (
    "the backward pass of flash-attn %s adds in any order: call it with deterministic=True "
    "(version 2.4.1 and later), or set NVTE_ALLOW_NONDETERMINISTIC_ALGO=0 where "
    "TransformerEngine calls it"
)
# The name under which each interface holds its compiled functions, by version.
_BACKENDS = ("flash_attn_gpu", "flash_attn_cuda", "flash_attn_3_gpu", "flash_attn_3_cuda")
_COMPILED = ("bwd", "varlen_bwd")
_IN_PYTHON = ("_flash_attn_bwd",)


def install(version: str, interface: ModuleType) -> None:
    """Watch the backward passes of one interface. version: "2", "3" or "4"."""
    places = [
        (backend, name)
        for backend in (getattr(interface, each, None) for each in _BACKENDS)
        for name in _COMPILED
        if backend is not None and hasattr(backend, name)
    ]
    places += [(interface, name) for name in _IN_PYTHON if hasattr(interface, name)]
    if not places:
        text = "flash-attn %s has a layout that is not known here: its backward pass is not seen"
        settings.problem("bypass", CHOOSER, "flash-attn " + version, text % version)
    takes_it = _takes_it(interface)
    for owner, name in places:
        _watch(owner, name, version, takes_it)


def _takes_it(interface: Any) -> bool:
    """Whether this version's functions have the parameter at all."""
    function = getattr(interface, "flash_attn_func", None)
    try:
        return function is not None and NAME in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _watch(owner: Any, name: str, version: str, takes_it: bool) -> None:
    original = getattr(owner, name)
    read = reader_of(original)

    def backward(*args: Any, **kwargs: Any) -> Any:
        held = takes_it and read(args, kwargs)
        _report(version, held)
        if not held and getattr(owner, name) is backward:
            setattr(owner, name, original)
        return original(*args, **kwargs)

    setattr(owner, name, backward)


def reader_of(function: Callable[..., Any]) -> Callable[[Sequence[Any], Mapping[str, Any]], bool]:
    """Return what reads `deterministic` from the arguments of a call.

    Compiled functions do not tell the names of theirs: there it is the last one that is a bool
    (`causal`, and in the varlen form `zero_tensors`, stand before it).
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return _last_flag
    if NAME not in signature.parameters:
        return _last_flag

    def by_name(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        bound = signature.bind_partial(*args, **kwargs)
        bound.apply_defaults()
        return bool(bound.arguments[NAME])

    return by_name


def _last_flag(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    if NAME in kwargs:
        return bool(kwargs[NAME])
    flags = [each for each in args if isinstance(each, bool)]
    return bool(flags) and flags[-1]


def _report(version: str, held: bool) -> None:
    name = "%s.%s" % (version, NAME)
    if held:
        settings.report(CHOOSER, name, True, settings.RECORDED, _HELD)
    else:
        settings.report(CHOOSER, name, False, settings.NOT_HELD, _ANY_ORDER % version)
