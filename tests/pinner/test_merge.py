"""Merging the ledgers of a run: what agrees, what does not, and how that is settled (case P2)."""

from __future__ import annotations

import math
import random
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinner.inside.values import canonical
from pinner.lockfile.codec import dumps, loads
from pinner.lockfile.conflicts import Conflict, ConflictError, together
from pinner.lockfile.ledgers import ProcessLedger, ledger_of, read_folder
from pinner.lockfile.merge import Draft, draft_lock, fallbacks_of, merge_ledgers
from pinner.stack import mismatches
from tests import locks

RANKS = 8


def _config(number: int) -> dict[str, Any]:
    return {"BT": 16 * (number + 1), "num_warps": 4, "num_stages": 2}


def _draft(*ledgers: ProcessLedger, on_conflict: Any = "fastest") -> Draft:
    return merge_ledgers(ledgers, on_conflict)


def _chosen(draft: Draft) -> list[Any]:
    """The configs by key N: entries are in the order of their canonical text, 10 before 2."""
    ordered = sorted(draft.triton, key=lambda entry: repr(entry.key["N"]).zfill(4))
    return [entry.config["BT"] for entry in ordered]


def _disagreed(draft: Draft, key: int) -> Conflict:
    (conflict,) = [each for each in draft.conflicts if each.key == {"N": key}]
    return conflict


# ---- case P2 -------------------------------------------------------------------------------

ALTERNATIVES = 9


def _times(key: int, rank: int) -> list[float]:
    """Nine times in which, for 13 of the 22 keys, each rank has a winner of its own choice.

    Key 0: ranks 0 to 6 prefer configs 0 to 6, rank 7 prefers config 0: seven winners. Keys 1 to
    12: odd ranks prefer config 2, even ones config 1. Config 8 is nobody's favourite, never slow.
    """
    times = [4.0 + config / 100 for config in range(ALTERNATIVES)]
    times[8] = 2.0
    if key == 0:
        times[rank % 7] = 1.0
    elif key < 13:
        times[1 + rank % 2] = 1.0
    else:
        times[key % ALTERNATIVES] = 0.5
    return times


def _rank_lines(rank: int) -> list[dict[str, Any]]:
    lines = [locks.process_line(rank)]
    for key in range(22):
        times = _times(key, rank)
        timings = [(_config(number), time) for number, time in enumerate(times)]
        winner = min(range(ALTERNATIVES), key=lambda number: times[number])
        lines.append(locks.choice_line({"N": key}, _config(winner), timings))
    return lines


def _p2(folder: Path) -> Iterator[ProcessLedger]:
    for rank in range(RANKS):
        locks.write_ledger(folder, f"node-a-{rank}", _rank_lines(rank))
    return read_folder(folder)


def test_eight_ledgers_with_13_of_22_keys_in_conflict(tmp_path: Path) -> None:
    draft = merge_ledgers(_p2(tmp_path), "fastest")
    assert len(draft.triton) == 22
    assert {conflict.key["N"] for conflict in draft.conflicts} == set(range(13))
    assert len(draft.conflicts) == 13
    assert draft.world_size == RANKS
    seven = _disagreed(draft, 0)
    assert len(seven.picks) == 7
    assert {pick.config["BT"]: pick.processes for pick in seven.picks} == {
        16: ("rank 0", "rank 7"),
        **{16 * (rank + 1): (f"rank {rank}",) for rank in range(1, 7)},
    }
    odd_even = _disagreed(draft, 1)
    assert {pick.config["BT"]: together(pick.processes) for pick in odd_even.picks} == {
        32: "ranks 0, 2, 4, 6",
        48: "ranks 1, 3, 5, 7",
    }


def test_each_conflict_is_settled_by_the_rule_and_says_how(tmp_path: Path) -> None:
    """The config that is nowhere slow is taken, though no rank took it."""
    draft = merge_ledgers(_p2(tmp_path), "fastest")
    assert _chosen(draft)[:13] == [16 * 9] * 13
    assert {conflict.how for conflict in draft.conflicts} == {
        "fastest: lowest worst time over all 8 processes, 2 ms"
    }
    text = str(_disagreed(draft, 0))
    assert f"{locks.KERNEL}  N=0" in text
    assert "BT=16 num_warps=4 num_stages=2: ranks 0, 7  (at worst 4 ms)" in text
    assert "taken: BT=144 num_warps=4 num_stages=2, fastest" in text


def test_by_rank0_the_first_rank_decides(tmp_path: Path) -> None:
    draft = merge_ledgers(_p2(tmp_path), "rank0")
    assert _chosen(draft)[:13] == [16] + [32] * 12
    assert {conflict.how for conflict in draft.conflicts} == {"rank0: the pick of rank 0"}


def test_under_fail_every_conflict_is_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(ConflictError, match="found 13 keys with different ones") as caught:
        merge_ledgers(_p2(tmp_path), "fail")
    assert len(caught.value.conflicts) == 13
    assert all(f"N={key}\n" in str(caught.value) for key in range(13))


def test_the_keys_that_agree_have_the_config_all_took(tmp_path: Path) -> None:
    draft = merge_ledgers(_p2(tmp_path), "fastest")
    expected = [16 * (key % ALTERNATIVES + 1) for key in range(13, 22)]
    assert _chosen(draft)[13:] == expected


def test_the_draft_makes_a_lock_that_can_be_written(tmp_path: Path) -> None:
    draft = merge_ledgers(_p2(tmp_path), "fastest")
    lock = draft_lock(draft, locks.lock().run, {}, locks.lock().evidence)
    assert (lock.run.conflicts, lock.run.world_size) == (13, 8)
    assert len(loads(dumps(lock), "x").triton) == 22
    assert lock.triton[0].note == ("the processes took 7 different configs; settled by fastest")


# ---- the rule ------------------------------------------------------------------------------


def _timed(rank: int, pick: int, times: list[Any], key: int = 0) -> ProcessLedger:
    timings = [(_config(number), time) for number, time in enumerate(times)]
    return locks.ledger(locks.choice_line({"N": key}, _config(pick), timings), rank=rank)


times_of_ranks = st.integers(2, 5).flatmap(
    lambda configs: st.lists(
        st.lists(
            st.sampled_from([0.5, 1.0, 1.5, 2.0, math.inf]), min_size=configs, max_size=configs
        ).filter(lambda times: min(times) < math.inf),
        min_size=2,
        max_size=6,
    )
)


@settings(deadline=None)
@given(times_of_ranks)
def test_fastest_is_the_lowest_worst_time_and_never_a_config_that_fails(
    times: list[list[float]],
) -> None:
    picks = [min(range(len(row)), key=lambda number, row=row: row[number]) for row in times]  # type: ignore[misc]
    ledgers = [_timed(rank, picks[rank], row) for rank, row in enumerate(times)]
    draft = _draft(*ledgers)
    worst = [max(row[number] for row in times) for number in range(len(times[0]))]
    if len(set(picks)) == 1:
        expected = picks[0] if worst[picks[0]] < math.inf else None
    elif all(worst[pick] == math.inf for pick in set(picks)):
        expected = None
    else:
        texts = [canonical(_config(number)) for number in range(len(worst))]
        expected = min(range(len(worst)), key=lambda number: (worst[number], texts[number]))
    if expected is None:
        assert [problem.kind for problem in draft.problems] == ["refused"]
        assert draft.triton == ()
    else:
        assert [entry.config for entry in draft.triton] == [_config(expected)]


@settings(deadline=None)
@given(times_of_ranks, st.randoms(use_true_random=False), st.sampled_from(["fastest", "rank0"]))
def test_the_draft_does_not_depend_on_the_order_of_the_ledgers(
    times: list[list[float]], shuffler: random.Random, rule: str
) -> None:
    rows = list(enumerate(times))
    shuffled = list(rows)
    shuffler.shuffle(shuffled)
    drafts = [
        _draft(*(_timed(rank, rank % len(row), row) for rank, row in order), on_conflict=rule)
        for order in (rows, shuffled)
    ]
    assert drafts[0].triton == drafts[1].triton
    assert [str(each) for each in drafts[0].conflicts] == [
        str(each) for each in drafts[1].conflicts
    ]
    assert drafts[0].problems == drafts[1].problems
    assert drafts[0].processes == drafts[1].processes


def test_ranks_that_saw_different_keys_are_not_in_conflict() -> None:
    draft = _draft(_timed(0, 0, [1.0, 2.0], key=1), _timed(1, 1, [2.0, 1.0], key=2))
    assert (draft.conflicts, _chosen(draft)) == ((), [16, 32])


def test_only_the_ranks_that_saw_the_key_count() -> None:
    bystander = locks.ledger(rank=2)
    draft = _draft(_timed(0, 0, [1.0, 3.0]), _timed(1, 1, [5.0, 2.0]), bystander)
    assert _chosen(draft) == [32]
    assert "over all 2 processes" in draft.conflicts[0].how


def test_a_config_that_not_every_rank_timed_loses_to_one_that_every_rank_timed() -> None:
    draft = _draft(_timed(0, 1, [3.0, 1.0]), _timed(1, 0, [3.0]))
    assert _chosen(draft) == [16]


def test_where_no_config_was_timed_by_all_it_says_so() -> None:
    untimed = locks.ledger(locks.choice_line({"N": 0}, _config(1), how="disk"), rank=2)
    draft = _draft(_timed(0, 0, [1.0, 2.0]), _timed(1, 1, [2.5, 1.0]), untimed)
    assert _chosen(draft) == [32]
    assert "over 2 of 3 processes, no config was timed by more" in draft.conflicts[0].how


def test_without_any_times_the_pick_of_most_is_taken() -> None:
    ledgers = [
        locks.ledger(locks.choice_line({"N": 0}, _config(pick), how="disk"), rank=rank)
        for rank, pick in enumerate([2, 1, 1])
    ]
    draft = _draft(*ledgers)
    assert _chosen(draft) == [32]
    assert "no times were measured; the pick of most processes" in draft.conflicts[0].how


@pytest.mark.parametrize("how", ["only", "tuned", "disk", "missed", "fallback", "forced", "shared"])
def test_however_it_was_decided_it_is_a_pick(how: str) -> None:
    draft = _draft(locks.ledger(locks.choice_line({"N": 0}, _config(0), how=how)))
    assert _chosen(draft) == [16]


def test_by_rank0_where_rank_0_did_not_see_the_key_the_first_that_did_decides() -> None:
    draft = _draft(_timed(5, 1, [2.0, 1.0]), _timed(3, 0, [1.0, 9.0]), on_conflict="rank0")
    assert _chosen(draft) == [16]
    assert draft.conflicts[0].how == (
        "rank0: the pick of rank 3, the first process that saw the key"
    )


def test_by_rank0_a_pick_that_fails_elsewhere_is_not_taken() -> None:
    draft = _draft(_timed(0, 0, [1.0, 2.0]), _timed(1, 1, ["inf", 2.0]), on_conflict="rank0")
    assert _chosen(draft) == [32]


def test_a_process_that_took_two_configs_for_one_key_is_listed_under_both() -> None:
    twice = locks.ledger(
        locks.choice_line({"N": 0}, _config(0)), locks.choice_line({"N": 0}, _config(1))
    )
    (conflict,) = _draft(twice).conflicts
    assert [pick.processes for pick in conflict.picks] == [("rank 0",), ("rank 0",)]


def test_two_processes_of_one_rank_are_told_apart() -> None:
    lines = [locks.choice_line({"N": 0}, _config(0))], [locks.choice_line({"N": 0}, _config(1))]
    made = [
        ledger_of([locks.process_line(0, pid=pid), *more])
        for pid, more in zip((7, 8), lines, strict=True)
    ]
    (conflict,) = merge_ledgers([each for each in made if each]).conflicts
    assert [pick.processes for pick in conflict.picks] == [("rank 0 (pid 7)",), ("rank 0 (pid 8)",)]


def test_true_one_and_one_point_zero_are_three_keys_for_merge() -> None:
    lines = [
        locks.choice_line({"K": key}, _config(number)) for number, key in enumerate((True, 1, 1.0))
    ]
    draft = _draft(locks.ledger(*lines))
    assert (len(draft.triton), draft.conflicts) == (3, ())


# ---- what hangs on an entry ----------------------------------------------------------------


def test_code_goes_to_the_entries_of_its_kernel_and_config() -> None:
    draft = _draft(
        locks.ledger(
            locks.choice_line({"N": 0}, _config(0)),
            locks.choice_line({"N": 1}, _config(1)),
            locks.code_line(_config(0), "b" * 16, "sha256:2", options={"fast": True}),
            locks.code_line(_config(0), "a" * 16, "sha256:1", options={"fast": True}),
            locks.code_line(_config(1), "c" * 16, None, options={"fast": False}),
            locks.code_line(_config(0), "d" * 16, "sha256:3", kernel="other:kernel"),
        )
    )
    first, second = draft.triton
    assert (first.specs, first.code) == (("a" * 16, "b" * 16), ("sha256:1", "sha256:2"))
    assert (first.options, second.options) == ({"fast": True}, {"fast": False})
    assert second.code == second.specs == ()


def test_code_that_names_its_key_or_source_goes_there_only() -> None:
    draft = _draft(
        locks.ledger(
            locks.choice_line({"N": 0}, _config(0)),
            locks.choice_line({"N": 1}, _config(0)),
            locks.choice_line({"N": 1}, _config(0), source="sha256:other"),
            locks.code_line(_config(0), "a" * 16, "sha256:1", key={"N": 1}),
            locks.code_line(_config(0), "b" * 16, "sha256:2", source="sha256:other"),
        )
    )
    assert [(entry.key["N"], entry.source[-5:], entry.specs) for entry in draft.triton] == [
        (0, "55555", ()),
        (1, "55555", ("a" * 16,)),
        (1, "other", ("a" * 16, "b" * 16)),
    ]


def test_two_codes_for_one_specialisation_are_reported_as_drift() -> None:
    choice = locks.choice_line({"N": 0}, _config(0))
    draft = _draft(
        locks.ledger(choice, locks.code_line(_config(0), "a" * 16, "sha256:2"), rank=0),
        locks.ledger(choice, locks.code_line(_config(0), "a" * 16, "sha256:1"), rank=1),
    )
    assert draft.triton[0].code == ("sha256:1",)
    (problem,) = draft.problems
    assert problem.kind == "drift"
    assert "became 2 machine codes" in str(problem)


def test_options_heuristics_and_alternatives_of_all_ranks_come_together() -> None:
    draft = _draft(
        locks.ledger(
            locks.choice_line({"N": 0}, _config(0), alternatives=9, heuristics={"A": 1, "B": True}),
            locks.code_line(_config(0), "a" * 16, None, options={"x": 1, "y": 1}),
            rank=0,
        ),
        locks.ledger(
            locks.choice_line({"N": 0}, _config(0), alternatives=10, heuristics={"A": 1, "B": 1}),
            locks.code_line(_config(0), "b" * 16, None, options={"x": 1, "y": 2}),
            rank=1,
        ),
    )
    (entry,) = draft.triton
    assert (entry.alternatives, entry.heuristics, entry.options) == (10, {"A": 1}, {"x": 1})


def test_notes_come_into_the_entry_once() -> None:
    ledgers = [
        locks.ledger(locks.choice_line({"N": 0}, _config(0), notes=["resets x"]), rank=rank)
        for rank in range(3)
    ]
    assert _draft(*ledgers).triton[0].note == "resets x"


# ---- fallbacks -----------------------------------------------------------------------------


def test_the_fallback_lists_the_configs_most_used_first_then_by_text() -> None:
    uses = [2, 1, 2, 0, 1, 3]
    entries = [locks.entry(size, config=_config(use)) for size, use in enumerate(uses)]
    (fallback,) = fallbacks_of(entries)
    texts = sorted([canonical(_config(1)), canonical(_config(2))])
    rest = sorted([canonical(_config(0)), canonical(_config(3))])
    assert [canonical(config) for config in fallback.configs] == texts + rest


def test_a_kernel_that_never_had_a_choice_has_no_fallback() -> None:
    entries = [
        locks.entry(1, kernel="m:one", alternatives=1),
        locks.entry(1, kernel="m:both", alternatives=1),
        locks.entry(2, kernel="m:both", alternatives=4),
    ]
    assert [fallback.kernel for fallback in fallbacks_of(entries)] == ["m:both"]


# ---- problems, facts, processes ------------------------------------------------------------


def test_one_problem_of_many_ranks_is_listed_once_with_them() -> None:
    line = {
        "t": "problem",
        "kind": "elsewhere",
        "chooser": "triton",
        "kernel": "m:k",
        "text": "decided outside",
        "config": _config(0),
    }
    draft = _draft(*(locks.ledger(line, rank=rank) for rank in (2, 0, 1)))
    (problem,) = draft.problems
    assert problem.processes == ("rank 0", "rank 1", "rank 2")
    assert str(problem) == "elsewhere: m:k: decided outside (ranks 0-2)"
    assert problem.fields["config"] == _config(0)


def test_a_pick_that_failed_where_it_was_timed_is_refused() -> None:
    draft = _draft(_timed(0, 0, ["inf", "inf"]))
    assert draft.triton == ()
    assert draft.problems[0].kind == "refused"
    assert "failed where it was timed" in draft.problems[0].text


def test_the_choice_of_a_chooser_nobody_knows_is_refused_by_name() -> None:
    draft = _draft(locks.ledger(locks.choice_line({}, {}, chooser="tvm")))
    assert draft.entries == ()
    assert "choices of tvm cannot be locked" in str(draft.problems[0])


# ---- the other choosers --------------------------------------------------------------------


def _operation(size: int, choice: str, **fields: Any) -> dict[str, Any]:
    entry = locks.operation(size=size)
    config = {"choice": choice}
    given = {"chooser": "inductor", "kernel": entry.kernel, "source": "", "how": "cached"}
    return locks.choice_line(entry.key, config, **{**given, **fields})


def _problem(m: int, **algo: Any) -> dict[str, Any]:
    entry = locks.problem(m, **algo)
    given = {"chooser": "cublaslt", "kernel": "matmul", "source": "", "how": "heuristic"}
    return locks.choice_line(entry.key, entry.config, alternatives=8, **given)


def test_choices_of_every_chooser_come_into_one_lock() -> None:
    draft = _draft(
        locks.ledger(
            locks.choice_line({"N": 0}, _config(0)),
            _operation(64, "aten"),
            locks.code_line(
                {"choice": "aten"},
                "a" * 16,
                locks.digest("1"),
                chooser="inductor",
                kernel="gemm:addmm",
                source="",
            ),
            locks.code_line({"choice": "aten"}, "b" * 16, locks.digest("2"), kernel="gemm:addmm"),
            _problem(64, splitk=4),
        )
    )
    lock = draft_lock(draft, locks.lock().run, {}, locks.lock().evidence)
    assert [entry.chooser for entry in lock.entries] == ["triton", "inductor", "cublaslt"]
    (operation,) = lock.inductor
    assert (operation.specs, operation.code) == (("a" * 16,), (locks.digest("1"),))
    assert lock.cublaslt == (locks.problem(64, splitk=4),)
    assert lock.fallbacks == ()
    assert loads(dumps(lock), "x").entries == lock.entries
    assert lock.run.complete


def test_one_key_of_two_choosers_is_two_entries_and_no_conflict() -> None:
    line = _operation(64, "aten")
    draft = _draft(locks.ledger(line, {**line, "chooser": "triton", "config": _config(0)}))
    assert (len(draft.entries), draft.conflicts) == (2, ())


def test_ranks_that_timed_an_operation_apart_are_settled_by_the_same_rule() -> None:
    aten, cpp = {"choice": "aten"}, {"choice": "cpp"}
    times = [(1.0, 2.0), (4.0, 1.5)]
    ledgers = [
        locks.ledger(
            _operation(64, "aten" if a < c else "cpp", how="tuned", timings=[[aten, a], [cpp, c]]),
            rank=rank,
        )
        for rank, (a, c) in enumerate(times)
    ]
    draft = _draft(*ledgers)
    (entry,) = draft.entries
    assert entry.config == cpp
    (conflict,) = draft.conflicts
    assert conflict.as_json()["chooser"] == "inductor"
    assert str(conflict).splitlines()[0].startswith("inductor gemm:addmm  ")
    with pytest.raises(ConflictError, match="inductor gemm:addmm"):
        _draft(*ledgers, on_conflict="fail")


def test_ranks_whose_heuristic_answered_apart_are_in_conflict_too() -> None:
    ledgers = [
        locks.ledger(_problem(64, splitk=splitk, blob=f"{splitk:0128x}"), rank=rank)
        for rank, splitk in enumerate((1, 4, 4))
    ]
    draft = _draft(*ledgers)
    (conflict,) = draft.conflicts
    assert conflict.chooser == "cublaslt"
    assert [pick.processes for pick in conflict.picks] == [("rank 1", "rank 2"), ("rank 0",)]
    assert [entry.config["splitk"] for entry in draft.entries] == [4]
    assert [entry.config["splitk"] for entry in _draft(*ledgers, on_conflict="rank0").entries] == [
        1
    ]


@pytest.mark.parametrize("kind", ["refused", "elsewhere", "bypass"])
def test_what_was_decided_past_a_chooser_is_a_hole(kind: str) -> None:
    """Case P11."""
    line = {"t": "problem", "kind": kind, "chooser": "cublaslt", "kernel": "cublasGemmEx"}
    draft = _draft(locks.ledger({**line, "text": "called 3 times"}))
    (hole,) = draft.holes
    assert hole == f"{kind}: cublaslt cublasGemmEx: called 3 times (rank 0)"
    lock = draft_lock(draft, locks.lock().run, {}, locks.lock().evidence)
    assert not lock.run.complete


def test_a_note_is_no_hole() -> None:
    line = {"t": "problem", "kind": "note", "chooser": "inductor", "kernel": "x", "text": "y"}
    assert _draft(locks.ledger(line)).holes == ()


# ---- settings ------------------------------------------------------------------------------


def test_settings_are_in_the_lock_and_switches_in_its_policy() -> None:
    lines = [
        locks.setting_line("deterministic", chooser="inductor", value=False, held="set"),
        locks.setting_line("NCCL_PROTO", value="LL", held="forced"),
        locks.setting_line("channels", value=2, held="recorded"),
    ]
    draft = _draft(*(locks.ledger(*lines, rank=rank) for rank in range(3)))
    assert draft.setting_conflicts == ()
    lock = draft_lock(draft, locks.lock().run, {"profile": "x"}, locks.lock().evidence)
    assert lock.policy == {"profile": "x", "inductor.deterministic": False}
    assert [(each.name, each.held, each.value) for each in lock.settings] == [
        ("NCCL_PROTO", "forced", "LL"),
        ("channels", "recorded", 2),
    ]
    assert lock.settings[0].note == "why"
    assert lock.run.complete


def test_a_setting_that_nothing_holds_is_a_hole() -> None:
    lines = [
        locks.setting_line("benchmark", chooser="cudnn", value=True, held=held, text=text)
        for held, text in (("recorded", "fine"), ("no", "switch it off"))
    ]
    draft = _draft(*(locks.ledger(line, rank=rank) for rank, line in enumerate(lines)))
    assert draft.holes == ("cudnn benchmark: switch it off",)
    lock = draft_lock(draft, locks.lock().run, {}, locks.lock().evidence)
    assert (lock.run.complete, lock.settings[0].held) == (False, "no")


def test_ranks_that_differ_in_a_setting_are_named_with_its_values() -> None:
    values = ["Tree", "Ring", "Ring", "Tree"]
    draft = _draft(
        *(locks.ledger(locks.setting_line(value=value), rank=n) for n, value in enumerate(values))
    )
    assert [str(each) for each in draft.setting_conflicts] == [
        "nccl NCCL_ALGO: 'Tree' on ranks 0, 3; 'Ring' on ranks 1-2"
    ]
    assert [each.value for each in draft.settings] == ["'Ring' | 'Tree'"]
    forced = [
        locks.ledger(locks.setting_line(value=value, held="forced"), rank=rank)
        for rank, value in reversed(list(enumerate(values)))
    ]
    assert [each.value for each in _draft(*forced).settings] == ["Tree"], "that of rank 0"


def test_the_last_word_of_a_process_counts() -> None:
    lines = [locks.setting_line(value=value) for value in (1, 2)]
    draft = _draft(locks.ledger(*lines))
    assert (draft.settings[0].value, draft.setting_conflicts) == (2, ())


@pytest.mark.parametrize(("one", "other"), [(1, True), (1, 1.0), ("1", 1), ([], {"none": True})])
def test_values_that_python_calls_equal_are_two_settings(one: Any, other: Any) -> None:
    draft = _draft(
        *(locks.ledger(locks.setting_line(value=v), rank=n) for n, v in enumerate((one, other)))
    )
    assert len(draft.setting_conflicts) == 1


def _facts(rank: int, **facts: Any) -> ProcessLedger:
    return locks.ledger({"t": "facts", "facts": facts}, rank=rank)


def test_facts_are_put_together_and_unknown_ones_poison_nothing() -> None:
    """Case P15: one process never touched CUDA."""
    draft = _draft(
        _facts(1, **{"torch": "2.13.0", "gpu": "H200", "loaded:cublas": "13.0", "driver": "580"}),
        _facts(0, **{"torch": "2.13.0", "gpu": "H200", "loaded:cublas": "unknown", "ptxas": ""}),
    )
    assert draft.stack.hard == {"torch": "2.13.0", "gpu": "H200", "loaded:cublas": "13.0"}
    assert draft.fact_conflicts == ()


def test_later_facts_of_a_process_replace_earlier_ones() -> None:
    lines = [{"t": "facts", "facts": {"torch": version}} for version in ("1", "2")]
    draft = _draft(locks.ledger(*lines))
    assert (draft.stack.hard, draft.fact_conflicts) == ({"torch": "2"}, ())


def test_facts_that_ranks_do_not_share_are_listed_hard_ones_first() -> None:
    draft = _draft(
        _facts(2, gpu="H100", driver="570"),
        _facts(0, gpu="H200", driver="580"),
        _facts(1, gpu="H200", driver="580"),
    )
    assert draft.stack.hard == {"gpu": "H100 | H200"}
    assert draft.stack.soft == {}
    assert [str(conflict) for conflict in draft.fact_conflicts] == [
        "gpu: H200 on ranks 0-1; H100 on rank 2",
        "driver: 580 on ranks 0-1; 570 on rank 2",
    ]
    assert [conflict.hard for conflict in draft.fact_conflicts] == [True, False]


def test_a_fact_that_only_some_processes_have_matches_them_all_when_enforced() -> None:
    """As OMP_NUM_THREADS, which torchrun sets for its ranks and not for itself."""
    name = "cpu:env:OMP_NUM_THREADS"
    draft = _draft(_facts(0, torch="2", **{name: "1"}), _facts(1, torch="2"), locks.ledger(rank=2))
    assert draft.stack.hard[name] == "1 | not there"
    assert mismatches(draft.stack, {"torch": "2", name: "1"}) == ()
    assert mismatches(draft.stack, {"torch": "2"}) == ()
    assert len(mismatches(draft.stack, {"torch": "2", name: "4"})) == 1


def test_the_world_is_the_one_that_ranks_were_told_of() -> None:
    assert _draft(locks.ledger(rank=3)).world_size == 8
    assert _draft(locks.ledger(rank=None)).world_size == 1
    assert _draft().world_size == 1


def test_the_hosts_are_those_of_the_ranks() -> None:
    def ledger(rank: int | None, host: str) -> ProcessLedger:
        made = ledger_of([{**locks.process_line(rank), "host": host}])
        assert made is not None
        return made

    ledgers = [ledger(0, "a"), ledger(1, "a"), ledger(2, "b"), ledger(None, "login")]
    lock = draft_lock(_draft(*ledgers), locks.lock().run, {}, locks.lock().evidence)
    assert lock.run.hosts == 2
    assert "hosts = 2" in dumps(lock)
    assert _draft(ledger(None, "login")).hosts == 1


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["rank 3", "rank 1", "rank 2", "rank 7"], "ranks 1-3, 7"),
        (["rank 3"], "rank 3"),
        (["pid 9 on b", "rank 0", "rank 1"], "ranks 0-1, pid 9 on b"),
        ([], ""),
    ],
)
def test_processes_are_named_together(names: list[str], text: str) -> None:
    assert together(names) == text


# ---- size ----------------------------------------------------------------------------------


def _peak(ledgers: Iterator[ProcessLedger]) -> int:
    tracemalloc.start()
    try:
        merge_ledgers(ledgers)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _many(ranks: int, lines: int) -> Iterator[ProcessLedger]:
    evidence = [
        {"t": "evidence", "stream": "loss", "step": step, "digest": f"sha256:{step}"}
        for step in range(lines)
    ]
    for rank in range(ranks):
        yield locks.ledger(*evidence, locks.choice_line({"N": 0}, _config(0)), rank=rank)


def test_memory_does_not_grow_with_the_lines_of_the_ranks() -> None:
    """What stays of a rank is who it was and a number for each key: under 2 KiB here."""
    few, many = _peak(_many(10, 500)), _peak(_many(400, 500))
    assert many - few < 390 * 2048


def test_a_conflict_is_plain_json_for_reports() -> None:
    (conflict,) = _draft(_timed(0, 0, [1.0, 3.0]), _timed(1, 1, ["inf", 2.0])).conflicts
    made = conflict.as_json()
    assert made["picks"][0] == {"config": _config(0), "processes": ["rank 0"], "worst": "inf"}
    assert made["chosen"] == _config(1)
    assert replace(conflict, how="x").as_json()["how"] == "x"
