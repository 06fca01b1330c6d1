"""The ways in which a program is made smaller: named passes that propose edits. Pure.

Of the parts of a program: steps, outputs, arguments, what is set before, a kernel's grid and
constants, sizes, layouts. What its values are is in `passes_values`. An edit need not make sense:
what it gives is tried, and only what still shows the finding is kept. But it must not make a
program read memory that it does not own: sizes go together with whatever says them (see `_follow`),
and in a kernel's launch only so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import TypeGuard

from stackbisect.repro import array_edits, calls, element_values, passes_values, smaller, values
from stackbisect.repro.calls import Listed, Program, Ref, Step, Value
from stackbisect.repro.least import Edit, Pass
from stackbisect.repro.module_case import Module
from stackbisect.repro.triton_case import Kernel

Edits = Iterator[Edit[Program]]
_SMALL = 8
_ALIGNED = calls.Array.alignment


# -- steps -----------------------------------------------------------------------------------------


def operations(program: Program) -> Edits:
    """End after an earlier step; leave steps out, what they gave replaced by what they got."""
    steps = program.steps
    if len(steps) < 2:
        return
    for end in range(1, len(steps)):
        yield Edit("steps", f"end after step {end}", partial(_end_after, end))
    yield Edit("steps", "only steps whose results are read", _needed)
    size = len(steps) // 2
    while size >= 1:
        for start in range(0, len(steps), size):
            gone = range(start, min(start + size, len(steps)))
            if len(gone) < len(steps):
                yield Edit("steps", f"without steps {start}…", partial(_without, gone))
        size //= 2


def _end_after(end: int, program: Program) -> Program | None:
    if end >= len(program.steps) or not any(program.steps[end - 1].results):
        return None
    last = program.steps[end - 1]
    outputs = tuple(name for name in last.results if name)
    return _same_operation(program, replace(program, steps=program.steps[:end], outputs=outputs))


def _without(gone: range, program: Program) -> Program | None:
    """Each result of a step that goes is replaced by the first thing that the step read."""
    if gone.stop > len(program.steps):
        return None
    others: dict[str, str] = {}
    for number in gone:
        step = program.steps[number]
        read = next(step.refs(), None)
        for name in step.results:
            if name and read is not None:
                others[name] = others.get(read, read)

    def renamed(_: int, value: Value) -> Value:
        return Ref(others.get(value.name, value.name)) if isinstance(value, Ref) else value

    kept = tuple(s for number, s in enumerate(program.steps) if number not in gone)
    made = values.mapped(replace(program, steps=kept), renamed)
    outputs = tuple(dict.fromkeys(name for name in program.outputs if name not in others))
    if not outputs:
        outputs = tuple(name for name in made.steps[-1].results if name)
    return _same_operation(program, replace(made, outputs=outputs))


def _same_operation(program: Program, made: Program) -> Program | None:
    """A case whose operation is gone would be another finding."""
    had = any(step.target == program.operation for step in program.steps)
    if had and not any(step.target == made.operation for step in made.steps):
        return None
    return made.used() if made.outputs else None


def _needed(program: Program) -> Program | None:
    """Without steps that no output needs. They may be needed all the same: libraries remember."""
    wanted = set(program.outputs)
    kept: list[Step] = []
    for step in reversed(program.steps):
        if not any(step.results) or wanted & {*step.results} or wanted & {*step.refs()}:
            kept.append(step)
            wanted |= {*step.refs()}
    return _same_operation(program, replace(program, steps=tuple(reversed(kept))))


def outputs(program: Program) -> Edits:
    """One output of several."""
    if len(program.outputs) > 1:
        for name in program.outputs:
            yield Edit("outputs", f"only {name}", partial(_only_output, name))


def _only_output(name: str, program: Program) -> Program | None:
    if name not in program.outputs:
        return None
    return _same_operation(program, replace(program, outputs=(name,)))


# -- arguments -------------------------------------------------------------------------------------


def arguments(program: Program) -> Edits:
    """None for an argument, those at the end left to their defaults, names left out, lists cut."""
    if isinstance(program.kernel, Kernel):
        return  # the kernel's text names them all, and a pointer that is None may not be read
    for number, step in enumerate(program.steps):
        for count in range(len(step.args)):
            some = partial(_args, number, count)
            yield Edit(f"arguments {number}", f"the first {count} arguments", some)
        for name in step.kwargs:
            yield Edit(
                f"argument {number} {name}", f"without {name}", partial(_kwarg, number, name)
            )
        for place, value in enumerate(step.args):
            if isinstance(value, (tuple, Listed)):
                yield from _shorter(number, place, value)
    for at, value in enumerate(values.leaves(program)):
        if value is not None and not isinstance(value, bool):  # torch takes None for a bool
            nothing = partial(_nothing, at, value)
            yield Edit(f"leaf {at}", f"None for argument {at}", nothing)


def _args(number: int, count: int, program: Program) -> Program | None:
    return _changed_step(program, number, lambda step: replace(step, args=step.args[:count]))


def _kwarg(number: int, name: str, program: Program) -> Program | None:
    def without(step: Step) -> Step:
        return replace(step, kwargs={n: v for n, v in step.kwargs.items() if n != name})

    return _changed_step(program, number, without)


def _shorter(number: int, place: int, value: tuple[Value, ...] | Listed) -> Edits:
    items = value.items if isinstance(value, Listed) else value
    half = len(items) // 2
    parts = [items[:half], items[half:]] if len(items) > 3 else []
    parts += [(*items[:at], *items[at + 1 :]) for at in range(len(items))] if len(items) > 1 else []
    for part in parts:
        cut = partial(_list, number, place, value, part)
        yield Edit(f"list {number} {place}", f"a list of {len(part)}", cut)


def _list(
    number: int, place: int, old: Value, items: tuple[Value, ...], program: Program
) -> Program | None:
    def cut(step: Step) -> Step | None:
        if place >= len(step.args) or step.args[place] != old:
            return None
        new: Value = Listed(items) if isinstance(old, Listed) else items
        return replace(step, args=(*step.args[:place], new, *step.args[place + 1 :]))

    return _changed_step(program, number, cut)


def _nothing(at: int, old: Value, program: Program) -> Program | None:
    found = values.leaves(program)
    if at >= len(found) or found[at] != old:
        return None
    return values.with_leaf(program, at, None).used()


def _changed_step(
    program: Program, number: int, change: Callable[[Step], Step | None]
) -> Program | None:
    if number >= len(program.steps):
        return None
    step = change(program.steps[number])
    if step is None or step == program.steps[number]:
        return None
    steps = (*program.steps[:number], step, *program.steps[number + 1 :])
    return replace(program, steps=steps).used()


def surroundings(program: Program) -> Edits:
    """Nothing set, nothing drawn, nothing imported, one thread."""
    for name, value in program.settings.items():
        rest = {n: v for n, v in program.settings.items() if n != name}
        # Few elements are one thread's work, however many there are on the next machine.
        if name != "threads" or program.elements <= smaller.FEW:
            yield Edit(f"setting {name}", f"without {name}", partial(_settings, rest))
        if name == "threads" and value != 1:
            one = {**program.settings, name: 1}
            yield Edit(f"setting {name}", "one thread", partial(_settings, one))
    for name in program.imports:
        yield Edit(f"import {name}", f"without {name}", partial(_without_import, name))
    if program.generator is not None or program.seed is not None:
        yield Edit("generator", "nothing drawn", lambda p: replace(p, generator=None, seed=None))


def _settings(settings: Mapping[str, Value], program: Program) -> Program:
    return replace(program, settings=settings)


def _without_import(name: str, program: Program) -> Program:
    return replace(program, imports=tuple(each for each in program.imports if each != name))


# -- a kernel's launch -----------------------------------------------------------------------------


def grid(program: Program) -> Edits:
    """Fewer programs along each axis."""
    if not isinstance(program.kernel, Kernel):
        return
    if any(size > 1 for size in program.kernel.grid):
        yield Edit("grid", "one program", partial(_grid, (1, 1, 1)))
    for axis, size in enumerate(program.kernel.grid):
        for fewer in _less(size):
            sizes = tuple(fewer if n == axis else s for n, s in enumerate(program.kernel.grid))
            yield Edit(f"grid {axis}", f"{fewer} programs", partial(_grid, sizes))


def _grid(sizes: tuple[int, ...], program: Program) -> Program | None:
    x, y, z = sizes
    return replace(program, kernel=replace(program.kernel, grid=(x, y, z)))


def constants(program: Program) -> Edits:
    """Smaller constants, and options: halves, as most of them are powers of two."""
    if not isinstance(program.kernel, Kernel):
        return
    (step,) = program.steps
    for name in program.kernel.constexprs:
        value = step.kwargs.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            for fewer in (*_halves(value), value - 1):
                if 0 < fewer < value:
                    change = partial(_constant, name, value, fewer)
                    yield Edit(f"constant {name}", f"{name}={fewer}", change)
    for name, value in program.kernel.options.items():
        yield Edit(f"option {name}", f"without {name}", partial(_option, name, None))
        if isinstance(value, int) and value > 1:
            yield Edit(f"option {name}", f"{name}=1", partial(_option, name, 1))


def _constant(name: str, old: int, new: int, program: Program) -> Program | None:
    def change(step: Step) -> Step | None:
        return None if step.kwargs.get(name) != old else _with_kwarg(step, name, new)

    return _changed_step(program, 0, change)


def _with_kwarg(step: Step, name: str, value: Value) -> Step:
    return replace(step, kwargs={**step.kwargs, name: value})


def _option(name: str, value: Value, program: Program) -> Program:
    options = {n: v for n, v in program.kernel.options.items() if n != name}
    if value is not None:
        options[name] = value
    return replace(program, kernel=replace(program.kernel, options=options))


# -- sizes -----------------------------------------------------------------------------------------


def sizes(program: Program) -> Edits:
    """A size that inputs have, wherever it is one, to a window of it."""
    found = _sizes(program)
    for windows in (_pieces, _ends):
        for size in found:
            for start, stop in windows(size):
                text = f"size {size}: {start} to {stop}"
                yield Edit(f"size {size}", text, partial(_resize, size, start, stop, True))


def single_sizes(program: Program) -> Edits:
    """Sizes of arrays alone, multiples of a size with it, one axis alone."""
    if isinstance(program.kernel, Kernel):
        return  # it would read what is not there
    found = _sizes(program)
    for size in found:
        for start, stop in (*_pieces(size), *_ends(size)):
            text = f"size {size} of arrays: {start} to {stop}"
            yield Edit(f"size {size}", text, partial(_resize, size, start, stop, False))
    for size in found:
        if any(other % size == 0 and other > size for other in found):
            for fewer in _less(size):
                text = f"multiples of {size} to those of {fewer}"
                yield Edit(f"size {size}", text, partial(_scale, size, fewer))
    for name, one in program.inputs.items():
        for axis, size in enumerate(one.shape):
            for start, stop in (*_pieces(size), *_ends(size)):
                text = f"{name}, axis {axis}: {start} to {stop}"
                cut = partial(_cut_axis, name, axis, size, (start, stop))
                yield Edit(f"axis {name} {axis}", text, cut)


def _sizes(program: Program) -> list[int]:
    """The sizes of axes, the largest first."""
    found = {size for one in program.inputs.values() for size in one.shape if size > 1}
    return sorted(found, reverse=True)


def _pieces(size: int) -> Iterator[tuple[int, int]]:
    """One of it, eighths, quarters, halves; little at either end. All there are of a small one."""
    if size <= _SMALL:
        yield from _windows(size)
        return
    seen = set()
    for piece in (1, size // 8, size // 4, size // 2, 2, 4):
        starts = range(0, size - piece + 1, piece)
        few = starts if piece * 9 >= size else (0, size - piece)
        for start in few:
            if (start, start + piece) not in seen:
                seen.add((start, start + piece))
                yield start, start + piece


def _windows(size: int) -> Iterator[tuple[int, int]]:
    for piece in range(1, size):
        for start in range(size - piece + 1):
            yield start, start + piece


def _ends(size: int) -> Iterator[tuple[int, int]]:
    """A quarter less, an eighth, …, one less; at either end."""
    seen = set()
    step = size // 4 if size > _SMALL else 0
    while step >= 1:
        for window in ((0, size - step), (step, size)):
            if window not in seen:
                seen.add(window)
                yield window
        step //= 2


def holes(program: Program) -> Edits:
    """A size without a part in its middle: quarters, eighths, … of it."""
    found = _sizes(program)
    for size in found:
        for start, stop in _parts(size):
            text = f"size {size} without {start} to {stop}"
            yield Edit(f"size {size}", text, partial(_hole, size, start, stop))
    if isinstance(program.kernel, Kernel):
        return
    for name, one in program.inputs.items():
        for axis, size in enumerate(one.shape):
            if _axes(program, size) > 1:
                for start, stop in _parts(size):
                    text = f"{name}, axis {axis}, without {start} to {stop}"
                    cut = partial(_hole_in_axis, name, axis, size, (start, stop))
                    yield Edit(f"axis {name} {axis}", text, cut)


def _axes(program: Program, size: int) -> int:
    return sum(one.shape.count(size) for one in program.inputs.values())


def _parts(size: int) -> Iterator[tuple[int, int]]:
    piece = max(size // 4, 1)
    while piece >= max(1, size // 64) and size > 1:
        for start in range(0, size - piece + 1, piece):
            yield start, start + piece
        piece //= 2


def _hole(size: int, start: int, stop: int, program: Program) -> Program | None:
    made = program
    for name, one in program.inputs.items():
        for axis, each in enumerate(one.shape):
            if each == size:
                cut = array_edits.without(made, name, axis, start, stop)
                if cut is None:
                    return None
                made = made.with_inputs(**{name: cut})
    if made is program:
        return None
    made = _valid(made, size, Left(start, stop, size - (stop - start)))
    return _follow(program, made, {size: size - (stop - start)})


def _hole_in_axis(
    name: str, axis: int, size: int, span: tuple[int, int], program: Program
) -> Program | None:
    one = program.inputs.get(name)
    if one is None or axis >= len(one.shape) or one.shape[axis] != size:
        return None
    cut = array_edits.without(program, name, axis, *span)
    if cut is None:
        return None
    made = program.with_inputs(**{name: cut})
    return _valid(made, size, Left(*span, size - (span[1] - span[0])))


@dataclass(frozen=True)
class Left:
    """What is left of an axis: so many elements, those from `start` to `stop` gone."""

    start: int
    stop: int
    many: int

    def moved(self, place: int) -> int:
        """Where a place is now; the next one where it is gone."""
        return place - min(max(place - self.start, 0), self.stop - self.start)


def _resize(size: int, start: int, stop: int, follow: bool, program: Program) -> Program | None:
    if all(size not in one.shape for one in program.inputs.values()):
        return None
    made = program
    for name, one in program.inputs.items():
        for axis, each in enumerate(one.shape):
            if each == size:
                made = made.with_inputs(**{name: array_edits.window(made, name, axis, start, stop)})
    made = _valid(made, size, Left(0, start, stop - start))
    return _follow(program, made, {size: stop - start}) if follow else made


def _scale(size: int, fewer: int, program: Program) -> Program | None:
    made, changed = program, {}
    for name, one in program.inputs.items():
        for axis, each in enumerate(one.shape):
            if each % size == 0 and each:
                new = each // size * fewer
                made = made.with_inputs(**{name: array_edits.window(made, name, axis, 0, new)})
                changed[each] = new
    for each, new in changed.items():
        made = _valid(made, each, Left(0, 0, new))
    return _follow(program, made, changed)


def _cut_axis(
    name: str, axis: int, size: int, span: tuple[int, int], program: Program
) -> Program | None:
    one = program.inputs.get(name)
    if one is None or axis >= len(one.shape) or one.shape[axis] != size:
        return None
    made = program.with_inputs(**{name: array_edits.window(program, name, axis, *span)})
    return _valid(made, size, Left(0, span[0], span[1] - span[0]))


def _follow(before: Program, after: Program, sizes: Mapping[int, int]) -> Program | None:
    """Whole numbers among the arguments that say sizes, strides and products of them follow.

    Where a number could follow two things that became different, it stays. Not in a launch, which
    would read what is not there: then nothing is changed, and a number that follows nothing shrinks
    as the arrays do.
    """
    new: dict[int, set[int]] = {}
    for name, one in before.inputs.items():
        for old, changed in zip(said(one), said(after.inputs[name]), strict=True):
            new.setdefault(old, set()).add(changed)
    launch = before.kernel if isinstance(before.kernel, Kernel) else None
    if launch is None:
        new.update((old, {changed}) for old, changed in sizes.items())
        return values.mapped(after, lambda _, value: _followed(value, new, Fraction(1)))
    (step,) = after.steps
    part, kwargs = _part_left(before, after), dict(step.kwargs)
    for name, value in step.kwargs.items():
        if name in launch.constexprs:
            continue
        if _whole(value) and len(new.get(value, ())) > 1:
            return None
        kwargs[name] = _followed(value, new, part)
    return replace(after, steps=(replace(step, kwargs=kwargs),))


def _followed(value: Value, new: Mapping[int, set[int]], part: Fraction) -> Value:
    if not _whole(value):
        return value
    found = new.get(value, set())
    if found:
        return min(found) if len(found) == 1 else value
    return max(int(value * part), 1)


def _whole(value: Value) -> TypeGuard[int]:
    """Whether it may say a size: 0 and 1 say too much to be followed."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 1


def _part_left(before: Program, after: Program) -> Fraction:
    """Of the array that lost most."""
    parts = [
        Fraction(len(after.inputs[name].data), len(one.data))
        for name, one in before.inputs.items()
        if one.data
    ]
    return min([Fraction(1), *parts])


def said(one: calls.Array) -> list[int]:
    """Arguments say of an array: sizes, elements of all axes, of all but the first, strides."""
    found = [1]
    for size in reversed(one.shape):
        found.append(found[-1] * size)
    return [*one.shape, *found[:0:-1], *one.strides]


def _valid(program: Program, size: int, left: Left) -> Program:
    """Indices into an axis, and offsets along it, that fit what is left of it.

    Whole numbers that all lie below the size may be indices, and if they grow up to the size,
    offsets. What is neither keeps its values below a bound, which does no harm.
    """
    made = program
    for name, one in program.inputs.items():
        if one.dtype not in element_values.INTEGERS:
            continue
        found = array_edits.numbers(program, name)
        if not found or max(found) > size or max(found) < 1:
            continue
        offsets = max(found) == size
        if offsets and found != sorted(found):
            continue
        most = left.many if offsets else left.many - 1
        kept = [n if n < 0 else min(left.moved(int(n)), most) for n in found]
        changed = array_edits.with_numbers(one, kept)
        if changed is not None:
            made = made.with_inputs(**{name: changed})
    return made


# -- layouts ---------------------------------------------------------------------------------------


def layouts(program: Program) -> Edits:
    """Elements in C order, aligned, sharing their storage with nothing."""
    odd = [n for n, one in program.inputs.items() if not one.plain or one.alignment < _ALIGNED]
    if len(odd) > 1:
        yield Edit("layouts", "all arrays plain", partial(_plain, tuple(odd)))
    for name in odd:
        yield Edit(f"layout {name}", f"{name} plain", partial(_plain, (name,)))
        yield Edit(f"layout {name}", f"{name} aligned", partial(_aligned, name))


def _plain(names: tuple[str, ...], program: Program) -> Program | None:
    if any(name not in program.inputs for name in names):
        return None
    made = program
    for name in names:
        if any(one.alias == name for one in made.inputs.values()):
            for other, one in made.inputs.items():
                if one.alias == name:
                    made = made.with_inputs(**{other: array_edits.plain(made, other)})
        made = made.with_inputs(**{name: array_edits.plain(made, name)})
    return _follow(program, made, {})


def _aligned(name: str, program: Program) -> Program | None:
    one = program.inputs.get(name)
    return None if one is None else program.with_inputs(**{name: replace(one, alignment=_ALIGNED)})


# -- all of them -----------------------------------------------------------------------------------


def _less(size: int) -> Iterator[int]:
    """Smaller sizes: 1, halves, then nearer ones."""
    seen = set()
    cuts = [size - (size >> shift) for shift in range(2, size.bit_length() + 1)]
    for fewer in (1, *_halves(size), *cuts, size - 1):
        if 0 < fewer < size and fewer not in seen:
            seen.add(fewer)
            yield fewer


def _halves(size: int) -> list[int]:
    """size/2, size/4, …, the smallest first."""
    found = []
    while size > 1:
        size //= 2
        found.append(size)
    return found[::-1]


ALL: tuple[Pass[Program], ...] = (
    Pass("operations", operations),
    Pass("grid", grid),
    Pass("sizes", sizes),
    Pass("outputs", outputs),
    Pass("arguments", arguments),
    Pass("layouts", layouts),
    Pass("surroundings", surroundings),
    Pass("single sizes", single_sizes, 1),
    Pass("holes", holes, 1),
    Pass("constants", constants, 1),
    *passes_values.ALL,
)


def of(program: Program) -> tuple[Pass[Program], ...]:
    """Those that a program can bear.

    A call of a library below torch is told sizes and layouts that the passes do not know: only the
    numbers in its arrays are changed.
    """
    if program.kernel is None or isinstance(program.kernel, (Kernel, Module)):
        return ALL
    return passes_values.NUMBERS
