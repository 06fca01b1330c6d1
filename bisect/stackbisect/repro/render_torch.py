"""Renders calls of torch's operations as repro.py: torch and the standard library, nothing else.

Inputs are expressions where a line gives the same bytes; else they lie in inputs.bin. Tensors that
share memory, have gaps or do not begin at a multiple of 64 bytes are laid out as they were.
"""

from __future__ import annotations

import builtins
import json
import keyword
from collections.abc import Callable, Iterator, Mapping

from stackbisect.repro.calls import Array, Generator, Program, Value
from stackbisect.repro.rendering import ENVIRON, Rendering, code, wrapped

MODULE = "module.pt"

# What a program sets by functions of torch, by the names in `Program.settings`.
_CALLS: Mapping[str, Callable[[Value], str]] = {
    "threads": lambda value: f"torch.set_num_threads({value!r})",
    "deterministic": lambda value: (
        f"torch.use_deterministic_algorithms(True, warn_only={value == 'warn'})"
    ),
    "default_dtype": lambda value: f"torch.set_default_dtype({code(value)})",
    "flush_denormal": lambda value: f"torch.set_flush_denormal({value!r})",
}


def files(program: Program) -> dict[str, bytes]:
    """repro.py, and inputs.bin where it needs one."""
    return Writing(program).files()


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
}

_DIGEST = '''
def digest(value):
    """SHA-256 over dtype, shape and the bytes in C order."""
    value = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
    shape = ",".join(str(size) for size in value.shape)
    found = hashlib.sha256(f"{str(value.dtype)[6:]}[{shape}]\\0".encode())
    found.update(ctypes.string_at(value.data_ptr(), value.numel() * value.element_size()))
    return "sha256:" + found.hexdigest()
'''


class Writing(Rendering):
    """One program of torch's operations on its way to text."""

    library = "torch"
    listed = "torch.tensor"
    empty = "empty"
    aligned = 64  # what torch's allocators give, at least
    functions = _FUNCTIONS
    digest = _DIGEST

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
            yield f"{where}.set_rng_state({self._tensor(program.generator)})"

    def _value(self, value: Value) -> str:
        if isinstance(value, Generator):
            self.needed.add("generator")
            return f'generator("{value.device}", {self._tensor(value.state)})'
        return code(value)

    def _function(self, target: str) -> str:
        """An operation as an expression; the name of an overload may be a keyword ("from")."""
        name, _, overload = target.rpartition(".")
        if keyword.iskeyword(overload):
            return f'getattr(torch.ops.{name}, "{overload}")'
        return f"torch.ops.{target}"

    def _memory(self, one: Array, sharing: list[Array]) -> bytes:
        """The bytes that it and those that share them lie in: whole elements of each of them."""
        if any(len(one.data) % each.itemsize for each in (one, *sharing)):
            return one.data + bytes(-len(one.data) % 16)
        return one.data

    def _dtype(self, dtype: str) -> str:
        return f"torch.{dtype}"

    def _typed(self, dtype: str, device: str) -> str:
        where = "" if device == "cpu" else f', device="{device}"'
        return super()._typed(dtype, device) + where

    def _arange(self, count: int, dtype: str, device: str) -> str:
        return f"torch.arange({count}, {self._typed(dtype, device)})"

    def _read(self, data: bytes, dtype: str, shaped: str, device: str) -> str:
        moved = "" if device == "cpu" else f'.to("{device}")'
        viewed = "" if dtype == "uint8" else f".view(torch.{dtype})"
        return f"{self._tensor(data)}{viewed}{shaped}{moved}"

    def _tensor(self, data: bytes) -> str:
        """An expression for a flat tensor of bytes."""
        self.needed.add("tensor")
        return f"tensor({self._bytes(data)})"

    def imports(self) -> Iterator[str]:
        """What stands before the functions."""
        yield "import ctypes"
        yield from super().imports()
        for module in self.program.imports:
            yield f"import {module}  # registers {self.program.operation}"

    def _variable(self, name: str, value: Value) -> str:
        return f'"{name}", {json.dumps(value)}'
