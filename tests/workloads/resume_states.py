"""Saves and restores in one process, once for each way to forget something; prints what was found.

The program of tests/workloads/resume_train.py, without processes that are killed: what differs is
only what was planted. Prints {name: {"lacks": …, "differences": …, "lines": …}} as JSON.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pinner.compare import resume
from pinner.inside import ledger
from pinner.inside.evidence import fingerprint, optimizer
from pinner.inside.evidence.resume import loaders, moments, ready, registry, snapshot, streams
from pinner.inside.evidence.resume.compiled import graphs, marks

LACKS = ("", "python", "numpy", "torch", "steps", "schedule", "scaler", "loader", "scale")


class Process:
    """What would be a process of its own: its lines, and nothing left of the one before."""

    def __init__(self, role: str | None, at: int = 1) -> None:
        gc.collect()
        for kept in (
            registry.modules,
            registry.optimizers,
            registry.schedules,
            registry.scalers,
            registry.loaders,
        ):
            kept.__init__()  # type: ignore[misc]
        loaders._positions.clear()
        fingerprint._steps.clear()
        optimizer._numbers.clear()
        optimizer._count = 0
        self.lines: list[dict[str, Any]] = []
        self._plain = ledger.write
        ready._moments = None if role is None else moments.Moments(role, at)

    def __enter__(self) -> Process:
        ledger.write = lambda line, sync=False: self.lines.append(json.loads(json.dumps(line)))
        return self

    def __exit__(self, *_: object) -> None:
        if ready._moments is not None:
            ready._moments.end()
        ledger.write = self._plain
        ready._moments = None

    def told(self, at: int = 1) -> resume.Told:
        found = resume.told(self.lines, at)
        assert found is not None
        return found


def histories(train: Any, lack: str, save: str) -> dict[str, Any]:
    """A whole run, and one that is restored from its first checkpoint with something lacking."""
    train.SAVE, train.LACKS = save, {lack}
    with tempfile.TemporaryDirectory() as folder:
        with Process(moments.WHOLE) as whole:
            train.Run(Path(folder), 0).train()
        train.STEPS, steps = 2, train.STEPS
        os.mkdir(os.path.join(folder, "killed"))
        with Process(moments.WHOLE) as killed:  # it would wait for its end
            train.Run(Path(folder, "killed"), 0).train()
        train.STEPS = steps
        with Process(moments.RESTORED) as restored:
            train.Run(Path(folder, "killed"), 0).train()
    findings = resume.compare({0: whole.told()}, {0: killed.told()}, {0: restored.told()})
    return {
        "lacks": [each.to_json() for each in findings.lacks],
        "parted": len(findings.parted),
        "differences": [each.to_json() for each in findings.differences],
        "compared": sorted(findings.compared.values()),
        "saves": whole.told().saves,
        "how": whole.told().how,
    }


def untouched(train: Any) -> dict[str, Any]:
    """Whether reading everything changes a random stream, or makes state that was not there."""
    import torch

    with tempfile.TemporaryDirectory() as folder, Process(moments.WHOLE):
        run = train.Run(Path(folder), 0)
        before = streams.digests()
        versions = [p._version for p in run.model.parameters()]
        first = snapshot.take(run.state())
        second = snapshot.take(run.state())
        return {
            "streams": before == streams.digests(),
            "same": first == second,
            "optimizer": len(run.optimizer.state),
            "gradients": sum(p.grad is not None for p in run.model.parameters()),
            "versions": versions == [p._version for p in run.model.parameters()],
            "epochs": [position.begun for _, _, position in loaders.positions()],
            "cuda": torch.cuda.is_initialized(),
            "kinds": {name: group["kind"] for name, group in first.items()},
        }


def watched(train: Any) -> dict[str, Any]:
    """The evidence of a run that nobody looks into, and of one whose state is read."""
    found = {}
    train.SAVE, train.LACKS, train.EVERY = "call", set(), 2
    for name, role in (("plain", None), ("read", moments.WHOLE)):
        with tempfile.TemporaryDirectory() as folder, Process(role) as process:
            train.Run(Path(folder), 0).train()
        lines = [line for line in process.lines if line["t"] == "evidence"]
        found[name] = [(line["stream"], line["step"], line["digest"]) for line in lines]
    return found


def counted(train: Any) -> dict[str, Any]:
    """Which files are checkpoints, and how many files are one."""
    import torch

    found: dict[str, Any] = {}

    def saves(name: str, save: Callable[[Any, Path], None]) -> None:
        with tempfile.TemporaryDirectory() as folder, Process(moments.WHOLE, at=9) as process:
            train.STEPS = 1
            run = train.Run(Path(folder), 0)
            run.save = lambda: save(run, Path(folder))
            train.EVERY, every = 1, train.EVERY
            run.train()
            train.EVERY = every
        found[name] = [line["number"] for line in process.lines if line.get("at") == "saved"]

    def clones(run: Any, folder: Path) -> None:
        torch.save({n: t.clone() for n, t in run.model.state_dict().items()}, folder / "copy.pt")

    def buffer(run: Any, folder: Path) -> None:
        import io

        torch.save(run.model.state_dict(), io.BytesIO())

    def called(run: Any, folder: Path) -> None:
        import pinner

        torch.save(run.model.state_dict(), folder / "a.pt")
        torch.save(run.optimizer.state_dict(), folder / "b.pt")
        pinner.checkpoint_saved(run.model)
        torch.save(run.model.state_dict(), folder / "best.pt")

    def two(run: Any, folder: Path) -> None:
        torch.save(run.model.state_dict(), folder / "a.pt")
        torch.save(run.optimizer.state_dict(), folder / "b.pt")

    saves("a file", lambda run, folder: torch.save(run.model, folder / "a.pt"))
    saves("two files", two)
    saves("copies", clones)
    saves("a call around files", called)
    saves("a buffer", buffer)
    saves("metrics", lambda run, folder: torch.save({"loss": torch.ones(3)}, folder / "a.pt"))
    return found


def named(_train: Any) -> dict[str, Any]:
    """How state is called that the training program has not."""
    import numpy
    import torch

    with Process(moments.WHOLE):

        class Meta:
            def __init__(self) -> None:
                self.amax_history = torch.ones(2)

        class Odd(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = torch.nn.Parameter(
                    torch.ones(2, 2).to(torch.float8_e4m3fn), requires_grad=False
                )
                self.fp8_meta = {"scaling_fwd": Meta()}
                self.dropout_seed = torch.tensor(7)
                self.draw = torch.Generator()
                self.cache = [torch.zeros(1)]

        odd = Odd()
        loose = torch.nn.Parameter(torch.ones(3))
        sgd = torch.optim.SGD([loose], lr=0.1, momentum=0.9)
        sampler = torch.utils.data.distributed.DistributedSampler(
            [1, 2, 3, 4], num_replicas=1, rank=0
        )
        sampler.set_epoch(3)
        loader = torch.utils.data.DataLoader([1, 2, 3, 4], sampler=sampler)
        iterator = iter(loader)
        next(iterator)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(sgd)
        megatron = types.ModuleType("megatron.core.tensor_parallel.random")
        tracker = types.SimpleNamespace(states_={"model-parallel-rng": torch.zeros(16)})
        megatron._CUDA_RNG_STATE_TRACKER = tracker  # type: ignore[attr-defined]
        sys.modules[megatron.__name__] = megatron
        passed = {"draw": numpy.random.default_rng(1), "deep": [{"x": 1.5}], "f": print}
        state = snapshot.take(passed)
        del sys.modules[megatron.__name__]
        assert None not in (odd, plateau)  # both live until here
    return {name: [group["kind"], sorted(group["leaves"])] for name, group in state.items()}


def compiled(_train: Any) -> dict[str, Any]:
    """What is known of a compiled function that met one shape, and then another."""
    import torch

    @torch.compile(backend="eager")
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    found = []
    for rows in (4, 4, 5):
        doubled(torch.ones(rows, 3))
        found.append([dict(marks()), graphs()])
    return {"marks": found}


def seeds(_train: Any) -> list[str]:
    """What is called a seed of workers: with workers, and without."""
    import torch

    with Process(moments.WHOLE):
        plain = torch.utils.data.DataLoader([1, 2])
        busy = torch.utils.data.DataLoader([1, 2], num_workers=1)
        iterators = [iter(plain), iter(busy)]
        for iterator in iterators:
            next(iterator)
        state = snapshot.take()
    return [name for name in state if name.startswith("worker seeds")]


def main() -> None:
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import resume_train

    gc.collect()
    gc.freeze()  # what was imported is not looked through again and again
    found: dict[str, Any] = {lack: histories(resume_train, lack, "call") for lack in LACKS}
    found["files"] = histories(resume_train, "", "files")
    found["untouched"] = untouched(resume_train)
    found["watched"] = watched(resume_train)
    found["named"] = named(resume_train)
    found["counted"] = counted(resume_train)
    found["seeds"] = seeds(resume_train)
    found["compiled"] = compiled(resume_train)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
