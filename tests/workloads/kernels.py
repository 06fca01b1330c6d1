"""Autotuned Triton kernels, one for each kind of key; their configs differ in bits.

Each sums `n` float32 in blocks of BLOCK: another BLOCK is another order of addition. They run in
Triton's interpreter (TRITON_INTERPRET=1), through the compile path, and on a GPU.
"""

from __future__ import annotations

import triton
import triton.language as tl

BLOCKS = (16, 32, 64, 128, 256)
SCALE: tl.constexpr = tl.constexpr(3)


def configs(blocks=BLOCKS, **more):
    """One config for each block size."""
    return [triton.Config({"BLOCK": block}, **more) for block in blocks]


@triton.jit
def add_up(x_ptr, start, n, BLOCK: tl.constexpr):
    """The sum of one block, computed by a JIT function that the kernels call."""
    at = start + tl.arange(0, BLOCK)
    return tl.sum(tl.load(x_ptr + at, mask=at < n, other=0.0), axis=0)


@triton.autotune(configs=configs(), key=["n"])
@triton.jit
def total(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """out[0] = sum(x)."""
    accumulator = 0.0
    for start in range(0, n, BLOCK):
        accumulator += add_up(x_ptr, start, n, BLOCK)
    tl.store(out_ptr, accumulator)


@triton.autotune(configs=configs(), key=["n", "rows"])
@triton.jit
def several_keys(x_ptr, out_ptr, n, rows, BLOCK: tl.constexpr):
    """out[row] = sum(x[row]); two key arguments."""
    row = tl.program_id(0)
    accumulator = 0.0
    for start in range(0, n, BLOCK):
        accumulator += add_up(x_ptr + row * n, start, n, BLOCK)
    tl.store(out_ptr + row, accumulator)


@triton.autotune(configs=configs(), key=["n", "m"])
@triton.jit
def omitted(x_ptr, out_ptr, n=64, m=64, BLOCK: tl.constexpr = 16):
    """out[0] = sum(x[:n]) + sum(x[:m]); both key arguments can be left out."""
    accumulator = 0.0
    for start in range(0, n, BLOCK):
        accumulator += add_up(x_ptr, start, n, BLOCK)
    for start in range(0, m, BLOCK):
        accumulator += add_up(x_ptr, start, m, BLOCK)
    tl.store(out_ptr, accumulator)


@triton.autotune(configs=configs(), key=["flavour", "n"])
@triton.jit
def any_key(x_ptr, out_ptr, n, flavour: tl.constexpr, BLOCK: tl.constexpr):
    """out[0] = sum(x); `flavour` can be None, a float, a bool, a dtype, a string or a tuple."""
    accumulator = 0.0
    for start in range(0, n, BLOCK):
        accumulator += add_up(x_ptr, start, n, BLOCK)
    tl.store(out_ptr, accumulator)


@triton.autotune(configs=configs((64,)), key=["n"])
@triton.jit
def only_one(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """out[0] = sum(x); there is nothing to choose."""
    accumulator = 0.0
    for start in range(0, n, BLOCK):
        accumulator += add_up(x_ptr, start, n, BLOCK)
    tl.store(out_ptr, accumulator)


def keep_largest(configs, named_args, **kwargs):
    """Leaves the largest block that fits, as a kernel's own pruning would."""
    return [max(configs, key=lambda config: config.kwargs["BLOCK"])]


@triton.autotune(
    configs=configs(), key=["n"], prune_configs_by={"early_config_prune": keep_largest}
)
@triton.jit
def pruned_to_one(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """out[0] = sum(x); its own pruning leaves one config."""
    accumulator = 0.0
    for start in range(0, n, BLOCK):
        accumulator += add_up(x_ptr, start, n, BLOCK)
    tl.store(out_ptr, accumulator)


@triton.autotune(configs=configs(), key=["n"], reset_to_zero=["out_ptr"])
@triton.jit
def resets(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """out[0] += sum(x), relying on the tuner to start from zero."""
    accumulator = tl.load(out_ptr)
    for start in range(0, n, BLOCK):
        accumulator += add_up(x_ptr, start, n, BLOCK)
    tl.store(out_ptr, accumulator)


@triton.autotune(configs=configs(), key=["n"])
@triton.jit
def accumulates(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """out[0] += sum(x), with nothing that undoes what tuning adds."""
    accumulator = tl.load(out_ptr)
    for start in range(0, n, BLOCK):
        accumulator += add_up(x_ptr, start, n, BLOCK)
    tl.store(out_ptr, accumulator)


@triton.heuristics({"SCALED": lambda args: args["n"] % 128 == 0})
@triton.autotune(configs=configs(), key=["n", "SCALED"])
@triton.jit
def with_heuristic(x_ptr, out_ptr, n, SCALED: tl.constexpr, BLOCK: tl.constexpr):
    """out[0] = sum(x) or three times it, as a heuristic says."""
    accumulator = 0.0
    for start in range(0, n, BLOCK):
        accumulator += add_up(x_ptr, start, n, BLOCK)
    if SCALED:
        accumulator = accumulator * SCALE
    tl.store(out_ptr, accumulator)


def hook_named(name, log):
    """A config hook that writes `name` into `log`."""
    return lambda arguments: log.append(name)


def autotuned_again(kernel, blocks):
    """The same JIT function under an autotuner with other block sizes."""
    return triton.autotune(configs=configs(blocks), key=["n"])(kernel.fn)
