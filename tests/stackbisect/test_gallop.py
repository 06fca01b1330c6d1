"""A search without a good end: back in doubling steps, over every small history."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from stackbisect.probe import ProbeResult
from stackbisect.search import gallop
from stackbisect.search.probing import Batch, EndsFailure, Found, Same, Try
from stackbisect.search.verdict import Rule
from tests.stackbisect.histories import (
    EVIDENCE,
    Together,
    probe,
    ran,
    search_together,
    untestable,
)
from tests.stackbisect.test_parallel import drawn


def go(history: str, jobs: int = 1, draw: random.Random | None = None) -> Together:
    """Search a history whose last candidate is the bad end."""
    return search_together(history, jobs, draw, next_steps=gallop.next_steps)


def all_histories(size: int, kinds: str) -> list[str]:
    """All histories of `size` candidates that end bad."""
    return ["".join(older) + "b" for older in itertools.product(kinds, repeat=size - 1)]


@pytest.mark.parametrize("jobs", [1, 3])
def test_every_small_history_gives_a_true_answer(jobs: int) -> None:
    draw = drawn()
    for size in range(2, 7):
        for history in all_histories(size, "gbx~" if size < 6 else "gbx"):
            check(history, go(history, jobs, draw))


def check(history: str, found: Together) -> None:
    """Hold an answer to what the letters say."""
    step, tried = found.step, set(found.finished)
    older = [kind for kind in history[:-1] if kind in "gb"]
    if isinstance(step, EndsFailure):
        assert not older, history
        return
    if isinstance(step, Same):
        assert "g" not in {history[p] for p in tried}, history
        assert older[0] == "b", history
        return
    assert isinstance(step, Found), history
    answer = step.answer
    assert (history[answer.last_good], history[answer.first_bad]) == ("g", "b"), history
    assert answer.transitions[0].left == answer.last_good, history
    between = history[answer.last_good + 1 : answer.first_bad]
    assert set(between) <= set("x~"), history


def test_a_change_is_found_wherever_it_is_however_long_the_list() -> None:
    draw = drawn()
    for size in (1000, 3000):
        for distance in (1, 2, 3, *draw.sample(range(4, size - 1), 8)):
            found = go("g" * (size - distance) + "b" * distance)
            assert isinstance(found.step, Found)
            assert found.step.answer.first_bad == size - distance
            # Two for the bad end, the gallop, the good end again, the splits, two repeats.
            reach = math.ceil(math.log2(distance)) + 1
            assert len(found.finished) <= 2 + reach + 1 + math.ceil(math.log2(distance)) + 2


def test_what_is_left_is_an_upper_bound_and_only_falls() -> None:
    for size in (2, 3, 4, 9, 30):
        for change in range(1, size):
            history, ids = "g" * change + "b" * (size - change), [str(p) for p in range(size)]
            seen: dict[str, list[ProbeResult]] = {}
            left = [gallop.probes_left(ids, seen, EVIDENCE)]
            while isinstance(step := gallop.next_steps(ids, seen, EVIDENCE), Batch):
                (each,) = step.tries
                mine = seen.setdefault(ids[each.position], [])
                mine.append(probe(history[each.position], each.attempt))
                left.append(gallop.probes_left(ids, seen, EVIDENCE))
            assert left[-1] == 0
            assert all(a > b for a, b in itertools.pairwise(left)), (history, left)


def test_the_steps_double() -> None:
    assert go("b" * 40).finished == [39, 39, 38, 37, 35, 31, 23, 7, 0]


def test_with_several_at_a_time_the_next_steps_are_tried_together() -> None:
    seen = {"39": 2 * [probe("b", 1)]}
    step = gallop.next_steps([str(p) for p in range(40)], seen, EVIDENCE, jobs=4)
    assert isinstance(step, Batch)
    assert [each.position for each in step.tries] == [38, 37, 35, 31]


def test_one_that_cannot_be_tested_is_passed_over() -> None:
    found = go("gggggggxxb")
    assert isinstance(found.step, Found)
    assert (found.step.answer.last_good, found.step.answer.first_bad) == (6, 9)
    assert found.step.answer.ambiguous


def test_where_the_oldest_cannot_be_tested_the_nearest_to_it_is_the_last_one() -> None:
    found = go("xxgbbbbbbb")
    assert isinstance(found.step, Found)
    assert (found.step.answer.last_good, found.step.answer.first_bad) == (2, 3)


def test_an_unstable_candidate_is_no_good_end() -> None:
    found = go("gggggg3bb")
    assert isinstance(found.step, Found)
    assert found.step.answer.last_good == 5


def test_bad_back_to_the_oldest_says_so() -> None:
    found = go("xbbbb")
    assert isinstance(found.step, Same)
    assert "none has other bits" in found.step.reason


def test_nothing_testable_before_the_bad_end_is_a_good_end_that_fails() -> None:
    step = go("xx~xb").step
    assert isinstance(step, EndsFailure)
    assert step.end == "good"


@pytest.mark.parametrize("kind", "xf~")
def test_a_bad_end_that_cannot_be_tested_stops_before_any_gallop(kind: str) -> None:
    found = go(f"ggbb{kind}")
    assert isinstance(found.step, EndsFailure)
    assert found.step.end == "bad"
    assert set(found.finished) == {4}


def test_by_exit_codes_a_good_end_succeeds_and_a_bad_one_does_not() -> None:
    def results(code: int) -> list[ProbeResult]:
        return 2 * [ran("", code)]

    rule = Rule("exit-code")
    ids = list("abcd")
    seen = {"d": results(1), "c": results(1)}
    step = gallop.next_steps(ids, seen, rule)
    assert step == Batch((Try(1, 1, "back to good bits"),))
    seen["b"] = results(0)
    assert gallop.good_end(ids, seen, rule) == 1
    assert isinstance(gallop.next_steps(ids, seen, rule), Found)
    failed = gallop.next_steps(ids, {"d": results(0)}, rule)
    assert isinstance(failed, EndsFailure)
    assert "not a bad end" in failed.reason


def test_the_good_end_is_known_once_its_bits_repeat() -> None:
    ids = list("abcd")
    seen = {"d": 2 * [probe("b", 1)], "c": [probe("g", 1)]}
    assert gallop.good_end(ids, seen, EVIDENCE) is None
    step = gallop.next_steps(ids, seen, EVIDENCE)
    assert step == Batch((Try(2, 2, "a good end? do its bits repeat?"),))
    seen["c"].append(probe("g", 2))
    assert gallop.good_end(ids, seen, EVIDENCE) == 2
    assert gallop.good_end(ids, {"d": [untestable()]}, EVIDENCE) is None


def test_what_may_be_asked_next_is_the_gallop_and_then_the_splits() -> None:
    ids = [str(p) for p in range(40)]
    ahead = gallop.ahead(ids, {"39": [probe("b", 1)]}, EVIDENCE, limit=3)
    assert [each.position for each in ahead] == [38, 37, 35]
    seen = {"39": 2 * [probe("b", 1)], "38": [probe("b", 1)], "37": [probe("b", 1)]}
    seen |= {"35": [probe("b", 1)], "31": 2 * [probe("g", 1)]}
    step = gallop.next_steps(ids, seen, EVIDENCE)
    assert isinstance(step, Batch)
    assert {step.tries[0].position} == {
        each.position for each in gallop.ahead(ids, seen, EVIDENCE, limit=1)
    }


def test_probes_older_than_the_good_end_are_needless() -> None:
    seen = {"9": 2 * [probe("b", 1)], "8": [probe("b", 1)], "7": 2 * [probe("g", 1)]}
    old = Try(5, 1, "back to good bits")
    ids = [str(p) for p in range(10)]
    step = gallop.next_steps(ids, seen, EVIDENCE, jobs=2, under_way=[old])
    assert isinstance(step, Batch)
    assert step.needless == (old,)


def test_behind_a_place_that_may_be_the_good_end_nothing_older_is_tried() -> None:
    ids = [str(p) for p in range(40)]
    seen = {"39": 2 * [probe("b", 1)], "38": [probe("b", 1)], "37": [probe("g", 1)]}
    step = gallop.next_steps(ids, seen, EVIDENCE, jobs=4)
    assert step == Batch((Try(37, 2, "a good end? do its bits repeat?"),))


def test_a_good_end_is_not_taken_while_a_nearer_place_is_under_way() -> None:
    ids = [str(p) for p in range(40)]
    seen = {"39": 2 * [probe("b", 1)], "38": [probe("b", 1)], "35": 2 * [probe("g", 1)]}
    nearer = Try(37, 1, "back to good bits")
    assert gallop.good_end(ids, seen, EVIDENCE) is None
    step = gallop.next_steps(ids, seen, EVIDENCE, jobs=4, under_way=[nearer])
    assert step == Batch(())
