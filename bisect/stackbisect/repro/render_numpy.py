"""Renders calls of numpy and scipy as repro.py, which needs nothing else.

Inputs are expressions where a line gives the same bytes; else they lie in inputs.bin. Arrays that
share memory, have gaps or do not begin where numpy would put them are laid out as they were.
"""

from __future__ import annotations

from collections.abc import Iterator

from stackbisect.repro.calls import Program, Value
from stackbisect.repro.rendering import Rendering

ALIGNED = 16  # what malloc gives, and numpy with it


def files(program: Program) -> dict[str, bytes]:
    """repro.py, and inputs.bin where it needs one."""
    return _Writing(program).files()


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
}

_DIGEST = '''
def digest(value):
    """SHA-256 over dtype, shape and the bytes in C order."""
    shape = ",".join(str(size) for size in value.shape)
    found = hashlib.sha256(f"{value.dtype.name}[{shape}]\\0".encode())
    found.update(value.tobytes())
    return "sha256:" + found.hexdigest()
'''


class _Writing(Rendering):
    """One program of numpy's and scipy's functions on its way to text."""

    library = "numpy"
    listed = "numpy.array"
    empty = "zeros"
    aligned = ALIGNED
    functions = _FUNCTIONS
    digest = _DIGEST

    def body(self) -> Iterator[str]:
        """The lines of `outputs()`."""
        for name in self.program.inputs:
            yield from self._input(name)
        for step in self.program.steps:
            yield from self.step(step)
        names = ", ".join(f'"{name}": numpy.asarray({name})' for name in self.program.outputs)
        yield f"return {{{names}}}"

    def _dtype(self, dtype: str) -> str:
        return f'"{dtype}"'

    def _arange(self, count: int, dtype: str, device: str) -> str:
        return f'numpy.arange({count}).astype("{dtype}")'

    def _drawn(self, values: str, dtype: str, device: str) -> str:
        """Numbers as an array. Through float32 where the dtype is smaller, as `fills` has them."""
        if dtype == "float16":
            return f'numpy.array({values}, dtype="float32").astype("float16")'
        return super()._drawn(values, dtype, device)

    def _read(self, data: bytes, dtype: str, shaped: str, device: str) -> str:
        return f"numpy.frombuffer({self._bytes(data)}, {self._typed(dtype, device)}){shaped}.copy()"

    def imports(self) -> Iterator[str]:
        """What stands before the functions."""
        yield from super().imports()
        yield from (f"import {module}" for module in self.program.imports)

    def _variable(self, name: str, value: Value) -> str:
        return f"{name!r}, {value!r}"
