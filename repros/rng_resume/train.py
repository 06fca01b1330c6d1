"""Trains with random numbers from six streams; goes on from a checkpoint where one is.

python train.py FOLDER            of these streams, the checkpoint has torch's alone
python train.py --fixed FOLDER    it has all of them
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any

import numpy
import torch
from torch.utils.data import DataLoader, TensorDataset

import pinner

STEPS, STOP, SAMPLES, BATCH, WIDTH = 9, 6, 16, 4, 8

random.seed(0)  # 1: which samples are mirrored
numpy.random.seed(0)  # 2: NumPy's old stream: noise on the input
torch.manual_seed(0)  # 3: initial weights, dropout
smoothing = numpy.random.default_rng(1)  # 4: one of the program's own: label smoothing


class Masked(torch.nn.Module):
    """A layer that drops inputs by a generator of its own (5)."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(WIDTH, WIDTH)
        self.draw = torch.Generator().manual_seed(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x * (torch.rand(x.shape, generator=self.draw) < 0.9))


class Training:
    """Model, optimizer, and a loader that shuffles by a generator of its own (6)."""

    def __init__(self, folder: Path, *, fixed: bool) -> None:
        self.file = folder / "checkpoint.pt"
        self.fixed = fixed
        self.model = torch.nn.Sequential(
            Masked(), torch.nn.Dropout(0.5), torch.nn.Linear(WIDTH, WIDTH)
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.order = torch.Generator().manual_seed(3)
        data = TensorDataset(torch.randn(SAMPLES, WIDTH))
        self.loader = DataLoader(data, BATCH, shuffle=True, generator=self.order)
        self.step = 0
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Shuffle. A loader can be brought back to where it is from its state here."""
        self.epoch_began = {"order": self.order.get_state(), "torch": torch.get_rng_state()}
        self.batches = iter(self.loader)

    def streams(self) -> dict[str, Any]:
        """The state of every random stream."""
        return {
            "torch": torch.get_rng_state(),
            "python": random.getstate(),
            "numpy": numpy.random.get_state(),
            "smoothing": smoothing.bit_generator.state,
            "mask": self.model[0].draw.get_state(),
            "epoch began": self.epoch_began,
        }

    def put_back(self, streams: dict[str, Any]) -> None:
        """Put every random stream back; the loader's by going through its epoch again."""
        random.setstate(streams["python"])
        numpy.random.set_state(streams["numpy"])
        smoothing.bit_generator.state = streams["smoothing"]
        self.model[0].draw.set_state(streams["mask"])
        self.order.set_state(streams["epoch began"]["order"])
        torch.set_rng_state(streams["epoch began"]["torch"])
        self.begin_epoch()

    def save(self) -> None:
        """Write a checkpoint."""
        streams = self.streams()
        state = {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "streams": streams if self.fixed else {"torch": streams["torch"]},
        }
        torch.save(state, self.file)

    def resume(self) -> None:
        """Go on from the checkpoint."""
        state = torch.load(self.file, weights_only=False)  # NumPy's state is more than tensors
        self.step = state["step"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.fixed:
            self.put_back(state["streams"])
        for _ in range(self.step % len(self.loader)):
            next(self.batches)
        torch.set_rng_state(state["streams"]["torch"])

    def one(self) -> None:
        """One step."""
        if self.step and self.step % len(self.loader) == 0:
            self.begin_epoch()
        (x,) = next(self.batches)
        if random.random() < 0.5:
            x = x.flip(1)
        target = x + 0.1 * torch.from_numpy(smoothing.random(x.shape)).float()
        x = x + 0.1 * torch.from_numpy(numpy.random.random_sample(x.shape)).float()
        loss = (self.model(x) - target).square().mean()
        pinner.fingerprint("loss", loss)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.step += 1


def main() -> None:
    """Train to the end, from where it is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fixed", action="store_true")
    words = parser.parse_args()
    training = Training(words.folder, fixed=words.fixed)
    if training.file.exists():
        training.resume()
    while training.step < STEPS:
        training.one()
        if training.step == STOP:
            training.save()


if __name__ == "__main__":
    main()
