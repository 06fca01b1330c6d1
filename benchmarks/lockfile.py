"""How long a lock of 1,000 entries takes to read, against the TOML parser alone on the same text.

Prints ratios of one run, and the absolute times they come from; both vary with the machine. The
entries are as full as those of a real recording: two machine codes each, options and heuristics.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import tomli

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pinner.inside import pins
from pinner.lockfile.codec import dumps, loads
from pinner.lockfile.compiled import pins_text
from pinner.lockfile.diff import diff_locks
from pinner.lockfile.merge import fallbacks_of
from pinner.lockfile.schema import Evidence, Lock, Run, Stack, TritonEntry


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=7, help="the best round counts")
    options = parser.parse_args()

    lock = _lock(options.entries)
    text = dumps(lock)
    compiled = pins_text(lock, "sha256:" + "0" * 64)
    base = _best(lambda: tomli.loads(text), options.rounds)
    rows = {
        "TOML parser alone (tomli)": base,
        "read the lock": _best(lambda: loads(text, "x"), options.rounds),
        "write the lock": _best(lambda: dumps(lock), options.rounds),
        "diff with itself": _best(lambda: diff_locks(lock, lock), options.rounds),
        "compile the pins": _best(lambda: pins_text(lock, "sha256:0"), options.rounds),
        "a process reads the pins": _best(lambda: _read_pins(compiled), options.rounds),
    }
    print(f"{options.entries} entries, {len(text) / 1e3:.0f} kB of TOML, Python {sys.version[:6]}")
    for name, seconds in rows.items():
        print(f"  {name:<28} {seconds * 1e3:8.1f} ms   {seconds / base:5.2f} x the parser")


def _lock(count: int) -> Lock:
    entries = tuple(_entry(number) for number in range(count))
    run = Run(command=("python", "train.py"), created="2026-01-01T00:00:00Z", pinner="0")
    stack = Stack({"torch": "2.13.0", "triton": "3.9.0"}, {"python": "3.12"})
    return Lock(run, stack, {}, Evidence(), entries, fallbacks_of(entries))


def _entry(number: int) -> TritonEntry:
    return TritonEntry(
        kernel=f"library.module{number % 40}:kernel_{number % 40}_fwd",
        source="sha256:" + f"{number % 40:064x}",
        key={
            "M": 64 * number,
            "N": 4096,
            "causal": number % 2 == 0,
            "x:dtype": "bfloat16",
            "y:dtype": "float32",
        },
        config={"BLOCK_M": 64, "BLOCK_N": 16 * (number % 5), "num_warps": 4, "num_stages": 3},
        alternatives=9,
        code=("sha256:" + f"{number:064x}", "sha256:" + f"{number + 1:064x}"),
        specs=(f"{number:016x}", f"{number + 1:016x}"),
        options={"enable_fp_fusion": True, "default_dot_input_precision": "tf32"},
        heuristics={"EVEN": True},
    )


def _read_pins(text: str) -> None:
    """What `pinner.inside.pins` does with the text: parse it, and check that it is whole."""
    body = json.loads(text)
    if body["digest"] != pins.digest(body):
        raise SystemExit("the pins are not whole")


def _best(work: Callable[[], object], rounds: int) -> float:
    return min(_seconds(work) for _ in range(rounds))


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
