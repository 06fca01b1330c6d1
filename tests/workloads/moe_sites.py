"""Where faults can be planted in moe_train.py, for who does not want to import torch."""

from __future__ import annotations

BLOCKS, EXPERTS = 2, 4

# Modules whose linear operation can be told to flip a bit, or whose weight can be changed.
LINEAR = tuple(
    f"blocks.{block}.{name}"
    for block in range(BLOCKS)
    for name in (
        *("attention.qkv", "attention.out", "experts.router"),
        *(f"experts.{side}.{expert}" for side in ("up", "down") for expert in range(EXPERTS)),
    )
)
