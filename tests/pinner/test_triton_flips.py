"""Timing moves the bits of an unpinned run and never those of an enforced one.

Our kernels, one for each kind of key, and kernels nobody here wrote (fla-core), unmodified.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests import lanes
from tests import triton_rig as rig

ROOT = Path(__file__).parents[2]
FORKING = ROOT / "tests" / "workloads" / "forking.py"


def forks(what, mode, timer, count, seed, *pins):
    environment = dict(os.environ, PYTHONPATH=str(ROOT), TRITON_INTERPRET="1", OMP_NUM_THREADS="1")
    arguments = [what, mode, timer, str(count), str(seed), *map(str, pins)]
    done = subprocess.run(
        [sys.executable, str(FORKING), *arguments], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module", params=["ours", "fla"])
def recorded(request, tmp_path_factory):
    """One observed run, and its pins."""
    if request.param == "fla":
        pytest.importorskip("fla")
    seed = random.randrange(2**32)
    print("seed", seed)
    (run,) = forks(request.param, "observe", "shuffled", 1, seed)
    path = tmp_path_factory.mktemp("pins") / "pins.json"
    path.write_text(json.dumps(rig.pins_of(run["lines"])))
    return request.param, path, run


def test_shuffled_timings_flip_an_unpinned_run():
    seed = random.randrange(2**32)
    print("seed", seed)
    for what in ("ours", "fla"):
        runs = forks(what, "plain", "shuffled", 10, seed)
        assert len({run["digest"] for run in runs}) >= 2, what


def test_observing_sees_every_kernel(recorded):
    what, _, run = recorded
    kernels = {line["kernel"] for line in run["lines"] if line["t"] == "choice"}
    if what == "fla":
        names = {name.rpartition(":")[2] for name in kernels}
        assert {"layer_norm_fwd_kernel", "layer_norm_bwd_kernel", "matmul_kernel"} <= names
        counts = {
            line["kernel"].rpartition(":")[2]: line["alternatives"]
            for line in run["lines"]
            if line["t"] == "choice"
        }
        assert counts["layer_norm_fwd_kernel"] == 9
        assert counts["chunk_local_cumsum_scalar_kernel"] == 4
    else:
        assert len([line for line in run["lines"] if line["t"] == "choice"]) == 9


@pytest.mark.soak
@pytest.mark.parametrize(
    "timer", ["shuffled", "inverted", "near_tie"] if lanes.soak() else ["in turn"]
)
def test_enforced_runs_give_one_digest_whatever_is_timed(recorded, timer):
    what, pins, run = recorded
    seed = random.randrange(2**32)
    print("seed", seed)
    count = lanes.forks() + (10 if timer == "in turn" else 0)
    runs = forks(what, "enforce", timer, count, seed, pins)
    assert {r["digest"] for r in runs} == {run["digest"]}
    assert sum(r["benchmarks"] for r in runs) == 0
    hows = {line["how"] for r in runs for line in r["lines"] if line["t"] == "choice"}
    assert hows == {"forced"}


def test_every_alternative_of_a_third_party_kernel_can_be_forced(tmp_path):
    pytest.importorskip("fla")
    (run,) = forks("fla", "observe", "shuffled", 1, 1)
    (choice,) = [
        line for line in run["lines"] if line["t"] == "choice" and "matmul" in line["kernel"]
    ]
    edited = []
    for number, (config, _) in enumerate(choice["timings"]):
        pins = rig.pins_of(run["lines"])
        for entry in pins[choice["kernel"]]["entries"]:
            entry["config"] = config
        edited.append(tmp_path / f"{number}.json")
        edited[-1].write_text(json.dumps(pins))
    runs = forks("fla", "enforce", "shuffled", 2 * len(edited), 1, *edited)
    digests = [run["digest"] for run in runs]
    assert digests[: len(edited)] == digests[len(edited) :]
    assert len(set(digests)) > 1
    assert sum(run["benchmarks"] for run in runs) == 0
    for number, run in enumerate(runs):
        (forced,) = [c for c in run["lines"] if c.get("kernel") == choice["kernel"]]
        assert forced["config"] == choice["timings"][number % len(edited)][0]
