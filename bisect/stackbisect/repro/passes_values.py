"""The ways in which a program's values are made simpler: numbers, arguments, dtypes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from stackbisect.repro import array_edits, element_values, smaller, values
from stackbisect.repro.calls import Named, Program, Value
from stackbisect.repro.element_values import Number
from stackbisect.repro.fills import Fill
from stackbisect.repro.least import Edit, Pass
from stackbisect.repro.triton_case import Kernel

Edits = Iterator[Edit[Program]]

_FEW = smaller.FEW
_BITS = (1, 2, 3, 4, 6, 8, 12, 16, 20)
_PLAIN = "float32"


# -- dtypes ----------------------------------------------------------------------------------------


def dtypes(program: Program) -> Edits:
    """float32 for another dtype of floats: all at once, each one wherever it is, one array."""
    found = {one.dtype for one in program.inputs.values()} & {*element_values.FLOATS}
    others = sorted(found - {_PLAIN})
    if len(others) > 1:
        yield Edit("dtypes", f"all {_PLAIN}", partial(_convert, tuple(others)))
    for dtype in others:
        text = f"{_PLAIN} for {dtype}"
        yield Edit("dtypes", text, partial(_convert, (dtype,)))
    for name, one in program.inputs.items():
        if one.dtype in others:
            alone = partial(_convert_one, name, one.dtype)
            yield Edit(f"dtype {name}", f"{name} {_PLAIN}", alone)


def _convert(dtypes: tuple[str, ...], program: Program) -> Program | None:
    made = program
    for name, one in program.inputs.items():
        if one.dtype in dtypes:
            changed = array_edits.converted(program, name, _PLAIN)
            if changed is None:
                return None
            made = made.with_inputs(**{name: changed})

    def named(_: int, value: Value) -> Value:
        if isinstance(value, Named) and value.text.rpartition(".")[2] in dtypes:
            return Named(f"{value.text.rpartition('.')[0]}.{_PLAIN}")
        return value

    return values.mapped(made, named)


def _convert_one(name: str, dtype: str, program: Program) -> Program | None:
    one = program.inputs.get(name)
    if one is None or one.dtype != dtype:
        return None
    changed = array_edits.converted(program, name, _PLAIN)
    return None if changed is None else program.with_inputs(**{name: changed})


# -- arguments that are numbers --------------------------------------------------------------------


def scalars(program: Program) -> Edits:
    """Numbers among the arguments: 0, 1, half of it, one less, fewer bits.

    Not whole numbers of a kernel's launch: it would read past the end of what it is given.
    """
    for at, value in enumerate(values.leaves(program)):
        if isinstance(program.kernel, Kernel) and not isinstance(value, float):
            continue
        for simpler in _simpler(value):
            yield Edit(f"leaf {at}", f"{simpler} for {value}", partial(_leaf, at, value, simpler))


def _simpler(value: Value) -> Iterator[Value]:
    if value is True:
        yield False
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        return
    elif isinstance(value, int):
        yield from dict.fromkeys(n for n in (0, 1, abs(value), value // 2, value - 1) if n != value)
    else:
        yield from (0.0, 1.0)
        for bits in _BITS:
            number = element_values.rounded(value, bits)
            if number != value:
                yield float(number)


def _leaf(at: int, old: Value, new: Value, program: Program) -> Program | None:
    found = values.leaves(program)
    if at >= len(found) or found[at] != old or type(found[at]) is not type(old):
        return None
    return values.with_leaf(program, at, new)


# -- numbers in arrays -----------------------------------------------------------------------------


def whole_arrays(program: Program) -> Edits:
    """All of an array: zeros, ones, small integers, few bits, numbers from a seed."""
    for name, one in program.inputs.items():
        if one.dtype in element_values.INTEGERS:
            yield Edit(f"values {name}", f"{name}: zeros", partial(_fill, (name,), Fill("zeros")))
    names = _arrays(program)
    for fill in (Fill("zeros"), Fill("ones"), Fill("integers"), Fill("uniform")):
        if len(names) > 1:
            yield Edit("arrays", f"all {fill.name}", partial(_fill, names, fill))
        for name in names:
            large = program.inputs[name].elements > _FEW
            if large or fill.name != "uniform":
                change = partial(_fill, (name,), fill)
                yield Edit(f"values {name}", f"{name}: {fill.name}", change)
    for name in names:
        for bits in _BITS:
            text = f"{name}: numbers of {bits} bits"
            yield Edit(f"values {name}", text, partial(_round, name, bits))
        yield Edit(f"values {name}", f"{name}: no signs", partial(_unsigned, name))


def _arrays(program: Program) -> tuple[str, ...]:
    """Those of floats. Integers may be indices: nothing but 0 is sure to be one too."""
    found = element_values.FLOATS
    return tuple(name for name, one in program.inputs.items() if one.dtype in found)


def _fill(names: Sequence[str], fill: Fill, program: Program) -> Program | None:
    made = program
    for name in names:
        one = program.inputs.get(name)
        if one is None or not fill.fits(one.dtype, one.elements):
            return None
        changed = array_edits.with_elements(one, fill.data(one.dtype, one.elements))
        if changed is None:
            return None
        made = made.with_inputs(**{name: changed})
    return made


def _round(name: str, bits: int, program: Program) -> Program | None:
    found = _numbers(program, name)
    if found is None:
        return None
    return _with(program, name, [element_values.rounded(n, bits) for n in found])


def _unsigned(name: str, program: Program) -> Program | None:
    found = _numbers(program, name)
    return None if found is None else _with(program, name, [abs(n) for n in found])


def elements(program: Program) -> Edits:
    """Some elements of an array: zeros, ones, or as the first of them; halves of it, then less."""
    for name in _arrays(program):
        found = _numbers(program, name)
        if found is None or len(found) > 64 * _FEW:
            continue
        for start, stop in _chunks(len(found)):
            for value in dict.fromkeys((0.0, 1.0, float(found[start]))):
                if any(n != value for n in found[start:stop]):
                    text = f"{name}: {value} from {start} to {stop}"
                    change = partial(_set, name, start, stop, value)
                    yield Edit(f"elements {name} {start} {stop}", text, change)


def single_elements(program: Program) -> Edits:
    """One element of a small array: fewer bits, no fraction, no sign."""
    for name in _arrays(program):
        found = _numbers(program, name)
        if found is None or len(found) > _FEW:
            continue
        for at, number in enumerate(found):
            for simpler in _simpler_elements(number):
                text = f"{name}: {simpler} at {at}"
                change = partial(_set, name, at, at + 1, simpler)
                yield Edit(f"elements {name} {at} {at + 1}", text, change)


def _simpler_elements(number: Number) -> Iterator[float]:
    least = element_values.complexity(number)
    now = element_values.significant(number)
    tried = [2.0, float(round(number)) if abs(number) < 2**31 else 1.0, abs(float(number))]
    for count in (*_BITS, now - 1, now):
        if 1 < count <= now:
            # Whole numbers and fractions with just so many bits, and the nearest to this one.
            tried += [2.0 ** (count - 1) + 1, 1 + 2.0 ** (1 - count)]
            tried.append(float(element_values.cut_to(number, count)))
        if count > 0:
            tried.append(float(element_values.rounded(number, count)))
    for each in dict.fromkeys(tried):
        if element_values.complexity(each) < least:
            yield each


def _set(name: str, start: int, stop: int, value: float, program: Program) -> Program | None:
    found = _numbers(program, name)
    if found is None or stop > len(found):
        return None
    return _with(program, name, [*found[:start], *([value] * (stop - start)), *found[stop:]])


def _numbers(program: Program, name: str) -> list[Number] | None:
    return array_edits.numbers(program, name) if name in program.inputs else None


def _with(program: Program, name: str, found: Sequence[Number]) -> Program | None:
    changed = array_edits.with_numbers(program.inputs[name], found)
    return None if changed is None else program.with_inputs(**{name: changed})


def _chunks(size: int) -> Iterator[tuple[int, int]]:
    """Halves, quarters, … down to single elements where there are few."""
    piece = size // 2
    while piece >= 1 and (piece > 1 or size <= 4 * _FEW):
        for start in range(0, size, piece):
            yield start, min(start + piece, size)
        piece //= 2


NUMBERS: tuple[Pass[Program], ...] = (
    Pass("whole arrays", whole_arrays, 2),
    Pass("elements", elements, 2),
    Pass("single elements", single_elements, 3),
)
ALL: tuple[Pass[Program], ...] = (
    Pass("dtypes", dtypes, 1),
    Pass("scalars", scalars, 2),
    *NUMBERS,
)
