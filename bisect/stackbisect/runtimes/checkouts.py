"""Checkouts of single commits under a bisection's folder, built where a build command is given.

```
checkouts/KEY      where a commit is built and tried; gone after each probe
builds/KEY/tree    how it looked when it was built; build.json is written last
mirrors/           repositories that had to be fetched (`sources`)
```
Each checkout is a clone that shares the objects of the user's repository: it takes a moment, holds
submodules at their recorded commits, and nothing is written to the user's repository or working
tree. A probe gets the checkout as the build left it, always at the same path (builds write their
path into what they make), so a second probe does not see what the first one left there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import stat
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stackbisect.probe import Candidate, InfrastructureError, Job
from stackbisect.runtimes import caches, container_options, here, process
from stackbisect.runtimes.machine import Unfit
from stackbisect.runtimes.sources import Absent, Git, GitFailed, Sources, environment, has
from stackbisect.runtimes.turns import Turns
from stackbisect.spaces.commits import Repository, reading

CHECKOUTS, BUILDS = "checkouts", "builds"
COMMIT = "STACKBISECT_COMMIT"
_COMPLETE = "build.json"
# Below this a build that failed says nothing about the commit.
_FULL_BYTES = 16 << 20


class Refused(Unfit):
    """The commit cannot be checked out or built; the text says why."""


@dataclass(frozen=True)
class Wanted:
    """What a checkout must hold: a commit, and what stands in it otherwise than recorded."""

    commit: str
    overlays: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def of(cls, candidate: Candidate) -> Wanted:
        """What a candidate of `spaces.commits` asks for."""
        return cls(candidate.details["commit"], tuple(candidate.details.get("overlays", ())))

    def key(self, variables: Mapping[str, str]) -> str:
        """A name for its folder; `variables` are those that a build may see."""
        more = [[dict(each) for each in self.overlays], sorted(variables.items())]
        if not any(more):
            return self.commit[:16]
        text = json.dumps(more, sort_keys=True)
        return f"{self.commit[:16]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    def submodules(self) -> dict[str, str]:
        """Submodules by path that are at another commit."""
        found = [each for each in self.overlays if each["kind"] == "submodule"]
        return {each["path"]: each["commit"] for each in found}


@dataclass
class Checkouts:
    """The checkouts of one bisection. Threads may share it.

    `budget`: bytes that finished builds may take; beyond it the least recently used are removed.
    """

    repository: str
    folder: Path
    build: str | None
    budget: int | None
    environ: Mapping[str, str]
    secret: frozenset[str] = frozenset()
    _guard: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _turns: Turns = field(default_factory=Turns, repr=False)
    _swept: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        """Other repositories are looked for in the same folder."""
        self._sources = Sources(self.folder)

    @contextlib.contextmanager
    def checkout(self, candidate: Candidate, job: Job) -> Iterator[Path]:
        """The candidate's checkout for one probe.

        Raises Refused, InfrastructureError, and process.Stopped where the job is not wanted.
        """
        self._sweep()
        wanted = Wanted.of(candidate)
        if self.build is None:
            place = self.folder / CHECKOUTS / f"{wanted.key({})}.{job.log.parent.name}"
            with _removed(place):
                self._make(wanted, place, job)
                yield place
            return
        key = wanted.key(self._visible(job.env))
        place = self.folder / CHECKOUTS / key
        with self._turns.alone(key, job.stop.is_set), _removed(place):  # the path is the commit's
            self._built(wanted, key, place, job)
            yield place

    def clean(self) -> int:
        """Remove everything; returns how many builds there were."""
        found = list((self.folder / BUILDS).glob("*"))
        for name in (CHECKOUTS, BUILDS, "mirrors"):
            remove(self.folder / name)
        return len(found)

    def _visible(self, variables: Mapping[str, str]) -> dict[str, str]:
        """The variables that tell builds apart; a secret does not, and leaves no trace."""
        return {
            name: value
            for name, value in variables.items()
            if name not in self.secret and not container_options.is_secret_name(name)
        }

    def _sweep(self) -> None:
        """Once: remove what a program that was killed left half-made."""
        with self._guard:
            if self._swept:
                return
            self._swept = True
            remove(self.folder / CHECKOUTS)
            for each in (self.folder / BUILDS).glob("*"):
                if not (each / _COMPLETE).exists():
                    remove(each)

    # -- building ----------------------------------------------------------------------------------

    def _built(self, wanted: Wanted, key: str, place: Path, job: Job) -> None:
        kept = self.folder / BUILDS / key
        marker = kept / _COMPLETE
        if marker.exists():
            os.utime(marker)
            self._copy(kept / "tree", place, job)
            return
        self._make(wanted, place, job)
        self._run_build(wanted, place, job)
        remove(kept)
        kept.mkdir(parents=True)
        self._copy(place, kept / "tree", job)
        about = {"bytes": _size(kept / "tree"), "commit": wanted.commit, "build": self.build}
        draft = kept / f"{_COMPLETE}.new"
        draft.write_text(json.dumps(about) + "\n")
        draft.replace(marker)
        with self._guard:
            self._trim(kept)

    def _run_build(self, wanted: Wanted, place: Path, job: Job) -> None:
        log = job.log.with_name("build.log")
        environ = {**environment(self.environ), **job.env, COMMIT: wanted.commit}
        for name, folder in caches.FOLDERS.items():
            if name not in job.env:
                environ[name] = str(job.scratch / "build" / folder)
                os.makedirs(environ[name], exist_ok=True)
        ended = process.run(
            ["/bin/sh", "-c", str(self.build)],
            environ,
            place,
            log=log,
            stdout=log.with_name("build.out"),
            secrets=container_options.secret_values(environ, self.secret),
            stopped=job.stop.is_set,
        )
        if not ended.code:
            return
        text = here.last_lines(log.read_text(errors="replace"), 4)
        if shutil.disk_usage(place).free < _FULL_BYTES:
            raise InfrastructureError(f"no room is left in {self.folder}: {text}")
        raise Refused(f"the build ended with {ended.code}: {text or 'no output'} (log {log.name})")

    def _copy(self, source: Path, target: Path, job: Job) -> None:
        remove(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        log = job.log.with_name("copy.log")
        ended = process.run(
            ["cp", "-a", "--reflink=auto", str(source), str(target)],
            self.environ,
            self.folder,
            log=log,
            stdout=job.log.with_name("copy.out"),
            stopped=job.stop.is_set,
        )
        if ended.code:
            text = here.last_lines(log.read_text(errors="replace"), 2)
            raise InfrastructureError(f"a build cannot be copied: {text}; make room and resume")
        for each in (log, job.log.with_name("copy.out")):
            each.unlink(missing_ok=True)

    def _trim(self, newest: Path) -> None:
        """Remove the least recently used builds beyond the budget; the newest one stays."""
        if self.budget is None:
            return
        markers = [*(self.folder / BUILDS).glob(f"*/{_COMPLETE}")]
        by_use = sorted(markers, key=lambda marker: marker.stat().st_mtime, reverse=True)
        total = 0
        for marker in by_use:
            total += int(json.loads(marker.read_text())["bytes"])
            in_use = marker.parent == newest or self._turns.taken(marker.parent.name)
            if total <= self.budget or in_use:
                continue
            marker.unlink()
            remove(marker.parent)

    # -- checking out ------------------------------------------------------------------------------

    def _make(self, wanted: Wanted, place: Path, job: Job) -> None:
        remove(place)
        place.parent.mkdir(parents=True, exist_ok=True)
        git = Git(self.environ, job.log.with_name("checkout.log"), job.stop.is_set)
        try:
            _clone(self.repository, wanted.commit, place, git)
            with reading():
                self._submodules(self.repository, wanted, "", place, git)
            for each in wanted.overlays:
                if each["kind"] == "pin":
                    _write_pin(place / each["path"], each["from"], each["to"])
        except Absent as error:
            raise Refused(str(error)) from error
        except GitFailed as error:
            if shutil.disk_usage(self.folder).free < _FULL_BYTES:
                raise InfrastructureError(f"no room is left in {self.folder}: {error}") from error
            if not has(self.repository, [wanted.commit]):
                raise InfrastructureError(
                    f"{wanted.commit[:12]} is not in {self.repository} any more: {error}"
                ) from error
            raise Refused(f"it cannot be checked out: {error}") from error

    def _submodules(
        self, repository: str, wanted: Wanted, prefix: str, root: Path, git: Git
    ) -> None:
        """Check out the submodules of `repository` at `wanted.commit`, and theirs."""
        opened, others = Repository(repository), wanted.submodules()
        recorded = opened.submodules(wanted.commit)
        known = opened.modules(wanted.commit) if recorded else {}
        for path, own in recorded.items():
            whole = prefix + path
            sha = others.get(whole, own)
            if path not in known and whole not in others:
                continue  # a bare link that .gitmodules does not know: git leaves it empty, too
            source = self._sources.submodule(repository, wanted.commit, path, [sha], git)
            _clone(source, sha, root / whole, git)
            self._submodules(source, replace(wanted, commit=sha), f"{whole}/", root, git)


def _clone(source: str, sha: str, place: Path, git: Git) -> None:
    """A clone that shares the objects of `source`, at one commit."""
    place.parent.mkdir(parents=True, exist_ok=True)
    options = ("--quiet", "--shared", "--no-checkout", "--template=")
    checkout = ("-C", str(place), "checkout", "--quiet", "--detach", sha)
    try:
        git(("clone", *options, source, str(place)), checkout, cwd=place.parent)
    except GitFailed:
        # A shallow repository is not shared but copied, by its branches: the commit may be on none.
        if not (place / ".git").exists():
            raise
        git(("-C", str(place), "fetch", "--quiet", "origin", sha), checkout, cwd=place.parent)


def _write_pin(file: Path, old: str, new: str) -> None:
    """Replace a word of a pin file wherever it stands by itself."""
    text = file.read_bytes().decode("utf-8", "surrogateescape")
    word = re.compile(rf"(?<![A-Za-z0-9._+-]){re.escape(old)}(?![A-Za-z0-9._+-])")
    found, count = word.subn(lambda _: new, text)
    if not count:
        raise Refused(f"{file.name}: expected the pin {old} in it, found none")
    file.write_bytes(found.encode("utf-8", "surrogateescape"))


@contextlib.contextmanager
def _removed(place: Path) -> Iterator[None]:
    """Remove a folder at the end, whatever happens."""
    try:
        yield
    finally:
        remove(place)


def remove(place: Path) -> None:
    """Remove a folder, its read-only folders too. Raises OSError where it cannot."""
    try:
        shutil.rmtree(place)
    except FileNotFoundError:
        return
    except PermissionError:
        place.chmod(stat.S_IRWXU)
        for base, names, _ in os.walk(place):
            for folder in (os.path.join(base, name) for name in names):
                if not os.path.islink(folder):
                    os.chmod(folder, stat.S_IRWXU)
        shutil.rmtree(place)


def _size(folder: Path) -> int:
    """Bytes on the disk."""
    return sum(
        os.lstat(os.path.join(base, name)).st_blocks * 512
        for base, _, names in os.walk(folder)
        for name in names
    )
