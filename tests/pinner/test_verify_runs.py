"""`pinner verify --runs` and `--scale` on real processes: equal, different, nothing to compare."""

from __future__ import annotations

import random
import re
import sys
from pathlib import Path

import pytest

from pinner.compare.evidence import Difference, RunEvidence
from pinner.launch.verify import failing_window
from pinner.launch.verify_chase import Incomparable, Window
from tests.command_rig import Pinner, python
from tests.verify_rig import Verify

PLAIN = python("verify_plain.py")


@pytest.fixture
def verify(tmp_path: Path) -> Verify:
    return Verify(tmp_path)


@pytest.fixture
def step() -> int:
    """A step of the workload, drawn."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    return random.Random(seed).randrange(6)


class TestIndependentRuns:
    def test_that_are_equal(self, verify: Verify) -> None:
        outcome = verify.runs(PLAIN, 3)
        assert (outcome.exit, outcome.status) == (0, "equal"), outcome.text
        assert outcome.details["evidence"] == {"value": {"0": 6}}
        assert [run["name"] for run in outcome.details["runs"]] == ["run-1", "run-2", "run-3"]

    def test_that_differ_say_stream_and_step(self, verify: Verify, step: int) -> None:
        outcome = verify.runs(PLAIN, FLIP=str(step))
        assert (outcome.exit, outcome.status) == (1, "differs")
        found = outcome.details["difference"]
        assert (found["stream"], found["step"]) == ("value", step)
        assert found["runs"] == ["run-1", "run-2"]
        assert f"stream 'value', rank 0, step {step}" in outcome.text

    def test_have_fresh_caches_each(self, verify: Verify) -> None:
        code = (
            "import os, pinner, pathlib\n"
            "for name in ('TRITON_CACHE_DIR', 'TORCHINDUCTOR_CACHE_DIR'):\n"
            "    folder = pathlib.Path(os.environ[name])\n"
            "    for step in range(2): pinner.fingerprint(name, [folder.exists(), step])\n"
            "    folder.mkdir(parents=True)\n"
        )
        outcome = verify.runs([PLAIN[0], "-c", code])
        assert outcome.exit == 0, outcome.text

    def test_under_a_lock_with_the_evidence_it_was_recorded_with(self, verify: Verify) -> None:
        folder = verify.folder / "lock"
        folder.mkdir()
        script = folder / "says.py"
        script.write_text(
            "import pinner\npinner.fingerprint('x', 1)\nfor n in range(3): print('loss', n * 0.5)\n"
        )
        pinner = Pinner(folder)
        said = pinner("record", "--evidence-stdout", "loss .*", "--", PLAIN[0], str(script))
        lock = folder / "pinner.lock.toml"
        assert said.code == 0, said.err
        outcome = verify.runs([PLAIN[0], str(script)], lock=lock)
        assert outcome.exit == 0, outcome.text
        assert any(name.startswith("stdout") for name in outcome.details["evidence"])

    def test_under_a_lock_that_cannot_be_read(self, verify: Verify) -> None:
        outcome = verify.runs(PLAIN, lock=verify.folder / "none.toml")
        assert (outcome.exit, outcome.status) == (4, "refused")


class TestNothingToCompare:
    def test_no_evidence(self, verify: Verify) -> None:
        outcome = verify.runs([PLAIN[0], "-c", "import pinner.inside.ledger as l; l.open_now()"])
        assert (outcome.exit, outcome.status) == (2, "no-evidence")

    def test_streams_that_show_nothing(self, verify: Verify) -> None:
        outcome = verify.runs(PLAIN, CONSTANT="1")
        assert (outcome.exit, outcome.status) == (2, "worthless-evidence")

    def test_a_command_that_fails(self, verify: Verify) -> None:
        outcome = verify.runs(PLAIN, EXIT="3")
        assert (outcome.exit, outcome.status) == (5, "command-failed")
        assert "ended with 3" in outcome.text


class TestScale:
    def test_that_changes_bits_says_from_which_step_on(self, verify: Verify) -> None:
        outcome = verify.scale([*PLAIN, "{n}"], [1, 2, 4])
        assert (outcome.exit, outcome.status) == (1, "differs")
        found = outcome.details["differences"]
        assert [(row["sizes"], row["step"]) for row in found] == [([1, 2], 3), ([1, 4], 3)]
        assert "sizes 1 and 2 differ: stream 'value', rank 0, step 3" in outcome.text
        assert "the order in which collectives add" in outcome.lines[-1]

    def test_that_changes_none(self, verify: Verify) -> None:
        outcome = verify.scale([*PLAIN, "{n}"], [1, 2], SIZE="1")
        assert (outcome.exit, outcome.status) == (0, "equal")
        assert "6 steps compared" in outcome.text

    def test_that_changes_none_while_it_is_small_says_up_to_where(self, verify: Verify) -> None:
        code = "import sys, pinner\nfor step in range(3):\n"
        code += "    pinner.fingerprint('value', step + (int(sys.argv[1]) > 2))"
        outcome = verify.scale([PLAIN[0], "-c", code, "{n}"], [1, 2, 4])
        assert outcome.status == "differs"
        assert outcome.lines[0] == "the same bits at world sizes 1, 2: 3 steps compared"
        assert "sizes 1 and 4 differ" in outcome.lines[1]
        assert outcome.details["equal"] == [1, 2]

    def test_without_a_stream_in_common_is_no_pass(self, verify: Verify) -> None:
        code = "import sys, pinner\nfor step in range(3):\n"
        code += "    pinner.fingerprint('few' if int(sys.argv[1]) < 3 else 'many', step)"
        outcome = verify.scale([PLAIN[0], "-c", code, "{n}"], [1, 2, 4])
        assert (outcome.exit, outcome.status) == (2, "nothing-in-common")
        assert outcome.lines[0] == "the same bits at world sizes 1, 2: 3 steps compared"
        assert "no stream of world size 1 is in size 4" in outcome.lines[1]

    def test_of_a_command_that_fails(self, verify: Verify) -> None:
        assert verify.scale([*PLAIN, "{n}"], [1, 2], EXIT="1").exit == 5


PEEKS = """
import json, os, pinner
with open(os.path.join(os.environ["PINNER_SESSION"], "session.json")) as source:
    value = 7 if json.load(source).get("trace") else 1
for step in range(4):
    if step == 3:
        value += int.from_bytes(os.urandom(6), "big")
    pinner.fingerprint("value", value + step)
"""


def test_traces_that_leave_other_bits_than_the_runs_agree_on_are_named(verify: Verify) -> None:
    compare = lambda first, second: Incomparable("left out")
    outcome = verify.runs([sys.executable, "-c", PEEKS], chase=True, compare=compare)
    assert outcome.details["difference"]["step"] == 3
    assert outcome.details["traces_valid"] is False
    (line,) = [line for line in outcome.lines if line.startswith("WARNING")]
    assert "a traced run left other bits where the runs without a trace agree" in line
    assert "stream 'value', rank 0, step 0" in line
    assert "trace-modules-1a" in line


def test_a_planted_divergence_is_followed_to_its_operation(verify: Verify) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    draw = random.Random(seed)
    step, layer = draw.randrange(4), draw.randrange(3)
    environ = {"FLIP": f"{step}:{layer}", "OMP_NUM_THREADS": "1"}
    outcome = verify.runs(python("verify_train.py"), chase=True, keep=1 << 30, **environ)
    assert outcome.exit == 1, outcome.text
    assert outcome.details["traces_valid"] is True
    levels = {link["level"]: link["first"] for link in outcome.details["chain"]}
    assert list(levels) == ["modules", "ops", "kernels"], outcome.text
    for found in levels.values():
        assert (found["step"], found["module"]) == (step, str(layer)), outcome.text
    assert (levels["modules"]["kind"], levels["modules"]["name"]) == ("module", "Layer")
    assert (levels["ops"]["kind"], levels["ops"]["name"]) == ("op", "aten.mul.Tensor")
    assert levels["ops"]["began_here"]
    assert "first different op: aten.mul.Tensor" in outcome.lines[-1]
    (figures,) = levels["kernels"]["figures"]
    assert re.match(r"bytes: output 0: \d+ of 32 float32 elements differ, first at \[", figures)
    assert figures in outcome.lines
    kept = Path(outcome.details["kept"])
    assert {path.parts[-3][:7] for path in kept.glob("*/rank-none/bytes")} == {"kernels"}


class TestTheFailingWindow:
    RUN = RunEvidence(
        {
            "optimizer0/gradients": {0: tuple((n, f"d{n}") for n in range(9))},
            "loss": {1: tuple((n, f"d{n}") for n in range(100, 109))},
        }
    )

    @pytest.mark.parametrize(
        ("difference", "window"),
        [
            (Difference("optimizer0/gradients", 0, 4, "a", "b"), Window(4, 4)),
            (Difference("loss", 1, 104, "a", "b"), Window(4, 5)),  # before or after its step
            (Difference("loss", 1, None, "a", None), Window()),
            (Difference("other", 0, 3, None, "b"), Window()),
        ],
    )
    def test_is_counted_in_optimizer_steps(self, difference: Difference, window: Window) -> None:
        assert failing_window(self.RUN, difference) == window
