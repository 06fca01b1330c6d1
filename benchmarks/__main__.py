"""Runs every benchmark, each in a process of its own: `python -m benchmarks [NAME…]`."""

from __future__ import annotations

import subprocess
import sys

ALL = ("lockfile", "startup", "triton_calls")


def main() -> int:
    """Run the named benchmarks, or all; the exit code is that of the first that failed."""
    for name in sys.argv[1:] or ALL:
        print(f"== {name}", flush=True)
        code = subprocess.call([sys.executable, "-m", f"benchmarks.{name}"])
        if code:
            return code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
