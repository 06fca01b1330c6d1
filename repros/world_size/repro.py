"""Data parallel on 1, 2, 4 or 8 ranks: the sum of the gradients over ranks, in two ways.

Eight microbatches are dealt out to the ranks. Each rank adds up its own in a tree; then the ranks'
sums are added:

SUM=all_reduce  by gloo's all-reduce, whose order is another for each number of ranks (the default)
SUM=tree        gathered, and added in the tree that the ranks have begun

Prints the digests of both layers' gradients. Without torchrun it starts RANKS (8) processes itself.
Needs torch.
"""

from __future__ import annotations

import hashlib
import os
import tempfile

import torch
import torch.distributed as dist

MICROBATCHES, BATCH, WIDTH = 8, 4, 64


def gradients(microbatch):
    """The gradients of one microbatch, by layer; one thread, always the same shapes."""
    draw = torch.Generator().manual_seed(0)
    names = ("up", "down")
    layers = {name: torch.randn(WIDTH, WIDTH, generator=draw) / 8 for name in names}
    for weight in layers.values():
        weight.requires_grad_()
    x = torch.randn(BATCH, WIDTH, generator=draw.manual_seed(1 + microbatch))
    loss = (torch.tanh(x @ layers["up"]) @ layers["down"] - x).square().mean() / MICROBATCHES
    return dict(zip(names, torch.autograd.grad(loss, list(layers.values())), strict=True))


def tree(parts):
    """The sum of a power of two of tensors: neighbours first, then the sums of neighbours."""
    while len(parts) > 1:
        parts = [left + right for left, right in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def over_ranks(mine):
    """The sum over all ranks of this rank's tensor."""
    if dist.get_world_size() == 1:
        return mine
    if os.environ.get("SUM") == "tree":
        parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, mine)
        return tree(parts)
    dist.all_reduce(mine)
    return mine


def outputs():
    """The summed gradients, by layer. Needs a process group of 1, 2, 4 or 8 ranks."""
    torch.set_num_threads(1)
    ranks, rank = dist.get_world_size(), dist.get_rank()
    each = MICROBATCHES // ranks
    found = [gradients(number) for number in range(rank * each, (rank + 1) * each)]
    return {name: over_ranks(tree([each[name] for each in found])) for name in found[0]}


def digest(tensor):
    """SHA-256 over dtype, shape and the bytes in C order."""
    found = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
    found.update(bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist()))
    return "sha256:" + found.hexdigest()


def take_part(**group):
    """Join the group, compute, and let rank 0 print."""
    dist.init_process_group("gloo", **group)
    found = outputs()
    if dist.get_rank() == 0:
        for name, tensor in found.items():
            print("digest", name, digest(tensor), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def start(ranks):
    """Become so many processes, without torchrun; ends with 0 when all of them did."""
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(ranks):
            child = os.fork()
            if not child:
                store = dist.FileStore(os.path.join(folder, "store"), ranks)
                take_part(store=store, rank=rank, world_size=ranks)
                os._exit(0)
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return 1 if any(codes) else 0


if __name__ == "__main__":
    if "RANK" in os.environ:
        take_part()
    else:
        raise SystemExit(start(int(os.environ.get("RANKS") or "8")))
