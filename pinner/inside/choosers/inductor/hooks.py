"""Puts the chooser into Inductor's modules right after their import, and nowhere else."""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable, Dict, Optional

from ... import ledger, pins, session
from . import packages, pad, switches, versions
from .caches import Caches, tag_of
from .chooser import Chooser, Policy
from .gemm import Selector
from .kernels import Kernels
from .lines import Lines


class Hooks:
    """Everything of one process that is hooked into Inductor. active: its session."""

    def __init__(self, active: session.Session) -> None:
        lock = pins.inductor_kernel if active.enforcing else _no_kernel
        digest = pins.load().inductor_digest if active.enforcing else ""
        lines = Lines(_write, ledger.now)
        self.chooser = Chooser(Policy(active.enforcing, active.on_miss, lock), lines)
        self.by_module = hooks_of(self.chooser, tag_of(active, digest))


def hooks_of(chooser: Chooser, tag: str) -> Dict[str, Callable[[Any], None]]:
    """What to do with each module of Inductor once it was executed. tag: for compile caches."""
    selector, caches = Selector(chooser), Caches(chooser, tag)
    lines = chooser.lines
    return {
        "torch._dynamo.pgo": functools.partial(switches.patch_profiles, lines=lines),
        "torch._inductor.compile_fx": caches.patch,
        "torch._inductor.fx_passes.pad_mm": functools.partial(pad.patch, chooser=chooser),
        "torch._inductor.ir": selector.patch_ir,
        "torch._inductor.output_code": caches.patch_output,
        "torch._inductor.package.package": functools.partial(packages.patch, lines=lines),
        "torch._inductor.runtime.coordinate_descent_tuner": functools.partial(
            switches.patch_coordinate_descent, lines=lines
        ),
        "torch._inductor.runtime.triton_heuristics": Kernels(chooser).patch,
        "torch._inductor.select_algorithm": selector.patch,
    }


_hooks: Optional[Hooks] = None
_named = False


def install(module: Any) -> None:
    """Patch one of Inductor's modules, each time it is executed. Without a session: nothing.

    Under a torch that is too old nothing is patched, and a line says so.
    """
    global _hooks
    active = session.current()
    if active is None:
        return
    found = str(sys.modules["torch"].__version__)
    if versions.is_older(found):
        _name_hole(found)
        return
    if _hooks is None:
        _hooks = Hooks(active)
    _hooks.by_module[module.__name__](module)


def _name_hole(found: str) -> None:
    global _named
    if not _named:
        _named = True
        text = (
            "what Inductor chooses is neither recorded nor forced: pinner holds it from torch "
            "%d.%d on, this is %s" % (*versions.OLDEST, found)
        )
        line = {"t": "problem", "kind": "bypass", "chooser": "inductor", "kernel": "torch"}
        ledger.write(dict(line, text=text), sync=True)


def _no_kernel(name: str) -> None:
    return None


def _write(line: Any) -> None:
    ledger.write(line, sync=line["t"] == "choice")
