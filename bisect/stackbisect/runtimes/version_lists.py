"""Which versions of a component lie between its two ends: asked inside an image, else here.

A distribution's come from pip in a container of the bad image, whose Python and index they must
suit; where it has no pip or no way to an index, from this machine's pip for that image's Python. A
Debian package's come from apt in such a container. Where neither answers, the two ends are all.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from stackbisect.probe import Candidate
from stackbisect.runtimes import installing
from stackbisect.runtimes.base_python import Base
from stackbisect.runtimes.derived import DerivedImages
from stackbisect.runtimes.docker_engine import Engine
from stackbisect.spaces import debian_versions, versions
from stackbisect.spaces.components import Component

_ANSWER_S = 120.0


@dataclass(frozen=True)
class Lists:
    """Asks on one daemon."""

    owner: DerivedImages
    engine: Engine
    stopped: Callable[[], bool]

    def between(self, component: Component, bad: Candidate) -> list[str]:
        """From the good end's version to the bad end's, both included, in that direction."""
        ends = [each for each in (component.good, component.bad) if each is not None]
        plain = [installing.plain_version(each) for each in ends]
        if component.kind not in ("distribution", "package") or len(set(plain)) < 2:
            return ends
        if component.kind == "package":
            name = shlex.quote(component.name)
            found = self._inside(bad, f"apt-get update -q >&2 || :; apt-cache madison {name}")
            return between(plain[0], plain[1], madison(found), debian_versions.order)
        return between(plain[0], plain[1], self._of_index(component.name, bad), versions.order)

    def _of_index(self, name: str, bad: Candidate) -> list[str]:
        listed = available(self._inside(bad, installing.pip(f"index versions {shlex.quote(name)}")))
        if listed:
            return listed
        owned = self.owner.images.owned(self.engine, bad, self.stopped)
        target = self.owner.target(self.engine, owned)
        return available(_of_this_machine(name, target))

    def _inside(self, bad: Candidate, script: str) -> str:
        """What a script prints in a container of the image; "" where it fails."""
        return self.owner.output(self.engine, bad, script, self.stopped, limit=_ANSWER_S)


def between(
    good: str, bad: str, listed: Iterable[str], order: Callable[[str], tuple[Any, ...]]
) -> list[str]:
    """The listed versions between two, and the two themselves, from good to bad."""
    low, high = sorted((order(good), order(bad)))
    kept = {version for version in listed if low < order(version) < high}
    return [good, *sorted(kept, key=order, reverse=order(good) == high), bad]


def available(output: str) -> list[str]:
    """What `pip index versions` lists; nothing where it failed."""
    match = re.search(r"^Available versions: (.*)$", output, re.MULTILINE)
    return [] if match is None else [version.strip() for version in match[1].split(",")]


def madison(output: str) -> list[str]:
    """The versions in `apt-cache madison`: NAME | VERSION | SOURCE."""
    rows = (line.split("|") for line in output.splitlines())
    return [row[1].strip() for row in rows if len(row) == 3]


def _of_this_machine(name: str, target: Sequence[str]) -> str:
    call = Base(sys.executable, "").pip("index", "versions", name, *target)
    try:
        done = subprocess.run(call, capture_output=True, text=True, timeout=_ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
