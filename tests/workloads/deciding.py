"""Decides as an autotuner would, through pinner's own ledger and pins, without any Triton.

A config is taken for each size in SIZES (default "64,128"): observed TAKES, enforced the locked
one, or what the session wants on a miss. The result depends on the config, as real bits would.

FAULT=invalid    the locked config is refused, and the program goes on with another one
FAULT=drift      the config became other machine code
FAULT=elsewhere  one choice was made past the tuner
FAULT=racy       config 32 gives other bits each time, as a racy kernel would
DIES=RANK        that rank ends with os._exit(0) after its decision, without an end line
"""

from __future__ import annotations

import os
import sys

import numpy as np

import pinner
from pinner.inside import ledger, pins, session
from pinner.inside.values import canonical

KERNEL = "tests.deciding:kernel"
SOURCE = "sha256:" + "0" * 64
FAULT = os.environ.get("FAULT", "")


def decide(size: int) -> int:
    """The config for a size, written to the ledger where it is decided."""
    key = {"n": size, "x:dtype": "float32"}
    block, how = int(os.environ.get("TAKES", "32")), "tuned"
    active = session.current()
    if active is not None and active.enforcing:
        block, how = locked(key, active.on_miss)
    line = {"t": "choice", "chooser": "triton", "kernel": KERNEL, "source": SOURCE, "key": key}
    line.update(config={"BLOCK": block, "num_warps": 4}, alternatives=3, how=how)
    if how == "tuned":
        line["timings"] = [[{"BLOCK": b, "num_warps": 4}, times()[b]] for b in (16, 32, 64)]
    if active is not None:
        ledger.write(line, sync=True)
    return block


def times() -> dict[int, float]:
    """Seconds of each block, from TIMES ("16=0.1,32=0.2,64=0.3")."""
    text = os.environ.get("TIMES", "16=0.3,32=0.1,64=0.2")
    return {int(k): float(v) for k, _, v in (item.partition("=") for item in text.split(","))}


def locked(key: dict[str, object], on_miss: str) -> tuple[int, str]:
    """The locked config; on a miss what the session wants."""
    record = pins.triton_kernel(KERNEL) or {"entries": [], "fallback": []}
    for entry in record["entries"]:
        if entry["key"] == canonical(key):
            if FAULT == "invalid":
                problem("invalid", "the locked config is not among the live ones", key=key)
                return 16, "fallback"
            return entry["config"]["BLOCK"], "forced"
    if on_miss == "error":
        problem("missed", "this key is not in the lock", key=key)
        raise SystemExit(1)
    if on_miss == "tune":
        return int(os.environ.get("TAKES", "32")), "missed"
    return (record["fallback"] or [{"BLOCK": 16}])[0]["BLOCK"], "fallback"


def problem(kind: str, text: str, **more: object) -> None:
    """A problem line, in a session."""
    line = {"t": "problem", "kind": kind, "chooser": "triton", "kernel": KERNEL, "text": text}
    ledger.write({**line, **more})


def compute(size: int, block: int) -> np.ndarray:
    """A float64 vector that depends on the config."""
    value = np.arange(size, dtype=np.float64) / block
    if FAULT == "racy" and block == 32:
        value += int.from_bytes(os.urandom(2), "little")
        active = session.current()
        if active is not None and active.replay:
            text = "two launches on equal arguments left different bytes in 'x_ptr'"
            problem("replay", text, config={"BLOCK": block, "num_warps": 4})
    return value


def main() -> int:
    """Decides, computes and fingerprints; returns the exit code."""
    for size in os.environ.get("SIZES", "64,128").split(","):
        block = decide(int(size))
        if FAULT == "drift":
            problem("drift", "the same config, other machine code", config={"BLOCK": block})
        for step in range(3):
            pinner.fingerprint("out", compute(int(size), block) + step)
    if FAULT == "elsewhere":
        problem("elsewhere", "decided outside the tuner", config={"BLOCK": 16})
    if os.environ.get("DIES") == os.environ.get("RANK", "0"):
        os._exit(0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
