"""Repros of calls of cuBLASLt, against its stand-in: none of this was run on a GPU.

The operands are found in the memory of the operation's tensors, and what the repro prints is
compared with what the call wrote there.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pinner.inside.choosers.cublaslt import layout
from pinner.inside.evidence.trace import capture_cublaslt
from pinner.inside.evidence.trace.capture import NotCaptured
from stackbisect.repro import captured, form, read_cublaslt
from stackbisect.repro.calls import Program
from stackbisect.repro.capture import Made
from stackbisect.repro.captured import Captured
from stackbisect.repro.extract import NoCase
from tests import lanes
from tests.command_rig import WORKLOADS
from tests.fakes.cublaslt_stand_in import Rig, built
from tests.pinner.test_cublaslt_real import real_paths

pytest.importorskip("torch")

NAME = "cublaslt:matmul 8x4x64 R_32F"
SECOND = {"kind": "kernel", "name": NAME, "nth": 1, "module": "", "phase": "f", "step": 0}
FAST, OTHER, BACKWARDS = "pick=3", "pick=1", "backwards,pick=3"


@pytest.fixture(name="calls", scope="module")
def _calls(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Captured]:
    """The second call of a program, as it comes under each behaviour of the library."""
    folder = tmp_path_factory.mktemp("calls")
    asked = {"folder": "trace", "level": "kernels", "capture": {**SECOND, "rank": None}}
    rig = Rig(folder / "session", trace=asked)
    behaviours = json.dumps([FAST, OTHER, BACKWARDS])
    script = str(WORKLOADS / "cublaslt_product.py")
    done = rig.program_file(script, BEHAVIOURS=behaviours)
    assert done.returncode == 0, done.stderr
    found = {}
    for behaviour, pid in map(json.loads, done.stdout.splitlines()):
        (own,) = (folder / "session" / captured.FOLDER).glob(f"{pid}-*")
        place = folder / behaviour / captured.FOLDER / own.name
        place.parent.mkdir(parents=True)
        own.rename(place)
        call = captured.read(folder / behaviour, NAME)
        assert isinstance(call, Captured), call
        found[behaviour] = call
    return found


def printed(folder: Path, program: Program, behaviour: str) -> dict[str, str]:
    """What the repro prints under a behaviour of the library, with nothing of ours around it."""
    folder.mkdir(parents=True)
    for name, data in program.files().items():
        (folder / name).write_bytes(data)
    environ = {"LD_LIBRARY_PATH": str(built()), "FAKE_CUBLASLT": behaviour, "PATH": "/usr/bin"}
    command = [sys.executable, "-I", form.SCRIPT]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return form.printed(done.stdout)


def made(good: Captured, bad: Captured | None) -> Made:
    found = read_cublaslt.made(good, bad)
    assert isinstance(found, Made), found
    return found


def test_the_same_algorithm_is_forced(calls: Mapping[str, Captured], tmp_path: Path) -> None:
    found = made(calls[FAST], calls[BACKWARDS])
    program = found.program
    assert (program.kind, program.gpu) == ("cublaslt", True)
    assert program.operation == "matmul 8x4x64 R_32F"
    assert program.elements == 4 * (8 * 64 + 64 * 4), "bytes"
    # The heuristic of today would answer something else.
    assert printed(tmp_path / "good", program, "pick=0") == found.expected
    assert printed(tmp_path / "bad", program, "backwards") != found.expected
    assert "The algorithm is forced, the same in both stacks: SPLITK 4" in program.notes[0]


def test_an_algorithm_of_another_version_is_built_from_its_fields(
    calls: Mapping[str, Captured], tmp_path: Path
) -> None:
    found = made(calls[FAST], None)
    other = replace(found.program.kernel, version=120805, blob=bytes(64))
    program = replace(found.program, kernel=other)
    assert printed(tmp_path / "good", program, "") == found.expected
    wrong = replace(other, algorithm={**other.algorithm, "splitk": 1})
    assert printed(tmp_path / "bad", replace(program, kernel=wrong), "") != found.expected


def test_where_the_algorithm_changed_the_heuristic_is_asked(
    calls: Mapping[str, Captured], tmp_path: Path
) -> None:
    found = made(calls[FAST], calls[OTHER])
    assert "picks another algorithm in the other stack: SPLITK 4 → 2" in found.program.notes[0]
    assert printed(tmp_path / "good", found.program, FAST) == found.expected
    assert printed(tmp_path / "bad", found.program, OTHER) != found.expected


def test_another_problem_is_no_repro(calls: Mapping[str, Captured]) -> None:
    good = calls[FAST]
    other = {**good.call, "problem": {**good.call["problem"], "compute": 77}}
    found = read_cublaslt.made(good, replace(good, call=other))
    assert isinstance(found, NoCase)
    assert "compute is 68 in the good stack, 77 in the bad" in found.text


@pytest.mark.parametrize("name", ["a", "b"])
def test_operands_are_what_the_call_got(
    name: str, calls: Mapping[str, Captured], tmp_path: Path
) -> None:
    """A plant: one bit of an operand."""
    found = made(calls[FAST], None)
    one = found.program.inputs[name]
    data = bytes((one.data[0], one.data[1], one.data[2] ^ 0x40, *one.data[3:]))
    planted = found.program.with_inputs(**{name: replace(one, data=data)})
    assert printed(tmp_path / name, planted, "") != found.expected


PLAIN = {
    **{name: layout.DEFAULTS[name] for name, *_ in layout.PROBLEM},
    **{f"{matrix}_{each}": 8 for matrix in "abcd" for each in ("rows", "cols", "ld")},
    **{f"{matrix}_batch": 1 for matrix in "abcd"},
}


@pytest.mark.parametrize(
    ("problem", "raw", "said"),
    [
        ({}, {"status": 15}, "it failed with status 15"),
        ({"pointer_mode": 1}, {}, "its scalars are in the memory of the device"),
        ({}, {"pointers": 1}, "it has scales"),
        ({"epilogue": 130}, {}, "its epilogue is number 130"),
        ({"a_type": 33}, {}, "the type of A is number 33"),
        ({"b_order": 2}, {}, "the layout of B"),
        ({"emulation": 1}, {}, "it emulates its type"),
        ({}, {"symbol": b"cublasSgemm_v2"}, "a call of cuBLAS itself"),
        ({}, {"beta": (1, 0)}, "it adds to what was in D"),
        ({}, {"address": (1 << 20, 2 << 20, 0, 1 << 20)}, "it writes over its operand A"),
    ],
)
def test_a_call_that_cannot_be_made_again_says_why(
    problem: dict[str, int], raw: dict[str, Any], said: str
) -> None:
    call = layout.Call(address=(1 << 20, 2 << 20, 3 << 20, 3 << 20))
    for name, value in raw.items():
        kind = type(getattr(call, name))
        setattr(call, name, kind(*value) if isinstance(value, tuple) else value)
    with pytest.raises(NotCaptured) as found:
        capture_cublaslt.needed({**PLAIN, **problem}, call)
    assert said in str(found.value)


@pytest.mark.parametrize(
    ("changed", "size"),
    [
        ({}, (7 * 8 + 8) * 4),
        ({"a_ld": 10}, (7 * 10 + 8) * 4),
        ({"a_rows": 3, "a_order": 1, "a_type": 14}, (2 * 8 + 8) * 2),
        ({"a_batch": 3, "a_stride": 100}, (2 * 100 + 64) * 4),
    ],
)
def test_the_bytes_of_an_operand(changed: dict[str, int], size: int) -> None:
    assert capture_cublaslt.span({**PLAIN, **changed}, "a") == size


def test_the_names_of_cudart_are_the_real_ones() -> None:
    names = ("cudaMalloc", "cudaMemcpy", "cudaDeviceSynchronize")
    fake = ctypes.CDLL(str(built() / "libcudart.so.13"))
    assert all(hasattr(fake, name) for name in names)
    found = [os.environ.get(lanes.CUDART, ""), ctypes.util.find_library("cudart") or ""]
    real = next((path for path in found if path), None)
    if real is None:
        pytest.skip(f"needs libcudart ({lanes.CUDART} names one)")
    library = ctypes.CDLL(real)
    assert all(hasattr(library, name) for name in names)


def test_the_real_library_takes_it_as_far_as_it_goes_without_a_gpu(
    calls: Mapping[str, Captured], tmp_path: Path
) -> None:
    """Description and layouts are made and set; a handle takes a GPU."""
    real = next((path for path in real_paths() if path.name.endswith(".13")), None)
    if real is None:
        pytest.skip(f"needs libcublasLt.so.13 ({lanes.CUBLASLT}, or the wheel nvidia-cublas)")
    call = dict(calls[FAST].call)
    call["problem"] = {**call["problem"], "epilogue": 2, "a_batch": 2, "a_stride": 4096}
    program = made(replace(calls[FAST], call=call), None).program
    for name, data in program.files().items():
        (tmp_path / name).write_bytes(data)
    environ = {"LD_LIBRARY_PATH": f"{real.parent}:{built()}"}
    command = [sys.executable, "-I", form.SCRIPT]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert "cublasLtCreate: status 1" in done.stderr


def test_the_repro_says_what_it_is(calls: Mapping[str, Captured]) -> None:
    script = made(calls[FAST], None).program.files()[form.SCRIPT].decode()
    assert "# SPLITK 4, REDUCTION COMPUTE_TYPE" in script
    assert 'ALPHA = bytes.fromhex("0000803f")  # 1.0\n' in script
    assert max(map(len, script.splitlines())) <= 100
    assert json.loads(script.split("WORKSPACE = ")[1].split("\n")[0]) == 1 << 16
    imports = [line for line in script.splitlines() if line.startswith("import ")]
    assert imports == [f"import {each}" for each in ("ctypes", "glob", "hashlib", "os", "sys")]
