"""The transition search over invented histories: all small ones, and drawn ones beyond."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stackbisect.probe import ProbeResult
from stackbisect.search.probing import (
    Found,
    Policy,
    Same,
    Try,
    next_step,
    probe_bound,
    verdicts,
)
from stackbisect.search.transition import Answer, Transition
from stackbisect.search.verdict import EndsFailure
from tests.stackbisect.histories import EVIDENCE, probe, ran, search, untestable

NOT_TESTABLE = "x~fh"


def inner(size: int, kinds: str) -> list[str]:
    """All histories of `size` candidates whose ends are good and bad."""
    return ["g" + "".join(middle) + "b" for middle in itertools.product(kinds, repeat=size - 2)]


def check(history: str) -> Found:
    """Search a history and hold the answer to what enumeration of its letters says."""
    searched = search(history)
    assert isinstance(searched.step, Found), history
    answer = searched.step.answer
    assert history[answer.last_good] == "g", history
    assert history[answer.first_bad] == "b", history
    tried = set(searched.tried)
    for transition in answer.transitions:
        assert history[transition.left] != history[transition.right], history
        assert {transition.left, transition.right} <= tried, history
        assert all(history[p] in NOT_TESTABLE for p in transition.between if p in tried), history
        if transition.narrowed:
            assert set(transition.between) <= tried, history
    assert answer.transitions[0].left == answer.last_good
    assert answer.transitions[0].narrowed, history
    arrival = next(t for t in answer.transitions if history[t.right] == "b")
    assert arrival.right == answer.first_bad, history
    assert arrival.narrowed, history
    assert answer.ambiguous == bool(answer.transitions[0].between or arrival.between), history
    seen = [history[p] for p in sorted(tried) if history[p] not in NOT_TESTABLE]
    changes = [(a, b) for a, b in itertools.pairwise(seen) if a != b]
    assert [(history[t.left], history[t.right]) for t in answer.transitions] == changes, history
    runs = [kind for kind, _ in itertools.groupby(seen)]
    assert answer.monotonic == (len(runs) == len(set(runs))), history
    return searched.step


def test_a_monotonic_history_gives_its_one_pair_within_the_bound() -> None:
    for size in range(2, 28):
        for change in range(1, size):
            history = "g" * change + "b" * (size - change)
            searched = search(history)
            assert isinstance(searched.step, Found)
            expected = Transition(change - 1, change, (), True)
            assert searched.step.answer.transitions == (expected,)
            assert (searched.step.answer.last_good, searched.step.answer.first_bad) == (
                change - 1,
                change,
            )
            assert searched.step.answer.monotonic
            assert not searched.step.answer.ambiguous
            assert len(searched.tried) <= probe_bound(size), (history, searched.tried)


@pytest.mark.parametrize("size", range(2, 8))
def test_every_small_history_gives_a_true_answer(size: int) -> None:
    for history in inner(size, "gbtux~" if size < 7 else "gbtx~"):
        check(history)


@pytest.mark.parametrize("size", range(2, 8))
def test_with_two_classes_of_bits_every_small_history_stays_within_the_bound(size: int) -> None:
    for history in inner(size, "gbx"):
        tried = search(history).tried
        touched = sum(history[p] == "x" for p in tried)
        assert len(tried) <= probe_bound(size - touched, touched), (history, tried)


@pytest.mark.parametrize("size", range(2, 8))
def test_a_history_that_changes_once_has_its_whole_gap_as_the_answer(size: int) -> None:
    for history in inner(size, "gbx"):
        letters = history.replace("x", "")
        if "bg" in letters:
            continue
        answer = check(history).answer
        last_good, first_bad = history.rindex("g"), history.index("b")
        assert (answer.last_good, answer.first_bad) == (last_good, first_bad), history
        assert answer.transitions[0].between == tuple(range(last_good + 1, first_bad)), history


@pytest.mark.parametrize("size", range(2, 6))
def test_a_search_that_is_cut_after_any_probe_goes_on_where_it_was(size: int) -> None:
    for history in inner(size, "gbtx~" if size < 5 else "gbt1"):
        whole = search(history)
        for cut in range(len(whole.tried) + 1):
            seen: dict[str, list[ProbeResult]] = {}
            for position in whole.tried[:cut]:
                mine = seen.setdefault(str(position), [])
                mine.append(probe(history[position], len(mine) + 1))
            rest = search(history, seen=seen)
            assert rest.tried == whole.tried[cut:], history
            assert rest.step == whole.step, history


@settings(max_examples=300, deadline=None)
@given(st.text("gbtuvx~fh", max_size=60))
def test_drawn_histories_give_true_answers(middle: str) -> None:
    check("g" + middle + "b")


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 3000), st.data())
def test_long_histories_with_holes_stay_within_the_bound(size: int, data: st.DataObject) -> None:
    change = data.draw(st.integers(1, size - 1))
    holes = data.draw(st.sets(st.integers(1, max(size - 2, 1)), max_size=30)) - {0, size - 1}
    history = ["g" if p < change else "b" for p in range(size)]
    for hole in holes:
        history[hole] = "x"
    searched = search(history)
    touched = len(holes & set(searched.tried))
    assert len(searched.tried) <= probe_bound(size - touched, touched)
    assert isinstance(searched.step, Found)
    last_good = max(p for p in range(size) if history[p] == "g")
    assert searched.step.answer.last_good == last_good
    assert searched.step.answer.first_bad == history.index("b")


def test_culprits_drawn_at_random_are_found() -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for _ in range(300):
        size = draw.randrange(2, 400)
        change = draw.randrange(1, size)
        history = ["g"] * change + ["b"] * (size - change)
        for hole in draw.sample(range(size), k=draw.randrange(0, min(size, 12))):
            if hole not in (0, size - 1):
                history[hole] = draw.choice("x~fh")
        answer = check("".join(history)).answer
        known = [p for p in range(size) if history[p] in "gb"]
        pair = next((a, b) for a, b in itertools.pairwise(known) if history[b] == "b")
        assert (answer.last_good, answer.first_bad) == pair


def test_ends_with_equal_bits_are_tried_twice_each_and_no_search_follows() -> None:
    searched = search("gtbtg")
    assert isinstance(searched.step, Same)
    assert searched.tried == [0, 0, 4, 4]


def test_three_generations_of_bits_give_both_transitions() -> None:
    searched = search("gggttttbbb")
    assert isinstance(searched.step, Found)
    answer = searched.step.answer
    assert [(t.left, t.right) for t in answer.transitions] == [(2, 3), (6, 7)]
    assert (answer.last_good, answer.first_bad) == (2, 7)
    assert answer.monotonic
    assert not answer.ambiguous


def test_five_untestable_in_a_row_around_the_change_are_the_whole_range() -> None:
    searched = search("gggxxxxxbbb")
    assert isinstance(searched.step, Found)
    answer = searched.step.answer
    assert answer.ambiguous
    assert (answer.last_good, answer.first_bad) == (2, 8)
    assert answer.transitions == (Transition(2, 8, (3, 4, 5, 6, 7), True),)
    assert len(searched.tried) <= probe_bound(6, 5)


def test_after_an_untestable_one_its_nearest_neighbours_are_tried() -> None:
    tried = search("ggggggxxxbbbbbb").tried[4:]
    assert tried[:3] == [7, 6, 8]


def test_an_unstable_candidate_is_searched_around_and_never_one_side_of_the_answer() -> None:
    searched = search("gg~bb")
    assert isinstance(searched.step, Found)
    answer = searched.step.answer
    assert answer.ambiguous
    assert (answer.last_good, answer.first_bad) == (1, 3)


def test_bits_that_come_back_are_called_not_monotonic() -> None:
    seen = {str(p): [probe(k, 1), probe(k, 2)] for p, k in enumerate("gbgb")}
    searched = search("gbgb", seen=seen)
    assert isinstance(searched.step, Found)
    assert not searched.step.answer.monotonic
    assert [(t.left, t.right) for t in searched.step.answer.transitions] == [(0, 1), (1, 2), (2, 3)]
    assert (searched.step.answer.last_good, searched.step.answer.first_bad) == (0, 1)


def test_transitions_between_third_values_are_listed_but_cost_nothing() -> None:
    history = "g" + "".join(chr(0x4E00 + p) for p in range(62)) + "b"
    searched = search(history)
    assert isinstance(searched.step, Found)
    assert len(searched.tried) <= 4 + 2 * 2 * math.ceil(math.log2(64))
    assert searched.step.answer.transitions[0].narrowed
    assert any(not t.narrowed for t in searched.step.answer.transitions)


@pytest.mark.parametrize("end", [0, 4])
@pytest.mark.parametrize("kind", ["x", "f", "~", "h"])
def test_an_end_that_cannot_be_tested_stops_before_any_search(end: int, kind: str) -> None:
    history = list("ggbbb")
    history[end] = kind
    searched = search(history)
    assert isinstance(searched.step, EndsFailure)
    assert searched.step.end == ("good" if end == 0 else "bad")
    assert set(searched.tried) <= {0, 4}


@pytest.mark.parametrize("size", range(2, 8))
def test_no_neighbour_of_the_answer_is_unstable_although_its_first_try_was_not(size: int) -> None:
    for history in inner(size, "gb12" if size < 7 else "g12"):
        searched = search(history)
        assert isinstance(searched.step, Found), history
        answer = searched.step.answer
        assert (history[answer.last_good], history[answer.first_bad]) == ("g", "b"), history
        between = range(answer.last_good + 1, answer.first_bad)
        if answer.ambiguous:
            assert set(answer.unstable) == set(between), history


def test_third_values_that_turn_out_unstable_or_untestable_are_no_neighbours_either() -> None:
    for history in inner(5, "gbt1234"):
        answer = check_stable(history)
        assert history[answer.last_good] == "g", history
        assert history[answer.first_bad] == "b", history


def check_stable(history: str) -> Answer:
    """The answer, in which both sides of every transition that was looked for have stable bits."""
    searched = search(history)
    assert isinstance(searched.step, Found), history
    answer = searched.step.answer
    into_bad = next(t for t in answer.transitions if t.right == answer.first_bad)
    for each in (answer.transitions[0], into_bad):
        assert {history[each.left], history[each.right]} <= set("gbt"), history
    return answer


def test_without_repeats_an_unstable_neighbour_would_be_blamed() -> None:
    """The fault that the repeats are for, planted: nothing else keeps this from happening."""
    searched = search("gg1bb", policy=Policy(neighbours=1))
    assert isinstance(searched.step, Found)
    assert searched.step.answer.last_good == 2
    repeated = search("gg1bb").step
    assert isinstance(repeated, Found)
    assert (repeated.answer.last_good, repeated.answer.first_bad) == (1, 3)
    assert repeated.answer.unstable == (2,)


def test_candidates_in_the_middle_are_tried_as_often_as_the_policy_says() -> None:
    searched = search("g1gg2bbb", policy=Policy(between=3, neighbours=3))
    tried = Counter(searched.tried)
    assert {tried[p] for p in tried if p not in (0, 7)} <= {2, 3}
    assert isinstance(searched.step, Found)
    assert (searched.step.answer.last_good, searched.step.answer.first_bad) == (3, 5)


@pytest.mark.parametrize("size", range(2, 8))
def test_with_a_window_of_one_every_transition_of_every_small_history_is_found(size: int) -> None:
    for history in inner(size, "gbtx" if size < 7 else "gbx"):
        searched = search(history, policy=Policy(window=1))
        assert isinstance(searched.step, Found), history
        letters = [(p, kind) for p, kind in enumerate(history) if kind != "x"]
        changes = [(a, b) for (a, x), (b, y) in itertools.pairwise(letters) if x != y]
        assert [(t.left, t.right) for t in searched.step.answer.transitions] == changes, history
        assert all(t.narrowed for t in searched.step.answer.transitions), history


@pytest.mark.parametrize("window", [2, 3, 4])
def test_every_run_as_long_as_the_window_is_found(window: int) -> None:
    for history in inner(9, "gb"):
        searched = search(history, policy=Policy(window=window))
        assert isinstance(searched.step, Found), history
        tried = set(searched.tried)
        place = 0
        for _, run in itertools.groupby(history):
            length = len(list(run))
            found = tried & set(range(place, place + length))
            assert found or length < window, (history, place)
            place += length
        assert all(t.narrowed for t in searched.step.answer.transitions), history


def test_a_window_sees_what_a_plain_search_does_not() -> None:
    history = "g" * 8 + "b" * 4 + "g" * 20 + "b" * 32
    plain, wide = search(history).step, search(history, policy=Policy(window=4)).step
    assert isinstance(plain, Found)
    assert isinstance(wide, Found)
    assert plain.answer.monotonic
    assert not wide.answer.monotonic
    assert [t.right for t in wide.answer.transitions] == [8, 12, 32]


def test_a_policy_that_cannot_be_meant_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Policy(between=0)


def test_one_candidate_under_two_names_far_apart_is_never_tried_twice_for_it() -> None:
    searched = search("ggbgbbb", ids=["a", "b", "c", "a", "d", "e", "f"])
    assert isinstance(searched.step, Found)
    assert 3 not in searched.tried
    assert searched.step.answer.last_good == 3


def test_both_ends_one_candidate_needs_no_probe() -> None:
    assert isinstance(next_step(["a", "b", "a"], {}, EVIDENCE), Same)


def test_what_is_known_before_the_ends_are_settled_is_shown() -> None:
    known = verdicts(["a", "b", "c"], {"a": [ran("g")], "b": [untestable("gone")]}, EVIDENCE)
    assert [verdict and verdict.kind for verdict in known] == [None, "untestable", None]


def test_the_good_end_comes_first() -> None:
    assert next_step(["a", "b"], {}, EVIDENCE) == Try(0, 1, "the good end")
