"""Candidates that the user's own command prepares: `stackbisect run --runtime local`."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from stackbisect import journal
from tests.stackbisect.program import in_process as run

SHOW = (
    "--evidence-stdout",
    "bits (.*)",
    "--",
    "sh",
    "-c",
    "echo bits $(cat $STACKBISECT_FOLDER/b)",
)


@pytest.fixture(autouse=True)
def _there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths on the command line are those of a folder of one's own."""
    monkeypatch.chdir(tmp_path)


def test_each_candidate_is_prepared_once_in_a_folder_of_its_own(tmp_path: Path) -> None:
    """Names as people write them; one cannot be prepared; three probes at once."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    names = ["v1", "a name/with: all", "v3", "v4", "../v5", "v6", "v7", "v8"]
    culprit = draw.randrange(2, 7)
    broken = draw.choice([n for n in range(1, 7) if n not in (culprit - 1, culprit)])
    values = {name: "12"[n >= culprit] for n, name in enumerate(names)}
    (tmp_path / "candidates.txt").write_text("# ours\n" + "".join(f"{n}\n" for n in names))
    (tmp_path / "prepare").write_text(
        f"""
        echo "$STACKBISECT_CANDIDATE" >> {tmp_path}/prepared
        pwd >> {tmp_path}/where
        case "$STACKBISECT_CANDIDATE" in
        '{names[broken]}') echo no such build >&2; exit 9;;
        {"".join(f"'{each}') echo {value};; " for each, value in values.items())}
        esac > "$STACKBISECT_FOLDER/b"
        """
    )
    prepare = "sh prepare"
    words = ("--runtime", "local", "--list", "candidates.txt", "--prepare", prepare, "--jobs", "3")
    ended = run(tmp_path, "run", "--name", "b", "--json", *words, *SHOW)
    assert ended.code == 0, ended.err
    report = ended.report
    assert (report["last_good"], report["first_bad"]) == (names[culprit - 1], names[culprit])
    verdicts = {each["label"]: each for each in report["verdicts"] if each["probes"]}
    prepared = (tmp_path / "prepared").read_text().splitlines()
    # One that was given up, because it could change nothing any more, may be there too.
    assert {name: prepared.count(name) for name in verdicts} == dict.fromkeys(verdicts, 1)
    if names[broken] in verdicts:
        assert verdicts[names[broken]]["verdict"] == "untestable"
        assert verdicts[names[broken]]["reason"].startswith("--prepare ended with 9: no such build")
    assert set((tmp_path / "where").read_text().splitlines()) == {str(tmp_path)}
    candidates = tmp_path / ".stackbisect" / "b" / "candidates"
    assert len([each for each in candidates.iterdir() if each.is_dir()]) >= len(verdicts) - 1
    assert all(each.parent == candidates for each in candidates.rglob("*") if each.is_dir())
    assert not any("nothing that is listed differs" in note for note in report["notes"])
    # The answer is there: a resume prepares nothing again. Neither does a new one of another name.
    assert run(tmp_path, "resume", "b").code == 0
    assert (tmp_path / "prepared").read_text().splitlines() == prepared
    assert run(tmp_path, "clean", "b").code == 0
    assert list((tmp_path / ".stackbisect").iterdir()) == []


def test_what_was_half_prepared_is_prepared_again(tmp_path: Path) -> None:
    words = ("--candidates", "x,y", "--prepare", "echo 1 >> $STACKBISECT_FOLDER/b")
    assert run(tmp_path, "run", "--name", "b", *words, *SHOW).code == 1
    candidates = tmp_path / ".stackbisect" / "b" / "candidates"
    for each in candidates.glob("*.prepared"):
        each.unlink()
    shutil.rmtree(tmp_path / ".stackbisect" / "b" / "probes")
    lines = (tmp_path / ".stackbisect" / "b" / "journal.jsonl").read_text().splitlines(True)
    (tmp_path / ".stackbisect" / "b" / "journal.jsonl").write_text(lines[0])
    assert run(tmp_path, "resume", "b").code == 1
    made = [each for each in candidates.iterdir() if each.is_dir()]
    assert [(each / "b").read_text() for each in made] == ["1\n", "1\n"]


def test_candidates_need_no_preparing_and_ends_may_be_inside_the_list(tmp_path: Path) -> None:
    command = ("sh", "-c", "echo bits $(($STACKBISECT_CANDIDATE >= 4))")
    words = ("--candidates", "1,2,3,4,5,6", "--good", "2", "--bad", "5", "--depth", "search")
    stdout = ("--evidence-stdout", "bits (.*)", "--")
    ended = run(tmp_path, "run", "--json", *words, *stdout, *command)
    assert (ended.report["last_good"], ended.report["first_bad"]) == ("3", "4")
    assert [each["label"] for each in ended.report["verdicts"]] == ["2", "3", "4", "5"]
    back = run(tmp_path, "run", "--json", "--name", "back", *words[:2], "--good", "5", "--bad", "2",
               *stdout, *command)  # fmt: skip
    assert (back.report["last_good"], back.report["first_bad"]) == ("4", "3")


def test_a_secret_reaches_neither_journal_nor_log(tmp_path: Path) -> None:
    words = (
        "--candidates",
        "x,y",
        "--env",
        "TOKEN",
        "--prepare",
        "echo $TOKEN; echo 1 > $STACKBISECT_FOLDER/b",
    )
    ended = run(tmp_path, "run", *words, *SHOW, environ={"TOKEN": "very-secret-1"})
    assert ended.code == 1, ended.err
    texts = [path.read_bytes() for path in (tmp_path / ".stackbisect").rglob("*") if path.is_file()]
    assert any(b"<hidden>" in text for text in texts)
    assert not any(b"very-secret" in text for text in texts)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--runtime", "local"), "expected --candidates A,B,... or --list FILE"),
        (("--candidates", "a,b,a"), "stand in the list twice: a"),
        (("--candidates", "a,b", "--list", "x"), "found both"),
        (("--runtime", "local", "--list", "absent"), "--list absent"),
        (("--candidates", "v1,v2", "--good", "v3"), "candidate 'v3' does not exist; nearest: v2"),
        (
            ("--candidates", "a,b", "--package", "p", "--bad", "1"),
            "does not go with --runtime venv",
        ),
        (("--candidates", "a,b", "--runtime", "local", "--tags", "x"), "--tags does not go with"),
        (("--candidates", "a,b", "--git", ".", "--good", "a", "--bad", "b"), "does not go with"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, words: Sequence[str], expected: str) -> None:
    ended = run(tmp_path, "run", "--json", *words, *SHOW)
    assert ended.code == 64, ended.out
    assert expected in ended.report["reason"]
    assert journal.names(tmp_path / ".stackbisect") == []
