"""A kernel of which one config is not deterministic: a stand-in for a race, it adds noise."""

from __future__ import annotations

import os
import random

import triton
import triton.language as tl


def _hook(block):
    """A config hook that leaves another number each call, under the block size RACY names."""

    def hook(arguments):
        if block == int(os.environ.get("RACY", "0")):
            arguments["noise_ptr"].fill_(random.random())

    return hook


@triton.autotune(
    configs=[triton.Config({"BLOCK": block}, pre_hook=_hook(block)) for block in (16, 32)],
    key=["n"],
)
@triton.jit
def racy(x_ptr, noise_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """out[0] = sum(x) + noise."""
    accumulator = tl.load(noise_ptr)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        accumulator += tl.sum(tl.load(x_ptr + at, mask=at < n, other=0.0), axis=0)
    tl.store(out_ptr, accumulator)
