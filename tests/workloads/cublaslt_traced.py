"""Products through the stand-in of cuBLASLt in each way that a trace tells apart.

Step 0: an operation that makes one call. 1: one that makes two. 2: a call outside any operation.
3: an operation in a thread. 4: a call of libcublas.

VARIANTS: {name: [step, alternative]} as JSON: one child for each, in which the heuristic answers
that alternative from that step on. Prints the name and the process id of each child.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading

import cublaslt_calls
import torch

import pinner

LIBRARY = cublaslt_calls.load()


def multiply(x: torch.Tensor, calls: int) -> torch.Tensor:
    """As many products as asked for; what they gave, as bytes, beside the input."""
    bits = [cublaslt_calls.gemm(LIBRARY, m=8, n=4 + at, k=64)["bits"] for at in range(calls)]
    found = torch.tensor(list(bytes.fromhex("".join(bits))), dtype=torch.float32)
    return torch.cat([x, found])


SCHEMA = "(Tensor x, int calls) -> Tensor"  # torch 2.4 reads no annotations that are texts
multiply = torch.library.custom_op("fake_gpu::multiply", multiply, mutates_args=(), schema=SCHEMA)


class Layer(torch.nn.Module):
    def forward(self, x: torch.Tensor, calls: int) -> torch.Tensor:
        return multiply(x, calls)


def run(step_of_change: int, alternative: int) -> None:
    layer = Layer()
    x = torch.ones(4)
    results = []

    def legacy() -> torch.Tensor:
        function = ctypes.CDLL(None).cublasSgemm_v2
        function.argtypes = [ctypes.c_void_p] * 14
        function(*[0] * 14)
        return torch.zeros(1)

    def outside() -> torch.Tensor:
        bits = cublaslt_calls.gemm(LIBRARY, m=8, n=9, k=64)["bits"]
        return torch.tensor(list(bytes.fromhex(bits)))

    def in_thread() -> torch.Tensor:
        thread = threading.Thread(target=lambda: results.append(layer(x, 1)), name="other")
        thread.start()
        thread.join()
        return results[-1]

    for step, work in enumerate(
        (lambda: layer(x, 1), lambda: layer(x, 2), outside, in_thread, legacy)
    ):
        if step == step_of_change:
            os.environ["FAKE_CUBLASLT"] = f"pick={alternative}"
        pinner.fingerprint("result", work())


def main() -> None:
    for name, change in json.loads(os.environ["VARIANTS"]).items():
        child = os.fork()
        if child == 0:
            run(*change)
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        assert status == 0, status
        print(json.dumps([name, child]), flush=True)


main()
