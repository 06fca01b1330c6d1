"""The program with several probes at once: kill -9, signals, gallop and noise as asked for."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from stackbisect import asked, cli, journal, progress
from stackbisect.probe import Candidate, Job, ProbeResult
from stackbisect.runtimes import choose
from stackbisect.spaces.window import Space
from tests import lanes
from tests.stackbisect.histories import probe
from tests.stackbisect.program import Ended, Program
from tests.stackbisect.test_bisection import Invented

WORK = """\
case $STACKBISECT_CANDIDATE in *x) exit 1;; esac
sleep 0.1
case $STACKBISECT_CANDIDATE in *~) echo "loss $$"; exit;; esac
echo "loss ${STACKBISECT_CANDIDATE#*-}"
"""


class Local(Program):
    """The program over candidates that answer as a text says (`histories.probe`)."""

    def words(self, kinds: str, *more: str) -> list[str]:
        """A bisection of these candidates, three at once."""
        (self.folder / "work.sh").write_text(WORK)
        names = [f"{position:02}-{kind}" for position, kind in enumerate(kinds)]
        (self.folder / "list").write_text("\n".join(names) + "\n")
        return [
            *("run", "--json", "--name", "b", "--runtime", "local", "--list", "list"),
            *("--jobs", "3", "--depth", "search", "--evidence-stdout", "loss (.*)", *more),
            *("--", "sh", "work.sh"),
        ]

    def alive(self) -> list[str]:
        """Commands of processes that work in our folder."""
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(place / "cwd") == str(self.folder):
                    found.append((place / "cmdline").read_text())
            except OSError:
                continue
        return found


@pytest.fixture(name="program")
def _program(tmp_path: Path) -> Local:
    (tmp_path / "work").mkdir()
    return Local((tmp_path / "work").resolve(), own_session=True)


@pytest.fixture(name="draw")
def _draw() -> random.Random:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    return random.Random(seed)


def killed(program: Local, words: list[str], draw: random.Random) -> bool:
    """Start the program and kill it once it has finished a drawn number of probes more."""
    wanted = len(program.probes()) + draw.randrange(3)
    started = program.start(*words)
    while started.poll() is None and len(program.probes()) < wanted:
        time.sleep(0.01)
    time.sleep(draw.random() * 0.4)
    started.send_signal(signal.SIGKILL)
    started.communicate(timeout=60)
    return started.returncode == -signal.SIGKILL


def nothing_left(program: Local) -> None:
    """Wait until what the kill orphaned is gone: its wardens notice at once."""
    deadline = time.monotonic() + 30
    while program.alive() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not program.alive()


def finished_once(program: Local, before: list[dict[str, Any]]) -> None:
    """No finished probe was lost or made again: nothing here needs more than two tries."""
    probes = program.probes()
    assert probes[: len(before)] == before
    tries = Counter(each["candidate"] for each in probes)
    assert max(tries.values(), default=0) <= 2
    for candidate, count in tries.items():
        attempts = [each["attempt"] for each in probes if each["candidate"] == candidate]
        assert attempts == list(range(1, count + 1))


def histories(draw: random.Random) -> list[tuple[str, Mapping[str, Any]]]:
    """Histories with the right answers: one change; S5, S3 and S6 of the cases."""
    size = draw.randrange(8, 30)
    change = draw.randrange(2, size - 1)
    plain = "g" * change + "b" * (size - change)
    pair = {"last_good": f"{change - 1:02}-g", "first_bad": f"{change:02}-b"}
    return [
        (plain, {"status": "found", "exit_code": 0, **pair}),
        (
            "gggxxxxxbbb",
            {"status": "range", "exit_code": 2, "last_good": "02-g", "first_bad": "08-b"},
        ),
        ("gg~bb", {"status": "range", "exit_code": 2, "last_good": "01-g", "first_bad": "03-b"}),
        ("gxbg", {"status": "not_reproduced", "exit_code": 1}),
    ]


@pytest.mark.soak
@pytest.mark.parametrize("case", range(4), ids=["one change", "S5", "S3", "S6"])
def test_killed_at_random_moments_it_gives_the_same_answer(
    program: Local, draw: random.Random, case: int
) -> None:
    kinds, right = histories(draw)[case]
    words = program.words(kinds)
    kills = 0
    for _ in range(10 if lanes.soak() else 1 + (case < 2)):
        before = program.probes()
        kills += killed(program, words, draw)
        nothing_left(program)
        finished_once(program, before)
        if program.journal():
            words = ["resume", "b", "--json"]
    before = program.probes()
    ended = program(*words)
    assert {name: ended.report[name] for name in right} == right, ended.err
    assert ended.code == right["exit_code"]
    finished_once(program, before)
    nothing_left(program)
    assert kills > 0 or before == program.probes()
    if "~" in kinds:
        assert ended.report["verdicts"][2]["verdict"] == "unstable"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_probes_under_way_and_it_is_resumed(
    program: Local, interrupts: None, number: signal.Signals
) -> None:
    started = program.start(*program.words("ggggbbbb"))
    while len([each for each in program.journal() if each["t"] == "start"]) < 4:
        assert started.poll() is None
        time.sleep(0.01)
    started.send_signal(number)
    out, err = started.communicate(timeout=120)
    ended = Ended(started.returncode, out, err)
    assert (ended.code, ended.report["status"]) == (130, "interrupted"), err
    assert not program.alive()
    assert program.journal()[-1]["reason"] == "interrupted"
    before = program.probes()
    again = program("resume", "b", "--json", "--jobs", "2")
    assert (again.report["last_good"], again.report["first_bad"]) == ("03-g", "04-b"), again.err
    finished_once(program, before)


# -- asked for on the command line, tried in memory ------------------------------------------------


class Cleanable(Invented):
    """A runtime in memory as the command line wants it."""

    def clean(self) -> int:
        """Nothing is left."""
        return 0


class Flaky(Cleanable):
    """The bad side gives good bits in one of three probes."""

    def run(self, candidate: Candidate, job: Job) -> ProbeResult:
        """Answer by the probe's number."""
        super().run(candidate, job)
        kind, number = self.kinds[candidate.position], int(job.session.parent.name)
        return probe("g" if kind == "b" and number % 3 == 0 else kind, 1)


def asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch, runtime: Cleanable, *words: str
) -> tuple[int, str, str]:
    """Run the command over candidates in memory: exit code, output, what was said."""
    candidates = tuple(Candidate(f"id-{p}", f"v{p}", p) for p in range(len(runtime.kinds)))
    monkeypatch.setattr(asked, "space", lambda *_: Space(candidates))
    monkeypatch.setattr(choose, "runtime", lambda *_: runtime)
    out, err = StringIO(), StringIO()
    world = cli.World({}, folder, out.write, err.write, progress.Plain(err))
    return cli.run(words, world), out.getvalue(), err.getvalue()


def test_without_a_good_end_the_command_finds_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, draw: random.Random
) -> None:
    change = draw.randrange(1, 100)
    runtime = Cleanable("g" * change + "b" * (100 - change))
    words = ["run", "--image", "h.io/train", "--bad", "v99", "--jobs", "2"]
    code, out, err = asked_for(
        tmp_path, monkeypatch, runtime, *words, "--depth", "search", "--json", "--", "true"
    )
    found = json.loads(out)
    assert (code, found["last_good"], found["first_bad"]) == (0, f"v{change - 1}", f"v{change}")
    assert "back to good bits" in err
    assert journal.names(tmp_path / journal.ROOT) == ["train-back-from-v99"]


def test_a_search_that_is_over_goes_deeper_without_repeating_a_probe(program: Local) -> None:
    """What is on this machine only cannot be taken apart: both sides are tried in turns."""
    done = program(*program.words("ggbb"))
    before = program.probes()
    assert (done.code, done.report.get("confirmed")) == (0, None), done.err
    deeper = program("resume", "b", "--json", "--depth", "versions", "--jobs", "1")
    assert deeper.code == 0, deeper.err
    assert deeper.report["first_bad"] == "02-b"
    assert deeper.report["confirmed"], deeper.report
    probes = program.probes()
    assert probes[: len(before)] == before
    assert {each["stage"] for each in probes[len(before) :]} <= {"choices", "confirm"}
    refused = program("resume", "b", "--depth", "search")
    assert (refused.code, "behind versions" in refused.err) == (64, True)


def test_without_a_good_end_a_list_of_equal_bits_has_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["run", "--image", "h.io/train", "--bad", "v9", "--depth", "search", "--", "true"]
    code, out, _ = asked_for(tmp_path, monkeypatch, Cleanable("b" * 10), *words)
    assert code == 1
    assert "none has other bits" in out


def test_noise_is_answered_with_a_probability_where_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, draw: random.Random
) -> None:
    change = draw.randrange(2, 15)
    runtime = Flaky("g" * change + "b" * (16 - change))
    words = [
        "run",
        "--image",
        "h.io/train",
        "--good",
        "v0",
        "--bad",
        "v15",
        "--noisy",
        "--",
        "true",
    ]
    code, out, _ = asked_for(tmp_path, monkeypatch, runtime, *words)
    assert code == 0
    assert f"first bad  v{change}" in out
    assert "%" in out
