"""A small transformer with experts, trained on the CPU in seconds; a variable plants faults.

Started by python, or by torchrun with gloo (ranks sum their gradients).

--compile                 compile the model
--steps N                 how many steps in all (default 4)
--checkpoint-at N FILE    save everything after step N-1; --stop ends the run there
--resume-from FILE        restore it and go on
--dcp                     save with torch.distributed.checkpoint (FILE is a folder then)
--every N FOLDER          save every N steps, and go on from what is there, as `pinner verify
                          --resume` wants it

PLANT=KIND:RANK:STEP[:SITE[:PLACE]] plants one fault on one rank at one step ("*": each of them).
TURNS=FILE plants it in every second run only; FILE counts them. The faults:

bitflip   the low bit of one element (PLACE) of what the linear operation of module SITE returns
atomics   the sum over experts in an order of its own each time, as atomic additions have it
routing   two tokens change places in the routing map
scale     the scale of the quantiser is made on another way: times 1/448, not divided by 448
outside   a kernel that the dispatcher does not see flips a bit of the weight of module SITE
copy      a copy that nobody waited for: its target holds something else for a while
rng       the random states are not restored from the checkpoint (RANK and STEP: "*")
loader    the loader begins its epoch again after a restart (RANK and STEP: "*")
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

import pinner
from tests.workloads import ranks
from tests.workloads.moe_sites import BLOCKS, EXPERTS

WIDTH, HEADS, LENGTH, BATCH, WORDS = 32, 2, 8, 4, 64


class Plant:
    """The fault of this run, and where the run is."""

    def __init__(self, text: str) -> None:
        parts = (*text.split(":"), "", "", "", "", "")[:5]
        self.kind, self.rank, self.step, self.site, place = parts
        self.place = int(place or 5)
        self.now = -1
        self.here = 0

    def due(self, kind: str, site: str = "") -> bool:
        """Whether this is the place."""
        return (
            self.kind == kind
            and self.rank in ("*", str(self.here))
            and self.step in ("*", str(self.now))
            and self.site in ("", site)
        )


def planted() -> Plant:
    """The fault that the environment asks for in this run."""
    turns = os.environ.get("TURNS")
    if turns is not None:
        path = Path(f"{turns}.{os.environ.get('RANK', '0')}")
        count = path.stat().st_size if path.exists() else 0
        path.write_bytes(b"." * (count + 1))
        if count % 2 == 0:
            return Plant("")
    return Plant(os.environ.get("PLANT", ""))


PLANT = planted()


def custom_op(name: str, schema: str) -> Any:
    """A custom operation that changes none of its arguments.

    With a schema: torch 2.4 reads no annotations that are texts.
    """
    return torch.library.custom_op(name, mutates_args=(), schema=schema)


def flip(tensor: torch.Tensor, place: int) -> None:
    """Flips the lowest bit of one element, past the dispatcher."""
    address = tensor.data_ptr() + place % tensor.numel() * tensor.element_size()
    ctypes.c_uint32.from_address(address).value ^= 1


@custom_op("moe::linear", "(Tensor x, Tensor weight, str site) -> Tensor")
def linear(x: torch.Tensor, weight: torch.Tensor, site: str) -> torch.Tensor:
    """x times the transposed weight: (..., in), (out, in) → (..., out)."""
    out = x @ weight.t()
    if PLANT.due("bitflip", site):
        flip(out, PLANT.place)
    return out


@linear.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, site: str) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _linear_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, weight, _ = inputs
    ctx.save_for_backward(x, weight)


def _linear_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
    x, weight = ctx.saved_tensors
    return grad @ weight, grad.flatten(0, -2).t() @ x.flatten(0, -2), None


linear.register_autograd(_linear_backward, setup_context=_linear_context)


@custom_op("moe::route", "(Tensor scores) -> Tensor")
def route(scores: torch.Tensor) -> torch.Tensor:
    """The three best experts of each token: (tokens, experts) → (tokens, 3), int64."""
    chosen = scores.topk(3, dim=-1).indices
    if PLANT.due("routing"):
        first = next(at for at in range(1, len(chosen)) if not torch.equal(chosen[0], chosen[at]))
        chosen[[0, first]] = chosen[[first, 0]]
    return chosen.contiguous()


@route.register_fake
def _(scores: torch.Tensor) -> torch.Tensor:
    return scores.new_empty((scores.shape[0], 3), dtype=torch.int64)


@custom_op("moe::combine", "(Tensor parts) -> Tensor")
def combine(parts: torch.Tensor) -> torch.Tensor:
    """The sum over experts: (experts, tokens, width) → (tokens, width), in one fixed order."""
    order = list(range(len(parts)))
    if PLANT.due("atomics"):
        while order[:2] in ([0, 1], [1, 0]):  # their sum would be the same
            random.SystemRandom().shuffle(order)
    total = torch.zeros_like(parts[0])
    for number in order:
        total = total + parts[number]
    return total


@combine.register_fake
def _(parts: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(parts[0])


def _combine_backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    return grad.expand(ctx.experts, *grad.shape)


def _combine_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.experts = len(inputs[0])


combine.register_autograd(_combine_backward, setup_context=_combine_context)


@custom_op("moe::scale_of", "(Tensor x) -> Tensor")
def scale_of(x: torch.Tensor) -> torch.Tensor:
    """The scale that brings the largest element to 448, the largest number of float8_e4m3fn."""
    largest = x.abs().max().clamp(min=1e-12)
    if PLANT.due("scale"):
        return largest * torch.tensor(1 / 448)
    return largest / 448


@scale_of.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(())


class Quantised(torch.autograd.Function):
    """Rounds to float8_e4m3fn and back; the gradient goes through."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return (x / scale).to(torch.float8_e4m3fn).to(x.dtype) * scale

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


class Linear(torch.nn.Module):
    """A linear map without a bias, by our operation."""

    def __init__(self, inner: int, outer: int, site: str) -> None:
        super().__init__()
        self.site = site
        self.weight = torch.nn.Parameter(torch.randn(outer, inner) / inner**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.weight, self.site)


class Attention(torch.nn.Module):
    """Causal attention."""

    def __init__(self, site: str) -> None:
        super().__init__()
        self.qkv = Linear(WIDTH, 3 * WIDTH, f"{site}.qkv")
        self.out = Linear(WIDTH, WIDTH, f"{site}.out")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        parts = self.qkv(x).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*parts.unbind(0), is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))


class Experts(torch.nn.Module):
    """Each token goes to three of four experts, whose activations are quantised."""

    def __init__(self, site: str) -> None:
        super().__init__()
        self.router = Linear(WIDTH, EXPERTS, f"{site}.router")
        self.up = torch.nn.ModuleList(
            Linear(WIDTH, 2 * WIDTH, f"{site}.up.{n}") for n in range(EXPERTS)
        )
        self.down = torch.nn.ModuleList(
            Linear(2 * WIDTH, WIDTH, f"{site}.down.{n}") for n in range(EXPERTS)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.reshape(-1, WIDTH)
        scores = self.router(tokens).softmax(-1)
        chosen = route(scores)
        weights = torch.zeros_like(scores).scatter(1, chosen, scores.gather(1, chosen))
        parts = []
        for number in range(EXPERTS):
            inner = functional.gelu(self.up[number](tokens))
            inner = Quantised.apply(inner, scale_of(inner.detach()))
            parts.append(self.down[number](inner) * weights[:, number : number + 1])
        return combine(torch.stack(parts)).view_as(x)


class Block(torch.nn.Module):
    """Attention, then experts, each beside the identity."""

    def __init__(self, site: str) -> None:
        super().__init__()
        self.first, self.second = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.attention = Attention(f"{site}.attention")
        self.experts = Experts(f"{site}.experts")
        self.dropout = torch.nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first(x))
        return x + self.dropout(self.experts(self.second(x)))


class Model(torch.nn.Module):
    """Words in, scores of the next words out."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, WIDTH)
        self.blocks = torch.nn.ModuleList(Block(f"blocks.{n}") for n in range(BLOCKS))
        self.head = Linear(WIDTH, WORDS, "head")

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.words(text)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Loader:
    """Goes through a fixed text in an order of its own each epoch, and knows where it is."""

    def __init__(self, rank: int) -> None:
        draw = torch.Generator().manual_seed(100 + rank)
        self.text = torch.randint(WORDS, (24, LENGTH + 1), generator=draw)
        self.seed, self.epoch, self.place = rank, 0, 0

    def next(self) -> torch.Tensor:
        """The next batch: (BATCH, LENGTH + 1), int64."""
        draw = torch.Generator().manual_seed(1000 * self.seed + self.epoch)
        order = torch.randperm(len(self.text), generator=draw)
        batch = self.text[order[self.place : self.place + BATCH]]
        self.place += BATCH
        if self.place >= len(self.text):
            self.epoch, self.place = self.epoch + 1, 0
        return batch


class Run:
    """Everything that a checkpoint has to hold."""

    def __init__(self, compiled: bool) -> None:
        torch.manual_seed(0)
        random.seed(0)
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.world = dist.get_world_size() if dist.is_initialized() else 1
        PLANT.here = self.rank
        self.model = Model()
        self.forward: Any = torch.compile(self.model) if compiled else self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)
        self.loader = Loader(self.rank)
        self.host = torch.zeros(BATCH, LENGTH)
        self.done = 0
        torch.manual_seed(10 + self.rank)  # ranks drop out other elements

    def step(self) -> None:
        """One step of training."""
        PLANT.now = self.done
        if PLANT.due("outside", PLANT.site):
            flip(self.model.get_parameter(f"{PLANT.site}.weight"), 7)
        batch = self.loader.next()
        scores = self.forward(batch[:, :-1])
        losses = functional.cross_entropy(
            scores.flatten(0, 1), batch[:, 1:].flatten(), reduction="none"
        )
        self.copy_out(losses.detach().view(BATCH, LENGTH))
        loss = losses.mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.sum_gradients()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        pinner.fingerprint("loss", loss, step=self.done)
        pinner.fingerprint("grad_norm", norm, step=self.done)
        print(f"rank {self.rank} step {self.done} loss {loss.item():.6f}", flush=True)
        self.done += 1

    def copy_out(self, losses: torch.Tensor) -> None:
        """Copies the losses to the host, as a program does that will print them later.

        A copy of a device is still under way when the call returns; here a thread plays that part
        and is waited for before anybody reads.
        """
        self.host.copy_(losses, non_blocking=True)
        if not PLANT.due("copy"):
            return
        address, size = self.host.data_ptr(), self.host.nbytes
        right = ctypes.string_at(address, size)
        ctypes.memmove(address, os.urandom(size), size)

        def arrive() -> None:
            time.sleep(0.01)
            ctypes.memmove(address, right, size)

        copying = threading.Thread(target=arrive)
        copying.start()
        copying.join()

    def sum_gradients(self) -> None:
        """The mean over ranks, in one collective."""
        if self.world == 1:
            return
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        flat /= self.world
        parts = flat.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def state(self) -> dict[str, Any]:
        """What is saved."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "random": {"torch": torch.get_rng_state(), "python": random.getstate()},
            "loader": {"epoch": self.loader.epoch, "place": self.loader.place},
            "done": self.done,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on where the state was saved."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.done = state["done"]
        if PLANT.kind != "rng":
            torch.set_rng_state(state["random"]["torch"])
            random.setstate(state["random"]["python"])
        if PLANT.kind != "loader":
            self.loader.epoch, self.loader.place = (
                state["loader"]["epoch"],
                state["loader"]["place"],
            )


def save(run: Run, place: str, in_parts: bool) -> None:
    """Writes the state of this rank: to FILE.rank, or into a folder of distributed checkpoints."""
    if not in_parts:
        torch.save(run.state(), f"{place}.{run.rank}")
        return
    from torch.distributed import checkpoint

    state = run.state()
    tensors = {"model": state["model"], "optimizer": state["optimizer"]}
    Path(place).mkdir(exist_ok=True)
    if run.rank == 0 or run.world > 1:
        checkpoint.save(tensors, checkpoint_id=place)
    torch.save(
        {name: state[name] for name in ("schedule", "random", "loader", "done")},
        os.path.join(place, f"rank.{run.rank}"),
    )


def load(run: Run, place: str, in_parts: bool) -> None:
    """Reads it back."""
    if not in_parts:
        run.restore(torch.load(f"{place}.{run.rank}", weights_only=False))
        return
    from torch.distributed import checkpoint

    for parameter in run.model.parameters():  # the optimizer's state is made by its first step
        parameter.grad = torch.zeros_like(parameter)
    rate = [group["lr"] for group in run.optimizer.param_groups]
    for group in run.optimizer.param_groups:
        group["lr"] = 0.0
    run.optimizer.step()
    for group, value in zip(run.optimizer.param_groups, rate, strict=True):
        group["lr"] = value
    state: dict[str, Any] = {
        "model": run.model.state_dict(),
        "optimizer": run.optimizer.state_dict(),
    }
    checkpoint.load(state, checkpoint_id=place)
    state.update(torch.load(os.path.join(place, f"rank.{run.rank}"), weights_only=False))
    run.restore(state)


def keep(run: Run, folder: Path, in_parts: bool) -> None:
    """Saves, and then says which checkpoint is whole."""
    place = folder / f"step-{run.done}"
    folder.mkdir(parents=True, exist_ok=True)
    save(run, str(place), in_parts)
    if dist.is_initialized():
        dist.barrier()
    (folder / f"latest.{run.rank}").write_text(place.name)
    pinner.checkpoint_saved(run.state(), path=str(place))


def go_on(run: Run, folder: Path, in_parts: bool) -> None:
    """Restores the last whole checkpoint, where there is one."""
    latest = folder / f"latest.{run.rank}"
    if not latest.exists():
        return
    place = folder / latest.read_text()
    load(run, str(place), in_parts)
    pinner.checkpoint_restored(run.state(), path=str(place))


def main() -> None:
    """Trains."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--checkpoint-at", nargs=2, metavar=("N", "FILE"))
    parser.add_argument("--stop", action="store_true")
    parser.add_argument("--resume-from", metavar="FILE")
    parser.add_argument("--dcp", action="store_true")
    parser.add_argument("--every", nargs=2, metavar=("N", "FOLDER"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        ranks.join()
    run = Run(arguments.compile)
    if arguments.resume_from:
        load(run, arguments.resume_from, arguments.dcp)
    every, folder = arguments.every or ("0", "")
    if every != "0":
        go_on(run, Path(folder), arguments.dcp)
    while run.done < arguments.steps:
        run.step()
        if every != "0" and run.done % int(every) == 0:
            keep(run, Path(folder), arguments.dcp)
        if arguments.checkpoint_at and run.done == int(arguments.checkpoint_at[0]):
            save(run, arguments.checkpoint_at[1], arguments.dcp)
            if arguments.stop:
                break
    if dist.is_initialized():
        ranks.leave()


if __name__ == "__main__":
    main()
