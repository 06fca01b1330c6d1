"""A few steps of training that say which variables and switches of a policy are in force.

DO=CODE   runs this in the program after torch was imported, before the first step

Prints one JSON object: the value of each switch that a profile can hold, and what torch does with
memory that nobody wrote and with an operation that has no deterministic form.
"""

from __future__ import annotations

import json
import os

import torch

import pinner
from pinner.inside.policy_switches import SWITCHES


def in_force() -> dict[str, object]:
    """The switches as torch has them, and two effects that a CPU shows."""
    found: dict[str, object] = {name: switch.read(torch) for name, switch in SWITCHES.items()}
    found["empty is filled"] = bool(torch.empty(64).isnan().all())
    try:
        torch.zeros(4).put_(torch.tensor([0]), torch.ones(1))
        found["put_"] = "runs"
    except RuntimeError:
        found["put_"] = "raises"
    return found


def main() -> None:
    """Prints, does what was asked, and trains."""
    print(json.dumps(in_force()), flush=True)
    exec(os.environ.get("DO", ""), {"torch": torch, "os": os})
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        loss = model(torch.full((8, 16), 1.0 + step)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pinner.fingerprint("loss", loss)


if __name__ == "__main__":
    main()
