"""What makes one program smaller than another: one measure, which every step of shrinking lowers.

Each of its numbers outweighs all that follow. Calls first, then programs of a kernel's grid, then
elements: what a reader has to run in their head. What the values are comes last.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Iterator

from stackbisect.repro import array_edits, calls, element_values, fills, values
from stackbisect.repro.calls import Array, Listed, Named, Program, Ref, Table, Value
from stackbisect.repro.least import Measure
from stackbisect.repro.module_case import Module
from stackbisect.repro.triton_case import Kernel

# float32 is what readers know best; a float's dtype is as far from it as this.
_DTYPES = {
    "float64": 1,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 3,
    "float8_e5m2": 3,
    "complex64": 4,
    "complex128": 5,
}
# Elements that a reader can look at one by one.
FEW = 64
# An array of more that a line of the program makes is no more than this, however many it has.
LINE = 512
_WHOLE = 4096  # elements; in larger arrays they are not weighed one by one
_ELEMENT = 160


def measure(program: Program) -> Measure:
    """The numbers to compare, the weightiest first."""
    arrays = program.inputs.values()
    grid, constants = _kernel(program)
    given = values.leaves(program)
    return (
        len(program.steps),
        grid,
        program.elements,
        _arguments(program),
        constants,
        sum(_DTYPES.get(name, 0) for name in _dtypes(program)),
        sum(_layout(each) for each in arrays),
        len(program.outputs),
        _surroundings(program),
        sum(value_complexity(each) for each in given),
        sum(array_complexity(program, name) for name in program.inputs),
    )


def key(program: Program) -> Hashable:
    """The same for equal programs."""
    digest = hashlib.sha256(repr(program).encode())
    for one in program.inputs.values():
        digest.update(hashlib.sha256(one.data).digest())
    digest.update(program.generator or b"")
    return digest.digest()


def weight(program: Program) -> int:
    """How many bytes its arrays are, and its module."""
    held = len(program.kernel.pickle) if isinstance(program.kernel, Module) else 0
    return held + sum(len(each.data) for each in program.inputs.values())


def value_complexity(value: Value) -> int:
    """How much it takes to write an argument; nothing is least, then False and 0."""
    if value is None:
        return 0
    if isinstance(value, bool):
        return 1 + value
    if isinstance(value, (int, float)):
        return 1 + element_values.complexity(value)
    if isinstance(value, (Ref, Named)):
        return 1
    return 8


def array_complexity(program: Program, name: str) -> int:
    """How much it takes to write an array."""
    one = program.inputs[name]
    if one.elements > _WHOLE:
        return _large(one)
    found = array_edits.numbers(program, name)
    if found is None:
        return one.elements * _ELEMENT
    each = sum(map(element_values.complexity, found))
    if one.elements > FEW and each > LINE and fills.recognised(one.dtype, one.data) is not None:
        return LINE
    return each


def _large(one: Array) -> int:
    if one.data.count(0) == len(one.data):
        return 0
    fill = fills.recognised(one.dtype, one.data) if one.plain else None
    if fill is None:
        return one.elements * _ELEMENT
    return one.elements if fill.name == "ones" else LINE


def _dtypes(program: Program) -> Iterator[str]:
    """Of arrays, and as arguments."""
    for one in program.inputs.values():
        yield one.dtype
    for value in values.leaves(program):
        if isinstance(value, Named):
            yield value.text.rpartition(".")[2]


def _arguments(program: Program) -> int:
    """Arguments that are given; elements of lists are some, and None is half of one."""
    return sum(
        _count(each) for step in program.steps for each in (*step.args, *step.kwargs.values())
    )


def _count(value: Value) -> int:
    if isinstance(value, (tuple, Listed)):
        items = value.items if isinstance(value, Listed) else value
        return 2 + sum(_count(each) for each in items)
    if isinstance(value, Table):
        return 2 + sum(_count(each) for _, each in value.items)
    return 1 if value is None else 2


def _kernel(program: Program) -> tuple[int, int]:
    """Programs of its grid, and what its constants come to."""
    kernel = program.kernel
    if not isinstance(kernel, Kernel):
        return 1, 0
    given = program.steps[0].kwargs
    held = [*(given.get(name) for name in kernel.constexprs), *kernel.options.values()]
    whole = [abs(each) for each in held if isinstance(each, int)]
    return math.prod(kernel.grid), sum(whole) + len(kernel.options)


def _layout(one: Array) -> int:
    """0 for elements in C order, aligned, with nothing around them."""
    if one.plain and one.alignment >= calls.Array.alignment:
        return 0
    around = 0 if one.alias else max(len(one.data) // one.itemsize - one.elements, 0)
    return 1 + around + (not one.contiguous) + bool(one.alias) + (one.alignment < 64)


def _surroundings(program: Program) -> int:
    """What is set before the first step: names, and how many threads."""
    threads = program.settings.get("threads")
    many = threads if isinstance(threads, int) else 0
    drawn = 2 if program.generator is not None else int(program.seed is not None)
    return 64 * (len(program.settings) + len(program.imports) + drawn) + many
