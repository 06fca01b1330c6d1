"""The pytest plugin: healthy kernels, modules and recipes pass, planted regressions are named."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pinner.launch.standards import CI_VARIABLES

REPO = Path(__file__).resolve().parents[2]

# One worker runs the tests of the users once.
pytestmark = pytest.mark.xdist_group("plugin")

USERS = """
import functools, os, random, sys

import numpy as np
import pytest
import torch


def test_kernel(repeatable):
    x, w = torch.randn(4, 8, requires_grad=True), torch.randn(8, 3, requires_grad=True)
    x.grad = torch.ones(4, 8)
    before = torch.get_rng_state()
    found = repeatable(lambda a, b: torch.nn.functional.dropout(a @ b, 0.5), x, w)
    assert [value.name for value in found.values] == [
        "output", "gradient of input 0", "gradient of input 1",
        "input 0 after the call", "input 1 after the call",
    ]
    assert found.runs == 3
    assert x.grad.sum() == 32 and w.grad is None
    assert torch.equal(torch.get_rng_state(), before)


def test_every_generator_is_put_back(repeatable):
    own, numbers = torch.Generator(), np.random.default_rng()
    repeatable(
        lambda: (
            torch.rand(2), np.random.rand(2), random.random(),
            torch.rand(2, generator=own), numbers.random(2),
        ),
        holding=[own, numbers],
    )


def test_inputs_are_put_back(repeatable):
    norm = torch.nn.BatchNorm1d(3)
    wide, array, held = torch.zeros(4, 6), np.zeros(2), [1.0]
    part = wide[:, ::2]

    def kernel(x, a, more):
        x.add_(1)
        a += 1
        more.append(float(wide.sum()))
        return norm(x), a, sum(more)

    repeatable(kernel, part, array, held, holding=[norm])
    assert wide.sum() == 0 and array.sum() == 0 and held == [1.0]
    assert norm.num_batches_tracked == 0


def test_the_parameters_of_a_callable_count(repeatable):
    model = torch.nn.Linear(2, 2)
    for function in (model, model.forward, functools.partial(model)):
        found = repeatable(function, torch.ones(1, 2))
        assert any(v.name.startswith("gradient of parameter weight") for v in found.values)


def test_planted_output(repeatable):
    calls = []

    def kernel(x):
        calls.append(1)
        y = x + 1
        if len(calls) == 3:
            y.view(torch.int32)[0, 3] ^= 1
        return {"y": y}

    repeatable(kernel, torch.ones(2, 4))


class Doubling(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        Doubling.calls += 1
        gradient = gradient * 2
        if Doubling.calls == 2:
            gradient.view(torch.int32)[1, 2] += 1
        return gradient


def test_planted_gradient(repeatable):
    repeatable(Doubling.apply, torch.ones(2, 4, requires_grad=True))


def test_planted_zero_sign(repeatable):
    signs = [1.0, -1.0, 1.0]
    repeatable(lambda: torch.zeros(2) * signs.pop())


def test_planted_write_to_an_input(repeatable):
    calls = []

    def kernel(x):
        calls.append(1)
        x[1] = len(calls)
        return x.numel()

    repeatable(kernel, torch.zeros(2))


def test_nothing_to_compare(repeatable):
    repeatable(lambda: None)


@pytest.mark.xdist_group("fresh")
@pytest.mark.repeatable(runs=2, fresh_processes=1)
def test_fresh(repeatable):
    drawn = repeatable(lambda: 1.0, fresh_processes=0)
    found = repeatable(lambda x: torch.nn.functional.dropout(x, 0.5), torch.randn(16))
    assert (drawn.runs, found.runs) == (2, 3)


@pytest.mark.parametrize("name", ["a@b"])
def test_planted_fresh(repeatable, name):
    repeatable(lambda x: x + os.getpid(), torch.randn(16), fresh_processes=1)


def test_module(repeatable_matrix):
    found = repeatable_matrix(
        lambda: torch.nn.Conv2d(4, 2, 3), (2, 4, 6, 6),
        unsupported={("sliced", "float16"): "not offered"},
    )
    assert len(found.bits) == 11 and found.skipped == {("sliced", "float16"): "not offered"}
    formats = {found.bits["contiguous", name] for name in ("float32", "bfloat16", "float16")}
    assert len(formats) == 3
    again = repeatable_matrix(
        lambda: torch.nn.Conv2d(4, 2, 3), (2, 4, 6, 6), layouts=["contiguous"], runs=2
    )
    assert again.bits["contiguous", "float32"] == found.bits["contiguous", "float32"]


def test_planted_combination(repeatable_matrix):
    calls = []

    def make():
        layer = torch.nn.Linear(4, 2)

        def function(x):
            if x.stride(-1) == 2 and x.stride(0) == 9 and x.dtype == torch.bfloat16:
                calls.append(1)
            return layer.to(x.dtype)(x) + len(calls)

        return function

    repeatable_matrix(make, (3, 4), layouts=["contiguous", "transposed", "sliced"])


def test_all_skipped(repeatable_matrix):
    repeatable_matrix(lambda: torch.nn.Linear(4, 2), (2, 4), layouts=["channels_last"])


def test_empty(repeatable_matrix):
    repeatable_matrix(lambda: torch.nn.Linear(4, 2), (2, 4), formats=[])


def test_one_that_cannot_run(repeatable_matrix):
    repeatable_matrix(lambda: torch.nn.Linear(5, 2), (2, 4), layouts=["contiguous"])


def test_recipe(standard):
    found = standard("tiny", [sys.executable, "recipe.py"])
    assert found.details["points"] == 6


def test_planted_recipe(standard):
    standard("tiny", [sys.executable, "recipe.py"], env={"FLIP": "3"})


def test_recipe_that_says_nothing(standard):
    standard("tiny", [sys.executable, "recipe.py"], env={"SAYS": "0"})


def test_recipe_without_a_standard(standard):
    standard("none", [sys.executable, "recipe.py"])
"""

OTHERS = """
import sys


def test_nothing_was_imported():
    loaded = {"torch", "numpy", "pinner.cli", "pinner.inside", "pinner.plugin.repeat"}
    assert not loaded & set(sys.modules)
    assert "pinner.plugin" in sys.modules
"""


@dataclass(frozen=True)
class Ended:
    """How one test of a user ended: passed, failed or skipped; and what was said."""

    outcome: str
    text: str


def _environ() -> dict[str, str]:
    dropped = ("PYTEST_", *CI_VARIABLES)
    kept = {name: text for name, text in os.environ.items() if not name.startswith(dropped)}
    return {**kept, "PYTHONPATH": str(REPO)}


def _pytest(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    own = ["-p", "pinner.plugin", "-p", "no:cacheprovider", "--strict-markers", "-q"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *own, *words],
        cwd=folder,
        env=_environ(),
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module", name="users")
def _users(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """The tests of a user, under xdist; the standard was recorded before."""
    folder = tmp_path_factory.mktemp("users")
    (folder / "pytest.ini").write_text("[pytest]\npinner_standards = kept\n")
    (folder / "test_user.py").write_text(USERS)
    (folder / "recipe.py").write_text(
        (REPO / "tests" / "workloads" / "verify_plain.py").read_text(encoding="utf-8")
    )
    command = [sys.executable, "-m", "pinner", "standards", "record", "tiny"]
    recorded = subprocess.run(
        [*command, "--standards", "kept", "--", sys.executable, "recipe.py"],
        cwd=folder,
        env=_environ(),
        capture_output=True,
        text=True,
    )
    assert recorded.returncode == 0, recorded.stderr
    done = _pytest(folder, "-n", "1", "--dist", "loadgroup", "--junitxml", "ended.xml")
    assert (folder / "ended.xml").exists(), done.stdout + done.stderr
    return {
        re.sub(r"[@\[].*", "", case.get("name", "")): _ended(case)
        for case in ElementTree.parse(folder / "ended.xml").iter("testcase")
    }


def _ended(case: ElementTree.Element) -> Ended:
    for child in case:
        if child.tag in ("failure", "error", "skipped"):
            outcome = {"skipped": "skipped"}.get(child.tag, "failed")
            return Ended(outcome, f"{child.get('message')}\n{child.text}")
    return Ended("passed", "")


class TestHealthy:
    @pytest.mark.parametrize(
        "name",
        [
            "test_kernel",
            "test_every_generator_is_put_back",
            "test_inputs_are_put_back",
            "test_the_parameters_of_a_callable_count",
            "test_fresh",
            "test_module",
            "test_recipe",
        ],
    )
    def test_passes(self, users: dict[str, Ended], name: str) -> None:
        assert users[name] == Ended("passed", "")


class TestPlanted:
    @pytest.mark.parametrize(
        ("name", "said"),
        [
            (
                "test_planted_output",
                "run 3 of 3 is not like run 1: output['y']: 1 of 8 float32 elements differ, "
                "first at [0, 3]: 0x40000000 and 0x40000001, 1 ulp apart",
            ),
            (
                "test_planted_gradient",
                "run 2 of 3 is not like run 1: gradient of input 0: 1 of 8 float32 elements "
                "differ, first at [1, 2]",
            ),
            ("test_planted_gradient", "the first is element 6 in C order"),
            ("test_planted_zero_sign", "0x00000000 and 0x80000000, 0 ulp apart"),
            ("test_planted_write_to_an_input", "run 2 of 3 is not like run 1: input 0 after"),
            ("test_planted_fresh", "fresh process 1 of 1 is not like run 1: output: 16 of 16"),
            ("test_planted_combination", "1 of 9 combinations failed\nsliced, bfloat16: run 2"),
            ("test_one_that_cannot_run", "contiguous, float32: RuntimeError"),
            ("test_planted_recipe", "stream 'value', process 0, step 3: standard float 0x1.44"),
            ("test_recipe_that_says_nothing", "no process took part"),
        ],
    )
    def test_is_named(self, users: dict[str, Ended], name: str, said: str) -> None:
        assert users[name].outcome == "failed"
        assert said in users[name].text


class TestNoPass:
    @pytest.mark.parametrize("name", ["test_nothing_to_compare", "test_all_skipped", "test_empty"])
    def test_where_nothing_was_compared(self, users: dict[str, Ended], name: str) -> None:
        assert users[name].outcome == "failed"
        assert "not repeatable: " in users[name].text

    def test_without_a_standard(self, users: dict[str, Ended]) -> None:
        ended = users["test_recipe_without_a_standard"]
        assert ended.outcome == "skipped"
        assert "inactive: there is no standard" in ended.text


class TestOtherTests:
    def test_pay_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "test_other.py").write_text(OTHERS)
        done = _pytest(tmp_path, "-p", "no:xdist")
        assert done.returncode == 0, done.stdout

    def test_only_the_plugin_imports_pytest(self) -> None:
        importing = {
            path.relative_to(REPO).as_posix()
            for path in (REPO / "pinner").rglob("*.py")
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if (isinstance(node, ast.Import) and any(n.name == "pytest" for n in node.names))
            or (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pytest"))
        }
        assert importing == {"pinner/plugin/__init__.py"}
