"""Observes and forces whether a matrix product is padded (`shape_padding`, on by default).

Padding to an alignment changes the kernel and so the bits; `should_pad` decides it by timing.
"""

from __future__ import annotations

import functools
from typing import Any, Dict, List

from ..triton.decide import live_configs
from . import versions
from .chooser import Chooser
from .lines import Taken
from .question import Question, ask, dimensions

_ALTERNATIVES = ({"pad": False}, {"pad": True})


def patch(pad_mm: Any, chooser: Chooser) -> None:
    """Hook `torch._inductor.fx_passes.pad_mm`, below the test whether padding is possible."""
    if not hasattr(pad_mm, "_should_pad"):
        _switch_off(pad_mm, chooser)
        return
    original, stored = pad_mm._should_pad, pad_mm.get_cached_should_pad
    from_disk: List[bool] = []

    @functools.wraps(stored)
    def get_cached_should_pad(key: str) -> Any:
        found = stored(key)
        if found is not None:
            from_disk.append(found)
        return found

    @functools.wraps(original)
    def _should_pad(match: Any, mat1: Any, mat2: Any, op: Any, added: Any = None) -> bool:
        question = _question(mat1, mat2, op, added)
        live = live_configs([(dict(config), config["pad"]) for config in _ALTERNATIVES])
        decision = chooser.decide(question, live)
        if decision is not None:
            taken = Taken(decision.live, 2, decision.how, (), decision.entry)
            chooser.settle(question, taken)
            return bool(decision.live.config)
        before = _timed(pad_mm)
        del from_disk[:]
        pad = bool(original(match, mat1, mat2, op, added))
        how = "tuned" if _timed(pad_mm) > before else "disk" if from_disk else "heuristic"
        chooser.settle(question, Taken(live[pad], 2, how))
        return pad

    pad_mm._should_pad, pad_mm.get_cached_should_pad = _should_pad, get_cached_should_pad


def _switch_off(pad_mm: Any, chooser: Chooser) -> None:
    """Before torch 2.11 one function says both whether padding is possible and whether it pays."""

    def _should_pad_bench(*_: Any, **__: Any) -> bool:
        text = "this torch decides about padding where it cannot be held (needs 2.11): no padding"
        chooser.lines.setting("shape_padding", False, "set", text)
        return False

    pad_mm._should_pad_bench = _should_pad_bench


def _timed(pad_mm: Any) -> int:
    """How often padding was timed in this process."""
    return int(pad_mm.counters["inductor"]["pad_mm_bench"])


def _question(mat1: Any, mat2: Any, op: Any, added: Any) -> Question:
    symbols: Dict[str, str] = {}
    facts: Dict[str, Any] = {"device": str(mat1.device.type)}
    for name, tensor in (("mat1", mat1), ("mat2", mat2), ("added", added)):
        if tensor is None:
            continue
        facts[name + "_dtype"] = str(tensor.dtype).split(".")[-1]
        facts[name + "_size"] = dimensions(tensor.shape, symbols)
        facts[name + "_stride"] = dimensions(tensor.stride(), symbols)
    facts["float32_matmul_precision"] = versions.float32_precision()
    return ask("pad_mm:" + str(op).rpartition(".")[2], "", facts)
