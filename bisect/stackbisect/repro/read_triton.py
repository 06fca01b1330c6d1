"""A captured launch of a Triton kernel as a program, and the bits that it gave.

It is captured in both stacks: what the kernel consists of may be what they differ in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stackbisect.repro import triton_case
from stackbisect.repro.calls import ITEMSIZE, Array
from stackbisect.repro.capture import Asked, Made
from stackbisect.repro.captured import Captured
from stackbisect.repro.extract import NoCase
from stackbisect.repro.render_torch import identifier


def program(captured: Captured, asked: Asked) -> Made | NoCase:
    """What is to be launched alone. Runs the command in the other stack."""
    for row in captured.tensors:
        if row["dtype"] not in ITEMSIZE:
            return NoCase(
                f"its argument {row['name']} is of a dtype that is not known: {row['dtype']}"
            )
        if row["conjugated"] or row["negated"]:
            return NoCase(f"its argument {row['name']} is a view that torch computes late")
    other = asked.captured(asked.other)
    return made(captured, None if isinstance(other, NoCase) else other)


def made(good: Captured, bad: Captured | None) -> Made | NoCase:
    """The program, from the launch in both stacks. Pure."""
    kernel = triton_case.kernel(good.call, None if bad is None else bad.call)
    if isinstance(kernel, NoCase):
        return kernel
    taken = {kernel.text.kernel, *kernel.text.functions, "triton", "tl", "inspect"}
    names: dict[int, str] = {}
    for row in good.tensors:
        names[row["number"]] = identifier(row["name"], taken | set(names.values()))
    digests = {names[int(number)]: each for number, each in good.call["written"].items()}
    if bad is not None:
        also = {each["name"] for each in bad.tensors if str(each["number"]) in bad.call["written"]}
        also_written = [names[row["number"]] for row in good.tensors if row["name"] in also]
        digests = {**dict.fromkeys(also_written), **digests}
    if not digests:
        return NoCase("all that it was given is the same after it: it writes nothing new")
    arrays = _without_leftovers(good, good.arrays(names), names)
    found = triton_case.program(kernel, good.call, arrays, names, tuple(digests))
    expected = {name: digest for name, digest in digests.items() if digest is not None}
    return Made(found, expected)


def _without_leftovers(
    captured: Captured, arrays: Mapping[str, Array], names: Mapping[int, str]
) -> dict[str, Array]:
    """Zeros in memory that nobody had written: a kernel that read it would not repeat itself."""
    numbers: list[Any] = captured.call["unwritten"]
    left = {names[number] for number in numbers}
    shared = {each.alias for each in arrays.values()}
    return {
        name: replace(one, data=bytes(len(one.data))) if name in left - shared else one
        for name, one in arrays.items()
    }
