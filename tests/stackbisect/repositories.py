"""Makes git repositories of any shape at once: every commit with its parents, files and links."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_ENV = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}


@dataclass(frozen=True)
class Made:
    """One commit: its whole content. `links` are submodules: path → commit."""

    name: str
    parents: Sequence[str] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)


def git(folder: Path, *words: str, stdin: str | None = None) -> str:
    """Run git; returns what it printed."""
    done = subprocess.run(
        ["git", *words],
        cwd=folder,
        env={**os.environ, **_ENV},
        input=stdin,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def make(folder: Path, commits: Sequence[Made], *, bare: bool = False) -> dict[str, str]:
    """A repository with these commits, the last one checked out on `main`; name → hash.

    Author dates go up by an hour, so that a report's date can be told.
    """
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet", "--initial-branch=main", *(["--bare"] if bare else []))
    grow(folder, commits)
    if not bare:
        git(folder, "checkout", "--quiet", "--force", "main")
    return hashes(folder)


def grow(folder: Path, commits: Sequence[Made]) -> None:
    """Add commits; `main` is the last of them. Each has a branch of its name under refs/made."""
    marks = {each.name: number for number, each in enumerate(commits, start=1)}
    known = hashes(folder)
    text = "".join(_commit(each, number, marks, known) for number, each in enumerate(commits, 1))
    refs = [f"reset refs/made/{name}\nfrom :{number}\n\n" for name, number in marks.items()]
    last = f"reset refs/heads/main\nfrom :{len(commits)}\n\n"
    git(folder, "fast-import", "--quiet", "--force", stdin=text + "".join(refs) + last)


def hashes(folder: Path) -> dict[str, str]:
    """Every commit that was made here, by name."""
    lines = git(folder, "for-each-ref", "--format=%(refname) %(objectname)", "refs/made")
    return {
        name.removeprefix("refs/made/"): sha
        for name, sha in (line.split() for line in lines.splitlines())
    }


def _commit(made: Made, number: int, marks: Mapping[str, int], known: Mapping[str, str]) -> str:
    who = f"A. Author <author@example.org> {1_700_000_000 + 3600 * number} +0000"
    message = f"change {made.name}"
    lines = [
        "commit refs/heads/making",
        f"mark :{number}",
        f"author {who}",
        f"committer {who}",
        f"data {len(message.encode())}\n{message}",
    ]
    parents = [f":{marks[p]}" if p in marks else known[p] for p in made.parents]
    if parents:
        lines.append(f"from {parents[0]}")
        lines += [f"merge {each}" for each in parents[1:]]
    else:
        lines.insert(0, "reset refs/heads/making")
    lines.append("deleteall")
    for path, content in made.files.items():
        lines.append(f"M 100644 inline {path}\ndata {len(content.encode())}\n{content}")
    lines += [f"M 160000 {sha} {path}" for path, sha in made.links.items()]
    return "\n".join(lines) + "\n\n"


def line(names: Sequence[str], files: Sequence[Mapping[str, str]]) -> list[Made]:
    """Commits in a row, each the parent of the next."""
    return [
        Made(name, names[place - 1 : place] if place else (), content)
        for place, (name, content) in enumerate(zip(names, files, strict=True))
    ]
