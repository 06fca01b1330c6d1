"""`stackbisect extract` as people call it; what captures and shrinks is given here."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from stackbisect import cli, progress
from stackbisect.errors import UsageError
from stackbisect.probe import InfrastructureError
from stackbisect.repro import commands, form
from stackbisect.repro.commands import Budget, Parts
from stackbisect.repro.extract import Case, NoCase, Smaller
from stackbisect.repro.locate import Site
from stackbisect.repro.stacks import Stack
from tests import lanes

SOFTMAX = b"""
import hashlib

import torch


def outputs():
    x = (torch.arange(24) * 37 % 101).reshape(2, 12) / 101
    return {"out": torch.ops.aten._softmax.default(x, 1, False)}


if __name__ == "__main__":
    for name, value in outputs().items():
        about = f"{value.dtype} {list(value.shape)} ".encode()
        data = value.contiguous().numpy().tobytes()
        print("digest", name, "sha256:" + hashlib.sha256(about + data).hexdigest())
"""
TRAIN = """
import torch

torch.set_num_threads(1)
x = (torch.arange(48 * 96) * 37 % 101).reshape(48, 96) / 101
h = torch.relu(x) + x
h = h - h.amax(dim=1, keepdim=True)
h = torch.clamp(h, -4, 4).abs() + 1
h = torch.flip(torch.sqrt(h), (0,)).cumsum(0)
p = torch.softmax(h, dim=1)
print(-(p.log() * p).sum(dim=1).mean())
"""


@dataclass(frozen=True)
class Softmax:
    """A call of softmax, as it could have been captured."""

    kind: str = "aten"
    operation: str = "aten._softmax.default"
    needs: Sequence[str] = ("torch",)
    gpu: bool = False
    elements: int = 24
    notes: Sequence[str] = ()

    def files(self) -> Mapping[str, bytes]:
        return {form.SCRIPT: SOFTMAX}


@dataclass
class Given:
    """Parts that remember what they were asked."""

    case: Case | NoCase
    sites: list[Site] = field(default_factory=list)
    budgets: list[Budget] = field(default_factory=list)

    def capture(self, stack: Stack, argv: Sequence[str], site: Site, *_: Any, **__: Any) -> Any:
        self.sites.append(site)
        return self.case

    def shrink(self, budget: Budget) -> Any:
        self.budgets.append(budget)
        return lambda case, good, bad, **_: Smaller(case, 0, 1)


@contextlib.contextmanager
def nothing() -> Iterator[None]:
    yield


def extract(folder: Path, given: Given, *words: str) -> tuple[int, str, str]:
    """The command's exit code, its output and what it says meanwhile."""
    own, command = cli._split(words)
    parser = argparse.ArgumentParser()
    rooms = parser.add_subparsers()
    add = lambda name, function, about: cli._command(rooms, name, function, about)
    commands.register(add, Parts(given.capture, given.shrink), nothing)
    arguments = parser.parse_args(["extract", *own])
    arguments.command = command
    out, err = StringIO(), StringIO()
    world = cli.World(os.environ, folder, out.write, err.write, progress.Plain(err))
    return arguments.function(arguments, world), out.getvalue(), err.getvalue()


@lanes.long_form
@pytest.mark.skipif(not lanes.has_avx2(), reason="needs a CPU with AVX2")
def test_a_torch_script_between_two_vector_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(TRAIN)
    python = Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{python}{os.pathsep}{os.environ['PATH']}")
    given = Given(Softmax())
    code, out, err = extract(
        tmp_path,
        given,
        *("--env-good", "ATEN_CPU_CAPABILITY=avx2", "--env-bad", "ATEN_CPU_CAPABILITY=default"),
        *("-o", "softmax", "--no-shrink", "--runs", "2", "--json", "--", "python", "train.py"),
    )
    assert code == 0, out + err
    assert [(site.kind, site.name, site.nth) for site in given.sites] == [
        ("op", "aten._softmax.default", 0)
    ]
    assert given.budgets == []
    found = form.read(tmp_path / "softmax")
    assert found.stack("bad").environment == {"ATEN_CPU_CAPABILITY": "default"}
    assert found.difference is not None
    assert found.difference.elements > 0
    assert found.difference.ulp in range(1, 9)
    assert json.loads(out)["digests"]["bad"] == dict(found.stack("bad").digests)
    assert "the repro in the bad stack, 2 of 2" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "found none of them"),
        (["one", "--good-python", "a"], "found one and --good-python and --bad-python"),
        (["--good-python", "a", "--", "x"], "found one of them alone"),
        (["--good-image", "a:1", "--bad-image", "b:1"], "the command that shows the difference"),
        (["--env-good", "A=1", "--env-bad", "A=1", "--", "x"], "found the same variables"),
        (["--env-good", "A=1", "--runs", "1", "--", "x"], "--runs: expected 2 or more"),
        (["--env-good", "A=1", "--budget", "soon", "--", "x"], "--budget: expected"),
        (["--good-image", "a@sha256:1", "--bad-image", "b", "--", "x"], "expected HOST/NAME:TAG"),
    ],
)
def test_what_cannot_be_meant_is_said(words: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as found:
        extract(tmp_path, Given(NoCase("never")), *words)
    assert said in str(found.value)


def test_a_bisection_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises((UsageError, InfrastructureError), match="one"):
        extract(tmp_path, Given(NoCase("never")), "one")


def test_budgets() -> None:
    assert commands.budget("90s") == Budget(seconds=90)
    assert commands.budget("10m") == Budget(seconds=600)
    assert commands.budget("40") == Budget(tries=40)
    for wrong in ("", "0", "1.5h", "-3", "10 m"):
        with pytest.raises(UsageError):
            commands.budget(wrong)
