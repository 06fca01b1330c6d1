"""Writes cuBLASLt's locked choices as rows of PyTorch's TunableOp results file: format only.

torch 2.14 reads, with tuning off, rows ``OPERATOR,PARAMETERS,ALGORITHM,TIME`` (ATen/cuda/tunable,
GemmCublaslt.h and GemmCommon.h). A row that it does not find means its default without a word, and
the file's ``Validator`` lines, which name versions and GPU, are for torch itself to write. Not run
on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pinner.inside.choosers.cublaslt import fields, layout
from pinner.inside.values import readable_named

from .schema import Entry

_TYPES = {"R_32F": "float", "R_64F": "double", "R_16F": "Half", "R_16BF": "BFloat16"}
_ALGORITHM = (
    "Gemm_Cublaslt_id_{id}_tile_{tile}_stages_{stages}_splitk_{splitk}_red_{reduction}"
    "_swizzle_{swizzle}_custom_{custom}_inner_{inner}_cluster_{cluster}"
)
_PLAIN, _BIAS = 1, 4  # cublasLtEpilogue_t


@dataclass(frozen=True)
class Rows:
    """rows: lines without newlines, sorted. left_out: why a locked choice has none."""

    rows: tuple[str, ...]
    left_out: tuple[str, ...]


def rows_of(entries: Iterable[Entry]) -> Rows:
    """The rows of cuBLASLt's entries. TunableOp's key holds less than a lock's: entries that it
    cannot tell apart make one row where they agree, and none where they do not."""
    found: dict[str, set[str]] = {}
    left_out = []
    for entry in entries:
        numbers = layout.named(layout.KEY_NAMES, fields.words(entry.key))
        why = _not_expressible(numbers)
        if why:
            left_out.append(f"{readable_named(entry.key)}: {why}")
            continue
        algorithm = _ALGORITHM.format(**dict.fromkeys(layout.ALGO_NAMES, 0) | dict(entry.config))
        found.setdefault(_signature(numbers), set()).add(algorithm)
    rows = []
    for signature, algorithms in sorted(found.items()):
        if len(algorithms) == 1:
            rows.append(f"{signature},{next(iter(algorithms))},0")
        else:
            left_out.append(
                f"{signature}: locked to {len(algorithms)} algorithms, by workspace or alignment, "
                "which TunableOp does not look at"
            )
    return Rows(tuple(rows), tuple(left_out))


def _not_expressible(numbers: Mapping[str, int]) -> str:
    if _type(numbers) is None:
        return "TunableOp has rows of float, double, Half and BFloat16 products only"
    if any(numbers[f"{each}_type"] != numbers["a_type"] for each in "bcd"):
        return "its matrices have several types"
    if numbers["epilogue"] not in (_PLAIN, _BIAS):
        return "its epilogue has no operator of TunableOp"
    if any(numbers[f"{each}_order"] for each in "abcd"):
        return "its matrices are not in column order"
    return ""


def _type(numbers: Mapping[str, int]) -> str | None:
    name = _TYPES.get(fields.DATA_TYPES.get(numbers["a_type"], ""))
    fast = fields.COMPUTE_TYPES.get(numbers["compute"]) == "32F_FAST_TF32"
    return "tf32" if name == "float" and fast else name


def _signature(numbers: Mapping[str, int]) -> str:
    """``GemmTunableOp_BFloat16_TN,tn_M_N_K_ld_A_B_C``; ``_B_`` and the count where batched."""
    transposed = "".join(fields.OPERATIONS[numbers[name]][0] for name in ("transa", "transb"))
    rows, columns = numbers["d_rows"], numbers["d_cols"]
    inner = numbers["a_cols"] if transposed[0] == "N" else numbers["a_rows"]
    batch = numbers["a_batch"]
    operator = "GemmStridedBatched" if batch > 1 else "Gemm"
    if numbers["epilogue"] == _BIAS:
        operator = "GemmAndBias"
    size = f"{rows}_{columns}_{inner}" + (f"_B_{batch}" if batch > 1 else "")
    leading = f"{numbers['a_ld']}_{numbers['b_ld']}_{numbers['c_ld']}"
    parameters = f"{transposed.lower()}_{size}_ld_{leading}"
    return f"{operator}TunableOp_{_type(numbers)}_{transposed},{parameters}"
