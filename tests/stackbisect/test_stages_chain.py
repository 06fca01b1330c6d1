"""From the two sides of a change to the smallest culprit: the chain of stages, simulated."""

from __future__ import annotations

import inspect
import json
import random
import shutil
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from stackbisect import journal, progress
from stackbisect.bisection import Bisection
from stackbisect.probe import ProbeResult, Runtime
from stackbisect.runtimes.venv import VenvRuntime
from stackbisect.spaces.components import Inventory
from stackbisect.stage import Batch, Context
from stackbisect.stages import chain
from tests import lanes
from tests.fakes.stacks import LOCKED, Bits, Simulated, Values
from tests.stackbisect.histories import ran
from tests.stackbisect.simulated import KINDS, begin, go, header, names, tables

pytestmark = pytest.mark.usefixtures("no_sync")

COUNT = 34
BAD = "2.0"


def drawn() -> random.Random:
    """A generator whose seed is in the output of a test that fails."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    return random.Random(seed)


def any_of(*sets: set[str]) -> Bits:
    """Bad where one of the sets is wholly from the bad stack."""

    def bits(values: Values, probe: int) -> str:
        return "b" if any(all(values[c] == BAD for c in each) for each in sets) else "g"

    return bits


def search(
    tmp_path: Path,
    runtime: Simulated,
    jobs: int = 1,
    draw: random.Random | None = None,
    **setup: Any,
) -> journal.Record:
    """A whole bisection."""
    return go(begin(tmp_path / "b", runtime, **setup), runtime, jobs=jobs, draw=draw)


def blamed(record: journal.Record) -> list[set[str]]:
    """The culprits by their components' ids."""
    found = record.conclusions["components"]["culprits"]
    return [{f"{c['kind']}:{c['name']}" for c in each["components"]} for each in found]


@pytest.mark.parametrize("jobs", [1, 3])
def test_one_culprit_among_many_is_found_and_shown_both_ways(tmp_path: Path, jobs: int) -> None:
    draw = drawn()
    ids = names(COUNT)
    culprit = draw.choice(ids)
    runtime = Simulated(tables(ids), any_of({culprit}))
    record = search(tmp_path, runtime, jobs, draw)
    result = record.conclusions["components"]
    assert (result["status"], blamed(record), result["whole"]) == ("found", [{culprit}], True)
    (found,) = result["culprits"]
    assert found["components"][0] | {"good": "1.0", "bad": "2.0"} == found["components"][0]
    assert (found["alone"]["verdict"], found["without"]["verdict"]) == ("bad", "good")
    assert len(found["alone"]["probes"]) >= 2
    assert len(found["without"]["probes"]) >= 2
    assert record.conclusions["confirm"]["status"] == "confirmed"
    assert runtime.looked == 1
    assert json.loads(json.dumps(record.conclusions)) == record.conclusions


def test_by_exit_codes_parts_that_do_not_fit_may_be_blamed_and_that_is_said(tmp_path: Path) -> None:
    first, second, culprit = ids = names(3)

    def crash(values: Values) -> bool:
        return values[first] != values[second]

    class Crashing(Simulated):
        def run(self, *args: Any) -> ProbeResult:
            values = self.values(args[0])
            return replace(
                super().run(*args), exit_code=int(crash(values) or values[culprit] == BAD)
            )

    runtime = Crashing(tables(ids), lambda values, _: "g")
    by_codes = replace(header(len(runtime.tables)), verdict="exit-code")
    record = go(journal.create(tmp_path / "codes", by_codes), runtime)
    assert {first} in blamed(record)
    assert "do not fit each other counts as bad" in str(record.conclusions["components"]["notes"])
    others = any_of({culprit})
    by_bits = Simulated(tables(ids), lambda values, n: "x" if crash(values) else others(values, n))
    record = search(tmp_path, by_bits)
    assert (blamed(record), record.conclusions["components"]["notes"]) == ([{culprit}], [])


def test_nothing_is_tried_again_that_the_search_before_has_shown(tmp_path: Path) -> None:
    """One culprit of 34: the swap test, 6 splits, the proof both ways, the confirmation."""
    draw = drawn()
    ids = names(COUNT)
    runtime = Simulated(tables(ids), any_of({draw.choice(ids)}))
    record = search(tmp_path, runtime)
    stages = [probed.stage for probed in record.probes]
    assert stages.count("components") <= 1 + 6 + 2 * 2
    assert stages.count("confirm") == 4
    assert not any(
        p.candidate in ("id-1", "id-2") for p in record.probes if p.stage == "components"
    )


def test_what_is_said_to_be_left_is_enough_for_one_culprit(tmp_path: Path) -> None:
    draw = drawn()
    ids = names(COUNT)
    record = search(tmp_path, Simulated(tables(ids), any_of({draw.choice(ids)})))
    places = [n for n, probed in enumerate(record.probes) if probed.stage == "components"]
    before = {name: record.conclusions[name] for name in ("search", "choices")}
    for count, place in enumerate(places):
        then = replace(record, probes=record.probes[:place], conclusions=before)
        stage = chain.current(then, Context(None, tmp_path / "b"))
        assert stage is not None
        assert stage.name == "components"
        assert 2 >= stage.probes_left(then) - (len(places) - count) >= 0


@pytest.mark.parametrize(
    ("sizes", "grouped"),
    [((2,), False), ((1, 1), False), ((1, 1, 1), False), ((1, 2), False), ((2,), True)],
)
def test_sets_that_interact_and_sets_that_are_independent_are_found(
    tmp_path: Path, sizes: tuple[int, ...], grouped: bool
) -> None:
    draw = drawn()
    ids = names(COUNT)
    pool = draw.sample(ids, sum(sizes))
    sets = [{pool.pop() for _ in range(size)} for size in sizes]
    groups = (tuple(sorted(sets[0])),) if grouped else ()
    runtime = Simulated(tables(ids), any_of(*sets), groups)
    record = search(tmp_path, runtime)
    assert record.conclusions["components"]["status"] == "found"
    assert sorted(map(sorted, blamed(record))) == sorted(map(sorted, sets))
    assert record.conclusions["confirm"]["status"] == "confirmed"


def test_a_pair_that_cannot_be_mixed_is_one_culprit_and_said_to_be_inseparable(
    tmp_path: Path,
) -> None:
    draw = drawn()
    ids = names(COUNT)
    pair = set(draw.sample(ids, 2))

    def bits(values: Values, probe: int) -> str:
        versions = {values[c] for c in pair}
        return "x" if len(versions) > 1 else "b" if versions == {BAD} else "g"

    record = search(tmp_path, Simulated(tables(ids), bits))
    (found,) = record.conclusions["components"]["culprits"]
    assert blamed(record) == [pair]
    assert {f"{c['kind']}:{c['name']}" for c in found["inseparable"]} == pair
    assert record.conclusions["confirm"]["status"] == "confirmed"
    assert not any(name.startswith("versions:") for name in record.conclusions)


def test_a_change_outside_all_components_is_said_to_be_elsewhere(tmp_path: Path) -> None:
    """Bits of the base stack: position 2 and later are bad whatever is swapped."""
    ids = names(COUNT)
    stacks = [{**table, "host:kernel": str(p >= 2)} for p, table in enumerate(tables(ids))]

    class Hidden(Simulated):
        def inventory(self, *args: Any) -> Any:
            found = super().inventory(*args)
            kept = tuple(c for c in found.components if c.kind in ("distribution", "package"))
            return type(found)(kept, found.groups, ("files outside packages differ: 12",))

    runtime = Hidden(stacks, lambda values, probe: "b" if values["host:kernel"] == "True" else "g")
    record = search(tmp_path, runtime)
    result = record.conclusions["components"]
    assert (result["status"], result["culprits"]) == ("elsewhere", [])
    assert "driver, host, base system, files outside packages (--files)" in result["reason"]
    assert "still bad" in result["reason"]
    assert result["notes"] == ["files outside packages differ: 12"]
    assert sum(p.stage == "components" for p in record.probes) == 1
    # The pair itself is still shown in turns.
    assert record.conclusions["confirm"]["status"] == "confirmed"
    assert record.conclusions["confirm"]["good_label"] == "24.02"


def test_stacks_in_which_nothing_that_can_be_swapped_differs_need_no_probe(tmp_path: Path) -> None:
    runtime = Simulated([{}, {}], lambda values, probe: "g")
    runtime.values = lambda candidate: {}  # type: ignore[method-assign]
    runtime.run = lambda candidate, job: ran("gb"[candidate.position])  # type: ignore[method-assign]
    record = search(tmp_path, runtime)
    assert record.conclusions["components"]["status"] == "elsewhere"
    assert (
        "no component differs between 24.01 and 24.02"
        in (record.conclusions["components"]["reason"])
    )
    assert not any(p.stage == "components" for p in record.probes)


def test_components_that_were_named_are_the_only_ones_that_are_cleared(tmp_path: Path) -> None:
    class Named(Simulated):
        def inventory(self, *args: Any) -> Any:
            return Inventory(super().inventory(*args).components[:1])

    runtime = Named(tables(names(8)), any_of({"package:c05"}))
    record = search(tmp_path, runtime, components=["distribution:c00"])
    reason = record.conclusions["components"]["reason"]
    assert reason.startswith("the change is in none of the named: distribution:c00; ")


def test_a_mixture_whose_own_probes_differ_ends_the_search_and_nothing_is_blamed(
    tmp_path: Path,
) -> None:
    ids = names(COUNT)

    def bits(values: Values, probe: int) -> str:
        bad = sum(value == BAD for value in values.values())
        return "g" if bad == 0 else "b" if bad == COUNT else f"noise-{probe}"

    record = search(tmp_path, Simulated(tables(ids), bits))
    result = record.conclusions["components"]
    assert (result["status"], result["culprits"]) == ("unstable", [])
    assert result["at"] in result["reason"]
    assert "nothing is blamed" in result["reason"]


def test_mixtures_that_cannot_be_tested_leave_it_unresolved_and_name_what_is_left(
    tmp_path: Path,
) -> None:
    """The good components go into the bad stack alone or not at all: no swap test."""
    ids = names(8)

    def bits(values: Values, probe: int) -> str:
        bad = sum(values[c] == BAD for c in ids)
        return "b" if bad == len(ids) else "x" if values["base"] == "new" else "g"

    stacks = [{**t, "base": "old" if p < 2 else "new"} for p, t in enumerate(tables(ids))]

    class Based(Simulated):
        def inventory(self, *args: Any) -> Any:
            found = super().inventory(*args)
            return type(found)(tuple(c for c in found.components if c.kind in KINDS))

    record = search(tmp_path, Based(stacks, bits))
    result = record.conclusions["components"]
    assert (result["status"], result["culprits"]) == ("unresolved", [])
    assert len(result["left"]) == len(ids)
    assert "it cannot be imported" in result["reason"]
    assert "8 components are neither cleared nor blamed" in result["reason"]
    assert record.conclusions["confirm"]["good_label"] == "24.02"


def test_what_a_culprit_needs_to_give_the_bits_of_the_bad_stack_is_named_with_it(
    tmp_path: Path,
) -> None:
    """One flips the bits alone to a third value, another makes those the bad stack's."""
    draw = drawn()
    ids = names(COUNT)
    first, second = draw.sample(ids, 2)

    def bits(values: Values, probe: int) -> str:
        return {True: "b" if values[second] == BAD else "t", False: "g"}[values[first] == BAD]

    record = search(tmp_path, Simulated(tables(ids), bits))
    result = record.conclusions["components"]
    assert (result["status"], result["whole"]) == ("found", True)
    assert blamed(record) == [{first}, {second}]
    assert result["culprits"][0]["alone"]["verdict"] == "third"
    assert [c["name"] for c in result["culprits"][1]["given"]] == [first.partition(":")[2]]
    assert record.conclusions["confirm"]["status"] == "confirmed"
    assert second.partition(":")[2] not in record.conclusions["confirm"]["good_label"]


def test_where_the_bits_change_twice_a_culprit_is_found_for_each_change(tmp_path: Path) -> None:
    """A third value in the middle: one component changes at the first place, one at the second."""
    draw = drawn()
    ids = names(COUNT)
    first, second = draw.sample(ids, 2)
    middle = {**dict.fromkeys(ids, BAD), second: "1.0"}
    stacks = [*tables(ids, 2, 0), middle, middle, *tables(ids, 0, 2)]

    def bits(values: Values, probe: int) -> str:
        return "gtub"[(values[first] == BAD) + 2 * (values[second] == BAD)]

    record = search(tmp_path, Simulated(stacks, bits))
    assert record.conclusions["search"]["pair"] == [1, 4]
    result = record.conclusions["components"]
    assert (result["status"], result["whole"]) == ("found", True)
    assert sorted(map(sorted, blamed(record))) == sorted([[first], [second]])
    assert {each["alone"]["verdict"] for each in result["culprits"]} == {"third"}
    assert record.conclusions["confirm"]["status"] == "confirmed"


def test_what_has_to_be_swapped_with_a_culprit_is_neither_cleared_nor_blamed(
    tmp_path: Path,
) -> None:
    """A component that is broken without the culprit: it can only be swapped with it."""
    draw = drawn()
    ids = names(8)
    culprit, needs_it = draw.sample(ids, 2)

    def bits(values: Values, probe: int) -> str:
        if values[needs_it] == BAD and values[culprit] != BAD:
            return "x"
        return "b" if values[culprit] == BAD else "g"

    record = search(tmp_path, Simulated(tables(ids), bits))
    result = record.conclusions["components"]
    assert (result["status"], blamed(record)) == ("unresolved", [{culprit}])
    assert [f"{c['kind']}:{c['name']}" for c in result["companions"]] == [needs_it]
    assert needs_it.partition(":")[2] in result["reason"]
    assert "is neither cleared nor blamed" in result["reason"]
    (found,) = result["culprits"]
    assert found["without"]["verdict"] == "good"
    names_of_both = [each.partition(":")[2] for each in (culprit, needs_it)]
    assert all(name in found["without"]["label"] for name in names_of_both)


def test_the_stand_in_takes_what_a_real_runtime_takes() -> None:
    for name, method in inspect.getmembers(Runtime, inspect.isfunction):
        if not name.startswith("_"):
            wanted = list(inspect.signature(method).parameters)
            for kind in (Simulated, VenvRuntime):
                assert list(inspect.signature(getattr(kind, name)).parameters) == wanted, name


# -- how far it goes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("depth", "stages"),
    [
        ("search", ["search"]),
        ("choices", ["search", "confirm"]),
        ("components", ["search", "components", "confirm"]),
        ("versions", ["search", "components", "versions:c00", "confirm"]),
    ],
)
def test_the_depth_asked_for_ends_the_chain(tmp_path: Path, depth: str, stages: list[str]) -> None:
    runtime = Simulated(tables(names(8)), any_of({"distribution:c00"}))
    record = search(tmp_path, runtime, depth=depth)
    assert [name for name in record.conclusions if name != "choices"] == stages
    assert record.conclusions.get("confirm", {"status": "confirmed"})["status"] == "confirmed"


def test_a_bisection_begun_before_there_were_depths_ends_with_the_search(tmp_path: Path) -> None:
    runtime = Simulated(tables(names(8)), any_of({"distribution:c00"}))
    held = journal.create(tmp_path / "b", header(4))
    setup = {"runtime": "simulated"}
    record = replace(held.record, header=replace(held.record.header, setup=setup))
    held.record = record
    assert list(go(held, runtime).conclusions) == ["search"]


def test_a_runtime_that_can_swap_nothing_still_shows_the_pair_in_turns(tmp_path: Path) -> None:
    runtime = Simulated(tables(names(8)), any_of({"distribution:c00"}), blind=True)
    record = search(tmp_path, runtime)
    assert record.conclusions["components"]["status"] == "unsupported"
    assert "nothing can be swapped here" in record.conclusions["components"]["reason"]
    assert record.conclusions["confirm"]["status"] == "confirmed"


def test_ends_that_give_the_same_bits_end_the_chain(tmp_path: Path) -> None:
    runtime = Simulated(tables(names(8)), lambda values, probe: "g")
    assert list(search(tmp_path, runtime).conclusions) == ["search"]


def test_an_unstable_candidate_beside_the_change_keeps_components_from_being_blamed(
    tmp_path: Path,
) -> None:
    ids = names(8)
    stacks = [*tables(ids, 2, 0), {**dict.fromkeys(ids, "1.5")}, *tables(ids, 0, 2)]

    def bits(values: Values, probe: int) -> str:
        return {"1.0": "g", "1.5": f"noise-{probe}", "2.0": "b"}[str(values[ids[0]])]

    record = search(tmp_path, Simulated(stacks, bits))
    assert record.conclusions["search"]["status"] == "range"
    assert "components" not in record.conclusions
    assert record.conclusions["confirm"]["status"] == "confirmed"


def test_where_the_selection_is_the_culprit_no_component_is_searched(tmp_path: Path) -> None:
    """The confirmation is between the bad stack and the bad stack under the good one's lock."""
    component = "package:c05"
    runtime = Simulated(tables(names(8)), any_of({component}))
    held = begin(tmp_path / "b", runtime)
    go(held, runtime, until="choices")
    held = journal.resume(tmp_path / "b")
    made = {"file": "choices/good.lock.toml", "digest": "sha256:1"}
    held.begin_stage("choices", {"transplant": made}, 0.0)
    held.conclude("choices", {"status": "selection", "culprits": []}, 0.0)

    def bits(values: Values, probe: int) -> str:
        return "g" if LOCKED in values else any_of({component})(values, probe)

    runtime.bits = bits
    record = go(held, runtime)
    assert list(record.conclusions) == ["search", "choices", "confirm"]
    result = record.conclusions["confirm"]
    assert result["status"] == "confirmed"
    assert result["good_label"] == "24.03 with the choices of 24.02"


# -- the confirmation ------------------------------------------------------------------------------


def test_the_two_sides_are_tried_in_turns_whatever_may_be_under_way_at_once(tmp_path: Path) -> None:
    draw = drawn()
    runtime = Simulated(tables(names(8)), any_of({"library:c02"}))
    record = search(tmp_path, runtime, 3, draw)
    turns = [p.candidate for p in record.probes if p.stage == "confirm"]
    assert turns[0] == turns[2] != turns[1] == turns[3] == "id-2"
    result = record.conclusions["confirm"]
    assert result["good_label"] == "24.03 with shared library c02 of 24.02"
    assert len(set(result["good"])) == len(set(result["bad"])) == 1
    assert result["good"] != result["bad"]


def test_a_turn_begins_when_the_one_before_it_has_ended(tmp_path: Path) -> None:
    runtime = Simulated(tables(names(8)), any_of({"package:c05"}))
    held = begin(tmp_path / "b", runtime)
    go(held, runtime, until="confirm")
    record = journal.read(tmp_path / "b")
    stage = chain.current(record, Context(runtime, tmp_path / "b"))
    assert stage is not None
    first = stage.next_steps(record, 3, ())
    assert isinstance(first, Batch)
    assert len(first.asks) == 1
    assert stage.next_steps(record, 3, first.asks) == Batch(())


@pytest.mark.parametrize(
    ("letter", "status", "words"),
    [
        ("b", "contradicted", "gave the bad bits in its second turn"),
        ("t", "contradicted", "gave neither the good nor the bad bits in its second turn"),
        ("x", "untestable", "could not be tested in its second turn: it cannot be imported"),
    ],
)
def test_a_host_that_drifts_is_told_from_a_change_of_the_stack(
    tmp_path: Path, letter: str, status: str, words: str
) -> None:
    ids = names(8)
    honest = any_of({"library:c02"})
    whole = len(search(tmp_path / "honest", Simulated(tables(ids), honest)).probes)

    def bits(values: Values, probe: int) -> str:
        return letter if probe == whole - 1 else honest(values, probe)

    record = search(tmp_path / "drifts", Simulated(tables(ids), bits))
    result = record.conclusions["confirm"]
    assert result["status"] == status
    assert words in result["reason"]


# -- versions --------------------------------------------------------------------------------------

VERSIONS = ["1.0", *(f"1.{minor}" for minor in range(1, 20)), "2.0"]


def since(component: str, first_bad: str, broken: frozenset[str] = frozenset()) -> Bits:
    """Bad from one version on."""

    def bits(values: Values, probe: int) -> str:
        version = str(values[component])
        if version in broken:
            return "x"
        return "b" if VERSIONS.index(version) >= VERSIONS.index(first_bad) else "g"

    return bits


def test_the_versions_of_the_culprit_are_searched_and_no_end_is_tried_again(tmp_path: Path) -> None:
    draw = drawn()
    place = draw.randrange(1, len(VERSIONS))
    component = draw.choice(["distribution:c00", "package:c01"])
    runtime = Simulated(
        tables(names(8)), since(component, VERSIONS[place]), index={component: VERSIONS}
    )
    record = search(tmp_path, runtime)
    name = "versions:" + component.partition(":")[2]
    result = record.conclusions[name]
    assert (result["status"], result["range"]) == ("found", None)
    assert (result["last_good"], result["first_bad"]) == (VERSIONS[place - 1], VERSIONS[place])
    mine = [p for p in record.probes if p.stage == name]
    assert len(mine) <= 5 + 2
    ends = {p.candidate for p in record.probes if p.stage != name}
    assert not ends & {p.candidate for p in mine}


def test_versions_that_cannot_be_tested_make_the_answer_a_range(tmp_path: Path) -> None:
    draw = drawn()
    first = draw.randrange(1, 15)
    component, broken = "distribution:c04", VERSIONS[first : first + 5]
    bits = since(component, VERSIONS[first + draw.randrange(6)], frozenset(broken))
    record = search(tmp_path, Simulated(tables(names(8)), bits, index={component: VERSIONS}))
    result = record.conclusions["versions:c04"]
    assert result["status"] == "range"
    assert result["range"] == VERSIONS[first - 1 : first + 6]
    assert {v["verdict"] for v in result["versions"] if v["version"] in broken} == {"untestable"}


def test_versions_with_bits_of_their_own_are_told(tmp_path: Path) -> None:
    """What the index has is built otherwise than what the stacks have."""
    component = "distribution:c04"

    def bits(values: Values, probe: int) -> str:
        return {"1.0": "g", BAD: "b"}.get(str(values[component]), "t")

    record = search(tmp_path, Simulated(tables(names(8)), bits, index={component: VERSIONS}))
    result = record.conclusions["versions:c04"]
    assert (result["status"], result["last_good"], result["first_bad"]) == ("found", "1.0", "2.0")
    assert "the bits change more than once: 1.0 → 1.1 and 1.19 → 2.0" in result["reason"]


def test_versions_of_one_of_two_culprits_are_tried_without_the_other(tmp_path: Path) -> None:
    draw = drawn()
    places = {c: draw.randrange(1, len(VERSIONS)) for c in ("distribution:c00", "package:c01")}
    each = {c: since(c, VERSIONS[place]) for c, place in places.items()}

    def bits(values: Values, probe: int) -> str:
        return "b" if "b" in {one(values, probe) for one in each.values()} else "g"

    runtime = Simulated(tables(names(8)), bits, index=dict.fromkeys(each, VERSIONS))
    record = search(tmp_path, runtime)
    for component, place in places.items():
        result = record.conclusions["versions:" + component.partition(":")[2]]
        assert result["first_bad"] == VERSIONS[place]


def test_a_culprit_that_has_nothing_between_its_two_versions_takes_no_probe(tmp_path: Path) -> None:
    component = "distribution:c00"
    runtime = Simulated(tables(names(8)), any_of({component}), index={component: ["1.0", "2.0"]})
    record = search(tmp_path, runtime)
    result = record.conclusions["versions:c00"]
    assert (result["last_good"], result["first_bad"]) == ("1.0", "2.0")
    assert not any(p.stage == "versions:c00" for p in record.probes)


def test_a_search_over_the_versions_of_the_culprit_is_not_made_twice(tmp_path: Path) -> None:
    """A bisection of a package's versions: its two sides are neighbours already."""
    runtime = Simulated(tables(names(8)), any_of({"distribution:c00"}))
    held = begin(tmp_path / "b", runtime)
    candidates = tuple(
        replace(each, details={"package": "c00"}) for each in held.record.header.candidates
    )
    held.record = replace(held.record, header=replace(held.record.header, candidates=candidates))
    record = go(held, runtime)
    assert blamed(record) == [{"distribution:c00"}]
    assert "versions:c00" not in record.conclusions


# -- kill and go on --------------------------------------------------------------------------------


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_journal_cut_at_any_line_leads_to_the_same_answer_and_repeats_no_finished_probe(
    tmp_path: Path, jobs: int
) -> None:
    draw = drawn()
    component = "distribution:c04"
    place = draw.randrange(1, len(VERSIONS))
    bits = since(component, VERSIONS[place])

    def runtime() -> Simulated:
        return Simulated(tables(names(6)), bits, index={component: VERSIONS})

    whole = search(tmp_path / "whole", runtime(), jobs, draw)
    lines = (tmp_path / "whole" / "b" / journal.FILE).read_bytes().splitlines(keepends=True)
    places = range(1, len(lines))
    for count in places if jobs == 1 or lanes.soak() else draw.sample(places, 8):
        folder = tmp_path / f"cut-{count}"
        folder.mkdir()
        (folder / journal.FILE).write_bytes(b"".join(lines[:count]))
        held, again = journal.resume(folder), runtime()
        before = held.record
        record = go(held, again, jobs=jobs, draw=draw)
        assert blamed(record) == [{component}]
        assert record.conclusions["versions:c04"]["first_bad"] == VERSIONS[place]
        assert record.conclusions["confirm"] | {"turns": 0} == (
            whole.conclusions["confirm"] | {"turns": 0}
        )
        numbers = [p.number for p in record.probes]
        assert record.probes[: len(before.probes)] == before.probes
        assert len(set(numbers)) == len(numbers)
        assert len(again.tried) == len(record.probes) - len(before.probes)
        assert again.looked == ("components" not in before.stages)
        if jobs == 1:
            assert len(record.probes) == len(whole.probes)
            assert (
                record.conclusions["components"]["culprits"][0]["alone"]["label"]
                == (whole.conclusions["components"]["culprits"][0]["alone"]["label"])
            )


def test_the_real_loop_runs_the_chain_with_several_probes_at_once(tmp_path: Path) -> None:
    """Threads, sessions and folders as in a real bisection; then once more after a kill."""
    draw = drawn()
    component = "distribution:c04"
    bits = since(component, VERSIONS[draw.randrange(1, len(VERSIONS))])
    runtime = Simulated(tables(names(10)), bits, index={component: VERSIONS})
    held = begin(tmp_path / "b", runtime)

    def run(held: journal.Journal) -> journal.Record:
        watcher = progress.Plain(StringIO())
        with held:
            return Bisection(held, runtime, watcher, pythonpath=None, env={}, jobs=3).run()

    record = run(held)
    assert record.conclusions["choices"]["status"] == "no-difference"
    assert blamed(record) == [{component}]
    assert record.conclusions["confirm"]["status"] == "confirmed"
    file = tmp_path / "b" / journal.FILE
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[: draw.randrange(1, len(lines))]))
    held = journal.resume(tmp_path / "b")
    for folder in (tmp_path / "b" / "probes").iterdir():  # of probes that are forgotten
        if int(folder.name) > held.record.started:
            shutil.rmtree(folder)
    again = run(held)
    assert blamed(again) == [{component}]
    versions = again.conclusions["versions:c04"]
    assert versions["first_bad"] == record.conclusions["versions:c04"]["first_bad"]
