"""The numbers that an array's bytes are, the bytes of numbers, how much it takes to write one."""

from __future__ import annotations

import bisect
import functools
import math
import struct
from collections.abc import Sequence

Number = int | float

# dtype → struct's letter.
_LETTERS = {
    "bool": "?",
    "int8": "b",
    "uint8": "B",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "uint64": "Q",
    "float16": "e",
    "float32": "f",
    "float64": "d",
}
# dtype → (exponent bits, mantissa bits, whether the largest exponent means infinity and NaN).
_SMALL = {"float8_e4m3fn": (4, 3, False), "float8_e5m2": (5, 2, True)}
_PARTS = {"complex64": "float32", "complex128": "float64"}

FLOATS = ("float64", "float32", "float16", "bfloat16", *_SMALL)
INTEGERS = tuple(name for name in _LETTERS if "int" in name)
KNOWN = (*_LETTERS, "bfloat16", *_SMALL, *_PARTS)


def decode(dtype: str, data: bytes) -> list[Number]:
    """The numbers; of a complex one both parts. Raises KeyError for a dtype that is not known."""
    dtype = _PARTS.get(dtype, dtype)
    if dtype == "bfloat16":
        words = struct.unpack(f"<{len(data) // 2}H", data)
        return list(struct.unpack(f"<{len(words)}f", b"".join(_word(w << 16) for w in words)))
    if dtype in _SMALL:
        table = _small_table(dtype)
        return [table[code] for code in data]
    size = struct.calcsize(_LETTERS[dtype])
    return list(struct.unpack(f"<{len(data) // size}{_LETTERS[dtype]}", data))


def encode(dtype: str, numbers: Sequence[Number]) -> bytes | None:
    """The bytes of numbers, each rounded to the nearest; None where the dtype has none for one.

    Raises KeyError for a dtype that is not known.
    """
    dtype = _PARTS.get(dtype, dtype)
    try:
        if dtype in INTEGERS or dtype == "bool":
            return struct.pack(f"<{len(numbers)}{_LETTERS[dtype]}", *(_whole(n) for n in numbers))
        if dtype == "float64":
            return struct.pack(f"<{len(numbers)}d", *numbers)
        single = struct.pack(f"<{len(numbers)}f", *numbers)
        if dtype == "float32":
            return single
        rounded = struct.unpack(f"<{len(numbers)}f", single)
        if dtype == "bfloat16":
            return b"".join(struct.pack("<H", _bfloat16(n)) for n in rounded)
        if dtype in _SMALL:
            return bytes(_small_code(dtype, n) for n in rounded)
        return struct.pack(f"<{len(numbers)}{_LETTERS[dtype]}", *rounded)
    except (OverflowError, struct.error, ValueError):
        return None


def rounded(number: Number, bits: int) -> Number:
    """The nearest number with so many significant bits; what is not finite stays."""
    if not math.isfinite(number) or number == 0:
        return number
    mantissa, exponent = math.frexp(number)
    try:
        scaled = math.ldexp(round(math.ldexp(mantissa, bits)), exponent - bits)
    except OverflowError:
        return cut_to(number, bits)  # the nearest one is no float any more
    return int(scaled) if isinstance(number, int) else scaled


def cut_to(number: Number, bits: int) -> Number:
    """The number with just so many significant bits that lies nearest below it in size."""
    if significant(number) <= bits:
        return number
    mantissa, exponent = math.frexp(number)
    kept = int(math.ldexp(abs(mantissa), bits)) | 1
    return math.copysign(math.ldexp(kept, exponent - bits), number)


def significant(number: Number) -> int:
    """From the first bit that is set to the last one; 0 for 0 and for what is not finite."""
    if not math.isfinite(number) or number == 0:
        return 0
    numerator = abs(float(number).as_integer_ratio()[0])
    return (numerator // (numerator & -numerator)).bit_length()


def complexity(number: Number) -> int:
    """How much it takes to write a number: 0 for 0, 1 for 1, more for each bit and for its scale.

    A whole number is less than a fraction with as many bits, a positive one less than a negative.
    """
    if number == 0:
        return 0 if math.copysign(1, number) > 0 else 2
    if not math.isfinite(number):
        return 160
    sign = 0 if number > 0 else 1
    _, exponent = math.frexp(abs(number))
    bits = significant(number)
    place = exponent - bits  # of the last bit that counts
    scale = exponent - 1 if place >= 0 else 2 * abs(place) if exponent > 0 else abs(place) + 4
    return sign + 2 * bits - 1 + min(scale, 48)


def _whole(number: Number) -> int:
    if number != int(number):
        raise ValueError("no whole number")
    return int(number)


def _word(code: int) -> bytes:
    return code.to_bytes(4, "little")


def _bfloat16(number: float) -> int:
    code = int.from_bytes(struct.pack("<f", number), "little")
    if math.isnan(number):
        return (code >> 16) | 0x40
    return (code + 0x7FFF + ((code >> 16) & 1)) >> 16


@functools.cache
def _small_table(dtype: str) -> tuple[float, ...]:
    """The value of each of the 256 codes."""
    exponent_bits, mantissa_bits, special = _SMALL[dtype]
    bias = (1 << (exponent_bits - 1)) - 1
    found = []
    for code in range(256):
        sign = -1.0 if code & 0x80 else 1.0
        exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
        mantissa = code & ((1 << mantissa_bits) - 1)
        if special and exponent == (1 << exponent_bits) - 1:
            found.append(sign * math.inf if mantissa == 0 else math.nan)
        elif not special and code & 0x7F == 0x7F:
            found.append(math.nan)
        elif exponent == 0:
            found.append(sign * math.ldexp(mantissa, 1 - bias - mantissa_bits))
        else:
            value = math.ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits)
            found.append(sign * value)
    return tuple(found)


@functools.cache
def _small_row(dtype: str) -> list[tuple[float, int]]:
    """Finite values from 0 up, each with its code."""
    table = _small_table(dtype)
    return sorted((table[code], code) for code in range(128) if math.isfinite(table[code]))


def _small_code(dtype: str, number: float) -> int:
    sign = 0x80 if math.copysign(1, number) < 0 else 0
    row, size = _small_row(dtype), abs(number)
    if math.isnan(number):
        return sign | 0x7F
    if size > row[-1][0]:
        raise ValueError("too large")
    above = bisect.bisect_left(row, (size, -1))
    near = row[max(above - 1, 0) : above + 1]
    return sign | min(near, key=lambda each: (abs(each[0] - size), each[1] & 1))[1]
