"""What a program's steps are called with, as numbered leaves that can be changed. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from stackbisect.repro.calls import Listed, Program, Step, Table, Value

Change = Callable[[int, Value], Value]


def leaves(program: Program) -> list[Value]:
    """What is in the arguments of the steps, in their order: no list, tuple or table."""
    found: list[Value] = []

    def note(_: int, value: Value) -> Value:
        found.append(value)
        return value

    mapped(program, note)
    return found


def with_leaf(program: Program, number: int, value: Value) -> Program:
    """The program with another value at this leaf."""
    return mapped(program, lambda at, old: value if at == number else old)


def mapped(program: Program, change: Change) -> Program:
    """The program with every leaf changed; `change` gets its number and its value."""
    count = -1

    def leaf(value: Value) -> Value:
        nonlocal count
        count += 1
        return change(count, value)

    return replace(program, steps=tuple(_step(step, leaf) for step in program.steps))


def _step(step: Step, leaf: Callable[[Value], Value]) -> Step:
    args = tuple(_value(each, leaf) for each in step.args)
    kwargs = {name: _value(each, leaf) for name, each in step.kwargs.items()}
    return replace(step, args=args, kwargs=kwargs)


def _value(value: Value, leaf: Callable[[Value], Value]) -> Value:
    if isinstance(value, tuple):
        return tuple(_value(each, leaf) for each in value)
    if isinstance(value, Listed):
        return Listed(tuple(_value(each, leaf) for each in value.items))
    if isinstance(value, Table):
        return Table(tuple((name, _value(each, leaf)) for name, each in value.items))
    return leaf(value)
