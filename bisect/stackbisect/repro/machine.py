"""What a stack runs on, as far as bits may depend on it: CPU, GPU, system."""

from __future__ import annotations

from stackbisect.repro.stacks import Stack

_SOURCE = b"""
import json
import platform
import subprocess

found = {"system": platform.system() + " " + platform.release(), "machine": platform.machine()}
libc = " ".join(platform.libc_ver()).strip()
if libc:
    found["libc"] = libc
try:
    with open("/proc/cpuinfo") as file:
        lines = [line.partition(":")[::2] for line in file]
except OSError:
    lines = []
about = {}
for name, value in lines:
    about.setdefault(name.strip(), value.strip())
cpu = about.get("model name") or platform.processor()
if cpu:
    found["cpu"] = cpu
known = ["sse4_2", "avx", "avx2", "fma", "avx512f", "avx512_bf16", "amx_tile", "asimd", "sve"]
flags = set((about.get("flags") or about.get("Features") or "").split())
if flags:
    found["cpu_features"] = " ".join(name for name in known if name in flags)
try:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20)
    names = sorted(set(done.stdout.decode().strip().splitlines())) if done.returncode == 0 else []
except (OSError, subprocess.SubprocessError):
    names = []
if names:
    found["gpu"] = "; ".join(names)
print(json.dumps(found))
"""


def machine(stack: Stack, *, time_limit: float | None = None) -> dict[str, str]:
    """Names and values; empty where the stack does not say."""
    ran = stack.run({"machine.py": _SOURCE}, ("python", "machine.py"), time_limit=time_limit)
    return ran.table
