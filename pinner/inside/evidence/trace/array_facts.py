"""What is known of a function of numpy or scipy: its name, and what it writes to. Pure."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, Dict, FrozenSet, Iterator, Optional, Tuple

# They give what they get, in another shape, or say something of it: no bits come of them.
_PLAIN: FrozenSet[str] = frozenset(
    (
        *("reshape", "ravel", "transpose", "squeeze", "expand_dims", "swapaxes", "moveaxis"),
        *("rollaxis", "broadcast_to", "broadcast_arrays", "atleast_1d", "atleast_2d", "atleast_3d"),
        *("diagonal", "real", "imag", "flip", "fliplr", "flipud", "rot90", "matrix_transpose"),
        *("permute_dims", "split", "array_split", "hsplit", "vsplit", "dsplit", "unstack"),
        *("empty_like", "result_type", "can_cast", "min_scalar_type", "shape", "ndim", "size"),
        *("may_share_memory", "shares_memory", "iscomplexobj", "isrealobj", "common_type"),
    )
)
# They call functions of the program: what those call is seen by itself.
_CALLING: FrozenSet[str] = frozenset(("apply_along_axis", "apply_over_axes", "piecewise"))
# What they compute is text.
_TEXT: FrozenSet[str] = frozenset(
    (
        *("array2string", "array_repr", "array_str", "save", "savez", "savez_compressed"),
        *("savetxt", "__repr__", "__str__"),
    )
)
# Where `out` is given by its place; the array is the first argument of function and method alike.
_OUT: Dict[str, int] = {
    **dict.fromkeys(("sum", "prod", "cumsum", "cumprod", "mean", "std", "var"), 3),
    **dict.fromkeys(("max", "min", "amax", "amin", "any", "all", "argmax", "argmin", "dot"), 2),
    **dict.fromkeys(("round", "around", "choose", "concatenate", "stack", "nansum", "matvec"), 2),
    **dict.fromkeys(("clip", "take", "compress", "reduce", "accumulate"), 3),
    "reduceat": 4,
    "trace": 5,
}
_WRITING: FrozenSet[str] = frozenset(
    ("copyto", "place", "put", "putmask", "fill_diagonal", "put_along_axis", "at")
)
_WRITING_METHODS: FrozenSet[str] = frozenset(("sort", "partition", "put"))
METHODS: Tuple[str, ...] = (
    *("all", "any", "argmax", "argmin", "argpartition", "argsort", "astype", "choose", "clip"),
    *("compress", "conj", "conjugate", "cumprod", "cumsum", "dot", "max", "mean", "min", "nonzero"),
    *("partition", "prod", "ptp", "put", "repeat", "round", "searchsorted", "sort", "std", "sum"),
    *("take", "trace", "var", "__repr__", "__str__"),
)
UFUNC_METHODS: Tuple[str, ...] = ("reduce", "accumulate", "reduceat", "outer", "at")
_PUBLIC = ("numpy", "numpy.linalg", "numpy.fft", "scipy.special")


class Facts:
    """One function.

    name: as a program names it ("numpy.add.reduce"). module: what is imported for it. public: a
    user can call it. passes: it is no event itself; mute: nor is what it calls. outs: the places
    of arguments that are only written to. writes: whether the first argument is written over;
    fills: all of it, unless `where` is given.
    """

    __slots__ = ("fills", "module", "mute", "name", "outs", "passes", "public", "writes")

    def __init__(self, module: str, path: str, outs: range, *, method: bool = False) -> None:
        self.module = module
        self.name = "".join(c if 31 < ord(c) < 127 and c not in '"\\' else "_" for c in path)
        own = path.rpartition(".")[2]
        self.public = "._" not in path
        self.mute = own in _TEXT
        self.passes = own in _PLAIN or own in _CALLING
        self.outs = outs
        self.writes = own in (_WRITING_METHODS if method else _WRITING)
        self.fills = own == "copyto"


# Of what computes numbers that are nobody's business.
MUTE = Facts("numpy", "numpy.ndarray.__str__", range(0), method=True)


def of_function(function: Any) -> Facts:
    """Of an array function, or one of scipy's."""
    module, name = getattr(function, "__module__", "") or "", function.__name__
    path = _found(function, module, name)
    return _with_out(*path, name)


def of_method(name: str) -> Facts:
    """Of a method of arrays; the array is its first argument."""
    at = _OUT.get(name)
    outs = range(0) if at is None else range(at, at + 1)
    return Facts("numpy", "numpy.ndarray." + name, outs, method=True)


def is_of_program(ufunc: Any) -> bool:
    """Whether a ufunc calls a function of the program for each element: `vectorize` makes many."""
    return not set("".join(ufunc.types)) - set("O->")


def of_ufunc(ufunc: Any, method: str) -> Facts:
    """Of a ufunc, or of a method of one; the ufunc is not among its arguments."""
    module, path = _found(ufunc, "", ufunc.__name__)
    if method == "__call__":
        return Facts(module, path, range(ufunc.nin, 1 << 16))
    return _with_out(module, path + "." + method, method)


def _with_out(module: str, path: str, name: str) -> Facts:
    at = _OUT.get(name)
    return Facts(module, path, range(0) if at is None else range(at, at + 1))


def _found(function: Any, module: str, name: str) -> Tuple[str, str]:
    """The module to import, and the name with it, under which a function is found."""
    for each in (*_PUBLIC, *((module,) if module else ())):
        if _attribute(each, name) is function:
            return each, "%s.%s" % (each, name)
    for each, attribute in _everywhere(function):
        return each, "%s.%s" % (each, attribute)
    return module, "%s.%s" % (module or "_unknown", name)


def _attribute(module: str, name: str) -> Any:
    loaded = sys.modules.get(module)
    return None if loaded is None else vars(loaded).get(name)


def _everywhere(function: Any) -> Iterator[Tuple[str, str]]:
    for each, loaded in sorted(sys.modules.items(), key=lambda pair: ("._" in pair[0], pair[0])):
        if each == "__main__":
            continue
        for attribute, value in list(getattr(loaded, "__dict__", {}).items()):
            if value is function:
                yield each, attribute


def out_given(outs: range, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> bool:
    """Whether the call says where its results go."""
    given: Optional[Any] = kwargs.get("out")
    if given is not None:
        return True
    return any(at < len(args) and args[at] is not None for at in outs[: len(args)])
