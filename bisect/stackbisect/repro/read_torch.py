"""A captured operation of torch's dispatcher as a program, and the bits that it gave."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from stackbisect.repro.calls import ITEMSIZE, Array, Named, Program, Ref, Step, Value
from stackbisect.repro.capture import Asked, Made
from stackbisect.repro.captured import Captured
from stackbisect.repro.extract import NoCase
from stackbisect.repro.render_torch import ENVIRON, identifier


def program(captured: Captured, asked: Asked | None = None) -> Made | NoCase:
    """What is to be called alone. Pure."""
    call = captured.call
    for row in captured.tensors:
        if row["dtype"] not in ITEMSIZE:
            return NoCase(
                f"its argument {row['name']} is of a dtype that is not known: {row['dtype']}"
            )
    origin = _origin(captured)
    if isinstance(origin, NoCase):
        return origin
    names = _names(captured)
    refs_of: dict[int, Value] = {number: Ref(name) for number, name in names.items()}
    steps = list(_lazily(captured, names, refs_of))
    step, expected = _step(captured, names, refs_of)
    outputs = {name: digest for name, digest in expected.items() if digest is not None}
    if not outputs:
        return NoCase(f"{captured.name} gives no tensor whose bits can be read")
    found = Program(
        kind="custom" if origin else "aten",
        operation=captured.name,
        inputs=_without_leftovers(captured, names),
        steps=(*steps, step),
        outputs=tuple(outputs),
        settings=settings(captured),
        needs=("torch", *origin[:1]),
        imports=origin[1:],
        gpu=_gpu(captured, call),
        **_random(captured, call),
    )
    return Made(found, outputs)


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


def _names(captured: Captured) -> dict[int, str]:
    """A variable for each tensor, by its number."""
    results = {name for name, _ in _results(captured)}
    taken: set[str] = {name for name in results if name} | {"out"}
    found = {}
    for row in captured.tensors:
        name = row["name"]
        # An argument `out` is written over, and is the output of that name.
        only = name == "out" and not any(results)
        found[row["number"]] = name if only else identifier(name, taken)
        taken.add(found[row["number"]])
    return found


def _results(captured: Captured) -> Iterator[tuple[str, Any]]:
    """A name for each result, "" for what is no tensor or an argument, and what is known of it."""
    results = captured.call["results"]
    for at, each in enumerate(results):
        named = each is not None and "digest" in each
        yield (f"out{at}" if len(results) > 1 else "out") if named else "", each


def _lazily(captured: Captured, names: dict[int, str], refs_of: dict[int, Value]) -> Iterator[Step]:
    """Steps that make a tensor a conjugate or a negative of its memory, as torch does it late."""
    for row in captured.tensors:
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


def _step(
    captured: Captured, names: Mapping[int, str], refs_of: Mapping[int, Value]
) -> tuple[Step, dict[str, str | None]]:
    call = captured.call

    def value(packed: Any) -> Value:
        return captured.value(packed, lambda number: refs_of[number])

    results = list(_results(captured))
    step = Step(
        target=call["function"],
        args=tuple(map(value, call["args"])),
        kwargs={name: value(each) for name, each in call["kwargs"].items()},
        results=tuple(name for name, _ in results),
        single=call["single"],
    )
    expected = {name: each["digest"] for name, each in results if name}
    for number, digest in zip(call["written"], call["digests"], strict=True):
        expected[names[number]] = digest
    return step, expected


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
