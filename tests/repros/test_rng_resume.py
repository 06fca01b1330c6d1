"""Random streams that a checkpoint leaves out: each moves bits, and all of them are named."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from stackbisect.repro import form
from tests.command_rig import Pinner
from tests.repro_rig import REPROS, copied, module, shown, words

NAME = "rng_resume"
FORM = form.read(REPROS / NAME)
RANK = "pinner: rank 0: "
LACKING = {
    "Python's random state",
    "NumPy's random state",
    "generator of DataLoader 0",
    "position of DataLoader 0",
    "generators in Sequential 0",
    "random streams of the program",
}


@pytest.fixture
def repro() -> Iterator[Any]:
    """The repro, which seeds what the whole process draws from."""
    states = random.getstate(), torch.get_rng_state()
    yield module(NAME)
    random.setstate(states[0])
    torch.set_rng_state(states[1])


def resumed(repro: Any, names: set[str]) -> list[str]:
    """The parameters at the end of a run that was resumed with these streams."""
    run = repro.Run()
    run.train(repro.STOP)
    checkpoint = run.save(names)
    run = repro.Run()
    run.restore(checkpoint)
    run.train(repro.STEPS)
    return [repro.digest(each.detach()) for each in run.model.parameters()]


def test_each_stream_that_is_left_out_changes_bits(repro: Any) -> None:
    run = repro.Run()
    run.train(repro.STEPS)
    never = [repro.digest(each.detach()) for each in run.model.parameters()]
    names = set(run.streams())
    assert resumed(repro, names) == never
    assert {name for name in names if resumed(repro, names - {name}) != never} == names


def test_the_fixed_stack_has_the_good_ones_bits_and_the_bad_one_others(
    repro: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {}
    for stack in FORM.stacks:
        monkeypatch.setenv("RESUME", stack.environment["RESUME"])
        found[stack.name] = {name: repro.digest(each) for name, each in repro.outputs().items()}
    assert found["fixed"] == found["good"]
    assert all(found["bad"][name] != found["good"][name] for name in found["good"])


def test_verify_names_every_stream_that_is_lacking(tmp_path: Path) -> None:
    first, *rest = words(FORM.diagnose)
    said = Pinner(copied(NAME, tmp_path))(first, "--json", *rest)
    assert said.code == 1, said.err
    lacks = {lack["name"]: lack["leaves"] for lack in said.json["lacks"]}
    assert lacks.keys() == LACKING  # torch's own is restored, and not among them
    assert lacks["random streams of the program"] == ["smoothing"]
    assert {each["step"] for each in said.json["differences"]} == {6}
    assert shown(NAME, RANK) == [line for line in said.err.splitlines() if line.startswith(RANK)]


def test_the_fix_resumes_bit_for_bit(tmp_path: Path) -> None:
    assert FORM.fix is not None
    said = Pinner(copied(NAME, tmp_path))(*words(FORM.fix.command))
    assert said.code == 0, said.err
    assert "resumed from checkpoint 1 bit for bit" in said.last
