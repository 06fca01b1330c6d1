"""A repro in words: its title, its README, and what is said when it was written. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from stackbisect.repro.form import Difference, Form, StackTable

_DIGITS = 12  # of a digest, where people read it


def title(operation: str, stacks: Sequence[StackTable]) -> str:
    """The finding in a line."""
    return f"{operation} gives other bits {_between(stacks)}"


def cause(stacks: Sequence[StackTable]) -> str:
    """What the two stacks differ in, as far as their tables say."""
    return f"the same call with the same inputs gives other bits {_between(stacks)}"


def _between(stacks: Sequence[StackTable]) -> str:
    apart = [*_apart(stacks[0].versions, stacks[1].versions, " ")]
    apart += _apart(stacks[0].environment, stacks[1].environment, "=")
    if not apart:
        return f"in the {stacks[1].name} stack than in the {stacks[0].name} one"
    good, bad = (", ".join(side) for side in zip(*apart, strict=True))
    return f"with {bad} than with {good}"


def _apart(
    first: Mapping[str, str], second: Mapping[str, str], joint: str
) -> Iterator[tuple[str, str]]:
    """What two tables give other values, as both have it."""
    for name in sorted({*first, *second}):
        if first.get(name) != second.get(name):
            yield _named(name, first.get(name), joint), _named(name, second.get(name), joint)


def _named(name: str, value: str | None, joint: str) -> str:
    return f"no {name}" if value is None else f"{name}{joint}{value}"


def extracted(form: Form, out: Path) -> str:
    """What `extract` says in the end."""
    lines = [f"{out}: {form.finding.title}"]
    if form.difference is not None:
        lines.append(f"  {difference(form.difference)}")
    for each in form.stacks:
        for name, digest in each.digests.items():
            lines.append(f"  {each.name}: {name} {digest[: len('sha256:') + _DIGITS]}")
    if form.shrink is not None:
        done = form.shrink
        lines.append(
            f"  shrunk in {done.steps} steps ({done.tries} tries) to {done.elements} elements"
        )
    return "\n".join(lines) + "\n"


def difference(apart: Difference) -> str:
    """The differing elements in a line."""
    many = "1 element differs" if apart.elements == 1 else f"{apart.elements} elements differ"
    place = list(apart.first_index)
    text = f"{apart.output or 'output'}: {many}, first at {place}: {' and '.join(apart.hex)}"
    return text if apart.ulp is None else f"{text}, {apart.ulp} ulp apart"


def page(form: Form, notes: Sequence[str] = ()) -> str:
    """README.md. notes: paragraphs that say more of what was found."""
    return "\n".join(_page(form, notes)) + "\n"


def _page(form: Form, notes: Sequence[str]) -> Iterator[str]:
    finding = form.finding
    yield f"# {finding.title}"
    yield ""
    which = f" ({finding.direction})" if finding.direction else ""
    yield f"`{finding.operation}`{which}: {finding.cause}."
    if finding.kind == "module":
        yield ""
        yield (
            "No single operation is to blame that the dispatcher sees: this is the innermost "
            "module that takes the same in both stacks and gives something else."
        )
    for note in notes:
        yield ""
        yield note
    yield ""
    yield "## Run"
    yield ""
    yield f"Needs {', '.join(form.run.needs) or 'nothing but Python'}" + (
        " and a GPU." if form.run.gpu else "."
    )
    yield ""
    yield "```"
    for each in form.stacks:
        variables = "".join(
            f"{name}={shlex.quote(value)} " for name, value in sorted(each.environment.items())
        )
        known = ", ".join(f"{name} {version}" for name, version in sorted(each.versions.items()))
        yield f"{variables}{shlex.join(form.run.command)}" + (f"    # {known}" if known else "")
    yield "```"
    yield ""
    yield "## What it prints"
    yield ""
    for each in form.stacks:
        yield f"In the {each.name} stack:"
        yield ""
        yield "```"
        for name, digest in each.digests.items():
            yield f"digest {name} {digest}"
        yield "```"
        yield ""
    if form.difference is not None:
        yield f"{difference(form.difference)}."
