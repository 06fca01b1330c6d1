"""Products of two tensors through the stand-in of cuBLASLt, inside of an operation.

BEHAVIOURS: of the stand-in, as JSON: one child for each. Prints each with its process id.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys

import cublaslt_calls
import torch

LIBRARY = cublaslt_calls.load()
SCHEMA = "(Tensor a, Tensor b) -> Tensor"


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a: (k, m) and b: (n, k) by rows are m x k and k x n by columns."""
    (k, m), n = a.shape, b.shape[0]
    out = torch.empty(n, m)
    call = cublaslt_calls.Call(m=m, n=n, k=k, workspace=1 << 16, align=16, requested=1)
    outcome = cublaslt_calls.Outcome()
    pointers = [ctypes.c_void_p(each.data_ptr()) for each in (a, b, out)]
    LIBRARY.consumer_gemm(ctypes.byref(call), *pointers, ctypes.byref(outcome))
    assert outcome.matmul_status == 0, outcome.matmul_status
    return out


product = torch.library.custom_op("fake_gpu::product", product, mutates_args=(), schema=SCHEMA)


def run(behaviour: str) -> None:
    """Two products, the second of what the first gave."""
    os.environ["FAKE_CUBLASLT"] = behaviour
    torch.manual_seed(0)
    a, b = torch.randn(64, 8), torch.randn(4, 64)
    product(product(a, b).repeat(16, 1), b)


def main() -> None:
    """One child for each behaviour."""
    for behaviour in json.loads(os.environ["BEHAVIOURS"]):
        child = os.fork()
        if child == 0:
            run(behaviour)
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        assert status == 0, status
        print(json.dumps([behaviour, child]), flush=True)


main()
