"""The bits of a value that is one number, for whoever compares values and not only digests."""

from __future__ import annotations

import struct
import sys
from typing import TYPE_CHECKING

from . import tensor_sums
from .digest import no_interference, settled

if TYPE_CHECKING:
    from typing import Any, Optional


def bits_of_number(value: Any) -> Optional[str]:
    """Return the bits of a float, an int, or a tensor or array without axes, in hexadecimal; None
    for any other value.

    The highest digit comes first. A Python float has the bits of a float64; a Python int, which
    has no width, is its number, with a sign. Reading a tensor on a GPU waits for it. The value is
    one that has a digest.
    """
    if isinstance(value, float):
        return struct.pack(">d", value).hex()
    if isinstance(value, int) and not isinstance(value, bool):
        return "%x" % value
    if not hasattr(value, "dtype") or getattr(value, "shape", None) != ():
        return None
    torch: Any = sys.modules.get("torch")
    if torch is None or not isinstance(value, getattr(torch, "Tensor", ())):
        return _in_order(value.tobytes()) if hasattr(value, "tobytes") else None
    tensor: Any = value
    if hasattr(tensor, "__tensor_flatten__") or tensor.layout != torch.strided:
        return None
    if tensor.is_quantized:
        return None
    with no_interference(torch):
        bits = tensor_sums.bits_of(torch, settled(tensor)).reshape(-1).view(torch.uint8)
        return _in_order(bytes(bits.cpu().tolist()))


def _in_order(data: bytes) -> str:
    return (data if sys.byteorder == "big" else data[::-1]).hex()
