"""Tells each signal it gets and ends by itself, with code 7, after `LIFE` seconds.

CHILD=1 starts a child that ignores signals, and says its process id.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

COUNTED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)


def tell(text: str) -> None:
    """One whole line at once, also from within a signal handler."""
    os.write(1, f"{text}\n".encode())


def on_signal(number: int, _frame: object) -> None:
    """Says which signal came."""
    tell(f"got {signal.Signals(number).name}")


def main() -> int:
    """Waits for signals."""
    for number in COUNTED:
        signal.signal(number, on_signal)
    if os.environ.get("CHILD"):
        child = subprocess.Popen(["sh", "-c", "trap '' INT TERM HUP; sleep 60 & wait; wait"])
        tell(f"child {child.pid}")
    tell("ready")
    end = time.monotonic() + float(os.environ.get("LIFE", "1.0"))
    while time.monotonic() < end:
        time.sleep(0.02)
    tell("end")
    return 7


if __name__ == "__main__":
    sys.exit(main())
