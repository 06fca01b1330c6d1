"""Puts the chooser into Inductor's modules right after their import, and nowhere else."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional

from ... import ledger, pins, session
from .chooser import Chooser, Policy
from .gemm import Selector
from .lines import Lines


class Hooks:
    """Everything of one process that is hooked into Inductor. active: its session."""

    def __init__(self, active: session.Session) -> None:
        lock = pins.inductor_kernel if active.enforcing else _no_kernel
        self.chooser = Chooser(
            Policy(active.enforcing, active.on_miss, lock), Lines(_write, ledger.now)
        )
        selector = Selector(self.chooser)
        self.by_module: Dict[str, Callable[[Any], None]] = {
            "torch._inductor.select_algorithm": selector.patch,
            "torch._inductor.ir": selector.patch_ir,
        }


_hooks: Optional[Hooks] = None


def install(module: Any) -> None:
    """Patch one of Inductor's modules, each time it is executed. Without a session: nothing."""
    global _hooks
    active = session.current()
    if active is None:
        return
    if _hooks is None:
        _hooks = Hooks(active)
    _hooks.by_module[module.__name__](module)


def _no_kernel(name: str) -> None:
    return None


def _write(line: Any) -> None:
    ledger.write(line, sync=line["t"] == "choice")
