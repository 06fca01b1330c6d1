"""Benchmarks that lie, planted under Inductor's algorithm selection.

`plant()` replaces what `AlgorithmSelectorCache` calls to time its candidates: nothing is run, and
times are invented. On the CPU torch's own `test_configs.distort_benchmarking_result` has no effect
(2.13).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from torch._inductor.fx_passes import pad_mm
from torch._inductor.select_algorithm import AlgorithmSelectorCache

Timer = Callable[[int, Any], float]


def shuffled(seed: int) -> Timer:
    """Times drawn at random: every candidate can win."""
    draw = random.Random(seed)
    return lambda number, choice: 1.0 + draw.random()


def near_tie(seed: int) -> Timer:
    """Candidates 0.1 % apart in their order, under timer noise of 2 %."""
    draw = random.Random(seed)
    return lambda number, choice: (1.0 + 0.001 * number) * (1.0 + draw.uniform(-0.02, 0.02))


def generated(seed: int) -> Timer:
    """Generated kernels win over a library's."""
    return lambda number, choice: 2.0 if type(choice).__name__ == "ExternKernelCaller" else 1.0


def extern(seed: int) -> Timer:
    """A library's kernels win over generated ones."""
    return lambda number, choice: 3.0 - generated(seed)(number, choice)


def failing(seed: int) -> Timer:
    """No candidate runs."""
    return lambda number, choice: float("inf")


class Planted:
    """Counts how many candidates were timed."""

    def __init__(self, timer: Timer) -> None:
        self.calls = 0
        self._timer = timer

    def __call__(self, choices: Sequence[Any]) -> dict[Any, float]:
        """The invented time of each candidate, in milliseconds."""
        self.calls += len(choices)
        return {choice: self._timer(number, choice) for number, choice in enumerate(choices)}


def plant(timer: Timer) -> Planted:
    """Put a timer under every selection of this process."""
    planted = Planted(timer)

    def make_benchmark_fn(*_: Any, **__: Any) -> Planted:
        return planted

    AlgorithmSelectorCache.make_benchmark_fn = staticmethod(make_benchmark_fn)
    return planted


class PaddingTimer:
    """Times a product as it is, then padded; counts how often it was asked."""

    def __init__(self, padded_wins: bool) -> None:
        self.calls = 0
        self._figures = (2.0, 1.0) if padded_wins else (1.0, 2.0)

    def __call__(self, fn: Callable[[], Any]) -> float:
        """An invented time; nothing is run."""
        self.calls += 1
        return self._figures[(self.calls - 1) % 2]


def plant_padding(padded_wins: bool) -> PaddingTimer:
    """Let `pad_mm` consider padding on the CPU too, decided by this timer."""
    timer = PaddingTimer(padded_wins)
    pad_mm.check_device = lambda *_: True
    pad_mm.has_triton = lambda: True
    pad_mm.is_mm_compute_bound = lambda *_: True
    pad_mm.get_do_bench = lambda: timer
    return timer
