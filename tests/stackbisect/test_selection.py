"""Selections of two stacks: what differs, what can be transplanted, and what a run did with it."""

from __future__ import annotations

import random
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pinner.lockfile.codec import dumps
from stackbisect.spaces import selection
from stackbisect.spaces.selection import Selection
from tests import locks

SOURCES = [locks.digest("1"), locks.digest("2")]


def chosen(folder: Path, *lines: Mapping[str, Any], rank: int = 0, probe: int = 1) -> Selection:
    """What a probe of one process with this ledger chose."""
    return selection.read(session(folder, {rank: lines}), probe, ("train",), "2026-01-01")


def session(folder: Path, ledgers: Mapping[int, Any]) -> Path:
    """A session folder with a ledger for each rank."""
    place = folder / secrets.token_hex(4)
    (place / "ledger").mkdir(parents=True)
    for rank, lines in ledgers.items():
        first = locks.process_line(rank, world=len(ledgers))
        locks.write_ledger(place / "ledger", f"rank-{rank}", [first, *lines])
    return place


def choice(size: int, block: int, source: int = 0, how: str = "only") -> dict[str, Any]:
    """One choice of a kernel; `source` counts the kernel's sources."""
    config = {"BLOCK": block, "num_warps": 4}
    return locks.choice_line({"N": size}, config, source=SOURCES[source], how=how)


Drawn = dict[int, tuple[int, int]]  # key to (block, source)


def draw(rng: random.Random) -> Drawn:
    """At most five keys, each decided one way or another."""
    sizes = rng.sample(range(5), rng.randrange(6))
    return {size: (rng.choice((16, 32)), rng.randrange(2)) for size in sizes}


def test_random_selections_against_enumeration(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for number in range(60):
        one, other = draw(rng), draw(rng)
        good, bad = (
            chosen(tmp_path / f"{number}-{name}", *(choice(k, *v) for k, v in drawn.items()))
            for name, drawn in (("good", one), ("bad", other))
        )
        both = one.keys() & other.keys()
        same_source = {key for key in both if one[key][1] == other[key][1]}
        moved = {key for key in same_source if one[key][0] != other[key][0]}
        differing = {key for key in both if one[key][0] != other[key][0]}
        found = selection.compare(good, bad)
        assert {change.key["N"] for change in found.moved} == moved
        assert found.count == len(differing) + len(one.keys() ^ other.keys())
        assert found.transplantable == bool(moved)
        assert bool(found.lines("good", "bad")) == bool(found.count)
        given = selection.transplant(good, bad)
        assert {entry.key["N"]: entry.config["BLOCK"] for entry in given.lock.triton} == {
            key: one[key][0] for key in same_source
        }
        assert len(given.left_out) == len(one) - len(same_source) + len(other.keys() - one.keys())
        assert given.count == len(one)
        assert dumps(given.lock)  # it can be written


class TestSettings:
    def test_another_value_is_a_difference_and_goes_with_the_transplant(
        self, tmp_path: Path
    ) -> None:
        ends = [
            chosen(tmp_path, locks.setting_line(value=value, held="forced"))
            for value in ("Ring", "Tree")
        ]
        found = selection.compare(*ends)
        assert (found.count, found.transplantable) == (1, True)
        assert found.components() == [
            {"kind": "selection", "name": "nccl NCCL_ALGO", "good": "Ring", "bad": "Tree"}
        ]
        given = selection.transplant(*ends)
        (setting,) = given.lock.settings
        assert setting.value == "Ring"
        held = session(tmp_path, {0: [locks.setting_line(value="Ring", held="forced")]})
        assert selection.applied(held, given, {}).whole
        other = session(tmp_path, {0: [locks.setting_line(value="Tree", held="recorded")]})
        told = selection.applied(other, given, {})
        assert (told.applied, told.of, len(told.faults)) == (0, 1, 1)

    def test_one_that_nothing_holds_is_a_fault_only_where_it_differs(self, tmp_path: Path) -> None:
        line = locks.setting_line("benchmark", chooser="cudnn", held="no", value=True)
        good = chosen(tmp_path, choice(1, 16), line)
        bad = chosen(tmp_path, choice(1, 32), line)
        assert selection.compare(good, bad).count == 1
        given = selection.transplant(good, bad)
        assert given.count == 1
        forced = choice(1, 16, how="forced")
        same = session(tmp_path, {0: [forced, line]})
        assert selection.applied(same, given, good.holes).whole
        other = session(tmp_path, {0: [forced, {**line, "value": False}]})
        told = selection.applied(other, given, good.holes)
        assert ["cudnn benchmark" in fault for fault in told.faults] == [True]


class TestChoicesThatNoLockHolds:
    @pytest.mark.parametrize("same", [True, False])
    def test_they_differ_where_their_configs_do(self, tmp_path: Path, same: bool) -> None:
        def past(block: int) -> dict[str, Any]:
            return {
                "t": "problem",
                "kind": "elsewhere",
                "chooser": "triton",
                "kernel": "m:k",
                "text": "decided past the tuner",
                "config": {"BLOCK": block},
            }

        good = chosen(tmp_path, past(16))
        bad = chosen(tmp_path, past(16 if same else 32))
        found = selection.compare(good, bad)
        assert found.count == (0 if same else 2)
        assert not found.transplantable
        assert all(line.startswith("no lock holds: ") for line in found.lines("good", "bad"))


class TestWhatARunDidWithTheLock:
    @pytest.mark.parametrize(
        ("lines", "applied", "fault"),
        [
            ([choice(1, 16, how="forced"), choice(2, 16, how="forced")], 2, None),
            ([choice(1, 16, how="forced")], 1, "unused"),
            (
                [*(choice(n, 16, how="forced") for n in (1, 2)), choice(3, 16, how="fallback")],
                2,
                "fallback",
            ),
        ],
    )
    def test_each_way_is_counted(
        self, tmp_path: Path, lines: list[Any], applied: int, fault: str | None
    ) -> None:
        good = chosen(tmp_path, choice(1, 16), choice(2, 16))
        bad = chosen(tmp_path, choice(1, 32), choice(2, 32))
        given = selection.transplant(good, bad)
        told = selection.applied(session(tmp_path, {0: lines}), given, good.holes)
        assert (told.applied, told.of) == (applied, 2)
        assert [text.partition(":")[0] for text in told.faults] == ([fault] if fault else [])

    def test_other_machine_code_is_applied_and_other_heuristics_are_not(
        self, tmp_path: Path
    ) -> None:
        good, bad = chosen(tmp_path, choice(1, 16)), chosen(tmp_path, choice(1, 32))
        given = selection.transplant(good, bad)
        drift = {"t": "problem", "kind": "drift", "chooser": "triton", "kernel": locks.KERNEL}
        code = {**drift, "text": "the same config, other machine code", "spec": "0" * 16}
        told = selection.applied(
            session(tmp_path, {0: [choice(1, 16, how="forced"), code]}), given, {}
        )
        assert (told.whole, len(told.drifted)) == (True, 1)
        other = {**drift, "text": "the same config, other heuristics", "key": {"N": 1}}
        told = selection.applied(
            session(tmp_path, {0: [choice(1, 16, how="forced"), other]}), given, {}
        )
        assert (told.whole, told.drifted) == (False, ())


def test_the_two_probes_that_differ_least_are_compared(tmp_path: Path) -> None:
    """A near tie is decided anew in each probe; where two ends agree, the selection is not it."""
    good = [chosen(tmp_path, choice(1, 16), probe=1), chosen(tmp_path, choice(1, 32), probe=2)]
    bad = [chosen(tmp_path, choice(1, 64), probe=3), chosen(tmp_path, choice(1, 32), probe=4)]
    found = selection.nearest(good, bad)
    assert (found.good.probe, found.bad.probe, found.count) == (2, 4, 0)


def test_kernels_of_another_source_or_machine_code_are_named_whatever_was_chosen(
    tmp_path: Path,
) -> None:
    code = [locks.code_line({"BLOCK": 16}, "0" * 16, locks.digest(each)) for each in ("a", "b")]
    config = locks.choice_line({"N": 1}, {"BLOCK": 16}, source="")
    one, other = (chosen(tmp_path, config, {**each, "source": ""}) for each in code)
    assert selection.compare(one, one).bodies == ()
    found = selection.compare(one, other)
    assert (found.count, found.bodies) == (0, (f"{locks.KERNEL} (machine code)",))
    found = selection.compare(chosen(tmp_path, choice(1, 16)), chosen(tmp_path, choice(1, 16, 1)))
    assert (found.count, found.bodies) == (0, (f"{locks.KERNEL} (source)",))


class TestRanksThatChooseDifferently:
    """One lock holds one config for all ranks: what each rank took is compared beside it."""

    def test_the_lock_holds_one_and_the_rest_is_known(self, tmp_path: Path) -> None:
        found = by_rank(tmp_path, 32, 16)
        assert len(found.conflicts) == 1
        assert [entry.config["BLOCK"] for entry in found.lock.triton] == [16]

    @pytest.mark.parametrize(
        ("good", "bad", "count"),
        [
            ((32, 16), (32, 16), 0),
            ((32, 16), (16, 32), 1),
            ((32, 16), (64, 16), 1),
            ((32, 16), (16, 16), 1),
            ((16, 16), (16, 16), 0),
            ((32, 32), (16, 32), 1),
        ],
    )
    def test_equal_locks_are_no_equal_choices(
        self, tmp_path: Path, good: tuple[int, ...], bad: tuple[int, ...], count: int
    ) -> None:
        found = selection.compare(by_rank(tmp_path, *good), by_rank(tmp_path, *bad))
        assert found.count == count
        assert found.transplantable == bool(count)
        assert len(found.components()) == count
        if found.spread:
            lines = "\n".join(found.lines("old", "new"))
            assert f"BLOCK={good[0]} on rank 0" in lines or "everywhere" in lines

    def test_processes_without_a_rank_are_compared_by_how_many_took_what(
        self, tmp_path: Path
    ) -> None:
        same = [by_rank(tmp_path, *blocks, ranks=False) for blocks in ((32, 16), (16, 32))]
        assert selection.compare(*same).count == 0


def by_rank(folder: Path, *blocks: int, ranks: bool = True) -> Selection:
    """Processes that each found another config fastest; the smallest was fastest of all."""
    place = folder / secrets.token_hex(4)
    (place / "ledger").mkdir(parents=True)
    for number, block in enumerate(blocks):
        config = {"BLOCK": block}
        line = locks.choice_line({"N": 1}, config, [(config, block / 16)])
        first = locks.process_line(number if ranks else None, world=len(blocks), pid=number + 7)
        locks.write_ledger(place / "ledger", f"p-{number}", [first, line])
    return selection.read(place, 1, ("train",), "2026-01-01")
