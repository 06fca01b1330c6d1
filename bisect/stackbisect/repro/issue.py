"""A report of a repro's folder that is ready to paste into its library's tracker. Pure.

Who found it and where is not in it: see `personal`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from stackbisect.repro import form, personal, words
from stackbisect.repro.form import Form, StackTable
from stackbisect.repro.personal import Personal

# What still reads well inside of a report.
_LINES, _BYTES = 160, 10_000


def report(found: Form, files: Mapping[str, bytes], names: Personal) -> str:
    """Markdown. files: of the folder; `names` are removed from what is written."""
    prose = _Prose(found, names)
    parts = [*prose.head(), *prose.program(files), *prose.results(), *prose.around()]
    return "\n".join(parts).rstrip("\n") + "\n"


class _Prose:
    def __init__(self, found: Form, names: Personal) -> None:
        self._form = found
        self._names = names

    def head(self) -> Iterator[str]:
        """What it is."""
        finding = self._form.finding
        yield f"# {self._said(finding.title)}"
        yield ""
        which = f" ({finding.direction})" if finding.direction else ""
        kind = f"{finding.kind}, " if finding.kind not in finding.operation else ""
        cause = self._said(finding.cause).removesuffix(".")
        yield f"`{self._said(finding.operation)}`{which}: {kind}{cause}."
        yield ""
        if all(each.digests for each in self._form.stacks):
            yield (
                "The same program with the same inputs was run in both stacks, several times in "
                "fresh processes. Each stack repeats its own bits every time; they are not the "
                "same bits."
            )
        else:
            yield (
                "No digests are given here: the bits are not the same on every machine, or not in "
                "every run. Run it in both stacks on one machine and compare what they print."
            )
        if finding.kind == "module":
            yield ""
            yield "It is the innermost module that shows it; what it calls is not seen one by one."
        yield ""

    def program(self, files: Mapping[str, bytes]) -> Iterator[str]:
        """How it is run, and the program where it is small."""
        run = self._form.run
        yield "## To reproduce"
        yield ""
        needs = ", ".join(run.needs) or "nothing but Python"
        yield f"Needs {needs}{' and a GPU' if run.gpu else ''}."
        yield ""
        beside = {
            name: data
            for name, data in files.items()
            if name not in (form.SCRIPT, form.TABLE, form.TEXT)
        }
        text = files.get(form.SCRIPT, b"").decode(errors="replace")
        if text and len(text) <= _BYTES and text.count("\n") <= _LINES:
            yield f"`{form.SCRIPT}`:"
            yield ""
            yield from _block(personal.code(text, self._names), "python")
        elif text:
            yield f"`{form.SCRIPT}` is attached ({len(text)} characters)."
            yield ""
        for name, data in beside.items():
            yield f"Beside it lies `{self._said(name)}`, attached ({len(data)} bytes)."
            yield ""
        yield from _block("\n".join(map(self._command, self._form.stacks)), "sh")

    def results(self) -> Iterator[str]:
        """What it prints, and how that differs; nothing where no digests are kept."""
        shown = [each for each in self._form.stacks if each.digests]
        if not shown:
            return
        yield "## What it prints"
        yield ""
        for each in shown:
            yield f"In the {self._said(each.name)} stack:"
            yield ""
            lines = [f"digest {name} {digest}" for name, digest in each.digests.items()]
            yield from _block("\n".join(lines))
        apart = self._form.difference
        if apart is not None:
            yield f"{words.differing(self._form)}."
            yield ""

    def around(self) -> Iterator[str]:
        """Versions, variables, the machine, and how it was found."""
        stacks = self._form.stacks
        yield "## Versions and environment"
        yield ""
        yield "| | " + " | ".join(self._said(each.name) for each in stacks) + " |"
        yield "|---|" + "---|" * len(stacks)
        yield from self._rows([each.versions for each in stacks])
        variables = [personal.variables(each.environment, self._names) for each in stacks]
        yield from self._rows(variables)
        yield ""
        for name, value in self._form.machine.items():
            yield f"- {name.replace('_', ' ')}: {self._said(value)}"
        if self._form.machine:
            yield ""
        if self._form.fix is not None:
            yield "## What fixes it"
            yield ""
            yield self._said(self._form.fix.text)
            yield ""
        yield "## How it was found"
        yield ""
        yield from self._found()
        yield ""

    def _found(self) -> Iterator[str]:
        """What the search did. Who knows a fix wrote the folder by hand: no search made that."""
        module = self._form.finding.kind == "module"
        which = "innermost module" if module else "first operation"
        if self._form.fix is None:
            yield (
                f"The command that showed it was traced in both stacks; this is the {which} "
                "whose inputs have the same bits and whose outputs have not."
            )
        if self._form.shrink is not None:
            done = self._form.shrink
            yield (
                f"It was then made smaller in {done.steps} steps ({done.tries} tries), to "
                f"{done.elements} elements, each step still showing the difference."
            )
        if self._form.diagnose:
            yield f"Found by `{self._said(shlex.join(self._form.diagnose))}`."

    def _rows(self, tables: list[Mapping[str, str]] | list[dict[str, str]]) -> Iterator[str]:
        for name in sorted({name for table in tables for name in table}):
            cells = (self._cell(table.get(name)) for table in tables)
            yield f"| {self._said(name)} | {' | '.join(cells)} |"

    def _cell(self, value: str | None) -> str:
        return "–" if value is None else self._said(value).replace("|", "\\|").replace("\n", " ")

    def _command(self, stack: StackTable) -> str:
        given = personal.variables(stack.environment, self._names)
        set_there = "".join(f"{name}={shlex.quote(value)} " for name, value in given.items())
        command = self._said(shlex.join(self._form.run.command))
        return f"{set_there}{command}    # {self._said(stack.name)}"

    def _said(self, text: str) -> str:
        return personal.prose(text, self._names)


def _block(text: str, language: str = "") -> Iterator[str]:
    """A block of code, fenced by more marks than any in it."""
    fence = "```"
    while fence in text:
        fence += "`"
    yield f"{fence}{language}"
    yield text.rstrip("\n")
    yield fence
    yield ""
