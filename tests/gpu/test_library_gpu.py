"""Inductor and cuBLASLt on a real device, under one lock with Triton; for scripts/gpu_check.sh."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pinner.inside.choosers.cublaslt import layout
from pinner.inside.values import canonical
from pinner.lockfile import codec
from tests.gpu.test_triton_gpu import pinner, sys

pytestmark = pytest.mark.gpu

RUN = [sys.executable, "-m", "tests.workloads.library_run"]
# What was asked besides the product itself: memory and alignment.
ASKED = {field[0] for field in layout.QUESTION}


def record(folder, name, *options, **environment):
    """A sealed lock of the run, read."""
    done = pinner(folder, "record", "-o", name, *options, "--", *RUN, **environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return codec.read_lock(folder / name)


def enforce(folder, name, **environment):
    """The report of an enforced run whose evidence was compared with the lock's."""
    report = folder / "report.json"
    options = ("-l", folder / name, "--verify", "--report", report)
    done = pinner(folder, "enforce", *options, "--", *RUN, **environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(report.read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("library")


@pytest.fixture(scope="module")
def lock(folder):
    return record(folder, "all.toml", "--runs", "5", TIMER="shuffled", BENCHMARK="random")


def test_five_fresh_processes_agree_under_one_lock_of_three_choosers(lock):
    assert lock.run.runs == 5
    assert lock.triton
    assert lock.inductor
    assert lock.cublaslt
    assert {entry.kernel.partition(":")[0] for entry in lock.inductor} >= {"gemm", "triton"}


def test_corrupted_timings_move_no_enforced_choice(folder, lock):
    for distortion in ("random", "inverse"):
        found = enforce(folder, "all.toml", BENCHMARK=distortion, TIMER="inverted")
        assert (found["missed"], found["invalid"], found["fallback"]) == (0, 0, 0)
        assert found["used"] == found["locked"]


def other_pick(folder, plain):
    """A lock in which the heuristic was made to answer otherwise, and its name."""
    ways = {
        "workspace.toml": {"CUBLASLT_WORKSPACE_SIZE": "0", "CUBLAS_WORKSPACE_CONFIG": ":16:8"},
        "alignment.toml": {"OFFSET": "1"},
    }
    for name, environment in ways.items():
        found = record(folder, name, PARTS="eager", **environment)
        moved = transplanted(plain, found)
        if moved is not None:
            return moved, environment
    return pytest.skip(
        "the heuristic of this cuBLASLt answers alike for less workspace and alignment"
    )


def transplanted(plain, other):
    """`plain` with the algorithms of `other` for the same products; None where they are equal."""
    theirs = {product(entry): entry.config for entry in other.cublaslt}
    entries = tuple(
        replace(entry, config=theirs.get(product(entry), entry.config)) for entry in plain.cublaslt
    )
    changed = [a for a, b in zip(entries, plain.cublaslt, strict=True) if a.config != b.config]
    return replace(plain, cublaslt=entries) if changed else None


def product(entry):
    """The product alone, without what memory and alignment were offered for it."""
    return canonical({name: value for name, value in entry.key.items() if name not in ASKED})


def test_another_pick_of_the_heuristic_is_forced_where_it_would_not_be_taken(folder):
    plain = record(folder, "eager.toml", PARTS="eager")
    moved, environment = other_pick(folder, plain)
    codec.write_lock(folder / "moved.toml", moved)
    seen = [forced(folder, "moved.toml") for _ in range(2)]
    assert seen[0] == seen[1]
    assert seen[0] != forced(folder, "eager.toml"), f"{environment} moved a pick, but no bit"


def forced(folder, name):
    """The digest that a run under a lock printed; nothing of the lock may be left out."""
    report = folder / "report.json"
    options = ("-l", folder / name, "--report", report)
    done = pinner(folder, "enforce", *options, "--", *RUN, PARTS="eager")
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(report.read_text())
    assert (found["used"], found["invalid"]) == (found["locked"], 0)
    return done.stdout.split()[-1]
