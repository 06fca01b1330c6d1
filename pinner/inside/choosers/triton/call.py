"""One call of an autotuned kernel, seen as a key: by argument name, whatever the call style."""

from __future__ import annotations

import inspect
import math
from typing import Any, Dict, NamedTuple, Optional, Tuple

from ... import values
from . import versions


class Call(NamedTuple):
    """A call that needs a decision.

    key: argument name to encoded value, defaults bound, and ``name:dtype`` of each tensor.
    text: its canonical text, None when the key cannot be stored.
    refusal: why it cannot be stored.
    library_key: what Triton looks up. It names no argument, so different keys can share it.
    ambiguous: Triton's key cannot tell this call from another one that passes other arguments.
    """

    key: Dict[str, Any]
    text: Optional[str]
    refusal: str
    library_key: Tuple[Any, ...]
    ambiguous: bool


def read_call(tuner: Any, kwargs: Dict[str, Any], defaults: Dict[str, Any]) -> Call:
    """The key of the call that `tuner` is in the middle of.

    tuner: a `triton.runtime.autotuner.Autotuner` inside `run`, positional arguments in `.nargs`.
    kwargs: the keyword arguments of the call.
    defaults: argument name to default, from the kernel's signature.
    """
    library_key = versions.library_key(tuner, tuner.nargs, kwargs)
    named = {
        name: value for name, value in {**tuner.nargs, **kwargs}.items() if name in tuner.arg_names
    }
    omitted = [name for name in tuner.keys if name not in named and name in defaults]
    key: Dict[str, Any] = {}
    refusal = ""
    for name in tuner.keys:
        if name not in named and name not in defaults:
            continue  # computed further in, by a heuristic or the config: never passed
        try:
            key[name] = values.encode(named[name] if name in named else defaults[name])
        except values.Unpinnable as error:
            refusal = "key argument %r: %s" % (name, error)
    for name, value in named.items():
        if hasattr(value, "dtype"):
            key[name + ":dtype"] = _dtype_name(value.dtype)
    ambiguous = bool(omitted) or any(_misleads(value) for value in library_key)
    text = None if refusal else values.canonical(key)
    return Call(key, text, refusal, library_key, ambiguous)


def signature_defaults(function: Any) -> Dict[str, Any]:
    """Argument name to default value of a kernel's Python function."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}


def _dtype_name(dtype: Any) -> str:
    text = str(dtype)
    return text[len("torch.") :] if text.startswith("torch.") else text


def _misleads(value: Any) -> bool:
    """Whether a value equals one of another type (1.0 an int) or not even itself (nan)."""
    if isinstance(value, tuple):
        return any(_misleads(element) for element in value)
    return isinstance(value, float) and (math.isnan(value) or value.is_integer())
