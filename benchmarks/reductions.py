"""Sums over the programs of a grid: by atomics, serial, and in private slots with a fixed tree.

The kernels of repros/atomics. On a CPU they run in Triton's interpreter, where each program takes
its turn: what the ratios say there is how much work each way is, not how much of it a GPU does at
once. Serial sums give that up, which only a GPU shows.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import torch

os.environ["TRITON_INTERPRET"] = "0" if torch.cuda.is_available() else "1"

import triton

from benchmarks import pairs

GPU = torch.cuda.is_available()
FILE = Path(__file__).resolve().parents[1] / "repros" / "atomics" / "repro.py"
ROUNDS = 9


def repro() -> ModuleType:
    """The program with the kernels."""
    spec = importlib.util.spec_from_file_location("atomics_repro", FILE)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found  # where dataclasses look their module up
    spec.loader.exec_module(found)
    return found


def main() -> None:
    """Measure and print."""
    atomics = repro()
    if GPU:
        sizes = atomics.Sizes(
            tiles=256, tokens=64, experts=64, hidden=128,
            groups=64, rows=64, inner=64, n_tiles=64, columns=64,
        )  # fmt: skip
        print(f"triton {triton.__version__}, {torch.cuda.get_device_name()}")
    else:
        sizes = atomics.Sizes(tiles=16, n_tiles=16)
        print(f"triton {triton.__version__}, Triton's interpreter on a CPU: not a GPU's figures")
    sums = atomics.Sums(sizes)

    def calls(name: str, how: str, repeat: int):
        def run() -> None:
            for _ in range(repeat):
                getattr(sums, name)(how)
            if GPU:
                torch.cuda.synchronize()

        return run

    repeat = 50 if GPU else 1
    for name in atomics.NAMES:
        tiles = sizes.n_tiles if name == "probs_grad" else sizes.tiles
        print(f"{name}, {tiles} tiles")
        times = pairs.in_turn({how: calls(name, how, repeat) for how in atomics.HOWS}, ROUNDS)
        pairs.report(times, repeat)


if __name__ == "__main__":
    main()
