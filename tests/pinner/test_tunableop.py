"""cuBLASLt's locked choices as rows that PyTorch's TunableOp reads."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pinner.inside.choosers.cublaslt import fields, layout
from pinner.lockfile.codec import write_lock
from pinner.lockfile.schema import Entry
from pinner.lockfile.tunableop import rows_of
from tests import locks
from tests.command_rig import Pinner

# As ATen/cuda/tunable/GemmCublaslt.h of torch 2.14 scans a row's third field.
SCANNED = re.compile(
    r"Gemm_Cublaslt_id_(\d+)_tile_(\d+)_stages_(\d+)_splitk_(\d+)_red_(\d+)_swizzle_(\d+)"
    r"_custom_(\d+)_inner_(\d+)_cluster_(\d+)"
)
SIZES = {"a_rows": 512, "a_cols": 48, "b_rows": 512, "b_cols": 8}
SIZES |= {"c_rows": 48, "c_cols": 8, "d_rows": 48, "d_cols": 8}
LEADING = {"a_ld": 512, "b_ld": 512, "c_ld": 48, "d_ld": 48}


def product(*, splitk: int = 4, **changed: int) -> Entry:
    """A bf16 product of 48 x 512 (transposed) with 512 x 8."""
    numbers = {**layout.DEFAULTS, "major": 13, "compute": 68, "transa": 1, **SIZES, **LEADING}
    numbers |= {f"{each}_type": 14 for each in "abcd"} | changed
    key = fields.problem([numbers[name] for name in layout.KEY_NAMES], 130100, "")
    return replace(locks.problem(splitk=splitk), key=dict(key))


def test_a_row_is_what_torch_scans() -> None:
    found = rows_of([product()])
    (row,) = found.rows
    operator, parameters, algorithm, _ = row.split(",")
    assert operator == "GemmTunableOp_BFloat16_TN"
    assert parameters == "tn_48_8_512_ld_512_512_48"
    scanned = SCANNED.fullmatch(algorithm)
    assert scanned is not None
    assert [int(each) for each in scanned.groups()] == [66, 20, 35, 4, 0, 0, 0, 0, 0]
    assert found.left_out == ()


@pytest.mark.parametrize(
    ("changed", "begins"),
    [
        ({"epilogue": 4}, "GemmAndBiasTunableOp_BFloat16_TN,tn_48_8_512_ld_"),
        (
            {f"{each}_batch": 3 for each in "abcd"},
            "GemmStridedBatchedTunableOp_BFloat16_TN,tn_48_8_512_B_3_ld_",
        ),
        (
            {f"{each}_type": 0 for each in "abcd"} | {"compute": 77},
            "GemmTunableOp_tf32_TN,",
        ),
        ({"transa": 0, "a_rows": 48, "a_cols": 512}, "GemmTunableOp_BFloat16_NN,nn_48_8_512_ld_"),
    ],
)
def test_each_operator_has_its_signature(changed: dict[str, int], begins: str) -> None:
    assert rows_of([product(**changed)]).rows[0].startswith(begins)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({f"{each}_type": 28 for each in "ab"}, "products only"),
        ({"d_type": 0}, "several types"),
        ({"epilogue": 32}, "epilogue"),
        ({"a_order": 1}, "column order"),
    ],
)
def test_what_has_no_row_is_said(changed: dict[str, int], says: str) -> None:
    found = rows_of([product(**changed)])
    assert found.rows == ()
    assert says in found.left_out[0]


def test_entries_that_tunableop_cannot_tell_apart_must_agree() -> None:
    alike = [product(), product(workspace=1 << 20)]
    assert len(rows_of(alike).rows) == 1
    found = rows_of([alike[0], product(splitk=1, workspace=1 << 20)])
    assert found.rows == ()
    assert "locked to 2 algorithms" in found.left_out[0]


def test_the_command_prints_rows_and_says_what_is_left_out(tmp_path: Path) -> None:
    entries: Any = (product(), product(epilogue=32))
    write_lock(tmp_path / "pinner.lock.toml", locks.lock(cublaslt=entries))
    said = Pinner(tmp_path)("show", "--tunableop")
    assert said.code == 0
    assert said.out.startswith("GemmTunableOp_BFloat16_TN,tn_48_8_512")
    assert said.last.startswith("no row for ")
