"""Renders calls of numpy and scipy as repro.py, which needs nothing else.

Inputs are expressions where a line gives the same bytes; else they lie in inputs.bin. Arrays that
share memory, have gaps or do not begin where numpy would put them are laid out as they were.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from stackbisect.repro import fills
from stackbisect.repro.calls import ITEMSIZE, Array, Program, Step
from stackbisect.repro.form import SCRIPT
from stackbisect.repro.render_torch import (
    ENVIRON,
    INPUTS,
    MOST_WRITTEN,
    STORED,
    code,
    folded,
    memory_of,
    wrapped,
)

ALIGNED = 16  # what malloc gives, and numpy with it
_MOST_ALIGNED = 64


def files(program: Program) -> dict[str, bytes]:
    """repro.py, and inputs.bin where it needs one."""
    writing = _Writing(program)
    text = "\n".join(writing.page(list(writing.body()))) + "\n"
    found = {SCRIPT: text.encode("utf-8")}
    if writing.blocks:
        found[INPUTS] = bytes(writing.blocks)
    return found


@dataclass
class _Writing:
    """One program on its way to text: what was put into inputs.bin, what the text needs."""

    program: Program
    blocks: bytearray = field(default_factory=bytearray)
    needed: set[str] = field(default_factory=set)
    fills: dict[fills.Fill, None] = field(default_factory=dict)

    def body(self) -> Iterator[str]:
        """The lines of `outputs()`."""
        for name in self.program.inputs:
            yield from self._input(name)
        for step in self.program.steps:
            yield from _called(step)
        names = ", ".join(f'"{name}": numpy.asarray({name})' for name in self.program.outputs)
        yield f"return {{{names}}}"

    def _input(self, name: str) -> Iterator[str]:
        one = self.program.inputs[name]
        sharing = [each for each in self.program.inputs.values() if each.alias == name]
        if one.alias:
            yield f"{name} = {self._view(memory_of(one.alias), one)}"
            return
        if one.elements == 0:
            yield f'{name} = numpy.zeros({one.shape}, dtype="{one.dtype}")'
            return
        if one.plain and one.alignment >= ALIGNED and not sharing:
            yield f"{name} = {self._filled(one.dtype, one.shape, one.data)}"
            return
        shift = (one.alignment - one.offset * one.itemsize) % _MOST_ALIGNED
        dtype, data = one.dtype, one.data
        if len(data) % one.itemsize:
            dtype = "uint8"
        shape = (len(data) // ITEMSIZE[dtype],)
        yield f"{memory_of(name)} = memory({self._filled(dtype, shape, data)}, {shift})"
        yield f"{name} = {self._view(memory_of(name), one)}"

    def _view(self, memory: str, one: Array) -> str:
        self.needed.add("memory")
        return f'laid_out({memory}, "{one.dtype}", {one.shape}, {one.strides}, {one.offset})'

    def _filled(self, dtype: str, shape: tuple[int, ...], data: bytes) -> str:
        """An expression for a contiguous array with these bytes."""
        typed = f'dtype="{dtype}"'
        count = math.prod(shape)
        shaped = "" if shape == (count,) else f".reshape({shape})"
        fill = fills.recognised(dtype, data)
        if fill is not None and fill.name in ("zeros", "ones"):
            return f"numpy.{fill.name}({shape}, {typed})"
        if fill is not None and fill.name == "arange":
            return f'numpy.arange({count}).astype("{dtype}"){shaped}'
        if fill is not None:
            self.fills[fill] = None
            return _listed(fills.code(fill, dtype, count), dtype) + shaped
        item = len(data) // count
        if count > MOST_WRITTEN and data == data[:item] * count:
            value = fills.unpack(dtype, data[:item])
            if value is not None:
                return f"numpy.full({shape}, {value[0]!r}, {typed})"
        values = fills.unpack(dtype, data) if count <= MOST_WRITTEN else None
        if values is not None:
            return f"numpy.array({values!r}, {typed}){shaped}"
        return f"numpy.frombuffer({self._bytes(data)}, {typed}){shaped}.copy()"

    def _bytes(self, data: bytes) -> str:
        if len(data) <= MOST_WRITTEN:
            return f'bytes.fromhex("{data.hex()}")'
        self.needed.add("stored")
        found = self.blocks.find(data)
        start = found if found >= 0 else len(self.blocks)
        if found < 0:
            self.blocks += data
        return f"stored({start}, {start + len(data)})"

    def page(self, body: list[str]) -> Iterator[str]:
        """All of repro.py."""
        yield f'"""{self.program.operation}: the same inputs give other bits in another stack.'
        yield ""
        yield "Prints the SHA-256 over dtype, shape and bytes of each output."
        yield '"""'
        yield ""
        yield from self._imports()
        yield ""
        yield ""
        yield "def outputs():"
        yield '    """What the call gives and what it writes over."""'
        for line in body:
            yield from folded("    " + line)
        for name, lines in _FUNCTIONS.items():
            if name in self.needed:
                yield from ("", "", *lines.strip("\n").split("\n"))
        yield from fills.source(self.fills)
        yield from ("", "", *_DIGEST.strip("\n").split("\n"))

    def _imports(self) -> Iterator[str]:
        variables = [name for name in self.program.settings if name.startswith(ENVIRON)]
        yield "import hashlib"
        if variables or "stored" in self.needed:
            yield "import os"
        if self.fills:
            yield "import random"
        if variables:
            yield ""
            yield "# Libraries read these when they are loaded."
        for name in variables:
            value = self.program.settings[name]
            yield f"os.environ.setdefault({name[len(ENVIRON) :]!r}, {value!r})"
        yield ""
        yield "import numpy"
        for module in self.program.imports:
            yield f"import {module}"


def _called(step: Step) -> Iterator[str]:
    words = [code(each) for each in step.args]
    words += [f"{name}={code(each)}" for name, each in step.kwargs.items()]
    call = wrapped(f"{step.target}(", words, ")")
    names = [name or "_" for name in step.results]
    if not any(step.results):
        yield from call
        return
    left = names[0] if step.single else ", ".join(names) + ("," if len(names) == 1 else "")
    yield f"{left} = {call[0]}"
    yield from call[1:]


def _listed(values: str, dtype: str) -> str:
    """Numbers as an array. Through float32 where the dtype is smaller, as `fills` has them."""
    if dtype == "float16":
        return f'numpy.array({values}, dtype="float32").astype("float16")'
    return f'numpy.array({values}, dtype="{dtype}")'


_FUNCTIONS = {
    "memory": '''
def memory(flat, shift):
    """The bytes of a flat array, `shift` bytes after an address that 64 divides."""
    data = flat.view("uint8")
    room = numpy.zeros(data.size + 128, dtype="uint8")
    start = -room.ctypes.data % 64 + shift
    room[start : start + data.size] = data
    return room[start : start + data.size]


def laid_out(memory, dtype, shape, strides, offset):
    """An array in this memory; strides and offset in elements."""
    size = numpy.dtype(dtype).itemsize
    steps = [step * size for step in strides]
    return numpy.ndarray(shape, dtype, memory, offset * size, steps)
''',
    "stored": STORED,
}

_DIGEST = '''
def digest(value):
    """SHA-256 over dtype, shape and the bytes in C order."""
    shape = ",".join(str(size) for size in value.shape)
    found = hashlib.sha256(f"{value.dtype.name}[{shape}]\\0".encode())
    found.update(value.tobytes())
    return "sha256:" + found.hexdigest()


if __name__ == "__main__":
    for name, value in outputs().items():
        print("digest", name, digest(value))
'''
