"""A wall-clock benchmark for kernels that the interpreter runs where there is no device.

Triton's own asks for a driver and fails with "0 active drivers".
"""

from __future__ import annotations

import time
from typing import Any, Callable, List, Sequence

from . import versions

_REPETITIONS = 3


def wall_clock(kernel_call: Callable[[], Any], quantiles: Sequence[float]) -> List[float]:
    """Times of `kernel_call` in milliseconds at the given quantiles, after one warm-up call."""
    kernel_call()
    times = sorted(_once(kernel_call) for _ in range(_REPETITIONS))
    return [times[min(int(q * len(times)), len(times) - 1)] for q in quantiles]


def supply(tuner: Any) -> None:
    """Give an autotuner without a benchmark this one, where kernels are interpreted."""
    given = tuner.__dict__.get("do_bench", tuner.__dict__.get("_do_bench"))
    if given is None and versions.interpreting() and not _has_driver():
        tuner._do_bench = wall_clock


def compared(figure: Any) -> float:
    """The figure Triton compares first: benchmarks return one number or a list of quantiles."""
    try:
        return float(figure[0])
    except (TypeError, IndexError):
        return float(figure)


def _has_driver() -> bool:
    """Whether Triton has a device driver here (one that was set by hand counts)."""
    from triton.runtime.driver import driver

    try:
        return hasattr(driver.active, "get_benchmarker")  # 3.4 and 3.5 look for a driver only now
    except (RuntimeError, ImportError, OSError):
        return False


def _once(kernel_call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    kernel_call()
    return (time.perf_counter() - start) * 1e3
