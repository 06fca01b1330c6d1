"""Leaves a few steps of evidence and needs no torch; differs from run to run where it is asked to.

FLIP=N  a bit of the value at step N is drawn anew in each run. SIZE=N  what the steps depend on.
CONSTANT=1  the same value at each step. SAYS=0  no evidence. EXIT=N  the exit code
"""

from __future__ import annotations

import os
import sys

import pinner

size = int(os.environ.get("SIZE", sys.argv[1] if len(sys.argv) > 1 else "1"))
value = 1.0
for step in range(6):
    if os.environ.get("FLIP") == str(step):
        value += int.from_bytes(os.urandom(6), "big")
    value = value * 1.5 + (1e-9 * size if step >= 3 else 0.0)
    if os.environ.get("SAYS") != "0":
        pinner.fingerprint("value", 1.0 if "CONSTANT" in os.environ else value)
sys.exit(int(os.environ.get("EXIT", "0")))
