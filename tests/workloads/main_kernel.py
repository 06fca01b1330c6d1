"""A script that defines its kernel itself and runs it in children: START=spawn|fork|forkserver."""

from __future__ import annotations

import multiprocessing
import os

os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton
import triton.language as tl

import pinner


@triton.autotune(configs=[triton.Config({"BLOCK": block}) for block in (16, 64, 256)], key=["n"])
@triton.jit
def own(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """out[0] = sum(x)."""
    accumulator = 0.0
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        accumulator += tl.sum(tl.load(x_ptr + at, mask=at < n, other=0.0), axis=0)
    tl.store(out_ptr, accumulator)


def work(rank: int) -> None:
    """One child's work; the two children see different keys."""
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    torch.set_num_threads(1)
    for step in range(2):
        generator = torch.Generator().manual_seed(step)
        x, out = torch.randn(1024, generator=generator) * 1000, torch.zeros(1)
        own[(1,)](x, out, 1024 - 128 * rank)
        pinner.fingerprint("own", out)


if __name__ == "__main__":
    context = multiprocessing.get_context(os.environ.get("START", "spawn"))
    children = [context.Process(target=work, args=(rank,)) for rank in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    raise SystemExit(max(abs(child.exitcode or 0) for child in children))
