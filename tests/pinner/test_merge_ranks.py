"""Merging the ledgers of hundreds of ranks: what a plain merge says, one ledger at a time."""

from __future__ import annotations

import json
import os
import random
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinner.inside.values import canonical
from pinner.launch import collect
from pinner.lockfile.ledgers import ProcessLedger, join, read_folder
from pinner.lockfile.merge import HOLES, merge_ledgers
from pinner.lockfile.numbers import Numbers
from tests import lanes, locks

RANKS = 2000 if lanes.soak() else 250


@given(st.lists(st.integers(0, 60)))
def test_numbers_are_the_set_that_was_added(added: list[int]) -> None:
    numbers = Numbers()
    for number in sorted(added):
        numbers.add(number)
    assert list(numbers) == sorted(set(added))
    assert len(numbers) == len(set(added))
    gaps = sum(number - 1 not in set(added) for number in set(added))
    assert numbers.spans == gaps


# What one rank decided: key to (config, its times by config), and the notes it left.
Decided = dict[int, tuple[int, dict[int, float]]]


def _decided(seed: int, ranks: int, keys: int) -> list[Decided]:
    """Ranks that all, some, or none agree on a key, and keys that only some of them saw."""
    dice = random.Random(seed)
    kinds = [dice.choice(("same", "apart", "few")) for _ in range(keys)]
    found = []
    for _ in range(ranks):
        of_rank: Decided = {}
        for key, kind in enumerate(kinds):
            if kind == "few" and dice.random() < 0.7:
                continue
            times = {config: dice.randint(1, 50) / 4 for config in range(3)}
            taken = key % 3 if kind != "apart" else min(times, key=lambda each: times[each])
            of_rank[key] = (taken, times)
        found.append(of_rank)
    return found


def _lines(decided: Decided, rank: int) -> list[dict[str, Any]]:
    lines = [
        locks.choice_line(
            {"N": key}, _config(taken), [(_config(config), time) for config, time in times.items()]
        )
        for key, (taken, times) in decided.items()
    ]
    lines.append({"t": "facts", "facts": {"torch": "2.13.0", "gpu": f"H{rank % 2}"}})
    return lines


def _config(number: int) -> dict[str, Any]:
    return {"BT": 16 * (number + 1)}


def _plain(ranks: list[Decided]) -> dict[int, tuple[int, dict[int, list[int]]]]:
    """Everything at once, key by key: the config with the lowest worst time, and who took what."""
    found = {}
    for key in {key for decided in ranks for key in decided}:
        saw = {rank: decided[key] for rank, decided in enumerate(ranks) if key in decided}
        takers: dict[int, list[int]] = {}
        for rank, (taken, _) in saw.items():
            takers.setdefault(taken, []).append(rank)
        worst = {config: max(times[config] for _, times in saw.values()) for config in range(3)}
        text = {config: canonical(_config(config)) for config in worst}
        best = min(worst, key=lambda config: (worst[config], text[config]))
        found[key] = (best if len(takers) > 1 else next(iter(takers)), takers)
    return found


@settings(max_examples=30 if lanes.soak() else 6, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 6), st.randoms(use_true_random=False))
def test_hundreds_of_ranks_merge_as_a_plain_merge_does(
    seed: int, keys: int, order: random.Random
) -> None:
    ranks = _decided(seed, RANKS, keys)
    numbers = list(range(RANKS))
    order.shuffle(numbers)
    draft = merge_ledgers(locks.ledger(*_lines(ranks[rank], rank), rank=rank) for rank in numbers)
    plain = _plain(ranks)
    chosen = {entry.key["N"]: entry.config for entry in draft.triton}
    assert chosen == {key: _config(best) for key, (best, _) in plain.items()}
    conflicts = {each.key["N"]: each for each in draft.conflicts}
    assert set(conflicts) == {key for key, (_, takers) in plain.items() if len(takers) > 1}
    for key, conflict in conflicts.items():
        told = {pick.config["BT"] // 16 - 1: _ranks(pick.processes) for pick in conflict.picks}
        assert told == plain[key][1]
    (gpu,) = draft.fact_conflicts
    assert [(value, len(who)) for value, who in gpu.values] == [
        ("H0", (RANKS + 1) // 2),
        ("H1", RANKS // 2),
    ]
    assert draft.world_size == RANKS


def _ranks(names: tuple[str, ...]) -> list[int]:
    return sorted(int(name.removeprefix("rank ")) for name in names)


def test_one_ledger_and_one_open_file_at_a_time(tmp_path: Path) -> None:
    """Neither the ledgers that were merged nor their files stay; what all agree on is one span."""
    for rank, decided in enumerate(_decided(1, 60, 3)):
        lines = [locks.process_line(rank), *_lines(decided, rank)]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / f"n-{rank}.jsonl").write_text(text)
    alive: list[weakref.ref[ProcessLedger]] = []
    most, opened = 0, 0

    def watched() -> Iterator[ProcessLedger]:
        nonlocal most, opened
        for ledger in read_folder(tmp_path):
            alive.append(weakref.ref(ledger))
            most = max(most, sum(each() is not None for each in alive))
            opened = max(opened, _open_below(tmp_path))
            yield ledger
            del ledger

    draft = merge_ledgers(watched())
    assert len(draft.processes) == 60
    assert most <= 2
    assert opened <= 1


def _open_below(folder: Path) -> int:
    links = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            links.append(os.readlink(link))
        except OSError:  # the listing's own
            continue
    return sum(link.startswith(str(folder)) for link in links)


def test_what_all_ranks_report_is_kept_once() -> None:
    """The line of the first rank in order, whichever was read first."""

    def ledger(rank: int) -> ProcessLedger:
        problem = {
            "t": "problem",
            "kind": HOLES[0],
            "text": "no pin for it",
            "chooser": "triton",
            "kernel": "k",
            "nearest": f"as rank {rank} found it",
        }
        return locks.ledger(problem, rank=rank)

    draft = merge_ledgers(ledger(rank) for rank in reversed(range(300)))
    (problem,) = draft.problems
    assert problem.processes == tuple(f"rank {rank}" for rank in range(300))
    assert problem.fields["nearest"] == "as rank 0 found it"


def test_joining_what_thousands_wrote_elsewhere_looks_each_up_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each process is asked for its identity once or twice, not once for every other one."""
    from pinner.lockfile import ledgers as room

    asked = 0
    plain = room._who

    def counted(process: Any) -> tuple[str, int]:
        nonlocal asked
        asked += 1
        return plain(process)

    monkeypatch.setattr(room, "_who", counted)
    each = [locks.ledger(rank=rank) for rank in range(400)]
    join(each, each)
    assert asked <= 2 * 2 * len(each)


def test_a_map_of_cublaslt_is_read_anew_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pinner.inside.choosers.cublaslt import mapped

    (tmp_path / "cublaslt").mkdir()
    (tmp_path / "ledger").mkdir()
    (tmp_path / "cublaslt" / "n-1.map").write_bytes(b"x")
    reads = []
    monkeypatch.setattr(mapped, "lines", lambda path: reads.append(path) or [locks.process_line(0)])
    (ledger,) = collect.read_ledgers(tmp_path)
    assert len(reads) == 1
    assert list(ledger.lines()) == []
    assert len(reads) == 2
