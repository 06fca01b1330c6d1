"""Arrays that are cut keep their elements and their layout; numbers are those of the libraries."""

from __future__ import annotations

import ctypes
import itertools
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stackbisect.repro import array_edits, element_values
from stackbisect.repro.calls import Array, Program, Ref, Step


@st.composite
def arrays(draw: st.DrawFn) -> Array:
    """int16 of any layout: axes in any order, gaps between lines, elements before the first one.

    What lies in gaps is negative, what are elements is not.
    """
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    order = draw(st.permutations(range(len(shape))))
    strides, step = [0] * len(shape), 1
    for axis in order:
        strides[axis] = step
        step = step * shape[axis] + draw(st.sampled_from([0, 0, 1, 3]))
    offset = draw(st.sampled_from([0, 0, 2]))
    words = [-1] * (offset + 1 + sum((s - 1) * t for s, t in zip(shape, strides, strict=True)))
    for number, place in enumerate(itertools.product(*map(range, shape))):
        words[offset + sum(p * s for p, s in zip(place, strides, strict=True))] = number
    data = element_values.encode("int16", words)
    assert data is not None
    return Array("int16", shape, tuple(strides), offset, data)


def program(**inputs: Array) -> Program:
    step = Step("aten.add.Tensor", tuple(Ref(name) for name in inputs))
    return Program("aten", step.target, inputs, (step,), ("out",))


def numbers(case: Program, name: str) -> list[float]:
    found = array_edits.numbers(case, name)
    assert found is not None
    return found


def expected(one: Array, axis: int, kept: set[int]) -> list[int]:
    places = itertools.product(*map(range, one.shape))
    return [number for number, place in enumerate(places) if place[axis] in kept]


@given(arrays(), st.data())
def test_a_window_has_the_elements_of_the_window(one: Array, data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(one.shape) - 1))
    start = data.draw(st.integers(0, one.shape[axis] - 1))
    stop = data.draw(st.integers(start + 1, one.shape[axis]))
    alias = replace(one, data=b"", alias="x")
    for case, names in ((program(x=one), "x"), (program(x=one, y=alias), "xy")):
        for name in names:
            cut = array_edits.window(case, name, axis, start, stop)
            made = case.with_inputs(**{name: cut})
            assert numbers(made, name) == expected(one, axis, set(range(start, stop)))
            others = set(names) - {name}
            assert all(numbers(made, n) == list(range(one.elements)) for n in others)
    if one.plain:
        assert array_edits.window(program(x=one), "x", axis, start, stop).plain


@given(arrays(), st.data())
def test_what_is_taken_out_of_the_middle_is_gone(one: Array, data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(one.shape) - 1))
    start = data.draw(st.integers(0, one.shape[axis] - 1))
    stop = data.draw(st.integers(start + 1, one.shape[axis]))
    case = program(x=one)
    plain = case.with_inputs(x=array_edits.plain(case, "x"))
    assert plain.inputs["x"].plain
    assert numbers(plain, "x") == list(range(one.elements))
    cut = array_edits.without(plain, "x", axis, start, stop)
    assert cut is not None
    kept = set(range(one.shape[axis])) - set(range(start, stop))
    assert numbers(program(x=cut), "x") == expected(one, axis, kept)


@given(arrays(), st.randoms())
def test_other_numbers_stand_where_the_elements_were(one: Array, draw: random.Random) -> None:
    wanted = [draw.randrange(100) for _ in range(one.elements)]
    changed = array_edits.with_numbers(one, wanted)
    assert changed is not None
    assert numbers(program(x=changed), "x") == wanted
    gaps = [word for word in element_values.decode("int16", changed.data) if word < 0]
    assert len(gaps) == len(one.data) // 2 - one.elements


@given(arrays(), st.integers(0, 255))
def test_memory_around_an_array_changes_none_of_its_elements(one: Array, byte: int) -> None:
    around = array_edits.padded(one, byte)
    assert numbers(program(x=around), "x") == list(range(one.elements))
    assert around.data[:64] == around.data[-64:] == bytes([byte]) * 64


def test_what_shares_padded_memory_in_another_dtype_keeps_its_elements() -> None:
    data = element_values.encode("float32", [1.0, 2.0, 3.0])
    assert data is not None
    one = Array("float32", (3,), (1,), 0, data)
    other = Array("int16", (4,), (1,), 2, b"", alias="x")
    before = numbers(program(x=one, y=other), "y")
    padded = {name: array_edits.padded(each, 0x7B) for name, each in (("x", one), ("y", other))}
    assert numbers(program(**padded), "y") == before
    assert numbers(program(**padded), "x") == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("dtype", [*element_values.FLOATS, "complex64"])
def test_numbers_become_the_bytes_that_torch_makes_of_them(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    drawn = [draw.gauss(0, 1) * 2.0 ** draw.randint(-12, 5) for _ in range(2000)]
    given_ones = [0.0, -0.0, 1.0, 0.1, *drawn]
    if dtype == "complex64":
        made = torch.view_as_complex(torch.tensor(given_ones).reshape(-1, 2))
    else:
        made = torch.tensor(given_ones, dtype=torch.float64)
        made = made if dtype == "float64" else made.float().to(getattr(torch, dtype))
    size = made.numel() * made.element_size()
    assert element_values.encode(dtype, given_ones) == ctypes.string_at(made.data_ptr(), size)
    every = range(256 if "float8" in dtype else 0)
    codes = torch.tensor([*every], dtype=torch.uint8)
    if len(codes):
        wanted = codes.view(getattr(torch, dtype)).double().tolist()
        decoded = element_values.decode(dtype, bytes(every))
        assert [*map(str, decoded)] == [*map(str, wanted)]


@pytest.mark.parametrize(
    ("dtype", "number"), [("float8_e4m3fn", 500.0), ("int8", 200), ("int8", 0.5)]
)
def test_what_a_dtype_does_not_have_is_no_number_of_it(dtype: str, number: float) -> None:
    assert element_values.encode(dtype, [number]) is None


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(1, 52))
def test_fewer_bits(number: float, bits: int) -> None:
    assert element_values.significant(element_values.rounded(number, bits)) <= bits
    cut = element_values.cut_to(number, bits)
    assert element_values.significant(cut) == min(bits, element_values.significant(number))
    assert abs(cut) <= abs(number) or math.isclose(cut, number, rel_tol=2.0 ** (1 - bits))
