"""The machine that a probe ran on: probes of different hosts are never compared silently.

Standard library only and nothing of this package: a job on another node runs this file by itself.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any


def facts() -> dict[str, Any]:
    """`hostname`, `kernel`, `machine`, `cpu`, `gpus` (models) and `driver` ("": there is none)."""
    name = os.uname()
    return {
        "hostname": name.nodename,
        "kernel": name.release,
        "machine": name.machine,
        "cpu": _cpu(),
        "gpus": _gpus(),
        "driver": _driver(),
    }


def _cpu() -> str:
    match = re.search(r"^(?:model name|CPU part)\s*:\s*(.*)$", _text("/proc/cpuinfo"), re.MULTILINE)
    return match[1].strip() if match else ""


def _gpus() -> list[str]:
    root = "/proc/driver/nvidia/gpus"
    try:
        names = sorted(os.listdir(root))
    except OSError:
        return []
    found = []
    for name in names:
        match = re.search(r"^Model:\s*(.*)$", _text(f"{root}/{name}/information"), re.MULTILINE)
        found.append(match[1].strip() if match else name)
    return found


def _driver() -> str:
    text = _text("/proc/driver/nvidia/version")
    match = re.search(r"Kernel Module[^\n]*?(\d+\.\d+[.\d]*)", text)
    return match[1] if match else ""


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


if __name__ == "__main__":
    json.dump(facts(), sys.stdout)
