"""An autotuned matrix-vector product: the config that is timed fastest decides how it adds.

Prints the digests of two products and, on a line of its own, the config that was picked. The four
configs do the same work in another order, and are timed: the same program on the same machine picks
another one now and then. FASTEST=0 … FASTEST=3 makes one of them the fastest.

Runs in Triton's interpreter on a CPU; with TRITON_INTERPRET=0 on a GPU. Needs torch and triton.
"""

from __future__ import annotations

import hashlib
import os
import time

os.environ.setdefault("TRITON_INTERPRET", "1")

import torch
import triton
import triton.language as tl

ROWS, COLUMNS = 4, 512
DEVICE = "cpu" if os.environ["TRITON_INTERPRET"] == "1" else "cuda"
CONFIGS = [
    triton.Config({"BLOCK": block, "STRIDED": strided})
    for block in (128, 256)
    for strided in (False, True)
]


def wall_clock(call, quantiles):
    """Milliseconds of one call: as noisy as a machine that has other things to do."""
    call()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return [1e3 * (time.perf_counter() - start)] * len(quantiles)


def planted(fastest):
    """A benchmark by which the config of this number wins. The autotuner asks in their order."""
    times = iter([1.0 if number == fastest else 2.0 for number in range(len(CONFIGS))])

    def benchmark(call, quantiles):
        call()
        return [next(times)] * len(quantiles)

    return benchmark


@triton.autotune(
    configs=CONFIGS,
    key=["columns"],
    do_bench=planted(int(os.environ["FASTEST"])) if os.environ.get("FASTEST") else wall_clock,
)
@triton.jit
def product(matrix_ptr, x_ptr, out_ptr, columns, BLOCK: tl.constexpr, STRIDED: tl.constexpr):
    """out[row] = Σ matrix[row] · x; each of BLOCK lanes adds up its columns, then these are added.

    A lane's columns lie BLOCK apart, or side by side (STRIDED).
    """
    row = tl.program_id(0)
    steps = columns // BLOCK
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for step in range(steps):
        lanes = tl.arange(0, BLOCK) * (steps if STRIDED else 1)
        at = lanes + step * (1 if STRIDED else BLOCK)
        total += tl.load(matrix_ptr + row * columns + at) * tl.load(x_ptr + at)
    tl.store(out_ptr + row, tl.sum(total, axis=0))


def outputs():
    """Two products, by name."""
    draw = torch.Generator().manual_seed(0)
    matrix = torch.randn(ROWS, COLUMNS, generator=draw).to(DEVICE)
    found = {}
    for name in ("first", "second"):
        x = torch.randn(COLUMNS, generator=draw).to(DEVICE)
        found[name] = torch.empty(ROWS, device=DEVICE)
        product[(ROWS,)](matrix, x, found[name], COLUMNS)
    return found


def digest(tensor):
    """SHA-256 over dtype, shape and the bytes in C order."""
    found = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
    found.update(bytes(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).tolist()))
    return "sha256:" + found.hexdigest()


if __name__ == "__main__":
    for name, tensor in outputs().items():
        print("digest", name, digest(tensor))
    print("picked", product.best_config.kwargs)
