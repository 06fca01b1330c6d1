"""The same with torch, without a download: ATEN_CPU_CAPABILITY takes the place of an update.

ATen has each of its kernels several times over, for processors with other vector instructions, as
two builds of torch may have them. The variable picks one.
"""

from __future__ import annotations

import torch

import pinner

STEPS = 3

draw = torch.Generator().manual_seed(0)
x = torch.rand(64, 1000, generator=draw)
model = torch.nn.Linear(1000, 10)
with torch.no_grad():
    model.weight.copy_(torch.rand(10, 1000, generator=draw) / 1000)
    model.bias.zero_()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for _ in range(STEPS):
    loss = model(x).softmax(1).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    pinner.fingerprint("loss", loss)
