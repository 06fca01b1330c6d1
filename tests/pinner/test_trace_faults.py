"""Faults planted in a small training run with experts, and where a trace of it first differs."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trace_rig import Event, digests, events_of, first_difference, read_logs, recording
from tests.workloads import moe_sites, moe_train

pytestmark = pytest.mark.xdist_group("trace-faults")  # they share the run without a fault

SEED = secrets.randbits(32)
STEPS = 2


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    """One thread, and no fault left behind."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    moe_train.PLANT = moe_train.Plant("")


def traced(folder: Path, plant: str = "") -> list[Event]:
    """The operations of a run with this fault."""
    moe_train.PLANT = moe_train.Plant(plant)
    with recording(folder) as found:
        run = moe_train.Run(compiled=False)
        for _ in range(STEPS):
            run.step()
            found.recorder.next_step()
    (lines,) = read_logs(folder).values()
    return events_of(lines)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    """The run without a fault."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = traced(tmp_path_factory.mktemp("good"))
    torch.set_num_threads(threads)
    return found


def drawn() -> tuple[int, str]:
    """A step and a module, at random."""
    draw = random.Random(SEED)
    step, site = draw.randrange(STEPS), draw.choice(moe_sites.LINEAR)
    print(f"seed {SEED}: step {step}, {site}")
    return step, site


def parted(good: list[Event], bad: list[Event]) -> tuple[Event, Event]:
    """The first event that differs, as it is on both sides."""
    found = first_difference(good, bad)
    assert found is not None
    return next(event for event in good if event["q"] == found["q"]), found


def test_the_run_repeats_itself(good: list[Event], tmp_path: Path) -> None:
    assert first_difference(good, traced(tmp_path)) is None


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("bitflip", "moe.linear.default"),
        ("atomics", "moe.combine.default"),
        ("routing", "moe.route.default"),
        ("scale", "moe.scale_of.default"),
    ],
)
def test_a_fault_inside_an_operation_begins_there(
    good: list[Event], tmp_path: Path, kind: str, name: str
) -> None:
    """Its inputs are equal and its outputs are not."""
    step, site = drawn()
    site = site if kind == "bitflip" else ""
    left, right = parted(good, traced(tmp_path, f"{kind}:0:{step}:{site}"))
    assert (right["n"], right["s"]) == (name, step)
    assert digests(left, "in") == digests(right, "in")
    assert digests(left, "out") != digests(right, "out")


def test_a_kernel_outside_the_dispatcher_shows_in_the_input_of_the_next_operation(
    good: list[Event], tmp_path: Path
) -> None:
    step, site = drawn()
    left, right = parted(good, traced(tmp_path, f"outside:0:{step}:{site}"))
    assert right["s"] == step
    differing = [a for a, b in zip(right["in"], left["in"], strict=True) if a[1] != b[1]]
    assert [tensor[0] for tensor in differing] == ["1"]


def test_a_copy_that_nobody_waited_for_is_no_difference(good: list[Event], tmp_path: Path) -> None:
    assert first_difference(good, traced(tmp_path, "copy:*:*")) is None


def weights(run: Any) -> list[torch.Tensor]:
    """All parameters, as bits."""
    return [p.detach().view(torch.int32).clone() for p in run.model.parameters()]


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize(
    ("plant", "equal"), [("", True), ("rng:*:*", False), ("loader:*:*", False)]
)
@pytest.mark.parametrize("in_parts", [False, True])
def test_resuming_gives_the_same_bits_unless_something_is_not_restored(
    tmp_path: Path, plant: str, equal: bool, in_parts: bool
) -> None:
    moe_train.PLANT = moe_train.Plant("")
    whole = moe_train.Run(compiled=False)
    for step in range(3):
        whole.step()
        if step == 0:
            moe_train.save(whole, str(tmp_path / "saved"), in_parts)
    moe_train.PLANT = moe_train.Plant(plant)
    again = moe_train.Run(compiled=False)
    moe_train.load(again, str(tmp_path / "saved"), in_parts)
    while again.done < 3:
        again.step()
    assert same(weights(whole), weights(again)) is equal
