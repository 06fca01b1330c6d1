"""From what a Triton kernel consists of in two stacks to the text of a program of its own. Pure.

A function that is the same in both stacks is copied: what differs then is Triton's own work. One
that is not the same is what the stacks differ in, and a copy of it would show nothing. It is
imported from the library that was installed in both stacks, as each of them has it, and so are
constants that are not the same. Where no library has it, the change is in the user's own code, and
there is no library to show it to.
"""

from __future__ import annotations

import ast
import builtins
import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# What pinner/inside/evidence/trace/kernel_source.py says that a name means.
_FUNCTION, _MODULE, _OBJECT, _CONSTANT, _NOTE = (
    "function",
    "module",
    "object",
    "constant",
    "note",
)
_ALIASES = {"triton.language": "tl", "triton": "triton", "torch": "torch"}
_HEADS = frozenset(("torch", "triton", "tl"))
# Names that repro.py needs for itself.
_TAKEN = _HEADS | {"hashlib", "json", "os", "random", "sys", "outputs", "inputs", "main"}


class NoText(Exception):
    """The kernel cannot be a program of its own; says why."""


@dataclass(frozen=True)
class Change:
    """A function or a constant that is not the same in the two stacks.

    name: as its module has it. distribution: the library that it is installed with. versions: of it
    in the good and in the bad stack. diff: what changed, itself and below it.
    """

    name: str
    module: str
    distribution: str
    versions: tuple[str, str]
    diff: str


@dataclass(frozen=True)
class Text:
    """The module level of a repro.

    imports: lines after `import torch`, `import triton` and `import triton.language as tl`. body:
    constants and functions. kernel, functions: the names of the kernel and of the functions that
    are its arguments. wrapped: the kernel itself is imported, with whatever tunes it around it.
    """

    imports: tuple[str, ...]
    body: str
    kernel: str
    functions: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    wrapped: bool = False


def text(good: Mapping[str, Any], bad: Mapping[str, Any] | None, further: int = 0) -> Text:
    """The text of a kernel, from the `closure` of both stacks.

    bad: None where it is not known; then all is taken to be the same. further: how many functions
    are its arguments. Raises NoText.
    """
    choice = _Choice(good, bad or good)
    choice.take(0, [])
    for number in range(1, further + 1):
        choice.take(number, [])
    return _Writing(choice, further).text()


# -- what is copied and what is imported -----------------------------------------------------------


@dataclass
class _Choice:
    """copied: numbers of functions in the good stack. imported: what is, and from where."""

    good: Mapping[str, Any]
    bad: Mapping[str, Any]
    copied: list[int] = field(default_factory=list)
    imported: dict[int, tuple[str, str]] = field(default_factory=dict)
    constants: dict[tuple[int, str], tuple[str, str]] = field(default_factory=dict)

    def take(self, number: int, origin: Sequence[str]) -> None:
        """Decide on a function and on all below it. Raises NoText."""
        if number in self.copied or number in self.imported:
            return
        mine = self.good["functions"][number]
        theirs = self._other(number)
        before = list(self.copied), dict(self.imported), dict(self.constants)
        try:
            if theirs is None or _own(mine) != _own(theirs):
                raise NoText(f"{_name(mine)} is not the same in the two stacks")
            self.copied.append(number)
            self._below(number, mine, theirs)
        except NoText as error:
            self.copied, self.imported, self.constants = before
            place = self._installed(mine, origin)
            if place is None:
                raise NoText(_not_installed(mine, error)) from None
            self.imported[number] = place

    def _below(self, number: int, mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
        others = {read["path"]: read["means"] for read in theirs["reads"]}
        for read in mine["reads"]:
            path, means = read["path"], read["means"]
            other = others.get(path)
            kind = means[0]
            if other is None or other[0] != kind:
                raise NoText(f"{path} in {_name(mine)} is something else in the other stack")
            if kind == _FUNCTION:
                self._called(means, other)
            elif kind == _CONSTANT and means[:3] != other[:3]:
                self.constants[number, path] = self._constant(mine, path, means, other)
            elif kind in (_MODULE, _OBJECT) and means[-1] != other[-1]:
                raise NoText(f"{path} in {_name(mine)} is something else in the other stack")

    def _called(self, means: Sequence[Any], other: Sequence[Any]) -> None:
        """A function that is read; another one in the other stack is not the same."""
        called = self.good["functions"][means[1]]
        there = self.bad["functions"][other[1]]
        if _key(called) != _key(there):
            place = self._library(means[2])
            if place is None:
                raise NoText(f"{_name(called)} is {_name(there)} in the other stack")
            self.imported[means[1]] = place
            return
        self.take(means[1], means[2])

    def _constant(
        self, mine: Mapping[str, Any], path: str, means: Sequence[Any], other: Sequence[Any]
    ) -> tuple[str, str]:
        place = self._library(means[3])
        if place is None or means[3] != other[3]:
            raise NoText(
                f"{path} in {_name(mine)} is {means[1]} in the good stack and {other[1]} in the bad"
            )
        return place

    def _other(self, number: int) -> Mapping[str, Any] | None:
        """The function of the bad stack that has this one's place."""
        mine = self.good["functions"][number]
        if number == 0:
            found: Mapping[str, Any] = self.bad["functions"][0]
            return found if found["name"] == mine["name"] else None
        for each in self.bad["functions"]:
            if _key(each) == _key(mine):
                return dict(each)
        return None

    def _installed(self, mine: Mapping[str, Any], origin: Sequence[str]) -> tuple[str, str] | None:
        """From where a function can be imported in both stacks."""
        place = self._library(origin)
        if place is None and mine["importable"]:
            place = self._library((mine["module"], mine["name"]))
        return place

    def _library(self, origin: Sequence[str]) -> tuple[str, str] | None:
        if not origin:
            return None
        both = (self.good["homes"], self.bad["homes"])
        if not all(homes.get(origin[0]) for homes in both):
            return None
        return origin[0], origin[1]

    # -- what changed -------------------------------------------------------------------------

    def changes(self) -> Iterator[Change]:
        """What is imported because it is not the same."""
        for number, (module, name) in self.imported.items():
            both = [self._below_text(self.good, number), self._below_text(self.bad, None, number)]
            yield self._change(module, name, both)
        for (number, path), (module, name) in self.constants.items():
            values = [
                [f"{name} = {read['means'][1]}"]
                for found in (self.good["functions"][number], self._other(number) or {"reads": ()})
                for read in found["reads"]
                if read["path"] == path
            ]
            yield self._change(module, name, values)

    def _change(self, module: str, name: str, both: Sequence[list[str]]) -> Change:
        homes = [side["homes"][module] for side in (self.good, self.bad)]
        versions = [str(each.get("version", "")) for each in homes]
        library = homes[0]["distribution"]
        titles = [f"{library} {version}" for version in versions]
        lines = difflib.unified_diff(both[0], both[1], titles[0], titles[1], lineterm="")
        return Change(name, module, library, (versions[0], versions[1]), "\n".join(lines))

    def _below_text(self, side: Mapping[str, Any], number: int | None, like: int = 0) -> list[str]:
        """The text of a function and of those below it, as far as they are not the same."""
        if number is None:
            key = _key(self.good["functions"][like])
            found = [n for n, each in enumerate(side["functions"]) if _key(each) == key]
            number = 0 if like == 0 else found[0] if found else None
        if number is None:
            return []
        lines: list[str] = []
        for each in _reached(side, number):
            function = side["functions"][each]
            if each != number and self._is_same(function):
                continue
            lines += _constants_of(function) + str(function["text"]).splitlines()
        return lines

    def _is_same(self, function: Mapping[str, Any]) -> bool:
        sides = [
            [_facts(each) for each in side["functions"] if _key(each) == _key(function)]
            for side in (self.good, self.bad)
        ]
        return sides[0] == sides[1]


def _own(function: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a function is by itself: its text but for comments, and how it was decorated."""
    try:
        definition = ast.parse(function["text"]).body[0]
    except SyntaxError as error:  # a stack may have a newer Python than this one
        raise NoText(f"this Python cannot read {_name(function)}: {error}") from None
    if not isinstance(definition, ast.FunctionDef):
        raise NoText(f"{_name(function)} is no function that a `def` makes")
    if ast.get_docstring(definition, clean=False) is not None and len(definition.body) > 1:
        del definition.body[0]
    options = {key: value for key, value in function["options"].items() if value}
    return ast.dump(definition), function["kind"], options


def _facts(function: Mapping[str, Any]) -> Any:
    constants = [
        (read["path"], read["means"][1:3])
        for read in function["reads"]
        if read["means"][0] == _CONSTANT
    ]
    return _own(function), constants


def _constants_of(function: Mapping[str, Any]) -> list[str]:
    return [
        f"{read['path']} = {read['means'][1]}"
        for read in function["reads"]
        if read["means"][0] == _CONSTANT
    ]


def _reached(side: Mapping[str, Any], number: int) -> list[int]:
    found = [number]
    for each in found:
        for read in side["functions"][each]["reads"]:
            if read["means"][0] == _FUNCTION and read["means"][1] not in found:
                found.append(read["means"][1])
    return found


def _key(function: Mapping[str, Any]) -> tuple[str, str]:
    return function["module"], function["qualname"]


def _name(function: Mapping[str, Any]) -> str:
    return f"{function['module']}.{function['qualname']}"


def _not_installed(mine: Mapping[str, Any], error: NoText) -> str:
    why = str(error)
    if why.endswith(_OWN_CODE):
        return why
    return why + _OWN_CODE


_OWN_CODE = (
    ", and no library that was installed in both has it: the change is in your own code, which is "
    "no repro for anybody else"
)


# -- writing ---------------------------------------------------------------------------------------


class _Writing:
    """Gives each thing that is read a name of its own, and writes the functions with these."""

    def __init__(self, choice: _Choice, further: int) -> None:
        self._choice = choice
        self._functions: Sequence[Mapping[str, Any]] = choice.good["functions"]
        self._further = further
        self._names: dict[Any, str] = {}
        self._forbidden: dict[Any, set[str]] = {}
        self._imports: list[str] = []
        self._from: dict[str, list[str]] = {}
        self._constants: list[str] = []
        self._order = self._copied()

    def text(self) -> Text:
        """All of it."""
        for number in self._order:
            self._forbid(number)
        roots = range(self._further + 1)
        for number in roots:  # where it is launched its arguments are variables
            hidden = self._forbidden.setdefault((_FUNCTION, number), set())
            hidden.update(self._functions[0]["locals"])
            self._name_function(number)
        for number in self._order:
            for read in self._functions[number]["reads"]:
                self._name_read(number, read)
        body = ["\n".join(self._constants)] if self._constants else []
        body += [self._written(number) for number in self._order]
        return Text(
            imports=tuple(self._import_lines()),
            body="\n\n\n".join(body),
            kernel=self._names[_FUNCTION, 0],
            functions=tuple(self._names[_FUNCTION, number] for number in roots[1:]),
            changes=tuple(self._choice.changes()),
            wrapped=0 in self._choice.imported,
        )

    def _copied(self) -> list[int]:
        """The functions that are copied, each behind those that it calls."""
        found: list[int] = []

        def visit(number: int, above: tuple[int, ...]) -> None:
            if number in found or number in above or number not in self._choice.copied:
                return
            for read in self._functions[number]["reads"]:
                if read["means"][0] == _FUNCTION:
                    visit(read["means"][1], (*above, number))
            found.append(number)

        for number in (*range(1, self._further + 1), 0):
            visit(number, ())
        return found

    # -- names --------------------------------------------------------------------------------

    def _key(self, number: int, read: Mapping[str, Any]) -> Any:
        means = read["means"]
        kind = means[0]
        place = self._choice.constants.get((number, read["path"]))
        if place is not None:
            return "import", *place
        if kind == _CONSTANT:
            return kind, _constant_name(read["path"]), means[1], means[2]
        return (kind, *means[1:2]) if kind == _FUNCTION else tuple(means)

    def _forbid(self, number: int) -> None:
        """A name that a function binds itself cannot be that of something it reads."""
        function = self._functions[number]
        for read in function["reads"]:
            key = self._key(number, read)
            self._forbidden.setdefault(key, set()).update(function["locals"])

    def _new(self, key: Any, *wanted: str) -> str:
        """The first of these names that is free, or the last one with a number."""
        hidden = self._forbidden.get(key, set())
        taken = {*self._names.values(), *_TAKEN, *dir(builtins), *hidden}
        numbered = (f"{wanted[-1]}_{n}" for n in range(2, len(taken) + 3))
        name = next(each for each in (*wanted, *numbered) if each not in taken)
        self._names[key] = name
        return name

    def _name_function(self, number: int) -> None:
        key = (_FUNCTION, number)
        if key in self._names:
            return
        function = self._functions[number]
        own, module = function["name"], function["module"].rpartition(".")[2].strip("_")
        place = self._choice.imported.get(number)
        name = self._new(key, own, f"{own}_{module}")
        if place is not None:
            self._import(*place, name)

    def _name_read(self, number: int, read: Mapping[str, Any]) -> None:
        means, path = read["means"], read["path"]
        key = self._key(number, read)
        kind = key[0]
        if kind == _NOTE or key in self._names:
            return
        if kind == _FUNCTION:
            self._name_function(means[1])
        elif kind == "import":
            self._import(key[1], key[2], self._new(key, _last(path)))
        elif kind == _CONSTANT:
            origin = means[3][0].rpartition(".")[2].strip("_") if means[3] else ""
            own = _constant_name(path)
            name = self._new(key, own, *([f"{own}_{origin}"] if origin else []))
            note = ": tl.constexpr" if means[2] else ""
            self._constants.append(f"{name}{note} = {means[1]}")
        elif kind == _MODULE:
            self._name_module(key, means[1])
        else:
            self._import(means[1], means[2], self._new(key, _last(path), means[2]))

    def _name_module(self, key: Any, module: str) -> None:
        alias = _ALIASES.get(module)
        if alias is not None and alias not in self._forbidden.get(key, set()):
            self._names[key] = alias
            return
        name = self._new(key, alias or _last(module))
        package, dot, last = module.rpartition(".")
        if dot:
            self._import(package, last, name)
        else:
            self._imports.append(f"import {module}" + (f" as {name}" if name != module else ""))

    def _import(self, module: str, name: str, alias: str) -> None:
        named = name if alias == name else f"{name} as {alias}"
        if named not in self._from.setdefault(module, []):
            self._from[module].append(named)

    def _import_lines(self) -> Iterator[str]:
        yield from dict.fromkeys(self._imports)
        for module, names in sorted(self._from.items()):
            yield f"from {module} import {', '.join(sorted(names))}"

    # -- text ---------------------------------------------------------------------------------

    def _written(self, number: int) -> str:
        function = self._functions[number]
        # As Python counts lines: other separators, in a comment or a string, end none.
        lines = [line.encode() for line in function["text"].rstrip("\n").split("\n")]
        edits = [
            (place, None if read["means"][0] == _NOTE else self._names[self._key(number, read)])
            for read in function["reads"]
            for place in read["places"]
        ]
        if number == 0 or self._names[_FUNCTION, number] != function["name"]:
            edits.append((_name_place(function), self._names[_FUNCTION, number]))
        for place, name in sorted(edits, key=lambda edit: tuple(edit[0]), reverse=True):
            _replace(lines, place, name)
        code = b"\n".join(lines).decode()
        return "\n".join([*_decorators(function), code])


def _last(path: str) -> str:
    return path.rpartition(".")[2]


def _constant_name(path: str) -> str:
    """EPS of `config.EPS`, and FAST of `Mode.FAST.value`."""
    return _last(path.removesuffix(".value"))


def _decorators(function: Mapping[str, Any]) -> list[str]:
    if function["kind"] == "python":
        return []
    if function["kind"] == "constexpr":
        return ["@triton.constexpr_function"]
    given = ", ".join(
        f"{name}={json.dumps(value) if isinstance(value, list) else repr(value)}"
        for name, value in function["options"].items()
    )
    return [f"@triton.jit({given})" if given else "@triton.jit"]


def _name_place(function: Mapping[str, Any]) -> Sequence[int]:
    """Where the name of a function stands in its first line."""
    first = function["text"].splitlines()[0]
    at = len(first[: first.index(function["name"])].encode())
    return [1, at, 1, at + len(function["name"].encode())]


def _replace(lines: list[bytes], place: Sequence[int], name: str | None) -> None:
    """Write a name at a place; without one, what is there goes, and the colon or arrow before."""
    line, start, last, end = place
    after = lines[last - 1][end:]
    before = lines[line - 1][:start]
    if name is None:
        before = before.rstrip()
        before = before.removesuffix(b"->").removesuffix(b":").rstrip()
    lines[line - 1 : last] = [before + (name or "").encode() + after]
