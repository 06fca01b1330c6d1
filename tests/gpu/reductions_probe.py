"""Computes the sums of repros/atomics on a device many times; prints what was seen as JSON.

For each way of adding and each sum: how many different results, and how far the last is from
torch's sum in float64, relative to its largest element.
"""

from __future__ import annotations

import json
import os

os.environ["TRITON_INTERPRET"] = os.environ.get("TRITON_INTERPRET", "0")

import torch

from tests.repro_rig import module

REPEATS = int(os.environ.get("REPEATS", "50"))
repro = module("atomics")


def wanted(sums):
    """The three sums in float64."""
    it = sums.sizes
    weight = sums.router.double().requires_grad_()
    terms = sums.share.double() * (sums.x.double() @ weight.T).softmax(1).sum(0)
    (router_grad,) = torch.autograd.grad(terms.sum(), weight)
    made = sums.rows.double().view(it.groups, it.rows, it.inner) @ sums.weight.double()
    probs_grad = (made.view(it.groups * it.rows, -1) * sums.grad.double()).sum(1)
    return {"aux_loss": terms.detach(), "router_grad": router_grad, "probs_grad": probs_grad}


def main():
    """Run and print."""
    large = repro.Sizes(tiles=256, tokens=64, groups=16, rows=64, n_tiles=128, columns=32)
    sums = repro.Sums(large if repro.DEVICE == "cuda" else None)
    correct = wanted(sums)
    seen = {}
    for how in repro.HOWS:
        results = {name: set() for name in repro.NAMES}
        for _ in range(REPEATS):
            found = sums.all(how)
            for name, tensor in found.items():
                results[name].add(repro.digest(tensor))
        seen[how] = {
            name: {
                "results": len(results[name]),
                "error": float(
                    (tensor.double() - correct[name]).abs().max() / correct[name].abs().max()
                ),
            }
            for name, tensor in found.items()
        }
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
