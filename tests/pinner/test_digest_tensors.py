"""Tensors of every dtype and layout, alone and many at once, here and (deferred) on a device."""

from __future__ import annotations

import gc
import resource
import secrets
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from pinner.inside.evidence import digest as digests
from pinner.inside.evidence import nh128_native, nh128_triton, tensor_sums
from pinner.inside.evidence.digest import (
    NH128,
    deferred,
    digest,
    digest_many,
    digest_rows,
    digest_scaled,
    layout_of,
    read_all,
    record,
)
from pinner.inside.faults import EvidenceError
from tests import nh128_by_hand as by_hand

pytestmark = pytest.mark.filterwarnings("ignore")  # prototypes: nested, sparse, complex32

QUANTISED = ("qint8", "quint8", "qint32", "quint4x2", "quint2x4")
DTYPES = sorted(
    {
        dtype
        for name in dir(torch)
        if isinstance(dtype := getattr(torch, name), torch.dtype)
        and str(dtype).rpartition(".")[2] not in (*QUANTISED, "bool")
    },
    key=str,
)


def some(dtype: torch.dtype, count: int) -> torch.Tensor:
    """A tensor of any dtype with random bytes."""
    size = torch.empty(0, dtype=dtype).element_size()
    raw = torch.frombuffer(bytearray(secrets.token_bytes(count * size)), dtype=torch.uint8)
    return raw.view(dtype)


def raw(value: torch.Tensor) -> bytes:
    return value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def of(value: Any) -> str:
    return digest(value, NH128)[0]


@pytest.fixture(params=["c", "torch"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the compiled library and without."""
    if request.param == "torch":
        monkeypatch.setattr(nh128_native, "load", lambda: None)
    return str(request.param)


class TestEveryDtype:
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_as_described_with_gaps_and_without(self, dtype: torch.dtype, form: str) -> None:
        name = str(dtype).rpartition(".")[2]
        value = some(dtype, 60)
        data = raw(value)
        assert of(value) == by_hand.digest(name, value.shape, data)
        table = value.reshape(4, 15)
        turned = table.t()
        integers = tensor_sums.bits_of(torch, turned).contiguous()  # some dtypes cannot be copied
        assert of(turned) == by_hand.digest(name, (15, 4), raw(integers))

    def test_the_list_of_dtypes_is_the_one_of_this_torch(self) -> None:
        names = {str(dtype).rpartition(".")[2] for dtype in DTYPES}
        assert {"float8_e8m0fnu", "float4_e2m1fn_x2", "uint16", "complex32", "bits16"} <= names

    @pytest.mark.parametrize("name", ["qint8", "quint8", "qint32", "quint4x2", "quint2x4"])
    def test_quantised(self, name: str) -> None:
        value = torch.linspace(0, 1, 16)
        first, again, other = (
            torch.quantize_per_tensor(v, 0.1, 0, getattr(torch, name))
            for v in (value, value, value + 0.1)
        )
        assert of(first) == of(again)
        assert of(first) != of(other)
        assert layout_of(first) == "quantised"


class TestEveryLayout:
    BASE = torch.arange(2 * 3 * 4 * 6, dtype=torch.float32).reshape(2, 3, 4, 6)

    @pytest.mark.parametrize(
        ("layout", "view"),
        [
            ("contiguous", lambda t: t),
            ("contiguous", lambda t: t[1]),
            ("channels_last", lambda t: t.to(memory_format=torch.channels_last)),
            ("permuted", lambda t: t.permute(3, 2, 1, 0)),
            ("permuted", lambda t: t[0, 0].t()),
            ("expanded", lambda t: t[:, :, :1].expand(2, 3, 5, 6)),
            ("strided", lambda t: t[..., 1:3]),
            ("strided", lambda t: t[::2, :, ::3]),
            ("strided", lambda t: t.as_strided((3, 3), (1, 1))),
            ("strided+neg", lambda t: torch.view_as_complex(t.reshape(-1, 2)).conj().imag),
            ("contiguous+conj", lambda t: torch.view_as_complex(t.reshape(-1, 2)).conj()),
            ("contiguous", lambda t: t.sum()),
            ("contiguous", lambda t: t[:0]),
        ],
    )
    def test_it_is_named_and_does_not_count(
        self, layout: str, view: Callable[[torch.Tensor], torch.Tensor], form: str
    ) -> None:
        value = view(self.BASE)
        plain = value.clone(memory_format=torch.contiguous_format).resolve_conj().resolve_neg()
        assert layout_of(value) == layout
        assert of(value) == of(plain) == of(plain.numpy())
        found = record(value, NH128)
        assert found == (tuple(value.shape), found.dtype, value.numel(), layout, of(value))

    def test_numpy_arrays(self) -> None:
        array = np.arange(24.0).reshape(4, 6)
        views = [array, array.T, array[:, ::2], np.broadcast_to(array[0], (3, 6))]
        assert [layout_of(v) for v in views] == ["contiguous", "permuted", "strided", "expanded"]
        assert [of(v) for v in views] == [of(torch.from_numpy(v.copy())) for v in views]
        assert record(array.T, NH128).elements == 24
        large = np.arange(9000, dtype=np.complex128).reshape(90, 4, 25)
        for view in (large[::-1], large.T[:, ::-2], large.transpose(1, 0, 2)):
            assert of(view) == of(view.copy())

    def test_other_layouts(self) -> None:
        dense = torch.eye(4)
        rows = [torch.ones(2), torch.ones(3)]
        named = {
            "sparse_coo": dense.to_sparse(),
            "sparse_csr": dense.to_sparse_csr(),
            "sparse_csc": dense.to_sparse_csc(),
            "sparse_bsr": dense.to_sparse_bsr((2, 2)),
            "sparse_bsc": dense.to_sparse_bsc((2, 2)),
            "jagged": torch.nested.nested_tensor(rows, layout=torch.jagged),
            "nested": torch.nested.nested_tensor(rows),
        }
        assert [layout_of(value) for value in named.values()] == list(named)
        assert len({of(value) for value in named.values()}) == len(named)
        assert record(named["nested"], NH128).elements == 5

    def test_rows_of_a_nested_tensor_count_in_order(self) -> None:
        rows = [torch.ones(2), torch.ones(3)]
        first, other = (torch.nested.nested_tensor(part) for part in (rows, rows[::-1]))
        assert of(first) == of(torch.nested.nested_tensor(rows))
        assert of(first) != of(other)

    def test_zeros_that_are_not_there(self) -> None:
        value = torch._efficientzerotensor((3, 4))
        assert of(value) == of(torch.zeros(3, 4))

    @pytest.mark.parametrize("offset", range(9))
    def test_memory_that_begins_anywhere(self, offset: int, form: str) -> None:
        held = torch.randint(0, 256, (5000,), dtype=torch.uint8)
        assert of(held[offset:]) == of(held[offset:].clone())

    def test_a_tensor_made_of_pieces_that_end_within_blocks(
        self, monkeypatch: pytest.MonkeyPatch, form: str
    ) -> None:
        monkeypatch.setattr(tensor_sums, "HOST_PIECE", 1000)
        value = torch.randn(37, 91, 3)
        for view in (value.transpose(0, 1), value.permute(2, 1, 0), value[:, 5:], value[..., :1]):
            assert of(view) == of(view.contiguous())

    @pytest.mark.parametrize("wide", [False, True])
    def test_extra_memory_is_bounded(self, wide: bool, form: str) -> None:
        """Of 32 MiB, with gaps and without, a few are held at once."""
        value = torch.zeros(8 << 20, dtype=torch.float32).reshape(1 << 12, -1)
        view = value.t() if wide else value
        of(view[:8])
        gc.collect()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        of(view)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 12 << 10, "KiB"


class TestMany:
    def values(self) -> list[Any]:
        base = torch.randn(6, 8)
        return [
            base,
            base.t(),
            torch.nn.Parameter(base.clone()),
            base[:0],
            torch.tensor(3),
            base.to(torch.bfloat16)[1:],
            base.to_sparse(),
            torch.view_as_complex(base.reshape(-1, 2)).conj(),
            np.arange(3),
            2.5,
            [base, {"a": base}],
        ]

    def test_it_is_digest_of_each(self, form: str) -> None:
        values = self.values()
        assert digest_many(values, NH128) == [of(value) for value in values]
        assert digest_many([], NH128) == []

    def test_small_ones_of_every_size(self, form: str) -> None:
        held = torch.randint(0, 256, (9000,), dtype=torch.uint8)
        sizes = [1, 7, 8, 9, 63, 64, 65, 127, 129, 512, 2049, 4095, 4096, 4097, 5000]
        values = [held[secrets.randbelow(3000) :][:size] for size in sizes]
        assert digest_many(values, NH128) == [
            by_hand.digest("uint8", value.shape, raw(value)) for value in values
        ]

    def test_large_ones_by_threads(self) -> None:
        values = [torch.randint(0, 9, (3 << 20,)), torch.ones(3)]
        assert digest_many(values, NH128) == [of(value) for value in values]

    def test_the_program_sees_nothing_of_it(self) -> None:
        seen: list[str] = []

        class Functions(TorchFunctionMode):
            def __torch_function__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                seen.append(str(func))
                return func(*args, **(kwargs or {}))

        class Dispatch(TorchDispatchMode):
            def __torch_dispatch__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                seen.append(str(func))
                return func(*args, **(kwargs or {}))

        values = self.values()
        state = torch.get_rng_state()
        with Functions(), Dispatch():
            digest_many(values[:8], NH128)
            digest(values[0], NH128)
            layout_of(values[1])
        assert seen == []
        assert torch.equal(torch.get_rng_state(), state)

    def test_several_threads_at_once(self) -> None:
        values = [torch.randn(1 << 18) for _ in range(4)]
        wanted = [of(value) for value in values]
        found: dict[int, list[str]] = {}

        def work(number: int) -> None:
            found[number] = [digest_many(values, NH128)[number] for _ in range(20)]

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == {number: [wanted[number]] * 20 for number in range(4)}

    def test_what_is_refused_in_a_list_is_named(self) -> None:
        with pytest.raises(EvidenceError, match="meta device"):
            digest_many([torch.ones(2), torch.empty(2, device="meta")], NH128)

    def test_functional_tensors_are_refused_by_name(self) -> None:
        value = torch._to_functional_tensor(torch.ones(3))
        for function in (of, lambda v: digest_many([v], NH128)):
            with pytest.raises(EvidenceError, match="functional"):
                function(value)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host stands in for a GPU: tensors go to the kernels, by Triton's interpreter."""
    monkeypatch.setattr(tensor_sums, "kernels_for", lambda device: nh128_triton.load())
    monkeypatch.setattr(
        tensor_sums,
        "_adder_for",
        lambda torch, device: tensor_sums.OnGpu(torch, nh128_triton.load(), device),
    )
    for way in ("_memory_of", "_with_gaps"):
        monkeypatch.setattr(digests, way, lambda value: None)
    monkeypatch.setattr(nh128_native, "load", lambda: None)


class TestDeferred:
    def test_sums_stay_on_the_device_until_they_are_read(self, device: None) -> None:
        value = torch.randn(9, 3)
        wanted = [by_hand.digest("float32", v.shape, raw(v)) for v in (value, value.t())]
        later = deferred([value, value.t(), [value, 1]], NH128)
        assert len(later.tensors()) == 3
        value.zero_()  # a step goes on
        assert later.read()[:2] == wanted

    def test_pieces_that_end_within_blocks(
        self, device: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tensor_sums, "HOST_PIECE", 3000)
        value = torch.randn(27, 91).t()
        assert of(value) == by_hand.digest("float32", (91, 27), raw(value))

    def test_many_are_read_with_one_copy(self, device: None) -> None:
        values = [torch.randn(5), torch.randn(2, 2)]
        several = [deferred([value], NH128) for value in values] + [deferred([], NH128)]
        found = read_all([*several, deferred([3, "x"], NH128)])
        assert [len(each) for each in found] == [1, 1, 0, 2]
        assert [found[0][0], found[1][0]] == [
            by_hand.digest("float32", v.shape, raw(v)) for v in values
        ]

    def test_a_list_of_plain_tensors_is_one_table(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What `deferred` does with tensors on a GPU."""
        monkeypatch.setattr(tensor_sums, "kernels_for", lambda device: nh128_triton.load())
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        values = [torch.randn(5), torch.randint(0, 9, (9000,)), torch.randn(40)[3:], torch.ones(7)]
        many = digests._Many(torch)
        many._nodes = [None] * len(values)
        many._start_gpu(torch.device("cpu"), list(enumerate(values)))
        later = digests.Deferred(many._nodes)
        assert len(later.tensors()) == 1
        assert later.read() == [of(value) for value in values]

    def test_a_kernel_that_cannot_be_launched_is_replaced_by_torch(
        self, device: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        given_up: list[bool] = []

        def broken(*args: Any) -> None:
            raise RuntimeError("no kernel image")

        def give_up() -> None:
            given_up.append(True)
            monkeypatch.setattr(tensor_sums, "_adder_for", tensor_sums.ByTorch)

        monkeypatch.setattr(nh128_triton.Kernels, "add", broken)
        monkeypatch.setattr(tensor_sums, "give_up_triton", give_up)
        value = torch.randn(5)
        assert of(value) == by_hand.digest("float32", (5,), raw(value))
        assert given_up == [True]

    @pytest.mark.gpu
    def test_on_a_gpu(self) -> None:
        values = [
            torch.randn(5),
            torch.randn(1000, 1000),
            torch.randn(300, 200).t(),
            torch.randint(0, 256, (100_003,), dtype=torch.uint8)[3:],
            torch.randn(64).to(torch.float8_e4m3fn),
            torch.randn(3 << 20)[1:],
        ]
        there = [value.cuda() for value in values[:2]]
        there += [values[2].t().contiguous().cuda().t()]
        there += [torch.cat([value[:3], value]).cuda()[3:] for value in values[3:4]]
        there += [values[4].cuda(), torch.cat([values[5][:1], values[5]]).cuda()[1:]]
        later = deferred(there, NH128)
        assert len(later.tensors()) >= 1
        wanted = [of(value) for value in values]
        assert later.read() == wanted
        assert [of(value) for value in there] == wanted
        adder = tensor_sums.ByTorch(torch, there[1].device)
        adder.add(there[1].reshape(-1).view(torch.uint8), 0)
        kernel = tensor_sums.sums_of(torch, there[1])
        assert adder.sums().tolist() == kernel.tolist()

    @pytest.mark.gpu
    def test_the_stream_that_made_a_value_need_not_be_waited_for(self) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            value = torch.zeros(1 << 24, device="cuda")
            for _ in range(20):
                value += 1
            later = deferred([value], NH128)
            value += 1
            assert later.read() == [of(torch.full((1 << 24,), 20.0))]


class TestRowsAndScales:
    def test_the_first_differing_row_can_be_named(self) -> None:
        routing = torch.randint(0, 8, (50, 4))
        row = secrets.randbelow(50)
        other = routing.clone()
        other[row, 2] += 1
        found = [a != b for a, b in zip(digest_rows(routing), digest_rows(other), strict=True)]
        assert found == [place == row for place in range(50)]
        assert digest_rows(routing, NH128)[3] == of(routing[3])

    def test_a_value_without_rows(self) -> None:
        with pytest.raises(EvidenceError, match="without axes"):
            digest_rows(torch.tensor(1.0))

    def test_packed_values_and_all_scales_count(self) -> None:
        """As NVFP4 has them: two fp4 a byte, fp8 scales of blocks, one scale of the tensor."""
        packed = some(torch.float4_e2m1fn_x2, 64)
        scales = some(torch.float8_e4m3fn, 8)
        tensor_scale = torch.tensor(2.5)
        base = digest_scaled(packed, [scales, tensor_scale], NH128)
        assert base[1] == {"dtype": "scaled", "shape": [64]}
        others = [
            (packed.view(torch.uint8).flip(0).view(packed.dtype), [scales, tensor_scale]),
            (packed, [scales.view(torch.uint8).flip(0).view(scales.dtype), tensor_scale]),
            (packed, [scales, torch.tensor(2.0)]),
            (packed, [tensor_scale, scales]),
            (packed, [scales]),
        ]
        assert len({base[0], *(digest_scaled(*each, NH128)[0] for each in others)}) == 6
