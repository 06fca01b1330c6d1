"""How much it takes to make a case small: ours against plain delta debugging, in one run.

Plain delta debugging is Zeller's ddmin over steps, then over the rows and columns of an input, then
over its elements (zero for those that go): it tries one case after the other, each in a process
start of its own. Ours judges many cases in one start. On simulated stacks tries and starts are
counted, the same on every machine with the same seed. On real ones (torch's softmax under two
vector units) times are given, as ratios: they vary with the machine.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bisect"))

from stackbisect.repro import array_edits, calls, fills, least, passes, shrink, smaller
from stackbisect.repro.calls import Program, Ref, Step
from stackbisect.repro.commands import Budget
from stackbisect.repro.extract import Smaller
from stackbisect.repro.least import Limits, Task
from stackbisect.repro.stacks import PythonStack
from stackbisect.repro.tries import Judge

OPERATION = "aten._softmax.default"
SIDE = 32
STEPS = 20
Oracle = Callable[[Program], bool]


@dataclass(frozen=True)
class Spent:
    """What one search took, and the elements that have a value in what it left."""

    tries: int
    starts: int
    elements: int
    valued: int
    seconds: float = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn")
    parser.add_argument("--cases", type=int, default=12, help="of each kind")
    options = parser.parse_args()
    quick = bool(os.environ.get("PINNER_BENCH_QUICK"))
    draw = random.Random(options.seed)
    print(f"simulated stacks, {SIDE} x {SIDE} elements; a start is one process in each stack")
    for name, make in KINDS.items():
        cases = [make(draw) for _ in range(3 if quick else options.cases)]
        both = [(ours(*case), plain(*case)) for case in cases]
        print(_row(name, both))
    if quick or "avx2" not in Path("/proc/cpuinfo").read_text():
        print("real stacks: left out (they take minutes, and a CPU with AVX2)")
        return
    _real(draw)


def _row(name: str, both: Sequence[tuple[Spent, Spent]]) -> str:
    mine, theirs = zip(*both, strict=True)
    tries, starts, elements, valued = (
        (
            statistics.mean(getattr(s, field) for s in mine),
            statistics.mean(getattr(s, field) for s in theirs),
        )
        for field in ("tries", "starts", "elements", "valued")
    )
    return (
        f"  {name:<34} tries {tries[0]:6.1f} against {tries[1]:6.1f}   "
        f"starts {starts[0]:5.1f} against {starts[1]:6.1f} ({starts[0] / starts[1]:.3f})   "
        f"elements {elements[0]:6.1f} against {elements[1]:6.1f}, "
        f"with a value {valued[0]:4.1f} against {valued[1]:4.1f}"
    )


# -- ours ------------------------------------------------------------------------------------------


def ours(whole: Program, oracle: Oracle) -> Spent:
    """The search that `stackbisect extract` makes."""

    def judge(cases: Sequence[Program], _: float | None) -> list[str | None]:
        return ["numbers" if oracle(case) else None for case in cases]

    task = Task(
        passes=passes.ALL,
        measure=smaller.measure,
        key=smaller.key,
        judge=judge,
        kept=lambda _: None,
        weight=smaller.weight,
        limits=Limits(),
    )
    found = least.least(whole, task).kept
    return Spent(found.tries, found.batches, found.case.elements, _valued(found.case))


def _valued(case: Program) -> int:
    return sum(1 for row in matrix(case) for number in row if number)


def matrix(case: Program) -> list[list[float]]:
    """The rows of the input x."""
    if "x" not in case.inputs or len(case.inputs["x"].shape) != 2:
        return []
    rows, columns = case.inputs["x"].shape
    numbers = array_edits.numbers(case, "x") or []
    return [numbers[row * columns : (row + 1) * columns] for row in range(rows)]


# -- plain delta debugging -------------------------------------------------------------------------


def ddmin(atoms: list[int], holds: Callable[[list[int]], bool]) -> list[int]:
    """Zeller's: halves, complements, finer parts; 1-minimal in the end."""
    parts = 2
    while len(atoms) >= 2:
        size = -(-len(atoms) // parts)
        chunks = [atoms[at : at + size] for at in range(0, len(atoms), size)]
        for chunk in chunks:
            rest = [atom for atom in atoms if atom not in chunk]
            if holds(chunk):
                atoms, parts = chunk, 2
                break
            if len(chunks) > 2 and rest and holds(rest):
                atoms, parts = rest, max(parts - 1, 2)
                break
        else:
            if parts >= len(atoms):
                break
            parts = min(parts * 2, len(atoms))
    return atoms


def plain(whole: Program, oracle: Oracle) -> Spent:
    """ddmin over steps, rows, columns and elements; every case that is new costs a start."""
    seen: dict[object, bool] = {smaller.key(whole): True}

    def holds(case: Program) -> bool:
        key = smaller.key(case)
        if key not in seen:
            seen[key] = oracle(case)
        return seen[key]

    best = whole
    if len(whole.steps) > 1:
        kept = ddmin([*range(len(whole.steps))], lambda some: holds(_steps(whole, some)))
        best = _steps(whole, kept)
    for axis in (0, 1):
        if "x" in best.inputs:
            base = best
            sizes = [*range(base.inputs["x"].shape[axis])]
            kept = ddmin(sizes, lambda some, b=base, a=axis: holds(_lines(b, a, some)))
            best = _lines(base, axis, kept)
    if "x" in best.inputs:
        base = best
        kept = ddmin([*range(base.elements)], lambda some, b=base: holds(_others_zero(b, some)))
        best = _others_zero(base, kept)
    tries = len(seen) - 1
    return Spent(tries, tries, best.elements, _valued(best))


def _steps(case: Program, some: Sequence[int]) -> Program:
    """Some of the steps, each of which reads what the one before it gave, or the input."""
    steps, read = [], "x"
    for number in some:
        step = case.steps[number]
        steps.append(replace(step, args=(Ref(read), *step.args[1:])))
        read = step.results[0]
    return replace(case, steps=tuple(steps), outputs=(read,))


def _lines(case: Program, axis: int, some: Sequence[int]) -> Program:
    rows = matrix(case)
    if axis == 0:
        kept = [rows[number] for number in some]
    else:
        kept = [[row[number] for number in some] for row in rows]
    return _with(case, kept)


def _others_zero(case: Program, some: Sequence[int]) -> Program:
    columns, wanted = case.inputs["x"].shape[1], set(some)
    rows = [
        [n if row * columns + at in wanted else 0.0 for at, n in enumerate(numbers)]
        for row, numbers in enumerate(matrix(case))
    ]
    return _with(case, rows)


def _with(case: Program, rows: Sequence[Sequence[float]]) -> Program:
    data = fills.pack("float32", [n for row in rows for n in row])
    return case.with_inputs(x=calls.array("float32", (len(rows), len(rows[0])), data))


# -- simulated stacks ------------------------------------------------------------------------------


def program(rows: int, columns: int, draw: random.Random) -> Program:
    """One call on a matrix of drawn numbers."""
    numbers = [draw.gauss(0, 1) for _ in range(rows * columns)]
    x = calls.array("float32", (rows, columns), fills.pack("float32", numbers))
    step = Step(OPERATION, (Ref("x"), 1, False))
    return Program("aten", OPERATION, {"x": x}, (step,), ("out",), settings={"threads": 1})


def one_element(draw: random.Random) -> tuple[Program, Oracle]:
    """Differs where one element is."""
    return _elements(draw, 1)


def two_elements(draw: random.Random) -> tuple[Program, Oracle]:
    """Differs where two elements are, both of them."""
    return _elements(draw, 2)


def _elements(draw: random.Random, many: int) -> tuple[Program, Oracle]:
    whole = program(SIDE, SIDE, draw)
    flat = [number for row in matrix(whole) for number in row]
    marks = draw.sample(flat, many)
    return whole, lambda case: set(marks) <= {n for row in matrix(case) for n in row}


def wide_enough(draw: random.Random) -> tuple[Program, Oracle]:
    """Differs from so many columns on, where a value has many bits."""
    whole, wide = program(SIDE, SIDE, draw), draw.randint(2, SIDE)

    def oracle(case: Program) -> bool:
        rows = matrix(case)
        bits = any(n * 256 != round(n * 256) for row in rows for n in row)
        return bool(rows) and len(rows[0]) >= wide and bits

    return whole, oracle


def one_of_many_steps(draw: random.Random) -> tuple[Program, Oracle]:
    """Differs where one step is, and an element."""
    whole, oracle = one_element(draw)
    at, read, steps = draw.randrange(STEPS), "x", []
    for number in range(STEPS):
        name = OPERATION if number == at else f"aten.step{number}.default"
        steps.append(Step(name, (Ref(read),), results=(f"r{number}",)))
        read = f"r{number}"
    whole = replace(whole, steps=tuple(steps), outputs=(read,))
    return whole, lambda case: any(s.target == OPERATION for s in case.steps) and oracle(case)


KINDS: dict[str, Callable[[random.Random], tuple[Program, Oracle]]] = {
    "one element": one_element,
    "two elements": two_elements,
    "enough columns and bits": wide_enough,
    f"one step of {STEPS}, one element": one_of_many_steps,
}


# -- real stacks -----------------------------------------------------------------------------------


def _real(draw: random.Random) -> None:
    """Softmax; a try of plain delta debugging is judged as ours are, in a start of its own."""
    here = Path.cwd()
    good, bad = (
        PythonStack(name, Path(sys.executable), os.environ, here, {"ATEN_CPU_CAPABILITY": unit})
        for name, unit in (("good", "avx2"), ("bad", "default"))
    )
    whole = program(8, SIDE, draw)
    kept: list[Smaller] = []
    started = time.perf_counter()
    shrinking = shrink.within(Budget())
    said: list[str] = []
    found = shrinking(whole, good, bad, kept=kept.append, say=said.append)
    mine = time.perf_counter() - started
    judge = Judge(good, bad)
    first = judge.findings([shrink.evaluations(whole)])[0]

    def oracle(case: Program) -> bool:
        return judge.findings([shrink.evaluations(case)])[0] == first

    started = time.perf_counter()
    theirs = plain(whole, oracle)
    seconds = time.perf_counter() - started
    size = f"{found.case.elements} elements against {theirs.elements}"
    print(
        f"softmax of [8, {SIDE}] under two vector units: {found.tries} tries against "
        f"{theirs.tries}, {size}, {mine:.0f} s against {seconds:.0f} s: "
        f"{mine / seconds:.2f} of the time"
    )


if __name__ == "__main__":
    main()
