"""Sums over the programs of a grid in a mixture-of-experts layer: by atomics, serial, in slots.

Prints the digests of three of them:

aux_loss     the load-balancing loss, its term for each expert: over tiles of tokens
router_grad  its gradient for the router's weight: over tiles of tokens
probs_grad   of a grouped GEMM: the gradient of the routing weights, summed in the epilogue over the
             N-tiles of the output

KERNEL=atomic  each program adds its part to the result, whenever it comes to it (the default)
KERNEL=serial  one program goes through all tiles in order
KERNEL=slots   each program stores its part in a slot of its own; a tree in fixed order adds them
ORDER=launch   programs run in the order of the grid; ORDER=reverse, or a seed: in another. Without
               it a seed is drawn, and printed

Runs in Triton's interpreter on a CPU; with TRITON_INTERPRET=0 on a GPU, whose own order it is then.
Needs torch and triton.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import random
from dataclasses import dataclass

os.environ.setdefault("TRITON_INTERPRET", "1")

import torch
import triton
import triton.language as tl

INTERPRETED = os.environ["TRITON_INTERPRET"] == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
HOWS = ("atomic", "serial", "slots")
NAMES = ("aux_loss", "router_grad", "probs_grad")


@dataclass(frozen=True)
class Sizes:
    """How much there is. tiles: of tokens. groups: tiles of rows, each of an expert of its own."""

    tiles: int = 8
    tokens: int = 16
    experts: int = 16
    hidden: int = 32
    groups: int = 2
    rows: int = 16
    inner: int = 32
    n_tiles: int = 8
    columns: int = 16


# -- the parts that are added ----------------------------------------------------------------------


@triton.jit
def probabilities(logits_ptr, tile, TOKENS: tl.constexpr, EXPERTS: tl.constexpr):
    """The router's softmax for one tile of tokens: (TOKENS, EXPERTS)."""
    rows = tile * TOKENS + tl.arange(0, TOKENS)
    logits = tl.load(logits_ptr + rows[:, None] * EXPERTS + tl.arange(0, EXPERTS)[None, :])
    powers = tl.exp(logits - tl.max(logits, axis=1)[:, None])
    return powers / tl.sum(powers, axis=1)[:, None]


@triton.jit
def aux_part(logits_ptr, share_ptr, tile, TOKENS: tl.constexpr, EXPERTS: tl.constexpr):
    """What one tile of tokens adds to share[e] · Σ_t p[t, e]: (EXPERTS,)."""
    share = tl.load(share_ptr + tl.arange(0, EXPERTS))
    return share * tl.sum(probabilities(logits_ptr, tile, TOKENS, EXPERTS), axis=0)


@triton.jit
def router_part(
    logits_ptr,
    share_ptr,
    x_ptr,
    tile,
    TOKENS: tl.constexpr,
    EXPERTS: tl.constexpr,
    HIDDEN: tl.constexpr,
):
    """What one tile of tokens adds to the gradient of the router's weight: (EXPERTS, HIDDEN)."""
    share = tl.load(share_ptr + tl.arange(0, EXPERTS))
    probs = probabilities(logits_ptr, tile, TOKENS, EXPERTS)
    mean = tl.sum(probs * share[None, :], axis=1)
    logits_grad = probs * (share[None, :] - mean[:, None])
    rows = tile * TOKENS + tl.arange(0, TOKENS)
    x = tl.load(x_ptr + rows[:, None] * HIDDEN + tl.arange(0, HIDDEN)[None, :])
    return tl.dot(tl.trans(logits_grad), x, input_precision="ieee")


@triton.jit
def epilogue_part(
    x_ptr,
    weight_ptr,
    grad_ptr,
    group,
    tile,
    width,
    ROWS: tl.constexpr,
    INNER: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """What one N-tile adds to Σ_n (x @ weight)[m, n] · grad[m, n]: (ROWS,)."""
    rows = group * ROWS + tl.arange(0, ROWS)
    inner = tl.arange(0, INNER)
    columns = tile * COLUMNS + tl.arange(0, COLUMNS)
    x = tl.load(x_ptr + rows[:, None] * INNER + inner[None, :])
    weight_ptr += group * INNER * width
    weight = tl.load(weight_ptr + inner[:, None] * width + columns[None, :])
    grad = tl.load(grad_ptr + rows[:, None] * width + columns[None, :])
    return tl.sum(tl.dot(x, weight, input_precision="ieee") * grad, axis=1)


# -- three ways of adding them ---------------------------------------------------------------------


@triton.jit
def put(out_ptr, slots_ptr, at, size, tile, part, HOW: tl.constexpr):
    """Add a tile's part to the result, or keep it in the tile's own slot."""
    if HOW == "atomic":
        tl.atomic_add(out_ptr + at, part, sem="relaxed")
    else:
        tl.store(slots_ptr + tile * size + at, part)


@triton.jit
def tree(slots_ptr, at, mask, size, COUNT: tl.constexpr):
    """The sum of COUNT slots of `size`: of the first half, plus that of the second half.

    Each element is added by itself: no layout, number of warps or compiler changes the order.
    """
    if COUNT == 1:
        return tl.load(slots_ptr + at, mask=mask)
    else:
        half: tl.constexpr = COUNT // 2
        left = tree(slots_ptr, at, mask, size, half)
        return left + tree(slots_ptr + half * size, at, mask, size, COUNT - half)


@triton.jit
def add_slots(slots_ptr, out_ptr, size, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """out = the sum of all slots (COUNT, size)."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tree(slots_ptr, at, at < size, size, COUNT), mask=at < size)


@triton.jit
def aux_loss(
    logits_ptr,
    share_ptr,
    out_ptr,
    slots_ptr,
    tiles,
    TOKENS: tl.constexpr,
    EXPERTS: tl.constexpr,
    HOW: tl.constexpr,
):
    """out[e] = share[e] · Σ_t p[t, e]: (EXPERTS,)."""
    at = tl.arange(0, EXPERTS)
    if HOW == "serial":
        total = aux_part(logits_ptr, share_ptr, 0, TOKENS, EXPERTS)
        for tile in range(1, tiles):
            total += aux_part(logits_ptr, share_ptr, tile, TOKENS, EXPERTS)
        tl.store(out_ptr + at, total)
    else:
        tile = tl.program_id(0)
        part = aux_part(logits_ptr, share_ptr, tile, TOKENS, EXPERTS)
        put(out_ptr, slots_ptr, at, EXPERTS, tile, part, HOW)


@triton.jit
def router_grad(
    logits_ptr,
    share_ptr,
    x_ptr,
    out_ptr,
    slots_ptr,
    tiles,
    TOKENS: tl.constexpr,
    EXPERTS: tl.constexpr,
    HIDDEN: tl.constexpr,
    HOW: tl.constexpr,
):
    """out = d(Σ share[e] · p[t, e]) / d(weight) with logits = x @ weightᵀ: (EXPERTS, HIDDEN)."""
    at = tl.arange(0, EXPERTS)[:, None] * HIDDEN + tl.arange(0, HIDDEN)[None, :]
    if HOW == "serial":
        total = router_part(logits_ptr, share_ptr, x_ptr, 0, TOKENS, EXPERTS, HIDDEN)
        for tile in range(1, tiles):
            total += router_part(logits_ptr, share_ptr, x_ptr, tile, TOKENS, EXPERTS, HIDDEN)
        tl.store(out_ptr + at, total)
    else:
        tile = tl.program_id(0)
        part = router_part(logits_ptr, share_ptr, x_ptr, tile, TOKENS, EXPERTS, HIDDEN)
        put(out_ptr, slots_ptr, at, EXPERTS * HIDDEN, tile, part, HOW)


@triton.jit
def probs_grad(
    x_ptr,
    weight_ptr,
    grad_ptr,
    out_ptr,
    slots_ptr,
    height,
    tiles,
    ROWS: tl.constexpr,
    INNER: tl.constexpr,
    COLUMNS: tl.constexpr,
    HOW: tl.constexpr,
):
    """out[m] = Σ_n (x @ weight of m's group)[m, n] · grad[m, n]: (height,)."""
    group = tl.program_id(0)
    at = group * ROWS + tl.arange(0, ROWS)
    width = tiles * COLUMNS
    if HOW == "serial":
        total = epilogue_part(x_ptr, weight_ptr, grad_ptr, group, 0, width, ROWS, INNER, COLUMNS)
        for tile in range(1, tiles):
            total += epilogue_part(
                x_ptr, weight_ptr, grad_ptr, group, tile, width, ROWS, INNER, COLUMNS
            )
        tl.store(out_ptr + at, total)
    else:
        tile = tl.program_id(1)
        part = epilogue_part(x_ptr, weight_ptr, grad_ptr, group, tile, width, ROWS, INNER, COLUMNS)
        put(out_ptr, slots_ptr, at, height, tile, part, HOW)


class Sums:
    """The three sums of one set of inputs, computed as often as wanted."""

    def __init__(self, sizes=None):
        self.sizes = it = sizes or Sizes()
        draw = torch.Generator().manual_seed(0)

        def numbers(*shape):
            return torch.randn(*shape, generator=draw).to(DEVICE)

        tokens, height = it.tiles * it.tokens, it.groups * it.rows
        self.x, self.router = numbers(tokens, it.hidden), numbers(it.experts, it.hidden)
        self.logits = self.x @ self.router.T
        chosen = self.logits.argmax(1).bincount(minlength=it.experts)
        self.share = chosen * (it.experts / tokens**2)
        self.rows, self.grad = numbers(height, it.inner), numbers(height, it.n_tiles * it.columns)
        self.weight = numbers(it.groups, it.inner, it.n_tiles * it.columns)

    def aux_loss(self, how):
        """Terms of the load-balancing loss: experts / tokens² · chosen[e] · Σ_t p[t, e]."""
        it = self.sizes
        out, slots = _result(how, it.tiles, it.experts)
        grid = (1 if how == "serial" else it.tiles,)
        inputs = (self.logits, self.share)
        aux_loss[grid](*inputs, out, slots, it.tiles, it.tokens, it.experts, HOW=how)
        return _finished(how, out, slots)

    def router_grad(self, how):
        """The gradient of the loss for the router's weight (experts, hidden)."""
        it = self.sizes
        out, slots = _result(how, it.tiles, it.experts * it.hidden)
        grid = (1 if how == "serial" else it.tiles,)
        inputs = (self.logits, self.share, self.x)
        shape = (it.tokens, it.experts, it.hidden)
        router_grad[grid](*inputs, out, slots, it.tiles, *shape, HOW=how)
        return _finished(how, out, slots).view(it.experts, it.hidden)

    def probs_grad(self, how):
        """The gradient of the routing weight of each row."""
        it = self.sizes
        out, slots = _result(how, it.n_tiles, len(self.rows))
        grid = (it.groups, 1 if how == "serial" else it.n_tiles)
        inputs = (self.rows, self.weight, self.grad)
        shape = (it.rows, it.inner, it.columns)
        probs_grad[grid](*inputs, out, slots, len(self.rows), it.n_tiles, *shape, HOW=how)
        return _finished(how, out, slots)

    def all(self, how):
        """All three, by name."""
        return {name: getattr(self, name)(how) for name in NAMES}


def _result(how, count, size):
    """Zeros to add to, and where they are wanted a slot for each of `count` tiles."""
    out = torch.zeros(size, device=DEVICE)
    return out, torch.empty(count, size, device=DEVICE) if how == "slots" else out


def _finished(how, out, slots):
    if how == "slots":
        count, size = slots.shape
        add_slots[(triton.cdiv(size, 128),)](slots, out, size, COUNT=count, BLOCK=128)
    return out


# -- the order in which programs run ---------------------------------------------------------------


def order_of(word):
    """A function from a number of programs to their order: "launch", "reverse", or a seed."""
    if word == "launch":
        return range
    if word == "reverse":
        return lambda count: range(count - 1, -1, -1)
    draw = random.Random(int(word))
    return lambda count: draw.sample(range(count), count)


@contextlib.contextmanager
def programs_in(order):
    """While it lasts, the interpreter runs the programs of each grid in another order.

    order: as `order_of` makes it. It is asked once for each launch.
    """
    from triton.runtime.interpreter import interpreter_builder as builder

    set_dim, set_index = builder.set_grid_dim, builder.set_grid_idx
    places = iter(())

    def dim(*grid):
        nonlocal places
        places = iter(order(math.prod(grid)))
        set_dim(*grid)

    def index(*_):
        x, yz = divmod(next(places), math.prod(builder.grid_dim[1:]))
        set_index(x, *divmod(yz, builder.grid_dim[2]))

    builder.set_grid_dim, builder.set_grid_idx = dim, index
    try:
        yield
    finally:
        del builder.set_grid_dim, builder.set_grid_idx


def digest(tensor):
    """SHA-256 over dtype, shape and the bytes in C order."""
    found = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
    found.update(bytes(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).tolist()))
    return "sha256:" + found.hexdigest()


def main():
    """Compute all three sums and print their digests."""
    how = os.environ.get("KERNEL") or "atomic"
    word = os.environ.get("ORDER") or str(random.SystemRandom().randrange(2**32))
    with programs_in(order_of(word)) if INTERPRETED else contextlib.nullcontext():
        found = Sums().all(how)
    for name, tensor in found.items():
        print("digest", name, digest(tensor))
    print(f"kernel {how}, programs in {f'order {word}' if INTERPRETED else 'the order of the GPU'}")


if __name__ == "__main__":
    main()
