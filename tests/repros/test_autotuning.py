"""Another config wins the timing: told by an audit, and gone once the choice is forced."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from stackbisect.repro import form
from tests import lanes
from tests.command_rig import Pinner
from tests.repro_rig import REPROS, copied, module, programs, words

NAME = "autotuning"
FORM = form.read(REPROS / NAME)
CONFIGS = 4


def digests(repro: Any) -> tuple[str, ...]:
    return tuple(repro.digest(tensor) for tensor in repro.outputs().values())


def test_each_config_that_is_fastest_is_picked_and_has_bits_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = {}
    for number in range(CONFIGS):
        monkeypatch.setenv("FASTEST", str(number))
        repro = module(NAME)
        seen[number] = digests(repro)
        assert repro.product.best_config is repro.CONFIGS[number]
    assert len(set(seen.values())) == CONFIGS
    monkeypatch.delenv("FASTEST")
    assert digests(module(NAME)) in seen.values()  # timed for real: one of these, whichever


def test_the_audit_names_the_kernel_and_the_two_that_were_fastest(tmp_path: Path) -> None:
    said = Pinner(copied(NAME, tmp_path))(*with_json(FORM.diagnose))
    assert said.code == 0, said.err
    (choice,) = said.json["audit"]["by_timing"]
    assert choice["kernel"].endswith(":product")
    assert choice["race"]["best"] != choice["race"]["second"]


def with_json(command: tuple[str, ...]) -> list[str]:
    first, *rest = words(command)
    return [first, "--json", *rest]


def test_the_fix_leaves_one_digest_whatever_is_timed_fastest(tmp_path: Path) -> None:
    """The short form times the two ends fastest: the lock's config cannot be both."""
    assert FORM.fix is not None
    program, script = FORM.fix.command
    fastest = [] if lanes.soak() else ["0", str(CONFIGS - 1)]
    path = f"{programs(tmp_path / 'bin')}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [str(shutil.which(program)), script, *fastest],
        cwd=copied(NAME, tmp_path),
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    _, *enforced = done.stdout.split("the config that is timed fastest: ")
    assert len(enforced) == len(fastest or range(CONFIGS))
    assert len({str(form.printed(each)) for each in enforced}) == 1
    assert len(re.findall(r"verified 2 of 2 steps", done.stderr)) == len(enforced)
