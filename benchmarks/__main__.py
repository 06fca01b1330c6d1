"""Runs benchmarks, each in a process of its own: `python -m benchmarks [--quick] [NAME…]`."""

from __future__ import annotations

import os
import subprocess
import sys

ALL = (
    "cublaslt",
    "digest",
    "lockfile",
    "merge",
    "reductions",
    "search",
    "shrink",
    "startup",
    "trace",
    "trace_compare",
    "triton_calls",
)


def main() -> int:
    """Run the named benchmarks, or all; the exit code is that of the first that failed."""
    names = [name for name in sys.argv[1:] if name != "--quick"]
    environment = dict(os.environ, PINNER_BENCH_QUICK="1") if "--quick" in sys.argv else None
    for name in names or ALL:
        print(f"== {name}", flush=True)
        code = subprocess.call([sys.executable, "-m", f"benchmarks.{name}"], env=environment)
        if code:
            return code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
