"""Decides as every chooser would: Triton's and Inductor's tuner through pinner's own ledger and
pins, matrix products through a stand-in of cuBLASLt, and settings of libraries that are not there.

The evidence depends on each decision, as real bits would. By environment variables:

TAKES=N           what is taken where nothing is locked (default 1)
CUBLASLT_FAKES    the folder of the stand-ins; without it no matrix is multiplied
RING=VALUE        the value of the setting that can only be recorded (default "ring")
SWITCH=0|1        the value of the switch that pinner sets
FAULT=cache       a compile cache held another choice of Inductor's than the lock
FAULT=heuristic   Inductor's own heuristic decided a key that nobody recorded
FAULT=bypass      a locked decision was made past the chooser
FAULT=late        the same, but only where a lock is enforced
FAULT=no          a library decided by itself and nothing holds it
"""

from __future__ import annotations

import os
import sys
from typing import Any

import pinner
from pinner.inside import ledger, pins, session
from pinner.inside.values import canonical

FAULT = os.environ.get("FAULT", "")
TAKES = int(os.environ.get("TAKES", "1"))
KERNELS = {"triton": "tests.every:kernel", "inductor": "gemm:addmm"}
SOURCE = "sha256:" + "0" * 64


def decide(chooser: str, size: int) -> int:
    """The locked block of one key, or TAKES where none is locked."""
    kernel, key = KERNELS[chooser], {"n": size}
    entry = locked(chooser, kernel, canonical(key))
    how, block = "tuned", TAKES
    if entry is not None:
        how, block = "forced", int(entry["config"]["BLOCK"])
    if chooser == "inductor" and FAULT == "cache" and enforcing():
        how, block = "cached", block + 1
    choice(chooser, key, block, how)
    return block


def locked(chooser: str, kernel: str, key: str) -> dict[str, Any] | None:
    """The entry of a key in this session's pins."""
    if not enforcing():
        return None
    record = pins.triton_kernel(kernel) if chooser == "triton" else pins.inductor_kernel(kernel)
    entries = record["entries"] if record else []
    return next((entry for entry in entries if entry["key"] == key), None)


def enforcing() -> bool:
    """Whether a lock is enforced here."""
    active = session.current()
    return active is not None and active.enforcing


def choice(chooser: str, key: dict[str, Any], block: int, how: str) -> None:
    """The line of one decision; another block would have taken twice as long."""
    line: dict[str, Any] = {"t": "choice", "chooser": chooser, "kernel": KERNELS[chooser]}
    line.update(source=SOURCE if chooser == "triton" else "", key=key, config={"BLOCK": block})
    line.update(alternatives=2, how=how)
    if how == "tuned":
        line["timings"] = [[{"BLOCK": block}, 1.0], [{"BLOCK": block + 100}, 2.0]]
    ledger.write(line)


def setting(name: str, value: Any, held: str, text: str = "") -> Any:
    """Write a setting down; returns the value in force: the locked one where it is forced."""
    if held == "forced" and enforcing():
        wanted = [each["value"] for each in pins.settings_of("tests") if each["name"] == name]
        value = wanted[0] if wanted else value
    line = {"t": "setting", "chooser": "tests", "name": name, "value": value, "held": held}
    ledger.write({**line, "text": text})
    return value


def multiply() -> list[str]:
    """Digests of products through the stand-in, if there is one."""
    if "CUBLASLT_FAKES" not in os.environ:
        return []
    from tests.fakes import cublaslt_calls

    library = cublaslt_calls.load()
    return [cublaslt_calls.gemm(library, m=m)["bits"] for m in (3, 5)]


def plant() -> None:
    """The fault that FAULT names, if it is one of a line alone."""
    told = {"t": "problem", "kind": "bypass", "chooser": "cublaslt", "kernel": "matmul"}
    if FAULT == "bypass" or (FAULT == "late" and enforcing()):
        ledger.write({**told, "text": "mapped, and no call was seen"})
    if FAULT == "heuristic":
        choice("inductor", {"n": 4096}, 7, "heuristic")
    if FAULT == "no":
        setting("benchmark", True, "no", "switch it off")


def main() -> None:
    """Decides everything once, and fingerprints what came of it."""
    blocks = [decide(chooser, size) for chooser in KERNELS for size in (64, 128)]
    forced = setting("tree", TAKES, "forced")
    setting("ring", os.environ.get("RING", "ring"), "recorded")
    setting("deterministic", os.environ.get("SWITCH", "0") == "1", "set")
    plant()
    digits = [int(bits, 16) for bits in multiply()]
    for step in range(3):
        for number, value in enumerate([*blocks, forced, *digits]):
            pinner.fingerprint(f"out{number}", float(value) + step)


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    main()
