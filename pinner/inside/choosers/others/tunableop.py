"""torch's TunableOp: a GEMM of each shape picked by timing, or taken from its own results file.

Off unless asked for. While it tunes, picks are made by timing and nothing holds them: a hole. With
tuning off it reads its results file and times nothing; a row that is missing there means the
default kernel. (torch 2.13, torch/cuda/tunable.py and aten/src/ATen/cuda/tunable/README.md)
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from . import looks, settings, variables

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Mapping, MutableMapping, Tuple

CHOOSER = "tunableop"
ENABLED = "PYTORCH_TUNABLEOP_ENABLED"
TUNING = "PYTORCH_TUNABLEOP_TUNING"
_ON = "TunableOp picks GEMM kernels; its results file belongs to the lock"
_TUNES = "GEMM kernels are picked by timing: tune once, then set %s=0 and keep the results file"


def force(environ: MutableMapping[str, str]) -> None:
    """Set the locked switches; torch reads them at the first GEMM."""
    variables.force_early(CHOOSER, (ENABLED, TUNING), environ)


def install(_torch: ModuleType) -> None:
    """Write what the environment asks for now, and what the program asked for later."""
    _look()
    looks.at_looks(_look)


def _look() -> None:
    enabled, tuning = in_force(os.environ, sys.modules["torch"])
    if not enabled:
        return
    settings.report_forced(CHOOSER, ENABLED, "1", _ON)
    if not tuning:
        settings.report_forced(CHOOSER, TUNING, "0", "nothing is timed")
        return
    settings.report(CHOOSER, TUNING, "1", settings.NOT_HELD, _TUNES % TUNING)
    wanted = settings.forced(CHOOSER).get(TUNING)
    if wanted is not None:
        settings.contradicted(CHOOSER, TUNING, wanted, "1")


def in_force(environ: Mapping[str, str], torch: Any) -> Tuple[bool, bool]:
    """Whether it is enabled, and whether it tunes: what the program said, else the environment.

    A torch without CUDA has no TunableOp to ask.
    """
    enabled, tuning = environ.get(ENABLED) == "1", environ.get(TUNING, "1") != "0"
    if not hasattr(torch._C, "_cuda_tunableop_is_enabled"):
        return enabled, tuning
    return bool(torch.cuda.tunable.is_enabled()), bool(torch.cuda.tunable.tuning_is_enabled())
