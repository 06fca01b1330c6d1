"""The Triton chooser on a real device. Run by scripts/gpu_check.sh."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pinner.lockfile import codec

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
TUNED = [sys.executable, "-m", "tests.workloads.tuned_run"]


def run(folder, *command, **environment):
    env = dict(os.environ, PYTHONPATH=str(ROOT), DEVICE="cuda", **environment)
    env.pop("TRITON_INTERPRET", None)
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


def pinner(folder, *arguments, **environment):
    return run(folder, sys.executable, "-m", "pinner", *map(str, arguments), **environment)


def probe(folder, *arguments, **environment):
    """What `device_probe` printed, as JSON."""
    done = run(
        folder, sys.executable, "-m", "tests.gpu.device_probe", *map(str, arguments), **environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def lock(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lock")
    done = pinner(folder, "record", "-o", "gpu.toml", "--", *TUNED, TIMER="shuffled")
    assert done.returncode == 0, done.stderr
    return folder / "gpu.toml"


def test_record_seals_with_machine_code_and_device_facts(lock):
    read = codec.read_lock(lock)
    assert read.run.sealed
    assert all(code.startswith("sha256:") for e in read.triton for code in e.code)
    assert all(e.code for e in read.triton)
    assert any(name.startswith("gpu") for name in read.stack.hard)


def test_shuffled_timings_flip_an_unpinned_run_and_no_enforced_one(lock, tmp_path):
    unpinned = {probe(tmp_path, "digest", TIMER_SEED=str(seed))["digest"] for seed in range(6)}
    assert len(unpinned) >= 2
    for timer in ("shuffled", "inverted", ""):
        report = tmp_path / "report.json"
        done = pinner(
            tmp_path,
            "enforce",
            "-l",
            lock,
            "--verify",
            "--report",
            report,
            "--",
            *TUNED,
            TIMER=timer,
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(report.read_text())
        assert found["used"] == found["locked"]
        assert found["drifted"] == 0


def test_every_alternative_can_be_forced(tmp_path):
    result = probe(tmp_path, "bijection")
    assert result["benchmarks"] == 0
    assert result["forced"] == result["direct"]
    assert len(set(result["direct"])) > 1


def test_a_forced_first_call_can_be_captured_in_a_cuda_graph(tmp_path):
    result = probe(tmp_path, "graph")
    assert result["replayed"] == result["direct"]


def test_another_fp_fusion_is_drift(lock, tmp_path):
    done = pinner(
        tmp_path,
        "enforce",
        "-l",
        lock,
        "--allow",
        "env:TRITON_DEFAULT_FP_FUSION",
        "--report",
        tmp_path / "report.json",
        "--",
        *TUNED,
        TRITON_DEFAULT_FP_FUSION="0",
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["drifted"] > 0
    assert "enable_fp_fusion" in json.dumps(report)
