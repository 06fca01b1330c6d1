"""A captured operation of torch's dispatcher as a program, and the bits that it gave."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stackbisect.repro.calls import ITEMSIZE, Array, Named, Program, Ref, Step, Value
from stackbisect.repro.capture import Asked, Made
from stackbisect.repro.captured import Captured
from stackbisect.repro.extract import NoCase
from stackbisect.repro.render_torch import identifier
from stackbisect.repro.rendering import ENVIRON


def program(captured: Captured, asked: Asked | None = None) -> Made | NoCase:
    """What is to be called alone. Pure."""
    return _made((captured,))


def window(captured: Captured, count: int) -> Made | NoCase:
    """The call after the `count` operations that came right before it. Pure."""
    first = max(0, len(captured.before) - count)
    return _made((*captured.before[first:], captured))


def _made(calls: Sequence[Captured]) -> Made | NoCase:
    refused = next(filter(None, map(unknown_dtype, calls)), None)
    if refused is not None:
        return refused
    origins = [_origin(each) for each in calls]
    brought: list[tuple[str, ...]] = []
    for origin in origins:
        if isinstance(origin, NoCase):
            return origin
        brought.append(origin)
    steps = _Steps()
    try:
        for at, each in enumerate(calls):
            steps.add(each, "out" if each is calls[-1] else f"made{at + 1}")
    except _Shared as shared:
        return NoCase(str(shared))
    last = calls[-1]
    expected = {name: digest for name, digest in steps.expected.items() if digest is not None}
    if not expected:
        return NoCase(f"{last.name} gives no tensor whose bits can be read")
    found = Program(
        kind="custom" if brought[-1] else "aten",
        operation=last.name,
        inputs=steps.inputs,
        steps=tuple(steps.steps),
        outputs=tuple(expected),
        settings=settings(last),
        needs=("torch", *dict.fromkeys(each[0] for each in brought if each)),
        imports=tuple(dict.fromkeys(each[1] for each in brought if each)),
        gpu=any(_gpu(each, each.call) for each in calls),
        **_random(last, last.call),
    )
    return Made(found, expected)


def unknown_dtype(captured: Captured) -> NoCase | None:
    """Why an argument cannot be an `Array`."""
    for row in captured.tensors:
        if row["dtype"] not in ITEMSIZE:
            return NoCase(
                f"its argument {row['name']} is of a dtype that is not known: {row['dtype']}"
            )
    return None


class _Shared(Exception):
    """Memory that an operation gets is in part what another one made."""


@dataclass
class _Steps:
    """Calls, one after the other, on their way to a program.

    known: the variable of each tensor that was made or given before, by its number among all.
    expected: outputs of the last call.
    """

    inputs: dict[str, Array] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    known: dict[int, Ref] = field(default_factory=dict)
    expected: dict[str, str | None] = field(default_factory=dict)

    def add(self, captured: Captured, results: str) -> None:
        """One call; what it gives is named `results`, or that and a number. Raises _Shared."""
        objects = captured.call["objects"]
        made = captured.call["made"]
        names = self._names(captured, results)
        arrays = _without_leftovers(captured, names)
        for number, name in names.items():
            if objects[number] in self.known:
                arrays.pop(name, None)
        for one in arrays.values():
            if one.alias and one.alias not in arrays:
                raise _Shared("it gets memory that is in part what came before it made")
        refs_of = {
            number: self.known.get(objects[number], Ref(name)) for number, name in names.items()
        }
        self.inputs.update(arrays)
        new = {number: name for number, name in names.items() if name in arrays}
        self.steps += lazily(captured, new, refs_of)
        self.known.update((objects[number], refs_of[number]) for number in new)
        step, self.expected = captured.step(names, refs_of, list(_results(captured, results)))
        self.steps.append(step)
        for number, name in zip(made, step.results, strict=True):
            if name:
                self.known[number] = Ref(name)

    def _names(self, captured: Captured, results: str) -> dict[int, str]:
        """A variable for each tensor that the call gets, by its number in it."""
        own = {name for name, _ in _results(captured, results) if name}
        before = {name for step in self.steps for name in step.results} | set(self.inputs)
        taken = own | before | {"out"}
        found = {}
        for row in captured.tensors:
            known = self.known.get(captured.call["objects"][row["number"]])
            name = row["name"]
            if known is not None:
                found[row["number"]] = known.name
                continue
            # An argument `out` is written over, and is the output of that name.
            only = name == "out" and not own and "out" not in before
            found[row["number"]] = name if only else identifier(name, taken)
            taken.add(found[row["number"]])
        return found


def _without_leftovers(captured: Captured, names: Mapping[int, str]) -> dict[str, Array]:
    """The inputs, zeros in memory that nobody had written: the call writes over it."""
    arrays = captured.arrays(names)
    shared = {one.alias for one in arrays.values()}
    for number in captured.call["unwritten"]:
        name = names[number]
        one = arrays[name]
        if not one.alias and name not in shared:
            arrays[name] = replace(one, data=bytes(len(one.data)))
    return arrays


def settings(captured: Captured) -> dict[str, Value]:
    """What the program had set, by the names that `render_torch` knows."""
    seen = captured.settings
    found: dict[str, Value] = {
        ENVIRON + name: value for name, value in sorted(captured.environ.items())
    }
    found["threads"] = seen["threads"]
    found.update({f"torch.{name}": value for name, value in seen["flags"].items()})
    found.update({f"torch.{name}()": value for name, value in seen["set"].items()})
    if "deterministic" in seen:
        found["deterministic"] = "warn" if seen["deterministic"]["warn_only"] else "error"
    if "default_dtype" in seen:
        found["default_dtype"] = Named(seen["default_dtype"])
    if seen.get("flush_denormal"):
        found["flush_denormal"] = True
    return found


def _origin(captured: Captured) -> tuple[str, ...] | NoCase:
    """The distribution and the module that bring a custom operation; empty for torch's own."""
    who = captured.call["registered"]
    if who is None:
        return ()
    name = captured.name
    module, distribution = who["module"], who["distribution"]
    if module is None:
        return NoCase(
            f"which library registers {name} is not known, so that a program of its own cannot "
            "load it; call the library's function by hand with the inputs of this operation"
        )
    if distribution is None:
        place = "the command's own script" if module == "__main__" else f"the module {module}"
        return NoCase(
            f"{name} is registered by {place}, which is in no installed distribution: a repro "
            "needs a library that others can install. Look inside of it: what it calls is traced "
            "where it is not one operation (run its function without torch.library)"
        )
    return distribution, module


def _results(captured: Captured, prefix: str) -> Iterator[tuple[str, Any]]:
    """A name for each result, "" for what is no tensor or an argument, and what is known of it."""
    results = captured.call["results"]
    for at, each in enumerate(results):
        named = each is not None and "digest" in each
        yield (f"{prefix}{at}" if len(results) > 1 else prefix) if named else "", each


def lazily(captured: Captured, names: dict[int, str], refs_of: dict[int, Ref]) -> Iterator[Step]:
    """Steps that make a tensor a conjugate or a negative of its memory, as torch does it late.

    names: of the tensors that lie in memory of the program's own.
    """
    for row in captured.tensors:
        if row["number"] not in names:
            continue
        for mark, target in (
            ("conjugated", "aten._conj.default"),
            ("negated", "aten._neg_view.default"),
        ):
            if not row[mark]:
                continue
            before = refs_of[row["number"]]
            name = identifier(f"{names[row['number']]}_{mark}", set(names.values()))
            refs_of[row["number"]] = Ref(name)
            yield Step(target, (before,), results=(name,))


def _gpu(captured: Captured, call: Mapping[str, Any]) -> bool:
    packed = [*call["args"], *call["kwargs"].values()]
    return any(row["device"] == "cuda" for row in captured.tensors) or any(
        _is(each, "named") and "cuda" in each[1] for each in packed
    )


def _random(captured: Captured, call: Mapping[str, Any]) -> dict[str, Any]:
    """The state of the generator that the call draws from, and the seed that gives it."""
    table = captured.table
    which = table.get("random", {}).get("cuda" if _gpu(captured, call) else "cpu")
    passed = any(_is(each, "generator") for each in (*call["args"], *call["kwargs"].values()))
    if which is None or passed:
        return {}
    return {"generator": bytes.fromhex(which["state"]), "seed": which["seed"]}


def _is(packed: Any, word: str) -> bool:
    return isinstance(packed, list) and packed[0] == word
