"""A program on its way to repro.py: what is the same whether torch or numpy runs its calls.

A renderer gives the library's words, and what it has that the others do not.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from stackbisect.repro import fills
from stackbisect.repro.calls import ITEMSIZE, Array, Listed, Named, Program, Ref, Step, Table, Value
from stackbisect.repro.form import SCRIPT

INPUTS = "inputs.bin"
ENVIRON = "$"  # before the name of a variable
_MOST_ALIGNED = 64  # bytes; what `Array.alignment` tells at most
_MOST_WRITTEN = 64  # elements that stand in the program itself
_WIDTH = 96


@dataclass
class Rendering(ABC):
    """One program on its way to text: what was put into inputs.bin, what the text needs.

    library: its name. listed: what makes an array of numbers. empty: what makes one of no elements.
    aligned: bytes that divide the address of any array that the library makes. functions: what the
    text may need, by the names in `needed`. digest: the function that the text prints them by.
    """

    program: Program
    blocks: bytearray = field(default_factory=bytearray)
    needed: set[str] = field(default_factory=set)
    fills: dict[fills.Fill, None] = field(default_factory=dict)

    library: ClassVar[str]
    listed: ClassVar[str]
    empty: ClassVar[str]
    aligned: ClassVar[int]
    functions: ClassVar[Mapping[str, str]]
    digest: ClassVar[str]

    def files(self) -> dict[str, bytes]:
        """repro.py, and inputs.bin where it needs one."""
        body = list(self.body())
        found = {SCRIPT: ("\n".join(self.page(body)) + "\n").encode("utf-8")}
        if self.blocks:
            found[INPUTS] = bytes(self.blocks)
        return found

    # -- outputs() --------------------------------------------------------------------------------

    @abstractmethod
    def body(self) -> Iterator[str]:
        """The lines of `outputs()`, without what stands before them."""

    def step(self, step: Step) -> Iterator[str]:
        """One call."""
        words = [self._value(each) for each in step.args]
        words += [f"{name}={self._value(each)}" for name, each in step.kwargs.items()]
        call = wrapped(f"{self._function(step.target)}(", words, ")")
        names = [name or "_" for name in step.results]
        if not any(step.results):
            yield from call
            return
        left = names[0] if step.single else ", ".join(names) + ("," if len(names) == 1 else "")
        yield f"{left} = {call[0]}"
        yield from call[1:]

    def _value(self, value: Value) -> str:
        return code(value)

    def _function(self, target: str) -> str:
        """What is called, as an expression."""
        return target

    # -- inputs -----------------------------------------------------------------------------------

    def _input(self, name: str) -> Iterator[str]:
        one = self.program.inputs[name]
        sharing = [each for each in self.program.inputs.values() if each.alias == name]
        if one.alias:
            yield f"{name} = {self._view(_memory_of(one.alias), one)}"
            return
        if one.elements == 0:
            typed = self._typed(one.dtype, one.device)
            yield f"{name} = {self.library}.{self.empty}({one.shape}, {typed})"
            return
        if one.plain and one.alignment >= self.aligned and not sharing:
            yield f"{name} = {self._filled(one.dtype, one.shape, one.data, one.device)}"
            return
        shift = (one.alignment - one.offset * one.itemsize) % _MOST_ALIGNED
        data = self._memory(one, sharing)
        dtype = "uint8" if len(data) % one.itemsize else one.dtype
        flat = self._filled(dtype, (len(data) // ITEMSIZE[dtype],), data, one.device)
        yield f"{_memory_of(name)} = memory({flat}, {shift})"
        yield f"{name} = {self._view(_memory_of(name), one)}"

    def _memory(self, one: Array, sharing: list[Array]) -> bytes:
        """The bytes that it and those that share them lie in."""
        return one.data

    def _view(self, memory: str, one: Array) -> str:
        self.needed.add("memory")
        dtype = self._dtype(one.dtype)
        return f"laid_out({memory}, {dtype}, {one.shape}, {one.strides}, {one.offset})"

    def _filled(self, dtype: str, shape: tuple[int, ...], data: bytes, device: str) -> str:
        """An expression for a contiguous array with these bytes."""
        typed = self._typed(dtype, device)
        count = math.prod(shape)
        shaped = "" if shape == (count,) else f".reshape({shape})"
        fill = fills.recognised(dtype, data)
        if fill is not None and fill.name in ("zeros", "ones"):
            return f"{self.library}.{fill.name}({shape}, {typed})"
        if fill is not None and fill.name == "arange":
            return self._arange(count, dtype, device) + shaped
        if fill is not None:
            self.fills[fill] = None
            return self._drawn(fills.code(fill, dtype, count), dtype, device) + shaped
        item = len(data) // count
        if count > _MOST_WRITTEN and data == data[:item] * count:
            value = fills.unpack(dtype, data[:item])
            if value is not None:
                return f"{self.library}.full({shape}, {value[0]!r}, {typed})"
        values = fills.unpack(dtype, data) if count <= _MOST_WRITTEN else None
        if values is not None:
            return f"{self.listed}({values!r}, {typed}){shaped}"
        return self._read(data, dtype, shaped, device)

    def _bytes(self, data: bytes) -> str:
        """An expression for plain bytes."""
        if len(data) <= _MOST_WRITTEN:
            return f'bytes.fromhex("{data.hex()}")'
        self.needed.add("stored")
        found = self.blocks.find(data)
        start = found if found >= 0 else len(self.blocks)
        if found < 0:
            self.blocks += data
        return f"stored({start}, {start + len(data)})"

    @abstractmethod
    def _dtype(self, dtype: str) -> str:
        """A dtype as an expression."""

    def _typed(self, dtype: str, device: str) -> str:
        return f"dtype={self._dtype(dtype)}"

    @abstractmethod
    def _arange(self, count: int, dtype: str, device: str) -> str:
        """An expression for numbers in a row."""

    def _drawn(self, values: str, dtype: str, device: str) -> str:
        """An expression for an array of the numbers that an expression of `fills` gives."""
        return f"{self.listed}({values}, {self._typed(dtype, device)})"

    @abstractmethod
    def _read(self, data: bytes, dtype: str, shaped: str, device: str) -> str:
        """An expression for an array of these bytes, which no numbers say. shaped: its reshape."""

    # -- the page ---------------------------------------------------------------------------------

    def page(self, body: list[str]) -> Iterator[str]:
        """All of repro.py."""
        first, *more = self.title()
        yield f'"""{first}'
        yield from more
        yield '"""'
        yield ""
        yield from self.imports()
        yield ""
        yield ""
        yield "def outputs():"
        yield '    """What the call gives and what it writes over."""'
        for line in body:
            yield from _folded("    " + line)
        for name, lines in (*self.functions.items(), ("stored", _STORED)):
            if name in self.needed:
                yield from _apart(lines)
        yield from fills.source(self.fills)
        yield from _apart(self.digest)
        yield from _apart(_MAIN)

    def title(self) -> Iterator[str]:
        """The docstring's lines."""
        yield f"{self.program.operation}: the same inputs give other bits in another stack."
        yield ""
        yield "Prints the SHA-256 over dtype, shape and bytes of each output."

    def imports(self) -> Iterator[str]:
        """What stands before the functions."""
        settings = self.program.settings
        variables = [name for name in settings if name.startswith(ENVIRON)]
        yield "import hashlib"
        if variables or not self.needed.isdisjoint(("stored", "loaded")):
            yield "import os"
        if self.fills:
            yield "import random"
        if variables:
            yield ""
            yield "# Libraries read these when they are loaded."
        for name in variables:
            words = self._variable(name[len(ENVIRON) :], settings[name])
            yield f"os.environ.setdefault({words})"
        yield ""
        yield f"import {self.library}"

    @abstractmethod
    def _variable(self, name: str, value: Value) -> str:
        """The name of a variable and its value as two arguments."""


def code(value: Value) -> str:
    """A value as Python has it; a generator is none that a renderer did not write."""
    if isinstance(value, Ref):
        return value.name
    if isinstance(value, Named):
        return value.text
    if isinstance(value, Listed):
        return "[" + ", ".join(map(code, value.items)) + "]"
    if isinstance(value, Table):
        return "{" + ", ".join(f"{name!r}: {code(each)}" for name, each in value.items) + "}"
    if isinstance(value, tuple):
        inner = ", ".join(map(code, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, complex):
        return f"complex({code(value.real)}, {code(value.imag)})"
    return repr(value)


def _memory_of(name: str) -> str:
    """The variable for the memory that an input lies in."""
    return f"memory_of_{name}"


def wrapped(before: str, words: list[str], after: str) -> list[str]:
    """A line with these words, or where it is long a line for each of them."""
    line = before + ", ".join(words) + after
    if len(line) < _WIDTH - 20:
        return [line]
    return [before, *(f"    {word}," for word in words), after]


def _folded(line: str) -> Iterator[str]:
    """A long list of numbers over several lines."""
    start, end = line.find("(["), line.find("]")
    if len(line) <= _WIDTH or start < 0 or end < start:
        yield line
        return
    yield line[: start + 2]
    row = " " * 8
    for word in line[start + 2 : end].split(", "):
        if len(row) + len(word) > _WIDTH - 4:
            yield row.rstrip()
            row = " " * 8
        row += f"{word}, "
    yield row.rstrip()
    yield "    " + line[end:]


def _apart(text: str) -> Iterator[str]:
    """A function's lines, two after what stands before."""
    yield from ("", "", *text.strip("\n").split("\n"))


_STORED = f'''
def stored(start, end):
    """Bytes of the file beside this one."""
    folder = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(folder, "{INPUTS}"), "rb") as source:
        return source.read()[start:end]
'''

_MAIN = """
if __name__ == "__main__":
    for name, value in outputs().items():
        print("digest", name, digest(value))
"""
