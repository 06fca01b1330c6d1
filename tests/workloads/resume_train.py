"""A small training run that saves, and goes on from what it saved; lacks are planted by variables.

The folder is the first argument. Started by python or torchrun (gloo).

SAVE=call|file|files|distributed|async   how it saves: pinner's calls around torch.save (default),
           torch.save alone, two files of one checkpoint, torch.distributed.checkpoint, the same
           in the background
LACKS=a,b  what is not restored: python, numpy, torch, steps, schedule, scaler, loader, scale, all
STEPS=N    how many steps in all (default 6). EVERY=N: how often it saves (default 2)
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

import pinner
from tests.workloads import ranks

STEPS = int(os.environ.get("STEPS", "6"))
EVERY = int(os.environ.get("EVERY", "2"))
SAVE = os.environ.get("SAVE", "call")
LACKS = set(filter(None, os.environ.get("LACKS", "").split(",")))
BATCH = 4


def lacks(name: str) -> bool:
    """Whether this lack is planted."""
    return name in LACKS or "all" in LACKS


class Net(torch.nn.Module):
    """A linear model with dropout, and low-precision weights whose scale no checkpoint holds."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.drop = torch.nn.Dropout(0.5)
        self.register_buffer("packed", torch.zeros(8, 8, dtype=torch.float8_e4m3fn))
        self.register_buffer("scale", torch.ones(()), persistent=False)

    def pack(self, weight: torch.Tensor) -> None:
        """Keeps a low-precision copy of a weight, scaled to its largest element."""
        self.scale.copy_(weight.abs().max() / 448)
        self.packed.copy_((weight / self.scale).to(torch.float8_e4m3fn))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x @ (self.packed.to(torch.float32) * self.scale)
        return self.drop(self.norm(self.inner(x)))


class Run:
    """All that a run holds."""

    def __init__(self, folder: Path, rank: int) -> None:
        random.seed(rank)
        numpy.random.seed(rank)
        torch.manual_seed(rank)
        self.file = folder / f"checkpoint-{rank}.pt"
        self.log = folder / f"steps-{rank}.txt"
        self.origin = torch.randn(8, 8)
        self.model = Net()
        self.model.pack(self.origin)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        decay = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda epoch: 0.9**epoch)
        self.schedule = decay
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
        data = TensorDataset(torch.randn(4 * BATCH, 8))
        self.draw = torch.Generator().manual_seed(rank)
        self.loader = DataLoader(data, BATCH, shuffle=True, generator=self.draw)
        self.epoch_draw = self.draw.get_state()
        self.step = 0
        self.saving: Any = None

    def state(self) -> dict[str, Any]:
        """What a checkpoint has."""
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "scaler": self.scaler.state_dict(),
            "python": random.getstate(),
            "numpy": numpy.random.get_state(),
            "torch": torch.get_rng_state(),
            "epoch_draw": self.epoch_draw,
        }

    def restore(self) -> None:
        """Goes back to what was saved, but for what is lacking."""
        saved = self.read()
        self.step = saved["step"]
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        if lacks("steps"):
            for values in self.optimizer.state.values():
                values["step"].zero_()
        if not lacks("schedule"):
            self.schedule.load_state_dict(saved["schedule"])
        if not lacks("scaler"):
            self.scaler.load_state_dict(saved["scaler"])
        if not lacks("python"):
            random.setstate(saved["python"])
        if not lacks("numpy"):
            numpy.random.set_state(saved["numpy"])
        if lacks("scale"):  # as if it were made from a weight that was rounded before
            self.model.scale.copy_(self.origin.bfloat16().abs().max() / 448)
        self.draw.set_state(saved["epoch_draw"])
        self.batches = self.begin()
        if not lacks("loader"):
            for _ in range(self.step % len(self.loader)):
                next(self.batches)
        if not lacks("torch"):
            torch.set_rng_state(saved["torch"])
        if SAVE == "call":
            pinner.checkpoint_restored(self.state())

    def begin(self) -> Any:
        """Begins an epoch."""
        self.epoch_draw = self.draw.get_state()
        return iter(self.loader)

    def save(self) -> None:
        """Writes a checkpoint."""
        state = self.state()
        if SAVE in ("call", "file"):
            torch.save(state, self.file)
        elif SAVE == "files":
            torch.save({name: state[name] for name in state if name != "model"}, self.file)
            torch.save(state["model"], self.file.with_suffix(".model"))
        else:
            self.save_distributed(state)
        if SAVE == "call":
            pinner.checkpoint_saved(state)

    def save_distributed(self, state: dict[str, Any]) -> None:
        """The same by torch.distributed.checkpoint."""
        import torch.distributed.checkpoint as dcp

        if SAVE == "async":
            self.wait()
            self.saving = dcp.async_save(state, checkpoint_id=self.file.with_suffix(""))
        else:
            dcp.save(state, checkpoint_id=self.file.with_suffix(""))

    def wait(self) -> None:
        """Waits for a checkpoint that is being saved in the background."""
        if self.saving is not None:
            self.saving.result()

    def read(self) -> dict[str, Any]:
        """What was saved."""
        if SAVE in ("distributed", "async"):
            import torch.distributed.checkpoint as dcp

            for parameter in self.model.parameters():  # so that there are moments to load into
                parameter.grad = torch.zeros_like(parameter)
            lr = self.optimizer.param_groups[0]["lr"]
            self.optimizer.step()
            self.optimizer.zero_grad()
            state = self.state()
            dcp.load(state, checkpoint_id=self.file.with_suffix(""))
            assert lr
            return state
        saved: dict[str, Any] = torch.load(self.file, weights_only=False)
        if SAVE == "files":
            saved["model"] = torch.load(self.file.with_suffix(".model"))
        return saved

    @property
    def has_saved(self) -> bool:
        """Whether there is something to go on from."""
        return self.file.exists() or self.file.with_suffix("").exists()

    def train(self) -> None:
        """Runs to the end, from where it is."""
        if self.has_saved:
            self.restore()
        else:
            self.batches = self.begin()
        while self.step < STEPS:
            batch = next(self.batches, None)
            if batch is None:
                self.batches = self.begin()
                batch = next(self.batches)
            self.one(batch[0])
            self.step += 1
            with self.log.open("a") as out:
                out.write(f"{self.step}\n")
            if self.step % EVERY == 0:
                self.save()
        self.wait()

    def one(self, x: torch.Tensor) -> None:
        """One step, which draws from every random stream."""
        noise = random.random() + numpy.random.rand()
        loss = (self.model(x) + noise * x).square().mean()
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        if dist.is_initialized():
            for parameter in self.model.parameters():
                dist.all_reduce(parameter.grad)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        pinner.fingerprint("loss", loss)


if __name__ == "__main__":
    if "RANK" in os.environ:
        ranks.join()
    Run(Path(sys.argv[1]), int(os.environ.get("RANK", "0"))).train()
    if dist.is_initialized():
        ranks.leave()
