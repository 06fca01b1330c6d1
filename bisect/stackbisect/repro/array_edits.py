"""Arrays made smaller or simpler: windows, plain layout, other numbers, other dtypes. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from stackbisect.repro import calls, element_values
from stackbisect.repro.calls import Array, Program

# More numbers than these are not looked at one by one.
MANY = 1 << 16


def numbers(program: Program, name: str) -> list[element_values.Number] | None:
    """The numbers of an input in C order; None where its dtype has none that are known."""
    one = program.inputs[name]
    if one.dtype not in element_values.KNOWN or one.elements > MANY:
        return None
    return element_values.decode(one.dtype, calls.elements(one, program.storage(name)))


def with_numbers(one: Array, found: Sequence[element_values.Number]) -> Array | None:
    """The array with these numbers, its layout kept; None where the dtype does not have them."""
    data = element_values.encode(one.dtype, found)
    return None if data is None else with_elements(one, data)


def with_elements(one: Array, data: bytes) -> Array | None:
    """The array with these bytes as its elements in C order, its layout kept."""
    if one.alias:
        return None
    if one.plain:
        return replace(one, data=data)
    size, held = one.itemsize, bytearray(one.data)
    for number, place in enumerate(calls.places(one)):
        held[place * size : (place + 1) * size] = data[number * size : (number + 1) * size]
    return replace(one, data=bytes(held))


def plain(program: Program, name: str) -> Array:
    """The same elements in C order, aligned, in a storage of their own."""
    one = program.inputs[name]
    data = calls.elements(one, program.storage(name))
    return calls.array(one.dtype, one.shape, data, one.device)


def window(program: Program, name: str, axis: int, start: int, stop: int) -> Array:
    """The elements start..stop of an axis.

    What was dense, in whatever order of its axes, stays so; other layouts keep their strides.
    """
    one = program.inputs[name]
    shape = (*one.shape[:axis], stop - start, *one.shape[axis + 1 :])
    shared = one.alias or any(other.alias == name for other in program.inputs.values())
    order = _dense_order(one)
    if shared or order is None:
        moved = one.offset + start * one.strides[axis]
        cut = replace(one, shape=shape, offset=moved)
        return cut if shared else _trimmed(cut)
    held = tuple(one.shape[each] for each in order)
    data = one.data[one.offset * one.itemsize :]
    data = _cut(data, held, order.index(axis), start, stop, itemsize=one.itemsize)
    strides = [0] * len(shape)
    for each, stride in zip(order, calls.c_strides([shape[a] for a in order]), strict=True):
        strides[each] = stride
    return replace(one, shape=shape, strides=tuple(strides), offset=0, data=data)


def without(program: Program, name: str, axis: int, start: int, stop: int) -> Array | None:
    """A plain array without the elements start..stop of an axis; None for another layout."""
    one = program.inputs[name]
    if not one.plain or any(other.alias == name for other in program.inputs.values()):
        return None
    shape = (*one.shape[:axis], one.shape[axis] - (stop - start), *one.shape[axis + 1 :])
    inner = math.prod(one.shape[axis + 1 :]) * one.itemsize
    whole = one.shape[axis] * inner
    data = b"".join(
        one.data[row : row + start * inner] + one.data[row + stop * inner : row + whole]
        for row in range(0, len(one.data), whole)
    )
    return calls.array(one.dtype, shape, data, one.device)


def converted(program: Program, name: str, dtype: str) -> Array | None:
    """The same numbers, rounded, as a plain array of another dtype."""
    one = program.inputs[name]
    found = numbers(program, name)
    if found is None:
        return None
    data = element_values.encode(dtype, found)
    return None if data is None else calls.array(dtype, one.shape, data, one.device)


def padded(one: Array, byte: int) -> Array:
    """The same elements with memory around them that holds `byte` everywhere.

    One that shares its storage moves with it: all inputs of a program are padded together.
    """
    moved = replace(one, offset=one.offset + _AROUND // one.itemsize)
    if one.alias:
        return moved
    around = bytes([byte]) * _AROUND
    return replace(moved, data=around + one.data + around)


_AROUND = 1024  # bytes; a multiple of every alignment that is known of an array


def _dense_order(one: Array) -> list[int] | None:
    """Its axes from the outermost in memory inwards, where no gap is between its elements."""
    order = sorted(range(len(one.shape)), key=lambda axis: (-one.strides[axis], axis))
    wanted = calls.c_strides([one.shape[axis] for axis in order])
    for axis, stride in zip(order, wanted, strict=True):
        if one.shape[axis] != 1 and one.strides[axis] != stride:
            return None
    return order


def _cut(
    data: bytes, shape: Sequence[int], axis: int, start: int, stop: int, *, itemsize: int
) -> bytes:
    inner = math.prod(shape[axis + 1 :]) * itemsize
    whole = shape[axis] * inner
    outer = math.prod(shape[:axis])
    return b"".join(
        data[row * whole + start * inner : row * whole + stop * inner] for row in range(outer)
    )


def _trimmed(one: Array) -> Array:
    """Without the bytes that it does not reach any more."""
    reach = [(size - 1) * stride for size, stride in zip(one.shape, one.strides, strict=True)]
    low = one.offset + sum(min(each, 0) for each in reach)
    high = one.offset + sum(max(each, 0) for each in reach) + 1
    data = one.data[low * one.itemsize : high * one.itemsize]
    return replace(one, offset=one.offset - low, data=data)
