"""A run on a GPU whose kernels libraries choose: eager products (cuBLASLt), a compiled layer
(Inductor's max-autotune) and kernels of Triton's autotuner, each output fingerprinted.

PARTS=eager,compiled,triton      which of them (default: all)
OFFSET=N                         eager operands begin N elements into their buffer
STEPS=N                          how many steps (default 2)
BENCHMARK=random|inverse         Inductor's own switch that corrupts its timings
TIMER=…                          as in tuned_run, for Triton's autotuner

Prints one digest of all that was computed, but for Triton's kernels, at the end.
"""

from __future__ import annotations

import hashlib
import os

import torch
import triton  # noqa: F401  before the kernels, which would choose the interpreter

import pinner
from tests.workloads import tuned_run

PARTS = os.environ.get("PARTS", "eager,compiled,triton").split(",")
OFFSET = int(os.environ.get("OFFSET", "0"))
# Small M: where the heuristic likes to split K.
SHAPES = ((1, 4096, 4096), (8, 1024, 8192), (16, 512, 16384), (64, 4096, 4096))
FP8_SINCE = (8, 9)
STATE = hashlib.sha256()


def keep(name: str, value: torch.Tensor) -> None:
    """Fingerprint a result, and let it into the digest that is printed."""
    pinner.fingerprint(name, value)
    STATE.update(value.cpu().view(torch.uint8).numpy().tobytes())


def numbers(*shape: int, seed: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Normal numbers on the device, the same in every process; OFFSET elements off alignment."""
    generator = torch.Generator().manual_seed(seed)
    flat = torch.randn(OFFSET + torch.Size(shape).numel(), generator=generator)
    return flat.to(dtype).cuda()[OFFSET:].view(shape)


def eager(step: int) -> None:
    """Products by torch's own operators: bf16, half, single precision, with bias, batched, fp8."""
    for number, (m, n, k) in enumerate(SHAPES):
        x, weight = numbers(m, k, seed=step), numbers(n, k, seed=100 + step)
        keep(f"linear{number}", x @ weight.t())
        bias = numbers(n, seed=200)
        keep(f"bias{number}", torch.nn.functional.linear(x, weight, bias))
        if torch.cuda.get_device_capability() >= FP8_SINCE and m % 16 == 0:
            keep(f"fp8_{number}", fp8(x, weight))
    a = numbers(4, 32, 512, seed=step, dtype=torch.float32)
    keep("batched", a @ a.transpose(1, 2))


def fp8(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The product with both sides in e4m3 and one scale each."""
    one = torch.ones((), device="cuda")
    narrow = [each.contiguous().to(torch.float8_e4m3fn) for each in (x, weight)]
    return torch._scaled_mm(
        narrow[0], narrow[1].t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16
    )


@torch.compile(mode="max-autotune-no-cudagraphs")
def layer(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """A product, what follows it, and a reduction that becomes a kernel of Inductor's own."""
    hidden = torch.nn.functional.gelu(torch.nn.functional.linear(x, weight, bias))
    return hidden * torch.rsqrt(hidden.float().pow(2).mean(-1, keepdim=True) + 1e-6)


def compiled(step: int) -> None:
    """The compiled layer."""
    x, weight = numbers(16, 4096, seed=step), numbers(1024, 4096, seed=300)
    keep("layer", layer(x, weight, numbers(1024, seed=400)))


def corrupt_timings() -> None:
    """Switch Inductor's own adversary on, if BENCHMARK asks for it."""
    if "BENCHMARK" in os.environ:
        from torch._inductor import config

        config.test_configs.distort_benchmarking_result = os.environ["BENCHMARK"]


def main() -> None:
    """Run the steps."""
    corrupt_timings()
    if "triton" in PARTS:
        tuned_run.lie_about_time()
    for step in range(int(os.environ.get("STEPS", "2"))):
        if "eager" in PARTS:
            eager(step)
        if "compiled" in PARTS:
            compiled(step)
        if "triton" in PARTS:
            tuned_run.step(step)
    print(STATE.hexdigest())


if __name__ == "__main__":
    main()
