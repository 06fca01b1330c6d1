"""Joining and leaving the gloo group of a workload started by torchrun.

torch 2.13's gloo workers drop the tensors of a finished collective only after the caller has
gone on. One that is late, and comes to it while the interpreter ends, aborts the process
("terminate called without an active exception"): 7 of 24 plain runs on two busy cores.
Destroying the group joins its workers, unless something still holds the group: torch._dynamo
does, when it is first imported (a torch optimizer imports it) while a group exists.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch._dynamo  # noqa: F401
import torch.distributed as dist


def join() -> None:
    """Makes the default group, after the import that would otherwise keep it alive."""
    dist.init_process_group("gloo")


def leave(kept: bool = False) -> None:
    """Destroys the default group; fails, always and with the reason, if its workers live on.

    Where torch itself keeps the group (kept: a device mesh does), late workers get a moment.
    """
    dist.destroy_process_group()
    if kept:
        time.sleep(1)
        return
    names = [name.read_text().strip() for name in Path("/proc/self/task").glob("*/comm")]
    if "pt_gloo_runloop" in names:
        raise SystemExit("the process group is destroyed, but something holds it: see ranks.py")
