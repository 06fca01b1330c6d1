"""Which event of one version's trace is which of another's: edits are found, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from pinner.compare import trace_reading as reading_of
from pinner.compare.trace import Event
from pinner.compare.trace_align import LIMITS, Limits, align
from pinner.compare.trace_report import Report
from pinner.compare.traces import compare_traces
from tests.trace_model import Fault, Line, run, write

NAMES = ("aten.mm", "aten.add", "aten.view", "aten.t")
MODULES = ("", "layers.0", "layers.1")
SMALL = Limits(window=16, sequence=12)


@dataclass(frozen=True)
class Op:
    """An operation before it has a count. value: what it puts out, and who it is."""

    name: str
    module: str
    value: str


def events(ops: Sequence[Op]) -> list[Event]:
    seen: dict[tuple[str, str], int] = {}
    found = []
    for order, op in enumerate(ops):
        nth = seen.get((op.name, op.module), 0)
        seen[op.name, op.module] = nth + 1
        outs = [["0", op.value, "float32", [2]]]
        ins = [["0", "in " + op.value, "float32", [2]]]
        label = ("op", op.name, op.module, "f")
        found.append(Event(label, 0, nth, order, ins, outs, {}, order))
    return found


def aligned(
    first: Sequence[Op], second: Sequence[Op], limits: Limits = LIMITS
) -> tuple[set[tuple[str, str]], set[str], set[str]]:
    """Pairs of values, and the values without a partner."""
    pairs, only_first, only_second = set(), set(), set()
    for a, b in align(events(first), events(second), limits):
        if a is not None and b is not None:
            pairs.add((a.outs[0][1], b.outs[0][1]))
        elif a is not None:
            only_first.add(a.outs[0][1])
        elif b is not None:
            only_second.add(b.outs[0][1])
    return pairs, only_first, only_second


@st.composite
def programs(draw: st.DrawFn, largest: int = 60) -> list[Op]:
    kinds = st.tuples(st.sampled_from(NAMES), st.sampled_from(MODULES))
    return [
        Op(name, module, f"v{n}")
        for n, (name, module) in enumerate(draw(st.lists(kinds, min_size=1, max_size=largest)))
    ]


@settings(deadline=None, max_examples=150)
@given(programs(), st.sampled_from([LIMITS, SMALL]))
def test_a_trace_aligned_with_itself_has_no_edit(program: list[Op], limits: Limits) -> None:
    pairs, *only = aligned(program, program, limits)
    assert pairs == {(op.value, op.value) for op in program}
    assert only == [set(), set()]


@settings(deadline=None, max_examples=200)
@given(programs(), st.data())
def test_inserted_and_removed_operations_are_found_exactly(
    program: list[Op], data: st.DataObject
) -> None:
    gone = data.draw(st.sets(st.integers(0, len(program) - 1), max_size=3))
    new = data.draw(
        st.lists(
            st.tuples(
                st.integers(0, len(program)), st.sampled_from(NAMES), st.sampled_from(MODULES)
            ),
            max_size=3,
        )
    )
    # An operation that goes while one of its name comes is a change of its bits to whoever looks.
    taken = {(program[n].name, program[n].module) for n in gone}
    new = [(at, name, module) for at, name, module in new if (name, module) not in taken]
    other = [(n, op) for n, op in enumerate(program) if n not in gone]
    for number, (at, name, module) in enumerate(new):
        place = next((i for i, (n, _) in enumerate(other) if n >= at), len(other))
        other.insert(place, (at, Op(name, module, f"new{number}")))
    pairs, only_first, only_second = aligned(program, [op for _, op in other])
    assert only_first == {program[n].value for n in gone}
    assert only_second == {f"new{number}" for number in range(len(new))}
    assert pairs == {(op.value, op.value) for n, op in enumerate(program) if n not in gone}


@settings(deadline=None, max_examples=150)
@given(programs(), st.data())
def test_renamed_operations_keep_their_partner(program: list[Op], data: st.DataObject) -> None:
    names = data.draw(st.sets(st.sampled_from(NAMES), max_size=2))
    other = [
        Op(op.name + "_v2" if op.name in names else op.name, op.module, op.value) for op in program
    ]
    assert aligned(program, other) == ({(op.value, op.value) for op in program}, set(), set())


@settings(deadline=None, max_examples=150)
@given(programs(), st.data())
def test_operations_that_only_changed_places_are_paired(
    program: list[Op], data: st.DataObject
) -> None:
    """Whatever the order, as long as operations of one name in one module keep theirs."""
    shuffled = data.draw(st.permutations(range(len(program))))
    groups: dict[tuple[str, str], list[Op]] = {}
    for op in program:
        groups.setdefault((op.name, op.module), []).append(op)
    other = [groups[program[n].name, program[n].module].pop(0) for n in shuffled]
    pairs, *only = aligned(program, other)
    assert (pairs, only) == ({(op.value, op.value) for op in program}, [set(), set()])


@settings(deadline=None, max_examples=100)
@given(programs(), st.data())
def test_a_changed_value_keeps_its_partner_beside_an_inserted_operation(
    program: list[Op], data: st.DataObject
) -> None:
    """All values after one place differ, and one more operation of another name is called."""
    start = data.draw(st.integers(0, len(program) - 1))
    at = data.draw(st.integers(0, len(program)))
    other = [Op(op.name, op.module, op.value + "'" * (n >= start)) for n, op in enumerate(program)]
    other.insert(at, Op("aten.clone", "", "new"))
    pairs, only_first, only_second = aligned(program, other)
    assert (only_first, only_second) == (set(), {"new"})
    assert {(a, b.rstrip("'")) for a, b in pairs} == {(op.value, op.value) for op in program}


def test_a_program_longer_than_the_window_is_aligned_in_pieces() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    program = [Op(chance.choice(NAMES), f"layers.{n // 10}", f"v{n}") for n in range(600)]
    at = chance.randrange(600)
    other = [*program[:at], Op("aten.view", f"layers.{at // 10}", "new"), *program[at:]]
    pairs, only_first, only_second = aligned(program, other, SMALL)
    assert (only_first, only_second) == (set(), {"new"})
    assert pairs == {(op.value, op.value) for op in program}


def view(module: str, step: int, row: list[object]) -> Line:
    return {
        "e": "op", "n": "aten.view.default", "m": module, "p": "f", "s": step,
        "in": [row], "out": [row], "x": {"view": True},
    }  # fmt: skip


class TestAnotherVersionOfTheProgram:
    """Case F4: the other side calls things otherwise, and the first real mismatch comes after."""

    def edited(self, events: list[Line], chance: random.Random) -> list[Line]:
        """One more view of what is at hand, one operation renamed, one taken apart."""
        edited = [dict(event) for event in events]
        for event in edited:
            if event["n"] == "aten.mul.Tensor":
                event["n"] = "aten.multiply.Tensor"
        for at in reversed(range(len(edited))):
            event = edited[at]
            if event["n"] == "aten.relu.default":
                half = {**event, "n": "aten.ge.Scalar"}
                half["out"] = [["0", f"p128:mask{at}", "bool", [4, 4], None, 10_000 + at]]
                edited.insert(at, half)
                event["n"] = "aten.where.self"
        at = chance.choice([n for n, event in enumerate(edited) if event["m"] and event["in"]])
        edited.insert(at, view(edited[at]["m"], edited[at]["s"], edited[at]["in"][0]))
        return edited

    def test_equal_bits_are_equal_whatever_they_are_called(self, tmp_path: Path) -> None:
        chance, plain = self.chance(), run()
        other = [self.edited(events, chance) for events in plain]
        report = self.compared(tmp_path, plain, other)
        assert (report.exit, report.head) == (0, None), report.text()
        layers, steps, ranks = 2, 3, 2
        assert [f.walk.only[0] for f in report.ranks] == [0, 0]
        assert sum(f.walk.only[1] for f in report.ranks) == ranks * (layers * steps + 1)

    def test_the_first_real_mismatch_is_found_after_them(self, tmp_path: Path) -> None:
        chance, plain = self.chance(), run()
        for number in range(10):
            at = chance.choice(
                [n for n, event in enumerate(plain[0]) if event["e"] == "op" and "x" not in event]
            )
            faulty = run(Fault(0, at))
            other = [self.edited(events, chance) for events in faulty]
            report = self.compared(tmp_path / str(number), plain, other)
            assert report.head is not None
            assert (report.head.rank, report.head.event.order) == (0, at), report.text()

    def test_an_operation_that_was_replaced_by_another_that_gives_other_bits(
        self, tmp_path: Path
    ) -> None:
        chance, plain = self.chance(), run()
        at = chance.choice([n for n, e in enumerate(plain[0]) if e["n"] == "aten.relu.default"])
        other = run(Fault(0, at))
        other[0][at]["n"] = "mylib.relu_fast"
        report = self.compared(tmp_path, plain, other)
        assert report.head is not None
        assert report.head.reading is not None
        assert (report.head.event.order, report.head.reading.kind) == (at, reading_of.REPLACED)
        assert "B calls mylib.relu_fast where A calls aten.relu.default" in report.text()

    def test_an_operation_that_only_one_side_has_is_named_by_what_reads_its_output(
        self, tmp_path: Path
    ) -> None:
        """B has no dropout at all: what comes next reads something else."""
        chance, plain = self.chance(), run()
        at = chance.choice([n for n, e in enumerate(plain[0]) if "dropout" in e["n"]])
        other = run(Fault(0, at))
        del other[0][at]
        report = self.compared(tmp_path, plain, other)
        assert report.head is not None
        assert report.head.reading is not None
        assert (report.head.event.order, report.head.reading.kind) == (
            at + 1,
            reading_of.DOWNSTREAM,
        )
        assert "aten.native_dropout.default" in report.text()

    def test_independent_operations_in_another_order_are_equal(self, tmp_path: Path) -> None:
        chance, plain = self.chance(), run()
        other = [list(events) for events in plain]
        places = [
            n
            for n, (a, b) in enumerate(zip(plain[0], plain[0][1:], strict=False))
            if (a["n"], a["m"], a["p"]) != (b["n"], b["m"], b["p"]) and a["s"] == b["s"]
        ]
        at = chance.choice(places)
        other[0][at : at + 2] = reversed(other[0][at : at + 2])
        report = self.compared(tmp_path, plain, other)
        assert (report.exit, report.events) == (0, 144)

    def chance(self) -> random.Random:
        seed = random.randrange(1 << 32)
        print(f"seed {seed}")
        return random.Random(seed)

    def compared(self, folder: Path, first: list[list[Line]], second: list[list[Line]]) -> Report:
        a, b = write(folder / "a", first), write(folder / "b", second)
        return compare_traces(a, b, jobs=1)
