"""The grouped GEMM of `grouped_gemm` (Megatron's experts): CUTLASS or cuBLAS, as it was built.

Nothing is timed and no switch is read at run time: the tile is compiled in, and the cuBLAS path
uses its own handles and streams, past cuBLASLt. So the version is recorded, and what its cuBLAS
calls pick is not held. (fanshiqing/grouped_gemm 1.1.4, csrc/grouped_gemm.cu)
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from . import first_use, settings

if TYPE_CHECKING:
    from types import ModuleType

CHOOSER = "grouped_gemm"
_FIXED = (
    "the kernel is compiled in; where it was built for GPUs that it gives to cuBLAS, that calls "
    "cublasGemmEx on streams of its own, which no lock holds"
)


def install(backend: ModuleType) -> None:
    """Wait for the first grouped product. backend: `grouped_gemm.backend`."""
    compiled = getattr(backend, "backend", None)
    if compiled is not None:
        first_use.watch(compiled, ("gmm",), _seen)


def _seen(_name: str, _by: str) -> bool:
    version = getattr(sys.modules.get("grouped_gemm"), "__version__", "unknown")
    settings.report(CHOOSER, "version", str(version), settings.RECORDED, _FIXED)
    return True
