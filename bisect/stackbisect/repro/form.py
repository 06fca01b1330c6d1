"""The form of a repro's folder: what repro.toml says, and the lines that repro.py prints.

```
NAME/repro.py      standalone; prints one line `digest NAME sha256:…` for each output
NAME/repro.toml    what, where, and what is printed in which stack (`Form`)
NAME/README.md     the same in words
```
repro.py imports nothing but the standard library and what it is about. Run as a program it prints
its digests (SHA-256 over dtype, shape and the bytes in C order) and ends with 0. What `extract`
writes has a function `outputs()` too, which returns the tensors or arrays behind them by name, and
does nothing else when it is imported: that is how the differing elements are found.

`stackbisect extract` writes such folders, `repros/` holds them. An unknown field, a wrong type or a
newer version is an error that names the field.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import tomli_w

from pinner.durable import replace_text
from stackbisect.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

VERSION = 1
SCRIPT, TABLE, TEXT = "repro.py", "repro.toml", "README.md"
KINDS = ("aten", "custom", "triton", "cublaslt", "numpy", "scipy", "module", "program")
DIRECTIONS = ("", "forward", "backward")

_T = TypeVar("_T")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_PRINTED = re.compile(r"digest (\S+) (sha256:[0-9a-f]{64})")
_HEX = re.compile(r"0x[0-9a-f]+(,0x[0-9a-f]+)?")  # complex: two


class FormError(UsageError):
    """A folder that is not in this form; names file, table and field."""


@dataclass(frozen=True)
class Finding:
    """What was found. direction: "forward", "backward", or "" where the word means nothing.

    operation: as its library calls it ("aten.mm.default", "numpy.matmul"). cause: in a sentence.
    """

    title: str
    kind: str
    operation: str
    cause: str
    direction: str = ""


@dataclass(frozen=True)
class Run:
    """How it is run, in its folder. needs: distributions. processes: how many it starts."""

    command: tuple[str, ...] = ("python", SCRIPT)
    needs: tuple[str, ...] = ()
    gpu: bool = False
    processes: int = 1


@dataclass(frozen=True)
class StackTable:
    """One stack: what it consists of, and the digest that each output has there.

    digests: empty where the bits are not the same from run to run, or not on every machine: the
        stacks of a folder are then run and compared on one machine (`repros/` does that).
    """

    name: str
    versions: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Difference:
    """How the first two stacks differ. elements: how many do.

    first_index: of the first of them, in C order. hex: its bits in each stack, "0x…". ulp: how many
    values lie between the two; None where the dtype has no such distance. output: which one.
    """

    elements: int
    first_index: tuple[int, ...]
    hex: tuple[str, str]
    ulp: int | None = None
    output: str = ""


@dataclass(frozen=True)
class Fix:
    """What makes the difference go away. command: shows that it holds."""

    command: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Shrunk:
    """How small it was made. steps: that succeeded. elements: of all inputs that are left."""

    steps: int
    tries: int
    elements: int


@dataclass(frozen=True)
class Form:
    """All of repro.toml. diagnose: the command of ours that finds it. machine: CPU, GPU, system."""

    finding: Finding
    run: Run
    stacks: tuple[StackTable, ...]
    difference: Difference | None = None
    diagnose: tuple[str, ...] = ()
    fix: Fix | None = None
    shrink: Shrunk | None = None
    machine: Mapping[str, str] = field(default_factory=dict)

    def stack(self, name: str) -> StackTable:
        """The stack of that name. Raises FormError."""
        for each in self.stacks:
            if each.name == name:
                return each
        names = ", ".join(each.name for each in self.stacks)
        raise FormError(f"expected one of the stacks {names}, found {name!r}")


# -- what repro.py prints --------------------------------------------------------------------------


def printed(text: str) -> dict[str, str]:
    """The digest of each output, from the standard output of a repro. Raises FormError."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if not line.startswith("digest "):
            continue
        match = _PRINTED.fullmatch(line.rstrip())
        if match is None:
            raise FormError(f"expected `digest NAME sha256:…`, found {line!r}")
        name, digest = match.groups()
        if name in found:
            raise FormError(f"expected one line for each output, found two for {name!r}")
        found[name] = digest
    return found


# -- writing ---------------------------------------------------------------------------------------


def write(folder: Path, form: Form) -> None:
    """Write repro.toml. Raises FormError for what `read` would not take back."""
    replace_text(folder / TABLE, text(form))


def text(form: Form) -> str:
    """The text of repro.toml. Raises FormError for what `loads` would not take back."""
    found = tomli_w.dumps(_tables(form))
    loads(found, "the repro.toml to be written")
    return found


def _tables(form: Form) -> dict[str, Any]:
    finding, run = form.finding, form.run
    tables: dict[str, Any] = {
        "version": VERSION,
        "finding": {
            "title": finding.title,
            "kind": finding.kind,
            "operation": finding.operation,
            "direction": finding.direction,
            "cause": finding.cause,
        },
        "run": {
            "command": list(run.command),
            "needs": list(run.needs),
            "gpu": run.gpu,
            "processes": run.processes,
        },
        "stack": [
            {
                "name": each.name,
                "versions": dict(sorted(each.versions.items())),
                "environment": dict(sorted(each.environment.items())),
                "digests": dict(each.digests),
            }
            for each in form.stacks
        ],
    }
    tables.update(_optional_tables(form))
    return tables


def _optional_tables(form: Form) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if form.difference is not None:
        apart = form.difference
        found["difference"] = {
            "elements": apart.elements,
            "first_index": list(apart.first_index),
            "hex": list(apart.hex),
            **({} if apart.ulp is None else {"ulp": apart.ulp}),
            **({"output": apart.output} if apart.output else {}),
        }
    if form.diagnose:
        found["diagnose"] = {"command": list(form.diagnose)}
    if form.fix is not None:
        found["fix"] = {"command": list(form.fix.command), "text": form.fix.text}
    if form.shrink is not None:
        done = form.shrink
        found["shrink"] = {"steps": done.steps, "tries": done.tries, "elements": done.elements}
    if form.machine:
        found["machine"] = dict(sorted(form.machine.items()))
    return found


# -- reading ---------------------------------------------------------------------------------------


def read(folder: Path) -> Form:
    """Read repro.toml. Raises FormError for whatever is wrong with it, its absence included."""
    path = folder / TABLE
    try:
        data = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise FormError(f"{path}: expected UTF-8 text, found other bytes") from None
    except OSError as error:
        raise FormError(f"{path}: cannot read it: {error.strerror or error}") from error
    return loads(data, str(path))


def loads(data: str, source: str) -> Form:
    """Read the text of a repro.toml. Raises FormError, and nothing else."""
    try:
        parsed = tomllib.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormError(f"{source}: expected TOML, found: {error}") from None
    top = _Table(parsed, source, "")
    version = top.integer("version")
    if version != VERSION:
        raise top.wrong("version", str(VERSION), version)
    form = Form(
        finding=_finding(top.table("finding")),
        run=_run(top.table("run")),
        stacks=tuple(_stack(each) for each in top.tables("stack")),
        difference=_optional(top, "difference", _difference),
        diagnose=_optional(top, "diagnose", lambda table: table.words("command")) or (),
        fix=_optional(top, "fix", lambda table: Fix(table.words("command"), table.text("text"))),
        shrink=_optional(top, "shrink", _shrunk),
        machine=top.texts("machine") if "machine" in top else {},
    )
    top.close()
    _check(form, source)
    return form


def _check(form: Form, source: str) -> None:
    """What one table cannot say alone."""
    names = [each.name for each in form.stacks]
    if not names:
        raise FormError(f"{source}: expected a [[stack]], found none")
    for name in names:
        if names.count(name) > 1:
            raise FormError(f"{source}: [[stack]] name: expected each once, found {name!r} twice")
    outputs = {each.name: set(each.digests) for each in form.stacks if each.digests}
    for name, found in outputs.items():
        first = next(iter(outputs))
        if found != outputs[first]:
            raise FormError(
                f"{source}: [[stack]] {name!r}: digests: expected the outputs of {first!r} "
                f"({', '.join(sorted(outputs[first]))}), found {', '.join(sorted(found))}"
            )
    if form.difference is not None and len(names) < 2:
        raise FormError(f"{source}: [difference]: expected two stacks, found {names[0]!r} alone")
    both = [each.digests for each in form.stacks[:2]]
    if form.difference is not None and all(both) and both[0] == both[1]:
        raise FormError(
            f"{source}: [difference]: expected other digests in {names[1]!r} than in {names[0]!r}, "
            "found the same"
        )


def _finding(table: _Table) -> Finding:
    return table.done(
        Finding(
            title=table.text("title"),
            kind=table.one_of("kind", KINDS),
            operation=table.text("operation", empty=True),
            cause=table.text("cause"),
            direction=table.one_of("direction", DIRECTIONS),
        )
    )


def _run(table: _Table) -> Run:
    return table.done(
        Run(
            command=table.words("command"),
            needs=table.words("needs", empty=True),
            gpu=table.boolean("gpu"),
            processes=table.integer("processes", least=1),
        )
    )


def _stack(table: _Table) -> StackTable:
    digests = table.texts("digests")
    for output, digest in digests.items():
        if not _DIGEST.fullmatch(digest):
            raise table.wrong(f"digests.{output}", "sha256:… with 64 digits", digest)
    return table.done(
        StackTable(
            name=table.text("name"),
            versions=table.texts("versions"),
            environment=table.texts("environment"),
            digests=digests,
        )
    )


def _difference(table: _Table) -> Difference:
    bits = table.words("hex")
    if len(bits) != 2 or not all(_HEX.fullmatch(each) for each in bits) or bits[0] == bits[1]:
        raise table.wrong("hex", 'two different values as ["0x…", "0x…"]', list(bits))
    return Difference(
        elements=table.integer("elements", least=1),
        first_index=table.integers("first_index"),
        hex=(bits[0], bits[1]),
        ulp=table.integer("ulp") if "ulp" in table else None,
        output=table.text("output") if "output" in table else "",
    )


def _shrunk(table: _Table) -> Shrunk:
    return Shrunk(table.integer("steps"), table.integer("tries"), table.integer("elements"))


def _optional(top: _Table, name: str, take: Callable[[_Table], Any]) -> Any:
    if name not in top:
        return None
    table = top.table(name)
    return table.done(take(table))


class _Table:
    """One table of the file; fields are taken one by one, and none may be left."""

    def __init__(self, fields: Mapping[str, Any], source: str, name: str) -> None:
        self._fields = dict(fields)
        self._taken: set[str] = set()
        self._source = source
        self._name = name

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def wrong(self, name: str, expected: str, found: Any) -> FormError:
        """The error of one field."""
        shown = "nothing" if found is None else repr(found)
        place = f"{self._name} " if self._name else ""
        return FormError(f"{self._source}: {place}{name}: expected {expected}, found {shown}")

    def done(self, value: _T) -> _T:
        """`value`, once every field was taken."""
        self.close()
        return value

    def close(self) -> None:
        """Raise FormError where a field is left that nobody knows."""
        left = sorted(set(self._fields) - self._taken)
        if left:
            known = ", ".join(sorted(self._taken))
            place = self._name or "the file"
            raise FormError(
                f"{self._source}: {place}: expected no other fields than {known}, "
                f"found {', '.join(left)}"
            )

    def text(self, name: str, *, empty: bool = False) -> str:
        """A string; `empty`: it may be."""
        found = self._take(name)
        if not isinstance(found, str) or not (found or empty):
            raise self.wrong(name, "a string" if empty else "a string with something in it", found)
        return found

    def one_of(self, name: str, known: Sequence[str]) -> str:
        """One of these strings."""
        found = self._take(name)
        if found not in known:
            raise self.wrong(name, "one of " + ", ".join(map(repr, known)), found)
        return str(found)

    def boolean(self, name: str) -> bool:
        """true or false."""
        found = self._take(name)
        if not isinstance(found, bool):
            raise self.wrong(name, "true or false", found)
        return found

    def integer(self, name: str, *, least: int = 0) -> int:
        """An integer of at least `least`."""
        found = self._take(name)
        if type(found) is not int or found < least:
            raise self.wrong(name, f"an integer of at least {least}", found)
        return found

    def integers(self, name: str) -> tuple[int, ...]:
        """An array of integers, none of them negative."""
        found = self._take(name)
        if not isinstance(found, list) or not all(type(n) is int and n >= 0 for n in found):
            raise self.wrong(name, "an array of integers from 0 on", found)
        return tuple(found)

    def words(self, name: str, *, empty: bool = False) -> tuple[str, ...]:
        """An array of strings."""
        found = self._take(name)
        good = isinstance(found, list) and all(isinstance(each, str) and each for each in found)
        if not good or not (found or empty):
            raise self.wrong(name, "an array of strings", found)
        return tuple(found)

    def texts(self, name: str) -> dict[str, str]:
        """A table of strings."""
        found = self._take(name)
        if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
            raise self.wrong(name, "a table of strings", found)
        return dict(found)

    def table(self, name: str) -> _Table:
        """A table."""
        found = self._take(name)
        if not isinstance(found, dict):
            raise self.wrong(f"[{name}]", "a table", found)
        return _Table(found, self._source, f"[{name}]")

    def tables(self, name: str) -> list[_Table]:
        """An array of tables; empty where there is none."""
        found = self._take(name)
        if found is None:
            return []
        if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
            raise self.wrong(f"[[{name}]]", "an array of tables", found)
        return [
            _Table(each, self._source, f"[[{name}]] {n}") for n, each in enumerate(found, start=1)
        ]

    def _take(self, name: str) -> Any:
        self._taken.add(name)
        return self._fields.get(name)
