"""A selection culprit between two container images: real Triton, real daemon, both transfers.

The images hold nothing but the workload; Python with Triton is the host's own, mounted read-only.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from pinner.lockfile.codec import read_lock
from tests.stackbisect import images
from tests.stackbisect.conftest import RepositoryFactory
from tests.stackbisect.program import Program

pytestmark = [pytest.mark.service, pytest.mark.xdist_group("docker")]

WORKLOAD = Path(__file__).parents[1] / "workloads" / "choosing.py"


@pytest.fixture
def program(tmp_path: Path, docker_host: str, interrupts: None) -> Program:
    """The program, with a daemon."""
    return Program(tmp_path)


def test_a_transplant_brings_the_bits_back(
    program: Program, new_repository: RepositoryFactory
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    good, bad = rng.sample(("16", "32", "64"), 2)
    repository = new_repository()
    for tag, prefers in (("1.0", good), ("1.1", bad)):
        work = images.files({"train.py": WORKLOAD.read_text(), "etc/version": tag})
        repository.push(tag, images.Image([work], env={"PREFERS": prefers}))
    mounts = [
        word
        for place in dict.fromkeys((sys.prefix, sys.base_prefix))
        for word in ("--mount", f"type=bind,source={place},target={place},readonly")
    ]
    transfer = rng.choice(("bind", "copy"))
    done = program(
        *("run", "--json", "--name", "tune", "--image", repository.reference),
        *("--good", "1.0", "--bad", "1.1", "--transfer", transfer, *mounts),
        *("--", sys.executable, "/train.py"),
    )
    assert done.code == 0, done.err
    found = done.report
    assert [each["kind"] for each in found["culprits"]] == ["selection"], found["choices"]
    chosen = found["choices"]
    assert (chosen["status"], chosen["applied"], chosen["of"]) == ("selection", 2, 2)
    assert f"    BLOCK {good} → {bad}" in chosen["diff"]
    assert [part["kind"] for part in found["culprits"][0]["components"]] == ["selection"] * 2
    assert found["culprits"][0]["without"]["verdict"] == "good"
    assert found["culprits"][0]["alone"]["verdict"] == "bad"
    lock = read_lock(program.folder / ".stackbisect" / "tune" / chosen["lock"])
    assert (lock.run.sealed, {str(e.config["BLOCK"]) for e in lock.triton}) == (True, {good})
