"""Turns key and config values into a tagged form for JSON and TOML, and into canonical text.

The tagged form: int, float, bool and str stand for themselves; ``None`` is ``{"none": true}``; a
tuple or list is an array; a dtype is ``{"dtype": "float16"}``. Everything else is refused by name
(`Unpinnable`): a tensor, a function or an object of a library has no value that would mean the same
in another process.

Two values are the same choice exactly if their canonical texts are equal: ``true``, ``1`` and
``1.0`` have three texts. Comparing the tagged forms with ``==`` would mix them up, so nothing in
this project does.

Nothing is imported to recognise a library's types: their class names and modules are enough.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, Sequence, Tuple, Union

from .faults import PinnerError

# Recursive: arrays and tagged tables hold values again.
Encoded = Union[bool, int, float, str, List["Encoded"], Dict[str, "Encoded"]]

NONE: Dict[str, Encoded] = {"none": True}
DTYPE_SUFFIX = ":dtype"

# Python refuses to print or parse integers above 4,300 digits by default (3.11, and 3.8.14 and
# later).
_LARGEST_INT_BITS = 4096
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
_LIBRARIES_OF_SCALARS = ("numpy",)


class Unpinnable(PinnerError):
    """A value that cannot be part of a pin: it would not mean the same in another process."""


def encode(value: Any) -> Encoded:
    """The tagged form of ``value``. Raises `Unpinnable`, naming the type, for what has none."""
    value = _unwrapped(value)
    if value is None:
        return dict(NONE)
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return _encode_int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return _encode_str(value)
    if isinstance(value, (tuple, list)):
        return [encode(item) for item in value]
    dtype = _dtype_name(value)
    if dtype is not None:
        return {"dtype": dtype}
    raise Unpinnable(
        "expected a number, a string, a bool, None, a dtype or a tuple of these, found a "
        f"{type_name(value)}: key the kernel by the sizes and dtypes of its arguments instead"
    )


def encode_named(values: Mapping[str, Any]) -> Dict[str, Encoded]:
    """Encodes every value of ``values``; an `Unpinnable` says under which name it was found."""
    encoded = {}
    for name, value in values.items():
        try:
            encoded[name] = encode(value)
        except Unpinnable as error:
            raise Unpinnable(f"{name}: {error}") from None
    return encoded


def canonical(encoded: Any) -> str:
    """The one text of a tagged value or of a table of them; equal texts mean the same value.

    ASCII only; names sorted; NaN and infinities written as Python's json writes them.
    """
    return _CANONICAL.encode(encoded)


def share_class(key: Mapping[str, Encoded]) -> str:
    """Text that is equal for all keys which a run without a lock would decide as one.

    Triton's key holds the values of the key arguments without their names, then the dtypes in the
    order of the call: two calls whose arguments of equal dtypes come in another order, or are left
    out elsewhere, are one key to it. ``True``, ``1`` and ``1.0`` are one key to Triton too, but not
    to a recorded run: there the chooser keeps them apart. A call that *omits* key arguments has a
    shorter tuple still; that is for the chooser to see, as only it knows what was passed.
    """
    names = sorted(key)
    values = [canonical(key[name]) for name in names if not is_dtype_name(name)]
    dtypes = sorted(canonical(key[name]) for name in names if is_dtype_name(name))
    return canonical([values, dtypes])


def is_dtype_name(name: str) -> bool:
    """Whether a name in a key stands for an argument's dtype (``"x:dtype"``) and not for its
    value."""
    return name.endswith(DTYPE_SUFFIX)


def readable(encoded: Encoded) -> str:
    """A tagged value as a person would write it in Python: ``None``, ``float16``, ``(1, 2)``,
    ``'text'``."""
    if isinstance(encoded, dict):
        return "None" if encoded == NONE else str(encoded.get("dtype", canonical(encoded)))
    if isinstance(encoded, list):
        inner = ", ".join(readable(item) for item in encoded)
        return f"({inner},)" if len(encoded) == 1 else f"({inner})"
    return repr(encoded)


def readable_named(encoded: Mapping[str, Encoded]) -> str:
    """A key or config on one line: ``N=64 x:dtype='float32'``."""
    return " ".join(f"{name}={readable(encoded[name])}" for name in in_order(encoded))


def in_order(names: Union[Mapping[str, Any], Sequence[str]]) -> List[str]:
    """Names in the order people read them: arguments by name, then launch options, then dtypes."""
    return sorted(names, key=_reading_order)


_LAUNCH_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg", "ir_override")


def is_launch_option(name: str) -> bool:
    """Whether a name in a config is one of Triton's own launch options and not an argument of the
    kernel."""
    return name in _LAUNCH_OPTIONS


def _reading_order(name: str) -> Tuple[int, int, str]:
    if name in _LAUNCH_OPTIONS:
        return 1, _LAUNCH_OPTIONS.index(name), name
    return (2 if is_dtype_name(name) else 0), 0, name


def type_name(value: Any) -> str:
    """The full name of a value's type, as error messages give it."""
    kind = type(value)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def _unwrapped(value: Any) -> Any:
    """What a ``tl.constexpr`` or a numpy scalar holds; any other value itself."""
    while _is_constexpr(value):
        value = value.value
    if not _is_array_scalar(value):
        return value
    plain = value.item()
    if _is_array_scalar(plain):  # np.longdouble has no Python type to become
        raise Unpinnable(
            f"expected a number that Python's own types can hold, found {type_name(value)}"
        )
    return plain


def _is_constexpr(value: Any) -> bool:
    return type(value).__name__ == "constexpr" and _library(type(value)) == "triton"


def _is_array_scalar(value: Any) -> bool:
    return any(
        base.__name__ == "generic" and _library(base) in _LIBRARIES_OF_SCALARS
        for base in type(value).__mro__
    )


def _dtype_name(value: Any) -> Union[str, None]:
    """``float16`` for ``torch.float16``; ``fp16``, Triton's own name, for ``tl.float16``; else
    None."""
    for base in type(value).__mro__:
        if base.__name__ != "dtype":
            continue
        if _library(base) == "torch":
            return str(value).split(".", 1)[-1]
        if _library(base) == "triton":
            return str(value.name)
    return None


def _library(kind: type) -> str:
    return str(kind.__module__).split(".", 1)[0]


def _encode_int(value: int) -> int:
    if value.bit_length() > _LARGEST_INT_BITS:
        raise Unpinnable(
            f"expected an integer of at most {_LARGEST_INT_BITS} bits, found {value.bit_length()}"
        )
    return int(value)


def _encode_str(value: str) -> str:
    text = str.__str__(value)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise Unpinnable(
            f"expected a string that UTF-8 can hold, found a lone surrogate in {text!a}"
        ) from None
    return text
