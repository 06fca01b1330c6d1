"""A GPU for Inductor's kernels that launches nothing: the whole of `CachingAutotuner`, to cubins.

`install()` puts a driver that launches nothing under Triton, a device interface without a device
under `CachingAutotuner`, and a benchmark of the test's own. What Inductor compiles is real.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from torch._inductor import config
from torch._inductor.runtime import triton_helpers, triton_heuristics

from tests.fakes import noop_driver

Timer = Callable[[int], float]


class NoopInterface:
    """The parts of `CudaInterface` that `CachingAutotuner` and `DeviceGuard` ask for."""

    def exchange_device(self, device: int) -> int:
        """The device before: always the first."""
        return 0

    def maybe_exchange_device(self, device: int) -> int:
        """The device before: always the first."""
        return 0

    def current_device(self) -> int:
        """The first device."""
        return 0

    def get_raw_stream(self, device: int) -> int:
        """The default stream."""
        return 0


class CountedBenchmarker:
    """The part of Inductor's benchmarker that `CachingAutotuner.bench` calls."""

    def __init__(self, timer: Timer) -> None:
        self.calls = 0
        self._timer = timer

    def benchmark(self, fn: Callable[[], Any], *_: Any, **__: Any) -> float:
        """Launch once; the invented time, in milliseconds."""
        fn()
        self.calls += 1
        return self._timer(self.calls)


def shuffled(seed: int) -> Timer:
    """Times drawn at random: every candidate can win."""
    draw = random.Random(seed)
    return lambda number: 1.0 + draw.random()


def nth(wanted: int) -> Timer:
    """The candidate that is asked about at this place (from 1) wins."""
    return lambda number: 1.0 if number == wanted else 2.0


def install(timer: Timer) -> CountedBenchmarker:
    """Make kernels for sm_90 tunable on a machine without a GPU."""
    noop_driver.install(lambda *_, **__: [1.0] * 3)
    config.use_static_triton_launcher = False  # it loads the cubin
    triton_helpers.set_driver_to_gpu = lambda: None
    triton_heuristics.CachingAutotuner.get_device_interface = lambda self: NoopInterface()
    benchmarker = CountedBenchmarker(timer)
    triton_heuristics.benchmarker = benchmarker
    return benchmarker
