"""Calls of libcublas's own GEMMs pass through unchanged, are counted by name, and named."""

from __future__ import annotations

import random
import re
import subprocess
from pathlib import Path

import pytest

from pinner.inside.choosers.cublaslt import build
from tests.fakes.cublaslt_stand_in import HERE, Rig

# The arguments of each shape as cublas_api.h has them: `i` an int, `l` 64 bits, `p` a pointer.
SHAPES = {
    "cublasSgemm_v2": "p ii iii p p i p i p p i",
    "cublasSgemm_v2_64": "p ii lll p p l p l p p l",
    "cublasDgemv_v2": "p i ii p p i p i p p i",
    "cublasHgemmBatched": "p ii iii p p i p i p p i i",
    "cublasSgemmStridedBatched": "p ii iii p p i l p i l p p i l i",
    "cublasSgemmEx": "p ii iii p p i i p i i p p i i",
    "cublasGemmEx": "p ii iii p p i i p i i p p i i i i",
    "cublasGemmBatchedEx": "p ii iii p p i i p i i p p i i i i i",
    "cublasGemmStridedBatchedEx": "p ii iii p p i i l p i i l p p i i l i i i",
    "cublasSgemmGroupedBatched": "p pp ppp p p p p p p p p i p",
    "cublasGemmGroupedBatchedEx": "p pp ppp p p i p p i p p p i p i p i",
}
CALL = """
import ctypes, os
kinds = {"i": ctypes.c_int, "l": ctypes.c_int64, "p": ctypes.c_void_p}
cublas = ctypes.CDLL(os.environ["CUBLASLT_FAKES"] + "/libcublas.so.%s")
cublas.fake_cublas_argument.restype = ctypes.c_int64
def call(name, shape, values):
    function = getattr(ctypes.CDLL(None), name)
    function.argtypes = [kinds[letter] for letter in shape]
    status = function(*values)
    kept = [cublas.fake_cublas_argument(n) for n in range(cublas.fake_cublas_argument(-1))]
    return status, kept
"""
AUTOTUNE = 999


def values_of(shape: str, draw: random.Random) -> list[int]:
    """A value of each argument that only its own width can hold."""
    bits = {"i": 31, "l": 63, "p": 47}
    return [draw.getrandbits(bits[letter]) | 1 for letter in shape]


def letters(name: str) -> str:
    return SHAPES[name].replace(" ", "")


def test_arguments_and_result_pass_through(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    values = {name: values_of(letters(name), draw) for name in SHAPES}
    rig = Rig(tmp_path)
    code = CALL % 13 + "".join(
        f"show(*call({name!r}, {letters(name)!r}, {values[name]}))\n" for name in SHAPES
    )
    for name, (status, kept) in zip(SHAPES, rig.calls(code), strict=True):
        assert (name, status, kept) == (name, 41, values[name])
    assert sorted(rig.problems()) == ["elsewhere"]
    assert sorted(line["kernel"] for line in rig.mapped("problem")) == sorted(SHAPES)


def test_calls_are_counted_by_name(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    shape = letters("cublasGemmEx")
    calls = f"for _ in 'abc': call('cublasGemmEx', {shape!r}, [0] * {len(shape)})\n"
    rig.calls(CALL % 13 + calls)
    (line,) = rig.mapped("problem")
    assert (line["kind"], line["kernel"]) == ("elsewhere", "cublasGemmEx")
    assert line["text"] == (
        "cublasGemmEx was called 3 times: what cuBLAS chooses inside cannot be held"
    )
    (setting,) = rig.lines("setting")
    assert setting["value"] == "on", "a call was seen, so the library stands in front"


@pytest.mark.parametrize(
    "name", ["cublasGemmEx", "cublasGemmBatchedEx", "cublasGemmStridedBatchedEx"]
)
def test_autotuning_inside_the_handle_is_detected(tmp_path: Path, name: str) -> None:
    rig = Rig(tmp_path)
    values = [0] * (len(letters(name)) - 1)
    calls = f"call({name!r}, {letters(name)!r}, [*{values}, algo])"
    rig.calls(CALL % 13 + f"for algo in (-1, {AUTOTUNE}, {AUTOTUNE}): {calls}")
    texts = rig.problems()["elsewhere"]
    assert any(
        f"{name} was called 2 times with CUBLAS_GEMM_AUTOTUNE (999)" in text for text in texts
    )


def test_what_cublas_multiplies_inside_is_no_question_of_the_program(tmp_path: Path) -> None:
    """The stand-in's cublasGemmEx calls the public cublasLtMatmul, as the real one may."""
    rig = Rig(tmp_path)
    shape = letters("cublasGemmEx")
    count = (
        "ctypes.CDLL(os.environ['CUBLASLT_FAKES'] + '/libcublasLt.so.13').fake_cublaslt_calls(2)"
    )
    code = CALL % 13 + f"call('cublasGemmEx', {shape!r}, [0] * {len(shape)})\nshow({count})"
    assert rig.calls(code) == [[1]]
    assert [line["kernel"] for line in rig.mapped("problem")] == ["cublasGemmEx"]


def test_the_caller_gets_the_major_version_it_was_linked_with(tmp_path: Path) -> None:
    """A caller that names none, with two loaded, is counted: nobody can tell which it means."""
    rig = Rig(tmp_path)
    shape = letters("cublasSgemm_v2")
    both = CALL % 12 + "other = ctypes.CDLL(os.environ['CUBLASLT_FAKES'] + '/libcublas.so.13')\n"
    rig.calls(both + f"call('cublasSgemm_v2', {shape!r}, [0] * {len(shape)})\ngemm(load())")
    (text,) = rig.problems()["bypass"]
    assert "library that names no version of cuBLAS" in text
    assert "two are loaded" in text


def exported() -> list[str]:
    """The legacy functions that the library defines, by its own source."""
    text = (Path(build.source_folder()) / "legacy.c").read_text()
    names = re.findall(r"BOTH\(W, \w+, (cublas\w+)\)", text)
    return [name + end for name in names for end in ("", "_64")]


def test_every_counted_name_is_a_function_of_the_library() -> None:
    done = subprocess.run(
        ["nm", "-D", "--defined-only", str(Rig.library())], capture_output=True, text=True
    )
    defined = {line.split()[-1] for line in done.stdout.splitlines()}
    assert set(exported()) <= defined
    ours = {name for name in defined - set(exported()) if not name.startswith("pinner_cublaslt_")}
    assert ours == {"cublasLtMatmul", "cublasLtMatmulAlgoGetHeuristic"}, (
        "nothing else is in the way"
    )


def test_the_stand_in_has_one_function_of_every_shape() -> None:
    text = (Path(build.source_folder()) / "legacy.c").read_text()
    shapes = set(re.findall(r"BOTH\(W, (\w+), cublas\w+\)", text))
    names = re.findall(r"^int (cublas\w+)\(", (HERE / "cublas.c").read_text(), re.MULTILINE)
    found = {
        re.search(rf"BOTH\(W, (\w+), {name.removesuffix('_64')}\)", text)[1]  # type: ignore[index]
        for name in names
        if name != "cublasLtMatmul"
    }
    assert found == shapes
    assert set(SHAPES) == set(names) - {"cublasLtMatmul"}
