"""Two autotuned sums in Triton's interpreter, whose configs differ in bits; stacks are planted.

What differs from stack to stack is given by environment variables:
PREFERS=BLOCK    the benchmark lies: this block is the fastest
BLOCKS=16,32,64  the blocks to choose from
BODY=1           the interpreter adds otherwise, as another compiler would
SOURCE=1         the second kernel is written otherwise
NOISE=1          some of the bits are drawn anew in each run
CLEARS=1         the benchmark leaves something behind: the first result depends on whether it ran

The kernels' memory is numpy's: torch would take most of the time of such a run.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import triton
import triton.language as tl
from triton.runtime import driver
from triton.runtime.interpreter import InterpreterBuilder

import pinner

BLOCKS = [int(block) for block in os.environ.get("BLOCKS", "16,32,64").split(",")]
PREFERS = int(os.environ.get("PREFERS", "16"))
CONFIGS = [triton.Config({"BLOCK": block}) for block in BLOCKS]


@triton.autotune(configs=CONFIGS, key=["n"])
@triton.jit
def total(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """out[0] = sum(x)."""
    accumulator = 0.0
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        accumulator += tl.sum(tl.load(x_ptr + at, mask=at < n, other=0.0), axis=0)
    tl.store(out_ptr, accumulator)


if os.environ.get("SOURCE"):

    @triton.autotune(configs=CONFIGS, key=["n"])
    @triton.jit
    def squares(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
        """out[0] = sum(x * x), from the end to the beginning."""
        accumulator = 0.0
        for start in range(n - BLOCK, -1, -BLOCK):
            x = tl.load(x_ptr + start + tl.arange(0, BLOCK))
            accumulator += tl.sum(x * x, axis=0)
        tl.store(out_ptr, accumulator)

else:

    @triton.autotune(configs=CONFIGS, key=["n"])
    @triton.jit
    def squares(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
        """out[0] = sum(x * x)."""
        accumulator = 0.0
        for start in range(0, n, BLOCK):
            x = tl.load(x_ptr + start + tl.arange(0, BLOCK))
            accumulator += tl.sum(x * x, axis=0)
        tl.store(out_ptr, accumulator)


class Memory:
    """A vector of float32 as Triton's interpreter takes them: its storage is itself."""

    dtype = "float32"

    def __init__(self, values) -> None:
        self.values = np.asarray(values, dtype=np.float32)

    def data_ptr(self) -> int:
        """Where it begins."""
        return self.values.ctypes.data

    def untyped_storage(self) -> Memory:
        """Itself."""
        return self

    def cpu(self) -> Memory:
        """It is there already."""
        return self

    def copy_(self, other: Memory) -> None:
        """Nothing to copy: `other` is the same memory."""

    def new_empty(self, size: int, device: str) -> Memory:
        """One to be set."""
        return Memory([])

    def set_(self, storage: Memory, *place: object) -> None:
        """Become what `storage` is."""
        self.values = storage.values

    def storage_offset(self) -> int:
        """Its first element."""
        return 0

    def size(self) -> tuple[int, ...]:
        """Its shape."""
        return self.values.shape

    def stride(self) -> tuple[int, ...]:
        """Its elements stand side by side."""
        return (1,)


class Liar:
    """The part of a driver that the autotuner asks for under the interpreter."""

    timed = 0

    def get_benchmarker(self):
        """A benchmark for which PREFERS wins whatever it takes."""

        def benchmark(kernel_call, quantiles):
            kernel_call()
            figure = 1.0 if BLOCKS[self.timed % len(BLOCKS)] == PREFERS else 2.0
            self.timed += 1
            return [figure] * 3

        return benchmark


def main() -> None:
    """Three steps of both kernels."""
    liar = Liar()
    driver.set_active(liar)
    if os.environ.get("BODY"):
        plain = InterpreterBuilder.create_fmul
        InterpreterBuilder.create_fmul = lambda self, a, b: _next(plain(self, a, b))
    for step in range(3):
        x = Memory(np.random.default_rng(step).standard_normal(256) * 1000)
        if os.environ.get("NOISE"):
            x.values[0] += int.from_bytes(os.urandom(2), "little")
        if os.environ.get("CLEARS") and liar.timed:
            x.values[0] += 1000.0
        for kernel in (total, squares):
            out = Memory([0.0])
            kernel[(1,)](x, out, 256)
            pinner.fingerprint(kernel.fn.__name__, out.values)


def _next(handle):
    """The same product, one unit in the last place larger."""
    handle.data = np.nextafter(handle.data, np.float32(np.inf), dtype=handle.data.dtype)
    return handle


if __name__ == "__main__":
    main()
