"""A run that tunes Triton kernels and leaves evidence: in Triton's interpreter, or on a GPU.

Faults and timings are planted by environment variables:
DEVICE=cpu|cuda                   where (default cpu: the interpreter)
TIMER=shuffled|inverted|near_tie  the benchmark lies; the default is pinner's own wall clock
TIMER_SEED=N                      … the same way each time
ORDER=reversed                    the kernels are called in another order
RACY=BLOCK                        the kernel `racy` adds noise under this block size
EXIT=kill|_exit                   how the process ends after its work
STEPS=N                           how many steps (default 2)
IMPORT_FIRST=MODULE               something to import before the work
CATCH=1                           errors of the work are swallowed
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import signal

os.environ["TRITON_INTERPRET"] = "1" if os.environ.get("DEVICE", "cpu") == "cpu" else "0"

import torch
from triton.runtime import driver

import pinner
from tests.fakes import timers
from tests.workloads import kernels, racy_kernel

DEVICE = os.environ.get("DEVICE", "cpu")


class BenchmarkOnly:
    """The part of a driver that the autotuner asks for under the interpreter."""

    def __init__(self, benchmark) -> None:
        self._benchmark = benchmark

    def get_benchmarker(self):
        """The benchmark that TIMER names."""
        return self._benchmark


def step(number: int) -> None:
    """One step: every kernel once, each output fingerprinted."""
    generator = torch.Generator().manual_seed(number)
    x = (torch.randn(1024, generator=generator) * 1000).to(DEVICE)
    noise = torch.zeros(1, device=DEVICE)
    names = ("total", "several", "n", "m", "flag", "one", "racy")
    outs = {name: torch.zeros(8, device=DEVICE) for name in names}
    calls = [
        lambda: kernels.total[(1,)](x, outs["total"], 1024),
        lambda: kernels.several_keys[(8,)](x, outs["several"], rows=8, n=128),
        lambda: kernels.omitted[(1,)](x, outs["n"], n=128),
        lambda: kernels.omitted[(1,)](x, outs["m"], m=128),
        lambda: kernels.any_key[(1,)](x, outs["flag"], 1024, True),
        lambda: kernels.any_key[(1,)](x, outs["one"], 1024, 1),
    ]
    if "RACY" in os.environ:
        calls.append(lambda: racy_kernel.racy[(1,)](x, noise, outs["racy"], 1024))
    for call in reversed(calls) if os.environ.get("ORDER") == "reversed" else calls:
        call()
    for name, out in outs.items():
        if name != "racy" or "RACY" in os.environ:
            pinner.fingerprint(name, out)


def lie_about_time() -> None:
    """Make the benchmark that TIMER names Triton's; each rank of a run gets another seed."""
    timer = os.environ.get("TIMER")
    if timer:
        seed = int(os.environ.get("TIMER_SEED", random.randrange(2**32)))
        seed += int(os.environ.get("RANK", "0"))
        benchmark = timers.inverted() if timer == "inverted" else getattr(timers, timer)(seed)
        if DEVICE == "cpu":
            driver.set_active(BenchmarkOnly(benchmark))
        else:
            driver.active.get_benchmarker = lambda: benchmark


def main() -> None:
    """Run the steps and end as told."""
    torch.set_num_threads(1)
    if os.environ.get("IMPORT_FIRST"):
        importlib.import_module(os.environ["IMPORT_FIRST"])
    lie_about_time()
    for number in range(int(os.environ.get("STEPS", "2"))):
        with (
            contextlib.suppress(Exception) if os.environ.get("CATCH") else contextlib.nullcontext()
        ):
            step(number)
    if os.environ.get("EXIT") == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if os.environ.get("EXIT") == "_exit":
        os._exit(0)


if __name__ == "__main__":
    main()
