"""A small training program on pretended memory, which writes trace logs; faults can be planted.

Values are texts: what an operation puts out is a hash of what it does and of what it read, so a
fault reaches exactly what depends on it. Which event a fault is seen at first follows from where it
was planted, and is known without looking at the comparison.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Line = dict[str, Any]
RANKS = (0, 1)


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong at one event of a rank, counted from 0.

    kind: "flip" changes its first output; "poke" changes the memory of its first input before it
    reads that; "silent" leaves its line out, but not what it does.
    """

    rank: int
    event: int
    kind: str = "flip"


@dataclass
class Tensor:
    """A view of a storage. `seen` tells views of one storage apart."""

    storage: int
    shape: tuple[int, ...]
    seen: str = ""


@dataclass
class Rank:
    """The memory and the log of one rank. first: where storage numbers begin."""

    rank: int
    faults: Sequence[Fault] = ()
    first: int = 1
    values: dict[int, str] = field(default_factory=dict)
    events: list[Line] = field(default_factory=list)
    done: int = 0
    step: int = 0

    def made(self, value: str, shape: tuple[int, ...]) -> Tensor:
        number = self.first + len(self.values)
        self.values[number] = value
        return Tensor(number, shape)

    def digest(self, tensor: Tensor) -> str:
        return "p128:" + hashed(self.values[tensor.storage], tensor.seen)

    def row(self, path: str, tensor: Tensor) -> list[Any]:
        shape = list(tensor.shape)
        return [path, self.digest(tensor), "float32", shape, None, tensor.storage]

    def do(
        self,
        name: str,
        module: str,
        ins: Sequence[Tensor],
        act: Callable[[], Tensor],
        *,
        kind: str = "op",
        phase: str = "f",
        **extra: Any,
    ) -> Tensor:
        """One operation: writes its line, with what it read and what it put out."""
        planted = [f.kind for f in self.faults if (f.rank, f.event) == (self.rank, self.done)]
        self.done += 1
        if "poke" in planted:
            self.values[ins[0].storage] = hashed(self.values[ins[0].storage], "poke")
        rows = [self.row(str(n), tensor) for n, tensor in enumerate(ins)]
        out = act()
        if "flip" in planted:
            self.values[out.storage] = hashed(self.values[out.storage], "flip")
        line = {"e": kind, "n": name, "m": module, "p": phase, "s": self.step}
        line |= {"in": rows, "out": [self.row("0", out)]}
        if extra:
            line["x"] = extra
        if "silent" not in planted:
            self.events.append(line)
        return out

    def math(self, name: str, module: str, *ins: Tensor, phase: str = "f", **extra: Any) -> Tensor:
        """An operation with a new output."""
        return self.do(
            name,
            module,
            ins,
            lambda: self.made(hashed(name, *map(self.digest, ins)), ins[0].shape),
            phase=phase,
            **extra,
        )

    def view(self, name: str, module: str, base: Tensor) -> Tensor:
        """An operation whose output is the same memory."""
        return self.do(
            name, module, [base], lambda: Tensor(base.storage, base.shape, name), view=True
        )

    def update(self, name: str, target: Tensor, other: Tensor) -> Tensor:
        """An operation in place."""

        def act() -> Tensor:
            self.values[target.storage] = hashed(name, self.digest(target), self.digest(other))
            return target

        return self.do(name, "", [target, other], act, phase="o", writes=["0"])


def hashed(*parts: str) -> str:
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:32]


def run(*faults: Fault, steps: int = 3, layers: int = 2, first: int = 1) -> list[list[Line]]:
    """The events of two data-parallel ranks."""
    ranks = [Rank(rank, faults, first) for rank in RANKS]
    weights = {
        rank.rank: [rank.made(hashed("w", str(n)), (4, 4)) for n in range(layers)] for rank in ranks
    }
    for step in range(steps):
        grads = []
        for rank in ranks:
            rank.step = step
            grads.append(_forward_backward(rank, weights[rank.rank]))
        _reduce(ranks, grads)
        for rank, own in zip(ranks, grads, strict=True):
            for weight, grad in zip(weights[rank.rank], own, strict=True):
                rank.update("aten.add_.Tensor", weight, grad)
    return [rank.events for rank in ranks]


def _forward_backward(rank: Rank, weights: Sequence[Tensor]) -> list[Tensor]:
    x = rank.made(hashed("data", str(rank.rank), str(rank.step)), (4, 4))
    kept = []
    for number, weight in enumerate(weights):
        name = f"layers.{number}"
        viewed = rank.view("aten.view.default", f"{name}.attn", x)
        turned = rank.view("aten.t.default", f"{name}.attn", weight)
        mixed = rank.math("aten.mm.default", f"{name}.attn", viewed, turned)
        scaled = rank.math("aten.mul.Tensor", f"{name}.attn", mixed, viewed)
        again = rank.view("aten.view.default", f"{name}.attn", scaled)
        dropped = rank.math("aten.native_dropout.default", f"{name}.mlp", again)
        active = rank.math("aten.relu.default", f"{name}.mlp", dropped)
        kept.append(active)
        x = active
    loss = rank.math("aten.mean.default", "", x)
    rank.do("loss", "", [], lambda: loss, kind="step")
    grad, grads = loss, []
    for number in reversed(range(len(weights))):
        name = f"layers.{number}"
        grad = rank.math(
            "aten.threshold_backward.default", f"{name}.mlp", grad, kept[number], phase="b"
        )
        grads.append(rank.math("aten.mm.default", f"{name}.attn", grad, weights[number], phase="b"))
    return grads[::-1]


def _reduce(ranks: Sequence[Rank], grads: Sequence[Sequence[Tensor]]) -> None:
    for tensors in zip(*grads, strict=True):
        read = [rank.digest(tensor) for rank, tensor in zip(ranks, tensors, strict=True)]
        for rank, tensor in zip(ranks, tensors, strict=True):

            def act(
                rank: Rank = rank, tensor: Tensor = tensor, total: str = hashed("sum", *read)
            ) -> Tensor:
                rank.values[tensor.storage] = total
                return tensor

            rank.do(
                "all_reduce",
                "",
                [tensor],
                act,
                kind="collective",
                phase="b",
                group=list(RANKS),
                writes=["0"],
            )


def numbered(events: Sequence[Line]) -> list[Line]:
    """Events with invocation counts and running numbers, as a writer gives them."""
    seen: Counter[Any] = Counter()
    lines = []
    for order, event in enumerate(events):
        key = tuple(event.get(name) for name in "enmps")
        line = {"e": event["e"], "n": event["n"], "i": seen[key], **event, "q": order}
        seen[key] += 1
        lines.append(line)
    return lines


def write(
    folder: Path,
    ranks: Sequence[Sequence[Line] | None],
    *,
    ended: bool = True,
    tail: bytes = b"",
    world: int | None = None,
    valid: bool | None = True,
    level: str = "ops",
    window: tuple[int | None, int | None] = (None, None),
    algorithm: str = "p128",
    command: Sequence[str] = ("python", "train.py"),
) -> Path:
    """A trace folder; None in place of a rank that left no log."""
    folder.mkdir(parents=True)
    size = len(ranks) if world is None else world
    meta = {"command": list(command), "level": level, "world": size, "valid": valid}
    (folder / "trace.json").write_text(json.dumps(meta))
    for rank, events in enumerate(ranks):
        if events is None:
            continue
        head = {"t": "trace", "version": 1, "rank": rank, "world": size, "pid": 7, "host": "h"}
        head |= {"level": level, "torch": "2.13.0", "algorithm": algorithm, "time": "2026"}
        head["window"] = {"from": window[0], "to": window[1], "modules": None}
        lines: list[Line] = [head, *numbered(events)]
        if ended:
            lines.append({"t": "end", "events": len(events)})
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        path = folder / f"rank-{rank}" / f"h-7-{rank}.jsonl"
        path.parent.mkdir()
        path.write_bytes(text.encode() + tail)
    return folder
