"""Forks of one process that has imported everything and decided nothing, each under other timings.

usage: forking.py WHAT MODE TIMER COUNT SEED [PINS...]: WHAT is fla or ours; MODE plain, observe or
enforce, with one pins file for all forks or one for each. Prints a JSON list with digest, ledger
lines and number of benchmarks of each. A fork costs little, and shares no decision with the others.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

import torch
from triton.runtime import driver

from tests import triton_rig as rig
from tests.fakes import timers
from tests.workloads import third_party

OURS = "tests.workloads.kernels"
TIMERS = {
    "shuffled": timers.shuffled,
    "near_tie": timers.near_tie,
    "inverted": lambda seed: timers.inverted(),
}
IN_TURN = "in turn"


class BenchmarkOnly:
    """The part of a driver that the autotuner asks for under the interpreter."""

    def __init__(self, benchmark) -> None:
        self._benchmark = benchmark

    def get_benchmarker(self):
        """The benchmark of the test."""
        return self._benchmark


def ours(kernels) -> str:
    """Bits of our own kernels, one for each kind of key."""
    x = rig.numbers(1024)
    out = [torch.zeros(8) for _ in range(9)]
    kernels.total[(1,)](x, out[0], 1024)
    kernels.several_keys[(8,)](x, out[1], rows=8, n=128)
    kernels.omitted[(1,)](x, out[2], n=128)
    kernels.omitted[(1,)](x, out[3], m=128)
    for place, flavour in enumerate((None, 0.5, torch.float16, (1, 2), True)):
        kernels.any_key[(1,)](x, out[4 + place], 1024, flavour)
    return third_party.digest({str(i): tensor for i, tensor in enumerate(out)})


def child(what: str, timer: str, seed: int, rigged: rig.Rig | None) -> dict:
    """One run, in a process of its own."""
    if timer == IN_TURN:
        timer = sorted(TIMERS)[seed % len(TIMERS)]
    counted = timers.Counted(TIMERS[timer](seed))
    driver.set_active(BenchmarkOnly(counted))
    bits = third_party.digest(third_party.outputs()) if what == "fla" else ours(sys.modules[OURS])
    lines = rigged.lines if rigged is not None else []
    return {"digest": bits, "lines": lines, "benchmarks": counted.calls}


def in_a_fork(work: Callable[[], dict]) -> dict:
    """What `work` returns in a fork of this process."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        with os.fdopen(writer, "w") as out:
            json.dump(work(), out)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as source:
        result: dict = json.load(source)
    os.waitpid(pid, 0)
    return result


def main(what: str, mode: str, timer: str, count: str, seed: str, *pins: str) -> None:
    """Import everything under the chooser, then fork, collect, print."""
    torch.set_num_threads(1)
    locked: dict = {}
    scene = {
        "plain": contextlib.nullcontext,
        "observe": rig.observing,
        "enforce": lambda: rig.enforcing(locked),
    }[mode]()
    with scene as rigged:
        if what == "fla":
            third_party.load()
        else:
            rig.fresh_kernels(name=OURS)

        def work(number: int) -> dict:
            if pins:
                locked.update(json.loads(Path(pins[number % len(pins)]).read_text()))
            return child(what, timer, int(seed) + number, rigged)

        runs = [in_a_fork(functools.partial(work, number)) for number in range(int(count))]
    print(json.dumps(runs))


if __name__ == "__main__":
    main(*sys.argv[1:])
