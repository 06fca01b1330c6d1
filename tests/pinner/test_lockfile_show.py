"""Showing and checking a lock: what a person reads, and what a review is told."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings

from pinner.lockfile.check import findings
from pinner.lockfile.schema import Evidence, Lock, Stack
from pinner.lockfile.show import as_json, show, summary
from tests import locks


def test_the_summary_says_what_state_and_how_much() -> None:
    assert summary(locks.full_lock()).splitlines() == [
        "command:  python train.py --name 'größe'",
        "written:  2026-01-02T03:04:05+00:00 by pinner 0.1.0",
        "state:    sealed, 2 validating runs agreed",
        "ranks:    1, which disagreed on 0 keys",
        "choices:  3 of 1 kernels, 3 decided by timing",
        "evidence: 2 steps of loss (sha256)",
    ]


def test_a_draft_and_an_incomplete_lock_say_so() -> None:
    lock = locks.lock(evidence=Evidence())
    draft = replace(lock, run=replace(lock.run, sealed=False, complete=False, runs=0))
    text = summary(draft)
    assert "a draft, not validated; not complete: some choices have no entry" in text
    assert "evidence: none" in text


def test_a_command_is_shown_as_it_would_be_typed() -> None:
    lock = locks.lock()
    spaced = replace(lock, run=replace(lock.run, command=("python", "-c", "print('a b')")))
    assert """command:  python -c 'print('"'"'a b'"'"')'""" in summary(spaced)


def test_all_of_it_has_the_stack_and_one_line_a_choice() -> None:
    text = show(locks.full_lock((64,)))
    assert (
        "stack, hard:\n  torch: 2.13.0\n  triton: 3.9.0\nstack, soft:\n  python: 3.11.7\n" in text
    )
    assert text.endswith(
        f"{locks.KERNEL}\n"
        "  N=64 scale=-0.0 shape=(1, None) x:dtype='float32' → BT=32 num_warps=4 num_stages=3  "
        "(of 9, 2 machine codes)  # größer — with a dash\n"
        "  otherwise → BT=32 num_warps=4\n"
        "  otherwise → BT=16 num_warps=4"
    )


def test_every_chooser_and_every_setting_has_its_rows() -> None:
    lock = locks.every_chooser((64,))
    lines = show(lock).splitlines()
    assert lines[4:8] == [
        "choices:  1 of 1 kernels, 1 decided by timing",
        "inductor: 2 of 2 kernels, 2 with alternatives",
        "cublaslt: 1 problems",
        "settings: 3 (1 forced, 1 recorded only, 1 not enforceable)",
    ]
    start = lines.index("inductor gemm:addmm")
    assert lines[start:] == [
        "inductor gemm:addmm",
        "  dtype='float32' m=64 → choice='aten'  (of 2)",
        "inductor triton:triton_red_fused_0",
        "  dtype='float32' m=64 → R0_BLOCK=64 XBLOCK=8 num_warps=4  (of 2, 1 machine codes)"
        "  # größer",
        "cublaslt matmul",
        "  atype='bf16' m=64 n=64 transa=True → SPLITK 1 REDUCTION NONE ALGO_ID 66 "
        "STAGES 64xAUTO TILE 128x128 CLUSTER_SHAPE AUTO INNER_SHAPE UNDEFINED CUSTOM 0 SWIZZLE 0 "
        "WORKSPACE 0  (of 8)  # seen on 2 ranks",
        "settings:",
        "  cudnn benchmark = True  (not enforceable)  # switch it off",
        "  nccl NCCL_ALGO = 'Ring'  (forced)",
        "  nccl NCCL_PROTO = None  (recorded only)  # in force; cannot be set",
    ]
    made = as_json(lock)
    assert (made["entries"], len(made["inductor"]), len(made["settings"])) == (7, 2, 3)


def test_a_choice_without_a_key_is_for_any_call() -> None:
    assert "  any call → BT=32 num_warps=4 num_stages=3  (of 1)" in show(
        locks.lock(locks.entry(key={}, alternatives=1))
    )


@settings(deadline=None)
@given(locks.locks())
def test_any_lock_can_be_shown_and_is_plain_json(lock: Lock) -> None:
    assert summary(lock)
    assert show(lock)
    assert json.loads(json.dumps(as_json(lock)))["entries"] == lock.count


def test_a_good_lock_has_no_findings() -> None:
    assert findings(locks.full_lock()) == ()


def test_a_lock_of_other_choosers_alone_is_not_without_choices() -> None:
    for parts in (
        {"inductor": (locks.operation(),)},
        {"settings": (locks.setting(held="forced"),)},
    ):
        assert findings(locks.lock(**parts)) == ()
    assert findings(locks.lock(settings=(locks.setting(held="recorded"),)))


GOOD = locks.full_lock()


@pytest.mark.parametrize(
    ("lock", "says"),
    [
        (replace(GOOD, run=replace(GOOD.run, sealed=False)), "a draft"),
        (replace(GOOD, run=replace(GOOD.run, complete=False)), "not complete"),
        (replace(GOOD, evidence=Evidence()), "without evidence"),
        (replace(GOOD, stack=Stack()), "without hard stack facts"),
        (replace(GOOD, triton=(), fallbacks=()), "without choices"),
        (replace(GOOD, fallbacks=()), rf"{locks.KERNEL}: no \[\[triton.fallback\]\]"),
        (
            replace(GOOD, triton=(*GOOD.triton, locks.entry(1, source="s:2"))),
            f"{locks.KERNEL}: entries of 2 sources",
        ),
        (
            replace(GOOD, settings=(locks.setting(held="no", note="switch it off"),)),
            "nccl NCCL_ALGO: was active and nothing holds it: switch it off",
        ),
    ],
)
def test_each_weakness_is_one_finding(lock: Lock, says: str) -> None:
    (finding,) = findings(lock)
    import re

    assert re.match(says, finding)


def test_a_lock_without_choices_of_triton_does_not_count_them() -> None:
    lines = summary(locks.lock(inductor=(locks.operation(),))).splitlines()
    assert "inductor: 1 of 1 kernels, 1 with alternatives" in lines
    assert not any(line.startswith("choices:") for line in lines)
    assert any(line.startswith("choices:") for line in summary(locks.lock()).splitlines())
