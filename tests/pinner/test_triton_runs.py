"""Whole runs: recorded, sealed and enforced by the command line, in processes of their own."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from pinner.lockfile import codec
from tests import lanes

ROOT = Path(__file__).parents[2]
TUNED = [sys.executable, "-m", "tests.workloads.tuned_run"]


def pinner(folder, *arguments, **environment):
    """Run `pinner …` in `folder`; every process of it has an adverse timer."""
    env = dict(
        os.environ,
        PYTHONPATH=str(ROOT),
        OMP_NUM_THREADS="1",
        **{"TIMER": "shuffled", **environment},
    )
    command = [sys.executable, "-m", "pinner", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


def record(folder, name="pinner.lock.toml", command=TUNED, **environment):
    done = pinner(folder, "record", "-o", name, "--", *command, **environment)
    assert done.returncode == 0, done.stderr
    return folder / name


def enforce(folder, lock, *options, command=TUNED, **environment):
    """(the finished process, its report)."""
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    done = pinner(
        folder, "enforce", "-l", lock, "--report", report, *options, "--", *command, **environment
    )
    return done, json.loads(report.read_text()) if report.exists() else None


def configs(lock):
    """Key to config, as texts."""
    return {
        (e.kernel, json.dumps(e.key, sort_keys=True)): json.dumps(e.config, sort_keys=True)
        for e in codec.read_lock(lock).triton
    }


@pytest.fixture(scope="module")
def lock(tmp_path_factory):
    """A lock of the tuned run."""
    return record(tmp_path_factory.mktemp("lock"))


def with_block(lock, folder, block, kernel=":total"):
    """The lock with another block size for one kernel, by hand."""
    text = lock.read_text()
    at = text.index(f'{kernel}"')
    where = text.index("config = {", at)
    end = text.index("}", where)
    line = ", ".join(
        f"BLOCK = {block}" if part.strip().startswith("BLOCK") else part.strip()
        for part in text[where + len("config = {") : end].split(",")
    )
    edited = folder / "edited.lock.toml"
    edited.write_text(text[:where] + "config = { " + line + " }" + text[end + 1 :])
    return edited


def test_two_recordings_differ_and_one_lock_gives_one_digest(tmp_path):
    seed = random.randrange(2**31)
    print("seed", seed)
    first = record(tmp_path, "first.toml", TIMER="near_tie", TIMER_SEED=str(seed))
    for more in range(1, 12):  # two draws can agree; twelve do not
        second = record(tmp_path, "second.toml", TIMER="near_tie", TIMER_SEED=str(seed + more))
        if configs(first) != configs(second):
            break
    assert configs(first) != configs(second)
    assert pinner(tmp_path, "diff", first, second).returncode == 1
    for _ in range(lanes.fresh_processes()):
        done, report = enforce(tmp_path, first, "--verify", TIMER="near_tie")
        assert done.returncode == 0, done.stderr
        assert report["used"] == report["locked"] == 6


def test_a_recorded_lock_names_each_key_and_says_how_many_alternatives(lock):
    read = codec.read_lock(lock)
    assert read.run.sealed
    assert read.run.complete
    assert {e.kernel.rpartition(":")[2] for e in read.triton} == {
        "total",
        "several_keys",
        "omitted",
        "any_key",
    }
    assert {e.alternatives for e in read.triton} == {5}
    assert len(read.triton) == 6


@pytest.mark.parametrize(
    "environment",
    [
        {"ORDER": "reversed"},
        {"TIMER": "inverted"},
        {"IMPORT_FIRST": "torch._inductor.runtime.triton_heuristics"},
    ],
    ids=["another order", "inverted", "Inductor first"],
)
def test_the_same_choices_whatever_comes_first(lock, tmp_path, environment):
    cache = str(tmp_path / "another cache")
    done, report = enforce(tmp_path, lock, "--verify", TRITON_CACHE_DIR=cache, **environment)
    assert done.returncode == 0, done.stderr
    assert report["used"] == 6
    assert [report[name] for name in ("fallback", "missed", "invalid", "drifted")] == [0] * 4


def test_a_lock_edited_to_another_alternative_gives_other_bits(lock, tmp_path):
    codes = set()
    for block in (16, 256):
        edited = with_block(lock, tmp_path, block)
        done, report = enforce(tmp_path, edited, "--verify")
        assert report["used"] == 6
        codes.add(done.returncode)
        if done.returncode:
            assert "total" in done.stderr
    assert 1 in codes


@pytest.mark.parametrize(("ending", "code"), [("kill", 137), ("_exit", 0)])
def test_a_process_that_dies_still_contributes_what_it_decided(lock, tmp_path, ending, code):
    done, report = enforce(tmp_path, lock, EXIT=ending)
    assert done.returncode == code
    assert report["used"] == 6
    shared = tmp_path / "shared"
    pinner(tmp_path, "record", "--phase", "observe", "--dir", shared, "--", *TUNED, EXIT=ending)
    lines = [json.loads(t) for f in shared.rglob("*.jsonl") for t in f.read_text().splitlines()]
    assert len([line for line in lines if line["t"] == "choice"]) == 6


def test_a_racy_config_is_named_with_its_kernel_and_stream(tmp_path):
    for seed in range(6):  # which of the two configs wins is drawn
        environment = {"RACY": "16", "TIMER_SEED": str(seed)}
        done = pinner(tmp_path, "record", "-o", "racy.toml", "--", *TUNED, **environment)
        if done.returncode == 1:
            break
        assert done.returncode == 0, done.stderr
    assert done.returncode == 1
    assert "racy_kernel:racy" in done.stderr
    assert "BLOCK=16" in done.stderr
    assert "stream 'racy'" in done.stderr
    assert not codec.read_lock(
        tmp_path / "racy.toml.draft" if seed else tmp_path / "racy.toml"
    ).run.sealed


SWALLOWS = """
import os
os.environ["TRITON_INTERPRET"] = "1"
import torch
try:
    from tests.workloads import tuned_run
except Exception as error:
    print("swallowed", error)
"""


@pytest.mark.parametrize("swallowed", [False, True])
def test_a_config_that_is_gone_ends_the_run_or_breaks_the_pins(lock, tmp_path, swallowed):
    """It is refused as early as the import of the kernel's module."""
    edited = with_block(lock, tmp_path, 512)
    command = [sys.executable, "-c", SWALLOWS] if swallowed else TUNED
    done, report = enforce(tmp_path, edited, command=command)
    assert done.returncode == (97 if swallowed else 1), done.stderr
    assert report["invalid"] == 1
    assert report["used"] == 0
    assert "512" in done.stderr
    assert "nearest" in done.stderr


FINDER_IN_FRONT = """
import importlib.machinery, sys

class Front:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] == "triton":
            return importlib.machinery.PathFinder.find_spec(name, path, target)

sys.meta_path.insert(0, Front)
from tests.workloads import tuned_run
tuned_run.main()
"""


def test_a_finder_that_comes_before_pinners_is_no_way_round_it(lock, tmp_path):
    command = [sys.executable, "-c", FINDER_IN_FRONT]
    done, _ = enforce(tmp_path, lock, command=command)
    assert done.returncode == 96
    assert "imported past pinner" in done.stderr
    assert "Front" in done.stderr
    done = pinner(tmp_path, "record", "-o", "x.toml", "--", *command)
    assert done.returncode == 5
    assert "imported past pinner" in done.stderr


def test_misses_fall_back_or_are_errors(lock, tmp_path):
    environment = {"RACY": "99", "CATCH": "1"}
    done, report = enforce(tmp_path, lock, **environment)
    assert (done.returncode, report["fallback"], report["missed"]) == (0, 1, 0)
    done, report = enforce(tmp_path, lock, "--on-miss", "error", **environment)
    assert (done.returncode, report["fallback"], report["missed"]) == (97, 0, 1)


@pytest.mark.parametrize("start", ["spawn", "fork", *(["forkserver"] if lanes.soak() else [])])
def test_kernels_of_the_script_itself_in_children(tmp_path, start):
    script = ROOT / "tests" / "workloads" / "main_kernel.py"
    command = [sys.executable, str(script)]
    made = record(tmp_path, command=command, START=start)
    read = codec.read_lock(made)
    assert {e.kernel for e in read.triton} == {"__main__:own"}
    assert sorted(e.key["n"] for e in read.triton) == [896, 1024]
    done, report = enforce(tmp_path, made, "--verify", command=command, START=start)
    assert done.returncode == 0, done.stderr
    assert (report["used"], report["fallback"]) == (2, 0)


def test_two_ranks_that_disagree_are_resolved_and_listed(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--master-port", "0", "-m", "tests.workloads.tuned_run"]
    done = pinner(tmp_path, "record", "-o", "two.toml", "--", *command)
    assert done.returncode == 0, done.stderr
    read = codec.read_lock(tmp_path / "two.toml")
    assert read.run.world_size == 2
    assert read.run.conflicts > 0
    assert "rank" in done.stderr
    done, report = enforce(tmp_path, tmp_path / "two.toml", "--verify", command=command)
    assert done.returncode == 0, done.stderr
    assert report["used"] == report["locked"]


def test_third_party_kernels_are_recorded_and_repeated(tmp_path):
    pytest.importorskip("fla")
    command = [sys.executable, "-m", "tests.workloads.fla_run"]
    made = record(tmp_path, command=command)
    kernels = {e.kernel.rpartition(":")[2]: e for e in codec.read_lock(made).triton}
    assert kernels["layer_norm_fwd_kernel"].alternatives == 9
    assert kernels["chunk_local_cumsum_scalar_kernel"].alternatives == 4
    assert kernels["matmul_kernel"].alternatives > 4
    for timer in ("shuffled", "inverted"):
        done, report = enforce(tmp_path, made, "--verify", command=command, TIMER=timer)
        assert done.returncode == 0, done.stderr
        assert report["used"] == report["locked"]


def test_decisions_of_flas_own_cache_are_reported_as_not_enforceable(tmp_path):
    pytest.importorskip("fla")
    folder = tmp_path / "configs"
    folder.mkdir()
    kernel = "chunk_local_cumsum_scalar_kernel"
    chosen = {"kwargs": {}, "num_warps": 2, "num_stages": 3, "num_ctas": 1}
    (folder / f"{kernel}.json").write_text(json.dumps({"default_config": chosen}))
    command = [sys.executable, "-m", "tests.workloads.fla_run"]
    environment = {"FLA_CACHE_MODE": "always", "FLA_CONFIG_DIR": str(folder)}
    done = pinner(tmp_path, "record", "-o", "fla.toml", "--", *command, **environment)
    assert kernel in done.stderr
    assert "outside the tuner" in done.stderr
    read = codec.read_lock(tmp_path / "fla.toml")
    assert not read.run.complete
    assert kernel not in {e.kernel.rpartition(":")[2] for e in read.triton}


def test_another_fp_fusion_is_another_stack_and_where_allowed_drift(tmp_path):
    command = [sys.executable, "-m", "tests.workloads.compiled_run"]
    made = record(tmp_path, command=command, TRITON_INTERPRET="0")
    entries = codec.read_lock(made).triton
    assert all(entry.code and entry.options["enable_fp_fusion"] is True for entry in entries)
    fusion = {"TRITON_DEFAULT_FP_FUSION": "0", "TRITON_INTERPRET": "0"}
    done, _ = enforce(tmp_path, made, command=command, **fusion)
    assert done.returncode == 96
    assert "env:TRITON_DEFAULT_FP_FUSION" in done.stderr
    allow = ("--allow", "env:TRITON_DEFAULT_FP_FUSION")
    done, report = enforce(tmp_path, made, *allow, command=command, **fusion)
    assert done.returncode == 0, done.stderr
    assert (report["used"], report["drifted"]) == (2, 2)
    assert all("enable_fp_fusion" in e["text"] for e in report["entries"]["drifted"])
    done, _ = enforce(tmp_path, made, *allow, "--on-miss", "error", command=command, **fusion)
    assert done.returncode == 97
