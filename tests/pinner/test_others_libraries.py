"""Each library that chooses by itself: active it has rows, idle none, and a lock holds it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.others_rig import Run, locked, run_each

IDLE = """
import flash_attn, flash_attn.cute, flash_attn_interface, flashinfer, helion, flag_gems
import cutlass.testing, cutlass.cute.testing, grouped_gemm, deep_gemm, xformers.ops
import transformer_engine.pytorch.attention.dot_product_attention as attention
attention.DotProductAttention()
flashinfer.autotuner.AutoTuner.get()
with flashinfer.autotune(False):
    pass
@helion.kernel(config=helion.Config(block_sizes=[8]))
def fixed(x): pass
fixed(1)
"""

# `fast` is which of two configs is faster: 0 where it is recorded, 1 where it is enforced.
PROGRAMS = {
    "idle": IDLE,
    "flash_attn": """
import flash_attn
for _ in range(3):
    flash_attn.flash_attn_func(1, 2, 3, causal=True, deterministic=True)
    flash_attn.flash_attn_varlen_func(1, 2, 3, 4, 5, 6, 7, deterministic=True)
""",
    "flash_attn by chance": """
import flash_attn, flash_attn_2_cuda
kept = flash_attn_2_cuda.bwd
flash_attn.flash_attn_func(1, 2, 3, deterministic=True)
flash_attn.flash_attn_func(1, 2, 3, causal=True)
note(type(flash_attn_2_cuda.bwd).__name__)
note([held for _, held in flash_attn_2_cuda.calls])
""",
    "flash_attn varlen": """
import flash_attn
flash_attn.flash_attn_varlen_func(1, 2, 3, 4, 5, 6, 7, causal=True)
""",
    "flash_attn 3": """
import flash_attn_interface
flash_attn_interface.flash_attn_func(1, 2, 3, causal=True, deterministic=deterministic)
""",
    "flash_attn 4": """
import flash_attn.cute
flash_attn.cute.flash_attn_func(1, 2, 3, causal=True, deterministic=True)
""",
    "flashinfer": """
from flashinfer import autotune
from flashinfer.autotuner import autotuner
class Runner(autotuner.TunableRunner): pass
autotuner.times.update({0: 1 + fast, (1, 2): 2 - fast})
tuner = autotuner.AutoTuner.get()
runners = [Runner([0, (1, 2)])]
picked = lambda op: tuner.choose_one(op, runners, None, [(4, 8)])[1]
with autotune(True, cache="nowhere.json"):
    picks = [picked("fp4_gemm"), picked("fp4_gemm")]
picks.append(picked("fp4_gemm"))
note([picks, autotuner.timed])
with autotune(True):
    note([picked("never locked") if missing else None, autotuner.timed])
""",
    "helion": """
import helion
from helion.runtime import kernel as internals
internals.found["block_sizes"] = [16, 64][fast:fast + 1]
@helion.kernel
def add(x): return x
note([add(1), add(1.5), internals.searches])
""",
    "helion, several shapes": """
import helion
@helion.kernel
def add(x): return x
add.autotune_multi([1], [2])
""",
    "flag_gems": """
import flag_gems, triton
from flag_gems.utils.libentry import ConfigCache, database
def tuned(key, config):
    if key not in table: table[key] = config
    return table[key].all_kwargs()["BLOCK"]
with flag_gems.use_gems():
    table = ConfigCache("mm_kernel_0a1b", None)
    fastest = triton.Config({"BLOCK": [32, 64][fast]}, num_warps=4)
    note([tuned((64, 1.5, "torch.float16"), fastest) for _ in range(2)])
    note(len(database))
    if missing: note([tuned((1, 1.5, "torch.float16"), fastest), len(database)])
""",
    "flag_gems from disk": """
from flag_gems.utils.libentry import ConfigCache, database
database["mm_kernel_0a1b", (8,)] = {"BLOCK": [16, 128][fast], "num_warps": 4, "num_stages": 3}
note(ConfigCache("mm_kernel_0a1b", None)[(8,)].kwargs)
""",
    "cute_dsl": """
from cutlass.testing import JitArguments, tune
from cutlass import testing
def product(shape, tile, stages): return (tile, stages)
testing.times.update({(t, s): abs(t - [64, 128][fast]) + s for t in (64, 128) for s in (1, 2)})
found = tune(product, {"tile": [64, 128], "stages": [1, 2]}, JitArguments(7))
note([found, len(testing.timed)])
""",
    "cute_dsl decorator": """
from cutlass.cute.testing import autotune_jit
from cutlass import testing
testing.times.update({1: 2, 2: 1})
@autotune_jit(params_dict={"tile": [1, 2]})
def product(shape, tile=1): return tile
note([product(7), product(7), len(testing.timed)])
""",
    "grouped_gemm": """
import grouped_gemm, grouped_gemm_backend
kept = grouped_gemm_backend.gmm if False else None
grouped_gemm.ops.gmm(1, 2, 3)
note(type(grouped_gemm_backend).__mro__[0] is type(__import__("sys")))
""",
    "deep_gemm": """
import os
os.environ.setdefault("DG_JIT_USE_NVRTC", "0")
import deep_gemm
deep_gemm.set_num_sms(120)
deep_gemm.fp8_gemm_nt(1, 2, 3)
""",
    "transformer_engine": """
import os
if not fast: os.environ["NVTE_FLASH_ATTN"] = "0"
import transformer_engine.pytorch.attention.dot_product_attention as attention
layer = attention.DotProductAttention()
note([layer.forward()[2], layer.forward("bshd_bshd_bshd")[2]])
""",
    "xformers": """
import xformers.ops as ops
ops.memory_efficient_attention(1, 2, 3)
note("first_use" in repr(type(ops)))
""",
    "xformers sparse": """
import os
os.environ["XFORMERS_CUSPARSELT_TUNE"] = "1"
from xformers.ops import sparsify24
""",
}
PROGRAMS["past pinner"] = """
import sys
from importlib.machinery import PathFinder
sys.meta_path.insert(0, PathFinder)
import deep_gemm
deep_gemm.fp8_gemm_nt(1, 2, 3)
"""
RECORDING = {"fast": 0, "missing": False, "deterministic": True}
ENFORCING = {"fast": 1, "missing": True, "deterministic": False}


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Run]:
    return run_each(tmp_path_factory.mktemp("observed") / "session", PROGRAMS, names=RECORDING)


@pytest.fixture(scope="module")
def enforced(
    observed: Mapping[str, Run], tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, Run]:
    folder = tmp_path_factory.mktemp("enforced") / "session"
    return run_each(folder, PROGRAMS, locked(*observed.values()), ENFORCING)


def test_what_is_only_imported_has_no_row(observed: Mapping[str, Run]) -> None:
    assert observed["idle"].rows() == {}
    assert observed["idle"].problems() == []


def test_what_was_imported_past_pinner_is_named(observed: Mapping[str, Run]) -> None:
    (problem,) = observed["past pinner"].problems()
    assert (problem["kind"], problem["chooser"]) == ("bypass", "deep_gemm")
    assert "deep_gemm was imported past pinner" in problem["text"]


@pytest.mark.parametrize(
    ("program", "chooser", "expected"),
    [
        ("flash_attn", "flash_attention", {"2.deterministic": (True, "recorded")}),
        ("flash_attn by chance", "flash_attention", {"2.deterministic": (False, "no")}),
        ("flash_attn varlen", "flash_attention", {"2.deterministic": (False, "no")}),
        ("flash_attn 3", "flash_attention", {"3.deterministic": (True, "recorded")}),
        ("flash_attn 4", "flash_attention", {"4.deterministic": (True, "recorded")}),
        ("grouped_gemm", "grouped_gemm", {"version": ("1.1.4.post8", "recorded")}),
        (
            "deep_gemm",
            "deep_gemm",
            {
                "DG_JIT_USE_NVRTC": ("0", "forced"),
                "version": ("2.6.1", "recorded"),
                "num_sms": (120, "recorded"),
                "tc_util": (100, "recorded"),
                "pdl": (False, "recorded"),
            },
        ),
        ("xformers", "xformers", {"memory_efficient_attention": ("by inputs", "recorded")}),
        ("xformers sparse", "xformers", {"XFORMERS_CUSPARSELT_TUNE": ("1", "no")}),
        ("helion, several shapes", "helion", {"autotune_multi add": (True, "no")}),
    ],
)
def test_what_is_used_has_its_rows(
    observed: Mapping[str, Run], program: str, chooser: str, expected: dict[str, Any]
) -> None:
    assert observed[program].rows() == observed[program].rows(chooser) == expected


def test_flash_attn_is_watched_until_one_call_may_add_in_any_order(
    observed: Mapping[str, Run],
) -> None:
    """The library's own function is back then, and every call has had its own arguments."""
    assert observed["flash_attn by chance"].notes == ["_Compiled", [True, False]]


def test_a_tactic_of_flashinfer_is_written_once_and_forced_against_the_clock(
    observed: Mapping[str, Run], enforced: Mapping[str, Run]
) -> None:
    name = "('fp4_gemm', 'Runner', ((4, 8),), ())"
    assert observed["flashinfer"].rows() == {name: (["Runner", 0], "forced")}
    assert observed["flashinfer"].notes[0] == [[0, 0, 0], [0, [1, 2]]]
    assert enforced["flashinfer"].rows() == {name: (["Runner", 0], "forced")}
    assert enforced["flashinfer"].notes[0] == [[0, 0, 0], []]


def test_a_shape_that_is_not_locked_takes_flashinfers_fallback_untimed(
    enforced: Mapping[str, Run],
) -> None:
    assert enforced["flashinfer"].notes[1] == [-1, []]
    (missed,) = enforced["flashinfer"].problems()
    assert (missed["kind"], missed["chooser"]) == ("missed", "flashinfer")


def test_helions_config_is_written_and_forced_without_a_search(
    observed: Mapping[str, Run], enforced: Mapping[str, Run]
) -> None:
    rows = observed["helion"].rows()
    assert len(rows) == 2
    assert set(rows.values()) == {(json.dumps({"block_sizes": [16]}), "forced")}
    assert observed["helion"].notes == [
        [{"block_sizes": [16]}, {"block_sizes": [16]}, ["add", "add"]]
    ]
    assert enforced["helion"].rows() == rows
    assert enforced["helion"].notes == [[{"block_sizes": [16]}, {"block_sizes": [16]}, []]]


def test_a_config_of_flag_gems_is_forced_and_its_database_left_as_it_is(
    observed: Mapping[str, Run], enforced: Mapping[str, Run]
) -> None:
    ((name, row),) = observed["flag_gems"].rows().items()
    assert name.startswith("mm_kernel_0a1b ")
    (key, pairs), held = row
    assert (key, held) == ([64, 1.5, "torch.float16"], "forced")
    assert ["BLOCK", 32] in pairs
    assert observed["flag_gems"].notes == [[32, 32], 1]
    assert enforced["flag_gems"].rows()[name] == row
    assert enforced["flag_gems"].notes == [[32, 32], 0, [64, 0]]
    assert [line["kind"] for line in enforced["flag_gems"].problems()] == ["missed"]


def test_what_flag_gems_finds_in_its_database_is_held_too(
    observed: Mapping[str, Run], enforced: Mapping[str, Run]
) -> None:
    assert observed["flag_gems from disk"].notes == [{"BLOCK": 16}]
    assert enforced["flag_gems from disk"].notes == [{"BLOCK": 16}]


def test_tune_of_cute_dsl_answers_from_the_lock_and_times_nothing(
    observed: Mapping[str, Run], enforced: Mapping[str, Run]
) -> None:
    rows = observed["cute_dsl"].rows()
    assert list(rows.values()) == [([["stages", 1], ["tile", 64]], "forced")]
    assert observed["cute_dsl"].notes == [[{"tile": 64, "stages": 1}, 4]]
    assert enforced["cute_dsl"].rows() == rows
    assert enforced["cute_dsl"].notes == [[{"tile": 64, "stages": 1}, 0]]


def test_the_decorator_of_cute_dsl_is_named(observed: Mapping[str, Run]) -> None:
    run = observed["cute_dsl decorator"]
    ((name, row),) = run.rows().items()
    assert name.startswith("autotune_jit program:product ")
    assert row == ([["tile", 2]], "no")
    assert run.notes == [[2, 2, 2]]


def test_transformer_engines_backends_are_forced_by_its_variables(
    observed: Mapping[str, Run], enforced: Mapping[str, Run]
) -> None:
    rows = observed["transformer_engine"].rows()
    assert rows.pop("NVTE_FLASH_ATTN") == ("0", "forced")
    assert rows.pop("deterministic attention") == (False, "no")
    assert list(rows.values()) == [(["fused", "1"], "recorded")] * 2
    assert enforced["transformer_engine"].rows() == observed["transformer_engine"].rows()
    assert enforced["transformer_engine"].notes == [[True, True]]


def test_a_forced_variable_is_set_before_the_library_reads_it(
    enforced: Mapping[str, Run],
) -> None:
    assert enforced["deep_gemm"].rows()["DG_JIT_USE_NVRTC"] == ("0", "forced")
    assert enforced["idle"].rows() == {}


def test_a_recorded_setting_that_differs_is_written_as_it_is(enforced: Mapping[str, Run]) -> None:
    assert enforced["flash_attn 3"].rows() == {"3.deterministic": (False, "no")}


def test_nothing_of_ours_stays_on_a_module_after_its_first_use(
    observed: Mapping[str, Run],
) -> None:
    assert observed["grouped_gemm"].notes == [True]
    assert observed["xformers"].notes == [False]


CONTRADICTIONS = {
    "deep_gemm": """
import os
os.environ["DG_JIT_USE_NVRTC"] = "1"
"""
    + PROGRAMS["deep_gemm"],
    "transformer_engine": PROGRAMS["transformer_engine"].replace('= "0"', '= "1"'),
    "taken away": PROGRAMS["transformer_engine"]
    .replace("if not fast: ", "if fast: ")
    .replace("layer =", "del os.environ['NVTE_FLASH_ATTN']\nlayer ="),
}


def test_a_program_that_contradicts_the_lock_is_invalid_and_names_both(
    observed: Mapping[str, Run], tmp_path: Path
) -> None:
    settings = locked(observed["deep_gemm"], observed["transformer_engine"])
    runs = run_each(tmp_path / "session", CONTRADICTIONS, settings, {"fast": 0})
    texts = {name: [line["text"] for line in run.problems("invalid")] for name, run in runs.items()}
    assert "DG_JIT_USE_NVRTC = '0', the program has '1'" in texts["deep_gemm"][0]
    assert "NVTE_FLASH_ATTN = '0', the program has '1'" in texts["transformer_engine"][0]
    assert "NVTE_FLASH_ATTN = '0', the program has None" in texts["taken away"][0]
    assert all(len(each) == 1 for each in texts.values())


def test_under_error_a_miss_is_an_error_and_a_pick_that_cannot_be_used_is_invalid(
    observed: Mapping[str, Run], tmp_path: Path
) -> None:
    rows = locked(observed["helion"], observed["cute_dsl"])
    broken = [
        {**row, "value": '{"block_sizes": [0]}' if row["chooser"] == "helion" else [["tile", 65]]}
        for row in rows
    ]
    programs = {
        "helion": PROGRAMS["helion"],
        "cute_dsl": PROGRAMS["cute_dsl"],
        "other": PROGRAMS["helion"].replace("def add(x)", "def other(x)").replace("add(", "other("),
    }
    runs = run_each(
        tmp_path / "session",
        programs,
        broken,
        RECORDING,
        on_miss="error",
        expect_failures=list(programs),
    )
    assert [line["kind"] for line in runs["helion"].problems()] == ["invalid"]
    assert [line["kind"] for line in runs["cute_dsl"].problems()] == ["invalid", "missed"]
    assert [line["kind"] for line in runs["other"].problems()] == ["missed"]
