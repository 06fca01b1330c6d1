"""Whole runs with Inductor's choices: recorded, enforced and compared by the command line."""

from __future__ import annotations

import json

import pytest

from pinner.lockfile import codec
from tests import command_rig
from tests.session_rig import SessionRig

LINEAR = command_rig.python("inductor_linear.py")
WORKER = """
import os
from torch._inductor import config
from torch._inductor.async_compile import AsyncCompile
from pinner.inside import ledger
config.compile_threads = 2
worker = AsyncCompile.process_pool().submit(os.getpid).result()
ledger.write({"t": "test", "note": worker != os.getpid()})
"""

# One process runs what a fixture here runs for many tests.
pytestmark = pytest.mark.xdist_group("inductor-runs")


@pytest.fixture(scope="module")
def pinner(tmp_path_factory):
    return command_rig.Pinner(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def lock(pinner):
    """A lock of a run that MKL's kernel won."""
    said = pinner("record", "-o", "extern.toml", "--", *LINEAR, TIMER="extern")
    assert said.code == 0, said.err
    return pinner.path("extern.toml")


@pytest.fixture(scope="module")
def other(pinner, lock):
    """The same lock, edited to the other choice."""
    text = lock.read_text()
    assert 'kernel = "_mkl_linear"' in text
    edited = text.replace('kernel = "_mkl_linear"', 'template = "cpp_CppMicroGemmFP32Vec"')
    edited = edited.replace('backend = "extern"', 'backend = "cpp"')
    path = pinner.path("cpp.toml")
    path.write_text(edited)
    codec.read_lock(path)
    return path


def enforce(pinner, lock, *options, **environment):
    report = pinner.path("report.json")
    report.unlink(missing_ok=True)
    cache = str(pinner.path("cache"))
    said = pinner(
        *("enforce", "-l", lock, "--verify", "--report", report, *options, "--", *LINEAR),
        **{"TORCHINDUCTOR_CACHE_DIR": cache, "TIMER": "generated", **environment},
    )
    return said, json.loads(report.read_text()) if report.exists() else None


def test_the_lock_holds_the_operation_and_its_choice(lock):
    (entry,) = codec.read_lock(lock).inductor
    assert entry.kernel == "gemm:packed_linear"
    assert entry.config == {"backend": "extern", "kernel": "_mkl_linear"}
    assert entry.alternatives == 2


def test_an_enforced_run_has_the_recorded_bits_and_times_nothing(pinner, lock):
    """Case P1 for Inductor's own choices: another cache folder, and Inductor imported first."""
    first = "torch._inductor.runtime.triton_heuristics"
    said, report = enforce(pinner, lock, IMPORT_FIRST=first)
    assert said.code == 0, said.err
    assert report["used"] == 1
    assert [report[name] for name in ("fallback", "missed", "invalid", "drifted")] == [0] * 4
    assert "inductor: 1 of 1 used" in said.text
    assert "step 1 timed 0" in said.out


def test_the_other_choice_has_other_bits(pinner, other):
    said, report = enforce(pinner, other)
    assert said.code == 1, said.err
    assert report["used"] == 1


def test_another_shape_is_a_counted_fallback(pinner, lock):
    _, report = enforce(pinner, lock, ROWS="48")
    assert (report["used"], report["unused"], report["fallback"]) == (0, 1, 1)


def test_a_choice_that_is_gone_breaks_the_run(pinner, lock):
    gone = pinner.path("gone.toml")
    gone.write_text(lock.read_text().replace("_mkl_linear", "_mkl_linear_v2"))
    said, report = enforce(pinner, gone)
    assert said.code == 1  # of the command itself: nothing it could compile
    assert report["invalid"] == 1
    assert "_mkl_linear_v2" in said.err


def test_diff_names_the_operation_and_both_choices(pinner, lock, other):
    """Case P17."""
    said = pinner("diff", lock, other)
    assert "gemm:packed_linear" in said.out
    assert "_mkl_linear" in said.out
    assert "cpp_CppMicroGemmFP32Vec" in said.out


def test_a_compile_worker_that_decides_nothing_has_no_ledger(tmp_path):
    rig = SessionRig(tmp_path / "session")
    done = rig.script(WORKER, RANK="0", WORLD_SIZE="1")
    assert done.returncode == 0, done.stderr
    assert rig.notes() == [[True]]
