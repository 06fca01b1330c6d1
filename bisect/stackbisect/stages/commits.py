"""Down from the commit that changed the bits: into a merged branch, a submodule, a pin file.

The search over the line of commits ends at one commit. That commit may only be a door:

- a merge brings a side branch in (`merge:SHA`). The side's commits are tried as they are, from the
  merge base to the merge itself. They are not merged into the main line first: that would be trees
  that nobody ever had, with conflicts that nobody resolved. What is tried is history, and where the
  side's tip is good by itself and the merge is not, neither side is to blame: the two interact.
- it is the merge base of the two ends and has other bits than the good end, which is no ancestor
  of the bad one (`base:SHA`). Then what changed them is on the way from it to the good end.
- it moves a submodule (`submodule:PATH`) or a hash in a pin file (`pin:PATH`). The other
  repository's commits between the two are tried inside the superproject at that very commit. With
  the old one there the bits must be good again; where they are not, the change is elsewhere in it.

Each ends at a commit of its own, which may be a door again.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from stackbisect.errors import UsageError
from stackbisect.journal import SEARCH, Header, Record
from stackbisect.probe import Candidate
from stackbisect.runtimes.sources import Absent, Git, Sources
from stackbisect.search import noisy
from stackbisect.search.probing import Found
from stackbisect.search.verdict import Verdict
from stackbisect.spaces import commits
from stackbisect.spaces.commits import Change, Commit, Repository
from stackbisect.stage import Ask, Batch, Context, Done, Stage, Steps
from stackbisect.stages.search import Search

CULPRIT = "commit"
"""The last of these stages: it tries nothing and says what the commit is."""

_SHOWN_FILES = 200


@dataclass(frozen=True)
class Row:
    """One line to search, as candidates and as commits (hashes) of its place's repository."""

    candidates: tuple[Candidate, ...]
    commits: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The row as plain JSON values."""
        return {
            "candidates": [each.to_json() for each in self.candidates],
            "commits": list(self.commits),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Row:
        """The inverse of `to_json`."""
        found = tuple(Candidate.from_json(each) for each in value["candidates"])
        return cls(found, tuple(value["commits"]))


@dataclass(frozen=True)
class Place:
    """How commits of one repository become candidates.

    `base` None: they are commits of the superproject. Else they stand in `base` in the place that
    `change` names. `prefix`: where the repository's files are in the checkout, with a slash at the
    end; None where they are not in it (a pinned repository).
    """

    repository: str
    base: Candidate | None = None
    change: Change | None = None
    prefix: str | None = ""

    def to_json(self) -> dict[str, Any]:
        """The place as plain JSON values."""
        return {
            "repository": self.repository,
            "base": None if self.base is None else self.base.to_json(),
            "change": None if self.change is None else dict(vars(self.change)),
            "prefix": self.prefix,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Place:
        """The inverse of `to_json`."""
        base, change = value["base"], value["change"]
        return cls(
            value["repository"],
            None if base is None else Candidate.from_json(base),
            None if change is None else Change(**change),
            value["prefix"],
        )

    def row(self, line: Sequence[Commit]) -> Row:
        """The row for a line; commits that a pin file cannot name are left out."""
        if self.base is None or self.change is None:
            plain = (commits.candidate(each, n) for n, each in enumerate(line))
            return Row(tuple(plain), tuple(each.sha for each in line))
        texts = {each.sha: "" for each in line}
        if self.change.kind == "pin":
            texts = commits.pin_texts(_open(self.repository), self.change, line)
        named = [each for each in line if each.sha in texts]
        made = (
            commits.overlaid(self.base, self.change, each, texts[each.sha], n)
            for n, each in enumerate(named)
        )
        return Row(tuple(made), tuple(each.sha for each in named))


@dataclass(frozen=True)
class Door:
    """Two neighbours of a line with other bits: what lies behind the newer one?

    `good` and `bad` are commits of the place's repository.
    """

    place: Place
    good: str
    bad: str

    @property
    def newer(self) -> Commit | None:
        """The one that is the other's child; None where neither is."""
        repository = _open(self.place.repository)
        good, bad = repository.commit(self.good), repository.commit(self.bad)
        if good.sha in bad.parents:
            return bad
        return good if bad.sha in good.parents else None

    @property
    def older(self) -> str:
        """The other one."""
        newer = self.newer
        return self.good if newer is None or newer.sha == self.bad else self.bad

    @property
    def backwards(self) -> bool:
        """Whether the newer one is the good one: a repair."""
        newer = self.newer
        return newer is not None and newer.sha == self.good


def next_commit_stage(record: Record, context: Context) -> Stage | None:
    """The next of these stages after "search"; None where there is none (left).

    Raises InfrastructureError where the repositories cannot be read.
    """
    known = commit_stages(record, context)
    return next((each for each in known if each.name not in record.conclusions), None)


def commit_stages(record: Record, context: Context) -> Iterator[Stage]:
    """These stages in their order, up to and with the first one that has no conclusion.

    Raises InfrastructureError where the repositories cannot be read.
    """
    if not commits_searched(record.header):
        return
    if record.conclusions.get(SEARCH, {}).get("status") != "found":
        return
    with commits.reading():
        yield from _stages(record, context)


def commits_searched(header: Header) -> bool:
    """Whether a bisection's candidates are commits."""
    return header.setup.get("runtime") == "git" and "environment" not in header.setup


def _stages(record: Record, context: Context) -> Iterator[Stage]:
    # What later stages tried again does not change where the search ended.
    first = replace(record, probes=tuple(p for p in record.probes if p.stage == SEARCH))
    step = _step(Search.of(record.header), first)
    if step is None:
        return
    hashes = [each.details["commit"] for each in record.header.candidates]
    door = Door(Place(record.header.setup["git"]), hashes[step[0]], hashes[step[1]])
    while True:
        into = None
        for stage in _behind(door, record, context):
            yield stage
            result = record.conclusions.get(stage.name)
            if result is None:
                return
            if result["status"] == "found":
                place = Place.from_json(record.stages[stage.name]["place"])
                into = Door(place, result["good"], result["bad"])
            if result["status"] in ("found", "range"):
                break
        if into is None or into == door:
            break
        door = into
    yield Named(door)


def _behind(door: Door, record: Record, context: Context) -> list[Descent]:
    """What may be searched behind a door, in order."""
    newer = door.newer
    setup = record.header.setup
    search = Search.of(record.header)
    if newer is None:
        turned = _between_tags(door.place) or not _leads(door)
        return [] if turned else [Descent("base", door.good, door, search, context)]
    found = []
    if newer.merge and not setup["first_parent"]:
        found.append(Descent("merge", newer.sha, door, search, context))
    if door.place.prefix is None:
        return found
    pins = tuple((path, _pinned(repo, context)) for path, repo in setup["pins"])
    for change in _changes(door.place.repository, door.older, newer.sha, door.place.prefix, pins):
        found.append(Descent(change.kind, change.path, door, search, context, change, pins))
    return found


def _leads(door: Door) -> bool:
    """Whether the bad one is an ancestor of the good one, with commits between them."""
    return door.bad in _open(door.place.repository).common(door.good, door.bad)


def _between_tags(place: Place) -> bool:
    """Whether what lies between two neighbours is what a pin file cannot name."""
    change = place.change
    return change is not None and change.kind == "pin" and not commits.is_hash(change.text)


@dataclass(frozen=True)
class Descent:
    """The search behind a door (a `stage.Stage`): `kind` is "merge", "base", "submodule", "pin"."""

    kind: str
    path: str
    door: Door
    search: Search
    context: Context
    change: Change | None = None
    pins: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """Unique in its bisection."""
        return f"{self.kind}:{self.path}"

    @property
    def title(self) -> str:
        """What people read."""
        if self.kind == "merge":
            return f"which commit of the branch that {self.path[: commits.SHORT]} merged"
        if self.kind == "base":
            return f"which commit between the merge base and {self.path[: commits.SHORT]}"
        kind = "submodule" if self.kind == "submodule" else "pin file"
        return f"which commit of what {kind} {self.path} leads to"

    def begin(self, record: Record) -> Mapping[str, Any]:
        """Its rows; may fetch a repository. Raises InfrastructureError."""
        try:
            place, rows, notes = self._rows()
        except (Absent, UsageError) as error:
            return {"unsupported": str(error)}
        return {
            "place": place.to_json(),
            "rows": [row.to_json() for row in rows],
            "notes": list(notes),
        }

    def next_steps(self, record: Record, jobs: int, under_way: Sequence[Ask]) -> Steps:
        """What to probe next, one row after the other."""
        about = record.stages[self.name]
        if "unsupported" in about:
            return Done({"status": "unsupported", "reason": about["unsupported"]})
        rows = [Row.from_json(each) for each in about["rows"]]
        for number, row in enumerate(rows):
            ids = {each.id for each in row.candidates}
            mine = [each for each in under_way if each.candidate.id in ids]
            steps = self._search(row).next_steps(record, jobs, mine)
            if isinstance(steps, Batch):
                others = tuple(each for each in under_way if each not in mine)
                return Batch(steps.asks, (*steps.needless, *others))
            result = self._result(record, row, dict(steps.result), about["notes"])
            if number == len(rows) - 1 or result["status"] not in ("interaction", "elsewhere"):
                return Done({**result, "row": number})
        return Done({"status": "unsupported", "reason": "no branch with commits of its own"})

    def probes_left(self, record: Record) -> int:
        """The most probes still to come in the row under way."""
        about = record.stages.get(self.name, {})
        rows = [Row.from_json(each) for each in about.get("rows", ())]
        left = (self._search(row).probes_left(record) for row in rows)
        return next((count for count in left if count), 0)

    def verdict(self, record: Record, candidate: Candidate) -> Verdict | None:
        """What is known of one candidate."""
        for each in record.stages.get(self.name, {}).get("rows", ()):
            row = Row.from_json(each)
            if candidate.id in (known.id for known in row.candidates):
                return self._search(row).verdict(record, candidate)
        return None

    def ahead(self, record: Record, under_way: Sequence[Ask], limit: int) -> Sequence[Candidate]:
        """Candidates that may be asked for soon."""
        for each in record.stages.get(self.name, {}).get("rows", ()):
            row = Row.from_json(each)
            ids = {known.id for known in row.candidates}
            mine = [ask for ask in under_way if ask.candidate.id in ids]
            if mine:
                return self._search(row).ahead(record, mine, limit)
        return ()

    def _search(self, row: Row) -> Search:
        return replace(
            self.search, candidates=row.candidates, back=False, name=self.name, title=self.title
        )

    def _rows(self) -> tuple[Place, list[Row], list[str]]:
        if self.kind == "merge":
            return self._merged()
        if self.change is not None:
            return self._elsewhere()
        place = self.door.place
        found = commits.line(_open(place.repository), self.door.good, self.door.bad)
        return place, [place.row(found.commits)], []

    def _merged(self) -> tuple[Place, list[Row], list[str]]:
        """Every branch that the merge brings in, from its merge base to the merge itself."""
        place, newer = self.door.place, self.door.newer
        assert newer is not None
        repository = _open(place.repository)
        rows, notes = [], []
        for tip in newer.parents:
            bases = repository.common(self.door.older, tip)
            if tip in bases:  # the other side itself, or what it has already
                continue
            if not bases:
                notes.append(f"{tip[: commits.SHORT]} has no history in common with the main line")
                continue
            line = [*commits.line(repository, bases[0], tip).commits, newer]
            rows.append(place.row(line[::-1] if self.door.backwards else line))
        return place, rows, notes

    def _elsewhere(self) -> tuple[Place, list[Row], list[str]]:
        """The commits between both pins, in the superproject at the commit that moved the pin."""
        change, newer = self.change, self.door.newer
        assert change is not None
        assert newer is not None
        source = self._source(change, newer.sha)
        (base,) = self.door.place.row([newer]).candidates
        prefix = f"{change.path}/" if change.kind == "submodule" else None
        place = Place(source, base, change, prefix)
        line = commits.line(_open(source), change.old, change.new)
        found = list(line.commits)
        return place, [place.row(found[::-1] if self.door.backwards else found)], [*line.notes]

    def _source(self, change: Change, at: str) -> str:
        git = _git(self.context)
        sources = Sources(self.context.folder)
        wanted = [change.old, change.new]
        if change.kind == "pin":
            return sources.mirror(dict(self.pins)[change.path], wanted, git)
        own = change.path.removeprefix(self.door.place.prefix or "")
        return sources.submodule(self.door.place.repository, at, own, wanted, git)

    def _result(
        self, record: Record, row: Row, result: dict[str, Any], notes: Sequence[str]
    ) -> dict[str, Any]:
        """The row's result in the words of this stage."""
        found: dict[str, Any] = {**result, "kind": self.kind, "notes": list(notes)}
        verdicts = self._search(row).verdicts(record)
        found["verdicts"] = [
            {"label": each.label, "verdict": verdict.kind, "value": verdict.value or None}
            for each, verdict in zip(row.candidates, verdicts, strict=True)
            if verdict is not None
        ]
        if result["status"] == "not_reproduced":
            return {**found, "status": "elsewhere", "reason": self._elsewhere_reason()}
        step = _step(self._search(row), record) if result["status"] == "found" else None
        if step is None:
            return found
        good, bad = (row.commits[place] for place in step)
        tip = (0, 1) if self.door.backwards else (len(row.commits) - 2, len(row.commits) - 1)
        if self.kind == "merge" and step == tip:
            reason = (
                "the branch is good by itself to its tip: what it changes and what the other side "
                "changed since they parted give these bits only together"
            )
            return {**found, "status": "interaction", "reason": reason}
        return {
            **found,
            "good": good,
            "bad": bad,
            "culprit": described(self._into(record), good, bad),
        }

    def _into(self, record: Record) -> Place:
        return Place.from_json(record.stages[self.name]["place"])

    def _elsewhere_reason(self) -> str:
        if self.kind == "merge":
            return (
                "the merge base has the bits of the merge already: they came back on the main line "
                "in between, so the branch as it is shows nothing"
            )
        return (
            f"with what {self.path} led to before, the bits are the same: "
            "the change is elsewhere in this commit"
        )


@dataclass(frozen=True)
class Named:
    """Says what the culprit commit is (a `stage.Stage` that tries nothing)."""

    door: Door
    name: str = field(default=CULPRIT, init=False)
    title: str = field(default="the commit that changes the bits", init=False)

    def begin(self, record: Record) -> Mapping[str, Any]:
        """Nothing to keep."""
        return {}

    def next_steps(self, record: Record, jobs: int, under_way: Sequence[Ask]) -> Steps:
        """The commit, or why there is none to name."""
        place, good, bad = self.door.place, self.door.good, self.door.bad
        if self.door.newer is None:
            between = f"{bad}..{good}" if _leads(self.door) else f"{good}..{bad}"
            where = shlex.join(["git", "-C", place.repository, "log", between])
            reason = (
                f"{good[: commits.SHORT]} and {bad[: commits.SHORT]} are no parent and child: what "
                f"changes the bits is in the commits between them, which were not tried: {where}"
            )
            return Done({"status": "unresolved", "reason": reason})
        return Done({"status": "found", "culprit": described(place, good, bad)})

    def probes_left(self, record: Record) -> int:
        """None."""
        return 0

    def verdict(self, record: Record, candidate: Candidate) -> Verdict | None:
        """Nothing is tried here."""
        return None

    def ahead(self, record: Record, under_way: Sequence[Ask], limit: int) -> Sequence[Candidate]:
        """None."""
        return ()


def described(place: Place, good: str, bad: str) -> dict[str, Any]:
    """The commit between two neighbours as the report has it: JSON values."""
    door = Door(place, good, bad)
    newer = door.newer
    if newer is None:
        return {"commit": bad, "repository": place.repository}
    repository = _open(place.repository)
    files = repository.files(door.older, newer.sha)
    merge = ["--diff-merges=first-parent"] if newer.merge else []
    found = {
        **newer.to_json(),
        "parents": list(newer.parents),
        "merge": newer.merge,
        "repair": door.backwards,
        "repository": repository.path,
        "files": files[:_SHOWN_FILES],
        "files_changed": len(files),
        "show": shlex.join(["git", "-C", repository.path, "show", *merge, newer.sha]),
    }
    if place.change is not None:
        found["in"] = {"kind": place.change.kind, "path": place.change.path}
    return found


def _step(search: Search, record: Record) -> tuple[int, int] | None:
    """The two neighbours where the good bits end; None where a range is all that is known."""
    outcome = search.outcome(record)
    if isinstance(outcome, Found):
        first = outcome.answer.transitions[0]
        return (first.left, first.right) if first.adjacent else None
    if isinstance(outcome, noisy.Estimate) and outcome.first_bad == outcome.last_good + 1:
        return (outcome.last_good, outcome.first_bad)
    return None


@lru_cache(maxsize=64)
def _open(path: str) -> Repository:
    return Repository(path)


@lru_cache(maxsize=256)
def _changes(
    repository: str, older: str, newer: str, prefix: str, pins: tuple[tuple[str, str], ...]
) -> tuple[Change, ...]:
    """The submodules, then the pin files, that a commit changes."""
    opened = _open(repository)
    found = commits.submodule_changes(opened, older, newer, prefix)
    for path, pinned in pins:
        if path.startswith(prefix):
            own = path.removeprefix(prefix)
            change = commits.pin_change(opened, (older, newer), own, _open(pinned), prefix)
            found += [change] if change is not None else []
    return tuple(found)


def _pinned(repository: str, context: Context) -> str:
    """Where the commits of a pinned repository are: its mirror where it was given by URL."""
    if os.path.isdir(repository):
        return repository
    return Sources(context.folder).mirror(repository, (), _git(context))


def _git(context: Context) -> Git:
    return Git(os.environ, context.folder.absolute() / "fetch.log")
