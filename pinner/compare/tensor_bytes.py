"""The last word on a mismatch: two files of kept bytes, element by element. Constant memory.

The files are safetensors files as pinner/inside/evidence/kept_bytes.py writes them, or any others.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

from pinner.inside.evidence.kept_bytes import NAMES

_PIECE = 1 << 18  # bytes of each file that are held at once; a multiple of every element
_LONGEST_HEADER = 100 << 20
_ROWS = 8  # differing rows that are named


class BytesError(Exception):
    """A file that cannot be read as kept bytes; says what was expected and found."""


@dataclass(frozen=True)
class Rule:
    """How the bits of one number are to be read.

    bits: of one number; parts: numbers in an element (2: complex); packed: elements in a byte
    is_float: whether neighbouring codes are neighbouring numbers, one ulp apart
    signed: whether the highest bit is a sign before a magnitude
    nan_from: the least magnitude that is no number; None where all are
    negative_zero_is_nan: the rule of the "fnuz" formats
    """

    bits: int
    parts: int = 1
    packed: int = 1
    is_float: bool = False
    signed: bool = True
    nan_from: int | None = None
    negative_zero_is_nan: bool = False

    @property
    def width(self) -> int:
        """Bytes of the unit that is read at once."""
        return max(1, self.bits // 8)


def _ieee(bits: int, mantissa: int, parts: int = 1) -> Rule:
    infinity = ((1 << (bits - 1)) - 1) >> mantissa << mantissa
    return Rule(bits, parts, is_float=True, nan_from=infinity + 1)


RULES: Mapping[str, Rule] = {
    "float64": _ieee(64, 52),
    "float32": _ieee(32, 23),
    "float16": _ieee(16, 10),
    "bfloat16": _ieee(16, 7),
    "float8_e5m2": _ieee(8, 2),
    "float8_e4m3fn": Rule(8, is_float=True, nan_from=0x7F),
    "float8_e5m2fnuz": Rule(8, is_float=True, negative_zero_is_nan=True),
    "float8_e4m3fnuz": Rule(8, is_float=True, negative_zero_is_nan=True),
    "float8_e8m0fnu": Rule(8, is_float=True, signed=False, nan_from=0xFF),
    "float4_e2m1fn_x2": Rule(4, packed=2, is_float=True),
    "complex32": _ieee(16, 10, parts=2),
    "complex64": _ieee(32, 23, parts=2),
    "complex128": _ieee(64, 52, parts=2),
    **{f"{sign}int{bits}": Rule(bits) for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "bool": Rule(8),
}

# The names of the file format.
_NAMES = {short: name for name, short in NAMES.items()} | {
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}


@dataclass(frozen=True)
class Kept:
    """One tensor of a file. begin: where its data are in the file; size: in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    size: int


@dataclass(frozen=True)
class KeptFile:
    """What stands in a file."""

    path: Path
    tensors: Mapping[str, Kept]
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Difference:
    """Where one tensor differs.

    differing: how many of its `elements`; first: the number of the first one, in C order, and
    place: its indices. values: its bits in both files, in hexadecimal, as one number (complex: two)
    ulp: the distance of these values, in units of the last place; None where one is not a number,
    or the dtype is no float. Zeros of either sign are 0 apart.
    most_ulp: the largest such distance, and most_ulp_at where; None where there is none
    not_numbers: differing elements of which one or both are NaN
    rows: how many rows (along the first axis) have a differing element, and first_rows which these
    are, the first few; None and empty where there is but one axis
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    elements: int
    differing: int
    first: int
    place: tuple[int, ...]
    values: tuple[str, str]
    ulp: int | None
    most_ulp: int | None
    most_ulp_at: int | None
    not_numbers: int
    rows: int | None = None
    first_rows: tuple[int, ...] = ()

    def line(self) -> str:
        """The difference for people."""
        text = (
            f"{self.name}: {self.differing} of {self.elements} {self.dtype} elements differ, "
            f"first at {list(self.place)}: {self.values[0]} and {self.values[1]}"
        )
        if self.ulp is not None:
            text += f", {self.ulp} ulp apart"
        if self.most_ulp is not None:
            text += f"; at most {self.most_ulp} ulp (element {self.most_ulp_at})"
        if self.not_numbers:
            text += f"; {self.not_numbers} with a NaN"
        if self.rows is not None:
            shown = ", ".join(map(str, self.first_rows))
            more = ", …" if self.rows > len(self.first_rows) else ""
            text += f"; in {self.rows} of {self.shape[0]} rows ({shown}{more})"
        return text


@dataclass(frozen=True)
class Comparison:
    """Two files. unlike: one line for each thing that has no counterpart to compare with."""

    differences: tuple[Difference, ...]
    unlike: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether all bytes, and what they mean, are the same."""
        return not self.differences and not self.unlike


def compare_files(first: Path, second: Path) -> Comparison:
    """Compares two files of kept bytes. Raises `BytesError` where one cannot be read."""
    left, right = read_header(first), read_header(second)
    unlike = [*_unlike_values(left, right)]
    differences = []
    for name in dict.fromkeys([*left.tensors, *right.tensors]):
        one, other = left.tensors.get(name), right.tensors.get(name)
        if one is None or other is None:
            unlike.append(f"{name}: only in {first if other is None else second}")
        elif (one.dtype, one.shape) != (other.dtype, other.shape):
            unlike.append(f"{name}: {_kind(one)} in {first}, {_kind(other)} in {second}")
        else:
            found = _difference(left.path, one, right.path, other)
            differences += [found] if found else []
    return Comparison(tuple(differences), tuple(unlike))


def read_header(path: Path) -> KeptFile:
    """What stands in a file. Raises `BytesError` where it is not whole."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, _LONGEST_HEADER):
                raise BytesError(f"{path}: expected a safetensors file, found {size} bytes")
            fields = json.loads(file.read(length))
    except OSError as error:
        raise BytesError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BytesError(f"{path}: the header is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise BytesError(f"{path}: expected an object as header")
    metadata = fields.pop("__metadata__", {})
    try:
        found = [_kept(name, entry, metadata, 8 + length) for name, entry in fields.items()]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BytesError(f"{path}: the header has no such tensors: {error!r}") from error
    for tensor in found:
        if tensor.begin < 8 + length or tensor.begin + tensor.size > size:
            raise BytesError(f"{path}: {tensor.name} is cut off: the file has {size} bytes")
        if tensor.size != _expected_size(tensor):
            raise BytesError(
                f"{path}: {tensor.name}: expected {_expected_size(tensor)} bytes for "
                f"{_kind(tensor)}, found {tensor.size}"
            )
    return KeptFile(path, {tensor.name: tensor for tensor in found}, metadata)


def ulp(rule: Rule, one: int, other: int) -> int | None:
    """The distance of two codes in units of the last place; None where one is no number."""
    if not rule.is_float or _is_nan(rule, one) or _is_nan(rule, other):
        return None
    return abs(_rank(rule, one) - _rank(rule, other))


def _kept(name: str, entry: Mapping[str, Any], metadata: Mapping[str, str], start: int) -> Kept:
    begin, end = (int(offset) for offset in entry["data_offsets"])
    if not isinstance(entry["shape"], list) or end < begin:
        raise ValueError(f"{name}: {entry}")
    shape = tuple(int(size) for size in entry["shape"])
    stranger = metadata.get(f"dtype:{name}")
    if stranger is not None:  # kept as bytes, the last axis being those of an element
        return Kept(name, stranger, shape[:-1], start + begin, end - begin)
    dtype = _NAMES.get(entry["dtype"], str(entry["dtype"]))
    return Kept(name, dtype, shape, start + begin, end - begin)


def _expected_size(tensor: Kept) -> int:
    rule = RULES.get(tensor.dtype)
    if rule is None:  # of a dtype without a rule of ours the size is believed
        return tensor.size
    return _count(tensor.shape) * rule.parts * rule.width


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _kind(tensor: Kept) -> str:
    return f"{tensor.dtype}{list(tensor.shape)}"


def _unlike_values(left: KeptFile, right: KeptFile) -> Iterator[str]:
    """Numbers, strings and the kinds of parts, which stand in the metadata."""
    for key in dict.fromkeys([*left.metadata, *right.metadata]):
        one, other = left.metadata.get(key), right.metadata.get(key)
        if one != other and key.startswith(("value:", "parts:")):
            yield f"{key.partition(':')[2]}: {one} in {left.path}, {other} in {right.path}"


class _Tally:
    """Counts the differing elements of one tensor."""

    def __init__(self, tensor: Kept) -> None:
        self.tensor = tensor
        self.rule = RULES.get(tensor.dtype, Rule(8))
        self.differing = 0
        self.first: int | None = None
        self.values = ("", "")
        self.ulp: int | None = None
        self.most: tuple[int, int] | None = None
        self.not_numbers = 0
        shape = tensor.shape
        self._row = max(1, _count(shape[1:]) * self.rule.packed) if len(shape) > 1 else 0
        self._last_row = -1
        self._rows = 0
        self._first_rows: list[int] = []

    def add(self, element: int, one: tuple[int, ...], other: tuple[int, ...]) -> None:
        """Count one element; its numbers are the parts, or just one."""
        distances = [ulp(self.rule, a, b) for a, b in zip(one, other, strict=True) if a != b]
        known = [distance for distance in distances if distance is not None]
        distance = max(known) if len(known) == len(distances) else None
        if self.rule.is_float and distance is None:
            self.not_numbers += 1
        if self.first is None:
            self.first, self.ulp = element, distance
            self.values = (self._hex(one), self._hex(other))
        if distance is not None and (self.most is None or distance > self.most[0]):
            self.most = (distance, element)
        self.differing += 1
        if self._row and element // self._row != self._last_row:  # they come in order
            self._last_row = element // self._row
            self._rows += 1
            if len(self._first_rows) < _ROWS:
                self._first_rows.append(self._last_row)

    def _hex(self, numbers: tuple[int, ...]) -> str:
        digits = max(1, self.rule.bits // 4)
        return ",".join(f"0x{number:0{digits}x}" for number in numbers)

    def difference(self) -> Difference | None:
        """The result; None where nothing differs."""
        if self.first is None:
            return None
        tensor, rule = self.tensor, self.rule
        shape = tensor.shape
        if rule.packed > 1:
            shape = (*shape[:-1], shape[-1] * rule.packed) if shape else (rule.packed,)
        elif tensor.dtype not in RULES:
            shape = (tensor.size,)
        return Difference(
            name=tensor.name,
            dtype=tensor.dtype if tensor.dtype in RULES else f"{tensor.dtype} (bytes)",
            shape=shape,
            elements=_count(shape),
            differing=self.differing,
            first=self.first,
            place=_place(self.first, shape),
            values=self.values,
            ulp=self.ulp,
            most_ulp=None if self.most is None else self.most[0],
            most_ulp_at=None if self.most is None else self.most[1],
            not_numbers=self.not_numbers,
            rows=self._rows if self._row and tensor.dtype in RULES else None,
            first_rows=tuple(self._first_rows) if tensor.dtype in RULES else (),
        )


def _difference(one_path: Path, one: Kept, other_path: Path, other: Kept) -> Difference | None:
    with open(one_path, "rb") as left, open(other_path, "rb") as right:
        left.seek(one.begin)
        right.seek(other.begin)
        return _tallied(one, left, right)


def compare_bytes(
    name: str, dtype: str, shape: tuple[int, ...], first: bytes, second: bytes
) -> Difference | None:
    """Compares the bytes of two tensors of one dtype and shape, C order; None where all agree."""
    if first == second:
        return None
    tensor = Kept(name, dtype, shape, 0, len(first))
    return _tallied(tensor, io.BytesIO(first), io.BytesIO(second))


def _tallied(tensor: Kept, left: BinaryIO, right: BinaryIO) -> Difference | None:
    tally = _Tally(tensor)
    done = 0
    for a, b in _pieces(left, right, tensor.size):
        if a != b:
            _count_piece(tally, a, b, done)
        done += len(a)
    return tally.difference()


def _pieces(left: BinaryIO, right: BinaryIO, size: int) -> Iterator[tuple[bytes, bytes]]:
    while size:
        a, b = left.read(min(size, _PIECE)), right.read(min(size, _PIECE))
        if not a or len(a) != len(b):
            raise BytesError("a file became shorter while it was read")
        size -= len(a)
        yield a, b


_CODES: dict[int, Literal["B", "H", "I", "Q"]] = {1: "B", 2: "H", 4: "I", 8: "Q"}


def _count_piece(tally: _Tally, a: bytes, b: bytes, offset: int) -> None:
    """Count the elements that differ in a piece which begins `offset` bytes into the tensor."""
    rule = tally.rule
    code = _CODES[rule.width]
    one, other = memoryview(a).cast(code), memoryview(b).cast(code)
    start = offset // rule.width
    places = [i for i, (x, y) in enumerate(zip(one, other, strict=True)) if x != y]
    if rule.packed > 1:
        for i in places:
            for half in range(rule.packed):  # the first element is in the low bits
                shift, mask = half * rule.bits, (1 << rule.bits) - 1
                x, y = one[i] >> shift & mask, other[i] >> shift & mask
                if x != y:
                    tally.add((start + i) * rule.packed + half, (x,), (y,))
        return
    parts = rule.parts
    if parts == 1:
        for i in places:
            tally.add(start + i, (one[i],), (other[i],))
        return
    for element in dict.fromkeys(i // parts for i in places):
        span = slice(element * parts, element * parts + parts)
        tally.add(start // parts + element, tuple(one[span]), tuple(other[span]))


def _is_nan(rule: Rule, code: int) -> bool:
    sign = 1 << (rule.bits - 1)
    if rule.negative_zero_is_nan:
        return code == sign
    magnitude = code & (sign - 1) if rule.signed else code
    return rule.nan_from is not None and magnitude >= rule.nan_from


def _rank(rule: Rule, code: int) -> int:
    """The place of a code among all numbers of its rule; both zeros are 0."""
    if not rule.signed:
        return code
    sign = 1 << (rule.bits - 1)
    return -(code & (sign - 1)) if code & sign else code


def _place(number: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    found = []
    for size in reversed(shape):
        number, index = divmod(number, size)
        found.append(index)
    return tuple(reversed(found))
