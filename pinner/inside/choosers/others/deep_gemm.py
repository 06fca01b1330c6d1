"""DeepGEMM: the configuration of each kernel follows from shapes and a few switches by a heuristic.

Nothing is timed since version 2, so its switches are what must be alike: the compiler that builds
the kernels is forced by its variable, what the program sets by functions is recorded. Version 1
had a tuner, which is named. (DeepGEMM 2.6.1, deep_gemm/__init__.py and csrc/jit/compiler.hpp)
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from . import first_use, looks, settings, variables

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, MutableMapping

CHOOSER = "deep_gemm"
VARIABLES = (
    "DG_JIT_CPP_STANDARD",
    "DG_JIT_USE_NVRTC",
    "DG_USE_PYTORCH_CUBLASLT_HANDLE",
    "DG_USE_TEMP_CUBLASLT_WORKSPACE",
)
_STATE = ("get_num_sms", "get_tc_util", "get_pdl")
_KERNELS = ("gemm", "einsum", "mqa_logits", "mega_moe")
_TUNER = "deep_gemm.jit_kernels.tuner"

_used = False


def force(environ: MutableMapping[str, str]) -> None:
    """Set the locked variables that nobody has set."""
    variables.force_early(CHOOSER, VARIABLES, environ)


def install(package: ModuleType) -> None:
    """Wait for the first kernel."""
    names = [name for name in vars(package) if any(part in name for part in _KERNELS)]
    first_use.watch(package, [name for name in names if callable(vars(package)[name])], _seen)
    looks.at_looks(_look)


def _seen(_name: str, by: str) -> bool:
    global _used
    if by == CHOOSER or by.startswith(CHOOSER + "."):
        return False
    _used = True
    _look()
    return True


def _look() -> None:
    if not _used:
        return
    variables.report(CHOOSER, VARIABLES, os.environ)
    package: Any = sys.modules[CHOOSER]
    version = str(getattr(package, "__version__", "unknown"))
    settings.report(CHOOSER, "version", version, settings.RECORDED, "its heuristics are its own")
    for name in _STATE:
        ask = getattr(package, name, None)
        if ask is not None:
            settings.report(CHOOSER, name[4:], ask(), settings.RECORDED, "set by the program")
    if _TUNER in sys.modules:
        text = "DeepGEMM 1 may time its kernels: use version 2 or later"
        settings.report(CHOOSER, "tuner", True, settings.NOT_HELD, text)
