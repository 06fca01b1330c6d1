"""What Inductor is asked to decide, named so that every rank and process names it alike."""

from __future__ import annotations

import re
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple, Union

from ... import values
from . import versions

Key = Dict[str, Any]
Dimension = Union[int, str]

_COUNTER = re.compile(r"_\d+$")
_DEVICE_INDEX = re.compile(r"\b(cuda|xpu|hip|mps|cpu):\d+\b")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_SYMBOL = re.compile(r"\b[a-z]{1,2}\d+\b")


class Question(NamedTuple):
    """One decision that is to be made.

    kernel: "KIND:NAME", NAME without a counter of the process.
    source: digest of the generated source, "" where there is none.
    key: encoded facts that tell this decision from others of the kernel; text: canonical.
    refusal: why it cannot be a pin, or "".
    """

    kernel: str
    source: str
    key: Key
    text: str
    refusal: str = ""

    @property
    def identity(self) -> Tuple[str, str, str]:
        """What the lock finds an entry by."""
        return self.kernel, self.source, self.text


def ask(kernel: str, source: str, facts: Dict[str, Any]) -> Question:
    """The question with these facts; one with a refusal where a fact has no value."""
    try:
        key: Key = values.encode_named(facts)
    except values.Unpinnable as error:
        return Question(kernel, source, {}, "", str(error))
    return Question(kernel, source, key, values.canonical(key))


def of_selection(name: str, choices: Sequence[Any], inputs: Sequence[Any], layout: Any) -> Question:
    """What `AlgorithmSelectorCache` is asked: an operation on inputs of these shapes.

    inputs: IR nodes; sizes and strides in elements. The device goes in by its type only. A
    dimension that is not static has its expression and the length it is tuned for: "s0=64".
    """
    symbols: Dict[str, str] = {}
    facts: Dict[str, Any] = {"device": versions.device_type(layout, inputs)}
    for number, node in enumerate(inputs):
        facts.update(_tensor("in%d" % number, node, symbols))
    if hasattr(layout, "size"):
        facts.update(_tensor("out", versions.AsNode(layout), symbols))
    arguments = _arguments(choices)
    if arguments:
        facts["arguments"] = arguments
    facts["float32_matmul_precision"] = versions.float32_precision()
    return ask("%s:%s" % (_kind(name), without_counter(name)), "", facts)


def without_counter(name: str) -> str:
    """A name that the process counted up: `cpp_CppMicroGemmFP32Vec_0` without its `_0`."""
    return _COUNTER.sub("", name)


def without_place(text: str) -> str:
    """A text without device index and address of an object."""
    return _ADDRESS.sub("", _DEVICE_INDEX.sub(r"\1", text))


def dimensions(sizes: Sequence[Any], symbols: Dict[str, str]) -> List[Dimension]:
    """Sizes or strides; symbols: names that the expressions met so far, numbered in order."""
    return [_dimension(size, symbols) for size in sizes]


def _dimension(size: Any, symbols: Dict[str, str]) -> Dimension:
    number = versions.as_int(size)
    if number is not None:
        return number
    text = _SYMBOL.sub(
        lambda found: symbols.setdefault(found.group(), "s%d" % len(symbols)), str(size)
    )
    return "%s=%s" % (text, versions.hint(size))


def _tensor(prefix: str, node: Any, symbols: Dict[str, str]) -> Dict[str, Any]:
    return {
        prefix + "_dtype": str(node.get_dtype()).split(".")[-1],
        prefix + "_size": dimensions(node.get_size(), symbols),
        prefix + "_stride": dimensions(node.get_stride(), symbols),
    }


def _arguments(choices: Sequence[Any]) -> str:
    """The scalar arguments of the operation, as its library kernels are given them."""
    texts = set()
    for choice in choices:
        given = getattr(choice, "kwargs", None)
        if isinstance(given, dict) and given:
            texts.add(", ".join("%s=%r" % (name, given[name]) for name in sorted(given)))
    return without_place("; ".join(sorted(texts)))


def _kind(name: str) -> str:
    for start, kind in (("conv", "conv"), ("flex", "flex")):
        if name.startswith(start):
            return kind
    return "gemm"
