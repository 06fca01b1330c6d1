"""Single experiments on the device, each in a process of its own: prints one JSON line."""

from __future__ import annotations

import hashlib
import json
import os
import sys

import torch
import triton  # noqa: F401  before the rig, which would choose the interpreter

from tests import triton_rig as rig
from tests.fakes import timers

DEVICE = os.environ.get("DEVICE", "cuda")


def never(kernel_call, quantiles):
    """A benchmark that must not be asked."""
    raise AssertionError("a forced decision was benchmarked")


def numbers() -> torch.Tensor:
    """The numbers to sum."""
    return rig.numbers().to(DEVICE)


def digest_of(tensor: torch.Tensor) -> str:
    """SHA-256 of its bytes."""
    return hashlib.sha256(tensor.cpu().numpy().tobytes()).hexdigest()


def total(kernels) -> str:
    """Digest of what `total` leaves."""
    out = torch.zeros(4, device=DEVICE)
    kernels.total[(1,)](numbers(), out, 4096)
    return digest_of(out)


def digest() -> dict:
    """An unpinned call under shuffled timings."""
    kernels = rig.fresh_kernels()
    rig.use_benchmark(kernels, timers.shuffled(int(os.environ.get("TIMER_SEED", "0"))))
    return {"digest": total(kernels)}


def bijection() -> dict:
    """Each alternative forced through a lock, against launching it directly."""
    kernels = rig.fresh_kernels()
    direct = []
    for block in kernels.BLOCKS:
        out = torch.zeros(4, device=DEVICE)
        kernels.total.fn[(1,)](numbers(), out, 4096, BLOCK=block, num_warps=4, num_stages=3)
        direct.append(digest_of(out))
    with rig.observing() as observed:
        seen = rig.fresh_kernels()
        rig.use_benchmark(seen, timers.shuffled(1))
        total(seen)
        pins = rig.pins_of(observed.lines)
    (entry,) = pins["tests.workloads.kernels:total"]["entries"]
    forced = []
    for block in kernels.BLOCKS:
        entry["config"] = dict(entry["config"], BLOCK=block)
        with rig.enforcing(pins):
            locked = rig.fresh_kernels()
            rig.use_benchmark(locked, never)
            forced.append(total(locked))
    return {"direct": direct, "forced": forced, "benchmarks": 0}


def graph() -> dict:
    """A forced first call inside a CUDA graph; the kernel was compiled before."""
    with rig.observing() as observed:
        seen = rig.fresh_kernels()
        rig.use_benchmark(seen, timers.shuffled(1))
        direct = total(seen)
        pins = rig.pins_of(observed.lines)
    (entry,) = pins["tests.workloads.kernels:total"]["entries"]
    with rig.enforcing(pins):
        kernels = rig.fresh_kernels()
        rig.use_benchmark(kernels, never)
        x, out = numbers(), torch.zeros(4, device=DEVICE)
        config = entry["config"]
        kernels.total.fn[(1,)](x, out, 4096, **config)
        out.zero_()
        if DEVICE == "cuda":
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured):
                kernels.total[(1,)](x, out, 4096)
            captured.replay()
            torch.cuda.synchronize()
        else:  # a dry run of this script
            kernels.total[(1,)](x, out, 4096)
        return {"direct": direct, "replayed": digest_of(out)}


if __name__ == "__main__":
    print(json.dumps({"digest": digest, "bijection": bijection, "graph": graph}[sys.argv[1]]()))
