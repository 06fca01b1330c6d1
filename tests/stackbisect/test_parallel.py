"""Several probes at a time: any order of results, the same truth, fewer rounds, what comes next."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stackbisect.probe import ProbeResult
from stackbisect.search import cuts, probing
from stackbisect.search.probing import Batch, EndsFailure, Found, Policy, Same, Try
from tests.stackbisect.histories import EVIDENCE, Together, probe, search, search_together
from tests.stackbisect.test_transition import NOT_TESTABLE, inner


def drawn(seed: int | None = None) -> random.Random:
    """A source of random orders; its seed is printed."""
    seed = random.SystemRandom().randrange(2**32) if seed is None else seed
    print(f"seed {seed}")
    return random.Random(seed)


def check(history: str, together: Together) -> Found:
    """Hold an answer to what the letters of the history say."""
    step = together.step
    assert isinstance(step, Found), history
    answer = step.answer
    assert (history[answer.last_good], history[answer.first_bad]) == ("g", "b"), history
    tried = set(together.finished)
    into_bad = next(t for t in answer.transitions if t.right == answer.first_bad)
    assert answer.transitions[0].left == answer.last_good, history
    for each in (answer.transitions[0], into_bad):
        assert each.narrowed, history
        assert set(each.between) <= tried, history
        assert all(history[p] in NOT_TESTABLE for p in each.between), history
    for each in answer.transitions:
        assert history[each.left] != history[each.right], history
    return step


@pytest.mark.parametrize("jobs", [2, 3, 5])
def test_every_small_history_gives_a_true_answer_in_any_order_of_results(jobs: int) -> None:
    draw = drawn()
    for size in range(2, 7):
        for history in inner(size, "gbtx~" if size < 6 else "gbx~"):
            check(history, search_together(history, jobs, draw))


def test_with_one_change_the_answer_does_not_depend_on_jobs_or_order() -> None:
    draw = drawn()
    for size in range(2, 8):
        for history in inner(size, "gbx"):
            if "bg" in history.replace("x", ""):
                continue
            alone = search(history).step
            for jobs in (2, 4):
                step = search_together(history, jobs, draw).step
                assert isinstance(step, Found)
                assert isinstance(alone, Found)
                assert step.answer == alone.answer, history


@pytest.mark.parametrize("jobs", [1, 2, 3, 7])
def test_k_probes_at_a_time_cut_into_k_plus_1_parts(jobs: int) -> None:
    draw = drawn()
    for _ in range(25):
        size = draw.randrange(2, 400)
        change = draw.randrange(1, size)
        together = search_together("g" * change + "b" * (size - change), jobs, None)
        assert isinstance(together.step, Found)
        assert together.step.answer.first_bad == change
        splits = math.ceil(math.log(max(size - 1, 1), jobs + 1) - 1e-9)
        # Both ends, the two neighbours, and the answer itself are rounds too.
        most = math.ceil(4 / jobs) + splits + math.ceil(2 / jobs) + 1
        assert together.rounds <= most, (size, change, jobs)


def test_both_ends_are_tried_before_anything_else_and_never_beyond_need() -> None:
    for jobs in range(1, 9):
        step = probing.next_steps(list("abcdef"), {}, EVIDENCE, jobs=jobs)
        ends = [Try(0, 1, "the good end"), Try(0, 2, "the good end")]
        ends += [Try(5, 1, "the bad end"), Try(5, 2, "the bad end")]
        assert step == Batch(tuple(ends[:jobs]))


@pytest.mark.parametrize(("history", "end"), [("xgb", "good"), ("ggx", "bad"), ("~gb", "good")])
def test_an_end_that_fails_ends_the_search_while_others_are_under_way(
    history: str, end: str
) -> None:
    step = search_together(history, 4, drawn()).step
    assert isinstance(step, EndsFailure)
    assert step.end == end


def test_equal_ends_are_the_answer_with_several_at_a_time_too() -> None:
    together = search_together("gbbg", 4, drawn())
    assert isinstance(together.step, Same)
    assert sorted(together.finished) == [0, 0, 3, 3]


def test_probes_that_are_called_needless_change_nothing_when_they_are_given_up() -> None:
    draw = drawn()
    given_up = 0
    for _ in range(150):
        size = draw.randrange(8, 40)
        change = draw.randrange(1, size)
        history = ["g"] * change + ["b"] * (size - change)
        for hole in draw.sample(range(1, size - 1), k=3):
            history[hole] = draw.choice("gbx~")
        together = search_together("".join(history), 4, draw, give_up=True)
        check("".join(history), together)
        given_up += len(together.needless)
    assert given_up > 50


def test_a_third_value_is_tried_again_only_where_it_matters() -> None:
    """With results in any order a third value may turn up where nothing is looked for any more."""
    seen = {"0": 2 * [probe("g", 1)], "7": 2 * [probe("b", 1)], "3": [probe("b", 1)]}
    seen["5"] = [probe("t", 1)]
    step = probing.next_steps([str(p) for p in range(8)], seen, EVIDENCE, jobs=1)
    assert step == Batch((Try(1, 1, "between good and bad"),))


def test_every_transition_is_found_with_several_at_a_time() -> None:
    draw = drawn()
    for history in inner(7, "gbt"):
        together = search_together(history, 3, draw, policy=Policy(window=1))
        assert isinstance(together.step, Found)
        changes = [p + 1 for p, (a, b) in enumerate(itertools.pairwise(history)) if a != b]
        assert [t.right for t in together.step.answer.transitions] == changes, history


def test_an_unstable_neighbour_is_not_blamed_with_several_at_a_time() -> None:
    draw = drawn()
    for history in inner(6, "gb12"):
        step = search_together(history, 3, draw).step
        assert isinstance(step, Found), history
        pair = history[step.answer.last_good], history[step.answer.first_bad]
        assert pair == ("g", "b"), history


def test_one_candidate_under_two_names_is_started_once_for_both() -> None:
    ids = ["a", "b", "c", "b", "d", "e"]
    seen = {"a": 2 * [probe("g", 1)], "e": 2 * [probe("b", 1)]}
    step = probing.next_steps(ids, seen, EVIDENCE, jobs=4)
    assert isinstance(step, Batch)
    assert Counter(ids[each.position] for each in step.tries) == Counter("bcd")


# -- what may be asked next ------------------------------------------------------------------------


def test_what_is_asked_next_was_foretold() -> None:
    """One probe at a time: of the two places foretold while it runs, one is asked for next."""
    for change in range(1, 40):
        history = "g" * change + "b" * (40 - change)
        ids = [str(p) for p in range(40)]
        seen: dict[str, list[ProbeResult]] = {}
        foretold: set[int] = set()
        while isinstance(step := probing.next_step(ids, seen, EVIDENCE), Try):
            assert step.attempt > 1 or step.position in {0, 39} | foretold
            ahead = probing.ahead(ids, seen, EVIDENCE, under_way=[step], limit=2)
            foretold = {each.position for each in ahead}
            mine = seen.setdefault(ids[step.position], [])
            mine.append(probe(history[step.position], step.attempt))


def test_foretelling_ends_where_a_third_value_leaves_two_changes() -> None:
    """One of the two may be narrowed already while the other is not."""
    ids = [str(p) for p in range(6)]
    for middle in itertools.product("gbtx", repeat=4):
        history = "g" + "".join(middle) + "b"
        seen: dict[str, list[ProbeResult]] = {}
        while isinstance(step := probing.next_step(ids, seen, EVIDENCE), Try):
            ahead = probing.ahead(ids, seen, EVIDENCE, under_way=[step], limit=2)
            assert step.position not in {each.position for each in ahead}, history
            mine = seen.setdefault(ids[step.position], [])
            mine.append(probe(history[step.position], step.attempt))


def test_foretold_probabilities_are_the_shares_of_all_changes() -> None:
    size, ids = 30, [str(p) for p in range(30)]
    seen = {"0": 2 * [probe("g", 1)], "29": 2 * [probe("b", 1)]}
    step = probing.next_step(ids, seen, EVIDENCE)
    assert isinstance(step, Try)
    asked: Counter[int] = Counter()
    for change in range(1, size):
        more = {**seen, ids[step.position]: [probe("gb"[step.position >= change], 1)]}
        following = probing.next_step(ids, more, EVIDENCE)
        assert isinstance(following, Try)
        asked[following.position] += 1
    ahead = probing.ahead(ids, seen, EVIDENCE, under_way=[step], limit=2)
    assert {each.position: round(each.probability * (size - 1)) for each in ahead} == dict(asked)
    assert [each.probability for each in ahead] == sorted(
        (each.probability for each in ahead), reverse=True
    )


def test_while_the_ends_are_tried_the_first_split_is_foretold() -> None:
    ids = [str(p) for p in range(9)]
    assert probing.ahead(ids, {}, EVIDENCE, limit=1) == [probing.Ahead(4, 1.0)]


def test_nothing_is_foretold_where_nothing_can_be_asked() -> None:
    assert probing.ahead(["a", "b"], {}, EVIDENCE) == []
    same = {"a": 2 * [probe("g", 1)], "c": 2 * [probe("g", 1)]}
    assert probing.ahead(["a", "b", "c"], same, EVIDENCE) == []


@settings(max_examples=150, deadline=None)
@given(
    st.text("gbtx~1", min_size=1, max_size=20),
    st.integers(1, 6),
    st.sampled_from([Policy(), Policy(between=2), Policy(3, 1, 3), Policy(2, 3, 3, window=2)]),
    st.randoms(),
)
def test_drawn_histories_end_with_stable_neighbours_under_any_policy(
    middle: str, jobs: int, policy: Policy, draw: random.Random
) -> None:
    history = f"g{middle}b"
    step = search_together(history, jobs, draw, policy=policy).step
    assert isinstance(step, Found)
    assert (history[step.answer.last_good], history[step.answer.first_bad]) == ("g", "b")


# -- cuts ------------------------------------------------------------------------------------------


def test_cuts_leave_the_smallest_widest_part_that_their_number_can() -> None:
    for sizes in [*itertools.product(range(7), repeat=2), *((n,) for n in range(25))]:
        pieces = [[100 * k + p for p in range(size)] for k, size in enumerate(sizes)]
        for count in range(5):
            chosen = cuts.choose(pieces, count)
            assert len(chosen) == len(set(chosen)) == min(count, sum(sizes))
            widest = max((len(part) for part in parts(pieces, chosen)), default=0)
            assert widest == best(sizes, count), (sizes, count)


def parts(pieces: list[list[int]], chosen: list[int]) -> list[list[int]]:
    """What is left of the pieces."""
    return [part for piece in pieces for part in cuts.pieces(piece, chosen)]


def best(sizes: tuple[int, ...], count: int) -> int:
    """The smallest width that can be had, by trying all."""
    for width in range(max(sizes) + 1):
        if sum(math.ceil((size - width) / (width + 1)) for size in sizes if size > width) <= count:
            return width
    return max(sizes)
