"""`pinner tax`: planted step times give the ratio they were planted with; nothing is timed here."""

from __future__ import annotations

import json
import shlex
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest

from pinner.compare.step_times import NotComparable, Steps, in_force, interval, tax
from pinner.inside.step_times import OPTIMIZER, Marks
from pinner.launch.taxing import BASELINE, DETERMINISTIC, also_in_baseline, order, told
from tests.command_rig import REPO, Pinner, python
from tests.session_rig import SessionRig

PLAIN = python("plain.py")
DECIDING = python("deciding.py")
TRAINING = python("training.py")


def run(*durations: int, mark: str = OPTIMIZER, **fields: Any) -> Steps:
    """A run whose steps took these times, after one that has no beginning."""
    times = [0]
    for each in durations:
        times.append(times[-1] + each)
    return Steps({mark: times}, **fields)


class TestTheRatio:
    def test_is_that_of_medians_without_the_warm_up(self) -> None:
        pairs = [(run(999, 100, 100, 100, 400), run(1, 150, 150, 150, 20)) for _ in range(3)]
        found = tax(pairs, warmup=1)
        assert (found.ratio.median, found.ratio.low, found.ratio.high) == (1.5, 1.5, 1.5)
        assert (found.steps, found.mark, found.seconds) == (4, OPTIMIZER, (1e-7, 1.5e-7))

    def test_a_machine_that_slows_down_over_the_runs_changes_nothing(self) -> None:
        """Each pair has its own pace: the ratio is taken inside of it."""
        pairs = [(run(*[100 * k] * 3), run(*[120 * k] * 3)) for k in (1, 7, 3, 50, 2)]
        assert tax(pairs, warmup=0).ratio.median == pytest.approx(1.2)

    @pytest.mark.parametrize("n", range(1, 11))
    def test_the_confidence_is_what_counting_all_cases_gives(self, n: int) -> None:
        """Each ratio lies above or below the true median, all 2^n ways alike."""
        found = interval([float(i) for i in range(n)])
        k = int(found.low) + 1
        assert found.high == n - k
        held = sum(k <= sum(above) <= n - k for above in product((0, 1), repeat=n))
        assert found.confidence == pytest.approx(held / 2**n)

    def test_the_interval_is_the_narrowest_with_95_percent(self) -> None:
        found = interval([float(i) for i in range(9)])
        assert (found.low, found.high) == (1.0, 7.0)
        assert found.confidence == pytest.approx(0.9609, abs=1e-4)
        assert interval([1.0, 2.0]).confidence == 0.5


class TestWhatCannotBeCompared:
    @pytest.mark.parametrize(
        ("theirs", "text"),
        [
            (run(1, 1, 1), "the same number of steps"),
            (run(1, 1, 1, 1, mark="stream loss"), "expected one kind of step"),
            (run(1, 1, 1, 1), "'batch' is not in every run"),
            (run(1, 1, 1, 1, first={"batch": "other"}), "'batch' differs"),
        ],
    )
    def test_runs_of_different_work(self, theirs: Steps, text: str) -> None:
        ours = run(1, 1, 1, 1, first={"batch": "one"})
        with pytest.raises(NotComparable, match=text):
            tax([(ours, ours), (ours, theirs)], 1, ["batch"])

    def test_a_batch_without_a_digest_is_not_the_same(self) -> None:
        ours = run(1, 1, first={"batch": ""})
        assert tax([(ours, ours)], 0).same == ()

    def test_nothing_is_left_after_the_warm_up(self) -> None:
        with pytest.raises(NotComparable, match="more than 4 steps"):
            tax([(run(1, 1, 1), run(1, 1, 1))], warmup=3)


class TestWhatIsTold:
    def test_a_baseline_that_pays_already_is_named(self) -> None:
        name = "torch.use_deterministic_algorithms"
        ours = run(1, 1, switches={name: "error"}, variables={"CUDA_LAUNCH_BLOCKING": "1"})
        theirs = run(1, 1, switches={name: "error"}, variables={"NCCL_ALGO": "Ring"})
        sides = {BASELINE: in_force([ours]), DETERMINISTIC: in_force([theirs])}
        assert also_in_baseline(sides) == [f"{name}=error"]
        text = "\n".join(told(tax([(ours, theirs)], 0), sides))
        assert "the baseline has these too" in text
        assert "CUDA_LAUNCH_BLOCKING: 1 → (not set)" in text
        assert "nothing shows that both had one batch" in text

    def test_runs_of_one_side_that_differ_show_both_values(self) -> None:
        runs = [run(1, variables={"A": "1"}), run(1, variables={"A": "2"})]
        assert in_force(runs) == {"A": "1 | 2"}

    def test_neither_side_is_always_first(self) -> None:
        assert order(3) == [
            *(BASELINE, DETERMINISTIC),
            *(DETERMINISTIC, BASELINE),
            *(BASELINE, DETERMINISTIC),
        ]


class TestMarks:
    def test_the_first_optimizer_and_each_stream_are_marked_once_a_step(self) -> None:
        ticks, waits = count(10, 10), count()
        marks = Marks(lambda: next(ticks), lambda: next(waits) and None)
        one, two = object(), object()
        for _ in range(2):
            marks.fingerprinted("loss", 1.5)
            marks.stepped(one, (), {})
            marks.stepped(two, (), {})
        assert marks.times == {"stream loss": [10, 30], OPTIMIZER: [20, 40]}
        assert next(waits) == 4, "each waits for the device first"
        assert set(marks.first) == {"loss"}


@pytest.fixture
def pinner(tmp_path: Path) -> Pinner:
    return Pinner(tmp_path)


def test_two_commands_end_to_end(pinner: Pinner) -> None:
    plain = shlex.join(PLAIN)
    more = ["--runs", "2", "--warmup", "1", "--same", "value"]
    sides = ["--baseline", plain, "--deterministic", f"env NCCL_ALGO=Ring {plain}"]
    said = pinner("tax", "--json", *sides, *more, STEPS="5")
    assert said.code == 0, said.err
    found = said.json
    assert (found["mark"], found["steps"], found["same"]) == ("stream value", 3, ["value"])
    assert found["ratio"]["low"] <= found["ratio"]["median"] <= found["ratio"]["high"]
    assert found["settings"]["deterministic"]["NCCL_ALGO"] == "Ring"
    assert "NCCL_ALGO" not in found["settings"]["baseline"]

    uneven = ["--baseline", plain, "--deterministic", f"env STEPS=6 {plain}", "--runs", "1"]
    said = pinner("tax", *uneven, STEPS="5")
    assert (said.code, "found 5 and 6" in said.text) == (2, True)
    said = pinner("tax", "--baseline", plain, "--deterministic", "false", "--runs", "1")
    assert (said.code, "deterministic-1: the command ended with 1" in said.text) == (5, True)
    said = pinner("tax", "--baseline", "'", "--deterministic", "true")
    assert (said.code, "--baseline: No closing quotation" in said.text) == (64, True)


def test_a_command_under_a_lock_is_timed_inside_of_it(pinner: Pinner) -> None:
    assert pinner("record", "--", *DECIDING).code == 0
    locked = shlex.join([DECIDING[0], "-m", "pinner", "enforce", "--", *DECIDING])
    sides = ["--baseline", shlex.join(DECIDING), "--deterministic", locked]
    said = pinner("tax", "--json", *sides, "--runs", "1", "--same", "out")
    assert said.code == 0, said.err
    assert (said.json["mark"], said.json["steps"]) == ("stream out", 2)


def test_steps_of_a_torch_optimizer_and_the_switches_in_force(tmp_path: Path) -> None:
    rig = SessionRig(tmp_path / "session", evidence=False)
    times = tmp_path / "times"
    times.mkdir()
    environ = {"PINNER_STEP_TIMES": str(times), "STEPS": "4", "PYTHONPATH": str(REPO)}
    done = rig.run(TRAINING, **environ)
    assert done.returncode == 0, done.stderr
    (file,) = times.iterdir()
    found = json.loads(file.read_text())
    assert {name: len(marks) for name, marks in found["times"].items()} == {
        OPTIMIZER: 4,
        "stream loss": 4,
    }
    assert found["times"][OPTIMIZER] == sorted(found["times"][OPTIMIZER])
    assert found["switches"]["torch.backends.cudnn.benchmark"] is False
    assert rig.lines("evidence") == []
