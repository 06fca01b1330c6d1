"""Recording by hand over a shared folder, as a scheduler's tasks do it: observe, validate, seal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pinner.launch.phases import run_name
from pinner.lockfile.codec import read_lock
from tests.command_rig import Pinner, Said, python

DECIDING = python("deciding.py")


@pytest.fixture
def pinner(tmp_path: Path) -> Pinner:
    return Pinner(tmp_path)


def slurm(rank: int, step: int, tasks: int = 2) -> dict[str, str]:
    """What srun tells a task."""
    return {
        "SLURM_JOB_ID": "71",
        "SLURM_STEP_ID": str(step),
        "SLURM_PROCID": str(rank),
        "SLURM_STEP_NUM_TASKS": str(tasks),
        "SLURM_LOCALID": str(rank),
    }


def phase(pinner: Pinner, name: str, *words: str, **environ: str) -> Said:
    command = [] if name == "seal" else ["--", *DECIDING]
    argv = ["record", "--json", "--phase", name, "--dir", "shared", *words, *command]
    return pinner(*argv, **environ)


def srun(pinner: Pinner, name: str, step: int, *words: str, **environ: str) -> list[int]:
    """Two launchers at once, each for one task; their exit codes."""
    argv = [sys.executable, "-m", "pinner", "record", "--phase", name, "--dir", "shared", *words]
    processes = [
        subprocess.Popen(
            [*argv, "--", *DECIDING],
            cwd=pinner.folder,
            env=pinner.environ(**slurm(rank, step), **environ),
            stderr=subprocess.DEVNULL,
        )
        for rank in range(2)
    ]
    return [process.wait(timeout=60) for process in processes]


class TestOneLauncher:
    def test_three_steps_make_a_sealed_lock(self, pinner: Pinner) -> None:
        assert phase(pinner, "observe").code == 0
        assert phase(pinner, "validate").code == 0
        assert phase(pinner, "validate").code == 0
        said = phase(pinner, "seal", "-o", "made.toml")
        assert (said.code, said.json["status"]) == (0, "sealed")
        lock = read_lock(pinner.path("made.toml"))
        assert (lock.run.sealed, lock.run.runs) == (True, 2)
        assert lock.run.command == tuple(DECIDING)
        assert pinner("enforce", "-l", "made.toml", "--verify", "--", *DECIDING).code == 0

    def test_one_validating_run_is_not_enough(self, pinner: Pinner) -> None:
        phase(pinner, "observe")
        phase(pinner, "validate")
        said = phase(pinner, "seal")
        assert (said.code, said.json["status"]) == (2, "too-few-runs")
        assert "expected at least 2 complete validating runs" in said.json["text"]

    def test_runs_that_differ_are_not_sealed(self, pinner: Pinner) -> None:
        phase(pinner, "observe", FAULT="racy")
        phase(pinner, "validate", "--run-name", "a", FAULT="racy")
        phase(pinner, "validate", "--run-name", "b", FAULT="racy")
        said = phase(pinner, "seal")
        assert (said.code, said.json["status"]) == (1, "differs")
        assert said.json["difference"]["runs"] == ["a", "b"]
        assert said.json["difference"]["stream"] == "out"

    def test_a_second_observed_run_is_refused_unless_fresh(self, pinner: Pinner) -> None:
        assert phase(pinner, "observe").code == 0
        said = phase(pinner, "observe")
        assert said.code == 64
        assert "--fresh" in said.last
        assert phase(pinner, "observe", "--fresh", TAKES="16").code == 0
        assert phase(pinner, "validate").code == 0
        lock = read_lock(pinner.path("shared/draft.lock.toml"))
        assert {entry.config["BLOCK"] for entry in lock.triton} == {16}

    def test_validating_runs_of_an_earlier_draft_do_not_count(self, pinner: Pinner) -> None:
        phase(pinner, "observe")
        for name in ("a", "b"):
            phase(pinner, "validate", "--run-name", name)
        phase(pinner, "observe", "--fresh", TAKES="16")
        phase(pinner, "validate", "--run-name", "c")
        said = phase(pinner, "seal")
        assert (said.code, said.json["status"]) == (2, "too-few-runs")
        assert "validate-a ran under another draft" in said.json["text"]

    def test_the_order_of_phases_is_told(self, pinner: Pinner) -> None:
        said = phase(pinner, "validate")
        assert (said.code, "expected a pinner run in shared/observe" in said.last) == (65, True)

    def test_a_failing_observed_run_is_not_validated(self, pinner: Pinner) -> None:
        argv = ["--phase", "observe", "--dir", "shared", "--", *python("plain.py")]
        assert pinner("record", *argv, FAULT="exit:9").code == 5
        said = phase(pinner, "validate")
        assert (said.code, "the command ended with 9" in said.json["text"]) == (5, True)

    def test_a_launcher_that_was_killed_is_named_by_the_next_phase(self, pinner: Pinner) -> None:
        code = "import pinner, time; pinner.fingerprint('a', 1); time.sleep(20)"
        argv = ["record", "--phase", "observe", "--dir", "shared", "--", sys.executable, "-c", code]
        process = subprocess.Popen(
            [sys.executable, "-m", "pinner", *argv],
            cwd=pinner.folder,
            env=pinner.environ(),
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        _wait_for_files(pinner.path("shared/observe/ledger"))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        said = phase(pinner, "validate")
        assert (said.code, said.json["status"]) == (3, "incomplete")
        assert f"(pid {process.pid} on " in said.json["text"]
        assert "started and never ended" in said.json["text"]

    def test_a_validating_run_that_was_killed_does_not_count(self, pinner: Pinner) -> None:
        phase(pinner, "observe")
        for name in ("a", "b", "c"):
            phase(pinner, "validate", "--run-name", name)
        (record,) = pinner.path("shared/validate-b/launchers").iterdir()
        record.write_text(record.read_text().replace('"code": 0', '"code": null'))
        said = phase(pinner, "seal")
        assert said.code == 0
        assert "validate-b is not complete and does not count" in said.err
        assert [run["name"] for run in said.json["runs"]] == ["a", "c"]


class TestOneLauncherForEachTask:
    def test_the_tasks_of_a_step_make_one_run(self, pinner: Pinner) -> None:
        assert srun(pinner, "observe", 0) == [0, 0]
        assert srun(pinner, "validate", 1) == [0, 0]
        assert srun(pinner, "validate", 2) == [0, 0]
        names = sorted(path.name for path in pinner.path("shared").glob("validate-*"))
        assert names == ["validate-71.1", "validate-71.2"]
        said = phase(pinner, "seal")
        assert said.code == 0, said.err
        lock = read_lock(pinner.path("pinner.lock.toml"))
        assert lock.run.world_size == 2
        assert [(s.name, s.rank) for s in lock.evidence.streams] == [("out", 0), ("out", 1)]

    def test_whoever_merges_the_draft_makes_the_same_bytes(self, pinner: Pinner) -> None:
        srun(pinner, "observe", 0)
        srun(pinner, "validate", 1)
        draft = pinner.path("shared/draft.lock.toml")
        before = draft.read_bytes()
        draft.unlink()
        srun(pinner, "validate", 2)
        assert draft.read_bytes() == before

    def test_a_task_that_never_started_is_named(self, pinner: Pinner) -> None:
        assert phase(pinner, "observe", **slurm(0, 0, tasks=3)).code == 0
        assert phase(pinner, "observe", **slurm(2, 0, tasks=3)).code == 0
        said = phase(pinner, "validate", **slurm(0, 1, tasks=3))
        assert (said.code, "task 1 of 3 never started" in said.json["text"]) == (3, True)

    def test_a_task_takes_part_once(self, pinner: Pinner) -> None:
        """The same step again, after the first one failed half way, would mix two runs."""
        assert srun(pinner, "observe", 0) == [0, 0]
        said = phase(pinner, "observe", **slurm(1, 0))
        assert said.code == 64
        assert "has taken part in run '71.0'" in said.last

    def test_all_tasks_may_ask_for_a_fresh_run(self, pinner: Pinner) -> None:
        """At once: one of them puts the old run aside, and nobody the new one."""
        assert srun(pinner, "observe", 0) == [0, 0]
        assert srun(pinner, "observe", 5, "--fresh") == [0, 0]
        assert pinner.path("shared/replaced-71.0").is_dir()
        assert srun(pinner, "validate", 6) == [0, 0]

    def test_tasks_without_a_common_name_need_one(self, pinner: Pinner) -> None:
        said = phase(pinner, "observe", RANK="0", WORLD_SIZE="2", TORCHELASTIC_RUN_ID="none")
        assert (said.code, "--run-name" in said.last) == (64, True)
        ranked = {"WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "job-5"}
        assert phase(pinner, "observe", RANK="0", **ranked).code == 0
        assert phase(pinner, "observe", RANK="1", **ranked).code == 0


def test_a_requeued_job_counts_its_steps_again_and_makes_new_runs() -> None:
    first = slurm(rank=0, step=0)
    assert run_name(None, first) == "71.0"
    assert run_name(None, {**first, "SLURM_RESTART_COUNT": "0"}) == "71.0"
    assert run_name(None, {**first, "SLURM_RESTART_COUNT": "2"}) == "71.0.restart2"


def test_launchers_race_for_the_folder_and_share_it(tmp_path: Path) -> None:
    """Twelve at once: one makes it, all have it, and nothing half made is ever seen."""
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from pinner.launch import session_dir\n"
        "settings = session_dir.Settings('observe', 'r', session_dir.now() + sys.argv[2])\n"
        "made = session_dir.join(Path(sys.argv[1]), settings, '{\"pins\": %s}' % sys.argv[2])\n"
        "assert made.ledger.is_dir() and made.pins.exists()\n"
        "print(made.settings.created, made.pins.read_text())\n"
    )
    where = str(tmp_path / "shared" / "observe")
    (tmp_path / "shared").mkdir()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, where, f" {number}"],
            env=Pinner(tmp_path).environ(),
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(12)
    ]
    said = {process.communicate()[0] for process in processes}
    assert [process.returncode for process in processes] == [0] * 12
    assert len(said) == 1
    assert [path.name for path in (tmp_path / "shared").iterdir()] == ["observe"]


def _wait_for_files(folder: Path) -> None:
    end = time.monotonic() + 20
    while not (folder.is_dir() and list(folder.iterdir())):
        assert time.monotonic() < end, f"nothing came to {folder}"
        time.sleep(0.05)
