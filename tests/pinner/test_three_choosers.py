"""One workload, three choosers, one lock: whatever the timers say and the heuristic answers, runs
under it leave the same bits."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from pinner.inside.choosers.cublaslt import build
from pinner.lockfile.codec import read_lock
from tests import lanes
from tests.command_rig import REPO, Pinner
from tests.fakes.cublaslt_stand_in import built

pytestmark = pytest.mark.xdist_group("inductor")

RUN = [sys.executable, "-m", "tests.workloads.three_choosers"]
CHOOSERS = ("triton", "inductor", "cublaslt")


def adverse(draw: random.Random, timer: str) -> dict[str, str]:
    """An environment in which each chooser would take what the draw says."""
    fakes = built()
    return {
        "CUBLASLT_FAKES": str(fakes),
        build.PREBUILT: str(fakes / "interpose.so"),
        "FAKE_CUBLASLT": f"pick={draw.randrange(4)},shuffle",
        "TIMER": timer,
        "TIMER_SEED": str(draw.randrange(2**32)),
        "PYTHONPATH": str(REPO),
    }


def printed(out: str) -> dict[str, str]:
    """What a run printed last: a digest for each chooser."""
    return json.loads(out.splitlines()[-1])


def test_one_lock_holds_three_choosers_against_adverse_timings(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    draw = random.Random(seed)
    pinner = Pinner(tmp_path)

    said = pinner("record", "--cublaslt", "on", "--", *RUN, **adverse(draw, "shuffled"))
    assert said.code == 0, said.err
    lock = read_lock(tmp_path / "pinner.lock.toml")
    assert (lock.run.sealed, lock.run.complete) == (True, True)
    assert all(getattr(lock, chooser) for chooser in CHOOSERS)

    enforced = []
    for timer in ("shuffled", "inverted"):
        words = ("enforce", "--cublaslt", "on", "--verify", "--report", "report.json", "--", *RUN)
        said = pinner(*words, **adverse(draw, timer))
        assert said.code == 0, said.err
        report = json.loads((tmp_path / "report.json").read_text())
        assert report["used"] == report["locked"] == len(lock.entries)
        enforced.append(printed(said.out))
    assert enforced[0] == enforced[1]

    if not lanes.soak():  # tests of each chooser show that unpinned runs flip
        return
    unpinned = [enforced[0]]
    for number in range(12):
        # Timings that were kept by an earlier run would decide again.
        fresh = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / f"cache{number}")}
        environ = pinner.environ(**adverse(draw, ("inverted", "shuffled")[number % 2]), **fresh)
        done = subprocess.run(RUN, cwd=tmp_path, env=environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        unpinned.append(printed(done.stdout))
        flipped = [c for c in CHOOSERS if len({each[c] for each in unpinned}) > 1]
        if len(flipped) == len(CHOOSERS):
            return
    pytest.fail(f"only {flipped} gave other bits without a lock: {unpinned}")
