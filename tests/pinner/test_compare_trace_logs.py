"""Trace logs as they are found: whole, torn, damaged, killed, missing, of another kind, long."""

from __future__ import annotations

import json
import random
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinner.compare.trace import TraceError, is_trace, read_trace
from pinner.compare.trace_align import Limits
from pinner.compare.trace_report import Report
from pinner.compare.trace_walk import walk
from pinner.compare.traces import compare_traces
from tests.trace_model import Fault, Line, run, write


@pytest.fixture
def chance() -> random.Random:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    return random.Random(seed)


def log_of(folder: Path, rank: int = 0) -> Path:
    (path,) = (folder / f"rank-{rank}").iterdir()
    return path


def compared(folder: Path, **other: Any) -> Report:
    a = write(folder / "a", run())
    b = write(folder / "b", run(), **other)
    return compare_traces(a, b, jobs=1)


class TestDamage:
    def test_a_torn_last_line_is_left_out(self, tmp_path: Path) -> None:
        plain = run()
        a = write(tmp_path / "a", plain)
        b = write(tmp_path / "b", plain, ended=False)
        path = log_of(b)
        data = path.read_bytes()
        path.write_bytes(data[: len(data) - 30])
        report = compare_traces(a, b, jobs=1)
        assert (report.exit, report.head) == (2, None)
        assert report.uncompared == (
            "rank 0: B was killed in step 2; 1 event of A cannot be compared",
        )

    def test_damage_elsewhere_names_file_and_line(
        self, tmp_path: Path, chance: random.Random
    ) -> None:
        a, b = write(tmp_path / "a", run()), write(tmp_path / "b", run())
        lines = log_of(b).read_bytes().splitlines(keepends=True)
        at = chance.randrange(1, len(lines) - 1)
        for spoilt in (lines[at][:20] + b"\n", b"\0" * 40 + b"\n", b"[1]\n"):
            log_of(b).write_bytes(b"".join([*lines[:at], spoilt, *lines[at + 1 :]]))
            with pytest.raises(TraceError, match=rf"{log_of(b)}:{at + 1}: .*damaged line"):
                compare_traces(a, b, jobs=1)
            with pytest.raises(TraceError, match=rf":{at + 1}: "):
                compare_traces(b, b, jobs=1)

    def test_lost_lines_are_an_error(self, tmp_path: Path, chance: random.Random) -> None:
        a, b = write(tmp_path / "a", run()), write(tmp_path / "b", run())
        lines = log_of(b).read_bytes().splitlines(keepends=True)
        del lines[chance.randrange(1, len(lines) - 1)]
        log_of(b).write_bytes(b"".join(lines))
        with pytest.raises(
            TraceError, match=r"expected the 72 events .* found 71: lines were lost"
        ):
            compare_traces(a, b, jobs=1)

    def test_a_tensor_that_is_none_is_an_error(self, tmp_path: Path) -> None:
        other = run()
        other[0][5]["out"] = [["0"]]
        a, b = write(tmp_path / "a", run()), write(tmp_path / "b", other)
        with pytest.raises(TraceError, match=r":7: expected \[path, digest"):
            compare_traces(a, b, jobs=1)

    def test_a_log_of_another_version_is_refused(self, tmp_path: Path) -> None:
        a = write(tmp_path / "a", run())
        path = log_of(a)
        path.write_bytes(path.read_bytes().replace(b'"version":1', b'"version":2', 1))
        with pytest.raises(TraceError, match=r":1: expected version 1, found 2"):
            read_trace(a)

    def test_a_process_that_died_before_its_first_line_left_no_log(self, tmp_path: Path) -> None:
        a = write(tmp_path / "a", [run()[0]])
        (a / "rank-0" / "other.jsonl").write_bytes(b'{"t":"tra')
        assert len(read_trace(a).ranks[0]) == 1

    def test_a_damaged_description_of_the_trace_is_an_error(self, tmp_path: Path) -> None:
        a = write(tmp_path / "a", run())
        (a / "trace.json").write_text("{")
        with pytest.raises(TraceError, match="damaged file"):
            read_trace(a)

    def test_without_a_description_the_logs_say_enough(self, tmp_path: Path) -> None:
        a = write(tmp_path / "a", run())
        (a / "trace.json").unlink()
        found = read_trace(a)
        assert is_trace(a)
        assert (found.level, found.world, found.valid, list(found.ranks)) == (
            "ops",
            2,
            None,
            [0, 1],
        )


class TestRunsThatAreNotWhole:
    def test_one_whose_launcher_was_killed_has_no_world_and_is_compared(
        self, tmp_path: Path
    ) -> None:
        """A process without a rank knows no world size; `trace.json` would have said 1."""
        for name in "ab":
            write(tmp_path / name, [run()[0]], world=1)
            (log,) = (tmp_path / name / "rank-0").iterdir()
            head, rest = log.read_text().split("\n", 1)
            fields = {**json.loads(head), "rank": None, "world": None}
            log.write_text(json.dumps(fields) + "\n" + rest)
        (tmp_path / "a" / "trace.json").unlink()
        report = compare_traces(tmp_path / "a", tmp_path / "b", jobs=1)
        assert report.incomparable is None
        assert report.exit == 0
        assert not any("neither was traced" in note for note in report.notes)

    def test_a_killed_run_is_equal_only_as_far_as_it_went(
        self, tmp_path: Path, chance: random.Random
    ) -> None:
        plain = run()
        left = chance.randrange(30, 60)
        cut = [plain[0], plain[1][:left]]
        a = write(tmp_path / "a", plain)
        b = write(tmp_path / "b", cut, ended=False, tail=b'{"e":"op","n"')
        report = compare_traces(a, b, jobs=1)
        assert (report.exit, report.status, report.events) == (2, "incomplete", 72 + left)
        step = plain[1][left - 1]["s"]
        assert f"B was killed in step {step}; {72 - left} events of A" in report.text()

    def test_a_mismatch_in_a_killed_run_is_found(self, tmp_path: Path) -> None:
        plain, other = run(), run(Fault(1, 30))
        a = write(tmp_path / "a", plain)
        b = write(tmp_path / "b", [other[0], other[1][:40]], ended=False)
        report = compare_traces(a, b, jobs=1)
        assert report.head is not None
        assert (report.exit, report.head.rank, report.head.event.order) == (1, 1, 30)

    def test_a_shorter_run_is_said(self, tmp_path: Path) -> None:
        a, b = write(tmp_path / "a", run(steps=2)), write(tmp_path / "b", run(steps=4))
        report = compare_traces(a, b, jobs=1)
        assert report.exit == 2
        assert report.uncompared[0] == "rank 0: A ended after step 1, B after step 3"

    def test_a_much_shorter_run_is_no_other_program(self, tmp_path: Path) -> None:
        a, b = write(tmp_path / "a", run(steps=1)), write(tmp_path / "b", run(steps=9))
        report = compare_traces(a, b, jobs=1)
        assert report.exit == 2
        assert report.uncompared == tuple(
            f"rank {rank}: A ended after step 0, B after step 8" for rank in (0, 1)
        )

    def test_one_that_ends_within_its_first_step_is_not_equal(self, tmp_path: Path) -> None:
        plain = run(steps=1)
        a = write(tmp_path / "a", [events[:3] for events in plain])
        report = compare_traces(a, write(tmp_path / "b", plain), jobs=1)
        assert (report.exit, report.head) == (2, None)

    def test_a_missing_rank_is_said_and_the_others_are_compared(self, tmp_path: Path) -> None:
        a = write(tmp_path / "a", run())
        b = write(tmp_path / "b", [run()[0], None])
        report = compare_traces(a, b, jobs=1)
        assert (report.exit, report.events) == (2, 72)
        assert report.uncompared == ("B has no log of rank 1",)
        worse = write(tmp_path / "c", [run(Fault(0, 9))[0], None])
        assert compare_traces(a, worse, jobs=1).exit == 1

    def test_two_programs_are_not_two_runs_of_one(self, tmp_path: Path) -> None:
        other = [[{**event, "n": event["n"] + "!"} for event in events] for events in run()]
        for events in other:
            for number, event in enumerate(events):
                event["out"] = [["0", f"p128:{number}", "int8", [1], None, 1]]
        plain = run()
        a = write(tmp_path / "a", plain)
        b = write(tmp_path / "b", [own[:1] + b for own, b in zip(plain, other, strict=True)])
        report = compare_traces(a, b, jobs=1)
        assert report.exit == 2
        assert "these are not two runs of one program" in report.text()

    def test_a_restarted_rank_is_compared_process_by_process(self, tmp_path: Path) -> None:
        plain = run()
        folders = []
        for name, swap in (("a", False), ("b", True)):
            folder = write(tmp_path / name, [plain[0]])
            again = write(tmp_path / f"{name}-again", [plain[1]])
            log_of(again).rename(folder / "rank-0" / ("0.jsonl" if swap else "z.jsonl"))
            folders.append(folder)
        assert compare_traces(*folders, jobs=1).exit == 0


class TestWhatCannotBeCompared:
    """Case F7: cold is not pass."""

    def test_a_trace_without_events(self, tmp_path: Path) -> None:
        report = compare_traces(write(tmp_path / "a", run()), write(tmp_path / "b", []), jobs=1)
        assert (report.exit, report.events) == (2, 0)
        report = compare_traces(tmp_path / "b", tmp_path / "b", jobs=1)
        assert report.text().startswith("A and B cannot be compared: A ")

    def test_logs_without_a_single_digest(self, tmp_path: Path) -> None:
        none = [{"e": "op", "n": "aten.mm", "s": 0, "in": [], "out": [["0", None, "int8", [1]]]}]
        a, b = write(tmp_path / "a", [none]), write(tmp_path / "b", [none])
        report = compare_traces(a, b, jobs=1)
        assert report.exit == 2
        assert "no event with a digest is in both" in report.text()

    @pytest.mark.parametrize(
        ("other", "reason", "text"),
        [
            ({"world": 8}, "world", "world size 2, B with 8"),
            (
                {"algorithm": "sha256"},
                "algorithm",
                "digests of different algorithms (p128, sha256)",
            ),
            ({"window": (9, None)}, "nothing", "no event with a digest is in both"),
        ],
    )
    def test_runs_with_nothing_in_common(
        self, tmp_path: Path, other: dict[str, Any], reason: str, text: str
    ) -> None:
        report = compared(tmp_path, **other)
        assert report.exit == 2
        assert report.incomparable is not None
        assert report.incomparable.reason == reason
        assert text in report.text()

    def test_windows_without_a_step_in_common(self, tmp_path: Path) -> None:
        a = write(tmp_path / "a", run(), window=(0, 2))
        b = write(tmp_path / "b", run(), window=(5, 6))
        text = compare_traces(a, b, jobs=1).text()
        assert "no step is in both: A was traced from step 0 to step 2, B from step 5" in text

    def test_different_windows_are_compared_where_they_overlap(self, tmp_path: Path) -> None:
        late = [[e for e in events if e["s"] >= 1] for events in run()]
        a = write(tmp_path / "a", run())
        b = write(tmp_path / "b", late, window=(1, None))
        report = compare_traces(a, b, jobs=1)
        assert (report.exit, report.events) == (0, 96)
        assert any("windows differ" in note for note in report.notes)

    def test_different_levels_are_compared_in_what_both_see(self, tmp_path: Path) -> None:
        coarse = [[e for e in events if e["e"] != "op"] for events in run()]
        a = write(tmp_path / "a", run())
        b = write(tmp_path / "b", coarse, level="modules")
        report = compare_traces(a, b, jobs=1)
        assert (report.exit, report.events) == (0, sum(map(len, coarse)))
        assert any("levels differ" in note for note in report.notes)

    @pytest.mark.parametrize("valid", [False, None])
    def test_a_trace_that_is_not_valid_is_compared_with_a_warning(
        self, tmp_path: Path, valid: bool | None
    ) -> None:
        report = compared(tmp_path, valid=valid)
        assert report.exit == 0
        assert report.text().splitlines()[1].startswith("WARNING: ")


class TestTheReport:
    def test_first_line_is_the_answer_then_the_chain_then_what_to_do(self, tmp_path: Path) -> None:
        plain, other = run(), run(Fault(1, 27))
        a = write(tmp_path / "a", plain, command=["python", "my train.py"])
        report = compare_traces(a, write(tmp_path / "b", other), jobs=1)
        before, after = (runs[1][27]["out"][0][1][:17] for runs in (plain, other))
        assert report.text().splitlines() == [
            "A and B differ: first in step 1, rank 1, layers.0.attn (forward): aten.mul.Tensor #0, "
            "output 0",
            "  step 1  rank 1  layers.0.attn (forward)  aten.mul.Tensor #0",
            "    inputs    equal",
            f"    output 0  float32[4, 4]  {before} | {after}",
            "  then step 1  rank 1  layers.0.attn (forward)  aten.view.default #1",
            "  then step 1  rank 1  layers.0.mlp (forward)  aten.native_dropout.default #0",
            "reading: this is the origin: inputs equal, outputs different",
            "later: 42 mismatches on rank 1; 27 mismatches on rank 0 (first in step 1, outside "
            "modules (backward): all_reduce #0)",
            "next, once for each side: pinner trace -o DIR --level kernels --from-step 1 "
            r"--to-step 1 --modules '^layers\.0\.attn' -- python 'my train.py'",
            f"A = {tmp_path / 'a'}",
            f"B = {tmp_path / 'b'}",
        ]

    def test_json_holds_the_whole_digests(self, tmp_path: Path) -> None:
        plain, other = run(), run(Fault(1, 27))
        a, b = write(tmp_path / "a", plain), write(tmp_path / "b", other)
        found = json.loads(json.dumps(compare_traces(a, b, jobs=1).to_json()))
        assert (found["exit"], found["status"], found["first"]["reading"]) == (
            1,
            "differ",
            "origin",
        )
        assert found["first"]["event"]["order"] == 27
        wanted = [runs[1][27]["out"][0][1] for runs in (plain, other)]
        assert found["first"]["tensors"][0]["digest"] == wanted

    def test_what_was_read_outside_the_window_asks_for_an_earlier_one(self, tmp_path: Path) -> None:
        def late(*faults: Fault) -> list[list[Line]]:
            return [[e for e in events if e["s"] >= 1] for events in run(*faults)]

        at = next(n for n, event in enumerate(run()[0]) if event["n"] == "aten.add_.Tensor")
        a = write(tmp_path / "a", late(), window=(1, None))
        b = write(tmp_path / "b", late(Fault(0, at)), window=(1, None))
        text = compare_traces(a, b, jobs=1).text()
        assert "outside the capture" in text
        assert "--from-step 0 --to-step 1" in text


OPS = st.tuples(
    st.sampled_from(["aten.mm", "aten.add", "aten.view"]),
    st.sampled_from(["", "layers.0", "layers.1"]),
    st.booleans(),
)


class TestAnyProgram:
    """Whatever it does, however little is held at one time."""

    def program(self, drawn: list[tuple[str, str, bool]]) -> list[Line]:
        step, events = 0, []
        for number, (name, module, ends) in enumerate(drawn):
            row = ["0", f"p128:{number}", "float32", [4], None, number % 5]
            event = {"e": "op", "n": name, "m": module, "p": "f", "s": step}
            events.append({**event, "in": [row], "out": [["0", f"p128:o{number}", *row[2:]]]})
            step += ends and number % 3 == 0
        return events

    def reports(self, first: list[Line], second: list[Line]) -> Iterator[Report]:
        with tempfile.TemporaryDirectory() as folder:
            a = write(Path(folder) / "a", [first])
            b = write(Path(folder) / "b", [second])
            for limits in (Limits(), Limits(window=3, sequence=4)):
                yield compare_traces(a, b, jobs=1, limits=limits)

    @settings(deadline=None, max_examples=40)
    @given(st.lists(OPS, min_size=1, max_size=40))
    def test_a_program_is_equal_to_itself(self, drawn: list[tuple[str, str, bool]]) -> None:
        for report in self.reports(self.program(drawn), self.program(drawn)):
            assert (report.exit, report.events, report.uncompared) == (0, len(drawn), ())

    @settings(deadline=None, max_examples=60)
    @given(st.lists(OPS, min_size=1, max_size=40), st.data())
    def test_the_first_digest_that_differs_is_found(
        self, drawn: list[tuple[str, str, bool]], data: st.DataObject
    ) -> None:
        first, second = self.program(drawn), self.program(drawn)
        flipped = data.draw(st.sets(st.integers(0, len(drawn) - 1), min_size=1, max_size=4))
        for at in flipped:
            second[at]["out"] = [["0", "p128:X", *second[at]["out"][0][2:]]]
        for report in self.reports(first, second):
            assert report.head is not None
            assert (report.exit, report.head.event.order) == (1, min(flipped))
            assert report.ranks[0].walk.differing == len(flipped)


def op(step: int, number: int, **fields: object) -> Line:
    row = ["0", f"p128:{number}", "float32", [4], None, number]
    line = {"e": "op", "n": "aten.mm", "m": "", "p": "f", "s": step, "in": [row], "out": [row]}
    return {**line, **fields}


def test_steps_that_begin_again_are_compared_in_their_turn(tmp_path: Path) -> None:
    """A run that went back to a checkpoint."""
    first = [op(step, number) for number, step in enumerate([0, 1, 2, 1, 2, 3])]
    second = [*first[:4], op(2, 99), first[5]]
    a, b = write(tmp_path / "a", [first]), write(tmp_path / "b", [second])
    report = compare_traces(a, b, jobs=1)
    assert report.head is not None
    assert (report.head.event.order, report.events) == (4, 6)
    assert compare_traces(a, a, jobs=1).events == 6


def test_streams_have_steps_of_their_own(tmp_path: Path) -> None:
    """The program calls its steps 100, 101, …; one side has one more operation before."""
    first: list[Line] = []
    for step in range(3):
        first += [op(step, 10 * step + n) for n in range(3)]
        first.append(op(100 + step, step, e="step", n="loss"))
    second = [*first[:1], op(0, 77, n="aten.view"), *first[1:-1], op(102, 5, e="step", n="loss")]
    a, b = write(tmp_path / "a", [first]), write(tmp_path / "b", [second])
    report = compare_traces(a, b, jobs=1)
    assert report.head is not None
    assert (report.head.event.name, report.head.event.step) == ("loss", 102)
    assert (report.events, report.ranks[0].walk.only) == (12, [0, 1])


class TestLongLogs:
    def lines(self, count: int, fault: int | None, extra: int | None = None) -> list[Line]:
        """Steps of 400 operations; everything after the fault differs."""
        events = []
        for number in range(count):
            mark = "" if fault is None or number < fault else "x"
            row = ["0", f"p128:{number}{mark}", "float32", [8, 8], None, number % 97]
            where = {"m": f"layers.{number % 10}", "p": "f", "s": number // 400}
            event = {"e": "op", "n": f"aten.op{number % 7}", **where, "in": [row], "out": [row]}
            events.append(event)
            if number == extra:
                events.append({**event, "n": "aten.view"})
        return events

    def peak(self, folder: Path, count: int, fault: int | None) -> int:
        """Bytes that a walk held at the most; B has one more view, early on."""
        a = write(folder / "a", [self.lines(count, None)])
        b = write(folder / "b", [self.lines(count, fault, extra=300)])
        logs = [read_trace(path).ranks[0][0] for path in (a, b)]
        tracemalloc.start()
        found = walk(logs[0], logs[1])
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert (found.events, found.only) == (count, [0, 1])
        assert found.differing == (0 if fault is None else count - fault)
        return peak

    def test_memory_does_not_grow_with_logs_that_differ(self, tmp_path: Path) -> None:
        short, long = (self.peak(tmp_path / str(n), n, 600) for n in (1_600, 16_000))
        assert long < 1.2 * short

    def test_memory_does_not_grow_with_logs_that_are_equal(self, tmp_path: Path) -> None:
        short, long = (self.peak(tmp_path / str(n), n, None) for n in (10_000, 100_000))
        assert long < 1.2 * short

    def test_a_step_longer_than_the_window_gives_the_same_answer(
        self, tmp_path: Path, chance: random.Random
    ) -> None:
        count, at = 400, chance.randrange(400)
        a = write(tmp_path / "a", [self.lines(count, None)])
        b = write(tmp_path / "b", [self.lines(count, at, extra=chance.randrange(count))])
        logs = [read_trace(path).ranks[0][0] for path in (a, b)]
        for limits in (Limits(), Limits(window=50, sequence=16)):
            found = walk(logs[0], logs[1], None, limits)
            assert (found.differing, found.only) == (count - at, [0, 1])
            assert found.mismatches[0].first.order == at
