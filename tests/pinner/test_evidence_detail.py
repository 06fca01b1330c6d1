"""Values digested row by row, or with their scales: the comparison says where they differ."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from pinner.compare import detail, evidence
from pinner.compare.traces import compare_traces
from pinner.inside.evidence.detail import MOST_ROWS, PART_DIGITS, detailed
from pinner.inside.evidence.digest import digest, digest_scaled
from pinner.inside.faults import EvidenceError
from tests.command_rig import Pinner
from tests.trace_rig import Program

SEED = secrets.randbits(32)


def drawn(*sizes: int) -> list[int]:
    """A number below each size, from the seed that is printed."""
    generator = torch.Generator().manual_seed(SEED)
    found = [int(torch.randint(size, (1,), generator=generator)) for size in sizes]
    print(f"seed {SEED}: {found}")
    return found


def routing(tokens: int) -> torch.Tensor:
    """A routing map in which no two tokens go the same way."""
    return torch.arange(tokens * 3).reshape(tokens, 3)


def where(first: Any, second: Any, **how: Any) -> str:
    return detail.where(detailed(first, **how)[1], detailed(second, **how)[1])


def swapped(tensor: torch.Tensor, one: int, other: int) -> torch.Tensor:
    found = tensor.clone()
    found[[one, other]] = found[[other, one]]
    return found


class TestRows:
    def test_the_digest_is_that_of_the_whole(self) -> None:
        tensor = routing(9)
        text, what = detailed(tensor, rows=True)
        assert (text, what["shape"]) == (digest(tensor)[0], [9, 3])

    def test_two_rows_that_changed_places_are_both_named(self) -> None:
        one, step = drawn(4096, 4095)
        rows = sorted((one, (one + 1 + step) % 4096))
        first = routing(4096)
        assert where(first, swapped(first, *rows), rows=True) == (
            f"first differing row {rows[0]} of 4,096; 2 differ ({rows[0]}, {rows[1]})"
        )

    def test_of_very_many_rows_neighbours_are_named_together(self) -> None:
        (row,) = drawn(10_000)
        first = routing(10_000)
        other = first.clone()
        other[row, 1] += 1
        group = row // 3 * 3
        last = min(group + 2, 9_999)
        text = f"first differing rows {group} to {last} of 10,000; 1 of 3334 groups"
        assert where(first, other, rows=True) == text
        assert detailed(first, rows=True)[1]["rows"]["each"] == 3
        assert MOST_ROWS == 4096

    def test_arrays_of_numpy_have_rows_too(self) -> None:
        first = routing(5)
        other = swapped(first, 1, 4)
        assert where(first.numpy(), other.numpy(), rows=True).startswith("first differing row 1 ")
        assert detailed(first.numpy(), rows=True) == detailed(first, rows=True)

    def test_another_number_of_rows_is_said(self) -> None:
        assert where(routing(4), routing(5), rows=True) == "4 and 5 rows"

    def test_no_rows_at_all(self) -> None:
        assert detailed(torch.empty(0, 3), rows=True)[1]["rows"] == {
            "count": 0,
            "each": 1,
            "digests": "",
        }

    @pytest.mark.parametrize("value", [torch.tensor(1.0), 1.5])
    def test_what_has_no_rows_is_refused(self, value: Any) -> None:
        with pytest.raises(EvidenceError, match="without axes"):
            detailed(value, rows=True)


class TestScales:
    VALUES = (torch.arange(64) % 256).to(torch.uint8).reshape(8, 8)
    BLOCKS = torch.arange(16, dtype=torch.float32).reshape(8, 2)
    WHOLE = torch.tensor(2.5)

    def test_values_and_scales_make_one_digest(self) -> None:
        found, what = detailed(self.VALUES, scales=[self.BLOCKS, self.WHOLE])
        assert found == digest_scaled(self.VALUES, [self.BLOCKS, self.WHOLE])[0]
        plain = digest(self.VALUES)[0].partition(":")[2]
        assert what["parts"][0] == plain[:PART_DIGITS]
        assert detailed(self.VALUES, scales=self.WHOLE)[0] != digest(self.VALUES)[0]

    def test_what_differs_is_named(self) -> None:
        changed = self.BLOCKS.clone()
        changed[5, 1] += 1
        held = {"first": [self.BLOCKS, self.WHOLE], "other": [changed, self.WHOLE]}
        values = dict.fromkeys(held, self.VALUES)
        texts = [detailed(values[n], scales=held[n])[1] for n in held]
        assert detail.where(*texts) == (
            "the scales 0 differ, the packed values and the scales 1 are equal"
        )
        values["other"] = self.VALUES + 1
        held["other"] = [changed, self.WHOLE + 1]
        texts = [detailed(values[n], scales=held[n])[1] for n in held]
        assert detail.where(*texts) == "the packed values, the scales 0 and the scales 1 differ"
        flipped = self.VALUES.clone()
        flipped[0, 0] ^= 1
        texts = [detailed(v, scales=self.WHOLE)[1] for v in (self.VALUES, flipped)]
        assert detail.where(*texts) == "the packed values differ, the scales are equal"

    def test_a_changed_scale_of_a_row_names_that_row(self) -> None:
        (row,) = drawn(8)
        changed = self.BLOCKS.clone()
        changed[row, 0] *= 2
        changed[row, 0] += 1
        texts = [
            detailed(self.VALUES, rows=True, scales=[scales, self.WHOLE])[1]
            for scales in (self.BLOCKS, changed)
        ]
        assert f"first differing row {row} of 8; 1 differs" in detail.where(*texts)

    def test_scales_of_two_rows_that_changed_places_count(self) -> None:
        texts = [
            detailed(self.VALUES, rows=True, scales=scales)[1]
            for scales in (self.BLOCKS, swapped(self.BLOCKS, 2, 6))
        ]
        assert detail.where(*texts).endswith("first differing row 2 of 8; 2 differ (2, 6)")


def test_what_is_not_understood_says_nothing() -> None:
    odd: list[dict[str, Any]] = [
        {"rows": 1},
        {"rows": {"count": 2, "each": 1, "digests": "00"}},
        {"parts": "x"},
        {},
    ]
    for each in odd:
        assert detail.where(each, each) == ""


def test_the_same_difference_of_a_plain_stream_says_nothing_more() -> None:
    runs = [
        evidence.gather([evidence.Emitter(0, (("x", 0, text),))]) for text in ("nh128:a", "nh128:b")
    ]
    (found,) = evidence.compare(*runs)
    assert found.detail == ""


WORKLOAD = """
import os, sys, torch, pinner
tokens = torch.arange(24).reshape(8, 3)
bad = os.environ["PINNER_SESSION"].endswith(("run-2", "bad/session"))
for step in range(2):
    chosen, scales = tokens + step, torch.ones(8) * (step + 1)
    if step == 1 and bad:
        chosen[[2, 5]] = chosen[[5, 2]]
        scales[7] = 9
    pinner.fingerprint("experts", chosen, rows=True)
    pinner.fingerprint("packed", chosen.to(torch.uint8), scales=scales)
"""
SWAPPED = "first differing row 2 of 8; 2 differ (2, 5)"


class TestReports:
    def test_verify_names_the_rows_and_the_scales(self, tmp_path: Path) -> None:
        (tmp_path / "work.py").write_text(WORKLOAD)
        command = [sys.executable, "work.py"]
        said = Pinner(tmp_path)("verify", "--no-trace", "--dir", "runs", "--json", "--", *command)
        assert said.code == 1, said.err
        assert "stream 'experts'" in said.err
        assert said.json["difference"]["detail"] == SWAPPED
        assert SWAPPED in said.err
        said = Pinner(tmp_path)("compare", "runs/run-1", "runs/run-2")
        assert "the packed values and the scales differ" in said.out

    def test_a_comparison_of_traces_names_them(self, tmp_path: Path) -> None:
        for name in ("good", "bad"):
            Program(tmp_path / name, "steps").run(WORKLOAD)
        report = compare_traces(tmp_path / "good" / "trace", tmp_path / "bad" / "trace", jobs=1)
        assert f"    {SWAPPED}\n" in report.text()
