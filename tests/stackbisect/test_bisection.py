"""The loop of a bisection over a runtime in memory: journal, resume, failing machinery, report."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from stackbisect import journal, progress, report, report_text, state
from stackbisect.bisection import Aborted, Bisection
from stackbisect.probe import (
    Candidate,
    EvidenceOptions,
    InfrastructureError,
    Job,
    ProbeResult,
    Runtime,
)
from stackbisect.search import probing
from stackbisect.search.verdict import EndsFailure
from stackbisect.stages.search import Outcome, Search
from tests.stackbisect.histories import probe, ran


@dataclass
class Invented:
    """A runtime whose candidates answer as letters say (`histories.probe`)."""

    kinds: str
    before: Callable[[int], None] = lambda count: None
    jobs: list[Job] = field(default_factory=list)
    tried: list[int] = field(default_factory=list)
    name: str = "invented"

    def describe(self) -> dict[str, Any]:
        """Nothing worth saying."""
        return {}

    def run(self, candidate: Candidate, job: Job) -> ProbeResult:
        """Answer; `before` may raise what a real runtime would."""
        self.before(len(self.tried) + 1)
        self.tried.append(candidate.position)
        self.jobs.append(job)
        return probe(self.kinds[candidate.position], self.tried.count(candidate.position))

    def difference(self, good: Candidate, bad: Candidate) -> dict[str, dict[str, list[str | None]]]:
        """One package, by position."""
        changed: list[str | None] = [str(good.position), str(bad.position)]
        return {"distributions": {"pkg": changed}, "packages": {}, "environment": {}}

    def prefetch(self, candidate: Candidate) -> None:
        """Nothing is far away."""

    def close(self) -> None:
        """Nothing is held."""


def header(kinds: str, verdict: str = "evidence") -> journal.Header:
    """A bisection of as many candidates as there are letters."""
    candidates = tuple(Candidate(f"id-{p}", f"v{p}", p) for p in range(len(kinds)))
    return journal.Header(
        command=("true",),
        workdir="/",
        verdict=verdict,
        evidence=EvidenceOptions(),
        time_limit=None,
        candidates=candidates,
        setup={"runtime": "invented"},
        runtime={},
        excluded=(),
        notes=(),
        again=("stackbisect", "run"),
        created="2026-01-01T00:00:00+00:00",
    )


def begin(folder: Path, kinds: str, verdict: str = "evidence") -> journal.Journal:
    """A new journal."""
    return journal.create(folder, header(kinds, verdict))


def go(held: journal.Journal, runtime: Runtime, jobs: int = 1) -> Outcome | None:
    """Go on with a journal to the answer, and give it back."""
    watcher = progress.Plain(StringIO())
    with held:
        record = Bisection(held, runtime, watcher, pythonpath=None, env={}, jobs=jobs).run()
    return Search.of(record.header).outcome(record)


def test_every_probe_has_a_session_of_its_own_and_an_empty_scratch_folder(tmp_path: Path) -> None:
    runtime = Invented("ggbb")
    go(begin(tmp_path / "b", "ggbb"), runtime)
    assert len({job.session for job in runtime.jobs}) == len(runtime.jobs) > 4
    for job in runtime.jobs:
        settings = json.loads((job.session / "session.json").read_text())
        assert (settings["mode"], settings["evidence"]) == ("observe", True)
        assert (job.inside / "inject" / "sitecustomize.py").exists()
        assert not job.scratch.exists()


@pytest.mark.parametrize("kinds", ["ggggbbbb", "gxg~xtxbxb", "gtttttub", "gxxxxxb"])
def test_a_bisection_killed_before_any_probe_goes_on_without_repeating_one(
    tmp_path: Path, kinds: str
) -> None:
    """A kill is an exception that is none of those the program knows, at every place in turn."""
    whole = Invented(kinds)
    expected = go(begin(tmp_path / "whole", kinds), whole)

    class Kill(BaseException):
        pass

    def kill(count: int) -> None:
        if count == left[0] + 1:
            raise Kill

    for place in range(len(whole.tried)):
        folder = tmp_path / f"cut-{place}"
        left = [place]
        runtime = Invented(kinds, kill)
        with pytest.raises(Kill):
            go(begin(folder, kinds), runtime)
        assert len(journal.read(folder).probes) == place
        left[0] = 10**6
        assert go(journal.resume(folder), runtime) == expected
        assert runtime.tried == whole.tried


def test_machinery_that_fails_stops_and_is_resumed(tmp_path: Path) -> None:
    drawn = random.Random(5)
    failing = {drawn.randrange(2, 7)}

    def fail(count: int) -> None:
        if count in failing:
            failing.clear()
            raise InfrastructureError("the daemon is gone")

    runtime = Invented("ggggbbbb", fail)
    with pytest.raises(InfrastructureError):
        go(begin(tmp_path / "b", "ggggbbbb"), runtime)
    record = journal.read(tmp_path / "b")
    assert record.stopped == "the daemon is gone"
    shown = report.stopped(record, "b", "infrastructure", "the daemon is gone")
    assert (shown["exit_code"], shown["resume"]) == (5, "stackbisect resume b")
    assert isinstance(go(journal.resume(tmp_path / "b"), runtime), probing.Found)


def test_a_result_that_blames_the_machinery_is_no_finished_probe(tmp_path: Path) -> None:
    class Gone(Invented):
        def run(self, candidate: Candidate, job: Job) -> ProbeResult:
            return ProbeResult(
                "infrastructure", None, "no daemon", ran("g").evidence, {}, {}, 0, 1, ""
            )

    with pytest.raises(InfrastructureError, match="no daemon"):
        go(begin(tmp_path / "b", "gb"), Gone("gb"))
    assert not journal.read(tmp_path / "b").probes


def test_an_interrupt_is_in_the_journal_and_passes_through(tmp_path: Path) -> None:
    def interrupt(count: int) -> None:
        if count == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        go(begin(tmp_path / "b", "ggbb"), Invented("ggbb", interrupt))
    assert journal.read(tmp_path / "b").stopped == "interrupted"


def test_a_code_of_128_stops_a_bisection_by_exit_codes(tmp_path: Path) -> None:
    class Ends(Invented):
        def run(self, candidate: Candidate, job: Job) -> ProbeResult:
            return ran("", code={"g": 0, "b": 1, "k": 137}[self.kinds[candidate.position]])

    with pytest.raises(Aborted, match="137 at v1"):
        go(begin(tmp_path / "b", "gkb", "exit-code"), Ends("gkb"))
    assert len(journal.read(tmp_path / "b").probes) == 4


def test_what_a_killed_probe_left_in_its_scratch_folder_is_removed(tmp_path: Path) -> None:
    held = begin(tmp_path / "b", "gb")
    left = tmp_path / "b" / "probes" / "0001" / "scratch" / "triton"
    left.mkdir(parents=True)
    held.start(held.record.header.candidates[0], 1, 0.0)
    go(held, Invented("gb"))
    assert not left.exists()


# -- the report ------------------------------------------------------------------------------------


def found(tmp_path: Path, kinds: str) -> dict[str, Any]:
    """The answer over a history, as JSON values."""
    runtime = Invented(kinds)
    step = go(begin(tmp_path / "b", kinds), runtime)
    value = report.outcome(journal.read(tmp_path / "b"), "b", step, runtime)
    assert json.loads(json.dumps(value)) == value
    return value


def test_a_found_pair_has_every_verdict_and_what_differs(tmp_path: Path) -> None:
    value = found(tmp_path, "ggxbb")
    assert (value["status"], value["exit_code"]) == ("range", 2)
    assert (value["last_good"], value["first_bad"]) == ("v1", "v3")
    assert value["range"] == ["v1", "v2", "v3"]
    assert [each["verdict"] for each in value["verdicts"]] == [
        "good",
        "good",
        "untestable",
        "bad",
        "bad",
    ]
    assert value["difference"]["distributions"] == {"pkg": ["1", "3"]}
    assert value["probes"] <= value["probe_bound"]
    text = report_text.text(value)
    assert "untestable between: v2" in text
    assert "pkg  1 → 3" in text
    assert "run it again: cd / && stackbisect run" in text


def test_both_transitions_of_a_third_value_are_shown_with_what_differs(tmp_path: Path) -> None:
    value = found(tmp_path, "gggtttbbb")
    assert (value["status"], value["exit_code"]) == ("found", 0)
    assert [(t["from"], t["to"]) for t in value["transitions"]] == [("v2", "v3"), ("v5", "v6")]
    assert [t["to_verdict"] for t in value["transitions"]] == ["third", "bad"]
    assert [t["difference"]["distributions"]["pkg"] for t in value["transitions"]] == [
        ["2", "3"],
        ["5", "6"],
    ]
    assert value["difference"]["distributions"]["pkg"] == ["2", "6"]
    text = report_text.text(value)
    assert "v2 (good) → v3 (third)" in text
    assert "what differs between v2 and v6" in text


@pytest.mark.parametrize(
    ("kinds", "status", "code", "words"),
    [
        ("gtbg", "not_reproduced", 1, "both ends give the same bits"),
        ("xgb", "ends_untestable", 4, "it did not start"),
        ("gg~", "ends_untestable", 4, "two runs of it gave different bits"),
        ("gg", "not_reproduced", 1, "not reproduced"),
    ],
)
def test_other_endings_have_their_own_status_and_words(
    tmp_path: Path, kinds: str, status: str, code: int, words: str
) -> None:
    value = found(tmp_path, kinds)
    assert (value["status"], value["exit_code"]) == (status, code)
    assert value["last_good"] is None
    assert words in report_text.text(value)


def test_no_evidence_names_the_ways_to_give_it(tmp_path: Path) -> None:
    class Silent(Invented):
        def run(self, candidate: Candidate, job: Job) -> ProbeResult:
            return ran("", steps=0)

    step = go(begin(tmp_path / "b", "gb"), Silent("gb"))
    assert isinstance(step, EndsFailure)
    text = report_text.text(report.outcome(journal.read(tmp_path / "b"), "b", step, None))
    for way in (
        "pinner.fingerprint",
        "--evidence-file",
        "--evidence-stdout",
        "--verdict exit-code",
    ):
        assert way in text


def test_a_long_list_shows_what_was_tried_and_counts_the_rest(tmp_path: Path) -> None:
    value = found(tmp_path, "g" * 100 + "b" * 100)
    lines = report_text.text(value).splitlines()
    assert len(lines) < 40
    assert any("not tried" in line for line in lines)


def test_what_cannot_be_compared_any_more_is_a_note_and_not_a_failure(tmp_path: Path) -> None:
    class Forgetful(Invented):
        def difference(self, good: Candidate, bad: Candidate) -> Any:
            raise InfrastructureError("the daemon is gone")

    step = go(begin(tmp_path / "b", "gb"), Invented("gb"))
    value = report.outcome(journal.read(tmp_path / "b"), "b", step, Forgetful("gb"))
    assert value["status"] == "found"
    assert any("the daemon is gone" in note for note in value["notes"])


# -- the state and the progress --------------------------------------------------------------------


def test_the_state_says_where_the_change_must_be_and_what_is_left(tmp_path: Path) -> None:
    kinds = "ggggbbbb"
    left: list[tuple[int, Any]] = []

    def look(count: int) -> None:
        now = state.state(tmp_path / "b")
        left.append((now["probes_left"], now["between"]))
        assert now["state"] == "running"
        assert now["under_way"] is not None

    go(begin(tmp_path / "b", kinds), Invented(kinds, look))
    assert left[0] == (9, None)
    assert left[4] == (5, ["v0", "v7"])
    assert [count for count, _ in left] == sorted((count for count, _ in left), reverse=True)
    assert state.state(tmp_path / "b")["between"] == ["v3", "v4"]
    assert state.state(tmp_path / "b")["probes_left"] == 0


def test_progress_elsewhere_is_one_line_for_each_thing_that_happens(tmp_path: Path) -> None:
    stream = StringIO()
    held = begin(tmp_path / "b", "gxb")
    with held:
        Bisection(held, Invented("gxb"), progress.for_stream(stream), pythonpath=None, env={}).run()
    lines = stream.getvalue().splitlines()
    assert all(line.startswith("stackbisect: ") for line in lines)
    assert lines[0] == "stackbisect: probe 1: v0 (the good end; at most 6 to come)"
    assert any("untestable · it did not start" in line for line in lines)
    assert "\x1b" not in stream.getvalue()


def test_progress_on_a_terminal_is_coloured_and_gives_the_terminal_back(tmp_path: Path) -> None:
    pytest.importorskip("rich")

    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    watcher = progress.for_stream(stream)
    assert isinstance(watcher, progress.Rich)
    with begin(tmp_path / "b", "g[b") as held:
        Bisection(held, Invented("gxb"), watcher, pythonpath=None, env={}).run()
    watcher.pulls("pulling [bold] (20000 MB)...")
    watcher.says("[bold] is no markup here")
    watcher.close()
    text = stream.getvalue()
    assert "untestable · it did not start" in text
    assert "[bold] is no markup here" in text
