"""Faults planted at random places of a small training program are found there, and read rightly."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from pinner.compare import trace_reading as reading_of
from pinner.compare.trace_report import Report
from pinner.compare.traces import compare_traces
from tests import trace_model
from tests.trace_model import Fault, Line, run, write

DRAWS = 12


@pytest.fixture
def chance() -> random.Random:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    return random.Random(seed)


def compared(
    folder: Path, first: Sequence[list[Line] | None], second: Sequence[list[Line] | None]
) -> Report:
    number = len(list(folder.iterdir()))
    a = write(folder / f"{number}-a", first)
    b = write(folder / f"{number}-b", second)
    return compare_traces(a, b, jobs=1)


def head(report: Report) -> tuple[int | None, int, str, str]:
    """Rank, order of the event, its name, and the reading, of the first mismatch of all."""
    assert report.head is not None
    assert report.head.reading is not None
    event = report.head.event
    return report.head.rank, event.order, event.name, report.head.reading.kind


def last_writer(events: Sequence[Line], at: int) -> int | None:
    """The last event before `at` that wrote to its first input, looked for in the plain way."""
    storage = events[at]["in"][0][5]
    for order in reversed(range(at)):
        event = events[order]
        writes = event["e"] != "step" and not event.get("x", {}).get("view")
        if writes and any(row[5] == storage for row in event["out"]):
            return order
    return None


def expected_flip(event: Line) -> str:
    if event["e"] == "step":
        return reading_of.RESULT
    if event["e"] == "collective":
        return reading_of.ARRIVED
    if event.get("x", {}).get("view"):
        return reading_of.UNTRACED
    return reading_of.RANDOM if "dropout" in event["n"] else reading_of.ORIGIN


def test_two_runs_of_one_program_are_equal(tmp_path: Path) -> None:
    report = compared(tmp_path, run(), run(first=1000))
    assert (report.exit, report.status, report.events) == (0, "equal", sum(map(len, run())))
    assert report.text().startswith("A and B are equal: 144 events of 2 ranks, steps 0 to 2")


def test_a_flipped_output_is_found_at_its_event_on_its_rank(
    tmp_path: Path, chance: random.Random
) -> None:
    plain = run()
    for _ in range(DRAWS):
        rank = chance.choice(trace_model.RANKS)
        at = chance.randrange(len(plain[rank]))
        event = plain[rank][at]
        report = compared(tmp_path, plain, run(Fault(rank, at), first=chance.choice((1, 500))))
        assert report.exit == 1
        assert head(report) == (rank, at, event["n"], expected_flip(event))
        assert report.head is not None
        (diff, *_) = report.head.walk.mismatches[0].outs
        assert (report.head.walk.mismatches[0].ins, diff.path) == ((), "0")


def test_every_event_after_the_first_mismatch_that_differs_is_counted(
    tmp_path: Path, chance: random.Random
) -> None:
    plain = run()
    rank = chance.choice(trace_model.RANKS)
    other = run(Fault(rank, chance.randrange(len(plain[rank]))))
    report = compared(tmp_path, plain, other)
    for finding in report.ranks:
        pairs = zip(plain[finding.rank or 0], other[finding.rank or 0], strict=True)
        assert finding.walk.differing == sum(a != b for a, b in pairs)


def test_memory_that_something_untraced_wrote_to_names_the_last_writer(
    tmp_path: Path, chance: random.Random
) -> None:
    """Case F5."""
    plain = run()
    for _ in range(DRAWS):
        rank = chance.choice(trace_model.RANKS)
        at = chance.choice([n for n, event in enumerate(plain[rank]) if event["in"]])
        writer = last_writer(plain[rank], at)
        report = compared(tmp_path, plain, run(Fault(rank, at, "poke"), first=70))
        wanted = reading_of.OUTSIDE if writer is None else reading_of.UNTRACED
        assert head(report) == (rank, at, plain[rank][at]["n"], wanted)
        assert report.head is not None
        assert report.head.reading is not None
        found = report.head.reading.writers[0]
        assert (None if found is None else found.order) == writer


def test_a_view_whose_memory_changed_says_that_the_producer_is_not_traced(
    tmp_path: Path, chance: random.Random
) -> None:
    """Case F5, where the first mismatch is a `view`."""
    plain = run()
    written = [
        n
        for n, event in enumerate(plain[0])
        if event.get("x", {}).get("view") and last_writer(plain[0], n) is not None
    ]
    for kind in ("flip", "poke"):
        at = chance.choice(written)
        writer = last_writer(plain[0], at)
        assert writer is not None
        text = compared(tmp_path, plain, run(Fault(0, at, kind))).text()
        assert "the producer is not traced" in text
        assert f"the last writer seen is {plain[0][writer]['n']}" in text


def test_a_fault_that_reached_others_through_a_collective_is_found_where_it_was_made(
    tmp_path: Path, chance: random.Random
) -> None:
    plain = run()
    grads = [n for n, event in enumerate(plain[1]) if event["p"] == "b" and event["e"] == "op"]
    at = chance.choice(grads)
    report = compared(tmp_path, plain, run(Fault(1, at)))
    assert head(report)[:2] == (1, at)
    (other,) = [finding for finding in report.ranks if finding.rank == 0]
    assert other.event.kind == "collective"


def test_a_collective_with_equal_inputs_on_all_ranks_is_named_as_such(
    tmp_path: Path, chance: random.Random
) -> None:
    plain = run()
    at = chance.choice([n for n, event in enumerate(plain[0]) if event["e"] == "collective"])
    report = compared(tmp_path, plain, run(Fault(0, at), Fault(1, at)))
    assert head(report)[1:] == (at, "all_reduce", reading_of.ARRIVED)
    assert "the collective all_reduce itself, with equal inputs on all 2 ranks" in report.text()


def test_a_collective_of_ranks_that_were_not_traced_asks_for_them(
    tmp_path: Path, chance: random.Random
) -> None:
    plain = run()
    grads = [n for n, event in enumerate(plain[1]) if event["p"] == "b" and event["e"] == "op"]
    faulty = run(Fault(1, chance.choice(grads)))
    report = compared(tmp_path, [plain[0], None], [faulty[0], None])
    assert head(report)[3] == reading_of.ARRIVED
    assert "rank 1 took part and was not traced: trace more ranks" in report.text()
    assert any("neither was traced on rank 1" in note for note in report.notes)


def test_a_fault_on_both_ranks_is_reported_for_the_earlier_one(
    tmp_path: Path, chance: random.Random
) -> None:
    plain = run()
    early, late = sorted(chance.sample(range(14), 2))  # before the first collective
    report = compared(tmp_path, plain, run(Fault(0, late), Fault(1, early)))
    assert head(report)[:2] == (1, early)


def test_a_random_operation_makes_its_generator_a_suspect(tmp_path: Path) -> None:
    plain = run()
    at = next(n for n, event in enumerate(plain[0]) if "dropout" in event["n"])
    text = compared(tmp_path, plain, run(Fault(0, at))).text()
    assert "the state of its random number generator is a suspect" in text


def test_the_state_of_a_generator_that_differs_is_said(tmp_path: Path) -> None:
    def state(value: str) -> list[Line]:
        event = {"e": "random", "n": "torch.cuda.0", "p": "o", "s": 0, "in": []}
        return [{**event, "out": [["state", "sha256:" + value, "bytes", [8]]]}]

    report = compared(tmp_path, [state("a")], [state("b")])
    assert head(report)[2:] == ("torch.cuda.0", reading_of.STATE)


class TestGeneratorsThatSeedThemselves:
    def states(self, name: str, *values: str) -> list[Line]:
        plain = {"e": "random", "n": name, "p": "o", "in": []}
        return [
            {**plain, "s": step, "out": [["state", "sha256:" + value, "bytes", [8]]]}
            for step, value in enumerate(values)
        ]

    @pytest.mark.parametrize("name", ["numpy", "torch.cpu"])
    def test_one_that_nobody_seeded_is_a_note(self, name: str, tmp_path: Path) -> None:
        sides = [[event("aten.relu", "a", "b"), *self.states(name, *v)] for v in ("ab", "cd")]
        report = compared(tmp_path, [sides[0]], [sides[1]])
        assert (report.exit, report.head) == (0, None)
        assert f"generator of {name} was never in the same state: it is not seeded" in report.text()

    def test_one_that_parted_in_the_run_is_a_mismatch(self, tmp_path: Path) -> None:
        sides = [self.states("numpy", "a", end, end) for end in "bc"]
        report = compared(tmp_path, [sides[0]], [sides[1]])
        assert head(report)[1:] == (1, "numpy", reading_of.STATE)
        assert report.ranks[0].walk.differing == 2

    def test_one_that_nobody_seeded_does_not_hide_the_first_mismatch(self, tmp_path: Path) -> None:
        first = [*self.states("python", "a"), event("aten.mm.default", "ab", "c")]
        second = [*self.states("python", "b"), event("aten.mm.default", "ab", "C")]
        report = compared(tmp_path, [first], [second])
        assert head(report)[1:] == (1, "aten.mm.default", reading_of.ORIGIN)


class TestMemoryThatIsNotReadyYet:
    """Case F6."""

    def events(self, first: str, *, late: str = "same", **extra: bool) -> list[Line]:
        tensor = ["0", f"p128:{first}", "float32", [2], None, 3]
        filled = ["0", f"p128:{late}", "float32", [2], None, 3]
        plain = {"m": "", "p": "f", "s": 0}
        return [
            {"e": "op", "n": "aten.empty.memory_format", **plain, "in": [], "out": [tensor]}
            | {"x": {"uninitialised": True, **extra}},
            {"e": "op", "n": "mylib.fill_out", **plain, "in": [tensor], "out": [filled]},
            {"e": "op", "n": "aten.relu.default", **plain, "in": [filled], "out": [filled]},
        ]

    def test_an_empty_tensor_is_no_divergence_nor_is_who_fills_it(self, tmp_path: Path) -> None:
        report = compared(tmp_path, [self.events("a")], [self.events("b")])
        assert (report.exit, report.head) == (0, None)

    def test_what_reads_it_unwritten_and_gives_other_bits_is(self, tmp_path: Path) -> None:
        report = compared(tmp_path, [self.events("a")], [self.events("b", late="other")])
        assert head(report)[1:] == (1, "mylib.fill_out", reading_of.UNWRITTEN)
        assert "uninitialised memory" in report.text()

    def test_once_it_was_written_a_change_counts(self, tmp_path: Path) -> None:
        first, second = self.events("a"), self.events("b")
        second[2]["in"] = [["0", "p128:changed", "float32", [2], None, 3]]
        assert head(compared(tmp_path, [first], [second]))[1:] == (
            2,
            "aten.relu.default",
            reading_of.UNTRACED,
        )

    def test_another_shape_is_a_divergence_all_the_same(self, tmp_path: Path) -> None:
        second = self.events("b")
        second[0]["out"][0][3] = [3]
        assert head(compared(tmp_path, [self.events("a")], [second]))[1] == 0

    def test_what_overwrites_a_tensor_does_not_read_it(self, tmp_path: Path) -> None:
        first, second = self.events("a"), self.events("b")
        for events in (first, second):
            events[1]["n"] = "aten.copy_.default"
            del events[0]
        assert compared(tmp_path, [first], [second]).exit == 0

    def copied(self, target: str, read: str) -> list[Line]:
        row = lambda digest: ["0", f"p128:{digest}", "float32", [2], None, 3]
        plain = {"e": "op", "m": "", "p": "f", "s": 0}
        return [
            {**plain, "n": "aten._to_copy.default", "in": [], "out": [row(target)]}
            | {"x": {"async": True}},
            {**plain, "n": "aten.relu.default", "in": [row(read)], "out": [row("out")]},
        ]

    def test_the_target_of_an_asynchronous_copy_is_no_divergence(self, tmp_path: Path) -> None:
        report = compared(tmp_path, [self.copied("a", "x")], [self.copied("b", "x")])
        assert report.exit == 0

    def test_reading_it_too_early_is_said(self, tmp_path: Path) -> None:
        report = compared(tmp_path, [self.copied("a", "x")], [self.copied("a", "y")])
        assert head(report)[1:] == (1, "aten.relu.default", reading_of.ASYNC)

    def test_a_digest_that_is_not_there_is_not_compared(self, tmp_path: Path) -> None:
        first, second = self.copied("a", "x"), self.copied("b", "x")
        for events, digest in ((first, None), (second, "p128:b")):
            events[0]["out"][0][1] = digest
            events[0]["x"] = {"why": "a CUDA graph is being captured"}
        assert compared(tmp_path, [first], [second]).exit == 0


def event(name: str, ins: str, outs: str, kind: str = "op", **extra: object) -> Line:
    """An event whose tensors are letters: their digests, and their storages."""
    rows = [
        [[str(n), f"p128:{x}", "int8", [1], None, ord(x.lower())] for n, x in enumerate(letters)]
        for letters in (ins, outs)
    ]
    line = {"e": kind, "n": name, "m": "", "p": "f", "s": 0, "in": rows[0], "out": rows[1]}
    return {**line, "x": extra} if extra else line


def test_a_kernel_with_another_config_says_so(tmp_path: Path) -> None:
    first = event("triton:lib:mm", "a", "b", "kernel", config={"BLOCK": 64}, grid=[4, 1, 1])
    second = event("triton:lib:mm", "a", "B", "kernel", config={"BLOCK": 32}, grid=[8, 1, 1])
    report = compared(tmp_path, [[first]], [[second]])
    assert head(report)[3] == reading_of.ORIGIN
    text = report.text()
    assert "its config is BLOCK=64 in A and BLOCK=32 in B; its grid is [4, 1, 1] in A" in text
    assert "next: nothing finer can be traced" in text


def test_an_operation_that_takes_no_tensors_got_other_arguments(tmp_path: Path) -> None:
    report = compared(
        tmp_path, [[event("aten.full.default", "", "a")]], [[event("aten.full.default", "", "A")]]
    )
    assert head(report)[3] == reading_of.ORIGIN
    assert "it reads no tensors, so it got other arguments" in report.text()


@pytest.mark.parametrize("name", ["aten.slice.Tensor", "aten.clone.default", "aten.cat.default"])
def test_what_only_copies_is_no_origin(tmp_path: Path, name: str) -> None:
    sides = [[event("aten.mm.default", "ab", "c"), event(name, "c", out)] for out in "dD"]
    report = compared(tmp_path, [sides[0]], [sides[1]])
    assert head(report)[1:] == (1, name, reading_of.UNTRACED)
    assert "the last writer seen is aten.mm.default #0" in report.text()


def test_what_is_only_written_over_is_no_input(tmp_path: Path) -> None:
    """Empty memory has no digest; who fills it with other bits is the origin all the same."""
    sides = [event("aten.fill_.Scalar", "a", out, writes=["0"]) for out in "aA"]
    for side in sides:
        side["in"][0][1] = None
    report = compared(tmp_path, [[sides[0]]], [[sides[1]]])
    assert head(report)[3] == reading_of.ORIGIN


def test_a_storage_that_nobody_knows_has_no_writer(tmp_path: Path) -> None:
    first = [event("aten.relu.default", "a", "b"), event("aten.mm.default", "c", "d")]
    second = [event("aten.relu.default", "a", "b"), event("aten.mm.default", "C", "D")]
    for line in (*first, *second):
        for row in (*line["in"], *line["out"]):
            row[5] = -1
    assert head(compared(tmp_path, [first], [second]))[1:] == (
        1,
        "aten.mm.default",
        reading_of.OUTSIDE,
    )


@pytest.mark.parametrize(("kind", "words"), [("grad", "a gradient"), ("optim", "the optimizer")])
def test_what_only_shows_a_result_asks_for_a_finer_level(
    tmp_path: Path, kind: str, words: str
) -> None:
    sides = [[event("SGD", "", x, kind, parameter="0.3")] for x in "aA"]
    report = compared(tmp_path, [sides[0]], [sides[1]])
    assert head(report)[3] == reading_of.RESULT
    assert words in report.text()
    assert f"SGD ({kind}), parameter 0.3" in report.text()


def test_what_a_rank_received_is_blamed_on_the_rank_that_sent_it(tmp_path: Path) -> None:
    """Pipeline stages: rank 0 differs late in its step, rank 1 early in its own."""
    filler = [event("aten.relu.default", "r", "s")] * 20
    stage0 = [*filler, event("aten.mm.default", "a", "b"), event("isend", "b", "", "p2p")]
    wrong0 = [*filler, event("aten.mm.default", "a", "B"), event("isend", "B", "", "p2p")]
    stage1 = [event("irecv", "", "b", "p2p"), event("aten.relu.default", "b", "c")]
    wrong1 = [event("irecv", "", "B", "p2p"), event("aten.relu.default", "B", "C")]
    assert head(compared(tmp_path, [stage0, stage1], [wrong0, wrong1]))[:3] == (
        0,
        20,
        "aten.mm.default",
    )
    report = compared(tmp_path, [stage0, stage1], [stage0, wrong1])
    assert head(report)[:3] == (1, 0, "irecv")
    assert "what irecv received differs, and no traced rank differs before it" in report.text()


def test_a_renamed_operation_whose_inputs_differ_is_no_origin(tmp_path: Path) -> None:
    first = [event("aten.add.Tensor", "ab", "c"), event("aten.mul.Tensor", "cd", "e")]
    second = [event("aten.add.Tensor", "ab", "c"), event("aten.multiply", "Cd", "E")]
    report = compared(tmp_path, [first], [second])
    assert head(report)[1:] == (1, "aten.mul.Tensor", reading_of.UNTRACED)


def test_shapes_that_differ_count_where_nothing_was_hashed(tmp_path: Path) -> None:
    line = event("aten.nonzero.default", "", "a")
    line["out"][0][1] = None
    other = {**line, "out": [["0", None, "int8", [7]]]}
    assert compared(tmp_path, [[line]], [[other]]).exit == 1


def test_much_that_was_not_hashed_is_said(tmp_path: Path) -> None:
    line = event("aten.empty", "", "a")
    line["out"][0][1] = None
    for count, said in ((3, True), (0, False)):
        events = [event("aten.relu.default", "a", "b"), *[line] * count]
        report = compared(tmp_path, [events], [events])
        assert report.exit == 0
        assert report.ranks[0].walk.unhashed == [count, count]
        assert ("not hashed: 3 tensors in A, 3 in B" in report.text()) is said


def test_runs_that_are_equally_not_a_number_are_equal(tmp_path: Path) -> None:
    nan = [{"e": "op", "n": "aten.log.default", "s": 0, "in": [], "out": [["0", "p128:nan"]]}]
    assert compared(tmp_path, [nan], [nan]).exit == 0


def test_ranks_are_compared_in_processes_with_the_same_answer(tmp_path: Path) -> None:
    a = write(tmp_path / "a", run())
    b = write(tmp_path / "b", run(Fault(1, 5)))
    one, two = (compare_traces(a, b, jobs=jobs) for jobs in (1, 2))
    assert one.to_json() == two.to_json()
