"""Measures two or more things in turn, so that a machine whose speed drifts slows all alike."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping


def in_turn(things: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each thing in each round; the first round warms up and is left out.

    PINNER_BENCH_QUICK (`python -m benchmarks --quick`) makes it three rounds.
    """
    if os.environ.get("PINNER_BENCH_QUICK"):
        rounds = min(rounds, 3)
    times: dict[str, list[float]] = {name: [] for name in things}
    for number in range(rounds + 1):
        for name, thing in things.items():
            start = time.perf_counter()
            thing()
            taken = time.perf_counter() - start
            if number:
                times[name].append(taken)
    return times


def report(times: Mapping[str, list[float]], per: int = 1) -> None:
    """Median of each (of `per` calls), and the median of its ratio to the first, by round."""
    first = next(iter(times.values()))
    for name, taken in times.items():
        ratio = statistics.median(a / b for a, b in zip(taken, first, strict=True))
        print(f"  {name:44s} {_readable(statistics.median(taken) / per)}   ratio {ratio:6.3f}")


def _readable(seconds: float) -> str:
    for unit, size in (("s ", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:8.2f} {unit}"
    return f"{seconds / 1e-9:8.2f} ns"
