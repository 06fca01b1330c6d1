"""A captured call of a module as a program, and the bits that it gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stackbisect.repro.calls import Program, Ref, Step, Value
from stackbisect.repro.capture import Asked, Made
from stackbisect.repro.captured import Captured
from stackbisect.repro.extract import NoCase, versions
from stackbisect.repro.module_case import BACK, Module
from stackbisect.repro.read_torch import lazily, settings, unknown_dtype
from stackbisect.repro.render_module import TAKEN
from stackbisect.repro.render_torch import MODULE, identifier


def program(captured: Captured, asked: Asked) -> Made | NoCase:
    """What is to be called alone. Raises InfrastructureError."""
    made = of_call(captured)
    if isinstance(made, NoCase):
        return made
    there = versions(asked.other, made.program.needs, time_limit=asked.time_limit)
    for name in made.program.needs:
        if name not in there:
            return NoCase(
                f"{captured.name} needs {name}, which the {asked.other.name} stack has not "
                "installed: expected it in both. What differs is what replaces it there"
            )
    return made


def of_call(captured: Captured) -> Made | NoCase:
    """The program, whatever the other stack has. Pure."""
    if captured.before:  # the way back of the call before it
        return _and_back(captured.before[0], captured)
    return _forward(captured)


def _and_back(call: Captured, back: Captured) -> Made | NoCase:
    """The program of a call, and of its way back, whose gradients are the outputs. Pure."""
    refused = unknown_dtype(back)
    made = _forward(call)
    if refused is not None or isinstance(made, NoCase):
        return refused or made
    before = made.program
    inputs = _names(call)
    taken = {*before.inputs, *before.steps[-1].results, *TAKEN}
    taken |= {name for step in before.steps for name in step.results}
    given = {}
    for row in back.tensors:
        given[row["number"]] = identifier(row["name"], taken)
        taken.add(given[row["number"]])
    refs = {number: Ref(name) for number, name in given.items()}
    steps = [*before.steps, *lazily(back, given, refs)]
    wanted = {inputs[number]: digest for number, digest in back.call["wanted"]}
    results = {name: identifier(f"grad_of_{name}", taken) for name in wanted}
    outputs = tuple(Ref(name) for name, _ in back.call["gradients"])
    gradients = tuple(refs[number] for _, number in back.call["gradients"])
    steps.append(
        Step(
            target=BACK,
            args=(outputs, tuple(map(Ref, wanted)), gradients),
            results=tuple(results.values()),
            single=False,
        )
    )
    expected = {results[name]: digest for name, digest in wanted.items() if digest is not None}
    if not expected:
        return NoCase(f"the way back of {call.name} gives no gradient whose bits can be read")
    found = replace(
        before,
        inputs={**before.inputs, **back.arrays(given)},
        steps=tuple(steps),
        outputs=tuple(expected),
        kernel=replace(before.kernel, wanted=tuple(wanted)),
    )
    return Made(found, expected)


def _forward(captured: Captured) -> Made | NoCase:
    refused = unknown_dtype(captured) or _not_installed(captured)
    if refused is not None:
        return refused
    call = captured.call
    names = _names(captured)
    refs = {number: Ref(name) for number, name in names.items()}
    steps = list(lazily(captured, names, refs))
    steps.append(_step(captured, refs))
    expected = {name: digest for name, digest in call["results"] if digest is not None}
    expected.update((names[number], d) for number, d in call["written"] if d is not None)
    if not expected:
        return NoCase(f"{captured.name} gives no tensor whose bits can be read")
    needs = dict.fromkeys(["torch", *(each["distribution"] for each in call["origins"])])
    found = Program(
        kind="module",
        operation=captured.name,
        inputs=captured.arrays(names),
        steps=tuple(steps),
        outputs=tuple(expected),
        settings=settings(captured),
        needs=tuple(needs),
        gpu=_gpu(captured),
        kernel=_module(captured),
        notes=(_note(captured),),
        **_drawn(captured),
    )
    return Made(found, expected)


def _not_installed(captured: Captured) -> NoCase | None:
    """Why the module's file cannot be loaded elsewhere."""
    for each in captured.call["origins"]:
        if each["distribution"] is None:
            name, module = each["name"], each["module"]
            place = "the command's own script" if module == "__main__" else f"the module {module}"
            return NoCase(
                f"{captured.name} is a module in which no operation is seen that differs, and it "
                f"needs {name} of {place}, which is in no installed distribution: a repro needs a "
                "library that others can install. Call what it computes with (an extension, numpy) "
                "by hand, or register that as a torch.library operation"
            )
    return None


def _names(captured: Captured) -> dict[int, str]:
    """A variable for each tensor that the call gets, by its number."""
    taken = {name for name, _ in captured.call["results"]} | set(TAKEN)
    found = {}
    for row in captured.tensors:
        found[row["number"]] = identifier(row["name"], taken)
        taken.add(found[row["number"]])
    return found


def _step(captured: Captured, refs: Mapping[int, Ref]) -> Step:
    call = captured.call

    def value(packed: Any) -> Value:
        return captured.value(packed, lambda number: refs[number])

    return Step(
        target=captured.name,
        args=tuple(map(value, call["args"])),
        kwargs={name: value(each) for name, each in call["kwargs"].items()},
        results=tuple(name for name, _ in call["results"]),
        single=call["single"],
    )


def _module(captured: Captured) -> Module:
    call = captured.call
    modes = call["modes"]
    return Module(
        pickle=captured.pieces[call["pickle"]],
        grad=modes["grad"],
        inference=modes["inference"],
        autocast=modes["autocast"],
    )


def _gpu(captured: Captured) -> bool:
    return bool(captured.call["gpu"]) or any(row["device"] == "cuda" for row in captured.tensors)


def _drawn(captured: Captured) -> dict[str, Any]:
    """The state of the generator that the call drew from, and the seed that gives it."""
    which = captured.call["drawn"].get("cuda" if _gpu(captured) else "cpu")
    if which is None:
        return {}
    return {"generator": bytes.fromhex(which["state"]), "seed": which["seed"]}


def _note(captured: Captured) -> str:
    names = dict.fromkeys(each["distribution"] for each in captured.call["origins"])
    return (
        f"`{MODULE}` is the module as `torch.save` wrote it: its class by name, its attributes, "
        f"parameters and buffers ({captured.call['parameters']} numbers of parameters). Loading it "
        f"runs code of {', '.join(names)}, in the version that is installed; it is a pickle, to be "
        "opened only where you trust who made it."
    )
