"""One point of a series as text: a number as a hex float with every bit, or a digest. Pure."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from typing import Any

# (bits, bits of the mantissa). Of other dtypes the digest stands in a standard.
_FLOATS = {"float": (64, 52), "float64": (64, 52), "float32": (32, 23), "float16": (16, 10)}
_FLOATS["bfloat16"] = (16, 7)

_HEX_FLOAT = r"-?0x[01]\.[0-9a-f]{13}p[+-]\d{1,4}|-?0x0\.0p\+0"
_POINT = re.compile(
    rf"(?:float|float64|float32|float16|bfloat16) (?:{_HEX_FLOAT}|-?inf|nan:[0-9a-f]{{4,16}})"
    r"|int -?(?:0|[1-9]\d*)"
    r"|(?:sha256:[0-9a-f]{64}|nh128:[0-9a-f]{32})"
)


def is_point(text: str) -> bool:
    """Whether the text is one that `point` writes."""
    return _POINT.fullmatch(text) is not None


def point(digest: str, detail: Mapping[str, Any] | None) -> str:
    """The point for a value: "float32 0x1.8000000000000p+1", "int 7", or its digest.

    detail: what the run left beside the digest: its dtype and the bits of a single number
    """
    if detail is None or not isinstance(detail.get("number"), str):
        return digest
    dtype, bits = str(detail.get("dtype")), detail["number"]
    if dtype == "int":
        return f"int {int(bits, 16)}"
    if dtype not in _FLOATS:
        return digest
    return f"{dtype} {_float_text(dtype, int(bits, 16))}"


def number(text: str) -> float | None:
    """The value of a point as a float64; None for a digest, and for an int that is too large.

    NaN is a number here.
    """
    word, _, value = text.partition(" ")
    if not value:
        return None
    if word == "int":
        return float(int(value)) if len(value) < 300 else None
    return math.nan if value.startswith("nan:") else float.fromhex(value)


def kind(text: str) -> str:
    """What a point is: "float32", "int", or the algorithm of its digest with a colon behind."""
    word, space, _ = text.partition(" ")
    return word if space else text.partition(":")[0] + ":"


def shown(text: str) -> str:
    """A point for people: a hex float also in decimal."""
    value = number(text)
    if value is None or not math.isfinite(value) or text.startswith("int "):
        return text
    return f"{text} ({value!r})"


def _float_text(dtype: str, bits: int) -> str:
    width, mantissa = _FLOATS[dtype]
    value = _value(width, mantissa, bits)
    return f"nan:{bits:0{width // 4}x}" if math.isnan(value) else value.hex()


def _value(width: int, mantissa: int, bits: int) -> float:
    """The number of these bits; every format here fits into a float64."""
    if width == 16 and mantissa == 7:  # bfloat16 is the upper half of a float32
        width, bits = 32, bits << 16
    code = {64: "d", 32: "f", 16: "e"}[width]
    found: float = struct.unpack(f">{code}", bits.to_bytes(width // 8, "big"))[0]
    return found
