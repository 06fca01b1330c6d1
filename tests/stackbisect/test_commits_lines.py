"""The line of commits between two revisions, over histories of every shape, and what git says."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from stackbisect.errors import UsageError
from stackbisect.spaces import commits
from stackbisect.spaces.commits import Commit, Repository
from tests.stackbisect import repositories
from tests.stackbisect.repositories import Made


def history(parents: Mapping[str, str]) -> dict[str, Commit]:
    """Commits by name; parents are letters."""
    return {name: Commit(name, tuple(mine), "", "", "") for name, mine in parents.items()}


def ancestors(known: Mapping[str, Commit], of: str) -> set[str]:
    """A commit and all before it."""
    found, left = set(), [of]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left.extend(known[name].parents)
    return found


def drawn(draw: random.Random, count: int) -> dict[str, Commit]:
    """A random history: each commit has one to three parents among those before it."""
    names = [chr(ord("a") + place) for place in range(count)]
    return history(
        {
            name: "".join(draw.sample(names[:place], min(place, draw.choice((1, 1, 2, 3)))))
            for place, name in enumerate(names)
        }
    )


def test_a_line_goes_from_parent_to_child_and_keeps_to_first_parents_where_they_lead_there() -> (
    None
):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for _ in range(300):
        known = drawn(draw, draw.randrange(2, 11))
        old, new = sorted(draw.sample(sorted(known), 2))
        inside = ancestors(known, new) - ancestors(known, old)
        between = {name: known[name] for name in inside}
        found = commits.path(between, old, new)
        if old not in ancestors(known, new):
            assert found is None
            continue
        assert found is not None
        assert (found[0], found[-1]) == (old, new)
        for older, newer in itertools.pairwise(found):
            leading = [p for p in known[newer].parents if old in ancestors(known, p)]
            assert older == leading[0], (known, found)


def test_the_first_parent_chain_alone_is_all_there_is_where_that_is_asked_for() -> None:
    known = history({"a": "", "b": "a", "s": "a", "m": "bs", "c": "m"})
    between = {name: known[name] for name in "bsmc"}
    assert commits.path(between, "a", "c", first_parent=True) == ["a", "b", "m", "c"]
    above = {name: known[name] for name in "bmc"}
    assert commits.path(above, "s", "c", first_parent=True) is None
    assert commits.path(above, "s", "c") == ["s", "m", "c"]


def test_a_long_history_takes_no_stack() -> None:
    names = [str(n) for n in range(20_000)]
    known = {n: Commit(n, (names[p - 1],) if p else (), "", "", "") for p, n in enumerate(names)}
    between = {name: known[name] for name in names[1:]}
    assert commits.path(between, names[0], names[-1]) == names


@pytest.fixture(name="forked")
def _forked(tmp_path: Path) -> tuple[Repository, dict[str, str]]:
    """a - b - c, and d from a."""
    made = [Made("a"), Made("b", "a", {"x": "1"}), Made("d", "a", {"y": "1"}), Made("c", "b")]
    known = repositories.make(tmp_path / "repo", made)
    return Repository(tmp_path / "repo"), known


def test_a_good_end_on_another_branch_stands_before_the_merge_base(
    forked: tuple[Repository, dict[str, str]],
) -> None:
    repository, known = forked
    found = commits.space(repository, known["d"], known["c"])
    assert [c.id for c in found.candidates] == [known[name] for name in "dabc"]
    assert "is no ancestor of the bad end" in found.notes[0]
    assert found.candidates[2].details["subject"] == "change b"
    assert found.candidates[2].details["date"] == "2023-11-15T00:13:20+00:00"


def test_a_good_end_that_is_the_later_one_is_searched_backwards(
    forked: tuple[Repository, dict[str, str]],
) -> None:
    repository, known = forked
    found = commits.space(repository, "main", known["a"])
    assert [c.id for c in found.candidates] == [known[name] for name in "cba"]
    assert "searched backwards" in found.notes[0]


def test_changes_that_are_in_no_commit_are_said_and_left_alone(
    forked: tuple[Repository, dict[str, str]], tmp_path: Path
) -> None:
    repository, known = forked
    (tmp_path / "repo" / "x").write_text("edited")
    (tmp_path / "repo" / "new").write_text("new")
    repositories.git(tmp_path / "repo", "add", "new")
    found = commits.space(repository, known["a"], "main")
    assert any("changes that are in no commit" in note for note in found.notes)


@pytest.mark.parametrize(
    ("revision", "expected"),
    [
        ("mian", "no such commit in .*; nearest: main"),
        ("0" * 40, "no such commit"),
        ("--all", "no such commit"),
        ("", "no such commit"),
        ("main:x", "no such commit"),
    ],
)
def test_a_revision_that_is_not_there_is_named(
    forked: tuple[Repository, dict[str, str]], revision: str, expected: str
) -> None:
    repository, known = forked
    with pytest.raises(UsageError, match=expected):
        commits.space(repository, known["a"], revision)


def test_what_is_no_repository_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected a git repository, found none there"):
        Repository(tmp_path)
    with pytest.raises(UsageError, match="expected a git repository, found no such path"):
        Repository(tmp_path / "absent")


def test_histories_that_have_nothing_in_common_have_no_line(tmp_path: Path) -> None:
    known = repositories.make(tmp_path / "repo", [Made("a"), Made("b", (), {"x": ""})])
    with pytest.raises(UsageError, match="no history in common"):
        commits.space(Repository(tmp_path / "repo"), known["a"], known["b"])


def test_a_shallow_clone_says_how_to_get_the_rest(
    forked: tuple[Repository, dict[str, str]], tmp_path: Path
) -> None:
    _, known = forked
    url = f"file://{tmp_path / 'repo'}"
    repositories.git(tmp_path, "clone", "--quiet", "--depth=2", "--branch=main", url, "shallow")
    shallow = Repository(tmp_path / "shallow")
    with pytest.raises(UsageError, match="shallow clone: git fetch --unshallow"):
        commits.space(shallow, known["a"], "main")
    assert len(commits.space(shallow, known["b"], "main").candidates) == 2


def test_a_bare_repository_will_do(tmp_path: Path) -> None:
    known = repositories.make(tmp_path / "bare.git", [Made("a"), Made("b", "a")], bare=True)
    found = commits.space(Repository(tmp_path / "bare.git"), known["a"], "main")
    assert [c.id for c in found.candidates] == [known["a"], known["b"]]


def test_a_linked_working_tree_has_a_head_of_its_own(
    forked: tuple[Repository, dict[str, str]], tmp_path: Path
) -> None:
    _, known = forked
    words = ("worktree", "add", "--quiet", "--detach", str(tmp_path / "linked"), known["d"])
    repositories.git(tmp_path / "repo", *words)
    found = commits.space(Repository(tmp_path / "linked"), known["a"], "HEAD")
    assert [c.id for c in found.candidates] == [known["a"], known["d"]]


def test_a_pin_is_the_word_that_names_a_commit_of_the_other_repository(tmp_path: Path) -> None:
    other = repositories.make(tmp_path / "llvm", [Made("p"), Made("q", "p"), Made("r", "q")])
    repositories.git(tmp_path / "llvm", "tag", "v1.2", other["p"])
    repositories.git(tmp_path / "llvm", "tag", "v1.10", other["r"])
    texts = {
        "hash": (f"llvm {other['p'][:10]} # from 2023\n", f"llvm {other['r'][:10]} # from 2024\n"),
        "tag": ("version = 1.2\n", "version = 1.10\n"),
        "other": ("version = 9.9\n", "version = 9.10\n"),
        "none": ("same\n", "same\n"),
    }
    made = [
        Made("a", (), {name: before for name, (before, _) in texts.items()}),
        Made("b", "a", {name: after for name, (_, after) in texts.items()}),
    ]
    known = repositories.make(tmp_path / "repo", made)
    repository, pinned = Repository(tmp_path / "repo"), Repository(tmp_path / "llvm")
    ends = known["a"], known["b"]
    found = {name: commits.pin_change(repository, ends, name, pinned, "") for name in texts}
    assert (found["other"], found["none"]) == (None, None)
    line = commits.line(pinned, other["p"], other["r"]).commits
    hashed, tagged = found["hash"], found["tag"]
    assert hashed is not None
    assert tagged is not None
    assert (hashed.old, hashed.new) == (tagged.old, tagged.new) == (other["p"], other["r"])
    assert commits.pin_texts(pinned, hashed, line) == {
        other[name]: other[name][:10] for name in "pqr"
    }
    assert commits.pin_texts(pinned, tagged, line) == {other["p"]: "1.2", other["r"]: "1.10"}
