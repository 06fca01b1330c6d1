"""A few steps of numpy that pinner can fingerprint; faults are planted by variables.

FAULT=noise      every run gives other bits
FAULT=constant   the stream never changes
FAULT=nothing    no fingerprint at all
FAULT=exit:N     ends with code N at the end
STEPS=N          how many steps (default 3)
"""

from __future__ import annotations

import os
import sys

import numpy as np

import pinner

FAULT = os.environ.get("FAULT", "")


def value_at(step: int) -> np.ndarray:
    """What the step computes: a float64 vector."""
    if FAULT == "constant":
        return np.zeros(4)
    noise = np.frombuffer(os.urandom(8), np.uint8).sum() if FAULT == "noise" else 0
    return np.arange(4, dtype=np.float64) + step + noise


def main() -> int:
    """Runs the steps and returns the exit code."""
    for step in range(int(os.environ.get("STEPS", "3"))):
        value = value_at(step)
        if FAULT != "nothing":
            pinner.fingerprint("value", value)
        print(f"step {step} value {value.sum()}", flush=True)
    return int(FAULT.removeprefix("exit:")) if FAULT.startswith("exit:") else 0


if __name__ == "__main__":
    sys.exit(main())
