"""What differs between versions of torch's Inductor: 2.9, 2.11, 2.13 and 2.14 were read for it."""

from __future__ import annotations

import re
from typing import Any, Optional, Sequence

OLDEST = (2, 9)
"""The first torch whose Inductor has all the places that are hooked."""


def is_older(version: str) -> bool:
    """Whether a torch of this version ("2.6.0+cu124") comes before OLDEST."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) < OLDEST


class AsNode:
    """A layout that answers as an IR node does."""

    def __init__(self, layout: Any) -> None:
        self._layout = layout

    def get_dtype(self) -> Any:
        """The element type."""
        return self._layout.dtype

    def get_size(self) -> Sequence[Any]:
        """Sizes in elements."""
        return self._layout.size  # type: ignore[no-any-return]

    def get_stride(self) -> Sequence[Any]:
        """Strides in elements."""
        return self._layout.stride  # type: ignore[no-any-return]


def device_type(layout: Any, inputs: Sequence[Any]) -> str:
    """The type of the device, without its index: "cpu", "cuda", …"""
    device = getattr(layout, "device", None)
    if device is None:
        found = [node.get_device() for node in inputs]
        device = next((each for each in found if each is not None), None)
    return str(getattr(device, "type", "none"))


def as_int(size: Any) -> Optional[int]:
    """The value of a static dimension; None for an expression over symbols."""
    if isinstance(size, int):
        return size
    free = getattr(size, "free_symbols", None)
    if free is not None:
        return None if free else int(size)
    node = getattr(size, "node", None)  # a SymInt
    if node is not None:
        return None if getattr(node, "expr", size).free_symbols else int(size)
    return int(size)


def hint(size: Any) -> Any:
    """The length that a dynamic dimension is tuned for."""
    expression = getattr(getattr(size, "node", None), "expr", size)
    from torch._inductor.virtualized import V

    sizes = getattr(V.graph, "sizevars", None)
    if sizes is None:
        return getattr(getattr(size, "node", None), "hint", "?")
    if hasattr(sizes, "optimization_hint"):  # 2.11 and later
        return sizes.optimization_hint(expression)
    return sizes.size_hint(expression, fallback=8192)


def float32_precision() -> str:
    """What "float32" means in a matrix product; part of Inductor's own key of timings."""
    import torch

    return str(torch.get_float32_matmul_precision())
