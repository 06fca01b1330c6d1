"""Bytes that a line of a program makes: zeros, ones, numbers in a row, small integers, a seed.

Each fill gives the same bytes here as its `code` gives in a repro, where torch or numpy turn the
values into the dtype. What is captured is looked up among them, and shrinking puts them in its
place.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stackbisect.repro import element_values
from stackbisect.repro.calls import ITEMSIZE

_FLOATS = ("float16", "bfloat16", "float32", "float64")
# Whose values a line of a program writes.
_WRITTEN = ("bool", *element_values.INTEGERS, *_FLOATS)
# The integers that a dtype holds exactly, -n to n.
_EXACT = {"float16": 2**11, "bfloat16": 2**8, "float32": 2**24, "float64": 2**53}
SEEDS = range(4)
_SMALL = 8


@dataclass(frozen=True)
class Fill:
    """One way to fill an array.

    name: "zeros", "ones", "arange", "integers" or "uniform". seed: of the last two, whose values
    are integers from -8 to 8, and numbers between -1 and 1.
    """

    name: str
    seed: int = 0

    def values(self, dtype: str, count: int) -> Sequence[float | int | bool]:
        """Its values, before they are turned into the dtype."""
        if self.name == "zeros":
            return [0] * count
        if self.name == "ones":
            return [1] * count
        if self.name == "arange":
            return range(count)
        draw = random.Random(self.seed)
        if self.name == "uniform":
            return [draw.uniform(-1, 1) for _ in range(count)]
        least, most = _small(dtype)
        return [draw.randint(least, most) for _ in range(count)]

    def fits(self, dtype: str, count: int) -> bool:
        """Whether the dtype holds such values."""
        if dtype not in _WRITTEN:
            return self.name == "zeros" and dtype in ITEMSIZE
        if self.name == "arange":
            return count <= _most(dtype) + 1
        return self.name != "uniform" or dtype in _FLOATS

    def data(self, dtype: str, count: int) -> bytes:
        """Its bytes. Raises ValueError where the dtype does not hold such values."""
        if not self.fits(dtype, count):
            raise ValueError(f"expected a dtype that holds {self.name}, found {dtype}")
        if self.name == "zeros":
            return bytes(count * ITEMSIZE[dtype])
        return pack(dtype, self.values(dtype, count))


ALL = (
    Fill("zeros"),
    Fill("ones"),
    Fill("arange"),
    *(Fill("integers", seed) for seed in SEEDS),
    *(Fill("uniform", seed) for seed in SEEDS),
)
_LOOK = 16  # elements that are compared before all of them are


def recognised(dtype: str, data: bytes) -> Fill | None:
    """The fill that gives these bytes, elements in C order; None where none does."""
    if dtype not in ITEMSIZE:
        return None
    count = len(data) // ITEMSIZE[dtype]
    first = data[: _LOOK * ITEMSIZE[dtype]]
    for fill in ALL:
        if not fill.fits(dtype, count) or fill.data(dtype, min(count, _LOOK)) != first:
            continue
        if fill.data(dtype, count) == data:
            return fill
    return None


def _small(dtype: str) -> tuple[int, int]:
    least = 0 if dtype.startswith("uint") or dtype == "bool" else -_SMALL
    return least, 1 if dtype == "bool" else _SMALL


def _most(dtype: str) -> int:
    if dtype in _EXACT:
        return _EXACT[dtype]
    if dtype == "bool":
        return 1
    bits = 8 * ITEMSIZE[dtype] - (0 if dtype.startswith("uint") else 1)
    return int(2**bits - 1)


def pack(dtype: str, values: Sequence[float | int | bool]) -> bytes:
    """Values as elements of a dtype that `unpack` knows, rounded to nearest even.

    Through float32 where the dtype is smaller, as torch has it. Raises ValueError where the dtype
    has no element for one of them.
    """
    data = element_values.encode(dtype, values)
    if data is None:
        raise ValueError(f"expected values that {dtype} has, found others")
    return data


def unpack(dtype: str, data: bytes) -> list[float | int | bool] | None:
    """The values of elements, exactly; None where numbers do not say all (NaN, or the dtype)."""
    if dtype not in _WRITTEN or (dtype == "bool" and any(byte > 1 for byte in data)):
        return None
    found = element_values.decode(dtype, data)
    return found if all(map(math.isfinite, found)) else None


def source(fills: Iterable[Fill]) -> list[str]:
    """The lines of functions that a repro needs for these fills: `integers` and `uniform`."""
    names = {each.name for each in fills}
    lines: list[str] = []
    if "uniform" in names:
        lines += [
            "",
            "",
            "def uniform(seed, count):",
            '    """Numbers between -1 and 1."""',
            "    draw = random.Random(seed)",
            "    return [draw.uniform(-1, 1) for _ in range(count)]",
        ]
    if "integers" in names:
        lines += [
            "",
            "",
            "def integers(seed, count, least, most):",
            '    """Small integers."""',
            "    draw = random.Random(seed)",
            "    return [draw.randint(least, most) for _ in range(count)]",
        ]
    return lines


def code(fill: Fill, dtype: str, count: int) -> str:
    """An expression that gives its values in a program with `source` and `import random`."""
    if fill.name == "uniform":
        return f"uniform({fill.seed}, {count})"
    if fill.name == "integers":
        least, most = _small(dtype)
        return f"integers({fill.seed}, {count}, {least}, {most})"
    if fill.name == "arange":
        return f"list(range({count}))"
    return f"[{0 if fill.name == 'zeros' else 1}] * {count}"
