"""Operations in a trace: what is seen, what is read, what is left alone."""

from __future__ import annotations

import ctypes
import random
import secrets
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trace_rig import Recording, digests, first_difference, recording

SEED = secrets.randbits(32)


def flip(tensor: torch.Tensor, place: int = 0) -> None:
    """Flips the lowest bit of one element, past the dispatcher."""
    ctypes.c_uint32.from_address(tensor.data_ptr() + 4 * place).value ^= 1


ARMED: dict[str, int] = {"calls": 0, "flip": -1, "place": 0}


@torch.library.custom_op(  # torch 2.4 reads no annotations that are texts
    "trace_tests::scale", mutates_args=(), schema="(Tensor x, float by) -> Tensor"
)
def scale(x: torch.Tensor, by: float) -> torch.Tensor:
    """A custom operation that can be told to go wrong by one bit."""
    out = x * by
    if ARMED["calls"] == ARMED["flip"]:
        flip(out, ARMED["place"])
    ARMED["calls"] += 1
    return out


@torch.library.custom_op(
    "trace_tests::fill_", mutates_args=("x",), schema="(Tensor(a!) x, float value) -> ()"
)
def fill_(x: torch.Tensor, value: float) -> None:
    """A custom operation that changes its argument and returns nothing."""
    x.fill_(value)


def chain(steps: int) -> torch.Tensor:
    """A program in which every operation's input is the last one's output."""
    x = torch.linspace(1, 2, 24).reshape(4, 6)
    for number in range(steps):
        x = scale(x, 1.0 + number / 16)
        x = x + 0.5
    return x


def traced_chain(folder: Path, flipped: int = -1, place: int = 0) -> Recording:
    ARMED.update(calls=0, flip=flipped, place=place)
    with recording(folder) as found:
        chain(8)
    return found


def test_a_flipped_low_bit_is_the_first_event_that_differs(tmp_path: Path) -> None:
    draw = random.Random(SEED)
    at, place = draw.randrange(8), draw.randrange(24)
    print(f"seed {SEED}: call {at}, element {place}")
    good = traced_chain(tmp_path / "good").events()
    bad = traced_chain(tmp_path / "bad", at, place).events()
    found = first_difference(good, bad)
    assert found is not None
    assert (found["n"], found["i"]) == ("trace_tests.scale.default", at)
    twin = next(event for event in good if event["q"] == found["q"])
    assert digests(twin, "in") == digests(found, "in")
    assert digests(twin, "out") != digests(found, "out")


def test_two_runs_of_one_program_have_the_same_events(tmp_path: Path) -> None:
    first, second = (traced_chain(tmp_path / name).events() for name in "ab")
    assert first_difference(first, second) is None
    assert first == second


def test_a_custom_operation_is_one_event_with_its_tensors(tmp_path: Path) -> None:
    with recording(tmp_path) as found:
        scale(torch.ones(3), 2.0)
    event = found.op("trace_tests.scale")
    assert [tensor[0] for tensor in event["in"]] == ["0"]
    assert event["out"][0][2:4] == ["float32", [3]]


def test_what_a_custom_operation_changes_in_place_is_of_its_outputs(tmp_path: Path) -> None:
    with recording(tmp_path) as found:
        x = torch.zeros(3)
        fill_(x, 1.0)
    event = found.op("trace_tests.fill_")
    assert event["x"]["writes"] == ["0"]
    assert event["out"][0][0] == "arg.0"
    assert event["in"][0][1] != event["out"][0][1]
    assert event["in"][0][5] == event["out"][0][5]


def test_memory_changed_outside_the_dispatcher_shows_in_the_next_input(tmp_path: Path) -> None:
    """F5: the last operation seen wrote other bits than the next one reads."""

    def program(folder: Path, changed: bool) -> Recording:
        with recording(folder) as found:
            x = torch.ones(6) * 3
            if changed:
                flip(x, 2)
            x.view(2, 3).sum()
        return found

    good, bad = program(tmp_path / "a", False), program(tmp_path / "b", True)
    found = first_difference(good.events(), bad.events())
    assert found is not None
    assert found["n"] == "aten.view.default"
    assert found["x"]["view"] is True
    writer = bad.op("aten.mul")
    assert writer["out"][0][5] == found["in"][0][5]
    assert writer["out"][0][1] != found["in"][0][1]


class TestMemoryThatIsNotComplete:
    """F6: what nobody has written, and what is still on its way, is not read."""

    def test_empty_memory_has_no_digest_until_all_of_it_is_written(self, tmp_path: Path) -> None:
        with recording(tmp_path) as found:
            x = torch.empty(4, 4)
            x[:2].fill_(1.0)
            x[2:].fill_(2.0)
            x.sum()
        assert found.op("aten.empty")["out"][0][1] is None
        assert found.op("aten.empty")["x"]["uninitialised"] is True
        first, second = found.ops("aten.fill_")
        assert first["in"][0][1] is None
        assert first["out"][0][1] is not None
        assert second["out"][0][1] is not None
        assert found.op("aten.sum")["in"][0][1] is not None

    def test_a_part_that_is_not_written_stays_without_a_digest(self, tmp_path: Path) -> None:
        with recording(tmp_path) as found:
            x = torch.empty(4, 4)
            x[:2].fill_(1.0)
            x.t()
            x[1:2].sum()
            x.add_(1.0)
            x.clone().sum()
        assert found.op("aten.t.")["in"][0][1] is None
        assert found.ops("aten.sum")[0]["in"][0][1] is not None
        assert found.op("aten.add_")["out"][0][1] is None  # reads what is not there
        assert found.op("aten.clone")["out"][0][1] is None
        assert found.ops("aten.sum")[1]["in"][0][1] is None

    @pytest.mark.parametrize(
        "make",
        [
            lambda: torch.empty_like(torch.ones(3)),
            lambda: torch.ones(3).new_empty(3),
            lambda: torch.empty_strided((3, 2), (2, 1)),
            lambda: torch.ones(1).resize_(50),
        ],
    )
    def test_every_way_to_make_it(self, tmp_path: Path, make: Any) -> None:
        with recording(tmp_path) as found:
            made = make()
            made.copy_(torch.zeros_like(made))
            made.sum()
        emptied = [e for e in found.events() if "empty" in e["n"] or "resize_" in e["n"]]
        assert [e["out"][0][1] for e in emptied] == [None]
        assert found.op("aten.sum")["in"][0][1] is not None

    def test_out_of_an_operation_counts_as_written(self, tmp_path: Path) -> None:
        with recording(tmp_path) as found:
            out = torch.empty(2, 2)
            torch.mm(torch.ones(2, 2), torch.ones(2, 2), out=out)
        event = found.op("aten.mm.out")
        assert event["x"]["writes"] == ["kw.out"]
        assert dict(digests(event, "in"))["kw.out"] is None
        assert event["out"][0][1] is not None

    def test_the_target_of_a_copy_nobody_waits_for_is_read_by_who_uses_it(
        self, tmp_path: Path
    ) -> None:
        with recording(tmp_path) as found:
            x = torch.zeros(3)
            x.copy_(torch.ones(3), non_blocking=True)
            x.sum()
        event = found.op("aten.copy_")
        assert event["out"][0][1] is None
        assert event["x"]["async"] is True
        assert found.op("aten.sum")["in"][0][1] is not None

    def test_two_runs_with_other_garbage_do_not_differ(self, tmp_path: Path) -> None:
        def program(folder: Path, garbage: float) -> Recording:
            with recording(folder) as found:
                x = torch.empty(5)
                ctypes.memset(x.data_ptr(), int(garbage), 20)
                x[:3].zero_()
                x.view(5)
                x.zero_()
                (x + 1).sum()
            return found

        first = program(tmp_path / "a", 1)
        second = program(tmp_path / "b", 7)
        assert first_difference(first.events(), second.events()) is None


def test_an_operation_in_place_says_what_it_wrote(tmp_path: Path) -> None:
    with recording(tmp_path) as found:
        x = torch.ones(3)
        x.mul_(2)
    event = found.op("aten.mul_")
    assert event["x"]["writes"] == ["0"]
    assert event["in"][0][1] != event["out"][0][1]
    assert event["in"][0][5] == event["out"][0][5]


def test_a_view_is_marked_and_has_its_layout_and_its_values_digest(tmp_path: Path) -> None:
    with recording(tmp_path) as found:
        x = torch.arange(6.0).reshape(2, 3)
        x.t()
        x.t().contiguous().add(0)
    view = found.ops("aten.t.")[0]
    assert view["x"] == {"view": True}
    assert view["out"][0][3:5] == [[3, 2], "strided(1,3)"]
    # digests are of values in the order of their indices, whatever the strides
    assert found.op("aten.add")["in"][0][1] == view["out"][0][1]
    assert view["in"][0][5] == view["out"][0][5]


def test_storages_that_live_one_after_the_other_have_different_numbers(tmp_path: Path) -> None:
    with recording(tmp_path) as found:
        for _ in range(3):
            torch.ones(1000)
    numbers = [event["out"][0][5] for event in found.ops("aten.ones")]
    assert len(set(numbers)) == 3


def test_backward_operations_are_told_from_forward_ones(tmp_path: Path) -> None:
    with recording(tmp_path) as found:
        x = torch.ones(3, requires_grad=True)
        (x * x).sum().backward()
    assert {event["p"] for event in found.ops("aten.mul")} == {"f", "b"}


class Deep(torch.autograd.Function):
    """Its backward runs another backward, and that another one.

    After 60 of them the engine goes on in a thread of its own (torch 2.13: MAX_DEPTH), as it does
    for each device.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, depth: int) -> torch.Tensor:
        ctx.depth = depth
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        with torch.enable_grad():
            x = torch.ones(1, requires_grad=True)
            (Deep.apply(x, ctx.depth - 1) if ctx.depth else x.sin()).backward()
        return grad, None


def test_threads_of_the_autograd_engine_are_traced(tmp_path: Path) -> None:
    with recording(tmp_path) as found:
        Deep.apply(torch.ones(1, requires_grad=True), 70).backward()
    event = found.op("aten.cos")
    assert event["x"]["thread"] == "autograd"
    assert event["p"] == "b"
    assert event["in"][0][1]


def test_lists_of_tensors_have_paths(tmp_path: Path) -> None:
    with recording(tmp_path) as found:
        torch.cat([torch.zeros(1), torch.ones(1)]).split(1)
    assert [path for path, _ in digests(found.op("aten.cat"), "in")] == ["0.0", "0.1"]
    assert [path for path, _ in digests(found.op("aten.split"), "out")] == ["0", "1"]


def test_nothing_of_the_programs_state_is_changed(tmp_path: Path) -> None:
    """Random streams, gradient mode, autocast, version counters, layout and autograd's order."""

    def program() -> tuple[Any, ...]:
        torch.manual_seed(3)
        x = torch.randn(4, 3).t().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = torch.mm(x.t(), x)
            inside = torch.is_autocast_enabled("cpu")
        with torch.no_grad():
            off = torch.is_grad_enabled()
        y.float().sum().backward()
        layout = (x.stride(), x._version, y.dtype, y.grad_fn._sequence_nr() - start)
        return torch.randn(3).tolist(), inside, off, layout, x.grad.tolist()

    start = torch.autograd._get_sequence_nr()
    plain = program()
    start = torch.autograd._get_sequence_nr()
    with recording(tmp_path):
        traced = program()
    assert traced == plain


class TestOtherKindsOfTensors:
    """What is not memory of numbers passes, and is told by name or left out."""

    def test_inference_mode(self, tmp_path: Path) -> None:
        with recording(tmp_path) as found, torch.inference_mode():
            (torch.ones(3) + 1).mul_(2)
        assert found.op("aten.mul_")["out"][0][1] is not None

    def test_vmap_runs_and_is_seen_as_what_it_computes(self, tmp_path: Path) -> None:
        with recording(tmp_path) as found:
            out = torch.func.vmap(torch.sin)(torch.ones(3, 2))
        assert torch.equal(out, torch.ones(3, 2).sin())
        assert found.op("aten.sin")["out"][0][3] == [3, 2]

    def test_gradients_of_functions(self, tmp_path: Path) -> None:
        with recording(tmp_path):
            found = torch.func.grad(lambda x: (x**3).sum())(torch.full((2,), 2.0))
        assert found.tolist() == [12.0, 12.0]

    def test_fake_tensors_are_left_out(self, tmp_path: Path) -> None:
        from torch._subclasses.fake_tensor import FakeTensorMode

        with recording(tmp_path) as found:
            with FakeTensorMode():
                torch.ones(3) + 1
            torch.zeros(2)
        assert [event["n"] for event in found.events()] == ["aten.zeros.default"]

    def test_who_traces_symbolically_gets_the_same_graph(self, tmp_path: Path) -> None:
        from torch.fx.experimental.proxy_tensor import make_fx

        net = torch.nn.Linear(4, 2)

        def graph() -> str:
            return make_fx(lambda x: net(x).t() + 1)(torch.ones(3, 4)).code

        plain = graph()
        with recording(tmp_path):
            assert graph() == plain

    def test_the_meta_device_is_left_out(self, tmp_path: Path) -> None:
        with recording(tmp_path) as found:
            torch.ones(3, device="meta").sin()
        assert found.events() == []

    def test_sparse_tensors(self, tmp_path: Path) -> None:
        with recording(tmp_path) as found:
            torch.eye(3).to_sparse().coalesce().sum()
        assert found.events()

    def test_a_subclass_is_seen_by_its_inner_tensors(self, tmp_path: Path) -> None:
        from torch.testing._internal.two_tensor import TwoTensor

        with recording(tmp_path) as found:
            two = TwoTensor(torch.ones(2), torch.zeros(2))
            two + 1
        assert len(found.ops("aten.add")) == 2

    def test_a_value_without_bytes_says_why(self, tmp_path: Path) -> None:
        from pinner.inside.evidence.trace.hashing import Hashing

        assert "meta" in Hashing(False).why(torch.ones(2, device="meta"))


class TestTheWindow:
    def test_only_its_steps_are_written(self, tmp_path: Path) -> None:
        with recording(tmp_path, **{"from": 1, "to": 2}) as found:
            for number in range(4):
                torch.full((1,), float(number))
                found.recorder.next_step()
        assert [event["s"] for event in found.ops("aten.full")] == [1, 2]

    def test_memory_made_empty_before_it_is_known_inside(self, tmp_path: Path) -> None:
        with recording(tmp_path, **{"from": 1}) as found:
            x, y = torch.empty(3), torch.empty(3)
            y.fill_(1.0)
            found.recorder.next_step()
            x.view(3)
            y.view(3)
        first, second = found.ops("aten.view")
        assert first["in"][0][1] is None
        assert second["in"][0][1] is not None

    def test_only_its_modules_are_written(self, tmp_path: Path) -> None:
        with recording(tmp_path, modules=r"^a\b") as found:
            for scope in ("a", "b", "a.c"):
                found.recorder.enter(scope)
                torch.ones(1)
                found.recorder.leave()
        assert [event["m"] for event in found.ops("aten.ones")] == ["a", "a.c"]


def test_digests_that_a_device_still_computes_are_read_when_the_step_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for a device: its digests come when they are asked for, all at once."""
    from pinner.inside.evidence import digest

    reads: list[int] = []

    class Slow(digest.Deferred):
        pass

    def deferred(values: Any) -> Any:
        return Slow([[digest.digest(value)[0]] for value in values])  # type: ignore[misc]

    def read_all(many: Any) -> Any:
        reads.append(len(many))
        return [[node[0] for node in each.nodes] for each in many]

    monkeypatch.setattr(digest, "deferred", deferred)
    monkeypatch.setattr(digest, "read_all", read_all)
    with recording(tmp_path, defer=True) as found:
        x = torch.ones(3)
        x + 1
        assert reads == []
        found.recorder.next_step()
        x + 2
    assert len(reads) == 2
    first, second = found.ops("aten.add")
    assert first["in"][0][1] == second["in"][0][1] == digest.digest(torch.ones(3))[0]
    assert first["out"][0][1] == digest.digest(torch.full((3,), 2.0))[0]
