"""An update of numpy that changes a product: bisected with its own wheels, and held off.

Which bits change depends on the processor. What is right is found by running each version without
stackbisect, in the environments that it made.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stackbisect.repro import form
from tests import lanes
from tests.repro_rig import REPROS, copied, programs
from tests.stackbisect.program import Ended, Program

NAME = "library_update"
FORM = form.read(REPROS / NAME)
FOUND, SAME, ENDS, INFRASTRUCTURE = 0, 1, 4, 5
VERSIONS = [FORM.stack(name).versions["numpy"] for name in ("good", "bad")]
STAND_IN = """
import hashlib, sys, types
def show(name, value): print(name, hashlib.sha256(value.tobytes()).hexdigest())
sys.modules["pinner"] = types.SimpleNamespace(fingerprint=show)
exec(open("train.py").read())
"""
ONE = FORM.stack("fixed-after").environment


def bisected(folder: Path, *command: str) -> Ended:
    """Run a command of ours on the wheels of the index; a skip where they cannot be had."""
    _, first, *rest = command
    ended = Program(folder, own_session=True)(first, "--json", *rest)
    unavailable = ended.code in (ENDS, INFRASTRUCTURE) and "pip" in ended.err
    lanes.require(not unavailable, f"numpy {VERSIONS} cannot be had: {ended.err[-300:]}")
    return ended


def run(folder: Path, version: str, *argv: str, **environ: str) -> str:
    """The output of a program in the environment that a bisection made for one version."""
    (python,) = folder.glob(f".stackbisect/numpy-*/envs/numpy-{version}-[0-9a-f]*/bin/python")
    environ = {**os.environ, **environ}
    words = [str(python), *argv]
    done = subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.service
def test_the_update_is_found_and_one_thread_gives_both_versions_the_same_bits(
    tmp_path: Path,
) -> None:
    folder = copied(NAME, tmp_path)
    ended = bisected(folder, *FORM.diagnose)
    good, bad = (run(folder, version, "-c", STAND_IN) for version in VERSIONS)
    if good == bad:  # one core, or a processor for which OpenBLAS has no such kernels
        assert (ended.code, ended.report["status"]) == (SAME, "not_reproduced"), ended.err
    else:
        assert ended.code == FOUND, ended.err
        (culprit,) = ended.report["culprits"]
        (component,) = culprit["components"]
        found = [component[name] for name in ("kind", "name", "good", "bad")]
        assert found == ["distribution", "numpy", *VERSIONS]
        libraries = ended.report["difference"]["libraries"]
        assert any("openblas" in name for name in libraries)
    printed = [run(folder, version, "repro.py") for version in VERSIONS]
    alone = [run(folder, version, "repro.py", **ONE) for version in VERSIONS]
    assert "note: with one thread" in alone[0]
    assert "OPENBLAS 0.3.2" in printed[0].upper()
    digests = [form.printed(text) for text in (*printed, *alone)]
    assert digests[0].keys() == {"float32", "float64"}
    assert digests[2] == digests[3]
    print(f"numpy's bits {'differ' if digests[0] != digests[1] else 'are equal'} here")


@pytest.mark.service
@lanes.long_form
def test_the_fix_leaves_nothing_to_find(tmp_path: Path) -> None:
    assert FORM.fix is not None
    folder = copied(NAME, tmp_path)
    path = f"{programs(tmp_path / 'programs')}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path}
    done = subprocess.run(
        FORM.fix.command, cwd=folder, env=environ, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert "bisection one-thread: not reproduced" in done.stdout


@pytest.mark.skipif(not lanes.has_avx2(), reason="needs a CPU with AVX2")
@lanes.long_form
def test_the_same_with_torch_and_a_variable(tmp_path: Path) -> None:
    folder = copied(NAME, tmp_path)
    ends = ("--env-good", "ATEN_CPU_CAPABILITY=avx2", "--env-bad", "ATEN_CPU_CAPABILITY=default")
    command = ("stackbisect", "run", *ends, "--", sys.executable, "train_torch.py")
    ended = bisected(folder, *command)
    assert ended.code == FOUND, ended.err
    (culprit,) = ended.report["culprits"]
    assert [each["name"] for each in culprit["components"]] == ["ATEN_CPU_CAPABILITY"]
