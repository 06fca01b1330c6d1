"""Bisections by hand on the command line: as git's, on the journal, with the search's answers."""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from stackbisect import cli, journal, progress
from tests import lanes
from tests.fakes import registry as fakes
from tests.stackbisect.program import Ended, Program

NAMES = [f"v{number}" for number in range(1, 10)]


@dataclass(frozen=True)
class Hand:
    """The program in this process, in a folder of its own."""

    folder: Path

    def __call__(self, line: str, *more: str) -> Ended:
        """Run one command."""
        out, err = StringIO(), StringIO()
        world = cli.World(
            environ=dict(os.environ),
            workdir=self.folder,
            out=out.write,
            err=err.write,
            watcher=progress.Plain(err),
        )
        code = cli.run([*shlex.split(line), *more], world)
        return Ended(code, out.getvalue(), err.getvalue())

    def good(self, line: str, *more: str) -> Ended:
        """The same, where it must succeed."""
        ended = self(line, *more)
        assert ended.code == 0, ended.err
        return ended

    def refused(self, line: str) -> str:
        """What is said to a mistake; nothing is written down."""
        before = self.marks()
        ended = self(line)
        assert (ended.code, ended.out) == (64, ""), ended
        assert self.marks() == before
        return ended.err

    def marks(self, name: str | None = None) -> list[tuple[str, str]]:
        """The verdicts in force of the current one, or of one by name."""
        pointer = self.folder / ".stackbisect" / ".by-hand"
        if name is None and not pointer.exists():
            return []
        name = name or pointer.read_text().strip()
        record = journal.read(self.folder / ".stackbisect" / name)
        return [(mark.candidate, mark.verdict) for mark in record.marks]

    def known(self) -> dict[str, Any]:
        """The report of the current one."""
        return {k: v for k, v in self.good("report --json").report.items() if k not in PLACE}


PLACE = ("again", "name", "workdir")
"""What a replayed bisection has of its own."""


@pytest.fixture
def hand(tmp_path: Path) -> Hand:
    return Hand(tmp_path)


def begun(hand: Hand, *marks: str) -> Hand:
    """Nine candidates, and verdicts: `good v1`."""
    hand.good("start", *NAMES)
    for mark in marks:
        hand(mark)
    return hand


class TestAsInGit:
    def test_from_start_to_the_answer(self, hand: Hand) -> None:
        assert "waiting for a good and a bad" in hand.good("start", *NAMES).err
        assert "waiting for a bad" in hand.good("good v1").err
        told = hand.good("bad v9")
        assert told.out == "v5\n", "the candidate alone stands on standard output"
        assert "7 candidates left, at most 3 steps to go" in told.err
        assert hand.good("good").out == "v7\n", "no name: the one that was proposed"
        assert hand.good("next").out == "v7\n"
        assert hand.good("bad").out == "v6\n"
        found = hand.good("bad")
        assert "by hand: found" in found.out
        assert found.out.splitlines()[1:3] == ["  last good  v5", "  first bad  v6"]
        assert hand("next") == found

    def test_json_has_what_every_bisection_has(self, hand: Hand) -> None:
        begun(hand, "good v1", "bad v9")
        told = hand.good("skip --json").report
        assert (told["status"], told["next"], told["left"]) == ("unfinished", "v4", 6)
        begun(hand, "good v1 v4", "bad v5")
        told = hand.good("report --json").report
        wanted = ("status", "last_good", "first_bad", "probes", "culprits")
        assert [told[name] for name in wanted] == ["found", "v4", "v5", 3, []]
        assert told["transitions"] == [{"from": "v4", "to": "v5", "adjacent": True}]

    def test_all_skipped_is_a_range_and_ends_with_2(self, hand: Hand) -> None:
        begun(hand, "good v1 v3", "bad v7")
        told = hand("skip v3..v6")
        assert told.code == 2
        assert "any of these may be the first bad one: v4, v5, v6" in told.out
        assert hand.known()["range"] == ["v3", "v4", "v5", "v6", "v7"]
        assert hand("good v5").code == 2, "what was skipped can be tested after all"
        assert hand.known()["range"] == ["v5", "v6", "v7"]

    def test_neighbours_are_found_at_once(self, hand: Hand) -> None:
        assert "last good  v4" in hand.good("start --good v4 --bad v5", *NAMES).out

    def test_notes_stay_with_the_verdict(self, hand: Hand) -> None:
        begun(hand, "good v1", "bad v9")
        hand.good("skip", "--note", "hangs: it's #7")
        assert "  v5  skip  (hangs: it's #7)" in hand.good("report").out
        assert shlex.split(hand.good("log").out.splitlines()[-1])[-2:] == ["hangs: it's #7", "v5"]

    def test_a_file_of_names_and_the_ends_the_other_way_round(self, hand: Hand) -> None:
        (hand.folder / "names").write_text("# newest last\nv1\nv2 # two\n\nv3\nv4\n")
        assert hand.good("start --list names --good v4 --bad v1").out == "v3\n"
        assert "searched backwards" in hand.good("report").out

    def test_without_a_good_one_it_goes_back_in_doubling_steps(self, hand: Hand) -> None:
        begun(hand)
        assert hand.good("bad v9").out == "v8\n"
        assert [hand.good("bad").out for _ in range(3)] == ["v7\n", "v5\n", "v1\n"]
        assert hand.good("good").out == "v3\n", "a good one: what lies between is split"
        hand.good("unmark v1")
        assert hand.good("bad v2").out == "v1\n", "what stands behind a bad one is not asked for"
        told = hand("bad")
        assert told.code == 1
        assert "no candidate before the bad ones is good" in told.out
        assert hand("report").code == 0


class TestMistakes:
    def test_before_there_is_one(self, hand: Hand) -> None:
        for line in ("good v1", "bad", "skip", "next", "log", "reset", "report", "unmark v1"):
            assert "begin one with `stackbisect start`" in hand.refused(line)

    def test_before_the_ends_are_known(self, hand: Hand) -> None:
        begun(hand)
        assert "waiting for a good and a bad" in hand.refused("next")
        assert "none is to be tried: waiting for" in hand.refused("good")

    def test_after_the_answer(self, hand: Hand) -> None:
        begun(hand, "good v4", "bad v5")
        assert "the search is over" in hand.refused("bad")

    def test_contradictions_name_the_other_mark_and_the_ways_out(self, hand: Hand) -> None:
        begun(hand, "good v4", "bad v6")
        told = hand.refused("good v7")
        assert "v7 cannot be good where v6, which stands before it, is bad" in told
        assert "stackbisect unmark v6" in told
        assert "--all-transitions" in told
        assert "v2 cannot be bad where v4, which stands behind it" in hand.refused("bad v2")
        assert "v4 is marked good" in hand.refused("bad v4")
        assert "v4 is marked good" in hand.refused("skip v4")

    def test_several_names_of_which_one_is_wrong_change_nothing(self, hand: Hand) -> None:
        begun(hand, "bad v6")
        assert "v7 cannot be good" in hand.refused("good v3 v7")
        assert "'v99' does not exist" in hand.refused("good v3 v99")

    def test_unknown_names_offer_the_nearest(self, hand: Hand) -> None:
        begun(hand)
        assert "nearest: v9" in hand.refused("good v10")
        assert "does not exist" in hand.refused("start --good nope " + " ".join(NAMES))

    def test_what_start_cannot_take(self, hand: Hand) -> None:
        assert "found 0" in hand.refused("start")
        assert "found v1 twice" in hand.refused("start v1 v2 v1")
        assert "No such file" in hand.refused("start --list nowhere")
        assert "found both" in hand.refused("start --image localhost:1/x --good a --bad b v1")
        assert "expected v5 before v2" in begun(hand).refused("skip v5..v2")

    def test_a_verdict_taken_back_can_be_given_anew(self, hand: Hand) -> None:
        begun(hand, "good v1", "bad v9", "bad v5")
        hand.good("unmark v5")
        assert "expected a verdict on v5" in hand.refused("unmark v5")
        assert hand.good("good v5").out == "v7\n"

    def test_a_bisection_that_runs_by_itself_is_not_marked(self, hand: Hand) -> None:
        from tests.stackbisect.test_journal import begun as by_itself

        by_itself(hand.folder / ".stackbisect" / "own").close()
        for line in ("good v1 --name own", "next --name own", "reset own", "start a b --name own"):
            assert "runs by itself" in hand.refused(line)
        begun(hand)
        assert "goes by hand" in hand.refused("resume by-hand")


class TestTheJournal:
    def test_start_again_keeps_the_old_one_aside(self, hand: Hand) -> None:
        begun(hand, "good v1")
        assert "kept as by-hand.1" in hand.good("start", *NAMES).err
        assert hand.marks("by-hand.1") == [("v1", "good")]
        assert hand.marks() == []

    def test_one_is_current_and_others_go_by_name(self, hand: Hand) -> None:
        begun(hand, "good v1")
        hand.good("start --name other a b c")
        hand.good("good a")
        hand.good("bad --name by-hand v9")
        assert hand.marks() == [("a", "good")]
        assert hand.marks("by-hand") == [("v1", "good"), ("v9", "bad")]

    def test_status_of_all_and_of_one(self, hand: Hand) -> None:
        begun(hand, "good v1", "bad v9", "good")
        assert hand.good("status").out == "by-hand: by hand, 3 probes\n"
        told = hand.good("status by-hand").out
        assert "between v5 and v9" in told
        assert "under way: v7" in told
        assert "3 done, at most 2 to come" in told

    def test_reset_ends_it_and_clean_removes_it(self, hand: Hand) -> None:
        begun(hand, "good v1")
        assert "stackbisect clean by-hand" in hand.good("reset").err
        assert "no bisection by hand" in hand.refused("good v2")
        assert hand.marks("by-hand") == [("v1", "good")], "its verdicts stay"
        assert hand.good("clean by-hand").out == "removed by-hand\n"
        assert not (hand.folder / ".stackbisect" / "by-hand").exists()

    def test_tags_of_a_registry_by_any_name_of_the_image(self, hand: Hand) -> None:
        with fakes.serve() as fake:
            for number in range(6):  # 1.3 is 1.2 under another tag
                fake.content.image(f"1.{number}", env={"V": str(2 if number == 3 else number)})
            space = f"start --image {fake.reference} --platform linux/amd64"
            assert "nearest: 1.5" in hand.refused(f"{space} --good 1.0 --bad 1.9")
            hand.good(f"{space} --good 1.0 --bad 1.5")
            digest = fake.content.tags["1.4"]
        hand.good(f"bad {digest}")
        hand.good("good 1.1")
        found = hand.good("good 1.3")
        assert "last good  1.2\n  first bad  1.4" in found.out
        (hand.folder / "log").write_text(hand.good("log").out)
        assert hand.good("replay log").out == found.out, "the registry is not there any more"

    def test_commits_of_a_repository(self, hand: Hand) -> None:
        lanes.require_command("git")
        git = ["git", "-C", str(hand.folder), "-c", "user.name=n", "-c", "user.email=e@x"]
        subprocess.run(["git", "init", "-q", str(hand.folder)], check=True)
        commits = []
        for number in range(5):
            subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", f"{number}"], check=True)
            made = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
            commits.append(made.stdout.strip())
        told = hand.good(f"start --git {hand.folder} --good HEAD~4 --bad HEAD")
        assert commits[2].startswith(told.out.strip())
        found = hand(f"bad {commits[1][:9]}")
        assert commits[1].startswith(hand.known()["first_bad"])
        (hand.folder / "log").write_text(hand.good("log").out)
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "later"], check=True)
        assert hand.good("replay log --name again").out == found.out.replace("by-hand", "again")


class TestReplay:
    def test_a_log_brings_another_folder_to_the_same_state(self, hand: Hand) -> None:
        begun(hand, "good v1", "skip v5", "bad v9", "bad v8", "unmark v9", "good v5")
        (hand.folder / "log").write_text(hand.good("log").out)
        other = Hand(hand.folder / "other")
        other.folder.mkdir()
        told = other.good(f"replay {hand.folder / 'log'}")
        assert told.out == hand.good("next").out
        assert other.known() == hand.known()
        assert other.marks() == hand.marks()

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("", "expected a log that begins with `stackbisect start`"),
            ("stackbisect good v1\n", "line 1: expected `stackbisect start ...`"),
            ("git bisect start\n", "line 1: expected `stackbisect start ...`"),
            ("stackbisect start a b\n# x\nstackbisect clean --all\n", "line 3: expected"),
            ("stackbisect start a b\nstackbisect bad a\nstackbisect good b\n", "line 3: b cannot"),
            ("stackbisect start a b\nstackbisect good\n", "line 2: expected a candidate"),
            ("stackbisect start a b\nstackbisect good c\n", "line 2: candidate 'c' does not"),
            ("stackbisect start a b\nstackbisect good 'a\n", "line 2: No closing quotation"),
        ],
    )
    def test_what_is_no_log_is_refused_as_a_whole(self, hand: Hand, text: str, why: str) -> None:
        (hand.folder / "log").write_text(text)
        assert why in hand.refused("replay log")
        assert not (hand.folder / ".stackbisect").exists()


class TestKills:
    def test_a_journal_cut_at_any_byte_has_all_whole_verdicts(self, hand: Hand) -> None:
        begun(hand, "good v1", "bad v9", "good v5", "unmark v5", "skip v5")
        file = hand.folder / ".stackbisect" / "by-hand" / "journal.jsonl"
        whole = file.read_bytes()
        head = whole.index(b"\n") + 1
        states: dict[int, list[tuple[str, str]]] = {}
        for cut in range(head, len(whole) + 1):
            file.write_bytes(whole[:cut])
            lines = whole[head:cut].count(b"\n")
            assert states.setdefault(lines, hand.marks()) == hand.marks()
        assert [len(marks) for marks in states.values()] == [0, 1, 2, 3, 2, 3]
        file.write_bytes(whole[:-3])
        assert hand.good("bad v6").out == "v3\n", "it goes on behind the cut"
        assert [json.loads(line)["t"] for line in file.read_text().splitlines()][-2:] == [
            "unmark",
            "mark",
        ]

    def test_kill_9_in_the_middle_of_many_verdicts(self, tmp_path: Path) -> None:
        """A process marks and unmarks until it is killed; what it said was done is there."""
        begun(Hand(tmp_path), "good v1", "bad v9")
        script = (
            "import sys; from stackbisect import cli\n"
            "while True:\n"
            "    for word in ('skip', 'unmark'):\n"
            "        assert cli.main([word, 'v5', '--json']) == 0\n"
            "        print('\\ndone', word, flush=True)\n"
        )
        program = Program(tmp_path)
        path = os.pathsep.join(map(str, (ROOT, ROOT / "bisect")))
        started = subprocess.Popen(
            [sys.executable, "-c", script],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert started.stdout is not None
        wanted, done = random.Random().randrange(3, 9), []
        for line in started.stdout:
            done += [line.split()[1]] if line.startswith("done") else []
            if len(done) == wanted:
                break
        started.send_signal(signal.SIGKILL)
        done += [line.split()[1] for line in started.stdout if line.startswith("done")]
        started.wait()
        kinds = [{"mark": "skip"}.get(line["t"], line["t"]) for line in program.journal()[3:]]
        assert kinds[: len(done)] == done
        assert len(kinds) - len(done) in (0, 1), "at most the one that was under way"
        assert Hand(tmp_path).good("next").out in ("v5\n", "v4\n")


ROOT = Path(__file__).parents[2]


def answer(history: str, marks: dict[int, str]) -> tuple[str, int | None, int | None]:
    """By enumeration: what these marks (by position) say of candidates in a line."""
    good = [place for place, said in marks.items() if said == "good"]
    bad = [place for place, said in marks.items() if said == "bad"]
    if not good or not bad:
        return "unfinished", None, None
    left, right = max(good), min(bad)
    if any(place not in marks for place in range(left + 1, right)):
        return "unfinished", None, None
    return ("found" if right == left + 1 else "range"), left, right


class TestRandomHistories:
    def test_honest_answers_lead_to_the_change(self, hand: Hand) -> None:
        """`x` cannot be tested: found is the change, or the range of all that hides it."""
        seed = random.randrange(2**32)
        print(f"seed {seed}")
        rng = random.Random(seed)
        for _ in range(25):
            size = rng.randrange(2, 14)
            change = rng.randrange(1, size)
            history = "g" * change + "b" * (size - change)
            hidden = {p for p in range(1, size - 1) if rng.random() < 0.3}
            names = [f"c{place}" for place in range(size)]
            told = hand.good("start --json --good c0", "--bad", names[-1], *names).report
            asked = []
            while told["status"] == "unfinished":
                place = names.index(told["next"])
                assert place not in asked
                asked.append(place)
                word = "skip" if place in hidden else {"g": "good", "b": "bad"}[history[place]]
                told = hand(f"{word} --json").report
            left = max(p for p in range(change) if p not in hidden)
            right = min(p for p in range(change, size) if p not in hidden)
            assert (told["last_good"], told["first_bad"]) == (names[left], names[right])
            assert told["status"] == ("found" if right == left + 1 else "range")
            tested = [place for place in asked if place not in hidden]
            assert len(tested) <= max(size - 2, 0).bit_length()

    def test_any_order_of_verdicts_is_judged_as_enumeration_does(self, hand: Hand) -> None:
        seed = random.randrange(2**32)
        print(f"seed {seed}")
        rng = random.Random(seed)
        for _ in range(6):
            size = rng.randrange(2, 8)
            names = [f"c{place}" for place in range(size)]
            hand.good("start", *names)
            marks: dict[int, str] = {}
            for _ in range(20):
                place = rng.randrange(size)
                word = rng.choice(["good", "bad", "skip", "unmark"])
                allowed = may(marks, place, word)
                code = hand(f"{word} {names[place]}").code
                assert (code != 64) == allowed, (marks, place, word)
                if allowed and word == "unmark":
                    del marks[place]
                elif allowed:
                    marks[place] = word
                told = hand.known()
                status, left, right = answer("", marks)
                if status != "unfinished":
                    assert (told["last_good"], told["first_bad"]) == (names[left], names[right])
                if told["status"] != "not_reproduced":
                    assert told["status"] == status
                else:
                    first = min(place for place, said in marks.items() if said == "bad")
                    assert all(marks.get(place) for place in range(first)) or marks.get(0) == "bad"
            (hand.folder / "log").write_text(hand.good("log").out)
            before, order = hand.known(), hand.marks()
            hand("replay log --name again")
            assert (hand.known(), hand.marks()) == (before, order)


def may(marks: dict[int, str], place: int, word: str) -> bool:
    """By enumeration: whether a verdict goes with the others."""
    before = marks.get(place)
    if word == "unmark":
        return before is not None
    if before not in (None, "skip", word):
        return False
    after = {**marks, place: word}
    good = [p for p, said in after.items() if said == "good"]
    bad = [p for p, said in after.items() if said == "bad"]
    return max(good, default=-1) < min(bad, default=len(after) + 99)
