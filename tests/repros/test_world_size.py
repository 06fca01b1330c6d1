"""An all-reduce holds on two ranks and not on more; the tree over microbatches holds on all."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from stackbisect.repro import form
from tests import lanes
from tests.command_rig import Pinner
from tests.repro_rig import REPROS, copied, module

NAME = "world_size"
FORM = form.read(REPROS / NAME)
SIZES = "1,2,4,8" if lanes.soak() else "1,2,4"
# torchrun of the interpreter that runs the tests, whatever PATH has.
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "{n}", "repro.py"]


@pytest.fixture(scope="module")
def repro() -> Any:
    return module(NAME)


@pytest.fixture
def pinner(tmp_path: Path) -> Pinner:
    return Pinner(copied(NAME, tmp_path))


def test_the_command_in_the_form_is_the_one_tested_here() -> None:
    assert FORM.diagnose[-4:] == ("torchrun", "--nproc-per-node", "{n}", "repro.py")
    assert FORM.fix is not None
    assert FORM.fix.command == ("env", "SUM=tree", *FORM.diagnose)
    assert FORM.diagnose[:4] == ("pinner", "verify", "--scale", "1,2,4,8")


def verify(pinner: Pinner, sizes: str, command: list[str], **environ: str) -> Any:
    evidence = ("--evidence-stdout", "digest (.*)")
    said = pinner("verify", "--scale", sizes, "--json", *evidence, "--", *command, **environ)
    assert said.code in (0, 1), said.err
    return said.json


def test_small_sizes_agree_and_larger_ones_are_named(pinner: Pinner) -> None:
    found = verify(pinner, SIZES, TORCHRUN)
    assert found["status"] == "differs"
    assert found["equal"] == [1, 2]
    larger = [int(size) for size in SIZES.split(",")][2:]
    assert [each["sizes"] for each in found["differences"]] == [[1, size] for size in larger]


def test_with_the_fix_every_size_has_the_same_bits(pinner: Pinner) -> None:
    """In the short form by ranks that the program starts itself, the largest number of them."""
    started = ["env", "RANKS={n}", sys.executable, "repro.py"]
    sizes, command = (SIZES, TORCHRUN) if lanes.soak() else ("1,8", started)
    found = verify(pinner, sizes, command, SUM="tree")
    assert found["status"] == "equal", found["text"]
    assert found["equal"] == [int(size) for size in sizes.split(",")]


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.numpy().tobytes()


def test_the_tree_over_ranks_goes_on_with_the_tree_within_each(repro: Any) -> None:
    """Whichever number of ranks the microbatches are dealt out to."""
    parts = list(torch.randn(8, 512, generator=torch.Generator().manual_seed(1)))
    for each in (1, 2, 4, 8):
        ranks = [repro.tree(parts[at : at + each]) for at in range(0, 8, each)]
        assert bits(repro.tree(ranks)) == bits(repro.tree(parts))


def test_a_sum_in_the_order_of_ranks_does_not(repro: Any) -> None:
    """Two have one sum; from three on the bits depend on where one begins. A ring begins anew."""
    parts = list(torch.randn(8, 512, generator=torch.Generator().manual_seed(1)))
    for each, one in ((4, True), (2, False), (1, False)):
        ranks = [repro.tree(parts[at : at + each]) for at in range(0, 8, each)]
        turns = [ranks[at:] + ranks[:at] for at in range(len(ranks))]
        sums = {bits(list(itertools.accumulate(turn))[-1]) for turn in turns}
        assert (len(sums) == 1) is one
        assert (sums == {bits(repro.tree(parts))}) is one
