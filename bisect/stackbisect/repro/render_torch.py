"""Renders calls of torch's operations as repro.py: torch and the standard library, nothing else.

Inputs are expressions where a line gives the same bytes; else they lie in inputs.bin. Tensors that
share memory, have gaps or do not begin at a multiple of 64 bytes are laid out as they were.
"""

from __future__ import annotations

import builtins
import json
import keyword
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from stackbisect.repro import fills
from stackbisect.repro.calls import (
    Array,
    Generator,
    Listed,
    Named,
    Program,
    Ref,
    Step,
    Table,
    Value,
)
from stackbisect.repro.form import SCRIPT

INPUTS = "inputs.bin"
MODULE = "module.pt"
ALIGNED = 64  # what torch's allocators give, at least
MOST_WRITTEN = 64  # elements that stand in the program itself
_WIDTH = 96

# What a program sets by functions of torch, by the names in `Program.settings`.
_CALLS: Mapping[str, Callable[[Value], str]] = {
    "threads": lambda value: f"torch.set_num_threads({value!r})",
    "deterministic": lambda value: (
        f"torch.use_deterministic_algorithms(True, warn_only={value == 'warn'})"
    ),
    "default_dtype": lambda value: f"torch.set_default_dtype({code(value)})",
    "flush_denormal": lambda value: f"torch.set_flush_denormal({value!r})",
}
ENVIRON = "$"  # before the name of a variable


def files(program: Program) -> dict[str, bytes]:
    """repro.py, and inputs.bin where it needs one."""
    writing = Writing(program)
    body = list(writing.body())
    found = {SCRIPT: ("\n".join(writing.page(body)) + "\n").encode("utf-8")}
    if writing.blocks:
        found[INPUTS] = bytes(writing.blocks)
    return found


def code(value: Value) -> str:
    """A value as Python has it; a generator is none that `Writing` did not write."""
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


def identifier(name: str, taken: Mapping[str, object] | set[str]) -> str:
    """A name that a variable may have, like `name`, and not in `taken`."""
    plain = "".join(c if c.isalnum() and c.isascii() else "_" for c in name).strip("_") or "value"
    plain = {"self": "input"}.get(plain, plain)
    if plain[0].isdigit() or keyword.iskeyword(plain) or plain in _OURS:
        plain = "the_" + plain
    found, number = plain, 1
    while found in taken:
        number += 1
        found = f"{plain}_{number}"
    return found


_OURS = {
    *("torch", "os", "random", "hashlib", "ctypes", "outputs", "digest", "tensor", "stored"),
    *("memory", "laid_out", "generator", "uniform", "integers"),
    *(name for name in dir(builtins) if name not in ("input", "min", "max", "sum", "all", "any")),
}


@dataclass
class Writing:
    """One program on its way to text: what was put into inputs.bin, what the text needs."""

    program: Program
    blocks: bytearray = field(default_factory=bytearray)
    needed: set[str] = field(default_factory=set)
    fills: dict[fills.Fill, None] = field(default_factory=dict)

    # -- outputs() --------------------------------------------------------------------------------

    def body(self) -> Iterator[str]:
        """The lines of `outputs()`, without what stands before them."""
        program = self.program
        for name in program.inputs:
            yield from self._input(name)
        yield from self._settings()  # after the inputs: some of them change how those are made
        yield from self._random()
        for step in program.steps:
            yield from self.step(step)
        yield from wrapped("return {", [f'"{name}": {name}' for name in program.outputs], "}")

    def _settings(self) -> Iterator[str]:
        for name, value in self.program.settings.items():
            if name.startswith(ENVIRON):
                continue
            if name in _CALLS:
                yield _CALLS[name](value)
            elif name.endswith("()"):
                yield f"{name[:-2]}({code(value)})"
            else:
                yield f"{name} = {code(value)}"

    def _random(self) -> Iterator[str]:
        program = self.program
        where = "torch.cuda" if program.gpu else "torch"
        if program.seed is not None:
            yield f"{where}.manual_seed({program.seed})"
        elif program.generator is not None:
            yield f"{where}.set_rng_state({self._bytes(program.generator)})"

    def step(self, step: Step) -> Iterator[str]:
        """One call."""
        words = [self._value(each) for each in step.args]
        words += [f"{name}={self._value(each)}" for name, each in step.kwargs.items()]
        call = wrapped(f"{_function(step.target)}(", words, ")")
        names = [name or "_" for name in step.results]
        if not any(step.results):
            yield from call
            return
        left = names[0] if step.single else ", ".join(names) + ("," if len(names) == 1 else "")
        yield f"{left} = {call[0]}"
        yield from call[1:]

    def _value(self, value: Value) -> str:
        if isinstance(value, Generator):
            self.needed.add("generator")
            return f'generator("{value.device}", {self._bytes(value.state)})'
        return code(value)

    # -- inputs -----------------------------------------------------------------------------------

    def _input(self, name: str) -> Iterator[str]:
        one = self.program.inputs[name]
        sharing = [each for each in self.program.inputs.values() if each.alias == name]
        if one.alias:
            yield f"{name} = {self._view(memory_of(one.alias), one)}"
            return
        if one.elements == 0:
            yield f"{name} = torch.empty({one.shape}, {_typed(one)})"
            return
        if one.plain and one.alignment >= ALIGNED and not sharing:
            yield f"{name} = {self._filled(one.dtype, one.shape, one.data, one.device)}"
            return
        self.needed.add("memory")
        shift = (one.alignment - one.offset * one.itemsize) % ALIGNED
        dtype, data = one.dtype, one.data
        if any(len(data) % each.itemsize for each in (one, *sharing)):
            data += bytes(-len(data) % 16)
        if len(data) % one.itemsize:
            dtype = "uint8"
        shape = (len(data) // (1 if dtype == "uint8" else one.itemsize),)
        flat = self._filled(dtype, shape, data, one.device)
        yield f"{memory_of(name)} = memory({flat}, {shift})"
        yield f"{name} = {self._view(memory_of(name), one)}"

    def _view(self, memory: str, one: Array) -> str:
        self.needed.add("memory")
        return f"laid_out({memory}, torch.{one.dtype}, {one.shape}, {one.strides}, {one.offset})"

    def _filled(self, dtype: str, shape: tuple[int, ...], data: bytes, device: str) -> str:
        """An expression for a contiguous tensor with these bytes."""
        typed = f"dtype=torch.{dtype}" + ("" if device == "cpu" else f', device="{device}"')
        count = math.prod(shape)
        fill = fills.recognised(dtype, data)
        if fill is not None and fill.name in ("zeros", "ones"):
            return f"torch.{fill.name}({shape}, {typed})"
        shaped = "" if shape == (count,) else f".reshape({shape})"
        if fill is not None and fill.name == "arange":
            return f"torch.arange({count}, {typed}){shaped}"
        if fill is not None:
            self.fills[fill] = None
            return f"torch.tensor({fills.code(fill, dtype, count)}, {typed}){shaped}"
        item = len(data) // count
        if count > MOST_WRITTEN and data == data[:item] * count:
            value = fills.unpack(dtype, data[:item])
            if value is not None:
                return f"torch.full({shape}, {value[0]!r}, {typed})"
        values = fills.unpack(dtype, data) if count <= MOST_WRITTEN else None
        if values is not None:
            return f"torch.tensor({values!r}, {typed}){shaped}"
        moved = "" if device == "cpu" else f'.to("{device}")'
        viewed = "" if dtype == "uint8" else f".view(torch.{dtype})"
        return f"{self._bytes(data)}{viewed}{shaped}{moved}"

    def _bytes(self, data: bytes) -> str:
        """An expression for a flat tensor of bytes."""
        self.needed.add("tensor")
        if len(data) <= MOST_WRITTEN:
            return f'tensor(bytes.fromhex("{data.hex()}"))'
        self.needed.add("stored")
        found = self.blocks.find(data)
        start = found if found >= 0 else len(self.blocks)
        if found < 0:
            self.blocks += data
        return f"tensor(stored({start}, {start + len(data)}))"

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
            yield from folded("    " + line)
        for name, lines in _FUNCTIONS.items():
            if name in self.needed:
                yield from ("", "", *lines.strip("\n").split("\n"))
        yield from fills.source(self.fills)
        yield from ("", "", *_DIGEST.strip("\n").split("\n"))

    def title(self) -> Iterator[str]:
        """The docstring's lines."""
        yield f"{self.program.operation}: the same inputs give other bits in another stack."
        yield ""
        yield "Prints the SHA-256 over dtype, shape and bytes of each output."

    def imports(self) -> Iterator[str]:
        """What stands before the functions."""
        program = self.program
        variables = [name for name in program.settings if name.startswith(ENVIRON)]
        yield "import ctypes"
        yield "import hashlib"
        if variables or not self.needed.isdisjoint(("stored", "loaded")):
            yield "import os"
        if self.fills:
            yield "import random"
        if variables:
            yield ""
            yield "# Libraries read these when they are loaded."
        for name in variables:
            value = program.settings[name]
            yield f'os.environ.setdefault("{name[len(ENVIRON) :]}", {json.dumps(value)})'
        yield ""
        yield "import torch"
        for module in program.imports:
            yield f"import {module}  # registers {program.operation}"


def _function(target: str) -> str:
    """An operation as an expression; the name of an overload may be a keyword ("from")."""
    name, _, overload = target.rpartition(".")
    if keyword.iskeyword(overload):
        return f'getattr(torch.ops.{name}, "{overload}")'
    return f"torch.ops.{target}"


def memory_of(name: str) -> str:
    """The variable for the memory that an input lies in."""
    return f"memory_of_{name}"


def _typed(one: Array) -> str:
    where = "" if one.device == "cpu" else f', device="{one.device}"'
    return f"dtype=torch.{one.dtype}{where}"


def wrapped(before: str, words: list[str], after: str) -> list[str]:
    """A line with these words, or where it is long a line for each of them."""
    line = before + ", ".join(words) + after
    if len(line) < _WIDTH - 20:
        return [line]
    return [before, *(f"    {word}," for word in words), after]


def folded(line: str) -> Iterator[str]:
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


STORED = f'''
def stored(start, end):
    """Bytes of the file beside this one."""
    folder = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(folder, "{INPUTS}"), "rb") as source:
        return source.read()[start:end]
'''
_FUNCTIONS = {
    "memory": '''
def memory(flat, shift):
    """The bytes of a flat tensor, `shift` bytes after an address that 64 divides."""
    data = flat.view(torch.uint8)
    room = torch.zeros(data.numel() + 128, dtype=torch.uint8, device=data.device)
    start = -room.data_ptr() % 64 + shift
    return room[start : start + data.numel()].copy_(data)


def laid_out(memory, dtype, shape, strides, offset):
    """A tensor in this memory; strides and offset in elements."""
    whole = memory.view(dtype)
    return torch.as_strided(whole, shape, strides, whole.storage_offset() + offset)
''',
    "generator": '''
def generator(device, state):
    """A generator of random numbers in this state."""
    made = torch.Generator(device=device)
    made.set_state(state)
    return made
''',
    "tensor": '''
def tensor(data):
    """Bytes as a tensor."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).clone()
''',
    "loaded": f'''
def loaded():
    """The module, from the file beside this one. Unpickling runs code of the classes it names."""
    folder = os.path.dirname(os.path.abspath(__file__))
    return torch.load(os.path.join(folder, "{MODULE}"), weights_only=False)
''',
    "named": '''
def named(name, value):
    """The tensors in a value, with names made of where they are."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from named(f"{name}_{key}", each)
    elif isinstance(value, (list, tuple)):
        for at, each in enumerate(value):
            yield from named(name + "_" * name[-1].isdigit() + str(at), each)
    elif hasattr(value, "__dataclass_fields__"):
        yield from named(name, dict(vars(value)))
''',
    "stored": STORED,
}

_DIGEST = '''
def digest(value):
    """SHA-256 over dtype, shape and the bytes in C order."""
    value = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
    shape = ",".join(str(size) for size in value.shape)
    found = hashlib.sha256(f"{str(value.dtype)[6:]}[{shape}]\\0".encode())
    found.update(ctypes.string_at(value.data_ptr(), value.numel() * value.element_size()))
    return "sha256:" + found.hexdigest()


if __name__ == "__main__":
    for name, value in outputs().items():
        print("digest", name, digest(value))
'''
