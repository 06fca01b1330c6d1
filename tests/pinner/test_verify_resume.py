"""`pinner verify --resume` on real processes that are killed: what is equal, lost, and refused."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from pinner.launch import verify_resume
from pinner.launch.verify_run import Outcome
from tests.command_rig import Pinner, Said, python
from tests.verify_rig import Verify

PLAIN = python("resume_plain.py", "{dir}")
TRAIN = python("resume_train.py", "{dir}")
TORCHRUN = [
    *(python("resume_train.py", "{dir}")[:1]),
    *("-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d"),
    "--rdzv-endpoint=localhost:0",
    *python("resume_train.py", "{dir}")[1:],
]


@pytest.fixture
def verify(tmp_path: Path) -> Verify:
    return Verify(tmp_path)


def names(outcome: Outcome) -> list[str]:
    """What was found to be lacking."""
    return list(dict.fromkeys(lack["name"] for lack in outcome.details["lacks"]))


def steps_of(verify: Verify, history: str, rank: int = 0) -> list[int]:
    """The steps a history made, over all of its processes."""
    text = (verify.history(history) / f"steps-{rank}.txt").read_text()
    return [int(line) for line in text.split()]


class TestAHealthyResume:
    def test_is_equal_and_the_first_history_was_killed(self, verify: Verify) -> None:
        seed = random.randrange(1 << 30)
        print("seed", seed)
        at = random.Random(seed).randint(1, 3)
        outcome = verify.resume(PLAIN, at=at, STEPS="8")
        assert (outcome.exit, outcome.status) == (0, "equal"), outcome.text
        assert outcome.details["compared"] == [{"stream": "value", "rank": 0, "steps": 8 - 2 * at}]
        killed = outcome.details["runs"][1]
        assert (killed["name"], killed["code"]) == ("killed", 137)
        assert steps_of(verify, "killed") == list(range(1, 9))  # none was made twice

    def test_with_numbers_of_its_own(self, verify: Verify) -> None:
        outcome = verify.resume(PLAIN, NUMBERED="1")
        assert outcome.exit == 0, outcome.text
        assert outcome.details["compared"][0]["steps"] == 4

    def test_of_several_ranks(self, verify: Verify) -> None:
        outcome = verify.resume(PLAIN, RANKS="3")
        assert outcome.exit == 0, outcome.text
        assert [row["rank"] for row in outcome.details["compared"]] == [0, 1, 2]
        assert "killed while these waited: rank 0, rank 1, rank 2" in verify.said
        assert [steps_of(verify, "killed", rank) for rank in range(3)] == [[1, 2, 3, 4, 5, 6]] * 3

    def test_where_another_command_restores(self, verify: Verify) -> None:
        script = verify.folder / "restore.py"
        script.write_text("raise SystemExit(3)")
        outcome = verify.resume(PLAIN, restore_with=[PLAIN[0], str(script)])
        assert (outcome.exit, outcome.status) == (5, "command-failed")
        outcome = verify.resume([PLAIN[0], str(script), "{dir}"], restore_with=PLAIN)
        assert outcome.exit == 5  # the first history is run with the command

    def test_of_two_ranks_of_torchrun(self, verify: Verify) -> None:
        outcome = verify.resume(TORCHRUN, OMP_NUM_THREADS="1")
        assert (outcome.exit, names(outcome)) == (0, []), outcome.text
        steps = {(row["stream"], row["rank"]): row["steps"] for row in outcome.details["compared"]}
        streams = ("loss", "optimizer0/gradients", "optimizer0/parameters")
        assert steps == {(stream, rank): 4 for stream in streams for rank in range(2)}
        assert [steps_of(verify, "killed", rank) for rank in range(2)] == [[1, 2, 3, 4, 5, 6]] * 2

    def test_of_distributed_checkpoints_that_are_saved_in_the_background(
        self, verify: Verify
    ) -> None:
        outcome = verify.resume(TRAIN, SAVE="async", EVERY="3")
        assert (outcome.exit, names(outcome)) == (0, []), outcome.text
        assert {row["steps"] for row in outcome.details["compared"]} == {3}


STREAMS = """
import pickle, random, sys
from pathlib import Path
import beside, pinner

class Holder:
    def __init__(self):
        self.draw = random.Random(2)

class Proxy:
    __slots__ = ()
    __class__ = property(lambda self: 1 / 0)
    def __getattr__(self, name):
        return 1 / 0

proxy = Proxy()
mine, holder, idle, same = random.Random(1), Holder(), random.Random(3), beside.draw
file = Path(sys.argv[1], "state")
step = 0
if file.exists():
    step, *states = pickle.loads(file.read_bytes())
    for stream, state in zip((mine, holder.draw, beside.draw), states):
        if "--fixed" in sys.argv:
            stream.setstate(state)
    pinner.checkpoint_restored()
else:
    idle.random()
while step < 4:
    value = mine.random() + holder.draw.random() + same.random()
    pinner.fingerprint("value", value)
    step += 1
    if step == 2:
        states = [stream.getstate() for stream in (mine, holder.draw, beside.draw)]
        file.write_bytes(pickle.dumps((step, *states)))
        pinner.checkpoint_saved()
"""


class TestRandomStreamsOfTheProgram:
    @pytest.fixture
    def command(self, tmp_path: Path) -> list[str]:
        folder = tmp_path / "program"
        folder.mkdir()
        (folder / "streams.py").write_text(STREAMS)
        (folder / "beside.py").write_text("import random\ndraw = random.Random(4)\n")
        return [PLAIN[0], str(folder / "streams.py"), "{dir}"]

    def test_are_named_where_the_run_draws_from_them_later(
        self, verify: Verify, command: list[str]
    ) -> None:
        outcome = verify.resume(command)
        (lack,) = outcome.details["lacks"]
        assert (outcome.exit, lack["name"]) == (1, "random streams of the program")
        assert sorted(lack["leaves"]) == ["holder.draw", "mine", "same"]  # idle: never again

    def test_that_are_put_back_are_no_fault(self, verify: Verify, command: list[str]) -> None:
        outcome = verify.resume([*command, "--fixed"])
        assert (outcome.exit, names(outcome)) == (0, []), outcome.text


class TestItsFolders:
    """`--dir` keeps the runs; `pinner compare` pairs them as the verification does."""

    SAID = "goes on from checkpoint 2: compared from there, at the same steps"

    def compared(self, folder: Path, *names: str) -> Said:
        return Pinner(folder)("compare", "--json", *(folder / "runs" / name for name in names))

    @pytest.mark.parametrize("restores", ["all", "state"])
    def test_are_compared_from_the_checkpoint_on(self, tmp_path: Path, restores: str) -> None:
        words = ("verify", "--resume", "--at", "2", "--dir", "runs", "--", *PLAIN)
        code = Pinner(tmp_path)(*words, RESTORES=restores).code
        said = self.compared(tmp_path, "whole", "restored")
        assert said.code == code == (0 if restores == "all" else 1)
        assert any(f"B {self.SAID}" in note for note in said.json["notes"])
        turned = self.compared(tmp_path, "restored", "whole")
        assert any(f"A {self.SAID}" in note for note in turned.json["notes"])
        if restores == "state":
            (first,), (other,) = said.json["differences"], turned.json["differences"]
            assert (first["stream"], first["step"]) == ("value", 4)
            assert (first["first"], first["second"]) == (other["second"], other["first"])


class TestWhatIsLacking:
    def test_a_random_state_is_named_with_the_first_step(self, verify: Verify) -> None:
        outcome = verify.resume(PLAIN, RESTORES="state")
        assert (outcome.exit, outcome.status) == (1, "differs")
        assert names(outcome) == ["Python's random state"]
        first = outcome.details["differences"][0]
        assert (first["stream"], first["step"]) == ("value", 2)
        assert "not restored: Python's random state" in outcome.lines[-1]

    def test_what_was_passed_and_came_back_otherwise(self, verify: Verify) -> None:
        outcome = verify.resume(PLAIN, RESTORES="other")
        assert outcome.exit == 1
        assert names(outcome) == ["what was passed"]
        assert "'value'" in outcome.text

    def test_every_lack_of_a_torch_run_at_once(self, verify: Verify) -> None:
        outcome = verify.resume(TRAIN, SAVE="file", LACKS="all")
        assert outcome.exit == 1
        assert sorted(names(outcome)) == sorted(
            [
                "Python's random state",
                "NumPy's random state",
                "torch's random state on the CPU",
                "position of DataLoader 0",
                "scales of Net 0",
                "step counts of Adam 0",
                "learning-rate schedule LambdaLR 0",
                "gradient scaler GradScaler 0",
            ]
        )
        first = outcome.details["differences"][0]
        assert first["step"] == 2  # the first after the checkpoint


class TestWhatCannotBeCompared:
    def test_no_evidence(self, verify: Verify) -> None:
        outcome = verify.resume([PLAIN[0], "-c", "import pinner; pinner.checkpoint_saved()"])
        assert (outcome.exit, outcome.status) == (2, "no-evidence")

    def test_no_checkpoint(self, verify: Verify) -> None:
        outcome = verify.resume(PLAIN, EVERY="9")
        assert (outcome.exit, outcome.status) == (2, "no-checkpoint")
        assert "checkpoint_saved" in outcome.text

    def test_fewer_checkpoints_than_asked_for(self, verify: Verify) -> None:
        outcome = verify.resume(PLAIN, at=4)
        assert outcome.exit == 2
        assert "at least 4 checkpoints, found 3" in outcome.text

    def test_a_command_that_fails(self, verify: Verify) -> None:
        outcome = verify.resume([PLAIN[0], "-c", "import pinner; raise SystemExit(7)"])
        assert (outcome.exit, outcome.status) == (5, "command-failed")

    def test_a_command_that_begins_anew(self, verify: Verify) -> None:
        outcome = verify.resume(PLAIN, RESTORES="nothing")
        assert (outcome.exit, outcome.status) == (2, "nothing-restored")
        assert "PINNER_VERIFY_DIR" in outcome.text


class TestRanksOfWhichOneSaves:
    def test_the_others_are_compared_by_their_streams(self, verify: Verify) -> None:
        outcome = verify.resume(PLAIN, RANKS="2", SAVERS="0", NUMBERED="1")
        assert "killed while these waited: rank 0" in verify.said
        assert any("rank 1 saved nothing of its own" in note for note in outcome.details["notes"])

    def test_a_rank_that_never_comes_is_not_waited_for_for_ever(
        self, verify: Verify, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(verify_resume, "LEAST_GRACE_S", 0.5)
        outcome = verify.resume(PLAIN, RANKS="2", HANGS="1")
        assert "note: 2 saved that checkpoint in the whole run" in verify.said
        assert "killed while these waited: rank 0" in verify.said
        assert outcome.exit == 1
        assert [(lack["rank"], lack["name"]) for lack in outcome.details["lacks"]] == [
            (1, "the checkpoint")
        ]


class TestTheLock:
    @pytest.fixture
    def locks(self, tmp_path: Path) -> tuple[Path, Path]:
        """Two locks of the same run, which differ in when they were made."""
        folder = tmp_path / "locks"
        folder.mkdir()
        pinner = Pinner(folder)
        (folder / "data").mkdir()
        argv = [*python("resume_plain.py"), "data"]
        assert pinner("record", "-o", "a.toml", "--", *argv, RESTORES="nothing").code == 0
        text = (folder / "a.toml").read_text()
        created = next(line for line in text.splitlines() if line.startswith("created"))
        (folder / "b.toml").write_text(
            text.replace(created, 'created = "2026-01-01T00:00:00+00:00"')
        )
        return folder / "a.toml", folder / "b.toml"

    def test_goes_with_the_checkpoint_and_another_one_is_refused(
        self, verify: Verify, locks: tuple[Path, Path]
    ) -> None:
        outcome = verify.resume(PLAIN, lock=locks[0])
        assert outcome.exit == 0, outcome.text
        folder = verify.history("killed")
        lock = json.loads((folder / "state-0.json.pinner.json").read_text())["lock"]
        assert lock.startswith("sha256:")
        pinner = Pinner(locks[0].parent)
        argv = [*python("resume_plain.py"), str(folder)]
        said = pinner("enforce", "-l", locks[1], "--", *argv, STEPS="8")
        assert said.code == 1  # the program's own, from the error
        assert f"was saved under the lock {lock}" in said.err
        assert "checkpoint_restored" in said.err
        said = pinner("enforce", "-l", locks[0], "--", *argv, STEPS="8")
        assert said.code == 0, said.err
