"""Sums by atomics depend on the order of programs; serial ones and slots added in a tree do not."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from stackbisect.repro import form
from tests import lanes
from tests.command_rig import REPO, Pinner
from tests.repro_rig import REPROS, copied, module, words

NAME = "atomics"
FORM = form.read(REPROS / NAME)


@pytest.fixture(scope="module")
def repro() -> Any:
    return module(NAME)


@pytest.fixture
def orders(repro: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program orders.py, which imports the other by its name."""
    monkeypatch.setitem(sys.modules, "repro", repro)
    return module(NAME, "orders.py")


def expected(repro: Any, sums: Any) -> dict[str, torch.Tensor]:
    """The three sums by torch in float64, the gradient by autograd."""
    it = sums.sizes
    weight = sums.router.double().requires_grad_()
    x = sums.x.double()
    terms = sums.share.double() * (x @ weight.T).softmax(1).sum(0)
    (router_grad,) = torch.autograd.grad(terms.sum(), weight)
    rows = sums.rows.double().view(it.groups, it.rows, it.inner)
    made = (rows @ sums.weight.double()).view(it.groups * it.rows, -1)
    probs_grad = (made * sums.grad.double()).sum(1)
    return {"aux_loss": terms.detach(), "router_grad": router_grad, "probs_grad": probs_grad}


@pytest.mark.parametrize("how", ["atomic", "serial", "slots"])
def test_each_kernel_computes_the_sums_that_torch_does(repro: Any, how: str) -> None:
    sums = repro.Sums(repro.Sizes(tiles=3, n_tiles=5))  # no powers of two
    found = sums.all(how)
    for name, wanted in expected(repro, sums).items():
        torch.testing.assert_close(found[name].double(), wanted, rtol=1e-4, atol=1e-5)


class TestEveryOrderOfAFewPrograms:
    def test_by_atomics_differ_and_otherwise_do_not(self, orders: Any) -> None:
        every = orders.every_order(4)
        found = {how: orders.results(how, every, orders.SMALL) for how in ("atomic", "slots")}
        assert all(len(each) > 1 for each in found["atomic"].values())
        assert all(len(each) == 1 for each in found["slots"].values())

    def test_addition_is_commutative_so_swapping_the_first_two_changes_nothing(
        self, repro: Any, orders: Any
    ) -> None:
        sums = repro.Sums(orders.SMALL)
        found = {}
        for order in itertools.permutations(range(4)):
            with repro.programs_in(lambda count, order=order: order):
                found[order] = repro.digest(sums.probs_grad("atomic"))
        assert 1 < len(set(found.values())) <= 12
        for order, digest in found.items():
            assert digest == found[(order[1], order[0], *order[2:])]


def test_orders_drawn_at_random_flip_the_atomic_sums_alone(repro: Any, orders: Any) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    drawn = [repro.order_of(seed + number) for number in range(20 if lanes.soak() else 4)]
    for how in repro.HOWS:
        found = orders.results(how, drawn)
        counts = [len(each) for each in found.values()]
        assert (max(counts) > 1) if how == "atomic" else (counts == [1, 1, 1])


@pytest.mark.parametrize(("planted", "code"), [({}, 0), ({"slots": "atomic"}, 1)])
def test_the_fixs_command_ends_with_0_where_it_holds_and_only_there(
    repro: Any,
    orders: Any,
    monkeypatch: pytest.MonkeyPatch,
    planted: dict[str, str],
    code: int,
) -> None:
    assert FORM.fix is not None
    assert FORM.fix.command == ("python", "orders.py")
    compute = repro.Sums.all
    monkeypatch.setattr(repro.Sums, "all", lambda self, how: compute(self, planted.get(how, how)))
    monkeypatch.setattr(sys, "argv", ["orders.py", "2", "--seed", "1"])
    assert orders.main() == code


def test_serial_leaves_the_bits_of_the_atomic_sums_in_the_order_of_the_grid(repro: Any) -> None:
    sums = repro.Sums()
    with repro.programs_in(repro.order_of("launch")):
        atomic = sums.all("atomic")
    with repro.programs_in(repro.order_of("reverse")):
        serial = sums.all("serial")
    assert {n: repro.digest(t) for n, t in atomic.items()} == {
        n: repro.digest(t) for n, t in serial.items()
    }


class TestThePermutingLauncher:
    """It must run every program once, in the order asked for, or it shows nothing."""

    @pytest.mark.parametrize("grid", [(5,), (2, 3), (2, 3, 2)])
    def test_runs_each_program_once_in_the_order_asked_for(
        self, repro: Any, grid: tuple[int, ...]
    ) -> None:
        from triton.runtime.interpreter import interpreter_builder as builder

        places = list(itertools.product(*(range(n) for n in (grid + (1, 1))[:3])))
        order = random.Random(0).sample(range(len(places)), len(places))
        seen = []
        with repro.programs_in(lambda count: order):
            builder.set_grid_dim(*(grid + (1, 1))[:3])
            for place in places:
                builder.set_grid_idx(*place)
                seen.append(builder.grid_idx)
        assert seen == [places[number] for number in order]

    def test_leaves_the_interpreter_as_it_was(self, repro: Any) -> None:
        from triton.runtime.interpreter import interpreter_builder as builder

        before = (builder.set_grid_dim, builder.set_grid_idx)
        with repro.programs_in(repro.order_of("reverse")):
            assert builder.set_grid_idx != before[1]
        assert (builder.set_grid_dim, builder.set_grid_idx) == before


def test_slots_that_were_taken_in_turn_would_not_do(repro: Any) -> None:
    """A slot belongs to a tile: given out in the order of arrival, the same tree flips."""
    parts = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))
    found = set()
    for order in itertools.permutations(range(4)):
        out = torch.zeros(16)
        repro.add_slots[(1,)](parts[list(order)].contiguous(), out, 16, COUNT=4, BLOCK=16)
        found.add(repro.digest(out))
    assert len(found) > 1


COMPILE = """
from tests.fakes import noop_driver
from tests.repro_rig import module
noop_driver.install(lambda call, quantiles: [1.0] * 3)
repro = module("atomics")
repro.DEVICE = "cpu"  # where the tensors are; nothing is launched
for how in repro.HOWS:
    repro.Sums(repro.Sizes(tiles=3, n_tiles=5)).all(how)
print(noop_driver.NoopLauncher.launches)
"""


def test_the_kernels_compile_for_a_gpu(tmp_path: Path) -> None:
    """To sm_90 code, by the ptxas of the wheel; what they compute there is for tests/gpu."""
    environ = {"PYTHONPATH": str(REPO), "TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["12"]  # three sums in three ways, and three times the tree
    assert len(list(tmp_path.rglob("*.cubin"))) >= 10


@pytest.mark.soak
@lanes.long_form
def test_the_diagnosis_ends_at_a_kernel_with_equal_inputs(tmp_path: Path) -> None:
    first, *rest = words(FORM.diagnose)
    said = Pinner(copied(NAME, tmp_path))(first, "--json", *rest)
    assert said.code == 1, said.err
    last = said.json["chain"][-1]
    assert last["level"] == "kernels"
    assert last["first"]["kind"] == "kernel"
    assert last["first"]["name"].rpartition(":")[2] in ("aux_loss", "router_grad", "probs_grad")
    assert last["first"]["began_here"]
