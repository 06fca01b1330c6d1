"""Follows a divergence from the step where evidence shows it to modules, operations, kernels. Pure.

At each level the failing window is run twice under tracing and the two traces are compared. Where
they agree, the divergence did not come back: it is tried again, and said how often. What is found
makes the window of the next level smaller.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Level = Literal["modules", "ops", "kernels"]
LEVELS: tuple[Level, ...] = ("modules", "ops", "kernels")  # steps are what evidence shows
TRIES = 3


@dataclass(frozen=True)
class Window:
    """The part of a run that is traced: steps, both included, and module scopes (a regex)."""

    first: int | None = None
    last: int | None = None
    modules: str | None = None

    def __str__(self) -> str:
        steps = "all steps" if self.last is None else f"steps {self.first or 0} to {self.last}"
        if self.last is not None and self.first == self.last:
            steps = f"step {self.last}"
        return steps if self.modules is None else f"{steps}, modules {self.modules}"


@dataclass(frozen=True)
class Sighting:
    """Where two traces part first. kind: of the event. module: its scope, "" outside all.

    began_here: its inputs were equal, as far as they were seen. reading: what that says, in words.
    figures: what the kept bytes of its tensors say, one line each.
    """

    rank: int | None
    step: int
    kind: str
    name: str
    module: str
    began_here: bool = True
    reading: str = ""
    figures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Incomparable:
    """A run that left no trace, or two traces that cannot be compared, and why.

    nothing: because nothing was traced in one of them, at this level and in this window.
    """

    text: str
    nothing: bool = False


# A name for the run, its level and its window in, the trace's folder out; why there is none.
Trace = Callable[[str, Level, Window], Path | Incomparable]
# None where two traces are equal.
Compare = Callable[[Path, Path], "Sighting | Incomparable | None"]


@dataclass(frozen=True)
class Link:
    """What one level showed. came_back: how many of `tries` pairs of runs differed.

    sighting: None where the divergence did not come back. why: why there is none, otherwise.
    nothing: because nothing was traced.
    """

    level: Level
    window: Window
    came_back: int
    tries: int
    sighting: Sighting | None = None
    why: str = ""
    nothing: bool = False

    @property
    def line(self) -> str:
        """The link for people."""
        if self.sighting is None:
            return f"{self.level}: {self.why or self._lost()}"
        seen = self.sighting
        place = f"step {seen.step}" + ("" if seen.rank is None else f", rank {seen.rank}")
        scope = f" in {seen.module}" if seen.module else ""
        often = "" if self.came_back == self.tries else f" ({self.came_back} of {self.tries} tries)"
        return f"{self.level}: {place}: {seen.kind} {seen.name}{scope}{often}"

    def _lost(self) -> str:
        return (
            f"the divergence did not come back under tracing: {self.came_back} of {self.tries} "
            f"pairs of runs differed ({self.window}); it is flaky, or tracing hides it"
        )

    def to_json(self) -> dict[str, Any]:
        """The link as plain JSON values."""
        seen = self.sighting
        return {
            "level": self.level,
            "window": str(self.window),
            "came_back": self.came_back,
            "tries": self.tries,
            "why": self.why or (self._lost() if seen is None else ""),
            "first": None if seen is None else {**vars(seen), "figures": list(seen.figures)},
        }


def chase(start: Window, trace: Trace, compare: Compare, *, tries: int = TRIES) -> tuple[Link, ...]:
    """The chain from modules down to a kernel, as far as it can be followed.

    start: the window in which evidence differed.
    """
    links: list[Link] = []
    window = start
    for level in LEVELS:
        link = _try(level, window, trace, compare, tries)
        if link.sighting is None and window != start and not link.why:
            window = start  # it may lie in another step or module than was thought
            link = _try(level, window, trace, compare, tries, again=True)
        links.append(link)
        if link.nothing:  # there are no modules; or no such step, where it is counted otherwise
            window = start if level == LEVELS[0] else Window()
            continue
        if link.sighting is None:
            break
        window = _narrowed(window, link.sighting)
    return tuple(links)


def reading(links: Sequence[Link]) -> str:
    """What the finest comparison says of the place that was found; "" where nothing was."""
    found = [link.sighting for link in links if link.sighting is not None]
    return found[-1].reading if found else ""


def figures(links: Sequence[Link]) -> tuple[str, ...]:
    """What the kept bytes say of the tensors that differ; nothing where none were kept."""
    found = [link.sighting for link in links if link.sighting is not None]
    return found[-1].figures if found else ()


def conclusion(links: Sequence[Link]) -> str:
    """What the chain says at its end."""
    found = [link for link in links if link.sighting is not None]
    if not found or found[-1].sighting is None:
        return "where the bits part inside the step is not known"
    seen = found[-1].sighting
    if seen.kind == "kernel":
        return f"first different kernel: {seen.name}"
    if found[-1].level == "kernels":
        return (
            f"first different {seen.kind}: {seen.name}; no kernel below it is seen (it runs inside "
            "the library that holds it)"
        )
    return f"followed down to {found[-1].level}: {seen.kind} {seen.name}"


def _try(
    level: Level,
    window: Window,
    trace: Trace,
    compare: Compare,
    tries: int,
    *,
    again: bool = False,
) -> Link:
    """Makes pairs of runs until one differs. Once it did, nothing more is to be learned."""
    name = f"{level}-wide" if again else level
    for number in range(1, tries + 1):
        first = trace(f"{name}-{number}a", level, window)
        if isinstance(first, Incomparable):
            return Link(level, window, 0, number, why=f"the traced run failed: {first.text}")
        second = trace(f"{name}-{number}b", level, window)
        if isinstance(second, Incomparable):
            return Link(level, window, 0, number, why=f"the traced run failed: {second.text}")
        found = compare(first, second)
        if isinstance(found, Incomparable) and found.nothing:
            text = f"nothing was traced ({window})"
            return Link(level, window, 0, number, why=text, nothing=True)
        if isinstance(found, Incomparable):
            return Link(level, window, 0, number, why=f"cannot be compared: {found.text}")
        if found is not None:
            return Link(level, window, 1, number, found)
    return Link(level, window, 0, tries)


def _narrowed(window: Window, seen: Sighting) -> Window:
    """The step where it was seen; the module too, unless its inputs came in different."""
    if not seen.began_here:
        return Window(seen.step, seen.step)
    scope = rf"^{re.escape(seen.module)}(\.|$)" if seen.module else window.modules
    return Window(seen.step, seen.step, scope)
