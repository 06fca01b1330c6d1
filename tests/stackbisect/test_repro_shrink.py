"""A captured call is made as small as it goes while it shows the same finding, whatever happens."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stackbisect.repro import array_edits, calls, element_values, fills, least, passes, smaller
from stackbisect.repro.calls import Program, Ref, Step
from stackbisect.repro.kernel_text import Text
from stackbisect.repro.least import Answer, Kept, Limits, Pass, Task
from stackbisect.repro.triton_case import LAUNCH, Kernel

Oracle = Callable[[Program], bool]
OPERATION = "aten._softmax.default"


def program(rows: int, columns: int, draw: random.Random, dtype: str = "float32") -> Program:
    """One call on a matrix of drawn numbers."""
    numbers = [draw.uniform(-4, 4) for _ in range(rows * columns)]
    data = element_values.encode(dtype, numbers)
    assert data is not None
    x = calls.array(dtype, (rows, columns), data)
    return Program(
        kind="aten",
        operation=OPERATION,
        inputs={"x": x},
        steps=(Step(OPERATION, (Ref("x"), 1, False)),),
        outputs=("out",),
    )


def matrix(case: Program) -> list[list[float]]:
    """The rows of the input x; none where it is gone."""
    if "x" not in case.inputs or len(case.inputs["x"].shape) != 2:
        return []
    numbers = array_edits.numbers(case, "x") or []
    rows, columns = case.inputs["x"].shape
    return [numbers[row * columns : (row + 1) * columns] for row in range(rows)]


def bits(number: float) -> int:
    """Significant bits, counted on the text of the number's bits: another way than the code's."""
    digits = float(number).hex().partition("p")[0].removeprefix("-").removeprefix("0x")
    binary = "".join(f"{int(digit, 16):04b}" for digit in digits.replace(".", ""))
    return len(binary.strip("0"))


@dataclass
class Simulated:
    """Both stacks as a function; counts what it is asked."""

    oracle: Oracle
    interrupt_at: int | None = None
    asked: int = 0
    batches: int = 0
    kept: list[Kept[Program]] = field(default_factory=list)

    def judge(self, cases: Sequence[Program], _: float | None) -> list[str | None]:
        self.batches += 1
        if self.batches == self.interrupt_at:
            raise KeyboardInterrupt
        self.asked += len(cases)
        return ["numbers" if self.oracle(case) else None for case in cases]

    def search(
        self, first: Program, ways: Sequence[Pass[Program]] = passes.ALL, **limits: int
    ) -> Answer[Program]:
        return least.least(
            first,
            Task(
                passes=ways,
                measure=smaller.measure,
                key=smaller.key,
                judge=self.judge,
                kept=self.kept.append,
                weight=smaller.weight,
                limits=Limits(**limits),
            ),
        )


@pytest.fixture
def draw() -> random.Random:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    return random.Random(seed)


# -- the smallest one ------------------------------------------------------------------------------


def boxes(rows: int, columns: int) -> list[tuple[range, range]]:
    """Every window of a matrix."""
    spans = [
        [range(start, stop) for start in range(size) for stop in range(start + 1, size + 1)]
        for size in (rows, columns)
    ]
    return list(itertools.product(*spans))


@pytest.mark.parametrize("case", range(4))
def test_elements_anywhere_are_found_with_all_that_must_stay(
    case: int, draw: random.Random
) -> None:
    """Differs where the drawn elements are there and the rows are wide enough."""
    rows, columns = draw.randint(2, 13), draw.randint(2, 13)
    whole = program(rows, columns, draw)
    numbers = matrix(whole)
    places = [(draw.randrange(rows), draw.randrange(columns)) for _ in range(1 + case % 2)]
    wide = draw.randint(1, columns)
    print(rows, columns, places, wide)
    marks = [numbers[row][column] for row, column in places]

    def shown(box: tuple[range, range]) -> bool:
        down, across = box
        return len(across) >= wide and all(r in down and c in across for r, c in places)

    def oracle(one: Program) -> bool:
        found = matrix(one)
        flat = [number for row in found for number in row]
        return bool(found) and len(found[0]) >= wide and all(mark in flat for mark in marks)

    fewest = min(len(down) * len(across) for down, across in filter(shown, boxes(rows, columns)))
    windows = [each for each in passes.ALL if each.name in ("sizes", "single sizes")]
    cut = Simulated(oracle).search(whole, windows)
    assert (cut.ended, cut.kept.case.elements) == (least.LEAST, fewest)
    lines = [len({place[axis] for place in places}) for axis in (0, 1)]
    holes = [*windows, *(each for each in passes.ALL if each.name == "holes")]
    cut = Simulated(oracle).search(whole, holes)
    fewest = lines[0] * max(lines[1], wide)
    assert (cut.ended, cut.kept.case.elements) == (least.LEAST, fewest)
    found = Simulated(oracle).search(whole)
    # Values that are put elsewhere can make it smaller still.
    assert (found.ended, found.kept.case.elements <= fewest) == (least.LEAST, True)
    others = [n for row in matrix(found.kept.case) for n in row if n not in marks]
    assert others == [0.0] * len(others)


@pytest.mark.parametrize("case", range(4))
def test_a_size_and_the_bits_of_a_value_together(case: int, draw: random.Random) -> None:
    """Differs only on so many columns and where some value has more bits than these."""
    wide, most = draw.randint(2, 40), draw.randint(1, 20)
    whole = program(draw.randint(1, 9), draw.randint(wide, 70), draw)
    print(wide, most, whole.inputs["x"].shape)

    def oracle(one: Program) -> bool:
        found = matrix(one)
        return (
            bool(found)
            and len(found[0]) >= wide
            and any(bits(n) > most for row in found for n in row)
        )

    assert oracle(whole)
    found = Simulated(oracle).search(whole).kept.case
    assert found.inputs["x"].shape == (1, wide)
    numbers = sorted(matrix(found)[0], key=bits)
    assert numbers[:-1] == [0.0] * (wide - 1)
    assert bits(numbers[-1]) == most + 1


def test_of_several_steps_only_the_operation_stays(draw: random.Random) -> None:
    """Twenty operations, one of which differs, at a drawn place."""
    names = [f"aten.step{number}.default" for number in range(20)]
    names[draw.randrange(20)] = OPERATION
    print(names.index(OPERATION))
    whole = program(4, 6, draw)
    steps, read = [], "x"
    for number, name in enumerate(names):
        steps.append(Step(name, (Ref(read), 1), results=(f"r{number}",)))
        read = f"r{number}"
    whole = replace(whole, steps=tuple(steps), outputs=(read,))
    found = Simulated(lambda one: any(s.target == OPERATION for s in one.steps)).search(whole)
    (step,) = found.kept.case.steps
    assert step.target == OPERATION
    assert [*step.refs()] == []
    assert found.kept.case.outputs == step.results


def test_a_step_that_nothing_reads_stays_where_it_is_remembered(draw: random.Random) -> None:
    """A library that remembers one of many steps, at a drawn place."""
    names = [f"lib.step{number}.default" for number in range(9)]
    at = draw.randrange(9)
    names[at] = "lib.remember.default"
    steps = [Step(name, (Ref("x"),), results=(f"r{n}",)) for n, name in enumerate(names)]
    whole = replace(program(4, 6, draw), steps=(*steps, Step(OPERATION, (Ref("x"), 1, False))))
    wanted = ["lib.remember.default", OPERATION]

    def oracle(one: Program) -> bool:
        return set(wanted) <= {step.target for step in one.steps}

    found = Simulated(oracle).search(whole).kept.case
    assert [step.target for step in found.steps] == wanted


def test_no_other_operation_takes_its_place(draw: random.Random) -> None:
    """A case without the operation is another finding, though the stacks differ there too."""
    steps = (
        Step("aten.exp.default", (Ref("x"),), results=("e",)),
        Step(OPERATION, (Ref("e"), 1, False)),
        Step("aten.log.default", (Ref("out"),), results=("l",)),
    )
    whole = replace(program(3, 3, draw), steps=steps, outputs=("l",))
    found = Simulated(lambda _: True).search(whole)
    assert [step.target for step in found.kept.case.steps] == [OPERATION]


def test_layout_dtype_settings_and_arguments_become_plain(draw: random.Random) -> None:
    plain = program(6, 4, draw, "bfloat16")
    x = plain.inputs["x"]
    odd = replace(x, shape=(3, 4), strides=(1, 6), offset=2, data=x.data + x.data[:4], alignment=4)
    whole = replace(
        plain,
        inputs={"x": odd, "y": replace(x, shape=(2, 4), strides=(4, 1), data=b"", alias="x")},
        steps=(
            Step(
                OPERATION,
                (Ref("x"), 1, True, Ref("y"), 0.3),
                {"dtype": calls.Named("torch.bfloat16"), "approximate": "tanh"},
            ),
        ),
        settings={"threads": 4, "deterministic": True},
        generator=b"state",
        imports=("somebody.kernels",),
    )

    def oracle(one: Program) -> bool:
        step = one.steps[0]
        return bool(matrix(one)) and len(step.args) > 1 and step.args[1] == 1

    found = Simulated(oracle).search(whole).kept.case
    assert found == replace(
        plain,
        inputs={"x": calls.array("float32", (1, 1), bytes(4))},
        steps=(Step(OPERATION, (Ref("x"), 1)),),
    )


# -- programs that stay valid ----------------------------------------------------------------------


def embedding(draw: random.Random) -> Program:
    """Indices into a table, and offsets into the indices."""
    rows, many = draw.randint(2, 40), draw.randint(2, 40)
    table = calls.array("float32", (rows, 8), bytes(4 * rows * 8))
    picked = [draw.randrange(rows) for _ in range(many)]
    bounds = [0, *sorted(draw.randrange(many) for _ in range(3)), many]
    indices, offsets = (
        calls.array("int64", (len(found),), fills.pack("int64", found))
        for found in (picked, bounds)
    )
    step = Step(
        "aten._embedding_bag.default", (Ref("table"), Ref("indices"), Ref("offsets"), rows, many)
    )
    return Program(
        kind="aten",
        operation=step.target,
        inputs={"table": table, "indices": indices, "offsets": offsets},
        steps=(step,),
        outputs=("out",),
    )


def launch(draw: random.Random) -> Program:
    """A kernel that goes through rows of a matrix; sizes and strides are arguments."""
    rows, columns, block = draw.randint(1, 40), draw.randint(1, 40), 1 << draw.randint(0, 6)
    x = calls.array("float32", (rows, columns), bytes(4 * rows * columns))
    pitch = draw.randint(0, 3)
    padded = replace(
        x, strides=(columns + pitch, 1), data=bytes(4 * ((columns + pitch) * rows - pitch))
    )
    arguments = {
        "x": Ref("x"),
        "out": Ref("out"),
        "rows": rows,
        "columns": columns,
        "elements": rows * columns,
        "x_stride": padded.strides[0],
        "out_stride": columns,
        "BLOCK": block,
    }
    return Program(
        kind="triton",
        operation="rows",
        inputs={"x": padded, "out": x},
        steps=(Step(LAUNCH, (), arguments, results=()),),
        outputs=("out",),
        kernel=Kernel(
            text=Text((), "", "rows"),
            grid=(rows, -(-columns // block), 1),
            options={"num_warps": 4},
            constexprs=("BLOCK",),
            interpreted=True,
            environ={},
        ),
    )


def inside(case: Program) -> bool:
    """Whether no index, offset, size or stride leads past the end of an array."""
    if case.kind == "triton":
        given = case.steps[0].kwargs
        return all(
            max((given["rows"] - 1) * given[stride] + given["columns"], given["elements"])
            <= len(case.inputs[name].data) // 4
            if given["rows"] and given["columns"]
            else given["elements"] <= len(case.inputs[name].data) // 4
            for name, stride in (("x", "x_stride"), ("out", "out_stride"))
        )
    if not {"table", "indices", "offsets"} <= set(case.inputs):
        return True
    indices, offsets = (array_edits.numbers(case, name) or [] for name in ("indices", "offsets"))
    return all(0 <= n < case.inputs["table"].shape[0] for n in indices) and all(
        0 <= n <= len(indices) for n in offsets
    )


@given(st.integers(0, 1 << 32), st.sampled_from([embedding, launch]))
@settings(max_examples=25, deadline=None)
def test_no_edit_makes_a_program_reach_past_its_arrays(
    seed: int, make: Callable[[random.Random], Program]
) -> None:
    """Any row of edits, whatever of them is kept."""
    draw = random.Random(seed)
    case = make(draw)
    assert inside(case)
    for _ in range(4):
        edits = [edit for each in passes.ALL for edit in each.edits(case)]
        made = [(edit, edit.apply(case)) for edit in draw.sample(edits, min(len(edits), 60))]
        smaller_ones = []
        for edit, one in made:
            if one is None or smaller.measure(one) >= smaller.measure(case):
                continue
            assert inside(one), f"{edit.what}: {edit.text}"
            smaller_ones.append(one)
        if not smaller_ones:
            return
        case = draw.choice(smaller_ones)


def test_of_a_call_below_torch_only_numbers_change(draw: random.Random) -> None:
    """Its problem says sizes and layouts that are not looked into."""
    whole = replace(program(8, 12, draw), kind="cublaslt", kernel=("problem", 8, 12))
    ways = passes.of(whole)
    found = Simulated(lambda _: True).search(whole, ways).kept.case
    assert replace(found, inputs={}) == replace(whole, inputs={})
    assert found.inputs == {"x": calls.array("float32", (8, 12), bytes(4 * 8 * 12))}


# -- what always holds -----------------------------------------------------------------------------


def arbitrary(salt: int, odds: int) -> Oracle:
    """Differs for no reason, and for the same programs every time; never without the input."""

    def oracle(one: Program) -> bool:
        key = smaller.key(one)
        assert isinstance(key, bytes)
        return bool(matrix(one)) and (key[0] ^ salt) % odds == 0

    return oracle


wholes = st.builds(
    lambda rows, columns, seed: program(rows, columns, random.Random(seed)),
    *(st.integers(1, 12), st.integers(1, 12), st.integers(0, 99)),
)


@given(wholes, st.integers(0, 255), st.integers(1, 5), st.integers(0, 300), st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_what_is_kept_shows_it_and_is_smaller_and_the_budget_holds(
    whole: Program, salt: int, odds: int, tries: int, width: int
) -> None:
    judged = arbitrary(salt, odds)
    oracle = lambda one: one == whole or judged(one)
    simulated = Simulated(oracle)
    found = simulated.search(whole, tries=tries, width=width)
    assert simulated.asked <= tries
    assert found.kept.tries == simulated.asked
    assert oracle(found.kept.case)
    sizes = [smaller.measure(each.case) for each in (Kept(whole, 0, 0, 0), *simulated.kept)]
    assert all(one > other for one, other in itertools.pairwise(sizes))
    assert sizes[-1] == smaller.measure(found.kept.case)
    again = Simulated(oracle).search(whole, tries=tries, width=width)
    assert again == found


@given(wholes, st.integers(0, 255), st.integers(1, 12))
@settings(max_examples=25, deadline=None)
def test_an_interrupt_keeps_the_best_so_far(whole: Program, salt: int, batch: int) -> None:
    judged = arbitrary(salt, 2)
    oracle = lambda one: one == whole or judged(one)
    undisturbed = Simulated(oracle)
    undisturbed.search(whole, width=8)
    interrupted = Simulated(oracle, interrupt_at=batch)
    if batch <= undisturbed.batches:
        with pytest.raises(KeyboardInterrupt):
            interrupted.search(whole, width=8)
    else:
        interrupted.search(whole, width=8)
    upto = [each for each in undisturbed.kept if each.batches < batch]
    assert interrupted.kept == upto


def test_a_smaller_case_that_differs_otherwise_is_none(draw: random.Random) -> None:
    """The stacks differ in numbers; small cases differ only in what NaNs hold."""
    whole = program(4, 8, draw)

    def judge(cases: Sequence[Program], _: float | None) -> list[str | None]:
        return ["numbers" if case.elements > 16 else "bits" for case in cases]

    simulated = Simulated(lambda _: True)
    simulated.judge = judge  # type: ignore[method-assign]
    found = simulated.search(whole)
    assert 16 < found.kept.case.elements < 32


def test_what_does_not_show_it_is_left_as_it_is(draw: random.Random) -> None:
    whole = program(4, 8, draw)
    simulated = Simulated(lambda one: one != whole)
    found = simulated.search(whole)
    assert (found.ended, found.kept.case, simulated.kept) == (least.REFUSED, whole, [])


def test_time_is_over(draw: random.Random) -> None:
    """The clock goes on by a second with each batch."""
    whole = program(12, 12, draw)
    seconds = draw.randint(1, 4)
    simulated = Simulated(lambda one: one == whole)
    left: list[float | None] = []

    def judge(cases: Sequence[Program], seconds: float | None) -> list[str | None]:
        left.append(seconds)
        return simulated.judge(cases, seconds)

    task = Task(
        passes=passes.ALL,
        measure=smaller.measure,
        key=smaller.key,
        judge=judge,
        kept=simulated.kept.append,
        limits=Limits(seconds=seconds, width=2),
        clock=lambda: float(simulated.batches),
    )
    assert least.least(whole, task).ended == least.SECONDS
    assert left == [float(seconds - batch) for batch in range(seconds)]


def test_what_weighs_much_goes_alone(draw: random.Random) -> None:
    whole = program(32, 32, draw)
    heaviest = 4 * 32 * 32 - 1
    widths: list[int] = []

    def judge(cases: Sequence[Program], _: float | None) -> list[str | None]:
        widths.append(len(cases))
        assert sum(map(smaller.weight, cases[:-1])) <= 2 * heaviest + 1
        return ["numbers" if matrix(case) else None for case in cases]

    simulated = partial(Task, passes=passes.ALL, measure=smaller.measure, key=smaller.key)
    task = simulated(
        judge=judge,
        kept=lambda _: None,
        weight=smaller.weight,
        limits=Limits(heaviest=heaviest),
    )
    assert least.least(whole, task).kept.case.elements == 1
    assert max(widths) > 8
