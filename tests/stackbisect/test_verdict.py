"""What probes say: evidence in five classes, and git's rule for exit codes on request."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from stackbisect.probe import Evidence, ProbeResult
from stackbisect.search.probing import Found, Same
from stackbisect.search.verdict import (
    NO_EVIDENCE,
    Ends,
    EndsFailure,
    Rule,
    aborts,
    compare_ends,
    end_fault,
    is_pytest,
    judge,
)
from tests.stackbisect.histories import EVIDENCE, ran, search, untestable

CODES = Rule("exit-code")


def left(streams: Mapping[str, Mapping[str, tuple[str, ...]]], code: int = 0) -> ProbeResult:
    """A probe that left these streams."""
    return ProbeResult("ran", code, "", Evidence(streams), {}, {}, 0.0, 1.0, "")


def ended(code: int) -> ProbeResult:
    """A probe of which only the exit code counts."""
    return left({}, code)


def ends(good: ProbeResult, bad: ProbeResult) -> Ends:
    """The references of two sound ends."""
    found = compare_ends([good, good], [bad, bad], EVIDENCE)
    assert isinstance(found, Ends)
    return found


@pytest.mark.parametrize(
    ("seen", "kind"),
    [
        ([ran("g")], "good"),
        ([ran("b")], "bad"),
        ([ran("t"), ran("t")], "third"),
        ([ran("t"), ran("u")], "unstable"),
        ([ran("t"), ran("g")], "unstable"),
        ([ran("g", code=1)], "untestable"),
        ([ran("b", code=137)], "untestable"),
        ([ran("g", steps=2)], "untestable"),
        ([ran("g", steps=3)], "untestable"),
        ([ran("g", steps=0)], "untestable"),
        ([untestable("no space left")], "untestable"),
        ([ran("t"), untestable("gone")], "untestable"),
    ],
)
def test_a_candidate_is_put_into_one_of_five_classes(seen: list[ProbeResult], kind: str) -> None:
    verdict = judge(seen, ends(ran("g"), ran("b")), EVIDENCE)
    assert verdict is not None
    assert verdict.kind == kind


def test_bits_seen_once_that_are_neither_good_nor_bad_are_no_verdict_yet() -> None:
    assert judge([ran("t")], ends(ran("g"), ran("b")), EVIDENCE) is None


def test_an_import_error_is_untestable_and_says_so() -> None:
    verdict = judge([ended(1)], ends(ran("g"), ran("b")), EVIDENCE)
    assert verdict is not None
    assert verdict.kind == "untestable"
    assert "exit code 1" in verdict.reason


def test_missing_steps_are_named_with_stream_and_rank() -> None:
    verdict = judge([ran("g", steps=2)], ends(ran("g"), ran("b")), EVIDENCE)
    assert verdict is not None
    assert "stream loss, rank 0: 2 of 4 steps" in verdict.reason


def test_a_rank_that_left_nothing_makes_the_evidence_incomplete() -> None:
    both = {"loss": {"0": ("a", "b"), "1": ("a", "b")}}
    other = {"loss": {"0": ("a", "c"), "1": ("a", "c")}}
    verdict = judge([left({"loss": {"0": ("a", "b")}})], ends(left(both), left(other)), EVIDENCE)
    assert verdict is not None
    assert (verdict.kind, "rank 1" in verdict.reason) == ("untestable", True)


def test_more_steps_and_streams_than_the_ends_have_do_not_count() -> None:
    more = left({**ran("g", steps=9).evidence.streams, "new": {"0": ("x",)}})
    verdict = judge([more], ends(ran("g"), ran("b")), EVIDENCE)
    assert verdict is not None
    assert verdict.kind == "good"


@pytest.mark.parametrize("steps", [1, 2])
def test_an_end_that_lacks_half_of_what_the_other_has_cannot_be_tested(steps: int) -> None:
    short, whole = ran("g", steps=steps), ran("b")
    found = compare_ends([short] * 2, [whole] * 2, EVIDENCE)
    assert isinstance(found, EndsFailure)
    assert found.end == "good"
    assert f"{steps} of 4 steps" in found.reason
    found = compare_ends([whole] * 2, [short] * 2, EVIDENCE)
    assert isinstance(found, EndsFailure)
    assert found.end == "bad"


def test_a_loop_that_ends_a_step_earlier_is_compared_on_what_both_have_with_a_note() -> None:
    found = ends(ran("g"), ran("b", steps=3))
    assert any("the bad end has less" in note for note in found.notes)
    assert found.good != found.bad


def test_ends_without_a_common_stream_cannot_be_compared() -> None:
    good, bad = left({"a": {"0": ("1",)}}), left({"b": {"0": ("1",)}})
    found = compare_ends([good] * 2, [bad] * 2, EVIDENCE)
    assert isinstance(found, EndsFailure)
    assert found.end == "both"


def test_a_stream_that_never_changes_is_called_out() -> None:
    good = left({"loss": {"0": ("a", "a", "a")}, "norm": {"0": ("1", "2", "3")}})
    bad = left({"loss": {"0": ("a", "a", "a")}, "norm": {"0": ("1", "2", "4")}})
    assert [note for note in ends(good, bad).notes if "never changes" in note] == [
        "stream loss never changes over its steps: it shows little"
    ]


def test_an_end_without_evidence_is_told_from_one_that_failed() -> None:
    fault = end_fault("good", [ended(0)], EVIDENCE)
    assert fault == EndsFailure("good", NO_EVIDENCE, no_evidence=True)
    failed = end_fault("good", [ended(1)], EVIDENCE)
    assert failed is not None
    assert not failed.no_evidence


def test_an_end_whose_two_runs_differ_names_the_first_difference() -> None:
    good = left({"loss": {"0": ("a", "b", "c")}})
    again = left({"loss": {"0": ("a", "b", "d")}})
    fault = end_fault("bad", [good, again], EVIDENCE)
    assert fault is not None
    assert "stream loss, rank 0, third step" in fault.reason


# -- git's rule ------------------------------------------------------------------------------------

PYTEST = Rule.of("exit-code", ("python", "-m", "pytest", "tests"))


@pytest.mark.parametrize(
    ("code", "rule", "kind"),
    [
        (0, CODES, "good"),
        (1, CODES, "bad"),
        (4, CODES, "bad"),
        (5, CODES, "bad"),
        (124, CODES, "bad"),
        (125, CODES, "untestable"),
        (126, CODES, "bad"),
        (127, CODES, "bad"),
        (1, PYTEST, "bad"),
        (4, PYTEST, "untestable"),
        (5, PYTEST, "untestable"),
    ],
)
def test_exit_codes_are_read_as_git_bisect_run_does(code: int, rule: Rule, kind: str) -> None:
    found = compare_ends([ended(0)] * 2, [ended(1)] * 2, rule)
    assert isinstance(found, Ends)
    verdict = judge([ended(code)], found, rule)
    assert verdict is not None
    assert verdict.kind == kind


@pytest.mark.parametrize(("code", "stops"), [(0, False), (127, False), (128, True), (137, True)])
def test_128_and_above_stop_the_bisection_under_gits_rule_only(code: int, stops: bool) -> None:
    assert aborts(CODES, ended(code)) is stops
    assert not aborts(EVIDENCE, ended(code))


@pytest.mark.parametrize("code", [126, 127])
def test_a_command_that_cannot_be_run_is_found_out_at_the_good_end(code: int) -> None:
    fault = end_fault("good", [ended(code)], CODES)
    assert fault is not None
    assert "cannot be run" in fault.reason
    found = compare_ends([ended(0)] * 2, [ended(code)] * 2, CODES)
    assert isinstance(found, Ends)
    assert any("not found" in note for note in found.notes)


def test_a_good_end_that_fails_is_not_searched_from() -> None:
    found = search("gb", rule=CODES, answer=lambda kind, _: ended(1))
    assert isinstance(found.step, EndsFailure)
    assert found.tried == [0]


def test_a_bad_end_that_succeeds_is_not_reproduced() -> None:
    found = search("gb", rule=CODES, answer=lambda kind, _: ended(0))
    assert isinstance(found.step, Same)


def test_a_search_by_exit_code_finds_the_pair() -> None:
    codes = {"g": 0, "b": 1, "x": 125}
    found = search("ggxgbxbb", rule=CODES, answer=lambda kind, _: ended(codes[kind]))
    assert isinstance(found.step, Found)
    assert (found.step.answer.last_good, found.step.answer.first_bad) == (3, 4)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (("pytest", "-q"), True),
        (("python", "-m", "pytest"), True),
        (("/opt/bin/py.test",), True),
        (("python", "train.py"), False),
    ],
)
def test_pytest_is_recognised_in_a_command(command: tuple[str, ...], expected: bool) -> None:
    assert is_pytest(command) is expected
