"""`pinner compare A B` for traces, run folders and locks; two kinds, or no baseline, never pass."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from pinner.compare import locked
from pinner.compare.evidence import Emitter, gather
from pinner.compare.locks import compare_locked
from pinner.launch import comparing, session_dir
from pinner.launch.comparing import Options, Outcome
from pinner.launch.session_dir import Settings
from pinner.lockfile.codec import dumps
from pinner.lockfile.schema import Evidence, StreamRecord
from tests import locks, trace_model
from tests.trace_model import Fault


def compare(a: Path, b: Path) -> Outcome:
    outcome = comparing.compare(a, b, Options(jobs=1), lambda text: None)
    assert json.loads(json.dumps(outcome.to_json()))["exit"] == outcome.exit
    return outcome


def run_folder(path: Path, streams: Mapping[str, str], algorithm: str = "sha256") -> Path:
    """The folder of a run with one rank: a letter is the digest of one step of a stream."""
    session = session_dir.create(path, Settings(mode="observe", run=path.name, created="2026"))
    lines = [{**locks.process_line(0)}]
    for stream, text in streams.items():
        for step, letter in enumerate(text):
            line = {"t": "evidence", "stream": stream, "step": step, "what": {}}
            lines.append({**line, "digest": f"{algorithm}:{letter}"})
    locks.write_ledger(session.ledger, "0", lines)
    return path


def lock_file(path: Path, letters: str) -> Path:
    """A lock that keeps one stream, a letter for each step; without letters, a draft."""
    lines = tuple(("loss", step, locks.digest(letter)) for step, letter in enumerate(letters))
    kept = locked.keep(gather([Emitter(0, lines)]))
    lock = locks.lock(locks.entry())
    sealed = replace(lock.run, sealed=bool(letters), runs=2 if letters else 0)
    path.write_text(dumps(replace(lock, evidence=kept, run=sealed)))
    return path


class TestTraces:
    def test_equal_and_different_ones(self, tmp_path: Path) -> None:
        a = trace_model.write(tmp_path / "a", trace_model.run())
        b = trace_model.write(tmp_path / "b", trace_model.run(Fault(1, 20)))
        assert compare(a, a).exit == 0
        outcome = compare(a, b)
        assert outcome.exit == 1
        assert outcome.to_json()["first"]["rank"] == 1
        assert outcome.text.startswith("A and B differ: first in step 0, rank 1")

    def test_a_damaged_one_is_unreadable(self, tmp_path: Path) -> None:
        a = trace_model.write(tmp_path / "a", trace_model.run())
        b = trace_model.write(tmp_path / "b", trace_model.run())
        (log,) = (a / "rank-0").iterdir()
        log.write_bytes(log.read_bytes().replace(b'{"e":"op"', b'{"e":"op', 1))
        outcome = compare(a, b)
        assert (outcome.exit, outcome.to_json()["status"]) == (65, "unreadable")
        assert f"{log}:2: expected an event" in outcome.text


class TestRunFolders:
    def test_equal_evidence(self, tmp_path: Path) -> None:
        a = run_folder(tmp_path / "a", {"loss": "abc", "norm": "de"})
        b = run_folder(tmp_path / "b", {"loss": "abc", "norm": "de"})
        outcome = compare(a, b)
        assert outcome.exit == 0
        assert outcome.text.startswith("A and B are equal: 5 steps in 2 streams")

    def test_the_first_difference_is_the_answer(self, tmp_path: Path) -> None:
        a = run_folder(tmp_path / "a", {"loss": "abc", "norm": "de"})
        b = run_folder(tmp_path / "b", {"loss": "abX", "norm": "dY"})
        outcome = compare(a, b)
        assert outcome.exit == 1
        assert outcome.text.splitlines()[0] == (
            "A and B differ: first in stream 'norm', rank 0, step 1: sha256:e in A, sha256:Y in B"
        )

    @pytest.mark.parametrize(
        ("streams", "reason"), [({}, "no-evidence"), ({"loss": "aaa"}, "worthless-evidence")]
    )
    def test_evidence_that_shows_nothing(
        self, tmp_path: Path, streams: dict[str, str], reason: str
    ) -> None:
        a, b = (run_folder(tmp_path / name, streams) for name in "ab")
        outcome = compare(a, b)
        assert (outcome.exit, outcome.to_json()["reason"]) == (2, reason)

    def test_a_stream_that_never_changes_differs_all_the_same(self, tmp_path: Path) -> None:
        a, b = (run_folder(tmp_path / name, {"loss": name * 3}) for name in "ab")
        assert compare(a, b).exit == 1

    def test_digests_of_two_algorithms(self, tmp_path: Path) -> None:
        a = run_folder(tmp_path / "a", {"loss": "abc"})
        b = run_folder(tmp_path / "b", {"loss": "abc"}, "nh128")
        outcome = compare(a, b)
        assert outcome.exit == 2
        assert "A has digests by sha256, B by nh128" in outcome.text


class TestLocks:
    def test_the_evidence_they_keep(self, tmp_path: Path) -> None:
        a = lock_file(tmp_path / "a.toml", "abcdef")
        assert compare(a, a).exit == 0
        outcome = compare(a, lock_file(tmp_path / "b.toml", "abcd1f"))
        assert outcome.exit == 1
        assert outcome.text.startswith("A and B differ: first in stream 'loss', rank 0, step 4: ")
        assert f"{locks.digest('e')} in A, {locks.digest('1')} in B" in outcome.text

    def test_a_difference_after_the_steps_that_stand_there_one_by_one(self) -> None:
        def kept(last: str) -> Evidence:
            head = tuple(f"nh128:{n}" for n in range(16))
            return Evidence("nh128", 20, (StreamRecord("loss", 0, 20, "sha256:" + last, head),))

        assert compare_locked(kept("a"), kept("a")).steps == 20
        (found,) = compare_locked(kept("a"), kept("b")).differences
        assert (found.step, found.from_here_on) == (15, True)

    def test_runs_of_different_length_are_equal_only_as_far_as_both_go(
        self, tmp_path: Path
    ) -> None:
        a = lock_file(tmp_path / "a.toml", "abcdef")
        outcome = compare(a, lock_file(tmp_path / "b.toml", "abcd"))
        assert (outcome.exit, outcome.to_json()["status"]) == (2, "incomplete")
        assert "A has 6 steps from 0 on, B has 4 steps" in outcome.text

    def test_a_stream_that_only_one_has_is_a_difference(self) -> None:
        one = Evidence("nh128", 1, (StreamRecord("loss", 0, 1, "sha256:a", ("nh128:a",)),))
        (found,) = compare_locked(one, Evidence()).differences
        assert (found.stream, found.second) == ("loss", None)

    def test_without_evidence(self, tmp_path: Path) -> None:
        a = lock_file(tmp_path / "a.toml", "")
        outcome = compare(a, a)
        assert (outcome.exit, outcome.to_json()["reason"]) == (2, "no-evidence")

    def test_something_that_is_no_lock_is_unreadable(self, tmp_path: Path) -> None:
        (tmp_path / "a.toml").write_text("version = [")
        assert compare(tmp_path / "a.toml", tmp_path / "a.toml").exit == 65


class TestNoBaseline:
    """Case F7: inactive is not pass."""

    @pytest.mark.parametrize("missing", ["a", "b"])
    def test_nothing_is_there(self, tmp_path: Path, missing: str) -> None:
        trace_model.write(tmp_path / "there", trace_model.run())
        sides = [tmp_path / ("none" if missing == name else "there") for name in "ab"]
        outcome = compare(sides[0], sides[1])
        assert (outcome.exit, outcome.to_json()["status"]) == (2, "inactive")
        assert outcome.text.startswith(f"inactive: {missing.upper()}: there is nothing at")

    def test_a_folder_that_is_none_of_these(self, tmp_path: Path) -> None:
        assert compare(tmp_path, tmp_path).exit == 2
        run_folder(tmp_path / "validate-1", {"loss": "abc"})
        text = compare(tmp_path, tmp_path).text
        assert "holds several runs; name one of them: validate-1" in text

    def test_two_kinds(self, tmp_path: Path) -> None:
        a = trace_model.write(tmp_path / "a", trace_model.run())
        b = lock_file(tmp_path / "b.toml", "abc")
        c = run_folder(tmp_path / "c", {"loss": "abc"})
        assert compare(a, b).exit == compare(c, a).exit == 2
        assert (
            "A is a lock and B is the folder of a run: give two of one kind" in compare(b, c).text
        )
