"""Kernels as Inductor writes them into a module of generated code, tuned in forks.

usage: inductor_kernels.py SCENARIOS OUT, as `inductor_forks.py`. Fields of a scenario: `kernel`
(reduction, user), `mode`, `pins`, `on_miss`, `place` or `seed` (which candidate wins, or at
random), `search` (coordinate descent on), `counter` and `device` (numbers that a process gives),
`folder` (for generated code and caches), `arrives` ("pickled": made by a worker under pinner;
"foreign": by one without; "": made here), `again` (a second, equal kernel).
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import torch
from torch._inductor.codecache import PyCodeCache
from torch._inductor.runtime import triton_heuristics

from pinner.inside.choosers.inductor import hooks
from pinner.inside.choosers.inductor.chooser import Chooser, Policy
from pinner.inside.choosers.inductor.lines import Lines
from tests.fakes import inductor_gpu
from tests.workloads import forking

os.environ.pop("TRITON_INTERPRET", None)  # asked when a kernel is made

HEAD = """
import triton
import triton.language as tl
from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.hints import DeviceProperties, ReductionHint
DEVICE = DeviceProperties(type='cuda', index=@DEVICE@, multi_processor_count=132, cc=90, major=9,
    regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, warp_size=32)
"""

META = """
        'grid_type': 'Grid1D', 'mutated_arg_names': [], 'optimize_mem': True, 'backend_hash': 'x',
        'max_autotune': True, 'max_autotune_pointwise': True, 'autotune_pointwise': True,
        'coordinate_descent_tuning': @SEARCH@, 'autotune_local_cache': True,
        'autotune_remote_cache': None, 'force_disable_caches': False, 'spill_threshold': 16,
        'dynamic_scale_rblock': True, 'min_split_scan_rblock': 256, 'store_cubin': False,
"""

REDUCTION = (
    HEAD
    + """
@triton_heuristics.reduction(
    size_hints={'x': 64, 'r0_': 4096}, reduction_hint=ReductionHint.INNER, filename=__file__,
    triton_meta={'signature': {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32',
        'r0_numel': 'i32', 'XBLOCK': 'constexpr', 'R0_BLOCK': 'constexpr'}, 'device': DEVICE,
        'constants': {}, 'configs': [{(0,): [['tt.divisibility', 16]]}]},
    inductor_meta={'kernel_name': 'triton_red_fused_sum_@COUNTER@',"""
    + META
    + """})
@triton.jit
def triton_red_fused_sum_@COUNTER@(in_ptr0, out_ptr0, xnumel, r0_numel,
                                   XBLOCK: tl.constexpr, R0_BLOCK: tl.constexpr):
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:, None]
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    total = tl.full([XBLOCK, R0_BLOCK], 0, tl.float32)
    for r0_offset in range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        mask = (r0_index < r0_numel) & (xindex < xnumel)
        total += tl.load(in_ptr0 + r0_index + 4096 * xindex, mask, other=0.0)
    tl.store(out_ptr0 + xindex, tl.sum(total, 1)[:, None], xindex < xnumel)

kernel = triton_red_fused_sum_@COUNTER@
"""
)

USER = (
    HEAD
    + """
OFFSET: tl.constexpr = tl.constexpr(@OFFSET@)

@triton.jit
def shift(x):
    return x + OFFSET

@triton_heuristics.user_autotune(
    configs=[{'BLOCK': 64, 'num_warps': 1, 'num_stages': 2},
             {'BLOCK': 128, 'num_warps': 2, 'num_stages': 2},
             {'BLOCK': 256, 'num_warps': 4, 'num_stages': 2}],
    triton_meta={'signature': {'x': '*fp32', 'out': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32',
        'BLOCK': 'constexpr'}, 'device': DEVICE, 'constants': {}, 'configs': [{}]},
    inductor_meta={'kernel_name': 'shifted_@COUNTER@', 'grid_type': 'FixedGrid',
        'fixed_grid': [1, 1, 1], 'extra_launcher_args': [],"""
    + META.replace("'grid_type': 'Grid1D', ", "")
    + """},
    filename=__file__, custom_kernel=True)
@triton.jit
def shifted(x, out, xnumel, r0_numel, BLOCK: tl.constexpr):
    # @COMMENT@
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + index, shift(tl.load(x + index, index < xnumel)), index < xnumel)

kernel = shifted
"""
)

SOURCES = {"reduction": REDUCTION, "user": USER}


def source_of(scenario: dict[str, Any]) -> str:
    """The generated module of a scenario."""
    text = SOURCES[scenario.get("kernel", "reduction")]
    for name, default in (
        ("counter", 0),
        ("device", 0),
        ("search", False),
        ("offset", 1.5),
        ("comment", "shifts"),
    ):
        text = text.replace(f"@{name.upper()}@", str(scenario.get(name, default)))
    return text


def put_in(scenario: dict[str, Any], lines: list[dict[str, Any]]) -> None:
    """Install the chooser as a session would."""
    mode, on_miss = scenario.get("mode", "plain"), scenario.get("on_miss", "fallback")
    if mode == "plain":
        return
    locked = scenario.get("pins", {}).get("inductor", {})
    policy = Policy(mode == "enforce", on_miss, locked.get)
    chooser = Chooser(policy, Lines(lines.append, lambda: "now"))
    by_module = hooks.hooks_of(chooser, "tag")
    for name in ("triton_heuristics", "coordinate_descent_tuner"):
        full = "torch._inductor.runtime." + name
        by_module[full](importlib.import_module(full))


def load(scenario: dict[str, Any]) -> Any:
    """The kernel, made by executing its module."""
    return PyCodeCache.load(source_of(scenario)).kernel


def worker(scenario: dict[str, Any]) -> dict[str, Any]:
    """What a compile worker hands back: the kernel with all that it compiled."""
    inductor_gpu.install(inductor_gpu.nth(1))
    if scenario["arrives"] == "pickled":
        put_in(scenario, [])
    kernel = load(scenario)
    kernel.precompile(warm_cache_only=True)
    kernel.prepare_for_pickle()
    return {"kernel": pickle.dumps(kernel).hex(), "compiled": len(kernel.compile_results)}


def run(kernel: Any) -> dict[str, Any]:
    """Tune and launch twice; the config that it launches with."""
    x, out = torch.zeros(64, 4096), torch.zeros(64, 4096)
    for _ in range(2):
        kernel.run(x, out, 64, 4096, stream=0)
    (launcher,) = kernel.launchers
    config = launcher.config
    return {**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages}


def child(scenario: dict[str, Any]) -> dict[str, Any]:
    """One run, in a process of its own."""
    if "folder" in scenario:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = scenario["folder"]
    lines: list[dict[str, Any]] = []
    seed = scenario.get("seed")
    timer = inductor_gpu.nth(scenario.get("place", 1))
    benchmarker = inductor_gpu.install(inductor_gpu.shuffled(seed) if seed else timer)
    result: dict[str, Any] = {"error": "", "launched": []}
    compiled = None
    made = None
    if scenario.get("arrives"):
        handed = forking.in_a_fork(functools.partial(worker, scenario))
        made, compiled = pickle.loads(bytes.fromhex(handed["kernel"])), handed["compiled"]
        made.restore_after_unpickle(None)
    put_in(scenario, lines)
    try:
        kernel = made or load(scenario)
        kernel.precompile(reload_kernel=functools.partial(load, scenario))
        result["launched"].append(run(kernel))
        if scenario.get("again"):
            twin = load({**scenario, "counter": 7})
            twin.precompile()
            result["launched"].append(run(twin))
    except Exception as error:
        result["error"] = f"{type(error).__name__}: {error}"
    return {**result, "lines": lines, "benchmarks": benchmarker.calls, "compiled": compiled}


def main(scenarios: str, out: str) -> None:
    """Import everything, then fork for each scenario."""
    assert triton_heuristics.CachingAutotuner
    results = [
        forking.in_a_fork(functools.partial(child, scenario))
        for scenario in json.loads(Path(scenarios).read_text())
    ]
    Path(out).write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
