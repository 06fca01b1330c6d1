"""Makes a captured call smaller while both stacks keep to bits of their own.

The search (`least`) asks the passes for smaller programs and has them judged in both stacks
(`tries`). A smaller program counts only where it differs in the way in which the whole one did,
every time it is evaluated, with other memory around it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from stackbisect.repro import array_edits, least, passes, smaller
from stackbisect.repro.calls import Program
from stackbisect.repro.commands import Budget
from stackbisect.repro.extract import Case, Say, Smaller
from stackbisect.repro.least import Kept, Limits, Task
from stackbisect.repro.module_case import Module
from stackbisect.repro.stacks import Stack
from stackbisect.repro.tries import Files, Judge
from stackbisect.repro.triton_case import Kernel

_MIB = 1 << 20
# Of the arrays in one batch; where one program has more, it goes alone.
_HEAVIEST = 64 * _MIB
# What one evaluation may take beside its inputs, and so many times these.
_MEMORY, _TIMES = 4096 * _MIB, 16
_PADS = (0x7B, 0xC4)


def within(budget: Budget) -> Shrinker:
    """What makes cases smaller within a budget (an `extract.Shrink`)."""
    return Shrinker(budget)


@dataclass(frozen=True)
class Shrinker:
    """An `extract.Shrink`. width: programs in a batch."""

    budget: Budget
    width: int = least.WIDTH
    clock: Callable[[], float] = time.monotonic

    def __call__(
        self, case: Case, good: Stack, bad: Stack, *, kept: Callable[[Smaller], None], say: Say
    ) -> Smaller:
        """See `extract.Shrink`. Raises InfrastructureError."""
        if not isinstance(case, Program):
            say(f"a {case.kind} stays as it was captured")
            return Smaller(case, 0, 0)
        memory = _MEMORY + _TIMES * smaller.weight(case)
        judge = Judge(good, bad, case.gpu, memory, self.clock)

        def better(now: Kept[Program]) -> None:
            say(f"smaller by {now.by}: {words(now.case)}; {now.tries} tries")
            kept(Smaller(now.case, now.steps, now.tries))

        def findings(cases: Sequence[Program], seconds: float | None) -> list[str | None]:
            return judge.findings([_evaluations(each) for each in cases], seconds)

        say(f"making it smaller: {words(case)}")
        evaluations(case)  # raises what is wrong with it
        task = Task(
            passes=passes.of(case),
            measure=smaller.measure,
            key=smaller.key,
            judge=findings,
            kept=better,
            weight=smaller.weight,
            limits=Limits(self.budget.tries, self.budget.seconds, self.width, _HEAVIEST),
            clock=self.clock,
        )
        answer = least.least(case, task)
        say(_ended(answer.ended, judge.refused))
        found = answer.kept
        return Smaller(found.case, found.steps, found.tries)


def _evaluations(program: Program) -> Sequence[Files]:
    """No evaluation where what an edit made is no program: what must be there is gone."""
    try:
        return evaluations(program)
    except (LookupError, TypeError, ValueError):
        return ()


def evaluations(program: Program) -> Sequence[Files]:
    """The files of each evaluation of a program.

    A Triton kernel reads where its arguments tell it to, and a module may hand addresses to C. They
    are evaluated with other numbers around their arrays too: one that reads past them does not
    repeat itself, and is no smaller case.
    """
    files = program.files()
    if not isinstance(program.kernel, (Kernel, Module)):
        return [files, files]
    return [files, *(_padded(program, byte).files() for byte in _PADS)]


def _padded(program: Program, byte: int) -> Program:
    inputs = {name: array_edits.padded(one, byte) for name, one in program.inputs.items()}
    return replace(program, inputs=inputs)


def words(program: Program) -> str:
    """How large a program is, for people."""
    steps = len(program.steps)
    parts = [_many(steps, "call")] if steps > 1 else []
    programs = smaller.measure(program)[1]
    if programs > 1:
        parts.append(f"{programs} programs in the grid")
    parts.append(_many(program.elements, "element"))
    shapes = [f"{one.dtype}{list(one.shape)}" for one in program.inputs.values() if one.elements]
    return f"{', '.join(parts)} ({', '.join(dict.fromkeys(shapes))})"


def _many(number: int, what: str) -> str:
    return f"1 {what}" if number == 1 else f"{number} {what}s"


def _ended(why: str, refused: str) -> str:
    return {
        least.LEAST: "no smaller one shows it",
        least.TRIES: "as many tries as the budget allows",
        least.SECONDS: "as long as the budget allows",
        least.REFUSED: f"it stays as it is: run several times in one process start, {refused}",
    }[why]
