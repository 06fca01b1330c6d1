"""The commits between two revisions, and what a commit changes: read from git, never written.

A *line* is a row of commits from an old one to a new one, each the parent of the next. Where the
old one lies on the first-parent chain of the new one (the usual case) the line is that chain: the
merges and commits of the main line, side branches left out. Where it does not, the line follows
the first parent that still leads to the old one, so that every step is one commit or one merge.
"""

from __future__ import annotations

import configparser
import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stackbisect.errors import UsageError
from stackbisect.probe import Candidate, InfrastructureError
from stackbisect.spaces import window

SHORT = 12
_HASH = re.compile(r"[0-9a-f]{7,40}")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_FIELDS = "%H%x1f%P%x1f%an%x1f%aI%x1f%s"
# Variables of a hook or an alias that lead git elsewhere than to the folder it is asked about.
ELSEWHERE = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR"),
    *("GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE", "GIT_PREFIX"),
)


@dataclass(frozen=True)
class Commit:
    """One commit. `date` is the author's, ISO 8601."""

    sha: str
    parents: tuple[str, ...]
    author: str
    date: str
    subject: str

    @property
    def merge(self) -> bool:
        """Whether it has several parents."""
        return len(self.parents) > 1

    def to_json(self) -> dict[str, str]:
        """What candidates and reports keep of it."""
        return {
            "commit": self.sha,
            "subject": self.subject,
            "author": self.author,
            "date": self.date,
        }


@dataclass(frozen=True)
class Line:
    """Commits from the good to the bad side. `backwards`: the bad side is the older one."""

    commits: tuple[Commit, ...]
    backwards: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Change:
    """What a commit changes of something that leads to another repository.

    `kind`: "submodule" or "pin". `old` and `new` are commits of that repository; `text` is what
    stands in the pin file for `new` (a hash, its first digits, a tag).
    """

    kind: str
    path: str
    old: str
    new: str
    text: str = ""


class Repository:
    """A git repository, bare or not, read with GitPython."""

    def __init__(self, path: str | Path, option: str = "--git") -> None:
        """Open the repository that holds `path`, which `option` gave. Raises UsageError."""
        git = _gitpython()
        try:
            self._repo = git.Repo(path, search_parent_directories=True)
        except git.NoSuchPathError:
            raise UsageError(
                f"{option} {path}: expected a git repository, found no such path"
            ) from None
        except git.InvalidGitRepositoryError:
            raise UsageError(
                f"{option} {path}: expected a git repository, found none there"
            ) from None
        # A linked working tree has a HEAD of its own, and shares the rest with others.
        self.git_dir = str(Path(self._repo.git_dir).resolve())
        self.common_dir = str(Path(self._repo.common_dir).resolve())
        self._error = git.GitCommandError
        self._seen: dict[str, Commit] = {}

    @property
    def path(self) -> str:
        """Its working tree; the repository itself where it is bare."""
        # A submodule's own repository says where its tree is relative to itself.
        return os.path.normpath(os.path.join(self.git_dir, self._repo.working_tree_dir or ""))

    @property
    def shallow(self) -> bool:
        """Whether its history is cut."""
        return self.git("rev-parse", "--is-shallow-repository") == "true"

    def git(self, *words: str) -> str:
        """What a git command prints. Raises GitPython's GitCommandError."""
        command = ["git", f"--git-dir={self.git_dir}", "-c", "core.quotePath=false", *words]
        environ = {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0"}
        found = self._repo.git.execute(command, env=environ, strip_newline_in_stdout=False)
        return str(found).encode("utf-8", "replace").decode().removesuffix("\n")

    def resolve(self, revision: str, option: str = "") -> str:
        """The commit that a revision names. Raises UsageError."""
        found = self.find(revision)
        if found is not None:
            return found
        cut = (
            "; this is a shallow clone: git fetch --unshallow brings the rest"
            if self.shallow
            else ""
        )
        offer = "" if cut else self._nearest(revision)
        raise UsageError(
            f"{option} {revision!r}: no such commit in {self.path}{cut}{offer}".strip()
        )

    def find(self, revision: str) -> str | None:
        """The commit that a revision names; None where there is none."""
        if not revision or revision.startswith("-"):
            return None
        try:
            return self.git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}") or None
        except self._error:
            return None

    def commit(self, sha: str) -> Commit:
        """One commit, by its whole hash: it never changes."""
        if sha not in self._seen:
            self._seen.update(self._commits("--no-walk", sha))
        return self._seen[sha]

    def common(self, one: str, other: str) -> list[str]:
        """Their merge bases, the best first; none where they have no history in common."""
        try:
            return self.git("merge-base", "--all", one, other).split()
        except self._error:
            return []

    def between(self, old: str, new: str) -> dict[str, Commit]:
        """The ancestors of `new` that are none of `old`."""
        return self._commits(new, f"^{old}")

    def tags(self) -> dict[str, list[str]]:
        """Tags by the commit they name."""
        found: dict[str, list[str]] = {}
        fields = "%(objectname) %(*objectname) %(refname:strip=2)"
        for line in self.git("for-each-ref", f"--format={fields}", "refs/tags").splitlines():
            own, peeled, name = line.split(" ", 2)
            found.setdefault(peeled or own, []).append(name)
        return found

    def files(self, old: str, new: str) -> list[dict[str, str]]:
        """The files that differ between two commits: `status` (A, M, D, T) and `path`."""
        fields = self.git("diff-tree", "-r", "-z", "--no-renames", "--name-status", old, new)
        words = fields.split("\0")
        pairs = zip(words[::2], words[1::2], strict=False)
        return [{"status": status, "path": path} for status, path in pairs]

    def submodules(self, sha: str) -> dict[str, str]:
        """The submodules of a commit: path → recorded commit."""
        found = {}
        for entry in self.git("ls-tree", "-r", "-z", sha).split("\0"):
            about, _, path = entry.partition("\t")
            if about.startswith("160000 "):
                found[path] = about.split()[2]
        return found

    def modules(self, sha: str) -> dict[str, dict[str, str]]:
        """What .gitmodules of a commit says: path → `name` and `url`."""
        text = self.text(sha, ".gitmodules")
        return {} if text is None else read_modules(text)

    def text(self, sha: str, path: str) -> str | None:
        """A file's content in a commit; None where it is not there."""
        try:
            return self.git("cat-file", "blob", f"{sha}:{path}")
        except self._error:
            return None

    def dirty(self) -> bool:
        """Whether the working tree holds what no commit has."""
        return not self._repo.bare and bool(self._repo.is_dirty(submodules=False))

    def remote(self) -> str:
        """Where it was cloned from; its own path where nothing says."""
        try:
            url = self.git("config", "--get", "remote.origin.url")
        except self._error:
            return self.path
        is_path = ":" not in url.partition("/")[0]
        return os.path.normpath(os.path.join(self.path, url)) if is_path else url

    def _commits(self, *revisions: str) -> dict[str, Commit]:
        lines = self.git("rev-list", f"--format={_FIELDS}", *revisions).splitlines()
        found = {}
        for line in lines:
            parts = line.split("\x1f")
            if len(parts) == 5:
                sha, parents, author, date, subject = parts
                found[sha] = Commit(sha, tuple(parents.split()), author, date, subject)
        return found

    def _nearest(self, revision: str) -> str:
        names = self.git("for-each-ref", "--format=%(refname:short)").splitlines()
        found = window.nearest(revision, names)
        return f"; nearest: {', '.join(found)}" if found else ""


def read_modules(text: str) -> dict[str, dict[str, str]]:
    """What the text of a .gitmodules says: path → `name` and `url`."""
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string("\n".join(line.strip() for line in text.splitlines()))
    except configparser.Error:
        return {}
    found = {}
    for section in parser.sections():
        match = re.fullmatch(r'submodule "(.*)"', section)
        if match and parser.has_option(section, "path"):
            url = parser.get(section, "url", fallback="")
            found[parser.get(section, "path")] = {"name": match[1], "url": url}
    return found


# -- lines -----------------------------------------------------------------------------------------


def path(
    commits: Mapping[str, Commit], old: str, new: str, *, first_parent: bool = False
) -> list[str] | None:
    """The line from `old` to `new`, both included; None where there is none.

    `commits` are the ancestors of `new` that are none of `old`.
    """
    leads = {old}
    for sha in _parents_first(commits):
        mine = commits[sha].parents
        if not leads.isdisjoint(mine[:1] if first_parent else mine):
            leads.add(sha)
    if new not in leads:
        return None
    found = [new]
    while found[-1] != old:
        found.append(next(each for each in commits[found[-1]].parents if each in leads))
    return found[::-1]


def _parents_first(commits: Mapping[str, Commit]) -> list[str]:
    """Every commit after its parents."""
    found: dict[str, None] = {}
    for start in commits:
        stack = [start]
        while stack:
            sha = stack[-1]
            waits = [p for p in commits[sha].parents if p in commits and p not in found]
            if sha in found or not waits:
                found.setdefault(sha)
                stack.pop()
            else:
                stack.extend(waits)
    return list(found)


def line(repository: Repository, good: str, bad: str, *, first_parent: bool = False) -> Line:
    """The commits from `good` to `bad` (whole hashes). Raises UsageError.

    Where the good one is the later one the line runs backwards: the search is for a repair. Where
    neither is an ancestor of the other, the merge base stands behind the good one: it must have the
    good bits, as git bisect wants it too, and the search shows whether it has.
    """
    short = [sha[:SHORT] for sha in (good, bad)]
    if good == bad:
        return Line((repository.commit(good),))
    bases = repository.common(good, bad)
    if not bases:
        cut = " (a shallow clone: git fetch --unshallow)" if repository.shallow else ""
        raise UsageError(
            f"{short[0]} and {short[1]} have no history in common in {repository.path}{cut}: "
            "there are no commits between them"
        )
    if good in bases:
        return Line(_walk(repository, good, bad, first_parent))
    if bad in bases:
        found = _walk(repository, bad, good, first_parent)
        note = f"the good end {short[0]} comes after the bad end {short[1]}: searched backwards"
        return Line(found[::-1], backwards=True, notes=(note,))
    base = bases[0]
    note = (
        f"the good end {short[0]} is no ancestor of the bad end {short[1]}: searched from their "
        f"merge base {base[:SHORT]}; where that has other bits than the good end, what changed "
        "them is on the way to the good end"
    )
    more = f"there are {len(bases)} merge bases; only {base[:SHORT]} was taken"
    found = _walk(repository, base, bad, first_parent)
    notes = (note, more) if len(bases) > 1 else (note,)
    return Line((repository.commit(good), *found), notes=notes)


def _walk(repository: Repository, old: str, new: str, first_parent: bool) -> tuple[Commit, ...]:
    commits = repository.between(old, new)
    found = path(commits, old, new, first_parent=first_parent)
    if found is None and first_parent:
        raise UsageError(
            f"--first-parent: {old[:SHORT]} is not on the first-parent chain of {new[:SHORT]}; "
            "leave --first-parent out, or give an end that is"
        )
    if found is None:
        raise UsageError(
            f"no line of commits leads from {old[:SHORT]} to {new[:SHORT]} in {repository.path}"
        )
    return (repository.commit(old), *(commits[sha] for sha in found[1:]))


def space(
    repository: Repository, good: str, bad: str, *, first_parent: bool = False
) -> window.Space:
    """The candidates between two revisions, as they are asked for."""
    ends = repository.resolve(good, "--good"), repository.resolve(bad, "--bad")
    found = line(repository, *ends, first_parent=first_parent)
    notes = list(found.notes)
    if repository.dirty():
        notes.append(
            f"{repository.path} has changes that are in no commit; they are part of no candidate"
        )
    candidates = tuple(candidate(each, n) for n, each in enumerate(found.commits))
    return window.Space(candidates, notes=tuple(notes))


def candidate(commit: Commit, position: int) -> Candidate:
    """One commit as it is."""
    return Candidate(commit.sha, commit.sha[:SHORT], position, commit.to_json())


# -- what leads elsewhere --------------------------------------------------------------------------


def overlaid(
    base: Candidate, change: Change, commit: Commit, text: str, position: int
) -> Candidate:
    """`base` with another commit of a submodule, or with `text` in its pin file.

    With what it has anyway it is `base` itself, whose probes count.
    """
    details = dict(base.details)
    label = f"{os.path.basename(change.path)}@{text or commit.sha[:SHORT]}"
    if commit.sha == change.new:
        return Candidate(base.id, label, position, details)
    step: dict[str, Any] = {"kind": change.kind, "path": change.path, "commit": commit.sha}
    if change.kind == "pin":
        step.update({"from": change.text, "to": text})
    details["overlays"] = [*details.get("overlays", ()), step]
    details["of"] = commit.to_json()
    return Candidate(f"{base.id}+{change.path}={text or commit.sha}", label, position, details)


def submodule_changes(repository: Repository, old: str, new: str, prefix: str = "") -> list[Change]:
    """The submodules that are in both commits, at different ones."""
    before, after = repository.submodules(old), repository.submodules(new)
    return [
        Change("submodule", prefix + path, before[path], after[path])
        for path in sorted({*before} & {*after})
        if before[path] != after[path]
    ]


def pin_change(
    repository: Repository, between: tuple[str, str], path: str, pinned: Repository, prefix: str
) -> Change | None:
    """What a commit changes in a pin file; None where nothing that names commits of `pinned`.

    A pin is a word in the file that names a commit there: a hash or its first digits, a tag, a
    version whose tag has a `v` before it.
    """
    before, after = (repository.text(sha, path) for sha in between)
    if before is None or after is None or before == after:
        return None
    words = [set(_WORD.findall(text)) for text in (before, after)]
    gone, come = words[0] - words[1], words[1] - words[0]
    pairs = [
        {word: sha for word in sorted(each) if (sha := names(pinned, word)) is not None}
        for each in (gone, come)
    ]
    if len(pairs[0]) != 1 or len(pairs[1]) != 1:
        return None
    (left,), (right,) = pairs
    return Change("pin", prefix + path, pairs[0][left], pairs[1][right], right)


def names(pinned: Repository, word: str) -> str | None:
    """The commit that a word of a pin file names."""
    if is_hash(word):
        return pinned.find(word)
    if not any(letter.isdigit() for letter in word):
        return None
    return pinned.find(f"refs/tags/{word}") or pinned.find(f"refs/tags/v{word}")


def is_hash(text: str) -> bool:
    """Whether a word of a pin file is a hash or the beginning of one."""
    return _HASH.fullmatch(text) is not None


def pin_texts(pinned: Repository, change: Change, line: Sequence[Commit]) -> dict[str, str]:
    """What would stand in the pin file for each commit of a line, by hash.

    A hash stays as long as it was. Where the pin is a tag, only commits that have one are there.
    """
    if is_hash(change.text):
        return {each.sha: each.sha[: len(change.text)] for each in line}
    bare = pinned.find(f"refs/tags/{change.text}") is None
    tags = pinned.tags()
    found = {}
    for each in line:
        usable = [t.removeprefix("v") if bare else t for t in tags.get(each.sha, ())]
        if each.sha == change.new:
            found[each.sha] = change.text
        elif usable:
            found[each.sha] = min(
                usable, key=lambda text: (abs(len(text) - len(change.text)), text)
            )
    return found


def _gitpython() -> Any:
    try:
        import git
    except ImportError as error:
        raise UsageError(
            f"commits need git and GitPython ({error}); pip install 'pinner-stackbisect[bisect]'"
        ) from None
    return git


def failed(error: Exception) -> InfrastructureError:
    """What a git command that failed where it must not says."""
    text = str(getattr(error, "stderr", "") or error).strip()
    return InfrastructureError(f"git: {text}")


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """A repository that was there and cannot be read any more is the machinery's fault."""
    try:
        yield
    except UsageError as error:
        raise InfrastructureError(str(error)) from error
    except Exception as error:
        # GitPython is imported only where commits are searched: its errors have no name here.
        if type(error).__module__.partition(".")[0] != "git":
            raise
        raise failed(error) from error
