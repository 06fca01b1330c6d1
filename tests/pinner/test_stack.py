"""The rules for stack facts: what is hard, what differs, what may differ (case P15)."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinner import stack
from pinner.inside import stack_rules
from pinner.inside.stack_rules import CPU_ONLY, SOFT, Mismatch, hard_mismatches
from pinner.lockfile.schema import Stack
from pinner.stack import allowed_in_vain, classify, mismatches, notes

ON_GPU: dict[str, Any] = {
    "torch": "2.13.0",
    "triton": "3.9.0",
    "gpu": "NVIDIA H200",
    "sm_count": 132,
    "loaded:libcublasLt": "13.0.2",
    "cpu": "EPYC 9654",
    "cpu:threads": 96,
    "driver": "580.1",
    "python": "3.11.7",
}
ON_CPU = {
    name: value for name, value in ON_GPU.items() if name not in ("gpu", "sm_count", "driver")
}
LOCKED = classify(ON_GPU)


def test_on_a_gpu_the_cpu_is_in_neither_the_way_nor_the_bits() -> None:
    assert sorted(LOCKED.hard) == ["gpu", "loaded:libcublasLt", "sm_count", "torch", "triton"]
    assert sorted(LOCKED.soft) == ["cpu", "cpu:threads", "driver", "python"]
    assert mismatches(LOCKED, {**ON_GPU, "cpu": "Xeon", "cpu:threads": 8, "cpu:flags": "x"}) == ()


def test_without_a_gpu_the_cpu_makes_the_bits() -> None:
    locked = classify(ON_CPU)
    assert {"cpu", "cpu:threads"} <= locked.hard.keys()
    assert mismatches(locked, {**ON_CPU, "cpu": "Xeon"}) == (Mismatch("cpu", "EPYC 9654", "Xeon"),)


def test_a_fact_nobody_has_judged_is_hard() -> None:
    assert classify({"something-new": 1}).hard == {"something-new": 1}


def test_the_same_facts_are_no_mismatch() -> None:
    assert mismatches(LOCKED, ON_GPU) == ()


def test_a_mismatch_says_field_locked_value_and_value_here() -> None:
    (mismatch,) = mismatches(LOCKED, {**ON_GPU, "torch": "2.14.0"})
    assert mismatch == ("torch", "2.13.0", "2.14.0")
    assert str(mismatch) == "torch: locked 2.13.0, here 2.14.0"


def test_all_mismatches_are_listed_by_name() -> None:
    found = mismatches(LOCKED, {**ON_GPU, "triton": "1", "gpu": "A100", "torch": "1"})
    assert [mismatch.field for mismatch in found] == ["gpu", "torch", "triton"]


def test_soft_facts_that_differ_are_noted_and_never_refused() -> None:
    here = {**ON_GPU, "driver": "570.0", "python": None}
    assert mismatches(LOCKED, here) == ()
    assert [str(note) for note in notes(LOCKED, here)] == ["driver: locked 580.1, here 570.0"]


@pytest.mark.parametrize(("locked", "here"), [("1", 1), (1, 1.0), (True, 1), ("a", "a ")])
def test_values_of_other_types_are_other_values(locked: Any, here: Any) -> None:
    assert len(mismatches(Stack({"a": locked}, {}), {"a": here})) == 1


# ---- facts that are not there --------------------------------------------------------------

unknown = st.sampled_from([None, "", "unknown"])


@given(unknown, unknown)
def test_a_fact_unknown_on_both_sides_is_no_mismatch(locked: Any, here: Any) -> None:
    assert hard_mismatches({"gpu": "x", "nccl": locked}, {"gpu": "x", "nccl": here}) == []


@given(unknown)
def test_a_fact_that_only_one_side_has_is_a_mismatch(nothing: Any) -> None:
    (gone,) = mismatches(LOCKED, {**ON_GPU, "triton": nothing})
    assert str(gone) == "triton: locked 3.9.0, here not there"
    (new,) = mismatches(LOCKED, {**ON_GPU, "flash-attn": "2.8"})
    assert str(new) == "flash-attn: locked not there, here 2.8"


def test_a_process_that_never_touched_cuda_matches_one_that_did() -> None:
    """Case P15: libraries it did not load are no evidence of another stack."""
    untouched = {**ON_GPU, "loaded:libcublasLt": "unknown"}
    assert mismatches(LOCKED, untouched) == ()
    assert mismatches(classify(untouched), ON_GPU) == ()
    assert classify(untouched).hard.keys() == LOCKED.hard.keys() - {"loaded:libcublasLt"}


def test_a_library_that_both_loaded_must_be_the_same() -> None:
    (mismatch,) = mismatches(LOCKED, {**ON_GPU, "loaded:libcublasLt": "12.9"})
    assert mismatch.field == "loaded:libcublasLt"


def test_a_gpu_that_was_not_there_or_is_not_there_is_a_mismatch() -> None:
    assert "gpu" in [each.field for each in mismatches(LOCKED, ON_CPU)]
    assert "gpu" in [each.field for each in mismatches(classify(ON_CPU), ON_GPU)]


def test_facts_that_are_still_being_collected_are_not_missed() -> None:
    early = {"torch": "2.13.0", "triton": "9"}
    found = hard_mismatches(LOCKED.hard, early, partial=True)
    assert [each.field for each in found] == ["triton"]


def test_of_a_fact_in_which_processes_differed_any_seen_value_is_right() -> None:
    seen = [{"gpu": "H200", "a": 1, "host": "n1"}, {"gpu": "H200", "a": 2, "host": "n2"}]
    locked = classify(stack.combine(seen))
    assert (locked.hard, locked.soft) == ({"gpu": "H200", "a": "1 | 2"}, {})
    assert mismatches(locked, {"gpu": "H200", "a": 2}) == ()
    (mismatch,) = mismatches(locked, {"gpu": "H200", "a": 3})
    assert str(mismatch) == "a: locked 1 | 2, here 3"
    (gone,) = mismatches(locked, {"gpu": "H200"})
    assert str(gone) == "a: locked 1 | 2, here not there"


def test_a_library_that_only_some_processes_loaded_keeps_its_version() -> None:
    seen = [{"loaded:libcudnn": "9.1"}, {"torch": "2"}, {"loaded:libcudnn": "9.1"}]
    assert classify(stack.combine(seen)).hard == {
        "loaded:libcudnn": "9.1",
        "torch": "2 | not there",
    }


# ---- allowed differences -------------------------------------------------------------------


@pytest.mark.parametrize("allow", [["torch"], ["tor*"], ["gpu", "torch"], ["*"]])
def test_an_allowed_field_may_differ(allow: list[str]) -> None:
    assert mismatches(LOCKED, {**ON_GPU, "torch": "2.14.0"}, allow) == ()


def test_another_field_that_is_allowed_does_not_help() -> None:
    assert len(mismatches(LOCKED, {**ON_GPU, "torch": "2.14.0"}, ["triton", "Torch"])) == 1


def test_an_allowed_name_that_is_no_fact_is_said_with_the_one_it_may_mean() -> None:
    (line,) = allowed_in_vain(LOCKED, ["tritn", "gpu", "loaded:*"])
    assert line.startswith("--allow tritn: expected the name of a hard fact of the lock")
    assert line.endswith("did you mean triton?")
    (line,) = allowed_in_vain(LOCKED, ["zzz"])
    assert line.endswith("they are: gpu, loaded:libcublasLt, sm_count, torch, triton")


# ---- the tables themselves -----------------------------------------------------------------


def test_each_soft_fact_has_its_reason() -> None:
    assert all(len(reason) > 10 for reason in SOFT.values())


def test_no_fact_is_soft_and_of_the_cpu_at_once() -> None:
    assert not [name for name in SOFT if stack_rules.named_by(name, CPU_ONLY)]


@given(st.dictionaries(st.sampled_from([*ON_GPU, "host", "env:X"]), st.integers(0, 2) | unknown))
def test_the_facts_a_lock_was_made_from_always_match_it(facts: dict[str, Any]) -> None:
    assert mismatches(classify(facts), facts) == ()
    assert set(stack.known(facts)) == {*classify(facts).hard, *classify(facts).soft}


def test_the_rules_are_python_3_8() -> None:
    source = Path(stack_rules.__file__).read_text(encoding="utf-8")
    ast.parse(source, feature_version=(3, 8))
