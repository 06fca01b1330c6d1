"""State is read without a trace in the run, named for people, and each lack is found alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.command_rig import REPO, WORKLOADS
from tests.session_rig import SessionRig


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What tests/workloads/resume_states.py found: one process for all of this file."""
    rig = SessionRig(tmp_path_factory.mktemp("states") / "session")
    workload = str(WORKLOADS / "resume_states.py")
    environ = {"PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1"}
    done = rig.python(workload, PINNER_VERIFY_RESUME="whole 1", **environ)
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    assert isinstance(value, dict)
    return value


def names(history: dict[str, Any]) -> list[str]:
    return [lack["name"] for lack in history["lacks"] if lack["name"] != "what was passed"]


@pytest.mark.parametrize("history", ["", "files"])
def test_a_healthy_resume_lacks_nothing(found: dict[str, Any], history: str) -> None:
    assert found[history]["lacks"] == []
    assert found[history]["differences"] == []
    assert found[history]["compared"] == [4, 4, 4]


@pytest.mark.parametrize(
    ("lack", "name"),
    [
        ("python", "Python's random state"),
        ("numpy", "NumPy's random state"),
        ("torch", "torch's random state on the CPU"),
        ("steps", "step counts of Adam 0"),
        ("schedule", "learning-rate schedule LambdaLR 0"),
        ("scaler", "gradient scaler GradScaler 0"),
        ("loader", "position of DataLoader 0"),
        ("scale", "scales of Net 0"),
    ],
)
def test_each_lack_alone_is_named_and_the_streams_part(
    found: dict[str, Any], lack: str, name: str
) -> None:
    history = found[lack]
    assert names(history) == [name]
    assert history["parted"] == 0
    # a power of two in the loss scale is taken out again, exactly
    assert (history["differences"] == []) == (lack == "scaler")


def test_what_differs_in_several_parts_names_the_first(found: dict[str, Any]) -> None:
    (lack, *_) = found["steps"]["lacks"]
    assert lack["leaves"] == [f"parameter {number}" for number in range(4)]
    assert "4 of 4 differ, the first is 'parameter 0'" in lack["text"]


def test_a_loader_that_begins_again_is_told_from_the_batch_it_gives(found: dict[str, Any]) -> None:
    (lack, *_) = found["loader"]["lacks"]
    assert "another batch than step 3: the one of step 1, so the data begin again" in lack["text"]


class TestReading:
    def test_draws_no_random_number_and_makes_no_state(self, found: dict[str, Any]) -> None:
        seen = found["untouched"]
        assert seen["streams"]
        assert (seen["optimizer"], seen["gradients"], seen["versions"]) == (0, 0, True)
        assert (seen["epochs"], seen["cuda"]) == ([0], False)

    def test_changes_no_bit_of_the_run(self, found: dict[str, Any]) -> None:
        watched = found["watched"]
        assert watched["read"] == watched["plain"]
        assert len(watched["plain"]) == 18  # three streams of six steps

    def test_twice_gives_the_same(self, found: dict[str, Any]) -> None:
        assert found["untouched"]["same"]


class TestNames:
    def test_what_no_checkpoint_holds_is_derived(self, found: dict[str, Any]) -> None:
        kinds = found["untouched"]["kinds"]
        assert kinds["scales of Net 0"] == "derived"
        assert kinds["buffers of Net 0"] == "state"
        assert kinds["generator of DataLoader 0"] == "random"

    @pytest.mark.parametrize(
        ("name", "kind", "leaves"),
        [
            ("low-precision weights of Odd 0", "state", ["weight"]),
            ("scales of Odd 0", "derived", ["fp8_meta.scaling_fwd.amax_history"]),
            ("seeds of Odd 0", "derived", ["dropout_seed"]),
            ("generators in Odd 0", "random", ["draw"]),
            ("other tensors of Odd 0", "derived", ["cache.0"]),
            ("parameters of SGD 0", "state", ["0"]),
            ("epoch of the sampler of DataLoader 0", "state", ["epoch"]),
            ("position of DataLoader 0", "batch", ["last batch"]),
            ("'deep'", "passed", ["0/x"]),
            ("Megatron's random state 'model-parallel-rng'", "random", [""]),
        ],
    )
    def test_of_state(self, found: dict[str, Any], name: str, kind: str, leaves: list[str]) -> None:
        assert found["named"][name] == [kind, leaves]

    def test_of_schedules_that_skip_their_base(self, found: dict[str, Any]) -> None:
        assert "learning-rate schedule ReduceLROnPlateau 0" in found["named"]

    def test_a_random_stream_that_is_passed_has_its_state_read(self, found: dict[str, Any]) -> None:
        kind, leaves = found["named"]["'draw'"]
        assert (kind, leaves) == ("passed", [""])

    def test_of_workers_where_there_are_some(self, found: dict[str, Any]) -> None:
        assert found["seeds"] == ["worker seeds of DataLoader 1"]


def test_a_size_that_dynamo_made_dynamic_is_marked(found: dict[str, Any]) -> None:
    first, same, other = found["compiled"]["marks"]
    (name,) = [name for name in first[0] if name.startswith("doubled (resume_states.py:")]
    assert name.endswith(": L['x']")
    assert [marks[name] for marks, _ in (first, same, other)] == ["[4, 3]", "[4, 3]", "[?, 3]"]
    assert other[1] - first[1] == 1  # one more graph


@pytest.mark.parametrize(
    ("saves", "numbers"),
    [
        ("a file", [1]),
        ("two files", [1]),
        ("copies", [1]),
        ("a call around files", [1]),
        ("a buffer", []),
        ("metrics", []),
    ],
)
def test_what_counts_as_one_checkpoint(
    found: dict[str, Any], saves: str, numbers: list[int]
) -> None:
    assert found["counted"][saves] == numbers


def test_a_role_that_is_not_known_ends_the_process(tmp_path: Path) -> None:
    rig = SessionRig(tmp_path / "session")
    done = rig.script("print('ran')", PINNER_VERIFY_RESUME="sideways")
    assert done.returncode == 96
    assert 'must be "ROLE NUMBER"' in done.stderr
    assert "ran" not in done.stdout
