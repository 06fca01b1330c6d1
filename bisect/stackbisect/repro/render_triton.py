"""Renders a launch of a Triton kernel as repro.py: the kernel's text, its arguments, the launch.

Imports torch and Triton, and no code of the user's. What of the kernel is copied, and what is
imported from a library that is not the same in both stacks, was decided before (`kernel_text`).
"""

from __future__ import annotations

from collections.abc import Iterator

from stackbisect.repro.calls import Program, Step
from stackbisect.repro.render_torch import Writing
from stackbisect.repro.rendering import code, wrapped
from stackbisect.repro.triton_case import Kernel


def files(program: Program) -> dict[str, bytes]:
    """repro.py, and inputs.bin where it needs one."""
    return _Launching(program).files()


class _Launching(Writing):
    """One launch on its way to text."""

    @property
    def kernel(self) -> Kernel:
        """What the program has beside its arguments."""
        found: Kernel = self.program.kernel
        return found

    def title(self) -> Iterator[str]:
        """The docstring's lines."""
        kernel = self.kernel
        where = "under Triton's interpreter, on the CPU" if kernel.interpreted else "on a GPU"
        yield f"One launch of the Triton kernel {kernel.text.kernel}, {where}."
        yield ""
        changes = kernel.text.changes
        for each in changes:
            good, bad = each.versions
            library = each.distribution
            yield f"Imported: {each.name}. It is not the same in {library} {good} and {bad}."
        what = "all else that it calls" if changes else "all that it calls"
        if kernel.text.wrapped:
            return
        where = "the same in both stacks" if kernel.compared else "as they were"
        yield f"Copied: the kernel and {what}, {where}."

    def imports(self) -> Iterator[str]:
        """What stands before the functions."""
        kernel = self.kernel
        yield "import ctypes"
        yield "import hashlib"
        if kernel.text.wrapped:
            yield "import inspect"
        variables = dict(kernel.environ)
        if kernel.interpreted or variables or "stored" in self.needed:
            yield "import os"
        if self.fills:
            yield "import random"
        if kernel.interpreted or variables:
            yield ""
            yield "# Triton reads this when it is imported."
        if kernel.interpreted:
            yield 'os.environ["TRITON_INTERPRET"] = "1"'
        for name, value in variables.items():
            yield f"os.environ.setdefault({name!r}, {value!r})"
        yield ""
        yield "import torch"
        yield "import triton"
        yield "import triton.language as tl"
        yield from kernel.text.imports
        if kernel.text.wrapped:
            name = kernel.text.kernel
            yield ""
            yield "# What tunes it is left out: what that chose is among the arguments."
            yield f"while not inspect.isfunction({name}.fn):"
            yield f"    {name} = {name}.fn"
        if kernel.text.body:
            yield from ("", *_apart(kernel.text.body))

    def step(self, step: Step) -> Iterator[str]:
        """The launch."""
        kernel = self.kernel
        sizes = list(kernel.grid)
        while len(sizes) > 1 and sizes[-1] == 1:
            sizes.pop()
        grid = code(tuple(sizes))
        words = [f"{name}={code(value)}" for name, value in step.kwargs.items()]
        words += [f"{name}={code(value)}" for name, value in kernel.options.items()]
        yield from wrapped(f"{kernel.text.kernel}[{grid}](", words, ")")


def _apart(body: str) -> Iterator[str]:
    """Constants after one line, functions after two."""
    if body.startswith(("@", "def ")):
        yield ""
    yield from body.split("\n")
