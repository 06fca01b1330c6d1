"""From a Triton launch, as both stacks made it, to a program. Pure.

What it was launched with (grid, options, all arguments that are no tensors) has to be the same in
both stacks: else a tuner, a heuristic or the program itself chose otherwise, and the launch is no
origin. What the kernel consists of need not be: see `kernel_text`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stackbisect.repro import kernel_text
from stackbisect.repro.calls import Array, Listed, Named, Program, Ref, Step, Value
from stackbisect.repro.extract import NoCase
from stackbisect.repro.kernel_text import NoText, Text

LAUNCH = "triton.launch"
# What `triton.Config` gives whether it was asked for or not.
_DEFAULTS = {"num_ctas": "1"}


@dataclass(frozen=True)
class Kernel:
    """What a program of the kind "triton" has beside its only step, whose kwargs are the arguments.

    grid: how many programs along each axis. options: num_warps and its like. constexprs: the
    arguments that are constants to the compiler. interpreted: under Triton's interpreter, on the
    CPU. environ: variables of Triton that change what it compiles. compared: the source is known
    in both stacks.
    """

    text: Text
    grid: tuple[int, int, int]
    options: Mapping[str, Value]
    constexprs: tuple[str, ...]
    interpreted: bool
    environ: Mapping[str, str]
    compared: bool = True


def kernel(good: Mapping[str, Any], bad: Mapping[str, Any] | None) -> Kernel | NoCase:
    """The kernel of a launch, from what `capture_triton.launch` took in each stack.

    bad: None where the launch was not captured there; then all is taken to be the same.
    """
    if bad is not None:
        apart = launched_otherwise(good, bad)
        if apart:
            return NoCase(
                "it is not launched the same way in both stacks, so that its bits may well differ: "
                f"{apart}. Look at what chose that; pinner record and pinner enforce hold the "
                "choices of a tuner"
            )
    further = _count_functions(good)
    try:
        text = kernel_text.text(good["source"], None if bad is None else bad["source"], further)
    except NoText as error:
        return NoCase(str(error))
    return Kernel(
        text=text,
        grid=_grid(good["grid"]),
        options={
            name: _literal(code)
            for name, code in good["options"].items()
            if _DEFAULTS.get(name) != code
        },
        constexprs=tuple(good["constexprs"]),
        interpreted=good["interpreted"],
        environ={
            name: value
            for name, value in good["environ"].items()
            if bad is None or bad["environ"].get(name) == value
        },
        compared=bad is not None,
    )


def program(
    kernel: Kernel,
    good: Mapping[str, Any],
    arrays: Mapping[str, Array],
    names: Mapping[int, str],
    written: Sequence[str],
) -> Program:
    """The program of a launch.

    arrays: its tensors, by the names that `names` gives their numbers. written: those of them that
    the launch writes in either stack.
    """
    text = kernel.text
    arguments = {name: _value(each, text, names) for name, each in good["arguments"].items()}
    libraries = dict.fromkeys(each.distribution for each in text.changes)
    return Program(
        kind="triton",
        operation=_operation(good["source"]["functions"][0]),
        inputs=arrays,
        steps=(Step(LAUNCH, (), arguments, results=()),),
        outputs=tuple(written),
        needs=("torch", "triton", *(("numpy",) if kernel.interpreted else ()), *libraries),
        gpu=not kernel.interpreted,
        kernel=kernel,
        notes=(_notes(kernel),),
    )


def launched_otherwise(good: Mapping[str, Any], bad: Mapping[str, Any]) -> str:
    """How the launch differs between the stacks, in words; "" where it does not."""
    found = []
    for name, mine, theirs in (
        ("the grid", good["grid"], bad["grid"]),
        ("interpreted", good["interpreted"], bad["interpreted"]),
        *_pairs(good["options"], bad["options"]),
        *_pairs(_plain(good["arguments"]), _plain(bad["arguments"])),
    ):
        if mine != theirs:
            found.append(f"{name} is {_shown(mine)} in the good stack, {_shown(theirs)} in the bad")
    return "; ".join(found)


def _pairs(good: Mapping[str, Any], bad: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    names = dict.fromkeys((*good, *bad))
    return [(name, good.get(name), bad.get(name)) for name in names]


def _plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments without what stands for tensors and functions: those are compared elsewhere."""
    return {
        name: "a tensor" if "tensor" in each else "a function" if "function" in each else each
        for name, each in arguments.items()
    }


def _shown(value: Any) -> str:
    if value is None:
        return "not given"
    return str(value["code"]) if isinstance(value, dict) and "code" in value else str(value)


def _grid(sizes: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = sizes
    return x, y, z


def _operation(function: Mapping[str, Any]) -> str:
    name = str(function["qualname"])
    return name if function["module"] == "__main__" else f"{function['module']}.{name}"


def _count_functions(launch: Mapping[str, Any]) -> int:
    def numbers(value: Mapping[str, Any]) -> set[int]:
        if "tuple" in value:
            return {number for each in value["tuple"] for number in numbers(each)}
        return {value["function"]} if "function" in value else set()

    return len({number for each in launch["arguments"].values() for number in numbers(each)})


def _value(value: Mapping[str, Any], text: Text, names: Mapping[int, str]) -> Value:
    if "tensor" in value:
        return Ref(names[value["tensor"]])
    if "tuple" in value:
        return tuple(_value(each, text, names) for each in value["tuple"])
    if "function" in value:
        return Named(text.functions[value["function"] - 1])
    return _literal(value["code"])


def _literal(code: str) -> Value:
    """The value that Python's text stands for; what a library has a name for keeps it."""
    try:
        found = ast.literal_eval(code)
    except ValueError:
        return Named(code)
    return Listed(tuple(found)) if isinstance(found, list) else found


def _notes(kernel: Kernel) -> str:
    """What a reader has to know of where the kernel's text comes from, for README.md."""
    changes = kernel.text.changes
    if not changes:
        where = "in both stacks" if kernel.compared else "in the good stack"
        return (
            f"The kernel and all that it calls are copied as they were {where}: what differs is "
            "what Triton, or what it is built on, makes of them."
        )
    names = ", ".join(f"`{each.module}.{each.name}`" for each in changes)
    said = [f"What changed is in the source: {names}. " + _IMPORTED[kernel.text.wrapped]]
    for each in changes:
        said.append(f"```diff\n{each.diff}\n```")
    return "\n\n".join(said)


_IMPORTED = {
    False: "That is imported from the library, as each stack has it installed; the kernel and all "
    "else that it calls are the same in both stacks, and copied.",
    True: "The kernel itself is not the same in both stacks: it is imported from the library, as "
    "each stack has it installed, and launched below what tunes it.",
}
