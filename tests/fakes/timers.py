"""Benchmarks that lie: what a noisy machine may measure, drawn from a seed.

Each has the signature of `triton.testing.do_bench` as `Autotuner` calls it: it runs the kernel and
returns three quantiles, here of an invented time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

Benchmark = Callable[..., list[float]]


class Counted:
    """A benchmark that counts how often it was asked."""

    def __init__(self, benchmark: Benchmark) -> None:
        self.calls = 0
        self._benchmark = benchmark

    def __call__(self, kernel_call: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
        self.calls += 1
        return self._benchmark(kernel_call, quantiles)


def shuffled(seed: int | None = None) -> Benchmark:
    """Times drawn at random: every candidate can win. seed None: another one each process."""
    draw = random.Random(seed)

    def benchmark(kernel_call: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
        kernel_call()
        figure = 1.0 + draw.random()
        return [figure] * 3

    return benchmark


def inverted() -> Benchmark:
    """The slowest candidate wins."""

    def benchmark(kernel_call: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
        start = time.perf_counter()
        kernel_call()
        return [1.0 / (time.perf_counter() - start)] * 3

    return benchmark


def near_tie(seed: int | None = None) -> Benchmark:
    """Candidates 0.1 % apart in the order they are asked, under timer noise of 2 %."""
    draw = random.Random(seed)
    asked = 0

    def benchmark(kernel_call: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
        nonlocal asked
        asked += 1
        kernel_call()
        return [(1.0 + 0.001 * asked) * (1.0 + draw.uniform(-0.02, 0.02))] * 3

    return benchmark


def prefer(wanted: Callable[[int], bool]) -> Benchmark:
    """The candidates win for which `wanted(number of the question, from 0)` holds."""
    asked = 0

    def benchmark(kernel_call: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
        nonlocal asked
        kernel_call()
        figure = 1.0 if wanted(asked) else 2.0
        asked += 1
        return [figure] * 3

    return benchmark
