"""`stackbisect run --git` as people use it: real repositories and builds, every answer checked."""

from __future__ import annotations

import itertools
import json
import os
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import lanes
from tests.stackbisect import repositories
from tests.stackbisect.program import Program
from tests.stackbisect.program import in_process as run
from tests.stackbisect.repositories import Made

CAT = ("--evidence-stdout", "(.*)", "--", "cat", "value")


@pytest.fixture(autouse=True)
def _there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths on the command line are those of a folder of one's own."""
    monkeypatch.chdir(tmp_path)


def seeded() -> random.Random:
    """A generator whose seed is in the output of a test that fails."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    return random.Random(seed)


SUM = """
#include <stdio.h>
#include <string.h>
int main(void) {
    double values[] = {1e16, 1.0, -1e16, 0.5}, sum = 0;
    for (int n = 0; n < 4; n++) sum += values[%s];
    unsigned long bits;
    memcpy(&bits, &sum, sizeof bits);
    printf("sum %%016lx\\n", bits);
}
"""
FORWARD, BACKWARD, BROKEN = SUM % "n", SUM % "3 - n", SUM % "no_such"


def bits_of(program: str) -> str:
    """What the program prints, by this machine's own arithmetic."""
    values = [1e16, 1.0, -1e16, 0.5]
    total = 0.0
    for value in values if program == FORWARD else reversed(values):
        total += value
    return total.hex()


def test_another_order_of_summation_is_found_behind_commits_that_do_not_compile(
    tmp_path: Path,
) -> None:
    """Two probes at once; the user's edited working tree is neither used nor touched."""
    lanes.require_command("cc", "gcc")
    assert bits_of(FORWARD) != bits_of(BACKWARD)
    draw = seeded()
    names = [f"c{n:02}" for n in range(10)]
    culprit = draw.randrange(2, 9)
    broken = draw.choice([n for n in range(1, 9) if n not in (culprit - 1, culprit)])
    sources = [FORWARD if n < culprit else BACKWARD for n in range(10)]
    sources[broken] = BROKEN
    repository = tmp_path / "repo"
    files = [{"sum.c": each, "n": str(n)} for n, each in enumerate(sources)]
    known = repositories.make(repository, repositories.line(names, files))
    (repository / "sum.c").write_text("edited")
    status = repositories.git(repository, "status", "--short")

    ends = ("--git", "repo", "--good", known["c00"], "--bad", "main", "--jobs", "2")
    build = ("--build", "cc -O0 sum.c -o sum", "--evidence-stdout", "sum (.*)")
    ended = run(tmp_path, "run", "--name", "b", "--json", *ends, *build, "--", "./sum")
    assert ended.code == 0, ended.err
    report = ended.report
    assert report["last_good"] == known[names[culprit - 1]][:12]
    assert report["first_bad"] == known[names[culprit]][:12]
    commit = report["commit"]
    assert commit["commit"] == known[names[culprit]]
    assert commit["subject"] == f"change {names[culprit]}"
    assert commit["date"].startswith("2023-11-1")
    assert {"status": "M", "path": "sum.c"} in commit["files"]
    assert commit["show"].endswith(f"show {known[names[culprit]]}")
    assert "change" in repositories.git(tmp_path, *commit["show"].split()[1:])
    assert any("changes that are in no commit" in note for note in report["notes"])
    assert report["confirmed"]["status"] == "confirmed"
    for verdict in report["verdicts"]:
        if verdict["label"] == known[names[broken]][:12] and verdict["probes"]:
            assert verdict["verdict"] == "untestable"
            assert "no_such" in verdict["reason"]
    assert repositories.git(repository, "status", "--short") == status
    assert os.listdir(tmp_path / ".stackbisect" / "b" / "checkouts") == []
    assert known[names[culprit]][:12] in run(tmp_path, "report", "b").out
    assert run(tmp_path, "clean", "b").code == 0
    assert os.listdir(tmp_path / ".stackbisect") == []


def test_landed_reverted_and_landed_again_is_told_whole(tmp_path: Path) -> None:
    draw = seeded()
    size = 8
    landed, reverted, again = sorted(draw.sample(range(1, size), 3))
    values = ["ab"[landed <= n < reverted or n >= again] for n in range(size)]
    names = [f"c{n}" for n in range(size)]
    files = [{"value": value, "n": str(n)} for n, value in enumerate(values)]
    known = repositories.make(tmp_path / "repo", repositories.line(names, files))
    ends = ("--git", "repo", "--good", known["c0"], "--bad", "main", "--all-transitions", "1")
    ended = run(tmp_path, "run", "--json", "--depth", "search", *ends, *CAT)
    assert ended.code == 0, ended.err
    told = [(each["from"], each["to"]) for each in ended.report["transitions"]]
    assert told == [
        (known[names[n]][:12], known[names[n + 1]][:12])
        for n, (left, right) in enumerate(itertools.pairwise(values))
        if left != right
    ]
    assert ended.report["monotonic"] is False
    assert any("not monotonic" in note for note in ended.report["notes"])


def test_a_merged_branch_is_gone_into_and_the_branch_alone_is_not_blamed_for_both(
    tmp_path: Path,
) -> None:
    """One merge brings a change in; at another two changes, each good by itself, meet."""
    made = [
        Made("a", (), {"value": "1"}),
        Made("s1", "a", {"value": "1", "s": "1"}),
        Made("s2", ("s1",), {"value": "2", "s": "1"}),
        Made("b", "a", {"value": "1", "b": "1"}),
        Made("m", ("b", "s2"), {"value": "2", "b": "1", "s": "1"}),
        Made("t", "b", {"value": "1", "b": "1", "t": "1"}),
        Made("c", "b", {"value": "1", "b": "1", "c": "1"}),
        Made("n", ("c", "t"), {"value": "2", "b": "1", "c": "1", "t": "1"}),
    ]
    known = repositories.make(tmp_path / "repo", made)
    ends = ("--git", "repo", "--good", known["a"])
    inside = run(tmp_path, "run", "--name", "m", "--json", *ends, "--bad", known["m"], *CAT)
    assert inside.code == 0, inside.err
    assert inside.report["commit"]["commit"] == known["s2"]
    stages = [each["stage"] for each in inside.report["chain"]]
    assert stages[:3] == ["search", f"merge:{known['m']}", "commit"]
    meeting = run(tmp_path, "run", "--name", "n", *ends, "--bad", known["n"], *CAT)
    assert meeting.code == 0, meeting.err
    assert f"commit {known['n'][:12]} (change n) changes the bits" in meeting.out
    assert "only together" in meeting.out


def test_a_submodule_and_a_pin_file_are_gone_into(tmp_path: Path) -> None:
    """The superproject moves both; its bits are those of the pinned repository's commit."""
    draw = seeded()
    size = 4
    names = [f"p{n}" for n in range(size)]
    values = [{"value": str(n)} for n in range(size)]
    pinned = repositories.make(tmp_path / "llvm", repositories.line(names, values))
    lib_culprit, pin_culprit = draw.randrange(1, size), draw.randrange(1, size)
    lib_values = [{"value": "ab"[n >= lib_culprit], "n": str(n)} for n in range(size)]
    lib = repositories.make(tmp_path / "lib", repositories.line(names, lib_values))
    modules = {".gitmodules": f'[submodule "lib"]\n\tpath = lib\n\turl = {tmp_path}/lib\n'}
    known = repositories.make(
        tmp_path / "top",
        [
            Made("a", (), {**modules, "llvm.txt": pinned["p0"]}, {"lib": lib["p0"]}),
            Made("b", "a", {**modules, "llvm.txt": pinned["p0"]}, {"lib": lib["p3"]}),
            Made("c", "b", {**modules, "llvm.txt": pinned["p3"]}, {"lib": lib["p3"]}),
        ],
    )
    git = ("--git", "top", "--json", "--evidence-stdout", "(.*)")
    ends = ("--good", known["a"], "--bad", known["b"])
    found = run(tmp_path, "run", "--name", "lib", *git, *ends, "--", "cat", "lib/value")
    assert found.code == 0, found.err
    assert found.report["commit"]["commit"] == lib[f"p{lib_culprit}"]
    assert found.report["commit"]["in"] == {"kind": "submodule", "path": "lib"}
    # The build reads the pin as such builds do: it gets the pinned commit and takes a file from it.
    build = f"git -C {tmp_path}/llvm show $(cat llvm.txt):value > value"
    command = ("sh", "-c", f"test $(cat value) -ge {pin_culprit}; echo $?")
    pin = ("--pin-file", f"llvm.txt={tmp_path}/llvm", "--build", build)
    ends = ("--good", known["b"], "--bad", known["c"])
    found = run(tmp_path, "run", "--name", "pin", *git, *pin, *ends, "--", *command)
    assert found.code == 0, found.err
    assert found.report["commit"]["commit"] == pinned[f"p{pin_culprit}"]
    assert found.report["commit"]["in"] == {"kind": "pin", "path": "llvm.txt"}


def test_a_program_that_is_killed_goes_on_and_builds_nothing_finished_again(
    tmp_path: Path,
) -> None:
    draw = seeded()
    size = 6
    culprit = draw.randrange(1, size)
    names = [f"c{n}" for n in range(size)]
    files = [{"value": "ab"[n >= culprit], "n": str(n)} for n in range(size)]
    known = repositories.make(tmp_path / "repo", repositories.line(names, files))
    program = Program(tmp_path, own_session=True)
    words = ("--git", "repo", "--good", known["c0"], "--bad", "main", "--build")
    build = f"cat n >> {tmp_path}/built; sleep 0.1"
    started = program.start("run", "--name", "b", *words, build, *CAT)
    wanted = draw.randrange(0, 9)
    deadline = time.monotonic() + 120
    while len(program.probes()) < wanted and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(draw.random() * 0.2)
    os.killpg(started.pid, 9)
    started.communicate()
    done = {(p["candidate"], p["attempt"]) for p in program.probes()}
    if program.journal():
        ended = program("resume", "b", "--json")
    else:
        ended = program("run", "--name", "b", "--json", *words, build, *CAT)
    assert ended.code == 0, ended.err
    assert ended.report["commit"]["commit"] == known[names[culprit]]
    tries = [(p["candidate"], p["attempt"]) for p in program.probes()]
    assert len(set(tries)) == len(tries)
    assert done <= set(tries)
    folder = tmp_path / ".stackbisect" / "b"
    assert os.listdir(folder / "checkouts") == []
    built = (tmp_path / "built").read_text()
    once = [n for n in range(size) if built.count(str(n)) == 1]
    assert len(once) >= len(set(built)) - 1  # the build that the kill cut is made twice


Expected = Sequence[tuple[Sequence[str], str]]

MISTAKES: Mapping[str, tuple[Sequence[str], str]] = {
    "no good end": (("--git", "repo", "--bad", "main"), "--git: expected --good REV, found none"),
    "no bad end": (("--git", "repo", "--good", "main"), "expected --bad"),
    "no repository": (("--git", ".", "--good", "a", "--bad", "b"), "expected a git repository"),
    "no revision": (("--git", "repo", "--good", "mian", "--bad", "main"), "nearest: main"),
    "a pin without a repository": (
        ("--git", "repo", "--good", "main", "--bad", "main", "--pin-file", "llvm.txt"),
        "expected PATH=REPO",
    ),
    "a pin outside": (
        ("--git", "repo", "--good", "main", "--bad", "main", "--pin-file", "../x=repo"),
        "expected PATH=REPO",
    ),
    "an option of containers": (
        ("--git", "repo", "--good", "main", "--bad", "main", "--gpus", "all"),
        "--gpus does not go with --runtime git",
    ),
    "an option of commits": (
        ("--image", "train", "--good", "1", "--bad", "2", "--build", "make"),
        "--build does not go with --runtime docker",
    ),
    "a budget": (
        ("--git", "repo", "--good", "main", "--bad", "main", "--build-budget", "much"),
        "--build-budget",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named_before_anything_begins(tmp_path: Path, mistake: str) -> None:
    repositories.make(tmp_path / "repo", [Made("a", (), {"value": "1"})])
    words, expected = MISTAKES[mistake]
    ended = run(tmp_path, "run", "--json", *words, *CAT)
    assert ended.code == 64, ended.err
    assert expected in ended.report["reason"]
    assert not (tmp_path / ".stackbisect").exists()


def test_both_ends_alike_is_not_reproduced_and_a_plan_tries_nothing(tmp_path: Path) -> None:
    files = [{"value": "1", "n": name} for name in "abc"]
    known = repositories.make(tmp_path / "repo", repositories.line("abc", files))
    ends = ("--git", "repo", "--good", known["a"], "--bad", "main")
    planned = run(tmp_path, "plan", "--json", *ends)
    assert planned.code == 0, planned.err
    labels = [each["label"] for each in json.loads(planned.out)["candidates"]]
    assert labels == [known[name][:12] for name in "abc"]
    assert "change b" in run(tmp_path, "plan", *ends).out
    ended = run(tmp_path, "run", "--json", *ends, *CAT)
    assert (ended.code, ended.report["status"]) == (1, "not_reproduced")
    # A branch may lead elsewhere tomorrow: what runs it again names the commits.
    assert f"--good {known['a']} --bad {known['c']}" in ended.report["again"]


def test_a_good_end_on_another_branch_whose_merge_base_is_bad_is_followed(tmp_path: Path) -> None:
    """What git bisect calls "the merge base is bad": the change is on the way to the good end."""
    made = [
        Made("a", (), {"value": "2"}),
        Made("b", "a", {"value": "2", "b": "1"}),
        Made("g1", "a", {"value": "2", "g": "1"}),
        Made("g2", ("g1",), {"value": "1", "g": "1"}),
        Made("g3", ("g2",), {"value": "1", "g": "2"}),
        Made("c", "b", {"value": "2", "c": "1"}),
    ]
    known = repositories.make(tmp_path / "repo", made)
    ends = ("--git", "repo", "--good", known["g3"], "--bad", "main")
    ended = run(tmp_path, "run", "--json", *ends, *CAT)
    assert ended.code == 0, ended.err
    found: Any = ended.report
    assert (found["last_good"], found["first_bad"]) == (known["g3"][:12], known["a"][:12])
    assert (found["commit"]["commit"], found["commit"]["repair"]) == (known["g2"], True)
    assert [each["stage"] for each in found["chain"]][1] == f"base:{known['g3']}"
