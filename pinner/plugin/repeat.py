"""Runs a callable several times on the same inputs and random state; every byte must repeat."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pinner.plugin.state import Inputs, random_state, set_random_state
from pinner.plugin.values import Value, bits, difference, values_of


class NotRepeatable(AssertionError):
    """Runs that differ, or that left nothing by which that could be seen."""


@dataclass(frozen=True)
class Call:
    """A callable with its inputs.

    gradients: whether outputs that require it are walked back. grad_outputs: what is fed into that
    walk, one for each such output; without it fixed random numbers. holding: modules, tensors and
    generators that the callable reads or changes besides its arguments.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    gradients: bool = True
    grad_outputs: Sequence[Any] | None = None
    holding: tuple[Any, ...] = ()

    def inputs(self) -> Inputs:
        """Everything that is put back before each run. Raises `ValueError`."""
        named = {f"input {number}": value for number, value in enumerate(self.args)}
        named.update((f"input {name!r}", value) for name, value in self.kwargs.items())
        named["the callable"] = _held_by(self.function)
        named.update((f"held {number}", value) for number, value in enumerate(self.holding))
        return Inputs(named)


@dataclass(frozen=True)
class Repeated:
    """What all runs left. runs: how many there were. bits: one digest over all values."""

    runs: int
    values: tuple[Value, ...]

    @property
    def bits(self) -> str:
        """One digest over outputs, gradients and inputs after the call."""
        return bits(self.values)


def repeat(call: Call, runs: int) -> Repeated:
    """Make the runs. Raises `NotRepeatable`, which says where two differ, and `ValueError`.

    Afterwards inputs, gradients and random generators are as before.
    """
    state = random_state()
    with prepared(call) as inputs:
        first = one_run(call, inputs, state)
        for number in range(2, runs + 1):
            compare(first, one_run(call, inputs, state), f"run {number} of {runs}")
    return Repeated(runs, tuple(first))


def compare(first: Sequence[Value], other: Sequence[Value], name: str) -> None:
    """Raises `NotRepeatable` where a run is not like the first."""
    found = difference(first, other)
    if found:
        raise NotRepeatable(f"{name} is not like run 1: {found}")


@contextmanager
def prepared(call: Call) -> Iterator[Inputs]:
    """The inputs; at the end they, their gradients and the generators are as they were."""
    state = random_state()
    inputs = call.inputs()
    gradients = {name: leaf.grad for name, leaf in inputs.leaves.items()}
    try:
        yield inputs
    finally:
        inputs.restore()
        for name, leaf in inputs.leaves.items():
            leaf.grad = gradients.get(name)
        set_random_state(state)


def one_run(call: Call, inputs: Inputs, state: Mapping[str, Any]) -> list[Value]:
    """Runs the callable from the same beginning. Raises `NotRepeatable` where nothing is left."""
    inputs.restore()
    for leaf in inputs.leaves.values():
        leaf.grad = None
    set_random_state(state)
    output = call.function(*call.args, **call.kwargs)
    values = list(values_of("output", output)) if output is not None else []
    if call.gradients:
        _walk_back(output, call.grad_outputs)
        for name, leaf in inputs.leaves.items():
            if leaf.grad is not None:
                values += values_of(f"gradient of {name}", leaf.grad)
    for name, tensor in {**inputs.tensors, **inputs.arrays}.items():
        values += values_of(f"{name} after the call", tensor)
    if not values:
        raise NotRepeatable("the callable left nothing to compare: return what it calculates")
    return values


def _held_by(function: Any) -> Any:
    """What a module, a bound method or a `functools.partial` of these works with."""
    if isinstance(function, partial):
        return (_held_by(function.func), function.args, function.keywords)
    return getattr(function, "__self__", function)


def _walk_back(output: Any, given: Sequence[Any] | None) -> None:
    tensors = [tensor for tensor in _tensors(output) if tensor.requires_grad]
    if not tensors:
        return
    import torch

    if given is not None and len(given) != len(tensors):
        raise ValueError(
            f"expected grad_outputs for {len(tensors)} outputs that require gradients, "
            f"found {len(given)}"
        )
    torch.autograd.backward(tensors, [*given] if given is not None else _fixed(torch, tensors))


def _fixed(torch: Any, tensors: Sequence[Any]) -> list[Any]:
    """Numbers that are the same in each run and in each process, and no two alike."""
    draw = torch.Generator().manual_seed(0)
    return [
        torch.randn(tensor.shape, generator=draw).to(tensor.device, tensor.dtype)
        for tensor in tensors
    ]


def _tensors(value: Any) -> Iterator[Any]:
    if hasattr(value, "requires_grad"):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(part)
