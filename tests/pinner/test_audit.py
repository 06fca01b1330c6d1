"""An audit of one observed run: how each choice was made, what may flip, what has no pin."""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from pinner.lockfile.ledgers import ProcessLedger
from pinner.lockfile.merge import merge_ledgers
from pinner.policy.audit import Audit, audit
from tests import locks
from tests.command_rig import REPO, Pinner

DECIDING = [sys.executable, str(REPO / "tests" / "workloads" / "deciding.py")]
TUNED = [sys.executable, "-m", "tests.workloads.tuned_run"]


def _audit(*ledgers: ProcessLedger) -> Audit:
    return audit(ledgers, merge_ledgers(ledgers))


def _config(number: int) -> dict[str, Any]:
    return {"BT": 16 * (number + 1), "num_warps": 4}


def _timed(key: int, *times: float | str, **fields: Any) -> dict[str, Any]:
    """A choice by timing of the config with the lowest time."""
    finite = [time if isinstance(time, float) else float("inf") for time in times]
    best = min(range(len(times)), key=lambda number: finite[number])
    timings = [(_config(number), time) for number, time in enumerate(times)]
    return locks.choice_line({"N": key}, _config(best), timings, **fields)


def _untimed(key: int, how: str, chooser: str = "triton", **fields: Any) -> dict[str, Any]:
    given = {"chooser": chooser, "how": how, "alternatives": 4}
    return locks.choice_line({"N": key}, _config(0), **{**given, **fields})


def test_a_near_tie_comes_first_wherever_it_was_met() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    generator = random.Random(seed)
    lines = [_timed(key, 1.0, 1.2 + generator.random(), 3.0) for key in range(40)]
    place = generator.randrange(len(lines) + 1)
    lines.insert(place, _timed(99, 7.0, 2.06, 2.0, "inf"))
    found = _audit(locks.ledger(*lines))
    assert [each.key for each in found.near] == [{"N": 99}]
    assert found.text().splitlines()[:5] == [
        "near ties (under 5%), each a future flip: 1",
        f"  {locks.KERNEL}  N=99",
        "    runner-up 3.00% behind, of 4; best : second = 0.9709 on rank 0",
        "    2 ms  BT=48 num_warps=4",
        "    2.06 ms  BT=32 num_warps=4",
    ]
    assert "decided by timing: 40" in found.text()
    assert found.text().splitlines()[-1] == "triton: 41 by timing (1 near tie)"


def test_nearer_races_come_before_wider_ones() -> None:
    gaps = [0.04, 0.5, 0.0, 0.02, 0.2]
    found = _audit(locks.ledger(*(_timed(n, 1.0, 1.0 + gap) for n, gap in enumerate(gaps))))
    assert [each.key["N"] for each in found.by("timing")] == [2, 3, 0, 4, 1]
    assert [each.key["N"] for each in found.near] == [2, 3, 0]


@pytest.mark.parametrize(("second", "near"), [(1.0499, True), (1.0501, False), (1.0, True)])
def test_what_counts_as_near(second: float, near: bool) -> None:
    assert bool(_audit(locks.ledger(_timed(0, 1.0, second))).near) is near


def test_of_several_ranks_the_nearest_race_is_told_with_its_rank() -> None:
    ledgers = [
        locks.ledger(_timed(0, 1.0, second), rank=rank)
        for rank, second in enumerate((1.5, 1.01, 1.2))
    ]
    (choice,) = _audit(*ledgers).near
    assert choice.race is not None
    assert (choice.race.process, choice.race.second_ms) == ("rank 1", 1.01)
    assert choice.processes == ("rank 0", "rank 1", "rank 2")


@pytest.mark.parametrize("times", [(1.0,), (1.0, "inf"), (1.0, "inf", "inf")])
def test_without_two_times_there_is_no_race(times: tuple[Any, ...]) -> None:
    (choice,) = _audit(locks.ledger(_timed(0, *times, how="tuned"))).by("timing")
    assert choice.race is None
    assert "no two candidates with a time" in _audit(locks.ledger(_timed(0, *times))).text()


def test_times_of_nothing_are_a_dead_heat() -> None:
    """A benchmark that cannot tell two kernels apart may say 0 for both."""
    (choice,) = _audit(locks.ledger(_timed(0, 0.0, 0.0))).near
    assert choice.race is not None
    assert (choice.race.gap, choice.race.ratio) == (0.0, 1.0)
    (wide,) = _audit(locks.ledger(_timed(0, 0.0, 1.0))).by("timing")
    assert not wide.near
    json.dumps(wide.as_json(), allow_nan=False)


@pytest.mark.parametrize(
    ("how", "heading"),
    [
        ("disk", "held by a compile cache already, no times here: 1"),
        ("cached", "held by a compile cache already, no times here: 1"),
        ("heuristic", "decided by a heuristic, without timing: 1"),
        ("tuned", "decided by timing: 1"),
    ],
)
def test_each_way_of_deciding_has_its_part(how: str, heading: str) -> None:
    found = _audit(locks.ledger(_untimed(0, how, "inductor", kernel="gemm:mm")))
    lines = found.text().splitlines()
    assert lines[:2] == [heading, "  inductor gemm:mm  N=0"]


def test_one_config_is_no_choice_and_only_counted() -> None:
    found = _audit(locks.ledger(_untimed(0, "only", alternatives=1)))
    assert found.text() == "triton: 1 without alternative"


def test_a_choice_that_one_rank_timed_and_another_had_cached_is_one_by_timing() -> None:
    ledgers = [locks.ledger(_untimed(0, "disk")), locks.ledger(_timed(0, 1.0, 2.0), rank=1)]
    assert len(_audit(*ledgers).by("timing")) == 1


def test_an_algorithm_is_told_in_words() -> None:
    entry = locks.problem(splitk=4, reduction=1)
    given = {"chooser": "cublaslt", "kernel": "matmul", "source": "", "how": "heuristic"}
    line = locks.choice_line(entry.key, entry.config, **{**given, "alternatives": 8})
    text = _audit(locks.ledger(line)).text()
    assert "    SPLITK 4 REDUCTION INPLACE ALGO_ID 66 " in text
    assert text.splitlines()[-1] == "cublaslt: 1 by a heuristic"


def test_what_has_no_pin_and_what_is_only_recorded_is_named() -> None:
    """Case P11."""
    told = {"t": "problem", "chooser": "cublaslt", "kernel": "cublasGemmEx", "text": "called"}
    found = _audit(
        locks.ledger(
            *({**told, "kind": kind} for kind in ("elsewhere", "refused", "bypass")),
            locks.setting_line("benchmark", chooser="cudnn", value=True, held="no", text="off!"),
            locks.setting_line("NCCL_ALGO"),
            locks.setting_line("NCCL_PROTO", held="forced"),
            locks.setting_line("deterministic", chooser="inductor", value=False, held="set"),
        )
    )
    assert found.text().splitlines() == [
        "no pin, not enforceable: 4",
        "  bypass: cublaslt cublasGemmEx: called (rank 0)",
        "  elsewhere: cublaslt cublasGemmEx: called (rank 0)",
        "  refused: cublaslt cublasGemmEx: called (rank 0)",
        "  cudnn benchmark: off!",
        "recorded only, compared when enforcing: 1",
        "  nccl NCCL_ALGO = 'Ring'  # why",
        "forced by a switch when enforcing: 1",
        "  nccl NCCL_PROTO = 'Ring'  # why",
        "switched by pinner, recording and enforcing alike: 1",
        "  inductor.deterministic = False",
        "cudnn: 1 settings",
        "nccl: 2 settings",
    ]
    assert found.as_json()["no_pin"][-1] == "cudnn benchmark: off!"


def test_ranks_that_differ_are_in_it() -> None:
    ledgers = [
        locks.ledger(_timed(0, *times), locks.setting_line(value=value), rank=rank)
        for rank, (times, value) in enumerate([((1.0, 2.0), "Ring"), ((2.0, 1.0), "Tree")])
    ]
    found = _audit(*ledgers)
    lines = found.text().splitlines()
    assert lines[:2] == ["the processes of this run differ: 2", f"  {locks.KERNEL}  N=0"]
    assert "  nccl NCCL_ALGO: 'Ring' on rank 0; 'Tree' on rank 1" in lines
    assert len(found.conflicts) == 2


def test_nothing_that_was_decided_is_said_too() -> None:
    assert _audit(locks.ledger()).text() == "no chooser decided anything in this run"


def test_the_audit_is_one_plain_object() -> None:
    found = _audit(locks.ledger(_timed(0, 1.0, 1.01), _timed(1, 1.0, "inf")))
    made = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert made["near_ties"][0]["race"] == {
        "best": _config(0),
        "second": _config(1),
        "best_ms": 1.0,
        "second_ms": 1.01,
        "ratio": pytest.approx(1 / 1.01),
        "near_tie": True,
        "process": "rank 0",
    }
    assert made["choosers"]["triton"] == {
        "by_timing": 2,
        "by_cache": 0,
        "by_heuristic": 0,
        "without_alternative": 0,
        "settings": 0,
        "near_ties": 1,
    }


class TestCommand:
    @pytest.fixture
    def pinner(self, tmp_path: Path) -> Pinner:
        return Pinner(tmp_path)

    def test_a_run_is_audited_and_no_lock_is_written(self, pinner: Pinner) -> None:
        said = pinner("audit", "--", *DECIDING, TIMES="16=0.102,32=0.1,64=0.2")
        assert said.code == 0
        assert said.out.startswith("near ties (under 5%), each a future flip: 2\n")
        assert list(pinner.folder.iterdir()) == []

    def test_the_commands_output_and_the_object_are_apart(self, pinner: Pinner) -> None:
        code = f"import runpy; print('hello', flush=True); runpy.run_path({DECIDING[1]!r}"
        code += ", run_name='__main__')"
        said = pinner("audit", "--json", "--", sys.executable, "-c", code)
        assert (said.code, said.json["status"], "hello" in said.err) == (0, "audited", True)
        assert len(said.json["audit"]["by_timing"]) == 2

    def test_a_command_of_which_nobody_took_part_is_no_audit(self, pinner: Pinner) -> None:
        said = pinner("audit", "--json", "--", sys.executable, "-c", "pass")
        assert (said.code, said.json["status"], said.json["audit"]) == (2, "nobody", None)

    def test_a_command_that_failed_is_told_with_what_it_decided(self, pinner: Pinner) -> None:
        script = (
            f"import runpy, sys\ntry: runpy.run_path({DECIDING[1]!r}, run_name='__main__')\n"
            "finally: sys.exit(9)\n"
        )
        said = pinner("audit", "--json", "--", sys.executable, "-c", script)
        assert (said.code, said.json["exit"]) == (5, 5)
        assert "ended with 9" in said.json["text"]
        assert len(said.json["audit"]["by_timing"]) == 2

    @pytest.mark.parametrize("words", [(), ("--",), ("--", "python", "-I", "x.py")])
    def test_a_command_that_cannot_be_audited_is_usage(
        self, pinner: Pinner, words: tuple[str, ...]
    ) -> None:
        assert pinner("audit", *words).code == 64

    def test_a_rank_that_never_came_is_missed(self, pinner: Pinner) -> None:
        said = pinner("audit", "--expect", "2", "--", *DECIDING)
        assert said.code == 3

    def test_real_kernels_with_planted_times(self, pinner: Pinner) -> None:
        """Triton's own autotuner under the interpreter; a third of its candidates near tie."""
        pythonpath = os.pathsep.join([str(REPO)])
        said = pinner("audit", "--json", "--", *TUNED, TIMER="near_tie", PYTHONPATH=pythonpath)
        assert said.code == 0, said.err
        made = said.json["audit"]
        assert len(made["near_ties"]) == len(made["by_timing"]) == 6
        ratios = [each["race"]["ratio"] for each in made["near_ties"]]
        assert ratios == sorted(ratios, reverse=True)
        for each in made["near_ties"]:
            assert each["config"] == each["race"]["best"] != each["race"]["second"]
