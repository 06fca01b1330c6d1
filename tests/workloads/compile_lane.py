"""Tunes and compiles the kernels to sm_90 binaries on a machine without a GPU.

usage: compile_lane.py FILE [observe|enforce FILE.pins] : writes the ledger lines of one process, as
JSON, to FILE. Run in its own process: the interpreter and the compiler cannot share one.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ.pop("TRITON_INTERPRET", None)

import torch
import triton
import triton.compiler
from triton.runtime import autotuner

from pinner.inside.choosers.triton import hooks, versions
from pinner.inside.choosers.triton.chooser import Chooser, Policy
from tests.fakes import noop_driver, timers


def main(out: str, mode: str = "observe", pins: str = "", kernels: str = "") -> None:
    """Run two kernels under a chooser."""
    locked = json.loads(Path(pins).read_text()) if pins else {}
    lines: list[dict] = []
    version = versions.version_of(triton.__version__)
    chooser = Chooser(Policy(mode == "enforce", "fallback", locked.get, version), lines.append)
    hooks.patch(autotuner, chooser)
    hooks.patch_compile(triton.compiler, chooser)
    counted = timers.Counted(timers.shuffled(5))
    noop_driver.install(counted)
    if kernels:
        sys.path.insert(0, kernels)
        import moved_kernels as module
    else:
        from tests.workloads import kernels as module
    x, result = torch.randn(4096), torch.zeros(8)
    for _ in range(2):
        module.total[(1,)](x, result, 4096)
        module.several_keys[(8,)](x, result, n=512, rows=8)
    out_of_alignment = torch.randn(4097)[1:]
    module.total[(1,)](out_of_alignment, result, 4096)
    Path(out).write_text(json.dumps({"lines": lines, "benchmarks": counted.calls}))


if __name__ == "__main__":
    main(*sys.argv[1:])
