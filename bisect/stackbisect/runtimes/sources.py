"""Where the commits of another repository are: on this machine already, or in a mirror of its URL.

A submodule's commits are usually in the user's own repository (`.git/modules/NAME`) or in the
submodule's working tree. What is not there is fetched from the URL into a mirror that belongs to
the bisection; nothing of the user's is written to.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stackbisect.errors import UsageError
from stackbisect.probe import InfrastructureError
from stackbisect.runtimes import here, process
from stackbisect.spaces.commits import ELSEWHERE, Repository

MIRRORS = "mirrors"
# No hook of the user's runs for a checkout that the user never sees.
_SAFE = ("-c", "core.hooksPath=/dev/null", "-c", "advice.detachedHead=false")


class Absent(Exception):
    """A commit that is in none of the places where it should be."""


@dataclass(frozen=True)
class Git:
    """Runs git under the warden. `log` is kept; `stopped` as in `process.run`."""

    environ: Mapping[str, str]
    log: Path
    stopped: Callable[[], bool] | None = None

    def __call__(self, *commands: Sequence[str], cwd: Path) -> None:
        """Run git commands one after the other. Raises GitFailed and process.Stopped."""
        step = self.log.with_name(self.log.name + ".step")
        out = self.log.with_name(self.log.name + ".out")
        words = [["git", *_SAFE, *command] for command in commands]
        ended = process.run(
            ["/bin/sh", "-c", " && ".join(shlex.join(each) for each in words)],
            environment(self.environ),
            cwd,
            log=step,
            stdout=out,
            stopped=self.stopped,
        )
        text = step.read_text(errors="replace")
        with self.log.open("a", encoding="utf-8") as log:
            log.write("".join(f"$ {shlex.join(each)}\n" for each in words) + text)
        for each in (step, out):
            each.unlink(missing_ok=True)
        if ended.code:
            names = " and ".join(command[0] for command in commands)
            raise GitFailed(f"git {names} ended with {ended.code}: {here.last_lines(text)}")


class GitFailed(Exception):
    """A git command that did not succeed; the text is git's own."""


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for git: no question is asked, no hook's variables lead elsewhere."""
    found = {name: value for name, value in environ.items() if name not in ELSEWHERE}
    return {**found, "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0"}


@dataclass
class Sources:
    """The repositories that a bisection may need besides its own. Threads may share it."""

    folder: Path
    _locks: dict[str, threading.Lock] = field(default_factory=dict, repr=False)
    _guard: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def submodule(self, parent: str, at: str, path: str, wanted: Sequence[str], git: Git) -> str:
        """A repository that has the `wanted` commits of the submodule at `path`.

        `parent` is the repository whose commit `at` has the submodule. Raises Absent,
        InfrastructureError.
        """
        above = Repository(parent)
        about = above.modules(at).get(path, {})
        name = about.get("name", path)
        places = [
            os.path.join(above.git_dir, "modules", name),
            os.path.join(above.common_dir, "modules", name),
            os.path.join(above.path, path),
        ]
        for place in places:
            if has(place, wanted):
                return place
        if not about.get("url"):
            raise Absent(
                f"submodule {path}: {', '.join(w[:12] for w in wanted)} is not on this machine, "
                f"and .gitmodules of {at[:12]} names no URL for it"
            )
        return self.mirror(absolute(about["url"], above.remote()), wanted, git)

    def mirror(self, url: str, wanted: Sequence[str], git: Git) -> str:
        """A mirror of `url` that has the `wanted` commits; the repository itself if it is here.

        Raises Absent, InfrastructureError.
        """
        if os.path.isdir(url) and has(url, wanted):
            return url
        name = hashlib.sha256(url.encode()).hexdigest()[:16]
        place = self.folder / MIRRORS / f"{_readable(url)}-{name}.git"
        with self._lock(name):
            try:
                return self._fetched(url, place, wanted, git)
            except GitFailed as error:
                raise InfrastructureError(f"{url}: {error}; resume when it is mended") from error

    def _fetched(self, url: str, place: Path, wanted: Sequence[str], git: Git) -> str:
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            draft = place.with_name(place.name + ".new")
            shutil.rmtree(draft, ignore_errors=True)
            git(("clone", "--quiet", "--mirror", url, str(draft)), cwd=place.parent)
            draft.rename(place)
        elif not has(str(place), wanted):
            git(("fetch", "--quiet", "--prune", "origin"), cwd=place)
        for sha in wanted:
            if not has(str(place), [sha]):
                try:
                    git(("fetch", "--quiet", "origin", sha), cwd=place)
                except GitFailed as error:
                    raise Absent(f"{sha[:12]} is not in {url} any more: {error}") from None
        return str(place)

    def _lock(self, name: str) -> threading.Lock:
        with self._guard:
            return self._locks.setdefault(name, threading.Lock())


def has(place: str, wanted: Sequence[str]) -> bool:
    """Whether there is a repository of its own at `place` that has all the commits."""
    if not os.path.isdir(place):
        return False
    if not os.path.exists(os.path.join(place, ".git")) and not os.path.exists(
        os.path.join(place, "HEAD")
    ):
        return False
    try:
        found = Repository(place)
    except UsageError:
        return False
    return all(found.find(sha) is not None for sha in wanted)


def absolute(url: str, remote: str) -> str:
    """A URL of .gitmodules: one that begins with ./ or ../ is relative to the parent's remote."""
    if not url.startswith(("./", "../")):
        return url
    head, separator, tail = (
        remote.rstrip("/").rpartition(":") if _is_scp(remote) else ("", "", remote)
    )
    base = tail.rstrip("/")
    while url.startswith(("./", "../")):
        if url.startswith("../"):
            base = base.rpartition("/")[0]
        url = url.partition("/")[2]
    return f"{head}{separator}{base}/{url}"


def _is_scp(remote: str) -> bool:
    """Whether a remote is written HOST:PATH."""
    return "://" not in remote and re.match(r"[^/]+:", remote) is not None


def _readable(url: str) -> str:
    last = url.rstrip("/").replace(":", "/").rpartition("/")[2]
    return re.sub(r"[^A-Za-z0-9_-]+", "-", last.removesuffix(".git"))[:40] or "mirror"
