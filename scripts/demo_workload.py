"""A small piece of training on real third-party Triton kernels, for the demo: prints its digest.

The kernels are fla-core's own, unmodified: layer norm (9 configs forward, 6 backward), the chunked
cumulative sum (4) and the matrix product (8). Where there is no CUDA device they run in Triton's
interpreter, as they are.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

import triton.runtime.autotuner

if not torch.cuda.is_available():
    warnings.filterwarnings("ignore", message="Triton is not supported on current platform")

from fla.modules.norm.layernorm import layer_norm
from fla.ops.utils import chunk_local_cumsum, matmul

import pinner

# Batches of different lengths, as in training: the matrix product is tuned for each.
LENGTHS = (32, 64, 96, 128)
WIDTH, HIDDEN = 64, 32


def wall_clock(kernel_call: Callable[[], object], quantiles: Sequence[float]) -> list[float]:
    """Times of three calls in milliseconds; Triton's own benchmark asks for a device."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        kernel_call()
        times.append((time.perf_counter() - start) * 1e3)
    times.sort()
    return [times[round(q * (len(times) - 1))] for q in quantiles]


def time_on_the_host() -> None:
    """Let tuning work without a device. The choice stays Triton's: the fastest config wins."""
    tuner = triton.runtime.autotuner.Autotuner
    tuner.do_bench = property(lambda self: self._do_bench or wall_clock)


def train(device: str) -> str:
    """A few steps; returns the SHA-256 of all that came out of them."""
    draw = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw).to(device)

    weight = random(WIDTH).requires_grad_()
    bias = random(WIDTH).requires_grad_()
    down, across = random(WIDTH, HIDDEN), random(HIDDEN, HIDDEN)
    optimizer = torch.optim.SGD([weight, bias], lr=0.1)
    seen = hashlib.sha256()

    for tokens in LENGTHS:
        normed = layer_norm(random(tokens, WIDTH), weight, bias)
        mixed = matmul(matmul(normed.detach(), down), across)
        decay = chunk_local_cumsum(mixed.view(1, tokens, HIDDEN), chunk_size=32)
        loss = normed.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        pinner.fingerprint("mixed", mixed)
        pinner.fingerprint("decay", decay)
        for value in (loss, mixed, decay, weight, bias):
            seen.update(value.detach().cpu().contiguous().numpy().tobytes())
    return seen.hexdigest()


def configs_of(kernel: str) -> list[dict[str, object]]:
    """The configs of the autotuned kernel `module:name`, in the form a lock writes them."""
    from pinner.inside.choosers.triton.versions import config_fields
    from pinner.inside.values import encode_named

    module, name = kernel.split(":")
    tuner = getattr(importlib.import_module(module), name)
    while not hasattr(tuner, "configs"):  # heuristics wrap it
        tuner = tuner.fn
    return [encode_named(config_fields(config)) for config in tuner.configs]


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--configs"]:
        print(json.dumps(configs_of(arguments[1])))
        return
    if torch.cuda.is_available():
        print(f"digest {train('cuda')}")
        return
    time_on_the_host()
    print(f"digest {train('cpu')}")


if __name__ == "__main__":
    main(sys.argv[1:])
