"""A captured call of cuBLASLt as a program, and the bits that it gave.

It is captured in both stacks. Where the algorithm is the same in both, the repro forces it, and the
library computes otherwise with it. Where it is not, the repro asks the heuristic as the call's own
caller may have: the library chooses otherwise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pinner.inside.choosers.cublaslt import fields, layout
from stackbisect.repro.calls import Array, Program, Ref, Step, elements
from stackbisect.repro.capture import Asked, Made
from stackbisect.repro.captured import Captured
from stackbisect.repro.extract import NoCase

CALL = "cublasLtMatmul"
# By cudaDataType_t: as torch names them.
DTYPES = {
    0: "float32",
    1: "float64",
    2: "float16",
    3: "int8",
    4: "complex64",
    5: "complex128",
    8: "uint8",
    10: "int32",
    14: "bfloat16",
    28: "float8_e4m3fn",
    29: "float8_e5m2",
}


@dataclass(frozen=True)
class Matmul:
    """What a program of the kind "cublaslt" has beside its only step, whose kwargs are operands.

    problem: the words of layout.PROBLEM by their names. algorithm: fields by their names; empty
    where the heuristic is asked. blob: the algorithm as this `version` of the library holds it.
    alignment: of each operand's address, 256 at most. alpha, beta: in the type of `scale`.
    """

    problem: Mapping[str, int]
    algorithm: Mapping[str, int]
    blob: bytes
    version: int
    workspace: int
    alignment: Mapping[str, int]
    alpha: bytes
    beta: bytes


def program(captured: Captured, asked: Asked) -> Made | NoCase:
    """What is to be called alone. Runs the command in the other stack."""
    other = asked.captured(asked.other)
    return made(captured, None if isinstance(other, NoCase) else other)


def made(good: Captured, bad: Captured | None) -> Made | NoCase:
    """The program, from the call in both stacks. Pure."""
    call = good.call
    problem: Mapping[str, int] = call["problem"]
    if problem["d_type"] not in DTYPES:
        return NoCase(f"the type of its result is number {problem['d_type']}")
    if bad is not None:
        apart = "; ".join(_called_otherwise(call, bad.call))
        if apart:
            return NoCase(f"cuBLASLt is not called the same way in both stacks: {apart}")
    changes = [] if bad is None else fields.changes(_config(call), _config(bad.call))
    forced = not changes and call["how"] != "implicit"
    names = {number: name for name, number in call["operands"].items()}
    arrays = good.arrays(names)
    result = arrays.pop("d")
    matmul = Matmul(
        problem=problem,
        algorithm=call["algorithm"] if forced else {},
        blob=bytes.fromhex(call["blob"]) if forced else b"",
        version=call["version"],
        workspace=call["workspace"],
        alignment=call["alignment"],
        alpha=bytes.fromhex(call["alpha"]),
        beta=bytes.fromhex(call["beta"]),
    )
    found = Program(
        kind="cublaslt",
        operation=good.name.removeprefix("cublaslt:"),
        inputs=arrays,
        steps=(Step(CALL, (), {name: Ref(name) for name in arrays}, results=("d",)),),
        outputs=("d",),
        needs=(
            "nvidia-cublas" if problem["major"] >= 13 else f"nvidia-cublas-cu{problem['major']}",
        ),
        gpu=True,
        kernel=matmul,
        notes=(_notes(call, changes, bad),),
    )
    return Made(found, {"d": digest(problem, result)})


def _config(call: Mapping[str, Any]) -> dict[str, Any]:
    return {**call["algorithm"], "workspace": None}


def _called_otherwise(good: Mapping[str, Any], bad: Mapping[str, Any]) -> Iterator[str]:
    """What the call is given that is not the same in the two stacks, but for the algorithm."""
    names = [name for name in good["problem"] if name != "major"]
    for name in names:
        one, other = good["problem"][name], bad["problem"].get(name)
        if one != other:
            yield f"{name} is {one} in the good stack, {other} in the bad"
    for name in ("workspace", "alpha", "beta"):
        if good[name] != bad[name]:
            yield f"{name} is {good[name]} in the good stack, {bad[name]} in the bad"


def digest(problem: Mapping[str, int], result: Array) -> str:
    """Of D as the repro prints it: its elements as they lie in memory, gaps left out."""
    dtype, shape = DTYPES[problem["d_type"]], shape_of(problem)
    data = dense(problem, elements(result))
    head = f"{dtype}[{','.join(map(str, shape))}]\0".encode()
    return "sha256:" + hashlib.sha256(head + data).hexdigest()


def shape_of(problem: Mapping[str, int]) -> tuple[int, int, int]:
    """Batches, and D's lines and their length: columns where it lies by columns."""
    rows, cols, batch = (problem[f"d_{name}"] for name in ("rows", "cols", "batch"))
    return (batch, rows, cols) if problem["d_order"] == 1 else (batch, cols, rows)


def dense(problem: Mapping[str, int], data: bytes) -> bytes:
    """D without the gaps between its lines and batches."""
    batch, lines, length = shape_of(problem)
    size = ITEMSIZE[problem["d_type"]]
    stride, ld = problem["d_stride"], problem["d_ld"]
    starts = [(b * stride + line * ld) * size for b in range(batch) for line in range(lines)]
    return b"".join(data[start : start + length * size] for start in starts)


ITEMSIZE = {0: 4, 1: 8, 2: 2, 3: 1, 4: 8, 5: 16, 8: 1, 10: 4, 14: 2, 28: 1, 29: 1}


def _notes(call: Mapping[str, Any], changes: list[str], bad: Captured | None) -> str:
    words = fields.problem(_words(call["problem"]), call["version"], "")
    shown = ", ".join(
        f"{name} {value}" for name, value in words.items() if name in _SHOWN and value is not None
    )
    said = f"The problem: {shown}.\n\n"
    if changes:
        said += (
            "cuBLASLt's heuristic picks another algorithm in the other stack: "
            f"{', '.join(changes)}. The repro asks it with the workspace and the alignments that "
            "the call had; what else its caller asked with is not known."
        )
        if bad is not None and bad.call["alignment"] != call["alignment"]:
            said += (
                f" The addresses were aligned to {bad.call['alignment']} there and to "
                f"{call['alignment']} here, which may be why."
            )
        return said
    if call["how"] == "implicit":
        return said + "The call names no algorithm: the library chooses inside of it."
    where = "in the good stack" if bad is None else "in both stacks"
    return said + f"The algorithm is forced, the same {where}: {fields.readable(_config(call))}."


_SHOWN = (
    *("compute", "scale", "transa", "transb", "epilogue"),
    *(f"{matrix}_{each}" for matrix in "abc" for each in ("type", "rows", "cols", "ld")),
)


def _words(problem: Mapping[str, int]) -> list[int]:
    return [problem.get(name, layout.DEFAULTS[name]) for name in layout.KEY_NAMES]
