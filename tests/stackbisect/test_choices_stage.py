"""Choices first: real Triton chooses otherwise, and the good stack's choices are transplanted."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from pinner import shipped
from pinner.lockfile.codec import read_lock
from stackbisect import journal
from stackbisect.journal import Record
from stackbisect.probe import Candidate, EvidenceOptions, InfrastructureError, ProbeResult
from stackbisect.runtimes import harvest
from stackbisect.search.verdict import Rule
from stackbisect.sessions import Sessions
from stackbisect.spaces.components import DERIVED
from stackbisect.stage import Ask, Context, Done
from stackbisect.stages.choices import Choices
from tests.stackbisect.program import Program

ROOT = Path(__file__).parents[2]
CHOOSING = (sys.executable, str(ROOT / "tests" / "workloads" / "choosing.py"))
DECIDING = (sys.executable, str(ROOT / "tests" / "workloads" / "deciding.py"))
EVIDENCE = Rule("evidence")


def stack(label: str, **environ: str) -> Candidate:
    """A stack of this machine: what differs is planted by environment variables."""
    return Candidate(f"id-{label}", label, 0, {"environ": environ})


@dataclass
class Trial:
    """One stage between two stacks, driven as a bisection drives it; probes run here."""

    folder: Path
    good: Candidate
    bad: Candidate
    command: Sequence[str] = CHOOSING
    rule: Rule = EVIDENCE
    jobs: int = 1
    tried: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin a bisection in which both ends were tried."""
        journal.create(self.folder, self._header()).close()
        with journal.resume(self.folder) as held:
            for end in (self.good, self.bad):
                first = self._probe(held, end, 1, "search")
                # Once is enough here: that bits repeat is no question of this stage.
                held.finish(first, end, 2, held.record.probes[-1].result)

    @property
    def stage(self) -> Choices:
        """The stage."""
        return Choices(self.good, self.bad, self.rule, Context(None, self.folder))

    @property
    def record(self) -> Record:
        """What the journal says."""
        return journal.read(self.folder)

    def __call__(self, probes: int | None = None) -> dict[str, Any] | None:
        """Go on to the result; after so many probes there is none yet: the program was killed."""
        with journal.resume(self.folder) as held:
            if self.stage.name not in held.record.stages:
                held.begin_stage(self.stage.name, self.stage.begin(held.record), 0.0)
            while probes is None or len(self.tried) < probes:
                step = self.stage.next_steps(held.record, self.jobs, ())
                if isinstance(step, Done):
                    held.conclude(self.stage.name, step.result, 0.0)
                    return dict(step.result)
                assert 0 < len(step.asks) <= self.jobs
                for ask in step.asks:
                    self._ask(held, ask)
        return None

    def _ask(self, held: journal.Journal, ask: Ask) -> None:
        assert self.stage.probes_left(held.record) >= 0
        self.tried.append((ask.candidate.label, ask.attempt))
        self._probe(held, ask.candidate, ask.attempt, self.stage.name)

    def _probe(self, held: journal.Journal, of: Candidate, attempt: int, stage: str) -> int:
        number = held.start(of, attempt, 0.0, stage)
        result = run_here(self.folder / "probes" / f"{number:04d}", of, held)
        held.finish(number, of, attempt, result, stage)
        return number

    def _header(self) -> journal.Header:
        return journal.Header(
            command=tuple(self.command),
            workdir=str(self.folder.parent),
            verdict=self.rule.name,
            evidence=EvidenceOptions(),
            time_limit=None,
            candidates=(self.good, self.bad),
            setup={},
            runtime={},
            excluded=(),
            notes=(),
            again=(),
            created="2026-01-01T00:00:00+00:00",
        )


def run_here(folder: Path, of: Candidate, held: journal.Journal) -> ProbeResult:
    """A probe as a process of this machine, under the session that its candidate asks for."""
    folder.mkdir(parents=True)
    session = Sessions(held.folder, str(ROOT)).create(folder / "session", of, folder.name)
    base = of.details[DERIVED]["base"]["details"] if DERIVED in of.details else of.details
    environ = {
        **os.environ,
        **base["environ"],
        "PYTHONPATH": os.pathsep.join([str(shipped.inject_dir()), str(ROOT)]),
        "PINNER_SESSION": str(session.folder),
        "PINNER_MODE": session.mode,
        "TRITON_CACHE_DIR": str(folder / "cache"),
    }
    started = time.time()
    done = subprocess.run(held.record.header.command, env=environ, capture_output=True, text=True)
    (folder / "log").write_text(done.stdout + done.stderr)
    left = harvest.read(session.folder, folder / "none", EvidenceOptions(), {})
    assert not left.damage
    log = os.path.relpath(folder / "log", held.folder)
    return ProbeResult(
        "ran", done.returncode, "", left.evidence, left.facts, {}, started, time.time(), log
    )


@pytest.fixture(scope="module")
def selection(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trial, dict[str, Any]]:
    """Two stacks that differ in nothing but what the autotuner finds fastest."""
    folder = tmp_path_factory.mktemp("selection") / ".stackbisect" / "tune"
    trial = Trial(folder, stack("24.09", PREFERS="16"), stack("24.10", PREFERS="64"))
    result = trial()
    assert result is not None
    return trial, result


class TestOnlyTheSelectionDiffers:
    def test_the_selection_is_the_culprit_and_is_proved_both_ways(self, selection: Any) -> None:
        trial, result = selection
        assert result["status"] == "selection", result["reason"]
        assert (result["differ"], result["applied"], result["of"]) == (2, 2, 2)
        assert trial.tried == [
            ("24.10 with the choices of 24.09", 1),
            ("24.10 with the choices of 24.09", 2),
            ("24.09 with the choices of 24.10", 1),
        ]
        assert (result["transplant"]["verdict"], result["transplant"]["probes"]) == ("good", [3, 4])
        assert (result["reverse"]["verdict"], result["reverse"]["probes"]) == ("bad", [5])

    def test_it_is_named_as_a_diff(self, selection: Any) -> None:
        _, result = selection
        assert result["diff"][0] == "choices that differ: 2"
        assert [line for line in result["diff"] if "BLOCK" in line] == ["    BLOCK 16 → 64"] * 2
        (culprit,) = result["culprits"]
        assert culprit["kind"] == "selection"
        names = [part["name"] for part in culprit["components"]]
        assert [name.split()[0] for name in names] == ["__main__:squares", "__main__:total"]
        assert "BLOCK=16" in culprit["components"][0]["good"]
        assert "BLOCK=64" in culprit["components"][0]["bad"]

    def test_the_lock_that_is_kept_is_sealed_and_brings_the_bits_back(self, selection: Any) -> None:
        """The command of the result is run as it stands, in the bad stack."""
        trial, result = selection
        kept = trial.folder / result["lock"]
        assert result["sealed"]
        assert read_lock(kept).run.sealed
        words = shlex.split(result["enforce"])
        assert words[:3] == ["pinner", "enforce", "-l"]
        bad = {**os.environ, **trial.bad.details["environ"], "PYTHONPATH": str(ROOT)}
        words[:2] = [sys.executable, "-m", "pinner", "enforce", "--verify"]
        done = subprocess.run(
            words, cwd=trial.folder.parents[1], env=bad, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert "verified 6 of 6 steps in 2 streams" in done.stderr

    def test_locks_that_are_gone_or_changed_stop_the_bisection(self, selection: Any) -> None:
        trial, _ = selection
        for number, damage in enumerate((Path.unlink, lambda p: p.write_text(p.read_text() + "#"))):
            moved = trial.folder.parent / f"moved-{number}"
            shutil.copytree(trial.folder, moved)
            damage(moved / "choices" / "good.lock.toml")
            stage = replace(trial.stage, context=Context(None, moved))
            with pytest.raises(InfrastructureError, match=r"good\.lock\.toml.*put it back"):
                stage.next_steps(journal.read(moved), 1, ())


class TestSomethingElseDiffers:
    def test_kernels_that_compute_otherwise_are_not_the_selection(self, tmp_path: Path) -> None:
        """All choices applied, two at a time, and the control has the good bits."""
        bad = stack("bad", PREFERS="64", BODY="1")
        trial = Trial(tmp_path / "b", stack("good", PREFERS="16"), bad, jobs=2)
        result = trial()
        assert result is not None
        assert result["status"] == "not-selection"
        assert (result["applied"], result["of"], result["not_applied"]) == (2, 2, [])
        assert (result["bits"], result["culprits"]) == ("third", [])
        assert trial.tried[2:] == [("good with its own choices locked", 1)]
        assert result["control"]["verdict"] == "good"

    def test_the_same_choices_need_no_probe(self, tmp_path: Path) -> None:
        trial = Trial(tmp_path / "b", stack("good"), stack("bad", BODY="1"))
        result = trial()
        assert result is not None
        assert (result["status"], result["differ"], trial.tried) == ("no-difference", 0, [])
        assert result["reason"] == "both stacks made the same choices (2)"

    def test_runs_without_choices_need_none_either(self, tmp_path: Path) -> None:
        script = "import os, pinner; pinner.fingerprint('out', int(os.environ['VALUE']))"
        command = (sys.executable, "-c", script)
        ends = stack("good", VALUE="1"), stack("bad", VALUE="2")
        result = Trial(tmp_path / "b", *ends, command)()
        assert result is not None
        assert result["status"] == "no-difference"
        assert result["reason"].startswith("neither stack made a choice")


class TestNotAllCanBeTransplanted:
    def test_a_kernel_of_another_source_is_left_out_and_counted(self, tmp_path: Path) -> None:
        bad = stack("bad", PREFERS="64", SOURCE="1")
        trial = Trial(tmp_path / "b", stack("good", PREFERS="16"), bad)
        result = trial()
        assert result is not None
        assert (result["status"], result["applied"], result["of"]) == ("inconclusive", 1, 2)
        assert len(trial.tried) == 1
        left_out = result["not_applied"][0]
        assert left_out.startswith("__main__:squares")
        assert "source is another" in left_out
        assert "1 of 2 choices of good applied in bad" in result["reason"]

    def test_a_config_that_is_gone_ends_the_command_and_is_told(self, tmp_path: Path) -> None:
        bad = stack("bad", PREFERS="64", BLOCKS="32,64")
        result = Trial(tmp_path / "b", stack("good", PREFERS="16"), bad)()
        assert result is not None
        assert (result["status"], result["bits"]) == ("inconclusive", "untestable")
        assert result["coverage"]["invalid"] == 1
        assert "the command did not come through" in result["reason"]

    @pytest.mark.parametrize(
        ("good", "bad", "why"),
        [
            ("64,128,256", "64,128", "not asked for there"),
            ("64,128", "64,128,256", "asked for there only"),
        ],
    )
    def test_what_only_one_stack_was_asked_for(
        self, tmp_path: Path, good: str, bad: str, why: str
    ) -> None:
        """Bits that are back with some of the choices are a lead, not a proof."""
        ends = stack("good", SIZES=good, TAKES="32"), stack("bad", SIZES=bad, TAKES="16")
        trial = Trial(tmp_path / "b", *ends, DECIDING)
        result = trial()
        assert result is not None
        assert (result["status"], len(trial.tried)) == ("inconclusive", 1)
        assert [text.rpartition(": ")[2] for text in result["not_applied"][:1]] == [why]
        assert (result["applied"], result["of"]) == (2, good.count(",") + 1)

    def test_choices_of_different_kernels_cannot_be_transplanted_at_all(
        self, tmp_path: Path
    ) -> None:
        ends = stack("good", SIZES="64"), stack("bad", SIZES="128")
        trial = Trial(tmp_path / "b", *ends, DECIDING)
        result = trial()
        assert result is not None
        assert (result["status"], result["differ"], trial.tried) == ("inconclusive", 2, [])


class TestProbesThatSayNothing:
    def test_a_lock_that_changes_bits_by_itself_proves_nothing(self, tmp_path: Path) -> None:
        """Tuning leaves something behind: without it not even the good stack has its bits."""
        ends = stack("good", PREFERS="16", CLEARS="1"), stack("bad", PREFERS="64", CLEARS="1")
        result = Trial(tmp_path / "b", *ends)()
        assert result is not None
        assert (result["status"], result["control"]["verdict"]) == ("inconclusive", "third")
        assert "good itself does not give its bits with its own choices locked" in result["reason"]

    def test_ranks_that_chose_differently_cannot_be_put_under_one_lock(
        self, tmp_path: Path
    ) -> None:
        """Rank 1 took the fastest in both stacks, which both locks hold; rank 0 took another."""
        script = tmp_path / "ranks.sh"
        script.write_text(
            "for rank in 0 1; do\n"
            "    [ $rank = 1 ] && TAKES=32\n"
            f"    RANK=$rank WORLD_SIZE=2 TAKES=$TAKES {' '.join(DECIDING)} || exit 1\n"
            "done\n"
        )
        ends = stack("good", TAKES="16"), stack("bad", TAKES="64")
        trial = Trial(tmp_path / "b", *ends, ("sh", str(script)))
        result = trial()
        assert result is not None
        assert (result["status"], result["differ"], result["applied"]) == ("inconclusive", 2, 2)
        assert any("BLOCK=16 num_warps=4 on rank 0" in line for line in result["diff"])
        assert "good itself does not give its bits with its own choices locked" in result["reason"]
        assert "made differently by the processes of one probe" in result["notes"][0]

    def test_damaged_ledgers_are_told(self, tmp_path: Path) -> None:
        ends = stack("good", TAKES="16"), stack("bad", TAKES="64")
        trial = Trial(tmp_path / "b", *ends, DECIDING)
        for file in trial.folder.glob("probes/0002/session/ledger/*"):
            file.write_text("damaged\n" + file.read_text())
        result = trial()
        assert result is not None
        assert (result["status"], trial.tried) == ("inconclusive", [])
        assert "what bad chose cannot be read" in result["reason"]

    def test_git_s_rule_judges_as_well(self, tmp_path: Path) -> None:
        """Exit codes are the verdict; what was chosen is in the ledgers all the same."""
        script = tmp_path / "train.py"
        script.write_text(DECIDING_FAILS)
        ends = stack("good", TAKES="16"), stack("bad", TAKES="64")
        command = (sys.executable, str(script))
        result = Trial(tmp_path / "b", *ends, command, Rule("exit-code"))()
        assert result is not None
        assert (result["status"], result["applied"]) == ("selection", 2)
        assert result["reverse"]["verdict"] == "bad"


DECIDING_FAILS = """
import sys
from tests.workloads import deciding
blocks = [deciding.decide(size) for size in (64, 128)]
sys.exit(int(blocks != [16, 16]))
"""


def test_a_stage_that_is_killed_after_any_probe_goes_on_without_repeating_one(
    tmp_path: Path,
) -> None:
    trial = Trial(tmp_path / "b", stack("good", TAKES="32"), stack("bad", TAKES="16"), DECIDING)
    for probes in range(3):
        assert trial(probes) is None
    result = trial()
    assert result is not None
    assert (result["status"], result["sealed"]) == ("selection", True)
    assert [label for label, _ in trial.tried] == [
        *["bad with the choices of good"] * 2,
        "good with the choices of bad",
    ]


def test_the_whole_program_killed_in_the_middle_ends_at_the_selection(tmp_path: Path) -> None:
    """The chain: where, the choices, both sides in turns. No finished probe is made again."""
    program = Program(tmp_path)
    ends = ("--env-good", "TAKES=16", "--env-bad", "TAKES=64")
    started = program.start("run", "--name", "tune", *ends, "--", *DECIDING)
    while len(program.probes()) < 5:
        assert started.poll() is None, started.communicate()
        time.sleep(0.02)
    started.kill()
    started.communicate()
    before = program.probes()
    ended = program("resume", "tune", "--json")
    assert ended.code == 0, ended.err
    found = ended.report
    assert program.probes()[: len(before)] == before
    tries = [(line["candidate"], line["attempt"]) for line in program.probes()]
    assert len(tries) == len(set(tries)) == 11
    assert [each["kind"] for each in found["culprits"]] == ["selection"]
    assert [each["stage"] for each in found["chain"]] == ["search", "choices", "confirm"]
    assert len(set(found["confirmed"]["good"])) == len(set(found["confirmed"]["bad"])) == 1
    for form in ([], ["--markdown"]):
        assert found["choices"]["enforce"] in program("report", "tune", *form).out
