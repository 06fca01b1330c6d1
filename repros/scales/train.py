"""Trains a layer whose weight is used in low precision; goes on from a checkpoint where one is.

python train.py FOLDER            the scales are rebuilt from the bf16 weights when it resumes
python train.py --fixed FOLDER    values and scales are saved and loaded
--format mxfp8                    instead of nvfp4
"""

from __future__ import annotations

import argparse
from pathlib import Path

import repro
import torch

import pinner

STEPS, SIZE, BATCH = 4, 128, 8


class Quantised(torch.nn.Module):
    """A linear layer: bf16 weights for the checkpoint, packed values and scales for the work."""

    def __init__(self, how: str, *, saved: bool) -> None:
        super().__init__()
        self.how = how
        self.weight = torch.nn.Parameter(torch.empty(SIZE, SIZE, dtype=torch.bfloat16))
        for name, tensor in self.quantised(torch.zeros(SIZE, SIZE)).items():
            self.register_buffer(name, torch.zeros_like(tensor), persistent=saved)

    def quantised(self, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        """Values and scales of a weight, by the names of the buffers."""
        names = ("packed", "block_scales", *(["tensor_scale"] if self.how == "nvfp4" else []))
        return dict(zip(names, getattr(repro, self.how)(weight), strict=True))

    @torch.no_grad()
    def pack(self, weight: torch.Tensor) -> None:
        """Use this weight from now on."""
        for name, tensor in self.quantised(weight).items():
            getattr(self, name).copy_(tensor)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (batch, SIZE) in fp32. The gradient of the packed weight goes to `weight`."""
        if self.how == "nvfp4":
            used = repro.from_nvfp4(self.packed, self.block_scales, self.tensor_scale)
        else:
            used = torch.ldexp(self.packed.float(), self.block_scales[:, None].int() - 127)
        used = used.view(SIZE, SIZE)
        weight = self.weight.float()
        return x @ (used + weight - weight.detach())

    def report(self) -> None:
        """Rows are blocks: the comparison then names the block whose scale is another one."""
        scales = [self.block_scales]
        scales += [self.tensor_scale] if self.how == "nvfp4" else []
        pinner.fingerprint("low-precision weight", self.packed, rows=True, scales=scales)
        pinner.fingerprint("block scales", self.block_scales, rows=True)


class Training:
    """The layer, and the fp32 master weight that the optimizer changes."""

    def __init__(self, folder: Path, how: str, *, fixed: bool) -> None:
        self.file = folder / "checkpoint.pt"
        self.fixed = fixed
        draw = torch.Generator().manual_seed(0)
        self.data = torch.randn(STEPS, BATCH, SIZE, generator=draw)
        self.layer = Quantised(how, saved=fixed)
        self.master = torch.nn.Parameter(torch.randn(SIZE, SIZE, generator=draw) / SIZE**0.5)
        self.optimizer = torch.optim.Adam([self.master], lr=1e-3)
        self.step = 0
        self.take_over()

    @torch.no_grad()
    def take_over(self) -> None:
        """What the optimizer has made of the weight is what the layer uses."""
        self.layer.weight.copy_(self.master)
        self.layer.pack(self.master)

    def save(self) -> None:
        """Write a checkpoint."""
        state = {
            "step": self.step,
            "layer": self.layer.state_dict(),
            "master": self.master.detach(),
            "optimizer": self.optimizer.state_dict(),
        }
        torch.save(state, self.file)

    @torch.no_grad()
    def resume(self) -> None:
        """Go on from the checkpoint."""
        state = torch.load(self.file)
        self.step = state["step"]
        self.layer.load_state_dict(state["layer"])
        self.master.copy_(state["master"])
        self.optimizer.load_state_dict(state["optimizer"])
        if not self.fixed:
            self.layer.pack(self.layer.weight)

    def one(self) -> None:
        """One step."""
        self.layer.report()
        x = self.data[self.step]
        loss = (self.layer(x) - x).square().mean()
        pinner.fingerprint("loss", loss)
        loss.backward()
        self.master.grad = self.layer.weight.grad.float()
        self.layer.weight.grad = None
        self.optimizer.step()
        self.take_over()
        self.step += 1


def main() -> None:
    """Train to the end, from where it is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--format", choices=("nvfp4", "mxfp8"), default="nvfp4")
    words = parser.parse_args()
    training = Training(words.folder, words.format, fixed=words.fixed)
    if training.file.exists():
        training.resume()
    while training.step < STEPS:
        training.one()
        if training.step == STEPS // 2:
            training.save()


if __name__ == "__main__":
    main()
