"""A run that is resumed with one of its random streams restored, and the others seeded anew.

Prints the digest of the parameters after the last step. RESUME says how the run got there:

never    it was not stopped
partly   it was resumed; of four random streams the checkpoint had torch's alone (the default)
fully    it was resumed; the checkpoint had all four

Only torch is needed. The bits depend on the processor, so the digests are compared on one machine.
"""

from __future__ import annotations

import hashlib
import io
import os
import random

import torch

STEPS, STOP = 6, 3
BATCH, WIDTH = 4, 8


class Run:
    """All that a run holds. It draws from four streams: two of them are known to everybody."""

    def __init__(self):
        random.seed(0)  # 1: Python's: which samples are mirrored
        torch.manual_seed(0)  # 2: torch's: initial weights, dropout
        self.order = torch.Generator().manual_seed(1)  # 3: which samples make a batch
        self.noise = torch.Generator().manual_seed(2)  # 4: label smoothing
        self.data = torch.randn(16, WIDTH)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, WIDTH), torch.nn.Dropout(0.5), torch.nn.Linear(WIDTH, WIDTH)
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.step = 0

    def streams(self):
        """The state of every random stream, by name."""
        return {
            "torch": torch.get_rng_state(),
            "python": random.getstate(),
            "order": self.order.get_state(),
            "noise": self.noise.get_state(),
        }

    def put_back(self, streams):
        """Put back those random streams that there are."""
        put = {
            "torch": torch.set_rng_state,
            "python": random.setstate,
            "order": self.order.set_state,
            "noise": self.noise.set_state,
        }
        for name, state in streams.items():
            put[name](state)

    def train(self, until):
        """Go on until that many steps are made."""
        while self.step < until:
            rows = torch.randperm(len(self.data), generator=self.order)[:BATCH]
            batch = self.data[rows]
            if random.random() < 0.5:
                batch = batch.flip(1)
            target = batch + 0.1 * torch.rand(batch.shape, generator=self.noise)
            loss = (self.model(batch) - target).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.step += 1

    def save(self, names):
        """A checkpoint with these random streams, as bytes."""
        file = io.BytesIO()
        streams = self.streams()
        content = {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "streams": {name: streams[name] for name in names},
        }
        torch.save(content, file)
        return file.getvalue()

    def restore(self, checkpoint):
        """Go back to a checkpoint."""
        saved = torch.load(io.BytesIO(checkpoint))
        self.step = saved["step"]
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.put_back(saved["streams"])


def outputs():
    """The parameters after the last step."""
    how = os.environ.get("RESUME") or "partly"
    run = Run()
    if how != "never":
        run.train(STOP)
        checkpoint = run.save(["torch"] if how == "partly" else run.streams())
        run = Run()  # as a new process begins: every stream is seeded again
        run.restore(checkpoint)
    run.train(STEPS)
    return {name: tensor.detach() for name, tensor in run.model.named_parameters()}


def digest(tensor):
    """SHA-256 over dtype, shape and the bytes in C order."""
    shape = ",".join(str(size) for size in tensor.shape)
    found = hashlib.sha256(f"{str(tensor.dtype)[6:]}[{shape}]\0".encode())
    found.update(bytes(tensor.contiguous().view(torch.uint8).flatten().tolist()))
    return "sha256:" + found.hexdigest()


if __name__ == "__main__":
    for name, tensor in outputs().items():
        print("digest", name, digest(tensor))
