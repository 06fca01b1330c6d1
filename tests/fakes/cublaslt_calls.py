"""Multiplies through the consumer library, in the programs that tests start."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import random
from typing import Any

FIRST, SMALLEST_ID, NULL, OWN, GIVEN, ASK_ONLY = range(6)


class Algo(ctypes.Structure):
    """cublasLtMatmulAlgo_t."""

    _fields_ = [("data", ctypes.c_uint64 * 8)]


class Call(ctypes.Structure):
    """`struct call` of cublaslt_consumer.c."""

    _fields_ = [
        ("m", ctypes.c_int),
        ("n", ctypes.c_int),
        ("k", ctypes.c_int),
        ("transa", ctypes.c_int),
        ("workspace", ctypes.c_int64),
        ("align", ctypes.c_int),
        ("requested", ctypes.c_int),
        ("use", ctypes.c_int),
        ("bias", ctypes.c_int64),
        ("lie", ctypes.c_int),
        ("own_id", ctypes.c_int),
        ("given", Algo),
    ]


class Outcome(ctypes.Structure):
    """`struct outcome` of cublaslt_consumer.c."""

    _fields_ = [
        ("ask_status", ctypes.c_int),
        ("returned", ctypes.c_int),
        ("matmul_status", ctypes.c_int),
        ("used", Algo),
    ]


def load(name: str = "consumer", mode: int = ctypes.RTLD_LOCAL) -> Any:
    """The consumer library `name` of the folder in CUBLASLT_FAKES."""
    return ctypes.CDLL(os.path.join(os.environ["CUBLASLT_FAKES"], f"lib{name}.so"), mode=mode)


def load_lazily(name: str = "consumer", mode: int = 0) -> Any:
    """The same, bound at its first calls: ctypes itself always binds at once."""
    open_library = ctypes.CDLL(None).dlopen
    open_library.restype = ctypes.c_void_p
    path = os.path.join(os.environ["CUBLASLT_FAKES"], f"lib{name}.so")
    return ctypes.CDLL(path, handle=open_library(path.encode(), os.RTLD_LAZY | mode))


def gemm(library: Any, m: int = 8, n: int = 8, k: int = 64, **more: Any) -> dict[str, Any]:
    """One product of fixed random matrices: its statuses, its algorithm, a digest of its bits."""
    given, seed = more.pop("given", None), more.pop("seed", 0)
    asked = {"workspace": 1 << 20, "align": 256, "requested": 1, "use": FIRST, "own_id": 60}
    call = Call(m=m, n=n, k=k, **{**asked, **more})
    if given is not None:
        call.given = Algo.from_buffer_copy(bytes.fromhex(given))
    numbers = random.Random(seed * 1000000007 + m * 1000003 + n * 1009 + k)
    a, b = (_floats(numbers, size) for size in (m * k, k * n))
    out = (ctypes.c_float * (m * n))()
    outcome = Outcome()
    library.consumer_gemm(ctypes.byref(call), a, b, out, ctypes.byref(outcome))
    return {
        "ask": outcome.ask_status,
        "returned": outcome.returned,
        "matmul": outcome.matmul_status,
        "algo": bytes(outcome.used).hex(),
        "bits": hashlib.sha256(bytes(out)).hexdigest()[:16],
    }


def _floats(numbers: random.Random, size: int) -> Any:
    return (ctypes.c_float * size)(
        *(numbers.uniform(-1, 1) * 10 ** numbers.randrange(-3, 4) for _ in range(size))
    )


def show(*values: Any) -> None:
    """Print values as one JSON line, which the test reads."""
    print(json.dumps(values), flush=True)
