"""Stands in for TransformerEngine 2.20, utils.py of its attention: the choice."""

import os
from dataclasses import dataclass


@dataclass
class AttentionParams:
    qkv_layout: str = "sbh3d"
    batch_size: int = 1
    head_dim_qk: int = 64
    deterministic: bool = False
    fp8_meta: object = None


def get_attention_backend(attention_params=None):
    flash = bool(int(os.environ.get("NVTE_FLASH_ATTN", "1")))
    fused = bool(int(os.environ.get("NVTE_FUSED_ATTN", "1"))) and not flash
    unfused = not flash and not fused
    return flash, "2.8.4" if flash else None, fused, 1 if fused else None, unfused, [True] * 3
