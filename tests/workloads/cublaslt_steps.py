"""Three steps of products through the stand-in of cuBLASLt; their bits are the evidence.

CUBLASLT_EXTRA: more calls, one for each word: another size, a legacy GEMM, no algorithm.
"""

from __future__ import annotations

import ctypes
import os
import sys

sys.path.insert(0, os.environ["CUBLASLT_CALLS"])

import cublaslt_calls

import pinner

EXTRA = os.environ.get("CUBLASLT_EXTRA", "").split()


def main() -> None:
    library = cublaslt_calls.load()
    for step in range(3):
        for m in (4, 8):
            done = cublaslt_calls.gemm(library, m=m, seed=step)
            pinner.fingerprint(
                f"product{m}", f"{done['ask']} {done['matmul']} {done['bits']}", step
            )
    if "size" in EXTRA:
        cublaslt_calls.gemm(library, m=9)
    if "implicit" in EXTRA:
        cublaslt_calls.gemm(library, m=4, use=cublaslt_calls.NULL)
    if "legacy" in EXTRA:
        legacy = ctypes.CDLL(None).cublasSgemm_v2
        legacy.argtypes = [ctypes.c_void_p] * 14
        legacy(*[0] * 14)


main()
