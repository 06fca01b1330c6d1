"""A captured call of numpy or scipy as a program, and the bits that it gave."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from stackbisect.repro.calls import ITEMSIZE, Array, Program, Ref
from stackbisect.repro.capture import Asked, Made
from stackbisect.repro.captured import Captured
from stackbisect.repro.extract import NoCase
from stackbisect.repro.render_numpy import ALIGNED
from stackbisect.repro.render_torch import identifier
from stackbisect.repro.rendering import ENVIRON

_LIBRARIES = ("numpy", "scipy")
_COMES_ALONG = ("numpy", "numpy.linalg", "numpy.fft")  # with `import numpy`
# Names that mean something else in a repro.
_OURS = {"numpy", "scipy", "memory", "laid_out", "stored", "outputs", "digest"}


def program(captured: Captured, asked: Asked) -> Made | NoCase:
    """What is to be called alone. Pure."""
    call = captured.call
    library = call["function"].partition(".")[0]
    if library not in _LIBRARIES:
        return NoCase(
            f"{captured.name} belongs to {call['module'] or 'no module'}, and not to numpy or "
            "scipy: call it by hand with the inputs of this operation"
        )
    for row in captured.tensors:
        if row["dtype"] not in ITEMSIZE:
            return NoCase(
                f"its argument {row['name']} is of a dtype that is not known: {row['dtype']}"
            )
    names = _names(captured)
    refs_of = {number: Ref(name) for number, name in names.items()}
    step, digests = captured.step(names, refs_of, list(_results(captured)))
    expected = {name: digest for name, digest in digests.items() if digest is not None}
    if not expected:
        return NoCase(f"{captured.name} gives no array whose bits can be read")
    inputs = captured.arrays(names)
    module = call["module"]
    found = Program(
        kind=library,
        operation=captured.name,
        inputs={name: _placed(each) for name, each in inputs.items()},
        steps=(step,),
        outputs=tuple(expected),
        settings={ENVIRON + name: value for name, value in sorted(captured.environ.items())},
        needs=("numpy",) if library == "numpy" else ("numpy", "scipy"),
        imports=() if module in _COMES_ALONG else (module,),
    )
    return Made(found, expected)


def _placed(one: Array) -> Array:
    """What lies where numpy puts any array has no alignment of its own."""
    return replace(one, alignment=64) if one.alignment >= ALIGNED else one


def _names(captured: Captured) -> dict[int, str]:
    taken = {name for name, _ in _results(captured)} | {"out"}
    found = {}
    for row in captured.tensors:
        name = found[row["number"]] = identifier(row["name"], taken | _OURS)
        taken.add(name)
    return found


def _results(captured: Captured) -> Iterator[tuple[str, Any]]:
    """A name for each result, "" for what is no array, and what is known of it."""
    results = captured.call["results"]
    for at, each in enumerate(results):
        named = each is not None and each["digest"] is not None
        yield (f"out{at}" if len(results) > 1 else "out") if named else "", each
