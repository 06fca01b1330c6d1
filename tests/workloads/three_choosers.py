"""A run in which three choosers decide for real, on a CPU: Triton's autotuner under the
interpreter, Inductor's max-autotune, and cuBLASLt as the stand-in of the tests answers.

CUBLASLT_FAKES, FAKE_CUBLASLT   the stand-in, and what it picks
TIMER=shuffled|inverted         the benchmarks of Triton and Inductor lie
TIMER_SEED=N                    … in this way

Prints one JSON object: for each chooser a digest of what its kernels computed.
"""

from __future__ import annotations

import hashlib
import json
import os

from tests.workloads import tuned_run

import torch  # isort: skip - after what chooses the interpreter
from torch._inductor import config

import pinner
from tests.fakes import cublaslt_calls, inductor_timers
from tests.workloads import kernels

STEPS = 2
SEED = int(os.environ.get("TIMER_SEED", "0"))


def tuned(step: int) -> torch.Tensor:
    """A sum by a kernel that `@triton.autotune` decides."""
    generator = torch.Generator().manual_seed(step)
    numbers = torch.randn(1024, generator=generator) * 1000
    out = torch.zeros(8)
    kernels.total[(1,)](numbers, out, 1024)
    return out


def compiled(step: int, layer: torch.nn.Module) -> torch.Tensor:
    """A product whose algorithm Inductor selects."""
    generator = torch.Generator().manual_seed(100 + step)
    with torch.no_grad():
        return layer(torch.randn(64, 1024, generator=generator))


def multiplied(step: int, library) -> torch.Tensor:
    """A product whose algorithm the heuristic of (a stand-in of) cuBLASLt returns."""
    bits = cublaslt_calls.gemm(library, m=8, n=8, k=64, seed=step)["bits"]
    return torch.tensor(list(bytes.fromhex(bits)), dtype=torch.uint8)


def lie_about_time() -> None:
    """Plant TIMER under both tuners."""
    tuned_run.lie_about_time()
    timer = {"shuffled": inductor_timers.shuffled, "inverted": inductor_timers.generated}
    inductor_timers.plant(timer.get(os.environ.get("TIMER", ""), inductor_timers.extern)(SEED))


def main() -> None:
    """Runs the steps."""
    torch.set_num_threads(1)
    config.freezing = config.max_autotune = True
    config.max_autotune_gemm_backends = "CPP,ATEN"
    lie_about_time()
    torch.manual_seed(3)
    layer = torch.compile(torch.nn.Linear(1024, 512).eval(), dynamic=False)
    library = cublaslt_calls.load()
    states = {name: hashlib.sha256() for name in ("triton", "inductor", "cublaslt")}
    for step in range(STEPS):
        results = (tuned(step), compiled(step, layer), multiplied(step, library))
        for (name, state), result in zip(states.items(), results, strict=True):
            pinner.fingerprint(name, result)
            state.update(result.numpy().tobytes())
    print(json.dumps({name: state.hexdigest()[:16] for name, state in states.items()}))


if __name__ == "__main__":
    main()
