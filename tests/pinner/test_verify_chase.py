"""A divergence is followed from modules to a kernel; one that does not come back is said."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pinner.launch.verify_chase import (
    Incomparable,
    Level,
    Sighting,
    Window,
    chase,
    conclusion,
    reading,
)

Place = tuple[int, str, str, str]  # step, module, operation, kernel
START = Window(0, 9)


class Program:
    """Stands for a program that is traced: at one place its bits differ from run to run.

    plant: that place. comes_back: whether a pair of runs, by its number, differs. inputs_differ:
    the levels at which what is seen first came in different already. to: the deepest level at
    which anything is seen.
    """

    def __init__(
        self,
        plant: Place,
        comes_back: Callable[[int], bool] = lambda number: True,
        inputs_differ: tuple[Level, ...] = (),
        has_kernels: bool = True,
    ) -> None:
        self.plant = plant
        self.comes_back = comes_back
        self.inputs_differ = inputs_differ
        self.has_kernels = has_kernels
        self.asked: list[tuple[Level, Window]] = []
        self.pairs = 0

    def trace(self, name: str, level: Level, window: Window) -> Path:
        if name.endswith("a"):
            self.asked.append((level, window))
        return Path(level) / name

    def compare(self, first: Path, second: Path) -> Sighting | Incomparable | None:
        assert first.parent == second.parent
        assert first.name[:-1] == second.name[:-1]
        self.pairs += 1
        level, window = self.asked[-1]
        step, module, operation, kernel = self.plant
        covered = (window.first or 0) <= step <= (9 if window.last is None else window.last)
        inside = window.modules is None or re.search(window.modules, module) is not None
        if not (covered and inside and self.comes_back(self.pairs)):
            return None
        kind, name = {
            "modules": ("module", "Linear"),
            "ops": ("op", operation),
            "kernels": ("kernel", kernel) if self.has_kernels else ("op", operation),
        }[level]
        began = level not in self.inputs_differ
        return Sighting(1, step, kind, name, module, began, f"reading of {level}")


def drawn() -> Place:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    draw = random.Random(seed)
    names = [f"layers.{number}.mlp" for number in range(12)]
    return draw.randrange(10), draw.choice(names), "aten.mm.default", "triton:pkg:kernel"


class TestAChain:
    def test_goes_down_to_the_kernel_in_a_window_that_gets_smaller(self) -> None:
        program = Program(drawn())
        step, module, operation, kernel = program.plant
        links = chase(START, program.trace, program.compare)
        assert [link.level for link in links] == ["modules", "ops", "kernels"]
        scope = rf"^{re.escape(module)}(\.|$)"
        assert [window for _, window in program.asked] == [
            START,
            Window(step, step, scope),
            Window(step, step, scope),
        ]
        assert [link.line for link in links] == [
            f"modules: step {step}, rank 1: module Linear in {module}",
            f"ops: step {step}, rank 1: op {operation} in {module}",
            f"kernels: step {step}, rank 1: kernel {kernel} in {module}",
        ]
        assert conclusion(links) == f"first different kernel: {kernel}"
        assert reading(links) == "reading of kernels"

    def test_ends_at_the_operation_where_no_kernel_is_seen(self) -> None:
        program = Program(drawn(), has_kernels=False)
        links = chase(START, program.trace, program.compare)
        assert conclusion(links).startswith("first different op: aten.mm.default; no kernel below")

    def test_looks_in_other_modules_where_the_inputs_came_in_different(self) -> None:
        program = Program(drawn(), inputs_differ=("modules",))
        chase(START, program.trace, program.compare)
        step = program.plant[0]
        assert program.asked[1] == ("ops", Window(step, step))

    def test_does_not_take_a_scope_for_a_pattern(self) -> None:
        program = Program((3, "a.b", "op", "kernel"))
        chase(START, program.trace, program.compare)
        scope = program.asked[1][1].modules
        assert scope is not None
        assert [
            bool(re.search(scope, name)) for name in ("a.b", "a.b.c", "a.bc", "axb", "x.a.b")
        ] == [
            True,
            True,
            False,
            False,
            False,
        ]


class TestWhatDoesNotComeBack:
    def test_is_said_with_how_often_it_was_tried(self) -> None:
        program = Program(drawn(), comes_back=lambda number: False)
        links = chase(START, program.trace, program.compare, tries=3)
        assert program.pairs == 3
        (link,) = links
        assert "did not come back under tracing: 0 of 3 pairs of runs differed" in link.line
        assert conclusion(links) == "where the bits part inside the step is not known"
        assert reading(links) == ""

    def test_is_tried_again_and_counted(self) -> None:
        program = Program(drawn(), comes_back=lambda number: number != 1)
        links = chase(START, program.trace, program.compare, tries=3)
        assert [(link.came_back, link.tries) for link in links] == [(1, 2), (1, 1), (1, 1)]
        assert links[0].line.endswith("(1 of 2 tries)")

    def test_deeper_down_is_looked_for_in_the_whole_window_once_more(self) -> None:
        program = Program(drawn(), comes_back=lambda number: number == 1)
        links = chase(START, program.trace, program.compare, tries=2)
        assert [level for level, _ in program.asked] == ["modules", *["ops"] * 4]
        assert program.asked[-1] == ("ops", START)
        assert links[-1].sighting is None
        assert conclusion(links).startswith("followed down to modules: module Linear")


class TestTracesThatAreNoUse:
    def test_a_traced_run_that_fails_ends_the_chase(self) -> None:
        failed = Incomparable("interrupted by SIGINT")
        links = chase(START, lambda *_: failed, lambda *_: pytest.fail("nothing to compare"))
        assert [link.line for link in links] == [
            "modules: the traced run failed: interrupted by SIGINT"
        ]

    def test_traces_that_cannot_be_compared_tell_why(self) -> None:
        links = chase(START, lambda *_: Path("x"), lambda *_: Incomparable("no step is in both"))
        assert [link.line for link in links] == ["modules: cannot be compared: no step is in both"]
        assert links[0].to_json()["first"] is None

    @pytest.mark.parametrize(
        ("empty", "last"), [(["modules"], START), (["modules", "ops"], Window())]
    )
    def test_levels_at_which_nothing_was_traced_are_passed_over(
        self, empty: list[Level], last: Window
    ) -> None:
        """A program without modules; or one that does not count its steps as its evidence does."""
        program = Program(drawn())

        def compare(first: Path, second: Path) -> Sighting | Incomparable | None:
            if first.parent.name in empty:
                return Incomparable("A holds no events", nothing=True)
            return program.compare(first, second)

        links = chase(START, program.trace, compare)
        assert [link.level for link in links] == ["modules", "ops", "kernels"]
        assert links[0].line == "modules: nothing was traced (steps 0 to 9)"
        assert program.asked[len(empty)][1] == last
        assert conclusion(links) == f"first different kernel: {program.plant[3]}"

    def test_where_nothing_is_traced_at_any_level_that_is_said(self) -> None:
        nothing = Incomparable("A holds no events", nothing=True)
        links = chase(START, lambda *_: Path("x"), lambda *_: nothing)
        assert [link.nothing for link in links] == [True, True, True]
        assert conclusion(links) == "where the bits part inside the step is not known"
