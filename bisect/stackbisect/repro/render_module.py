"""Renders a call of a module as repro.py: the module from module.pt beside it, and its inputs.

Needs torch and the libraries whose classes the file names; what it was captured from is not needed.
"""

from __future__ import annotations

from collections.abc import Iterator

from stackbisect.repro.calls import Program, Step
from stackbisect.repro.form import SCRIPT
from stackbisect.repro.module_case import BACK, Module
from stackbisect.repro.render_torch import MODULE, Writing
from stackbisect.repro.rendering import wrapped

# Variables of repro.py that no input may be called by.
TAKEN = frozenset(("module", "loaded", "named", "found"))


def files(program: Program) -> dict[str, bytes]:
    """repro.py, module.pt, and inputs.bin where it needs one."""
    found = _Calling(program).files()
    return {SCRIPT: found.pop(SCRIPT), MODULE: program.kernel.pickle, **found}


class _Calling(Writing):
    """One call on its way to text."""

    def title(self) -> Iterator[str]:
        """The docstring's lines."""
        yield f"{self.program.operation}: the same inputs give other bits in another stack."
        yield ""
        yield f"{MODULE} is the module, as torch.save wrote it; its code is that of the library."
        yield "Prints the SHA-256 over dtype, shape and bytes of each output."

    def body(self) -> Iterator[str]:
        """The lines of `outputs()`: the module first, since what it is made by draws nothing."""
        self.needed.add("loaded")
        yield "module = loaded()"
        yield from super().body()

    def step(self, step: Step) -> Iterator[str]:
        """The call, or what makes an argument of it."""
        if step.target == BACK:
            names = ", ".join(name or "_" for name in step.results)
            yield from wrapped(
                f"{names}, = {BACK}(", [self._value(each) for each in step.args], ")"
            )
            return
        if step.target != self.program.operation:
            yield from super().step(step)
            return
        yield from (f"{name}.requires_grad_(True)" for name in self.program.kernel.wanted)
        around = ", ".join(_around(self.program.kernel))
        before = "    " if around else ""
        if around:
            yield f"with {around}:"
        yield from (before + line for line in self._call(step))

    def _call(self, step: Step) -> Iterator[str]:
        words = [self._value(each) for each in step.args]
        words += [f"{name}={self._value(each)}" for name, each in step.kwargs.items()]
        if step.single:
            yield from wrapped(f"{step.results[0]} = module(", words, ")")
            return
        self.needed.add("named")
        steps = self.program.steps
        read = {*self.program.outputs, *(name for each in steps for name in each.refs())}
        yield from wrapped('found = dict(named("out", module(', words, ")))")
        for name in step.results:
            if name in read:
                yield f'{name} = found["{name}"]'


def _around(module: Module) -> Iterator[str]:
    """The contexts in which it is called."""
    if module.inference:
        yield "torch.inference_mode()"
    elif not module.grad:
        yield "torch.no_grad()"
    for device, dtype in module.autocast.items():
        yield f'torch.autocast("{device}", dtype={dtype})'
