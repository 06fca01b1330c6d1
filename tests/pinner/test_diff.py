"""The difference of two locks: every field that differs, what can change bits first."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from pinner.lockfile.codec import dumps, loads
from pinner.lockfile.diff import Diff, diff_locks
from pinner.lockfile.schema import (
    Entry,
    Evidence,
    Lock,
    Stack,
    StreamRecord,
    TritonFallback,
)
from tests import locks


def _diff(old: Entry, new: Entry) -> Diff:
    return diff_locks(locks.lock(old), locks.lock(new))


def _lines(diff: Diff) -> list[str]:
    return diff.text("old", "new").splitlines()


def _changed(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """The fields of a config that differ, as they are listed."""
    (entry,) = _diff(locks.entry(config=old), locks.entry(config=new)).entries
    return [str(change) for _, change in entry.changes]


@settings(deadline=None)
@given(locks.locks())
def test_a_lock_does_not_differ_from_itself(lock: Lock) -> None:
    diff = diff_locks(lock, loads(dumps(lock), "x"))
    assert diff.empty
    assert not diff.can_change_bits
    assert diff.text("a", "b") == "a and b lock the same choices"


def _unnoted(items: Iterable[Any]) -> Any:
    return tuple(replace(item, note="") for item in items)


# Two whole locks are much to draw: many a draw is too large, and drawn again.
@settings(
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.data_too_large, HealthCheck.too_slow],
)
@given(locks.locks(), locks.locks())
def test_locks_that_differ_in_text_differ_and_the_other_way_round(one: Lock, other: Lock) -> None:
    there, back = diff_locks(one, other), diff_locks(other, one)
    assert there.empty == back.empty
    assert there.can_change_bits == back.can_change_bits
    assert len(there.entries) == len(back.entries)
    assert [entry.identity for entry in there.only_a] == [entry.identity for entry in back.only_b]
    described = replace(one.run, created="", pinner=""), replace(other.run, created="", pinner="")
    plain = [
        replace(
            lock,
            run=run,
            triton=_unnoted(lock.triton),
            inductor=_unnoted(lock.inductor),
            cublaslt=_unnoted(lock.cublaslt),
            settings=_unnoted(lock.settings),
        )
        for lock, run in zip((one, other), described, strict=True)
    ]
    if there.empty and one.evidence.streams == other.evidence.streams:
        same = [
            replace(lock, evidence=replace(one.evidence, algorithm="", steps=0)) for lock in plain
        ]
        assert dumps(same[0]) == dumps(same[1])
    json.dumps(there.as_json())


def test_split_k_is_said_first_then_the_rest() -> None:
    """Case P14."""
    old = {"BLOCK_K": 64, "SPLIT_K": 4, "num_stages": 3, "num_warps": 4}
    new = {"BLOCK_K": 32, "SPLIT_K": 1, "num_stages": 4, "num_warps": 8}
    assert _changed(old, new) == [
        "SPLIT_K 4 → 1",
        "BLOCK_K 64 → 32",
        "num_warps 4 → 8",
        "num_stages 3 → 4",
    ]


# ---- the other choosers --------------------------------------------------------------------


def _algos(old: dict[str, Any], new: dict[str, Any]) -> Diff:
    return diff_locks(
        locks.lock(cublaslt=(locks.problem(**old),)), locks.lock(cublaslt=(locks.problem(**new),))
    )


def test_of_an_algorithm_split_k_is_said_first_and_reduction_next() -> None:
    """Case P14, in the words of cuBLASLt's attributes; the blob says nothing more."""
    diff = _algos(
        {"id": 66, "tile": 20, "stages": 35, "splitk": 4, "reduction": 0, "blob": "a" * 128},
        {"id": 67, "tile": 18, "stages": 15, "splitk": 1, "reduction": 1, "blob": "b" * 128},
    )
    assert _lines(diff) == [
        "choices that differ: 1",
        "  cublaslt matmul  atype='bf16' m=64 n=64 transa=True",
        "    SPLITK 4 → 1",
        "    REDUCTION NONE → INPLACE",
        "    ALGO_ID 66 → 67",
        "    STAGES 64xAUTO → 64x3",
        "    TILE 128x128 → 128x64",
    ]
    assert diff.can_change_bits


def test_a_blob_that_alone_differs_is_said() -> None:
    diff = _algos({"blob": "a" * 128}, {"blob": "b" * 128})
    assert _lines(diff)[-1].startswith("    BLOB aaa")


@pytest.mark.parametrize(
    ("scheme", "word"), [(0, "NONE"), (2, "COMPUTE_TYPE"), (4, "OUTPUT_TYPE"), (64, "64")]
)
def test_reduction_schemes_have_their_names(scheme: int, word: str) -> None:
    diff = _algos({"reduction": 1}, {"reduction": scheme})
    assert _lines(diff)[-1] == f"    REDUCTION INPLACE → {word}"
    assert diff.as_json()["entries"][0]["changes"][0]["new"] == scheme


def test_an_operation_is_named_with_both_choices_on_its_line() -> None:
    """Case P17."""
    old = locks.operation("gemm:packed_linear", config={"backend": "extern", "kernel": "linear"})
    new = replace(old, config={"backend": "cpp", "template": "packed"}, alternatives=3)
    diff = diff_locks(locks.lock(inductor=(old,)), locks.lock(inductor=(new,)))
    assert _lines(diff) == [
        "choices that differ: 1",
        "  inductor gemm:packed_linear: backend='extern' kernel='linear' → "
        "backend='cpp' template='packed'",
        "    at dtype='float32' m=64",
        "    alternatives 2 → 3",
    ]
    assert diff.as_json()["entries"][0]["chooser"] == "inductor"


def test_an_operation_whose_kernel_stayed_says_which_parameter_changed() -> None:
    configs = [{"backend": "triton", "template": "mm", "SPLIT_K": split} for split in (4, 1)]
    entries = [locks.operation(config=config) for config in configs]
    diff = diff_locks(*(locks.lock(inductor=(entry,)) for entry in entries))
    assert _lines(diff)[-1] == "    SPLIT_K 4 → 1"


def test_of_a_generated_kernel_the_reduction_is_said_before_the_rest() -> None:
    old = {"XBLOCK": 8, "R0_BLOCK": 64, "num_warps": 4, "num_stages": 1}
    new = {"XBLOCK": 1, "R0_BLOCK": 128, "num_warps": 8, "num_stages": 2}
    entries = [locks.operation("triton:k", config=config) for config in (old, new)]
    (change,) = diff_locks(*(locks.lock(inductor=(entry,)) for entry in entries)).entries
    names = [field.name for _, field in change.changes]
    assert names == ["R0_BLOCK", "XBLOCK", "num_warps", "num_stages"]


def test_split_k_of_any_chooser_comes_before_other_changes() -> None:
    old, new = (
        locks.lock(
            locks.entry(config={"BT": value}),
            inductor=(locks.operation(config={"BLOCK_M": value}),),
            cublaslt=(locks.problem(splitk=value),),
        )
        for value in (1, 2)
    )
    order = [entry.chooser for entry in diff_locks(old, new).entries]
    assert order == ["cublaslt", "inductor", "triton"]


def test_settings_that_differ_are_listed() -> None:
    old = locks.lock(settings=(locks.setting(), locks.setting("gone"), locks.setting("same")))
    new = locks.lock(
        settings=(locks.setting(value="Tree", held="forced", note="x"), locks.setting("same"))
    )
    diff = diff_locks(old, new)
    assert _lines(diff) == [
        "settings that differ: 4",
        "  nccl NCCL_ALGO Ring → Tree",
        "  nccl NCCL_ALGO (held) recorded → forced",
        "  nccl gone Ring → (none)",
        "  nccl gone (held) recorded → (none)",
    ]
    assert diff.can_change_bits
    assert len(diff.as_json()["settings"]) == 4


def test_a_choice_whose_split_changed_is_said_before_other_choices() -> None:
    sizes = {1: {"BT": 1}, 2: {"SPLITK": 1}, 3: {"num_stages": 1}}
    old = locks.lock(*(locks.entry(size, config=config) for size, config in sizes.items()))
    new = locks.lock(
        *(locks.entry(size, config=dict.fromkeys(config, 2)) for size, config in sizes.items())
    )
    assert [entry.key["N"] for entry in diff_locks(old, new).entries] == [2, 1, 3]


def test_a_choice_that_differs_names_kernel_key_and_fields() -> None:
    diff = _diff(locks.entry(64), locks.entry(64, config={"BT": 64, "num_warps": 4, "maxnreg": 8}))
    assert _lines(diff) == [
        "choices that differ: 1",
        f"  {locks.KERNEL}  N=64 x:dtype='float32'",
        "    BT 32 → 64",
        "    maxnreg (none) → 8",
        "    num_stages 3 → (none)",
    ]
    assert diff.can_change_bits


@pytest.mark.parametrize(("old", "new"), [(1, True), (1, 1.0), (0.0, -0.0), (True, "True")])
def test_values_that_python_calls_equal_are_told_apart(old: Any, new: Any) -> None:
    assert len(_changed({"BT": old}, {"BT": new})) == 1
    assert diff_locks(
        locks.lock(locks.entry(key={"N": old})), locks.lock(locks.entry(key={"N": new}))
    ).only_a


def test_a_changed_source_is_one_change_and_not_two_lone_entries() -> None:
    diff = _diff(locks.entry(), locks.entry(source="sha256:" + "e" * 64))
    assert (diff.only_a, diff.only_b) == ((), ())
    assert _lines(diff) == [
        "kernels whose source differs: 1",
        f"  {locks.KERNEL}  N=64 x:dtype='float32'",
        "    source sha256:555555555555… → sha256:eeeeeeeeeeee…",
    ]
    assert diff.can_change_bits


def test_of_two_sources_the_one_that_both_have_is_paired_first() -> None:
    old = locks.lock(locks.entry(source="s:1"), locks.entry(source="s:2", config={"BT": 1}))
    new = locks.lock(locks.entry(source="s:2", config={"BT": 1}), locks.entry(source="s:3"))
    (change,) = diff_locks(old, new).entries
    assert [(part, str(field)) for part, field in change.changes] == [
        ("source", "source s:1 → s:3")
    ]


def test_an_option_is_named_and_the_code_that_followed_from_it() -> None:
    """Case P16, as two recordings show it."""
    old = locks.entry(options={"enable_fp_fusion": True}, specs=("a",), code=("sha256:1",))
    new = locks.entry(options={"enable_fp_fusion": False}, specs=("a",), code=("sha256:2",))
    assert _lines(_diff(old, new)) == [
        "same choice, other compile options: 1",
        f"  {locks.KERNEL}  N=64 x:dtype='float32'",
        "    options enable_fp_fusion True → False",
        "    code a sha256:1 → sha256:2",
    ]


def test_code_alone_that_differs_is_said_and_more_specialisations_are_not() -> None:
    old = locks.entry(specs=("a", "b"), code=("1", "2"))
    assert _diff(old, locks.entry(specs=("b", "c"), code=("2", "3"))).empty
    diff = _diff(old, locks.entry(specs=("b", "c"), code=("9", "3")))
    assert _lines(diff)[0] == "same choice, other machine code: 1"
    assert diff.can_change_bits


def test_heuristics_that_differ_are_said() -> None:
    diff = _diff(locks.entry(heuristics={"EVEN": True}), locks.entry(heuristics={"EVEN": False}))
    assert _lines(diff)[0] == "same choice, other heuristics: 1"
    assert "    heuristics EVEN True → False" in _lines(diff)


def test_more_alternatives_alone_change_no_bits() -> None:
    diff = _diff(locks.entry(alternatives=9), locks.entry(alternatives=10))
    assert not diff.can_change_bits
    assert not diff.empty
    assert "    alternatives 9 → 10" in _lines(diff)


def test_entries_of_one_side_are_listed_under_its_name() -> None:
    old, new = (
        locks.lock(locks.entry(1), locks.entry(2)),
        locks.lock(locks.entry(2), locks.entry(3)),
    )
    lines = _lines(diff_locks(old, new))
    assert lines[0] == "choices only in old: 1"
    assert lines[1].endswith("N=1 x:dtype='float32': BT=32 num_warps=4 num_stages=3")
    assert lines[2] == "choices only in new: 1"
    assert "N=3" in lines[3]


def test_the_order_of_fallbacks_is_a_difference() -> None:
    first, second = {"BT": 1}, {"BT": 2}
    old, new = (
        locks.lock(locks.entry(), fallbacks=(TritonFallback(locks.KERNEL, configs),))
        for configs in ((first, second), (second, first))
    )
    diff = diff_locks(old, new)
    assert diff.can_change_bits
    assert _lines(diff) == [
        "fallbacks that differ: 1",
        f"  {locks.KERNEL}",
        "    (BT=1), (BT=2) → (BT=2), (BT=1)",
    ]
    gone = diff_locks(old, locks.lock(locks.entry()))
    assert _lines(gone)[-1] == "    (BT=1), (BT=2) → none"


def test_what_can_change_bits_stands_before_what_cannot() -> None:
    old = locks.lock(locks.entry(1), locks.entry(2), locks.entry(3), locks.entry(4), locks.entry(5))
    new = replace(
        locks.lock(
            locks.entry(1, alternatives=10),
            locks.entry(2, options={"x": 1}),
            locks.entry(3, source="s:2"),
            locks.entry(4, config={"BT": 16}),
            locks.entry(6),
            fallbacks=(TritonFallback(locks.KERNEL, ({"BT": 1},)),),
        ),
        stack=Stack({"torch": "2.14.0", "triton": "3.9.0"}, {"python": "3.12.1"}),
        policy={"profile": "strict"},
        evidence=Evidence("sha256", 2, ()),
        run=replace(old.run, runs=3, world_size=4),
    )
    headings = [line.split(":")[0] for line in _lines(diff_locks(old, new)) if line[0] != " "]
    assert headings == [
        "choices that differ",
        "hard stack facts that differ",
        "policy that differs",
        "kernels whose source differs",
        "same choice, other compile options",
        "choices only in old",
        "choices only in new",
        "fallbacks that differ",
        "evidence that differs",
        "the recordings differ",
        "same choice out of another number of configs",
        "soft stack facts that differ",
    ]


def test_stack_and_policy_are_compared_field_by_field() -> None:
    old = locks.lock(stack=Stack({"torch": "1", "gone": True}, {}), policy={"a": [1]})
    new = locks.lock(stack=Stack({"torch": "2", "new": 3}, {}), policy={"a": [2]})
    assert _lines(diff_locks(old, new)) == [
        "hard stack facts that differ: 3",
        "  gone True → (none)",
        "  new (none) → 3",
        "  torch 1 → 2",
        "policy that differs: 1",
        "  a (1,) → (2,)",
    ]


def _streams(*streams: StreamRecord) -> Lock:
    return locks.lock(evidence=Evidence("sha256", 9, streams))


def test_evidence_is_compared_by_stream_and_ranks_are_put_together() -> None:
    old = _streams(*(StreamRecord("loss", rank, 5, "1") for rank in range(4)))
    new = _streams(*(StreamRecord("loss", rank, 5, str(min(rank, 2))) for rank in range(1, 5)))
    assert _lines(diff_locks(old, new)) == [
        "evidence that differs: 3 streams",
        "  loss: only in old (rank 0)",
        "  loss: differs (ranks 2-3)",
        "  loss: only in new (rank 4)",
    ]
    assert not diff_locks(old, new).can_change_bits


def test_evidence_of_a_shorter_run_is_compared_as_far_as_it_goes() -> None:
    long = _streams(StreamRecord("loss", 0, 9, "long", ("a", "b", "c")))
    assert diff_locks(long, _streams(StreamRecord("loss", 0, 2, "short", ("a", "b")))).empty
    assert diff_locks(long, _streams(StreamRecord("loss", 0, 2, "short", ("a", "x")))).evidence
    resumed = StreamRecord("loss", 0, 2, "resumed", ("b", "c"), at=(1, 2))
    assert diff_locks(long, _streams(resumed)).empty
    assert diff_locks(long, _streams(replace(resumed, head=("b", "x")))).evidence


def test_when_a_lock_was_written_is_no_difference() -> None:
    old = locks.lock()
    new = replace(old, run=replace(old.run, created="2027", pinner="9.9"))
    assert diff_locks(old, new).empty


def test_json_has_every_part() -> None:
    made = _diff(locks.entry(1), locks.entry(1, config={"BT": 64})).as_json()
    assert made["can_change_bits"] is True
    assert made["entries"] == [
        {
            "chooser": "triton",
            "kernel": locks.KERNEL,
            "key": {"N": 1, "x:dtype": "float32"},
            "changes": [
                {"part": "config", "field": "BT", "old": 32, "new": 64},
                {"part": "config", "field": "num_warps", "old": 4, "new": None},
                {"part": "config", "field": "num_stages", "old": 3, "new": None},
            ],
        }
    ]
    assert made["only_a"] == made["only_b"] == made["hard"] == made["evidence"] == []
