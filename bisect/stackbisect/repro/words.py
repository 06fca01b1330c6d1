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
        lines.append(f"  {differing(form)}")
    for each in form.stacks:
        for name, digest in each.digests.items():
            lines.append(f"  {each.name}: {name} {digest[: len('sha256:') + _DIGITS]}")
    if form.shrink is not None:
        done = form.shrink
        sizes = f"{many(done.elements, 'element')} of input"
        lines.append(f"  shrunk in {many(done.steps, 'step')} ({done.tries} tries) to {sizes}")
    return "\n".join(lines) + "\n"


def many(count: int, word: str) -> str:
    """A count with its word."""
    return f"{count} {word}{'' if count == 1 else 's'}"


def differing(form: Form) -> str:
    """The differing elements in a line, and which other outputs differ, too."""
    assert form.difference is not None
    good, bad = (each.digests for each in form.stacks[:2])
    apart = [name for name in good if name in bad and good[name] != bad[name]]
    others = [name for name in apart if name != form.difference.output]
    text = difference(form.difference)
    return f"{text}; other bits in {', '.join(others)}, too" if others else text


def difference(apart: Difference) -> str:
    """The differing elements of an output in a line."""
    count = many(apart.elements, "element") + (" differs" if apart.elements == 1 else " differ")
    place = list(apart.first_index)
    text = f"{apart.output or 'output'}: {count}, first at {place}: {' and '.join(apart.hex)}"
    # Between a small number and zero lie hundreds of millions: that says nothing.
    if apart.ulp is None or apart.ulp > _FAR:
        return text
    return f"{text}, {apart.ulp} ulp apart"


_FAR = 1_000_000


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
        yield f"{differing(form)}."
