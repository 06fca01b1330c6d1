"""The bounds that the benchmark of searches prints: counts of probes, never times."""

from __future__ import annotations

import random

import pytest

from benchmarks import search
from stackbisect.search import culprits
from tests.stackbisect.test_parallel import drawn


def check(rows: list[search.Row]) -> None:
    """Every answer is right, and none took more than its bound."""
    for row in rows:
        assert row.right == len(row.probes), row.name
        assert max(row.probes) <= search.BOUNDS[row.name], row.name


def test_simulated_stacks_of_60_packages_hold_their_bounds() -> None:
    rows = search.package_rows(drawn(), drawn=100)
    check(rows)
    assert len(rows[0].probes) == 60  # one culprit at every place


def test_what_one_culprit_takes_is_said_beforehand() -> None:
    assert culprits.probes_of_one(60) == search.BOUNDS["one culprit"]
    for count in range(1, 30):
        names = [f"p{number:02}" for number in range(count)]
        parts = culprits.atoms(names, ())
        for name in names:
            _, probes = search.search_packages(search.one(name).stack, parts)
            assert probes <= culprits.probes_of_one(count)


def test_lists_of_1000_tags_hold_their_bounds() -> None:
    draw = drawn()
    check(search.tag_rows([1, 999, *draw.sample(range(2, 999), 20)]))


@pytest.mark.parametrize("culprit", [0, 59])
def test_a_wrong_answer_would_be_counted(culprit: int) -> None:
    """The bounds can fail: a stack whose stated culprit is another one is not right."""
    names = search.PACKAGES
    case = search.one(names[culprit])
    wrong = search.Case(case.stack, search.one(names[culprit - 1]).culprits)
    assert search._row("one culprit", [case]).right == 1
    assert search._row("one culprit", [wrong]).right == 0


def test_the_benchmark_prints_counts_of_every_kind(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "TAGS", 20)
    monkeypatch.setattr(search, "SEEDS", 3)
    for row in search.package_rows(random.Random(1), drawn=2):
        print(row.text())
    for row in search.tag_rows([5]):
        print(row.text())
    print(search.in_noise(range(3)).text("noise"))
    text = capsys.readouterr().out
    assert all(name in text for name in search.BOUNDS)
    assert "wrong" in text
