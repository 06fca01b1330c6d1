"""What is known of an operation before it runs: its name, what it writes, what its result is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, FrozenSet, Tuple

_SILENT = frozenset(("profiler", "prim", "debug_mode_ops", "inductor", "streams"))
_COLLECTIVE = frozenset(("c10d", "_c10d_functional", "c10d_functional", "_dtensor"))

# They make memory and leave it as it was found.
_EMPTY = frozenset(
    (
        *("empty", "empty_like", "empty_strided", "empty_permuted", "empty_quantized"),
        *("new_empty", "new_empty_strided", "resize_", "resize", "_empty_affine_quantized"),
        *("_empty_per_channel_affine_quantized", "resize_as_"),
    )
)

# They give what they were given, garbage for garbage.
_PLAIN_COPIES = frozenset(("clone", "_to_copy", "contiguous", "lift_fresh_copy", "detach_copy"))

# Of the operations in place, those that read nothing of what they write over.
_OVERWRITE = frozenset(
    (
        *("copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "exponential_"),
        *("geometric_", "log_normal_", "cauchy_", "bernoulli_", "set_", "_foreach_zero_"),
        *("_foreach_copy_", "arange", "eye", "randperm", "_amp_update_scale_"),
    )
)


class Facts:
    """One overload of one operation, looked at once.

    name: as JSON has it, without quotes
    silent: it computes nothing
    collective: it speaks to other processes
    view: its result shares its input's memory
    writes: (position, argument name) of what it changes in place
    overwrites: what it writes needs nothing of what was there
    empty: its result was written by nobody
    copies: its result is its input's values, and nothing else
    non_blocking: position of that argument, or -1
    pure: its inputs can be read after it: it is torch's own, and says that it changes none
    """

    __slots__ = (
        "collective",
        "copies",
        "empty",
        "name",
        "non_blocking",
        "overwrites",
        "pure",
        "silent",
        "view",
        "writes",
    )

    def __init__(self, function: Any) -> None:
        schema = getattr(function, "_schema", None)
        self.name = _plain(str(function))
        self.silent = schema is None  # a higher-order operator: what it calls is seen by itself
        self.collective = False
        self.view = False
        self.writes: Tuple[Tuple[int, str], ...] = ()
        self.overwrites = False
        self.empty = False
        self.copies = False
        self.non_blocking = -1
        self.pure = False
        if schema is not None:
            self._read(schema)

    def _read(self, schema: Any) -> None:
        space, _, base = schema.name.partition("::")
        self.silent = space in _SILENT
        self.collective = space in _COLLECTIVE
        self.empty = base in _EMPTY and space == "aten" and schema.overload_name != "out"
        self.copies = base in _PLAIN_COPIES
        self.writes = tuple(
            (at, argument.name)
            for at, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        )
        self.view = not self.writes and any(
            result.alias_info is not None for result in schema.returns
        )
        self.pure = space == "aten" and not self.writes
        in_place_of_aten = space == "aten" and base.endswith("_") and not base.endswith("__")
        self.overwrites = bool(self.writes) and (not in_place_of_aten or base in _OVERWRITE)
        names = [argument.name for argument in schema.arguments]
        if "non_blocking" in names:
            self.non_blocking = names.index("non_blocking")

    def is_non_blocking(self, args: Tuple[Any, ...], kwargs: Any) -> bool:
        """Whether this call of a copy may return before the copy is made."""
        if self.non_blocking < 0:
            return False
        if self.non_blocking < len(args):
            return bool(args[self.non_blocking])
        return bool(kwargs.get("non_blocking", False))


def _plain(name: str) -> str:
    return "".join(c if 31 < ord(c) < 127 and c not in '"\\' else "_" for c in name)


SUBCLASSES_WITHOUT_BYTES: FrozenSet[str] = frozenset(("FakeTensor", "FunctionalTensor"))
