"""A decided Triton call with pinner and without, and the first call: locked, tuned, disk cache.

Without a GPU this goes through the whole compile path to sm_90 and a driver that launches nothing,
so that the cost of a launch is Triton's own Python; the benchmark of each candidate is then one
such call, and "tuned" is cheaper than it ever is on a device (where it runs for about 125 ms).
"""

from __future__ import annotations

import os
import tempfile

os.environ.pop("TRITON_INTERPRET", None)
os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp(prefix="pinner-bench-")

import torch
import triton  # before the rig, which would choose the interpreter

from benchmarks import pairs
from tests import triton_rig as rig
from tests.fakes import noop_driver

CALLS = 2000
ROUNDS = 15
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def buffers():
    """What the kernel reads and writes."""
    return torch.randn(4096, device=DEVICE), torch.zeros(8, device=DEVICE)


def once(kernel_call, quantiles):
    """A benchmark that calls the candidate once."""
    kernel_call()
    return [1.0, 1.0, 1.0]


def decided_calls() -> None:
    """The steady state: the decision is made, the kernel compiled."""
    x, out = buffers()
    plain = rig.fresh_kernels()
    plain.total[(1,)](x, out, 4096)
    with rig.observing() as observed:
        seen = rig.fresh_kernels()
        seen.total[(1,)](x, out, 4096)
        pins = rig.pins_of(observed.lines)
    with rig.enforcing(pins):
        locked = rig.fresh_kernels()
        locked.total[(1,)](x, out, 4096)

        def calls(kernel):
            def run():
                for _ in range(CALLS):
                    kernel[(1,)](x, out, 4096)

            return run

        print("a call that is decided")
        times = pairs.in_turn(
            {
                "without pinner": calls(plain.total),
                "enforced": calls(locked.total),
                "without pinner, again": calls(plain.total),
            },
            ROUNDS,
        )
        pairs.report(times, CALLS)


def first_calls() -> None:
    """The first call of a kernel in a process whose compile cache is warm."""
    x, out = buffers()

    def first(autotuner):
        autotuner.cache = {}
        autotuner.fn.device_caches.clear()
        autotuner[(1,)](x, out, 4096)

    plain = rig.fresh_kernels()
    disk = triton.autotune(configs=plain.configs(), key=["n"], cache_results=True)(plain.total.fn)
    with rig.observing() as observed:
        rig.fresh_kernels().total[(1,)](x, out, 4096)
        pins = rig.pins_of(observed.lines)
    with rig.enforcing(pins) as rigged:
        locked = rig.fresh_kernels()

        def first_locked():
            rigged.chooser.register(locked.total).decided.clear()
            first(locked.total)

        with rig.unpatched():
            first(disk)

        def without(autotuner):
            def run():
                with rig.unpatched():
                    first(autotuner)

            return run

        print("the first call, five candidates, compiled before")
        times = pairs.in_turn(
            {
                "tuned": without(plain.total),
                "Triton's own disk cache": without(disk),
                "under a lock": first_locked,
            },
            ROUNDS,
        )
        pairs.report(times)


def main() -> None:
    """Measure and print."""
    if DEVICE == "cuda":
        print(f"triton {triton.__version__}, {torch.cuda.get_device_name()}")
    else:
        noop_driver.install(once)
        print(f"triton {triton.__version__}, a driver that launches nothing")
    decided_calls()
    first_calls()


if __name__ == "__main__":
    main()
