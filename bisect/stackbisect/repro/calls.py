"""A captured call as plain data: its arrays, the steps that are called, what else sets its bits.

A `Program` is what is captured, made smaller and rendered. It knows no library: `files` asks the
renderer of its kind, one module for each (`render_torch`, `render_triton`, `render_cublaslt`,
`render_numpy`).
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

# Bytes of one element, by the name that torch and numpy give the dtype.
ITEMSIZE: Mapping[str, int] = {
    **dict.fromkeys(("bool", "int8", "uint8", "float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"), 1),
    "float4_e2m1fn_x2": 1,
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32", "complex32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64", "complex64"), 8),
    **dict.fromkeys(("complex128", "float128", "longdouble"), 16),
    **dict.fromkeys(("complex256", "clongdouble"), 32),
}

_RENDERERS = {
    "aten": "render_torch",
    "custom": "render_torch",
    "module": "render_module",
    "triton": "render_triton",
    "cublaslt": "render_cublaslt",
    "numpy": "render_numpy",
    "scipy": "render_numpy",
}


@dataclass(frozen=True)
class Array:
    """One tensor or array, as the call got it.

    dtype: as torch and numpy name it, without prefix. strides: in elements. data: the piece of the
    storage that it reaches, gaps included, little endian. offset: of its first element in `data`,
    in elements. alias: the name of another input whose `data` it shares; then its own is empty and
    offset is one in that. alignment: the largest power of two known to divide the address of the
    first element, 64 at most.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    data: bytes = field(repr=False)
    device: str = "cpu"
    alignment: int = 64
    alias: str = ""

    @property
    def elements(self) -> int:
        """How many it has."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one element. Raises KeyError for a dtype that is not known."""
        return ITEMSIZE[self.dtype]

    @property
    def contiguous(self) -> bool:
        """Whether it is in C order without gaps."""
        return self.elements < 2 or all(
            size == 1 or stride == plain
            for size, stride, plain in zip(
                self.shape, self.strides, c_strides(self.shape), strict=True
            )
        )

    @property
    def plain(self) -> bool:
        """Whether `data` is its elements in C order, and nothing else."""
        return (
            self.contiguous
            and not self.alias
            and self.offset == 0
            and len(self.data) == self.elements * self.itemsize
        )


def c_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides, in elements, of an array in C order without gaps."""
    found = [1]
    for size in reversed(shape[1:]):
        found.append(found[-1] * max(size, 1))
    return tuple(reversed(found)) if shape else ()


def array(dtype: str, shape: Sequence[int], data: bytes, device: str = "cpu") -> Array:
    """A contiguous one that shares its storage with no other. Raises ValueError for other bytes."""
    wanted = math.prod(shape) * ITEMSIZE[dtype]
    if len(data) != wanted:
        raise ValueError(f"expected {wanted} bytes for {dtype}{list(shape)}, found {len(data)}")
    return Array(dtype, tuple(shape), c_strides(shape), 0, data, device)


def elements(one: Array, storage: bytes | None = None) -> bytes:
    """Its elements in C order, whatever its strides. storage: the `data` of what it aliases."""
    data = one.data if storage is None else storage
    size = one.itemsize
    if one.contiguous:
        return data[one.offset * size : (one.offset + one.elements) * size]
    return b"".join(data[place * size : (place + 1) * size] for place in places(one))


def places(one: Array) -> list[int]:
    """Where its elements lie in its storage, in elements from the begin of it; in C order."""
    found = [one.offset]
    for many, stride in zip(one.shape, one.strides, strict=True):
        found = [place + at * stride for place in found for at in range(many)]
    return found


@dataclass(frozen=True)
class Ref:
    """An input, or a result of an earlier step, by its name."""

    name: str


@dataclass(frozen=True)
class Named:
    """What a library has a name for, as it is written in a program: "torch.float32"."""

    text: str


@dataclass(frozen=True)
class Listed:
    """A list; a tuple is a plain tuple."""

    items: tuple[Value, ...]


@dataclass(frozen=True)
class Table:
    """A dict with strings as keys."""

    items: tuple[tuple[str, Value], ...]


@dataclass(frozen=True)
class Generator:
    """A generator of random numbers that was passed, by its state."""

    state: bytes = field(repr=False)
    device: str = "cpu"


Value: TypeAlias = (
    "bool | int | float | complex | str"
    " | Ref | Named | Listed | Table | Generator | tuple[Value, ...] | None"
)


@dataclass(frozen=True)
class Step:
    """One call: results = target(*args, **kwargs).

    target: "aten._softmax.default", "numpy.matmul". results: one name for each output, "" for one
    that is no array; a single name where the call gives an array, and not a tuple of them (`single`
    tells a tuple of one from it).
    """

    target: str
    args: tuple[Value, ...]
    kwargs: Mapping[str, Value] = field(default_factory=dict)
    results: tuple[str, ...] = ("out",)
    single: bool = True

    def refs(self) -> Iterator[str]:
        """The names that it reads, in their order; one that comes twice is given twice."""
        for value in (*self.args, *self.kwargs.values()):
            yield from refs(value)


def refs(value: Value) -> Iterator[str]:
    """The names in a value."""
    if isinstance(value, Ref):
        yield value.name
    elif isinstance(value, tuple):
        for each in value:
            yield from refs(each)
    elif isinstance(value, Listed):
        yield from refs(value.items)
    elif isinstance(value, Table):
        for _, each in value.items:
            yield from refs(each)


@dataclass(frozen=True)
class Program:
    """Inputs, one step or a window of them, and the names that are its outputs.

    kind, operation, needs, gpu: as repro.toml has them. outputs: results, or inputs that a step
    writes. generator: the state of the default generator of random numbers before the first step;
    seed: one that gives just this state. settings: what is set before, by the name that
    the renderer of the kind knows ("threads", "deterministic", …). imports: modules that register
    what is called. kernel: what else a kind has; see its renderer. notes: paragraphs for README.md.
    """

    kind: str
    operation: str
    inputs: Mapping[str, Array]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
    generator: bytes | None = field(default=None, repr=False)
    seed: int | None = None
    settings: Mapping[str, Value] = field(default_factory=dict)
    needs: tuple[str, ...] = ("torch",)
    gpu: bool = False
    imports: tuple[str, ...] = ()
    kernel: Any = None
    notes: tuple[str, ...] = ()

    @property
    def elements(self) -> int:
        """How many its inputs have, all together."""
        return sum(each.elements for each in self.inputs.values())

    def files(self) -> Mapping[str, bytes]:
        """repro.py and what lies beside it."""
        renderer = importlib.import_module("stackbisect.repro." + _RENDERERS[self.kind])
        found: Mapping[str, bytes] = renderer.files(self)
        return found

    def storage(self, name: str) -> bytes:
        """The bytes in which an input lies: its own, or those of the one it aliases."""
        one = self.inputs[name]
        return self.inputs[one.alias].data if one.alias else one.data

    def with_inputs(self, **changed: Array) -> Program:
        """The same with other inputs of these names."""
        return replace(self, inputs={**self.inputs, **changed})

    def used(self) -> Program:
        """The same without inputs that no step reads and no output is."""
        names = {name for step in self.steps for name in step.refs()} | set(self.outputs)
        names |= {self.inputs[name].alias for name in names if name in self.inputs}
        kept = {name: one for name, one in self.inputs.items() if name in names}
        return replace(self, inputs=kept)
