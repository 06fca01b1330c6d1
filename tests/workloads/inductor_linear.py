"""A run whose layer Inductor selects an algorithm for, on the CPU; it leaves evidence.

Environment: TIMER names a benchmark that lies (`tests/fakes/inductor_timers.py`), TIMER_SEED its
draw; ROWS is the batch (64); IMPORT_FIRST a module to import before the work. Prints how many
candidates were timed.
"""

from __future__ import annotations

import importlib
import os

if "IMPORT_FIRST" in os.environ:
    importlib.import_module(os.environ["IMPORT_FIRST"])

import torch
from torch._inductor import config

import pinner
from tests.fakes import inductor_timers


def main() -> None:
    """Two steps of one frozen linear layer: MKL's kernel or a C++ template."""
    torch.set_num_threads(1)
    config.freezing = config.max_autotune = True
    config.max_autotune_gemm_backends = "CPP,ATEN"
    timer = getattr(inductor_timers, os.environ.get("TIMER", "extern"))
    planted = inductor_timers.plant(timer(int(os.environ.get("TIMER_SEED", "0"))))
    generator = torch.Generator().manual_seed(3)
    layer = torch.nn.Linear(1024, 512).eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        compiled = torch.compile(layer, dynamic=False)
        for step in range(2):
            rows = int(os.environ.get("ROWS", "64"))
            pinner.fingerprint("out", compiled(torch.randn(rows, 1024, generator=generator)))
            print("step", step, "timed", planted.calls)


if __name__ == "__main__":
    main()
