"""Evidence of runs laid side by side: what is equal, and where exactly it is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinner.compare import locked
from pinner.compare.evidence import (
    Difference,
    Emitter,
    RunEvidence,
    chain,
    compare,
    constant,
    describe,
    gather,
    shared,
    strays,
    without,
)

NAMES = ("run 1", "run 2")


def emitter(rank: int | None, **streams: str) -> Emitter:
    """A process that left one digest, a letter, for each step of some streams."""
    lines = [(name, step, d) for name, text in streams.items() for step, d in enumerate(text)]
    return Emitter(rank, tuple(lines))


def run(*emitters: Emitter) -> RunEvidence:
    return gather(emitters)


def test_equal_runs_do_not_differ() -> None:
    assert compare(run(emitter(0, loss="abc")), run(emitter(0, loss="abc"))) == ()


def test_first_differing_step_is_named_with_both_digests() -> None:
    (found,) = compare(run(emitter(0, loss="abcd")), run(emitter(0, loss="abXY")))
    assert found == Difference("loss", 0, 2, "c", "X")
    assert describe(found, NAMES) == "stream 'loss', rank 0, step 2: c in run 1, X in run 2"


def test_the_rank_that_differs_is_named() -> None:
    first = run(emitter(0, loss="ab"), emitter(1, loss="cd"))
    second = run(emitter(0, loss="ab"), emitter(1, loss="cX"))
    assert compare(first, second) == (Difference("loss", 1, 1, "d", "X"),)


def test_the_earliest_step_comes_first_over_all_streams() -> None:
    first = run(emitter(0, early="abc", late="abc"))
    second = run(emitter(0, early="abX", late="Xbc"))
    assert [d.stream for d in compare(first, second)] == ["late", "early"]


@pytest.mark.parametrize("swap", [False, True])
def test_a_missing_stream_is_a_difference(swap: bool) -> None:
    both = run(emitter(0, loss="ab", norm="ab")), run(emitter(0, loss="ab"))
    first, second = reversed(both) if swap else both
    (found,) = compare(first, second)
    where = "missing in run 1, present in run 2" if swap else "present in run 1, missing in run 2"
    assert describe(found, NAMES) == f"stream 'norm': {where}"


def test_a_missing_rank_is_a_difference() -> None:
    first = run(emitter(0, loss="ab"), emitter(1, loss="ab"))
    (found,) = compare(first, run(emitter(0, loss="ab")))
    assert describe(found, NAMES) == "stream 'loss', rank 1: present in run 1, missing in run 2"


def test_a_missing_step_is_a_difference() -> None:
    (found,) = compare(run(emitter(0, loss="ab")), run(emitter(0, loss="abc")))
    where = "missing in run 1, present in run 2"
    assert describe(found, NAMES) == f"stream 'loss', rank 0, step 2: {where}"


def test_a_step_that_one_run_wrote_twice_is_a_difference() -> None:
    once = Emitter(0, (("loss", 0, "a"), ("loss", 1, "b")))
    twice = Emitter(0, (("loss", 0, "a"), ("loss", 0, "a"), ("loss", 1, "b")))
    assert compare(run(once), run(twice)) == (Difference("loss", 0, 0, None, "a"),)


def test_a_rank_that_was_started_again_goes_on() -> None:
    restarted = run(Emitter(0, (("loss", 0, "a"),)), Emitter(0, (("loss", 1, "b"),)))
    assert compare(restarted, run(emitter(0, loss="ab"))) == ()


def test_processes_without_a_rank_match_by_what_they_left() -> None:
    first = run(emitter(None, loss="ab"), emitter(None, loss="cd"), emitter(None, loss="ef"))
    second = run(emitter(None, loss="ef"), emitter(None, loss="ab"), emitter(None, loss="cd"))
    assert compare(first, second) == ()


def test_a_process_without_a_rank_that_differs_is_compared_with_its_own_twin() -> None:
    first = run(emitter(None, loss="abcd"), emitter(None, loss="efgh"))
    second = run(emitter(None, loss="efgX"), emitter(None, loss="abcd"))
    assert compare(first, second) == (Difference("loss", 1, 3, "h", "X"),)


def test_one_process_too_many_is_a_difference() -> None:
    first = run(emitter(None, loss="ab"))
    second = run(emitter(None, loss="ab"), emitter(None, loss="ab"))
    (found,) = compare(first, second)
    assert (found.rank, found.first) == (1, None)


def test_a_process_without_a_rank_beside_ranks_is_a_stream_of_its_own() -> None:
    mixed = run(emitter(0, loss="ab"), emitter(None, loss="ab"))
    assert set(mixed.streams) == {"loss", "loss (no rank)"}


def test_only_streams_that_never_change_over_steps_are_constant() -> None:
    found = run(emitter(0, still="aaa", moving="aab", single="a"))
    assert constant(found) == ("still",)
    assert set(without(found, constant(found)).streams) == {"moving", "single"}


def test_a_stream_that_changes_on_one_rank_is_not_constant() -> None:
    assert constant(run(emitter(0, loss="aa"), emitter(1, loss="ab"))) == ()


def test_ranks_that_each_stay_the_same_are_constant_though_they_differ() -> None:
    assert constant(run(emitter(0, loss="aa"), emitter(1, loss="bb"))) == ("loss",)


def test_a_run_without_steps_is_empty() -> None:
    assert run().empty
    assert run(Emitter(0, ())).empty
    assert not run(emitter(0, loss="a")).empty


DIGESTS = st.text("abc", min_size=1, max_size=6)
RUNS = st.dictionaries(
    st.integers(0, 3), st.dictionaries(st.sampled_from("xyz"), DIGESTS, min_size=1)
)


@given(RUNS, st.data())
def test_any_single_flip_is_found_where_it_is(
    ranks: dict[int, dict[str, str]], data: st.DataObject
) -> None:
    emitters = [emitter(rank, **streams) for rank, streams in ranks.items()]
    places = [
        (r, s, i) for r, streams in ranks.items() for s, t in streams.items() for i in range(len(t))
    ]
    if not places:
        return
    rank, stream, step = data.draw(st.sampled_from(places))
    flipped = {
        r: {
            s: t[:step] + "X" + t[step + 1 :] if (r, s) == (rank, stream) else t
            for s, t in streams.items()
        }
        for r, streams in ranks.items()
    }
    other = [emitter(r, **streams) for r, streams in flipped.items()]
    (found,) = compare(gather(emitters), gather(other))
    assert (found.rank, found.stream, found.step, found.second) == (rank, stream, step, "X")


@given(st.lists(DIGESTS, min_size=1, max_size=5), st.randoms())
def test_order_of_processes_without_rank_does_not_matter(texts: list[str], random: object) -> None:
    emitters = [emitter(None, loss=text) for text in texts]
    shuffled = list(emitters)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert compare(gather(emitters), gather(shuffled)) == ()
    kept = locked.keep(gather(emitters))
    assert locked.verify(kept, gather(shuffled)).differences == ()


class TestAgainstALock:
    """`enforce --verify`: the lock keeps the first digests and one over all."""

    def long(self, change: int | None = None, steps: int = 40) -> RunEvidence:
        lines = [("loss", s, f"d{s}" if s != change else "X") for s in range(steps)]
        return gather([Emitter(0, tuple(lines))])

    def test_the_same_run_agrees_in_all_steps(self) -> None:
        found = locked.verify(locked.keep(self.long()), self.long())
        assert (found.differences, found.uncompared) == ((), ())
        assert dict(found.compared) == {("loss", 0): 40}

    def test_a_difference_in_the_first_steps_is_named_by_its_step(self) -> None:
        (found,) = locked.verify(locked.keep(self.long()), self.long(change=5)).differences
        assert found == Difference("loss", 0, 5, "d5", "X")

    def test_a_later_difference_is_found_and_placed_after_the_first_steps(self) -> None:
        (found,) = locked.verify(locked.keep(self.long()), self.long(change=30)).differences
        assert found.from_here_on
        assert found.step == locked.HEAD
        assert "step 16 or later" in describe(found, ("the lock", "this run"))

    def test_a_longer_run_is_compared_over_the_locked_steps(self) -> None:
        found = locked.verify(locked.keep(self.long()), self.long(steps=50))
        assert found.differences == ()
        assert dict(found.compared) == {("loss", 0): 40}

    def test_a_shorter_run_is_compared_as_far_as_single_digests_go(self) -> None:
        kept = locked.keep(self.long())
        assert dict(locked.verify(kept, self.long(steps=10)).compared) == {("loss", 0): 10}
        assert dict(locked.verify(kept, self.long(steps=30)).compared) == {("loss", 0): 16}
        assert locked.verify(kept, self.long(change=3, steps=10)).differences

    def test_a_stream_that_is_not_there_is_not_called_equal(self) -> None:
        found = locked.verify(locked.keep(self.long()), run(emitter(0, other="ab")))
        assert dict(found.compared) == {}
        assert found.uncompared == ("stream 'loss', rank 0: not in this run",)

    def part(self, *steps: int, change: int | None = None, stream: str = "loss") -> RunEvidence:
        """The run of `long`, at these steps only."""
        lines = [(stream, s, f"d{s}" if s != change else "X") for s in steps]
        return gather([Emitter(0, tuple(lines))])

    def test_a_resumed_run_is_compared_at_its_own_steps(self) -> None:
        kept = locked.keep(self.part(*range(7)))
        found = locked.verify(kept, self.part(3, 4, 5, 6))
        assert (found.differences, found.uncompared) == ((), ())
        assert found.line == "verified 4 of 7 steps in 1 stream"
        (difference,) = locked.verify(kept, self.part(3, 4, 5, 6, change=5)).differences
        assert difference == Difference("loss", 0, 5, "d5", "X")

    def test_a_lock_of_a_resumed_run_verifies_that_run_and_longer_ones(self) -> None:
        for length in (4, 16, 17, 40):
            steps = range(3, 3 + length)
            kept = locked.keep(self.part(*steps))
            assert kept.streams[0].at == tuple(steps)[: locked.HEAD]
            for run_steps in (steps, range(60)):
                found = locked.verify(kept, self.part(*run_steps))
                assert (found.differences, found.uncompared) == ((), ())
                assert dict(found.compared) == {("loss", 0): length}
                last = steps[-1]
                assert locked.verify(kept, self.part(*run_steps, change=last)).differences

    def test_steps_that_the_lock_keeps_only_together_are_compared_only_together(self) -> None:
        kept = locked.keep(self.part(*range(3, 30)))
        sparse = [s for s in range(3, 50) if s != 25]
        found = locked.verify(kept, self.part(*sparse))
        assert (found.differences, dict(found.compared)) == ((), {("loss", 0): locked.HEAD})

    def test_without_a_step_in_common_nothing_differs_and_nothing_is_compared(self) -> None:
        found = locked.verify(locked.keep(self.part(*range(7))), self.part(10, 11))
        assert (found.differences, dict(found.compared)) == ((), {})
        assert found.uncompared == (
            "stream 'loss', rank 0: no step in common: the lock has 0 to 6, this run 10 to 11",
        )
        (late,) = locked.verify(locked.keep(self.long()), self.part(20, 21)).uncompared
        assert "0 to 15 one by one, and one digest over these and 24 more" in late

    def test_processes_without_a_rank_are_matched_at_the_steps_in_common(self) -> None:
        def both(first: int) -> RunEvidence:
            each = [tuple(("loss", s, f"{name}{s}") for s in range(first, 7)) for name in "ab"]
            return gather([Emitter(None, lines) for lines in each])

        found = locked.verify(locked.keep(both(0)), both(3))
        assert (found.differences, found.uncompared) == ((), ())
        assert found.line == "verified 8 of 14 steps in 1 stream"

    def test_what_differs_is_not_counted_as_verified(self) -> None:
        found = locked.verify(locked.keep(self.part(0, 1)), self.part(0, 1, change=1))
        assert found.line == "verified 0 of 2 steps in 0 streams"

    def test_steps_with_other_numbers_are_another_run(self) -> None:
        shifted = gather([Emitter(0, tuple(("loss", s + 1, f"d{s}") for s in range(40)))])
        assert locked.verify(locked.keep(self.long()), shifted).differences


def test_chain_sees_order_numbers_and_length() -> None:
    chains = {
        chain([(0, "a"), (1, "b")]),
        chain([(0, "b"), (1, "a")]),
        chain([(0, "a"), (2, "b")]),
        chain([(0, "a")]),
    }
    assert len(chains) == 4


class TestWhatRunsShare:
    """What a traced run must leave, too, before it can be believed."""

    @staticmethod
    def run(*digests: str, stream: str = "loss", rank: int | None = 0) -> RunEvidence:
        return gather([Emitter(rank, tuple((stream, n, d) for n, d in enumerate(digests)))])

    def test_steps_before_the_first_difference_are_shared(self) -> None:
        found = shared([self.run("a", "b", "c", "d"), self.run("a", "b", "x", "d")])
        assert found.streams == {"loss": {0: ((0, "a"), (1, "b"))}}

    def test_a_third_run_makes_it_less(self) -> None:
        found = shared([self.run("a", "b", "c"), self.run("a", "b", "x"), self.run("a", "y", "c")])
        assert found.streams == {"loss": {0: ((0, "a"),)}}

    def test_nothing_is_shared_with_a_run_that_lacks_the_rank(self) -> None:
        assert shared([self.run("a"), self.run("a", rank=1)]).streams == {"loss": {0: ()}}

    @pytest.mark.parametrize("rank", [0, None])
    def test_a_run_that_parts_later_strays_nowhere(self, rank: int | None) -> None:
        both = [self.run("a", "b", end, rank=rank) for end in "cx"]
        assert strays(shared(both), self.run("a", "b", "z", rank=rank)) == ()

    def test_a_run_that_parts_earlier_strays(self) -> None:
        both = [self.run("a", "b", end) for end in "cx"]
        (found,) = strays(shared(both), self.run("a", "z", "c"))
        assert (found.step, found.first, found.second) == (1, "b", "z")

    def test_a_run_that_ended_earlier_strays(self) -> None:
        both = [self.run("a", "b", end) for end in "cx"]
        (found,) = strays(shared(both), self.run("a"))
        assert (found.step, found.second) == (1, None)
