"""The command line of `pinner verify`: what it prints, its exit codes, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command_rig import Pinner, python

PLAIN = python("verify_plain.py")
RESUME = python("resume_plain.py", "{dir}")


@pytest.fixture
def pinner(tmp_path: Path) -> Pinner:
    return Pinner(tmp_path)


def test_equal_runs_end_with_0_and_leave_nothing_behind(pinner: Pinner) -> None:
    said = pinner("verify", "--", *PLAIN)
    assert said.code == 0, said.err
    assert "2 runs in fresh processes with fresh caches left the same bits: 6 steps" in said.last
    assert list(pinner.folder.iterdir()) == []
    assert list(pinner.folder.with_name(f"{pinner.folder.name}-tmp").iterdir()) == []


def test_different_runs_end_with_1_and_json_is_one_object(pinner: Pinner) -> None:
    said = pinner("verify", "--json", "--no-trace", "--runs", "3", "--", *PLAIN, FLIP="2")
    assert said.code == 1
    assert (said.json["exit"], said.json["status"]) == (1, "differs")
    assert (said.json["difference"]["stream"], said.json["difference"]["step"]) == ("value", 2)
    assert len(said.json["runs"]) == 3


def test_no_evidence_ends_with_2_and_a_failure_with_5(pinner: Pinner) -> None:
    assert pinner("verify", "--", PLAIN[0], "-c", "import pinner").code == 2
    assert pinner("verify", "--", *PLAIN, EXIT="3").code == 5


def test_scale(pinner: Pinner) -> None:
    said = pinner("verify", "--scale", "1,2", "--", *PLAIN, "{n}")
    assert said.code == 1
    assert "sizes 1 and 2 differ: stream 'value', rank 0, step 3" in said.text


def test_resume_keeps_its_histories_where_it_is_told(pinner: Pinner) -> None:
    said = pinner("verify", "--resume", "--at", "2", "--dir", "kept", "--", *RESUME)
    assert said.code == 0, said.err
    assert "resumed from checkpoint 2 bit for bit: 2 steps in 1 stream" in said.last
    histories = sorted(path.name for path in pinner.path("kept/histories").iterdir())
    assert histories == ["killed", "whole"]


def test_resume_names_what_is_lacking(pinner: Pinner) -> None:
    said = pinner("verify", "--resume", "--json", "--", *RESUME, RESTORES="state")
    assert said.code == 1
    assert [lack["name"] for lack in said.json["lacks"]] == ["Python's random state"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--at", "2", "--", *PLAIN], "belong to --resume"),
        (["--scale", "1,2", "--", *PLAIN], "{n}"),
        (["--scale", "2", "--", *PLAIN, "{n}"], "such as 1,2,4"),
        (["--runs", "1", "--", *PLAIN], "at least 2"),
        (["--resume", "--runs", "2", "--", *PLAIN], "not allowed with"),
        ([], "expected the command to run after `--`"),
    ],
)
def test_what_means_nothing_is_refused(pinner: Pinner, words: list[str], text: str) -> None:
    said = pinner("verify", *words)
    assert said.code == 64
    assert text in said.err


def test_a_lock_that_is_not_there_ends_with_4(pinner: Pinner) -> None:
    said = pinner("verify", "-l", "none.toml", "--", *PLAIN)
    assert said.code == 4
