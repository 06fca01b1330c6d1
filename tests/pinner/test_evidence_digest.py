"""Equal digests mean equal dtype, shape and bytes; nothing is computed and nothing is changed."""

from __future__ import annotations

import math
import secrets
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp

from pinner.inside.evidence.digest import Algorithm, combine, digest
from pinner.inside.faults import EvidenceError


def of(value: Any) -> str:
    return digest(value)[0]


STRIDED = [
    dtype
    for name in dir(torch)
    if isinstance(dtype := getattr(torch, name), torch.dtype)
    and not str(dtype).startswith(("torch.q", "torch.bits", "torch.int", "torch.uint"))
]
PLAIN_INTEGERS = [
    getattr(torch, f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)
]


def some_bytes(dtype: torch.dtype, count: int) -> torch.Tensor:
    """A tensor of any dtype with random bytes, NaN payloads and all."""
    size = torch.empty(1, dtype=dtype).element_size()
    raw = torch.frombuffer(bytearray(secrets.token_bytes(count * size)), dtype=torch.uint8)
    return (raw & 1).bool() if dtype is torch.bool else raw.view(dtype)


class TestEveryDtype:
    @pytest.mark.parametrize("dtype", sorted({*STRIDED, *PLAIN_INTEGERS}, key=str), ids=str)
    def test_a_flipped_bit_is_seen(self, dtype: torch.dtype) -> None:
        value = some_bytes(dtype, 6)
        same = value.clone()
        text, what = digest(value)
        assert text == of(same)
        assert what == {"dtype": str(dtype).removeprefix("torch."), "shape": list(value.shape)}
        other = value.view(torch.uint8).clone()
        place = secrets.randbelow(other.numel())
        other[place] ^= 1 if dtype is torch.bool else 1 << secrets.randbelow(8)
        assert of(other.view(dtype)) != text, place

    def test_equal_bytes_of_other_dtypes_differ(self) -> None:
        raw = torch.arange(8, dtype=torch.uint8)
        seen = {of(raw.view(dtype)) for dtype in (torch.int16, torch.float16, torch.bfloat16)}
        assert len(seen) == 3

    def test_equal_numbers_of_other_dtypes_differ(self) -> None:
        """hash_tensor: bf16 1.5 equals fp32 1.5."""
        values = [torch.tensor([1.5, 1.5], dtype=d) for d in (torch.bfloat16, torch.float32)]
        assert of(values[0]) != of(values[1])

    def test_torch_and_numpy_agree(self) -> None:
        for dtype in ("float32", "float64", "int8", "int64", "uint16", "bool", "complex64"):
            array = np.arange(6).reshape(2, 3).astype(dtype)
            assert digest(torch.from_numpy(array)) == digest(array)


class TestWhatOtherHashesMiss:
    """F1 to F3: XOR, L1 norm, and ==."""

    def test_two_rows_swapped(self) -> None:
        value = torch.arange(12.0).reshape(3, 4)
        assert of(value) != of(value[[1, 0, 2]])

    def test_pairs_of_equal_elements_flipped_alike(self) -> None:
        assert of(torch.tensor([1.0, 1.0])) != of(torch.tensor([2.0, 2.0]))

    def test_zeros_against_ones(self) -> None:
        assert len({of(torch.full((8,), n)) for n in (0.0, 1.0, 2.0)}) == 3

    def test_signs_moved(self) -> None:
        assert of(torch.tensor([1.0, -2.0])) != of(torch.tensor([2.0, -1.0]))

    def test_four_flips_of_one_unit_that_cancel(self) -> None:
        value = torch.arange(4, dtype=torch.int32)
        assert of(value) != of(value + torch.tensor([1, -1, -1, 1], dtype=torch.int32))

    def test_equal_tensors_with_nan_are_equal(self) -> None:
        value = torch.tensor([math.nan, 1.0])
        assert of(value) == of(value.clone())

    def test_signed_zeros_differ(self) -> None:
        assert of(torch.tensor(0.0)) != of(torch.tensor(-0.0))
        assert of(0.0) != of(-0.0)

    def test_payloads_of_nan_differ(self) -> None:
        payloads = [
            torch.tensor([bits], dtype=torch.int32).view(torch.float32)
            for bits in (0x7FC00000, 0x7FC00001)
        ]
        assert of(payloads[0]) != of(payloads[1])
        quiet, other = (struct.unpack("<d", struct.pack("<Q", 0x7FF8 << 48 | n))[0] for n in (0, 1))
        assert of(quiet) != of(other)


class TestShapes:
    def test_the_shape_counts(self) -> None:
        value = torch.arange(12.0)
        shapes = [(12,), (3, 4), (4, 3), (1, 12), (12, 1), (2, 2, 3)]
        assert len({of(value.reshape(shape)) for shape in shapes}) == len(shapes)

    def test_a_scalar_an_element_and_nothing_differ(self) -> None:
        values = [torch.tensor(1.0), torch.tensor([1.0]), torch.empty(0), torch.empty(0, 3)]
        assert len({of(value) for value in values}) == 4
        assert digest(torch.tensor(1.0))[1]["shape"] == []

    @pytest.mark.parametrize(
        "view",
        [
            lambda t: t.t(),
            lambda t: t[::2],
            lambda t: t[:, 1:3],
            lambda t: t[1:2].expand(5, -1),
            lambda t: t.flip(0),
            lambda t: t.permute(1, 0),
            lambda t: t.as_strided((3, 3), (1, 1)),
        ],
    )
    def test_memory_layout_does_not_count(
        self, view: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        seen = view(torch.arange(24.0).reshape(4, 6))
        assert of(seen) == of(seen.contiguous().clone()) == of(seen.numpy())

    def test_channels_last(self) -> None:
        value = torch.arange(24.0).reshape(1, 2, 3, 4)
        assert of(value) == of(value.to(memory_format=torch.channels_last))

    def test_conjugate_and_negative_views(self) -> None:
        value = torch.tensor([1 + 2j, 3 - 4j])
        assert of(value.conj()) == of(value.conj().resolve_conj())
        assert of(value.conj().imag) == of(value.conj().imag.clone())
        assert of(value.conj()) != of(value)

    @given(hnp.arrays(hnp.scalar_dtypes(), hnp.array_shapes(min_dims=0, min_side=0, max_side=4)))
    @settings(max_examples=100, deadline=None)
    def test_numpy_arrays_of_any_kind(self, array: np.ndarray[Any, Any]) -> None:
        assert digest(array) == digest(array.copy(order="F"))
        assert digest(array)[1]["shape"] == list(array.shape)

    def test_numpy_scalars_are_arrays_without_axes(self) -> None:
        assert digest(np.float32(1.5)) == digest(np.array(1.5, dtype="float32"))

    def test_byte_order_counts(self) -> None:
        assert of(np.array([1, 256], ">i2")) != of(np.array([256, 1], "<i2"))

    def test_fields_of_a_record_count(self) -> None:
        raw = np.zeros(2, [("a", "f4"), ("b", "f4")])
        assert of(raw) != of(raw.view([("a", "f4"), ("c", "f4")]))


class TestPlainValues:
    VALUES = (None, True, 1, 1.0, 1 + 0j, "1", b"1", (1,), ("1",), {"1": 1}, False, 0, "", b"", ())

    def test_all_of_them_differ(self) -> None:
        assert len({of(value) for value in self.VALUES}) == len(self.VALUES)

    @pytest.mark.parametrize("value", VALUES, ids=repr)
    def test_each_equals_itself(self, value: object) -> None:
        assert digest(value) == digest(value)

    def test_large_integers(self) -> None:
        assert len({of(n) for n in (2**64, 2**64 + 1, -(2**64))}) == 3
        of(10**6000)  # more digits than Python prints

    def test_containers_count_their_order_and_depth(self) -> None:
        values = [(1, 2), (2, 1), ((1,), 2), (1, (2,)), {"a": 1, "b": 2}, {"b": 2, "a": 1}]
        assert len({of(value) for value in values}) == len(values)
        assert of([1, 2]) == of((1, 2))

    def test_tensors_in_containers(self) -> None:
        loss = {"lm loss": torch.tensor(2.5), "steps": [torch.ones(2)]}
        assert digest(loss)[1] == {"dtype": "dict", "shape": [2]}
        assert of(loss) != of({**loss, "steps": [torch.ones(2) * 2]})


class TestLayouts:
    def test_sparse(self) -> None:
        dense = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
        forms = [dense, dense.to_sparse(), dense.to_sparse_csr(), dense.to_sparse_csc()]
        assert len({of(form) for form in forms}) == 4
        for convert in ("to_sparse", "to_sparse_csr", "to_sparse_csc"):
            first, other = (getattr(t, convert)() for t in (dense, dense * -1))
            assert of(first) == of(getattr(dense.clone(), convert)())
            assert of(first) != of(other)

    def test_blocks(self) -> None:
        dense = torch.eye(4)
        assert of(dense.to_sparse_bsr((2, 2))) != of(dense.to_sparse_bsc((2, 2)))

    @pytest.mark.filterwarnings("ignore")
    def test_quantised(self) -> None:
        value = torch.tensor([1.0, 2.0])
        first = torch.quantize_per_tensor(value, 0.1, 0, torch.qint8)
        other = torch.quantize_per_tensor(value * 2, 0.2, 0, torch.qint8)
        assert bool((first.int_repr() == other.int_repr()).all())
        assert of(first) != of(other), "scales count"
        assert of(first) == of(first.clone())

    @pytest.mark.filterwarnings("ignore")
    def test_quantised_by_channel(self) -> None:
        zeros = torch.zeros(2, dtype=torch.int64)
        first, other = (
            torch.quantize_per_channel(
                torch.eye(2) * size, torch.tensor([0.1, 0.2]) * size, zeros, 0, torch.qint8
            )
            for size in (1.0, 2.0)
        )
        assert bool((first.int_repr() == other.int_repr()).all())
        assert of(first) != of(other), "scales count"
        assert of(first) == of(first.clone())

    @pytest.mark.filterwarnings("ignore")
    def test_nested_is_digested_as_its_parts_or_refused(self) -> None:
        rows = [torch.ones(2), torch.ones(3)]
        jagged = torch.nested.nested_tensor(rows, layout=torch.jagged)
        assert of(jagged) != of(torch.nested.nested_tensor(rows[::-1], layout=torch.jagged))


class Scaled(torch.Tensor):
    """A quantised tensor as libraries make them: packed values and scales."""

    values: torch.Tensor
    scales: torch.Tensor

    @staticmethod
    def __new__(cls, values: torch.Tensor, scales: torch.Tensor) -> Scaled:
        made: Scaled = torch.Tensor._make_wrapper_subclass(cls, values.shape)
        made.values, made.scales = values, scales
        return made

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["values", "scales"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError("a digest must not compute with the tensor")


class TestSubclasses:
    def test_parts_of_a_wrapper_count_each(self) -> None:
        values, scales = torch.ones(4, dtype=torch.int8), torch.ones(2)
        base = of(Scaled(values, scales))
        assert base == of(Scaled(values.clone(), scales.clone()))
        assert base != of(Scaled(values * 2, scales))
        assert base != of(Scaled(values, scales * 2))
        assert digest(Scaled(values, scales))[1]["shape"] == [4]

    def test_a_parameter_is_a_tensor(self) -> None:
        value = torch.ones(3)
        assert digest(torch.nn.Parameter(value)) == digest(value)

    def test_a_collective_that_is_still_running_is_waited_for(self) -> None:
        from torch.distributed import _functional_collectives as collectives
        from torch.distributed import destroy_process_group, init_process_group
        from torch.testing._internal.distributed.fake_pg import FakeStore

        init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
        try:
            value = collectives.all_reduce(torch.ones(3), "sum", [0, 1])
            assert isinstance(value, collectives.AsyncCollectiveTensor)
            assert not value.completed
            assert of(value) == of(torch.ones(3))
            assert value.completed
        finally:
            destroy_process_group()

    def test_a_local_shard(self) -> None:
        from torch.distributed import destroy_process_group, init_process_group
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor
        from torch.testing._internal.distributed.fake_pg import FakeStore

        init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
        try:
            mesh = init_device_mesh("cpu", (2,))
            value = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)], src_data_rank=None)
            other = distribute_tensor(torch.arange(8.0) + 1, mesh, [Shard(0)], src_data_rank=None)
            assert of(value) == of(value.clone())
            assert of(value) != of(other)
        finally:
            destroy_process_group()


class Opaque(Scaled):
    """One that hides its parts."""

    __tensor_flatten__ = None  # type: ignore[assignment]


class TestRefusals:
    def test_a_subclass_that_hides_its_parts(self) -> None:
        with pytest.raises(EvidenceError, match="Opaque does not say what it is made of"):
            digest(Opaque(torch.ones(4), torch.ones(2)))

    def test_a_fake_tensor(self) -> None:
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode():
            value = torch.ones(3)
        with pytest.raises(EvidenceError, match="a fake tensor has no bytes"):
            digest(value)

    def test_a_tensor_on_the_meta_device(self) -> None:
        with pytest.raises(EvidenceError, match="meta device"):
            digest(torch.empty(3, device="meta"))

    def test_a_tensor_inside_a_transformation(self) -> None:
        def work(row: torch.Tensor) -> torch.Tensor:
            with pytest.raises(EvidenceError, match=r"inside torch\.func"):
                digest(row)
            return row

        torch.func.vmap(work)(torch.ones(2, 3))
        torch.func.grad(lambda t: work(t).sum())(torch.ones(3))

    @pytest.mark.parametrize(
        ("value", "named"),
        [
            (np.array([object()]), "Python objects"),
            (np.ma.masked_array([1, 2], [0, 1]), "masked array"),
            (object(), "builtins.object"),
            ({1, 2}, "builtins.set"),
            ([[[[[[[[[[1]]]]]]]]]], "nested more than 8 deep"),
        ],
    )
    def test_what_has_no_bytes_is_named(self, value: object, named: str) -> None:
        with pytest.raises(EvidenceError, match=named):
            digest(value)

    @pytest.mark.gpu
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn], ids=str)
    def test_where_a_tensor_lies_does_not_count(self, dtype: torch.dtype) -> None:
        value = some_bytes(dtype, 48).reshape(6, 8)
        assert digest(value.cuda()) == digest(value)
        assert digest(value.cuda().t()[1:5]) == digest(value.t()[1:5])

    @pytest.mark.gpu
    def test_a_cuda_graph_that_is_being_captured(self) -> None:
        value = torch.ones(4, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            doubled = value * 2
            with pytest.raises(EvidenceError, match="CUDA graph is being captured"):
                digest(doubled)
        graph.replay()
        assert of(doubled) == of(torch.full((4,), 2.0))


class TestNothingChanges:
    def test_random_state(self) -> None:
        torch.manual_seed(7)
        np.random.seed(7)
        states = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]
        of(torch.ones(3))
        of(np.ones(3))
        assert torch.equal(torch.get_rng_state(), states[0])
        assert (np.random.get_state()[1] == states[1]).all()  # type: ignore[index]

    def test_the_tensor_and_its_graph(self) -> None:
        value = torch.ones(3, requires_grad=True)
        result = (value * 2).sum()
        before = (value._version, result._version, result.grad_fn)
        of(value)
        of(result)
        assert (value._version, result._version, result.grad_fn) == before
        result.backward()
        assert value.grad is not None
        of(value.grad)
        assert value.grad.tolist() == [2.0, 2.0, 2.0]

    def test_under_inference_and_autocast(self) -> None:
        plain = of(torch.ones(3) * 2)
        with torch.inference_mode():
            assert of(torch.ones(3) * 2) == plain
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert of(torch.ones(3) * 2) == plain

    def test_a_mode_of_the_program_sees_none_of_it(self) -> None:
        """Operations that only the digest makes would count as the program's."""
        from torch.overrides import TorchFunctionMode
        from torch.utils._python_dispatch import TorchDispatchMode

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

        value = torch.ones(4, 3).t()
        with Functions(), Dispatch():
            of(value)
        assert seen == []

    def test_default_device_and_dtype_do_not_matter(self) -> None:
        value = torch.ones(3)
        plain = of(value)
        with torch.device("meta"):
            assert of(value) == plain


def test_combining_counts_order_and_absence() -> None:
    one, two = of(1), of(2)
    groups = [[one, two], [two, one], [one], [one, None], [None, one], [None], []]
    assert len({combine(group) for group in groups}) == len(groups)


def test_another_algorithm_takes_tensors_where_they_are() -> None:
    """A digest made on the device needs no more than these two methods."""

    class Counting(Algorithm):
        name = "counting"

        def digest_tensor(self, tensor: Any) -> str:
            return f"counting:{tensor.numel()}"

        def digest_bytes(self, dtype: str, shape: Any, data: Any) -> str:
            return f"counting:{len(data)}"

    assert digest(torch.ones(2, 3), Counting())[0] == "counting:6"
    assert digest([torch.ones(2)], Counting())[0] == f"counting:{len('counting:2')}"
