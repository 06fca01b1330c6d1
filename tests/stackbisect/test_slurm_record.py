"""docs/record.sbatch under a real Slurm: a lock of a job whose ranks share nothing but a folder."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from pinner.lockfile.codec import read_lock
from pinner.lockfile.schema import Lock
from tests import lanes
from tests.command_rig import REPO, WORKLOADS
from tests.stackbisect.services import Slurm

pytestmark = [pytest.mark.service, pytest.mark.xdist_group("slurm")]

# Each rank prefers a config of its own, as autotuners on busy machines do.
RANK = f"""#!/bin/sh
export TAKES=$((16 << SLURM_PROCID))
if [ -e "$REQUEUE" ] && [ "$SLURM_STEP_ID" = 1 ] && rm "$REQUEUE" 2>/dev/null; then
    scontrol requeue $SLURM_JOB_ID
    sleep 60
fi
exec {sys.executable} {WORKLOADS / "deciding.py"}
"""


def test_the_sbatch_script_seals_a_lock_that_later_jobs_enforce(
    slurm: Slurm, tmp_path: Path
) -> None:
    rank = tmp_path / "rank.sh"
    rank.write_text(RANK)
    rank.chmod(rank.stat().st_mode | stat.S_IXUSR)
    shared, lock = tmp_path / "shared", tmp_path / "pinner.lock.toml"
    script = [str(REPO / "docs" / "record.sbatch"), str(shared), str(lock), "--", str(rank)]
    said = _job(slurm, tmp_path, *script)
    assert lock.exists(), said
    text = lock.read_bytes()
    found = read_lock(lock)
    assert (found.run.sealed, found.run.world_size, found.run.runs) == (True, 2, 2)
    assert found.run.conflicts == 2
    assert {entry.config["BLOCK"] for entry in found.triton} == {32}  # the fastest, by worst time
    assert "the processes took 2 different configs; settled by fastest" in lock.read_text()

    if lanes.soak():
        _again(slurm, tmp_path, script, found)
    lock.write_bytes(text)

    enforce = f"{sys.executable} -m pinner enforce -l {lock} --report {tmp_path}/$SLURM_PROCID.json"
    said = _job(slurm, tmp_path, f"--wrap=srun sh -c '{enforce} -- {rank}'")
    for number in range(2):
        report = json.loads((tmp_path / f"{number}.json").read_text())
        assert (report["used"], report["fallback"], report["invalid"]) == (2, 0, 0), said
    assert lock.read_bytes() == text


def _again(slurm: Slurm, folder: Path, script: list[str], before: Lock) -> None:
    """Another job, which Slurm requeues while it validates: no ledger stands beside older ones."""
    (folder / "requeue").touch()
    said = _job(slurm, folder, *script)
    runs = sorted(path for path in (folder / "shared").iterdir() if path.is_dir())
    names = [path.name.split("-")[0] for path in runs]
    assert names == ["observe", "replaced", "replaced", *["validate"] * 5], said
    assert sum("restart1" in path.name for path in runs) == 2
    whole = [path for path in runs if _ranks(path) == [0, 1]]
    assert len(whole) >= 7
    assert all(set(_ranks(path)) <= {0, 1} for path in runs)
    assert len(_ranks(folder / "shared" / "observe")) == 2
    lock = read_lock(folder / "pinner.lock.toml")
    assert (lock.triton, lock.evidence) == (before.triton, before.evidence)


def _job(slurm: Slurm, folder: Path, *words: str) -> str:
    """What a job of two nodes said; it is over when this returns."""
    environ = {
        **os.environ,
        **slurm.environ,
        "PYTHONPATH": str(REPO),
        "PINNER": f"{sys.executable} -m pinner",
        "REQUEUE": str(folder / "requeue"),
    }
    log = folder / "job.log"
    wanted = ["--wait", "--nodes=2", "--ntasks=2", f"--chdir={folder}", f"--output={log}"]
    done = subprocess.run(
        ["sbatch", *wanted, *words], env=environ, capture_output=True, text=True, timeout=120
    )
    said = done.stdout + done.stderr + (log.read_text() if log.exists() else "")
    assert done.returncode == 0, said
    return said


def _ranks(session: Path) -> list[int]:
    """The ranks of one run, each with a ledger of its own."""
    files = (session / "ledger").glob("*.jsonl")
    return sorted(json.loads(path.read_text().splitlines()[0])["rank"] for path in files)
