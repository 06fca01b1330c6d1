"""Trains a few steps with torch; one operation of one layer at one step differs from run to run.

FLIP=STEP:LAYER  where (steps and layers from 0); nothing where it is not set
"""

from __future__ import annotations

import os

import torch

import pinner

STEP, LAYER = (int(part) for part in os.environ.get("FLIP", "-1:-1").split(":"))


class Layer(torch.nn.Module):
    """A linear layer whose output is scaled, by a factor that is never the same where it flips."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.step = 0
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        factor = 1.0
        if (self.step, self.number) == (STEP, LAYER):
            factor += int.from_bytes(os.urandom(3), "big") / 2**24
        self.step += 1
        return torch.tanh(self.linear(x)) * factor


torch.manual_seed(0)
model = torch.nn.Sequential(*(Layer(number) for number in range(3)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    pinner.fingerprint("loss", loss)
