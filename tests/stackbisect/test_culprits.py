"""Culprits among components: every small stack against enumeration, and drawn ones beyond."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stackbisect.probe import ProbeResult
from stackbisect.search import culprits
from stackbisect.search.culprits import (
    EMPTY,
    Answer,
    Ask,
    Batch,
    Culprit,
    Mixture,
    Policy,
    ahead,
    atoms,
    decide,
    next_steps,
)
from stackbisect.search.verdict import Ends, Verdict, compare_ends
from tests.stackbisect.histories import EVIDENCE, ran, untestable
from tests.stackbisect.test_parallel import drawn

# Bits by mixture: `g` good, `b` bad, `x` cannot be tested, `~` two tries differ, others are thirds.
Bits = Callable[[Mixture], str]


@dataclass
class Searched:
    """A finished search: what was tried, in order, and what is known."""

    answer: Answer
    tried: list[Mixture] = field(default_factory=list)
    rounds: int = 0


def sets(components: Iterable[str]) -> list[Mixture]:
    """All mixtures, the smaller ones first."""
    names = sorted(components)
    return [
        frozenset(each)
        for size in range(len(names) + 1)
        for each in itertools.combinations(names, size)
    ]


def verdict(kind: str, tries: int) -> Verdict | None:
    """What `judge` says of a mixture that was tried so often."""
    if kind == "x":
        return Verdict("untestable", "", "it cannot be imported")
    if kind in "gb":
        return Verdict("good" if kind == "g" else "bad", kind)
    if tries < 2:
        return None
    return Verdict("unstable", "", "two runs differ") if kind == "~" else Verdict("third", kind)


def search(
    parts: Sequence[Mixture],
    bits: Bits,
    policy: Policy = culprits.DEFAULT,
    *,
    jobs: int = 1,
    draw: random.Random | None = None,
    known: Mapping[Mixture, int] | None = None,
) -> Searched:
    """Search a stack; with several probes at a time `draw` says which ends next (None: all)."""
    tries: dict[Mixture, int] = dict(known or {})
    verdicts = {m: v for m, n in tries.items() if (v := verdict(bits(m), n)) is not None}
    under_way: list[Ask] = []
    done = Searched(Answer("found"))
    while done.rounds < 600:
        step = decide(parts, verdicts, tries, policy, jobs=jobs, under_way=under_way)
        done.rounds += 1
        if isinstance(step, Answer):
            done.answer = step
            return done
        for ask in step.asks:
            running = sum(each.mixture == ask.mixture for each in under_way)
            assert ask.attempt == tries.get(ask.mixture, 0) + running + 1
            under_way.append(ask)
        assert under_way, "nothing to wait for"
        assert len(under_way) <= jobs
        ended = list(under_way) if draw is None else [draw.choice(under_way)]
        for ask in ended:
            under_way.remove(ask)
            tries[ask.mixture] = tries.get(ask.mixture, 0) + 1
            assert tries[ask.mixture] <= 2, "tried more often than anything needs"
            found = verdict(bits(ask.mixture), tries[ask.mixture])
            if found is not None:
                verdicts[ask.mixture] = found
            done.tried.append(ask.mixture)
    raise AssertionError(f"the search does not end: {done.tried}")


def singles(count: int) -> tuple[Mixture, ...]:
    """So many components, each an atom."""
    return atoms("abcdefgh"[:count], [])


def tables(count: int, kinds: str) -> Iterator[dict[Mixture, str]]:
    """All stacks of so many components, good when all are swapped and bad when none is."""
    everything = sets("abcdefgh"[:count])
    for middle in itertools.product(kinds, repeat=len(everything) - 2):
        yield dict(zip(everything, ("g", *middle, "b"), strict=True))


def monotone(count: int) -> list[dict[Mixture, str]]:
    """All stacks in which more components from the bad stack never bring the good bits back."""
    everything = sets("abcdefgh"[:count])
    families: list[frozenset[Mixture]] = [frozenset()]
    # Built from the large mixtures down: one may flip only where all that hold it flip.
    for mixture in reversed(everything):
        above = [m for m in everything if mixture < m]
        families += [f | {mixture} for f in families if f.issuperset(above)]
    full = frozenset("abcdefgh"[:count])
    return [
        {m: "b" if m in family else "g" for m in everything}
        for family in families
        if full in family and EMPTY not in family
    ]


def minimal(bits: Bits, components: Iterable[str]) -> set[Mixture]:
    """The smallest sets that flip, by enumeration: no testable subset of theirs does."""
    flipping = [m for m in sets(components) if bits(m) not in "gx"]
    return {m for m in flipping if not any(other < m for other in flipping)}


def check(bits: Bits, components: Iterable[str], answer: Answer) -> None:
    """Hold an answer to what enumeration says."""
    everything = frozenset(components)
    aside = EMPTY
    for each in answer.culprits:
        assert each.components, answer
        assert not each.components & aside, answer
        check_alone(bits, each)
        aside |= each.components
    if answer.status == "found":
        alone = [each.components for each in answer.culprits if not each.given]
        assert alone, answer
        assert bits(everything - EMPTY.union(*alone) - answer.companions) == "g", answer
        assert not answer.left, answer
        if answer.whole:
            assert bits(aside) == bits(everything), answer
    else:
        assert answer.status == "unresolved", answer
        assert answer.left, answer
        assert not answer.left & aside, answer
        assert "x" in {bits(m) for m in sets(everything)}, answer


def check_alone(bits: Bits, each: Culprit) -> None:
    """A culprit flips alone, and none of its components can be left out and be tested."""
    target = {bits(each.components | each.given)}
    assert target.isdisjoint("gx"), each
    for name in each.components:
        less = bits(each.given | (each.components - {name}))
        if each.given:
            assert less not in target, each
        else:
            assert less in "gx", each
        if less == "x" and len(each.components) > 1:
            assert name in each.inseparable, each


@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_small_stack_gives_a_true_answer(count: int) -> None:
    """With every mixture good, bad, a third value or untestable."""
    for table in tables(count, "gbtx"):
        searched = search(singles(count), table.__getitem__)
        check(table.__getitem__, "abc"[:count], searched.answer)


def test_every_boolean_stack_of_four_components_gives_a_true_answer() -> None:
    """All 16,384 of them, monotone or not: the first culprit, its proof, and what is left."""
    for table in tables(4, "gb"):
        answer = search(singles(4), table.__getitem__).answer
        assert answer.status == "found"
        assert answer.whole
        check(table.__getitem__, "abcd", answer)


def test_monotone_stacks_of_four_give_smallest_sets_and_all_independent_ones() -> None:
    for count in (1, 2, 3, 4):
        for table in monotone(count):
            bits, names = table.__getitem__, "abcd"[:count]
            answer = search(singles(count), bits).answer
            assert answer.status == "found"
            found, smallest = {c.components for c in answer.culprits}, minimal(bits, names)
            assert found <= smallest
            if sum(map(len, smallest)) == len(EMPTY.union(*smallest)):
                assert found == smallest  # they share no component: all are independent
            assert not any(each.inseparable for each in answer.culprits)


def test_monotone_stacks_of_four_with_untestable_mixtures_give_true_answers() -> None:
    draw = drawn()
    names = "abcd"
    inner = sets(names)[1:-1]
    for table in monotone(4):
        for _ in range(6):
            holes = set(draw.sample(inner, draw.randrange(1, 9)))
            bits = {m: "x" if m in holes else kind for m, kind in table.items()}.__getitem__
            check(bits, names, search(singles(4), bits).answer)


def test_drawn_stacks_of_four_with_all_kinds_of_mixtures_give_true_answers() -> None:
    draw = drawn()
    everything = sets("abcd")
    for _ in range(1500):
        middle = draw.choices("gbtux", k=14)
        bits = dict(zip(everything, ["g", *middle, "b"], strict=True)).__getitem__
        check(bits, "abcd", search(singles(4), bits).answer)


@pytest.mark.parametrize("jobs", [2, 3])
def test_several_at_a_time_in_any_order_give_true_answers(jobs: int) -> None:
    draw = drawn()
    for table in itertools.chain(monotone(4), itertools.islice(tables(3, "gbx"), 0, None, 3)):
        bits = table.__getitem__
        names = max(table, key=len)
        searched = search(singles(len(names)), bits, jobs=jobs, draw=draw)
        check(bits, names, searched.answer)


def test_several_at_a_time_take_fewer_rounds() -> None:
    parts = atoms([f"p{n:02}" for n in range(60)], [])
    draw = drawn()
    name = f"p{draw.randrange(60):02}"
    rounds = [
        search(parts, lambda m: "b" if name in m else "g", jobs=jobs).rounds for jobs in (1, 4)
    ]
    assert rounds[0] <= 13
    assert rounds[1] <= 7


def test_a_search_that_is_cut_after_any_probe_goes_on_where_it_was() -> None:
    for table in [*monotone(3), *itertools.islice(tables(3, "gbtx"), 0, None, 40)]:
        bits = table.__getitem__
        whole = search(singles(3), bits)
        for cut in range(len(whole.tried) + 1):
            known: dict[Mixture, int] = {}
            for mixture in whole.tried[:cut]:
                known[mixture] = known.get(mixture, 0) + 1
            rest = search(singles(3), bits, known=known)
            assert rest.tried == whole.tried[cut:]
            assert rest.answer == whole.answer


# -- the swap test, and other endings --------------------------------------------------------------


@pytest.mark.parametrize("bits", ["b", "t"])
def test_where_the_swap_test_is_not_good_nothing_is_blamed(bits: str) -> None:
    searched = search(singles(4), lambda m: "b" if len(m) == 4 else bits)
    assert searched.answer.status == "elsewhere"
    assert searched.answer.culprits == ()
    assert set(searched.tried) == {EMPTY, frozenset("abcd")}


def test_a_swap_test_that_cannot_be_made_is_unresolved_with_all_left() -> None:
    answer = search(singles(3), lambda m: "b" if len(m) == 3 else "x").answer
    assert (answer.status, answer.left, answer.at) == ("unresolved", frozenset("abc"), EMPTY)
    assert answer.reason == "it cannot be imported"


def test_a_bad_stack_with_good_bits_is_nothing_to_search() -> None:
    assert search(singles(3), lambda m: "g").answer.status == "same"


@pytest.mark.parametrize("unstable", ["", "abcd", "c", "ab", "abd"])
def test_an_unstable_mixture_stops_all_blame(unstable: str) -> None:
    """The culprit is c: each of these mixtures is one that the search or its proof tries."""
    answer = search(
        singles(4),
        lambda m: "~" if m == frozenset(unstable) else "b" if "c" in m else "g",
    ).answer
    assert answer.status == "unstable"
    assert answer.culprits == ()
    assert answer.at == frozenset(unstable)


def test_the_two_mixtures_that_show_a_culprit_are_tried_twice() -> None:
    searched = search(singles(4), lambda m: "b" if "c" in m else "g")
    assert searched.tried.count(frozenset("c")) == 2
    assert searched.tried.count(frozenset("abd")) == 2


def test_a_spent_budget_names_what_is_left() -> None:
    parts = atoms([f"p{n:02}" for n in range(60)], [])
    searched = search(parts, lambda m: "b" if "p17" in m else "g", Policy(budget=6))
    assert len(searched.tried) == 6
    assert searched.answer.status == "unresolved"
    assert "p17" in searched.answer.left
    assert "budget" in searched.answer.reason


# -- several culprits ------------------------------------------------------------------------------


def test_three_packages_that_each_change_the_bits_are_found_one_by_one() -> None:
    """Each gives bits of its own: with any of them swapped the bits are neither good nor bad."""
    draw = drawn()
    names = [f"p{n:02}" for n in range(40)]
    for _ in range(20):
        guilty = draw.sample(names, 3)

        def bits(mixture: Mixture, guilty: Sequence[str] = guilty) -> str:
            changed = [name for name in guilty if name in mixture]
            return "g" if not changed else "b" if len(changed) == 3 else "+".join(changed)

        answer = search(atoms(names, []), bits).answer
        assert answer.status == "found"
        assert {c.components for c in answer.culprits} == {frozenset({name}) for name in guilty}
        assert all(c.alone.kind == "third" for c in answer.culprits)
        assert answer.whole


def test_what_is_needed_besides_for_the_bad_bits_is_named_with_what_it_needs() -> None:
    """a alone gives a third value; b changes nothing alone, and makes it the bad one."""

    def bits(mixture: Mixture) -> str:
        if "a" not in mixture:
            return "g"
        return "b" if "b" in mixture else "t"

    answer = search(singles(4), bits).answer
    first, second = answer.culprits
    assert (first.components, first.alone.kind) == (frozenset("a"), "third")
    assert (second.components, second.given) == (frozenset("b"), frozenset("a"))
    assert second.without is None
    assert answer.whole


def test_culprits_have_their_proof_both_ways() -> None:
    answer = search(singles(4), lambda m: "b" if {"a", "d"} <= m or "b" in m else "g").answer
    proofs = {c.components: (c.alone.kind, c.without and c.without.kind) for c in answer.culprits}
    assert set(proofs) == {frozenset("b"), frozenset("ad")}
    assert [c.without and c.without.kind for c in answer.culprits] == ["bad", "good"]
    assert all(alone == "bad" for alone, _ in proofs.values())


# -- atoms and mixtures that cannot be tested ------------------------------------------------------


def test_a_group_moves_as_one_until_its_parts_can_be_tested() -> None:
    parts = atoms("abcdef", ["bcd"])
    searched = search(parts, lambda m: "b" if "c" in m else "g")
    (culprit,) = searched.answer.culprits
    assert culprit.components == frozenset("c")
    assert not culprit.inseparable


def test_a_group_whose_mixtures_cannot_be_tested_is_the_culprit_as_a_whole() -> None:
    parts = atoms("abcdef", ["bcd"])
    group = frozenset("bcd")

    def bits(mixture: Mixture) -> str:
        return "x" if mixture & group not in (EMPTY, group) else "b" if "c" in mixture else "g"

    searched = search(parts, bits)
    (culprit,) = searched.answer.culprits
    assert culprit.components == culprit.inseparable == group
    assert searched.answer.status == "found"


def test_a_large_group_that_cannot_be_split_costs_few_probes() -> None:
    names = [f"p{n:02}" for n in range(60)]
    group = frozenset(names[20:45])

    def bits(mixture: Mixture) -> str:
        if mixture & group not in (EMPTY, group):
            return "x"
        return "b" if "p30" in mixture else "g"

    searched = search(atoms(names, [group]), bits)
    assert searched.answer.culprits[0].components == group
    assert len(searched.tried) <= 12 + culprits.DEFAULT.split + 2


@pytest.mark.parametrize("groups", [["ab"], ["ab", "cd"], ["ac", "bd"], ["abc"], ["abcd"]])
def test_groups_in_drawn_stacks_are_split_as_far_as_can_be_tested(groups: list[str]) -> None:
    draw = drawn()
    everything = sets("abcd")
    for _ in range(400):
        middle = draw.choices("gbtx", [4, 4, 1, 2], k=14)
        bits = dict(zip(everything, ["g", *middle, "b"], strict=True)).__getitem__
        answer = search(atoms("abcd", groups), bits).answer
        check(bits, "abcd", answer)


def test_a_group_is_left_out_of_the_search_where_it_is_innocent() -> None:
    parts = atoms("abcdef", ["bcd"])
    searched = search(parts, lambda m: "b" if "f" in m else "g")
    for mixture in searched.tried:
        assert mixture & frozenset("bcd") in (EMPTY, frozenset("bcd"))


def test_a_pair_that_cannot_be_mixed_is_found_as_one_wherever_it_stands() -> None:
    names = [f"p{n:02}" for n in range(30)]
    for pair in itertools.islice(itertools.combinations(names, 2), 0, None, 7):

        def bits(mixture: Mixture, pair: Sequence[str] = pair) -> str:
            if len(mixture & set(pair)) == 1:
                return "x"
            return "b" if pair[0] in mixture else "g"

        answer = search(atoms(names, []), bits).answer
        assert answer.status == "found"
        assert answer.culprits[0].components == answer.culprits[0].inseparable == set(pair)


@pytest.mark.parametrize("pairs", [("ac", "bd"), ("ad", "bc"), ("ad", "be", "cf")])
def test_pairs_that_stand_across_each_other_are_told_apart(pairs: tuple[str, ...]) -> None:
    """The stretches that cannot be tested overlap, so that all of them look like one block."""

    def bits(mixture: Mixture) -> str:
        if any(len(mixture & set(pair)) == 1 for pair in pairs):
            return "x"
        return "b" if pairs[0][0] in mixture else "g"

    for names in ("abcdefgh", "hgfedcba", "gabcdefh"):
        (culprit,) = search(atoms(names, []), bits).answer.culprits
        assert culprit.components == set(pairs[0])


def test_what_cannot_be_tested_without_the_culprit_is_left_and_not_cleared() -> None:
    """b from the bad stack needs a from the bad stack, and a is the culprit."""

    def bits(mixture: Mixture) -> str:
        if "b" in mixture and "a" not in mixture:
            return "x"
        return "b" if "a" in mixture else "g"

    answer = search(singles(4), bits).answer
    assert answer.status == "unresolved"
    assert [c.components for c in answer.culprits] == [frozenset("a")]
    assert answer.culprits[0].without == Verdict("good", "g")
    assert answer.left == frozenset("b")


def test_groups_that_share_a_component_are_one_atom_in_the_order_of_its_first() -> None:
    assert atoms("abcde", ["bd", "de"]) == (
        frozenset("a"),
        frozenset("bde"),
        frozenset("c"),
    )


@pytest.mark.parametrize(
    ("components", "groups", "words"),
    [("aba", [], "more than one of"), ("ab", ["bz"], "no components")],
)
def test_components_and_groups_that_do_not_fit_are_refused(
    components: str, groups: list[str], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        atoms(components, groups)


# -- from observations -----------------------------------------------------------------------------


def references() -> Ends:
    """Good and bad ends with evidence."""
    ends = compare_ends([ran("g")], [ran("b")], EVIDENCE)
    assert isinstance(ends, Ends)
    return ends


def test_probes_are_read_as_those_of_candidates_are() -> None:
    """A third value is tried again, an import error is untestable, the rest by its bits."""
    parts, ends = singles(4), references()

    def result(mixture: Mixture) -> ProbeResult:
        if len(mixture & {"a", "b"}) == 1:
            return ran("", code=1)
        return ran("t") if "c" in mixture and "a" not in mixture else ran("gb"["a" in mixture])

    seen: dict[Mixture, list[ProbeResult]] = {}
    while isinstance(step := next_steps(parts, seen, ends, EVIDENCE), Batch):
        (ask,) = step.asks
        mine = seen.setdefault(ask.mixture, [])
        assert ask.attempt == len(mine) + 1
        mine.append(result(ask.mixture))
    assert step.status == "found"
    assert {c.components for c in step.culprits} == {frozenset("ab"), frozenset("c")}
    assert len(seen[frozenset("c")]) == 2


def test_the_ends_probes_count_for_the_whole_mixture() -> None:
    seen = {frozenset("abcd"): 2 * [ran("b")]}
    step = next_steps(singles(4), seen, references(), EVIDENCE)
    assert step == Batch((Ask(EMPTY, 1),))


def test_what_is_asked_next_was_foretold() -> None:
    parts = atoms([f"p{n:02}" for n in range(40)], [])
    ends = references()
    seen: dict[Mixture, list[ProbeResult]] = {}
    foretold: set[Mixture] = set()
    while isinstance(step := next_steps(parts, seen, ends, EVIDENCE), Batch):
        (ask,) = step.asks
        assert not seen or ask.attempt > 1 or ask.mixture in foretold
        following = ahead(parts, seen, ends, EVIDENCE, under_way=[ask])
        foretold = {mixture for mixture, _ in following}
        assert sum(chance for _, chance in following) <= 1
        bits = "b" if "p11" in ask.mixture else "g"
        seen.setdefault(ask.mixture, []).append(ran(bits))
    assert step.status == "found"
    assert not ahead(parts, {EMPTY: [untestable()]}, ends, EVIDENCE)[1:]


# -- beyond ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stack:
    """A drawn stack: independent sets of culprits, groups that cannot be mixed, declared groups."""

    names: tuple[str, ...]
    guilty: tuple[Mixture, ...]
    coupled: tuple[Mixture, ...]
    declared: tuple[Mixture, ...]

    def bits(self, mixture: Mixture) -> str:
        """Bad where all of a guilty set is there."""
        if any(mixture & group not in (EMPTY, group) for group in self.coupled):
            return "x"
        return "b" if any(each <= mixture for each in self.guilty) else "g"


@st.composite
def stacks(draw: st.DrawFn) -> Stack:
    """Stacks of up to 30 components."""
    names = [f"p{n:02}" for n in range(draw(st.integers(3, 30)))]
    order = draw(st.permutations(names))
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    guilty = [frozenset(names[sum(sizes[:n]) :][:size]) for n, size in enumerate(sizes)]
    coupled = [
        frozenset(draw(st.lists(st.sampled_from(names), min_size=2, max_size=3, unique=True)))
        for _ in range(draw(st.integers(0, 2)))
    ]
    declared = coupled[: draw(st.integers(0, 2))]
    kept = tuple(each for each in guilty if each)
    return Stack(tuple(order), kept, tuple(coupled), tuple(declared))


@settings(max_examples=200, deadline=None)
@given(stacks(), st.sampled_from([1, 3]), st.randoms())
def test_drawn_stacks_give_true_answers(stack: Stack, jobs: int, draw: random.Random) -> None:
    searched = search(atoms(stack.names, stack.declared), stack.bits, jobs=jobs, draw=draw)
    answer = searched.answer
    assert answer.status == "found"
    aside = EMPTY
    for each in answer.culprits:
        assert stack.bits(each.components) == "b"
        aside |= each.components
        for name in each.components - each.inseparable:
            assert stack.bits(each.components - {name}) == "g"
    assert stack.bits(frozenset(stack.names) - aside) == "g"
    if not stack.coupled:
        assert {each.components for each in answer.culprits} == set(stack.guilty)
