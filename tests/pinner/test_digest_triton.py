"""The Triton kernel becomes machine code for NVIDIA GPUs, with wide loads and few instructions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).resolve().parents[2]

# Triton decides when it is imported whether it interprets, so this runs in a process of its own.
COMPILE = """
import json, sys
sys.path.insert(0, sys.argv[1])
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from pinner.inside.evidence import nh128_triton

kernels = nh128_triton.load()
found = {}
for arch in (80, 90, 100):
    for unit, pointer in ((8, "*i64"), (2, "*i16")) if arch == 90 else ((8, "*i64"),):
        types = {"pieces": pointer, "data": "*u8", "size": "i64", "block": "i32", "keys": "*i64",
                 "sums": "*i64", "UNIT": "constexpr", "WIDTH": "constexpr"}
        aligned = {(place,): [["tt.divisibility", 16]] for place in (0, 1, 4, 5)}
        source = ASTSource(kernels.one, types, {"UNIT": unit, "WIDTH": 256}, aligned)
        done = triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": 4})
        found["one %d %d" % (arch, unit)] = [len(done.asm["cubin"]), done.asm["ptx"]]
types = {"places": "*i64", "count": "i32", "keys": "*i64", "sums": "*i64", "WIDTH": "constexpr"}
source = ASTSource(kernels.many, types, {"WIDTH": 64})
done = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 1})
found["many 90"] = [len(done.asm["cubin"]), done.asm["ptx"]]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    environ = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environ["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COMPILE, str(REPO)],
        env=environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_each_becomes_machine_code(compiled: dict[str, Any]) -> None:
    assert set(compiled) == {"one 80 8", "one 90 8", "one 90 2", "one 100 8", "many 90"}
    assert all(size > 1000 for size, _ in compiled.values())


def test_aligned_memory_is_read_sixteen_bytes_at_once(compiled: dict[str, Any]) -> None:
    """Two words a thread, eight rows in flight."""
    ptx = compiled["one 90 8"][1]
    wide = ptx.count("ld.global.v2.b64") + ptx.count("ld.global.v2.u64")
    assert wide == 8


def test_sums_are_added_without_a_lock_on_order(compiled: dict[str, Any]) -> None:
    assert compiled["one 90 8"][1].count("atom.") == 2
    assert compiled["many 90"][1].count("atom.") == 0


def test_triton_is_not_loaded_for_tensors_on_the_host() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import torch\n"
        "from pinner.inside.evidence.digest import digest, digest_many\n"
        "before = 'triton' in sys.modules\n"
        "digest(torch.ones(3)); digest_many([torch.ones(3).t(), torch.eye(3)])\n"
        "assert before or 'triton' not in sys.modules\n"
        "assert sys.modules['pinner.inside.evidence.nh128_triton']._kernels is None\n"
    )
    subprocess.run([sys.executable, "-c", code, str(REPO)], check=True)
