"""xFormers' memory-efficient attention, which dispatches by inputs and GPU, and its one tuner.

Nothing of the attention is timed and nothing is switched at run time, so that it was used is
recorded beside the version, which is a fact of the stack. XFORMERS_CUSPARSELT_TUNE times sparse
products. (xformers 0.0.35, xformers/ops/__init__.py and xformers/ops/sp24.py)
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from . import first_use, settings

if TYPE_CHECKING:
    from types import ModuleType

CHOOSER = "xformers"
TUNE = "XFORMERS_CUSPARSELT_TUNE"
_ATTENTION = "memory_efficient_attention"
_SPARSE = ("Sparse24Tensor", "sparsify24", "sparsify24_like")


def install(ops: ModuleType) -> None:
    """Wait for the first use. ops: `xformers.ops`."""
    names = [name for name in vars(ops) if name.startswith(_ATTENTION) or name in _SPARSE]
    first_use.watch(ops, names, _seen)


def _seen(name: str, by: str) -> bool:
    if by.startswith("xformers"):
        return False
    if name in _SPARSE:
        _report_sparse()
    else:
        text = "the inputs decide; give op= to hold one operator"
        settings.report(CHOOSER, _ATTENTION, "by inputs", settings.RECORDED, text)
    return True


def _report_sparse() -> None:
    if os.environ.get(TUNE) == "1":
        text = "sparse products are picked by timing: set %s=0" % TUNE
        settings.report(CHOOSER, TUNE, "1", settings.NOT_HELD, text)
