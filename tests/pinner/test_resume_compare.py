"""A restored run is laid beside a whole one by its steps; what is lacking is judged by its kind."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any, ClassVar

import pytest

from pinner.compare.resume import Findings, Told, compare, told
from pinner.launch.verify_resume import judged

Line = dict[str, Any]
SAVED = 3  # optimizer steps that were made when it was saved
STEPS = 8


def evidence(stream: str, step: int, digest: object) -> Line:
    return {"t": "evidence", "stream": stream, "step": step, "digest": str(digest)}


def moment(at: str, steps: int = 0, **fields: Any) -> Line:
    return {"t": "resume", "at": at, "steps": steps, **fields}


def group(kind: str, **leaves: str) -> dict[str, Any]:
    return {"kind": kind, "leaves": leaves}


def run(
    steps: Iterable[int],
    *,
    start: int = 0,
    logs: str = "after",
    numbered: bool = False,
    saved: dict[str, Any] | None = None,
    begins: dict[str, Any] | None = None,
    end: dict[str, Any] | None = None,
    flip: int = -1,
    written: int = 0,
) -> list[Line]:
    """The lines of a process that makes these steps of one program.

    start: the first of its steps. logs: where in the loop its loss is fingerprinted: "before" or
    "after" the optimizer step, or after it "saved". written: how often it did so before.
    """
    lines: list[Line] = []

    def log(step: int) -> Line:
        nonlocal written
        written += 1
        digest = f"loss {step}" + ("!" if step == flip else "")
        return evidence("loss", step if numbered else written - 1, digest)

    for step in steps:
        made = step - start
        if begins is not None and step == SAVED:
            lines.append(moment("begins", made, after="saved", number=1, state=begins))
        if logs == "before":
            lines.append(log(step))
        lines.append(moment("step", made + 1, batches={"L 0": f"batch {step}"}))
        if logs == "after":
            lines.append(log(step))
        if step + 1 == SAVED and not start:
            lines.append(moment("saved", made + 1, number=1, how="call", state=saved or {}))
        if logs == "saved":
            lines.append(log(step))
    if end is not None:
        lines.append(moment("end", state=end))
    return lines


def restored(
    *, state: dict[str, Any] | None = None, how: str = "call", **options: Any
) -> list[Line]:
    """The lines of the process that goes on from the checkpoint."""
    steps = options.pop("steps", range(SAVED, STEPS))
    return [moment("restored", how=how, state=state or {}), *run(steps, start=SAVED, **options)]


def read(lines: list[Line]) -> dict[int, Told]:
    found = told(lines, 1)
    assert found is not None
    return {0: found}


def compared(whole: list[Line], after: list[Line], killed: list[Line] | None = None) -> Findings:
    known = whole if killed is None else killed
    return compare(read(whole), read(known), read(after))


WAYS = [
    {"logs": "before"},
    {"logs": "after"},
    {"logs": "saved"},
    {"logs": "after", "numbered": True},
    {"logs": "saved", "numbered": True},
]


class TestStreams:
    @pytest.mark.parametrize("ways", WAYS)
    def test_are_compared_at_the_same_steps(self, ways: dict[str, Any]) -> None:
        findings = compared(run(range(STEPS), **ways), restored(**ways))
        assert findings.differences == ()
        assert findings.compared == {("loss", 0): STEPS - SAVED}

    @pytest.mark.parametrize("ways", WAYS)
    def test_tell_the_first_step_that_differs(self, ways: dict[str, Any]) -> None:
        seed = random.randrange(1 << 30)
        print("seed", seed)
        flip = random.Random(seed).randrange(SAVED, STEPS)
        findings = compared(run(range(STEPS), **ways), restored(flip=flip, **ways))
        (difference,) = findings.differences
        assert (difference.stream, difference.step) == ("loss", flip)

    @pytest.mark.parametrize("ways", WAYS)
    def test_that_end_early_differ_where_they_end(self, ways: dict[str, Any]) -> None:
        findings = compared(run(range(STEPS), **ways), restored(steps=range(SAVED, 6), **ways))
        (difference,) = findings.differences
        assert (difference.step, difference.second) == (6, None)

    def test_that_go_on_longer_differ(self) -> None:
        findings = compared(run(range(STEPS)), restored(steps=range(SAVED, STEPS + 1)))
        (difference,) = findings.differences
        assert difference.first is None

    def test_with_rows_tell_which_row_differs(self) -> None:
        def steps(start: int, digests: str) -> list[Line]:
            rows = {"count": 2, "each": 1, "digests": digests}
            lines = run(range(start, STEPS), start=start, saved={}, flip=4 if start else -1)
            return [
                {**line, "what": {"rows": rows}} if line["t"] == "evidence" else line
                for line in lines
            ]

        after = [moment("restored", how="call", state={}), *steps(SAVED, "0" * 8 + "2" * 8)]
        (difference,) = compared(steps(0, "0" * 8 + "1" * 8), after).differences
        assert (difference.step, difference.detail) == (4, "first differing row 1 of 2; 1 differs")

    def test_of_a_rank_that_is_gone_differ(self) -> None:
        whole = read(run(range(STEPS)))[0]
        after = read(restored())[0]
        findings = compare({0: whole, 1: whole}, {0: whole, 1: whole}, {0: after})
        (difference,) = findings.differences
        assert (difference.rank, difference.second) == (1, None)

    def test_before_a_restore_are_not_compared(self) -> None:
        warm_up = run(range(2), flip=0)
        findings = compared(run(range(STEPS)), [*warm_up, *restored(written=2)])
        assert findings.differences == ()

    def test_of_a_rank_that_saved_nothing_start_where_the_others_saved(self) -> None:
        whole = read(run(range(STEPS)))[0]
        silent = [line for line in run(range(STEPS)) if line.get("at") != "saved"]
        other = read(silent)[0]
        after = read(restored())[0]
        findings = compare({0: whole, 1: other}, {0: whole, 1: other}, {0: after, 1: after})
        assert findings.differences == ()
        assert findings.compared[("loss", 1)] == STEPS - SAVED
        assert any("rank 1 saved nothing of its own" in note for note in findings.notes)

    def test_that_part_before_the_kill_are_told_apart(self) -> None:
        killed = run(range(SAVED), flip=1)
        findings = compared(run(range(STEPS)), restored(), killed)
        assert findings.parted[0].step == 1
        outcome = judged(findings, (), 1, {})
        assert (outcome.exit, outcome.status) == (1, "not-repeatable")


def lacks(
    whole: dict[str, Any], after: dict[str, Any], flip: int = -1, **options: Any
) -> list[tuple[str, bool]]:
    findings = compared(run(range(STEPS), **whole), restored(flip=flip, **after), **options)
    return [(lack.name, lack.matters) for lack in findings.lacks]


class TestState:
    OLD: ClassVar = {"W": group("state", a="1", b="2")}
    NEW: ClassVar = {"W": group("state", a="1", b="3")}

    def test_that_is_what_was_saved_is_restored(self) -> None:
        assert lacks({"saved": self.OLD}, {"state": self.OLD}) == []

    def test_that_is_what_the_whole_run_has_at_the_next_step_is_restored(self) -> None:
        whole = {"saved": self.OLD, "begins": self.NEW}
        assert lacks(whole, {"state": self.NEW, "begins": self.NEW}) == []

    def test_that_is_neither_lacks(self) -> None:
        whole = {"saved": self.OLD, "begins": self.OLD}
        assert lacks(whole, {"state": self.NEW, "begins": self.NEW}) == [("W", True)]

    def test_that_is_not_there_lacks(self) -> None:
        findings = compared(
            run(range(STEPS), saved=self.OLD), restored(state={"other": group("state", a="1")})
        )
        (lack,) = findings.lacks
        assert lack.text == "not restored: W: not there after the restore"
        assert lack.leaves == ("a", "b")

    def test_that_the_forward_pass_changes_follows_from_another_lack(self) -> None:
        rng, drawn = {"R": group("random", r="1")}, {"R": group("random", r="2")}
        mean, moved, other = (
            {"M": group("state", mean=value)} for value in ("saved", "whole", "restored")
        )
        whole = {"saved": {**rng, **mean}, "begins": {**drawn, **moved}}
        lost = {"begins": {**rng, **other}, "how": "torch.load"}
        assert lacks(whole, lost) == [("R", True)]
        alone = {"begins": {**drawn, **other}, "how": "torch.load"}
        assert lacks(whole, alone) == [("M", True)]

    @pytest.mark.parametrize("kind", ["derived", "compile"])
    def test_that_no_checkpoint_can_hold_matters_only_where_streams_part(self, kind: str) -> None:
        old, new = {"D": group(kind, f="[?, 8]")}, {"D": group(kind, f="[4, 8]")}
        whole = {"saved": old, "begins": old}
        assert lacks(whole, {"begins": new}) == [("D", False)]
        assert lacks(whole, {"begins": new}, flip=5) == [("D", True)]

    def test_a_dynamic_kernel_is_told_from_a_static_one(self) -> None:
        old = group("compile", f="[?, 8]", graphs="2")
        new = group("compile", f="[4, 8]", graphs="1")
        findings = compared(
            run(range(STEPS), begins={"compile state": old}),
            restored(begins={"compile state": new}),
        )
        assert "f has sizes [?, 8] in the whole run and [4, 8]" in findings.lacks[0].text
        assert findings.lacks[0].text.endswith("(graphs compiled by then: 2 and 1)")

    def test_static_sizes_that_differ_are_no_lack(self) -> None:
        old, new = {"C": group("compile", f="[2, 8]")}, {"C": group("compile", f="[4, 8]")}
        assert lacks({"begins": old}, {"begins": new}) == []


class TestRandomStreams:
    ONE, TWO, OTHER = ({"R": group("random", r=value)} for value in ("1", "2", "3"))

    def test_that_the_run_draws_from_must_be_restored(self) -> None:
        whole = {"saved": self.ONE, "begins": self.TWO}
        assert lacks(whole, {"begins": self.OTHER}) == [("R", True)]

    def test_that_are_drawn_from_later_must_be_too(self) -> None:
        whole = {"saved": self.ONE, "begins": self.ONE, "end": self.TWO}
        assert lacks(whole, {"begins": self.OTHER}) == [("R", True)]

    def test_that_are_restored_and_then_drawn_from_are_told_apart(self) -> None:
        whole = run(range(STEPS), saved=self.ONE, begins=self.TWO)
        findings = compared(whole, restored(state=self.ONE, begins=self.OTHER))
        assert findings.lacks[0].text.startswith("restored, but then drawn from before the first")
        findings = compared(whole, restored(state=self.OTHER, begins=self.OTHER))
        assert findings.lacks[0].text.startswith("not restored: R")

    def test_may_be_restored_after_the_call(self) -> None:
        whole = {"saved": self.ONE, "begins": self.TWO}
        assert lacks(whole, {"state": self.OTHER, "begins": self.TWO}) == []

    def test_that_nobody_draws_from_need_not(self) -> None:
        whole = {"saved": self.ONE, "begins": self.ONE, "end": self.ONE}
        assert lacks(whole, {"begins": self.OTHER}) == []

    def test_that_nobody_seeded_are_said_to_be_so(self) -> None:
        whole = run(range(STEPS), saved=self.ONE, begins=self.TWO)
        killed = run(range(SAVED), saved=self.OTHER)
        findings = compared(whole, restored(begins=self.OTHER), killed)
        assert "not seeded: R: it differed between the two runs" in findings.lacks[0].text


class TestLoaders:
    def position(self, batch: int) -> dict[str, Any]:
        return {"position of L 0": {"kind": "batch", "leaves": {"last batch": f"batch {batch}"}}}

    def test_that_give_the_batch_of_the_whole_run_are_restored(self) -> None:
        whole = {"begins": self.position(SAVED)}
        assert lacks(whole, {"begins": self.position(SAVED)}) == []

    def test_that_begin_again_give_the_first_batch(self) -> None:
        findings = compared(
            run(range(STEPS), begins=self.position(SAVED)), restored(begins=self.position(0))
        )
        (lack,) = findings.lacks
        assert lack.text.endswith(
            "takes another batch than step 4: the one of step 1, so the data begin again"
        )

    def test_that_are_ahead_tell_by_the_batch(self) -> None:
        findings = compared(
            run(range(STEPS), begins=self.position(SAVED)), restored(begins=self.position(5))
        )
        assert findings.lacks[0].text.endswith("the one of step 6")

    def test_of_unknown_batches_tell_no_place(self) -> None:
        findings = compared(
            run(range(STEPS), begins=self.position(SAVED)), restored(begins=self.position(99))
        )
        assert findings.lacks[0].text.endswith("another batch than step 4")


class TestTheVerdict:
    STATE: ClassVar = {"W": group("state", a="1")}

    def test_lacks_are_a_fault_where_the_streams_still_agree(self) -> None:
        findings = compared(
            run(range(STEPS), saved=self.STATE), restored(state={"W": group("state", a="2")})
        )
        outcome = judged(findings, (), 1, {})
        assert (outcome.exit, outcome.status) == (1, "lacks")
        assert "the streams agree over 5 steps" in outcome.lines[-1]

    def test_streams_that_show_nothing_do_not_count(self) -> None:
        findings = compared(run(range(STEPS)), restored())
        outcome = judged(findings, ("loss",), 1, {})
        assert (outcome.exit, outcome.status) == (2, "no-evidence")

    def test_names_the_lacks_with_the_step(self) -> None:
        findings = compared(
            run(range(STEPS), saved=self.STATE),
            restored(state={"W": group("state", a="2")}, flip=4),
        )
        outcome = judged(findings, (), 2, {})
        assert outcome.lines[-1].startswith(
            "resuming from checkpoint 2 changes bits: stream 'loss', rank 0, step 4"
        )
        assert outcome.lines[-1].endswith("not restored: W")

    def test_a_divergence_with_all_state_restored_says_so(self) -> None:
        findings = compared(run(range(STEPS), saved=self.STATE), restored(state=self.STATE, flip=4))
        assert judged(findings, (), 1, {}).lines[-1].endswith("all state that was seen is restored")
