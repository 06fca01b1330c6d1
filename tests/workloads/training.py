"""A few steps of training on the CPU with a torch optimizer; faults are planted by variables.

Started by python, torchrun (gloo), or with START=spawn or START=fork by multiprocessing.

FLIP=weight:N  flips one bit of one weight of rank 0 before step N
FINGERPRINT=0  writes no stream of its own: the optimizer's are there all the same
STEPS=N        how many steps (default 3)
"""

from __future__ import annotations

import multiprocessing
import os
import sys

import torch
import torch.distributed as dist

import pinner


def main(rank: int = 0, world: int = 1) -> None:
    """Trains a linear model; ranks average their gradients."""
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(rank)
    for step in range(int(os.environ.get("STEPS", "3"))):
        if rank == 0 and os.environ.get("FLIP") == f"weight:{step}":
            model.weight.data.view(torch.int32)[0, 0] ^= 1 << 12
        loss = model(torch.randn(8, 16, generator=draw)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            if dist.is_initialized():
                dist.all_reduce(parameter.grad)
                parameter.grad /= world
        optimizer.step()
        if os.environ.get("FINGERPRINT") != "0":
            pinner.fingerprint("loss", loss)


def ranked() -> None:
    """One rank of torchrun."""
    from tests.workloads import ranks

    ranks.join()
    main(dist.get_rank(), dist.get_world_size())
    ranks.leave()


def several(how: str) -> int:
    """Two processes of multiprocessing, which nobody gives a rank; the parent computes nothing."""
    context = multiprocessing.get_context(how)
    processes = [context.Process(target=main, args=(rank,)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return max(abs(process.exitcode or 0) for process in processes)


if __name__ == "__main__":
    if "RANK" in os.environ:
        ranked()
    elif "START" in os.environ:
        sys.exit(several(os.environ["START"]))
    else:
        main()
