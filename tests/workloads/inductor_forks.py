"""Forks of one process that has imported Inductor and compiled nothing that is looked at.

usage: inductor_forks.py SCENARIOS OUT. Reads a JSON list of scenarios, runs each in a fork of its
own, writes a JSON list of what each saw: digest, ledger lines, number of timed candidates, error.
See `tests/inductor_rig.py` for the fields of a scenario.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # a pool of workers cannot be forked

import torch
import torch._dynamo.pgo
import torch._functorch.config
import torch._inductor.compile_fx
import torch._inductor.fx_passes.pad_mm
import torch._inductor.output_code
from torch._dynamo.utils import counters
from torch._inductor import config, metrics

from pinner.inside.choosers.inductor import caches, hooks
from pinner.inside.choosers.inductor.chooser import Chooser, Policy
from pinner.inside.choosers.inductor.lines import Lines
from tests.fakes import inductor_timers
from tests.workloads import forking


def tensor(*shape: int, seed: int = 7) -> torch.Tensor:
    """Normal float32, the same in each process."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def bmm(rows: int = 32) -> torch.Tensor:
    """A batched product with an epilogue: ATen's kernel or a C++ template, of different bits."""

    @torch.compile(dynamic=False, options=COMPILE_OPTIONS or None)
    def work(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.bmm(a, b))

    with torch.no_grad():
        return work(tensor(4, rows, 256), tensor(4, 256, 64, seed=8))


def linear() -> torch.Tensor:
    """A frozen linear layer: MKL's kernel or a C++ template on a packed weight."""
    config.freezing = True
    torch._dynamo.reset()
    torch.manual_seed(3)
    layer = torch.nn.Linear(1024, 512).eval()
    with torch.no_grad():
        return torch.compile(layer, dynamic=False)(tensor(64, 1024))


def both_ways() -> torch.Tensor:
    """Two shapes, the second one first."""
    bmm(16)
    return bmm()


def twice() -> torch.Tensor:
    """The same question in two graphs."""
    bmm()
    torch._dynamo.reset()
    return bmm()


def padded() -> torch.Tensor:
    """A product of lengths that are no multiple of an alignment."""
    config.max_autotune = False
    config.shape_padding = True
    with torch.no_grad():
        work = torch.compile(torch.mm, dynamic=False)
        return work(tensor(33, 257), tensor(257, 65, seed=8))


def trained() -> torch.Tensor:
    """A backward graph that is compiled when it is first run."""
    torch._functorch.config.force_non_lazy_backward_lowering = False
    a = tensor(4, 32, 256).requires_grad_()

    @torch.compile(dynamic=False)
    def work(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.bmm(x, b).sin().sum()

    work(a, tensor(4, 256, 64, seed=8)).backward()
    assert a.grad is not None
    return a.grad


COMPILE_OPTIONS: dict[str, Any] = {}
WORK = {
    "bmm": bmm,
    "linear": linear,
    "both_ways": both_ways,
    "twice": twice,
    "padded": padded,
    "trained": trained,
}


def prepare(scenario: dict[str, Any]) -> None:
    """The options of a scenario; caches are off unless it names a folder."""
    os.environ.update(scenario.get("environment", {}))
    if "folder" in scenario:
        os.chdir(scenario["folder"])
    cache = scenario.get("cache")
    config.fx_graph_cache = torch._functorch.config.enable_autograd_cache = bool(cache)
    config.autotune_local_cache = bool(cache)
    if cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
    config.max_autotune = True
    config.max_autotune_gemm_backends = scenario.get("backends", "CPP,ATEN")
    for name, value in scenario.get("options", {}).items():
        setattr(config, name, value)
    COMPILE_OPTIONS.update(scenario.get("compile_options", {}))
    torch.compiler.config.cache_key_tag = scenario.get("tag", "")
    torch.compiler.config.job_id = scenario.get("job_id")
    if scenario.get("deterministic"):
        torch.use_deterministic_algorithms(True)


def put_in(scenario: dict[str, Any], lines: list[dict[str, Any]]) -> None:
    """Install the chooser as a session would."""
    mode, on_miss = scenario.get("mode", "plain"), scenario.get("on_miss", "fallback")
    if mode == "plain":
        return
    locked = scenario.get("pins", {})
    policy = Policy(mode == "enforce", on_miss, locked.get("inductor", {}).get)
    chooser = Chooser(policy, Lines(lines.append, lambda: "now"))
    active = SimpleNamespace(
        mode=mode,
        enforcing=mode == "enforce",
        on_miss=on_miss,
        folder=scenario.get("run", "run"),
        created="",
    )
    tag = caches.tag_of(active, locked.get("inductor_digest", ""))
    for name, hook in hooks.hooks_of(chooser, tag).items():
        hook(importlib.import_module(name))


def child(scenario: dict[str, Any]) -> dict[str, Any]:
    """One run, in a process of its own."""
    torch._dynamo.reset()
    lines: list[dict[str, Any]] = []
    put_in(scenario, lines)
    timer = scenario.get("timer")
    planted: Any = None
    if timer:
        planted = inductor_timers.plant(getattr(inductor_timers, timer)(scenario.get("seed", 0)))
    if "padding" in scenario:
        planted = inductor_timers.plant_padding(scenario["padding"])
    prepare(scenario)
    result: dict[str, Any] = {"error": "", "digest": ""}
    try:
        out = WORK[scenario["work"]]()
        result["digest"] = hashlib.sha256(out.contiguous().numpy().tobytes()).hexdigest()
    except Exception as error:
        result["error"] = f"{type(error).__name__}: {error}"
    result["lines"] = lines
    result["benchmarks"] = planted.calls if planted else 0
    result["kernels"] = metrics.generated_kernel_count
    result["cache_hits"] = counters["inductor"]["fxgraph_cache_hit"]
    result["tag"] = torch.compiler.config.cache_key_tag
    result["deterministic"] = [
        torch.are_deterministic_algorithms_enabled(),
        bool(config.deterministic),
    ]
    return result


def main(scenarios: str, out: str) -> None:
    """Import everything, then fork for each scenario."""
    torch.set_num_threads(1)
    config.fx_graph_cache = torch._functorch.config.enable_autograd_cache = False
    with torch.no_grad():
        torch.compile(torch.relu)(torch.ones(4))  # imports what the first compilation imports
    results = [
        forking.in_a_fork(functools.partial(child, scenario))
        for scenario in json.loads(Path(scenarios).read_text())
    ]
    Path(out).write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
