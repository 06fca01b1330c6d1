"""Down from a commit: real repositories, invented bits, every place for the culprit."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from stackbisect import journal
from stackbisect.probe import Candidate, EvidenceOptions, Job, ProbeResult, Unsupported
from stackbisect.spaces import commits
from stackbisect.spaces.commits import Repository
from tests import lanes
from tests.fakes.stacks import Simulated
from tests.stackbisect import repositories, simulated
from tests.stackbisect.histories import ran, untestable
from tests.stackbisect.repositories import Made

Bits = Callable[[Candidate], str]
"""A letter for a candidate; `x` cannot be tested."""


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here is about a disk that loses power."""
    monkeypatch.setattr(journal.os, "fsync", lambda descriptor: None)


@dataclass
class Told:
    """A runtime whose candidates have the bits that a function says."""

    bits: Bits
    name: str = "git"

    def run(self, candidate: Candidate, job: Job | None) -> ProbeResult:
        """One probe."""
        kind = self.bits(candidate)
        return untestable("the build ended with 2") if kind == "x" else ran(kind)

    def inventory(self, *_: Any) -> Any:
        """As commits have it."""
        raise Unsupported("commits have no components to swap")


def bisect(
    folder: Path,
    repository: Path,
    ends: tuple[str, str],
    bits: Bits,
    *,
    draw: random.Random | None = None,
    **setup: Any,
) -> journal.Record:
    """A whole bisection of `repository`, three probes at once where `draw` is given."""
    opened = Repository(repository)
    first_parent = bool(setup.get("first_parent"))
    found = commits.space(opened, *ends, first_parent=first_parent)
    fields: dict[str, Any] = {"runtime": "git", "git": opened.path, "depth": "versions"}
    fields |= {"pins": [], "first_parent": False, **setup}
    header = journal.Header(
        command=("python", "train.py"),
        workdir="/home/me/run",
        verdict="evidence",
        evidence=EvidenceOptions(),
        time_limit=None,
        candidates=found.candidates,
        setup=fields,
        runtime={},
        excluded=(),
        notes=found.notes,
        again=("stackbisect", "run"),
        created="2026-01-01T00:00:00+00:00",
    )
    runtime = cast(Simulated, Told(bits))
    held = journal.create(folder, header)
    return simulated.go(held, runtime, jobs=3 if draw else 1, draw=draw)


def seeded() -> random.Random:
    """A generator whose seed is in the output of a test that fails."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    return random.Random(seed)


def commit_of(candidate: Candidate) -> str:
    """The commit that a candidate is."""
    return str(candidate.details["commit"])


def before(made: Sequence[Made], known: Mapping[str, str]) -> dict[str, set[str]]:
    """Hash → names of the commit and of all before it."""
    found: dict[str, set[str]] = {}
    for each in made:
        mine = {each.name}.union(*(found[known[parent]] for parent in each.parents))
        found[known[each.name]] = mine
    return found


# a - b ------ m1 - c ------------ m2 - d         m1 brings s and t in, m2 brings u, v, w and n in;
#  \  s - t  /        \ u ---- n - w /            n is a merge of the side branch x into u - v.
#                         \ x /
MERGES = [
    *(Made("a"), Made("b", "a"), Made("s", "a"), Made("t", "s"), Made("m1", ("b", "t"))),
    *(Made("c", ("m1",)), Made("u", "c"), Made("v", "u"), Made("x", "u"), Made("n", ("v", "x"))),
    *(Made("w", "n"), Made("e", "c"), Made("m2", ("e", "w")), Made("d", ("m2",))),
]


@pytest.fixture(scope="module", name="merges")
def _merges(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    folder = tmp_path_factory.mktemp("merges") / "repo"
    return folder, repositories.make(folder, MERGES)


def test_every_commit_that_lands_somewhere_is_found_wherever_that_is(
    merges: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    """Bad is what has the culprit among its ancestors, as code has that was merged."""
    repository, known = merges
    draw = seeded()
    has = before(MERGES, known)
    for culprit in [each.name for each in MERGES if each.name not in ("a", "m1", "m2", "n")]:
        jobs = draw if draw.random() < 0.5 else None
        record = bisect(
            tmp_path / culprit,
            repository,
            (known["a"], "main"),
            lambda candidate, culprit=culprit: (  # type: ignore[misc]
                "b" if culprit in has[commit_of(candidate)] else "g"
            ),
            draw=jobs,
        )
        assert record.conclusions["commit"]["culprit"]["commit"] == known[culprit], culprit
        ways = [name.partition(":")[2] for name in record.stages if name.startswith("merge:")]
        main = {"b": 0, "c": 0, "e": 0, "d": 0, "s": 1, "t": 1, "u": 1, "v": 1, "w": 1, "x": 2}
        assert len(ways) == main[culprit], (culprit, ways)


def test_first_parent_stops_at_the_merge(
    merges: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    repository, known = merges
    has = before(MERGES, known)

    def bits(candidate: Candidate) -> str:
        return "b" if "x" in has[commit_of(candidate)] else "g"

    ends = (known["a"], "main")
    record = bisect(tmp_path / "b", repository, ends, bits, first_parent=True)
    assert record.conclusions["commit"]["culprit"]["commit"] == known["m2"]
    assert record.conclusions["commit"]["culprit"]["merge"]
    assert not any(name.startswith("merge:") for name in record.stages)


def test_two_sides_that_only_together_change_the_bits_blame_the_merge(
    merges: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    repository, known = merges
    has = before(MERGES, known)
    pairs = {"m1": ("b", "st"), "m2": ("e", "uvw"), "n": ("v", "x")}
    for place, (merge, (main, sides)) in enumerate(pairs.items()):
        for side in sides:

            def bits(candidate: Candidate, needs: frozenset[str] = frozenset((main, side))) -> str:
                return "b" if needs <= has[commit_of(candidate)] else "g"

            folder = tmp_path / f"{place}{side}"
            record = bisect(folder, repository, (known["a"], "main"), bits)
            assert record.conclusions["commit"]["culprit"]["commit"] == known[merge], (merge, side)
            own = record.conclusions[f"merge:{known[merge]}"]
            assert own["status"] == "interaction"
            assert "only together" in own["reason"]


def test_a_good_end_inside_a_branch_is_followed_to_where_it_was_merged(
    merges: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    """From s on: t, the merge, then the main line; what b brought came with the merge."""
    repository, known = merges
    has = before(MERGES, known)
    for culprit in "tbce":
        record = bisect(
            tmp_path / culprit,
            repository,
            (known["s"], "main"),
            lambda candidate, culprit=culprit: (  # type: ignore[misc]
                "b" if culprit in has[commit_of(candidate)] else "g"
            ),
        )
        assert record.conclusions["commit"]["culprit"]["commit"] == known[culprit], culprit


def test_a_branch_that_cannot_be_tested_leaves_the_whole_range_and_names_the_merge(
    merges: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    repository, known = merges
    has = before(MERGES, known)
    broken = {known["s"], known["t"]}

    def bits(candidate: Candidate) -> str:
        if commit_of(candidate) in broken:
            return "x"
        return "b" if "s" in has[commit_of(candidate)] else "g"

    record = bisect(tmp_path / "b", repository, (known["a"], "main"), bits)
    assert record.conclusions[f"merge:{known['m1']}"]["status"] == "range"
    assert record.conclusions["commit"]["culprit"]["commit"] == known["m1"]


def test_a_repair_inside_a_branch_is_found_backwards(
    merges: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    repository, known = merges
    has = before(MERGES, known)
    for repair in "sxwc":
        record = bisect(
            tmp_path / repair,
            repository,
            ("main", known["a"]),
            lambda candidate, repair=repair: (  # type: ignore[misc]
                "g" if repair in has[commit_of(candidate)] else "b"
            ),
        )
        found = record.conclusions["commit"]["culprit"]
        assert (found["commit"], found["repair"]) == (known[repair], True), repair


def test_a_repair_that_takes_both_sides_is_the_merge(
    merges: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    repository, known = merges
    has = before(MERGES, known)

    def bits(candidate: Candidate) -> str:
        return "g" if has[commit_of(candidate)] >= {"v", "x"} else "b"

    record = bisect(tmp_path / "b", repository, ("main", known["a"]), bits)
    assert record.conclusions[f"merge:{known['n']}"]["status"] == "interaction"
    assert record.conclusions["commit"]["culprit"]["commit"] == known["n"]


def test_a_third_value_on_the_way_goes_down_where_the_good_bits_end(
    merges: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    repository, known = merges
    has = before(MERGES, known)

    def bits(candidate: Candidate) -> str:
        mine = has[commit_of(candidate)]
        return "b" if "e" in mine else "t" if "t" in mine else "g"

    record = bisect(tmp_path / "b", repository, (known["a"], "main"), bits)
    assert record.conclusions["commit"]["culprit"]["commit"] == known["t"]


# -- submodules and pins ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Nested:
    """A superproject, its submodule `lib` (with its own submodule `deep`) and their commits."""

    top: Path
    known: Mapping[str, str]
    lib: Mapping[str, str]
    deep: Mapping[str, str]


@pytest.fixture(scope="module", name="nested")
def _nested(tmp_path_factory: pytest.TempPathFactory) -> Nested:
    """top: a - b - c - d, c moves lib from l1 to l5; lib: l3 moves deep from d1 to d4."""
    root = tmp_path_factory.mktemp("nested")
    deep = repositories.make(root / "deep", repositories.line(["d1", "d2", "d3", "d4"], [{}] * 4))
    link = {".gitmodules": f'[submodule "deep"]\n\tpath = deep\n\turl = {root}/deep\n'}
    names = ["l1", "l2", "l3", "l4", "l5"]
    lib = repositories.make(
        root / "lib",
        [
            Made(name, names[n - 1 : n] if n else (), link, {"deep": deep["d1" if n < 2 else "d4"]})
            for n, name in enumerate(names)
        ],
    )
    url = {".gitmodules": f'[submodule "lib"]\n\tpath = lib\n\turl = {root}/lib\n'}
    known = repositories.make(
        root / "top",
        [
            Made(name, parent, {**url, "n": name}, {"lib": lib["l1" if name in "ab" else "l5"]})
            for name, parent in (("a", ""), ("b", "a"), ("c", "b"), ("d", "c"))
        ],
    )
    return Nested(root / "top", known, lib, deep)


def state_of(candidate: Candidate, nested: Nested) -> tuple[str, int, int]:
    """What a checkout of the candidate holds: top's commit, lib's and deep's number."""
    names = {sha: int(name[1]) for name, sha in {**nested.lib, **nested.deep}.items()}
    top = {sha: name for name, sha in nested.known.items()}[commit_of(candidate)]
    others = {each["path"]: each["commit"] for each in candidate.details.get("overlays", ())}
    lib = names[others["lib"]] if "lib" in others else (1 if top in "ab" else 5)
    deep = names[others["lib/deep"]] if "lib/deep" in others else (1 if lib < 3 else 4)
    return top, lib, deep


def test_a_commit_that_moves_a_submodule_leads_into_it_and_into_its_own(
    nested: Nested, tmp_path: Path
) -> None:
    draw = seeded()
    for kind, number in [("lib", 2), ("lib", 4), ("lib", 5), ("deep", 2), ("deep", 3), ("deep", 4)]:

        def bits(candidate: Candidate, kind: str = kind, number: int = number) -> str:
            _, lib, deep = state_of(candidate, nested)
            return "b" if (lib if kind == "lib" else deep) >= number else "g"

        folder = tmp_path / f"{kind}{number}"
        jobs = draw if draw.random() < 0.5 else None
        record = bisect(folder, nested.top, (nested.known["a"], "main"), bits, draw=jobs)
        expected = nested.lib if kind == "lib" else nested.deep
        name = f"{kind[0]}{number}"
        found = record.conclusions["commit"]["culprit"]
        assert found["commit"] == expected[name], name
        assert found["subject"] == f"change {name}"
        assert found["in"] == {"kind": "submodule", "path": "lib" if kind == "lib" else "lib/deep"}
        assert ("submodule:lib/deep" in record.stages) == (kind == "deep")
        once = [(p.candidate, p.attempt) for p in record.probes]
        assert len(set(once)) == len(once)


def test_a_change_beside_the_submodule_is_not_blamed_on_it(nested: Nested, tmp_path: Path) -> None:
    def bits(candidate: Candidate) -> str:
        return "b" if state_of(candidate, nested)[0] in "cd" else "g"

    record = bisect(tmp_path / "b", nested.top, (nested.known["a"], "main"), bits)
    assert record.conclusions["submodule:lib"]["status"] == "elsewhere"
    assert record.conclusions["commit"]["culprit"]["commit"] == nested.known["c"]


def test_an_old_submodule_that_does_not_build_in_the_new_tree_is_said(
    nested: Nested, tmp_path: Path
) -> None:
    def bits(candidate: Candidate) -> str:
        top, lib, _ = state_of(candidate, nested)
        return "x" if top in "cd" and lib < 5 else "b" if top in "cd" else "g"

    record = bisect(tmp_path / "b", nested.top, (nested.known["a"], "main"), bits)
    found = record.conclusions["submodule:lib"]
    assert (found["status"], found["end"]) == ("ends_untestable", "good")
    assert record.conclusions["commit"]["culprit"]["commit"] == nested.known["c"]


@pytest.mark.parametrize(
    ("form", "culprit"), [("whole", 0), ("short", 0), ("tag", 2), ("tag", 5), ("tag", 6)]
)
def test_a_commit_that_edits_a_pin_leads_to_the_commits_it_pins(
    tmp_path: Path, form: str, culprit: int
) -> None:
    draw = seeded()
    names = [f"p{n}" for n in range(7)]
    other = repositories.make(tmp_path / "llvm", repositories.line(names, [{}] * 7))
    for number in (0, 2, 5, 6):
        repositories.git(tmp_path / "llvm", "tag", f"v1.{number}", other[f"p{number}"])

    def pin(number: int) -> str:
        sha = other[f"p{number}"]
        return {"whole": sha, "short": sha[:9], "tag": f"1.{number}"}[form]

    texts = [{"llvm.txt": f"llvm {pin(n)}\n"} for n in (0, 0, 6, 6)]
    known = repositories.make(tmp_path / "top", repositories.line("abcd", texts))
    usable = [2, 5, 6] if form == "tag" else list(range(1, 7))
    culprit = culprit or draw.choice(usable)

    def bits(candidate: Candidate) -> str:
        steps = candidate.details.get("overlays", ())
        text = steps[0]["to"] if steps else pin(0 if commit_of(candidate) in early else 6)
        return "b" if [pin(n) for n in range(7)].index(text) >= culprit else "g"

    early = {known["a"], known["b"]}
    pins = [["llvm.txt", str(tmp_path / "llvm")]]
    record = bisect(tmp_path / "b", tmp_path / "top", (known["a"], "main"), bits, pins=pins)
    found = record.conclusions["pin:llvm.txt"]
    assert found["status"] == "found"
    if form != "tag":
        assert record.conclusions["commit"]["culprit"]["commit"] == other[f"p{culprit}"]
        return
    previous = max(n for n in (0, *usable) if n < culprit)
    pair = (f"llvm.txt@1.{previous}", f"llvm.txt@1.{culprit}")
    assert (found["last_good"], found["first_bad"]) == pair
    named = record.conclusions["commit"]
    if culprit == previous + 1:
        assert named["culprit"]["commit"] == other[f"p{culprit}"]
    else:  # what lies between two tags is nothing that the file can name
        assert named["status"] == "unresolved"
        assert f"log {other[f'p{previous}']}..{other[f'p{culprit}']}" in named["reason"]


def _told(record: journal.Record) -> dict[str, Any]:
    """What was concluded without probe numbers: a probe that was cut has one, too."""
    stages = {name: each for name, each in record.conclusions.items() if name != "choices"}
    return {**stages, "confirm": record.conclusions["confirm"]["status"]}


def test_a_bisection_that_was_cut_anywhere_ends_the_same_and_tries_nothing_twice(
    nested: Nested, tmp_path: Path
) -> None:
    def bits(candidate: Candidate) -> str:
        return "b" if state_of(candidate, nested)[2] >= 3 else "g"

    whole = bisect(tmp_path / "b", nested.top, (nested.known["a"], "main"), bits)
    lines = (tmp_path / "b" / "journal.jsonl").read_text().splitlines(keepends=True)
    for cut in sorted(seeded().sample(range(1, len(lines)), 12 if lanes.soak() else 4)):
        folder = tmp_path / f"cut{cut}"
        folder.mkdir()
        (folder / "journal.jsonl").write_text("".join(lines[:cut]))
        record = simulated.go(journal.resume(folder), cast(Simulated, Told(bits)))
        assert _told(record) == _told(whole), cut
        probes = [line for line in map(json.loads, lines[:cut]) if line["t"] == "probe"]
        assert len(record.probes) == len(whole.probes) >= len(probes)


def test_bits_that_came_and_went_are_all_told(tmp_path: Path) -> None:
    """Landed, reverted, landed again: whatever transition is met first, it is one that is there."""
    names = [f"c{n:02}" for n in range(14)]
    known = repositories.make(tmp_path / "repo", repositories.line(names, [{}] * 14))
    draw = seeded()
    landed, reverted, again = sorted(draw.sample(range(1, 13), 3))
    letters = ["gb"[landed <= n < reverted or n >= again] for n in range(14)]
    by_commit = {known[name]: letter for name, letter in zip(names, letters, strict=True)}
    changes = {
        known[names[n]]
        for n, (x, y) in enumerate(itertools.pairwise(letters), 1)
        if (x, y) == ("g", "b")
    }
    record = bisect(
        tmp_path / "b",
        tmp_path / "repo",
        (known["c00"], "main"),
        lambda candidate: by_commit[commit_of(candidate)],
    )
    assert record.conclusions["commit"]["culprit"]["commit"] in changes
