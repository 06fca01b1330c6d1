"""What was found in the logs of a rank, and how people call ranks, windows and events. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pinner.compare.trace import Event, Log, Trace, Window
from pinner.compare.trace_pair import Mismatch
from pinner.compare.trace_reading import Reading
from pinner.compare.trace_walk import Walk

_PHASES = {"f": "forward", "b": "backward", "o": "optimizer", "r": "recomputed forward"}
_DIGITS = 12  # of a digest, where people read it


@dataclass(frozen=True)
class Sides:
    """The two traces; A and B in all texts."""

    first: Trace
    second: Trace

    @property
    def names(self) -> str:
        return f"A = {self.first.path}\nB = {self.second.path}"


@dataclass(frozen=True)
class Incomparable:
    """Why nothing could be compared. reason: one word for programs."""

    reason: str
    text: str


@dataclass(frozen=True)
class RankFinding:
    """What was found in a pair of logs. place: how far into its step the first mismatch is."""

    rank: int | None
    first: Log
    second: Log
    walk: Walk
    reading: Reading | None = None
    place: int = 0

    @property
    def mismatch(self) -> Mismatch | None:
        """The first one in execution order."""
        return self.walk.mismatches[0] if self.walk.mismatches else None

    @property
    def event(self) -> Event:
        """The event of the first mismatch. Only where there is one."""
        return self.walk.mismatches[0].first

    @property
    def lost(self) -> tuple[str, ...]:
        """What could not be compared because one process was killed, or did less."""
        found = []
        for name, other, side in (("A", "B", 0), ("B", "A", 1)):
            more, step = self.walk.only[1 - side], self.walk.tail_step[1 - side]
            last = self.walk.steps[1] if self.walk.steps else None
            if more and not self.walk.ended[side]:
                found.append(
                    f"{ranks_text([self.rank])}: {name} was killed"
                    + (f" in step {last}" if last is not None else "")
                    + f"; {many(more, 'event')} of {other} cannot be compared"
                )
            elif step is not None and (last is None or step > last):
                found.append(
                    f"{ranks_text([self.rank])}: {name} ended after step {last}, "
                    f"{other} after step {step}"
                )
        return tuple(found)


def short(digest: str | None) -> str:
    """The first digits of a digest."""
    if digest is None:
        return "not hashed"
    algorithm, _, value = digest.rpartition(":")
    return f"{algorithm}:{value[:_DIGITS]}" if algorithm else value[:_DIGITS]


def where(event: Event) -> str:
    """The module scope and the phase of an event."""
    phase = _PHASES.get(event.phase, event.phase)
    return f"{event.module or 'outside modules'} ({phase})"


def call(event: Event) -> str:
    """An event by its name and invocation count, or what it stands for."""
    if event.kind == "step":
        return f"stream {event.name!r}"
    parameter = event.extra.get("parameter")
    if parameter is not None:
        return f"{event.name} ({event.kind}), parameter {parameter}"
    return f"{event.name} #{event.nth}"


def many(count: int, word: str) -> str:
    """A count with its word."""
    plural = "es" if word.endswith("h") else "s"
    return f"{count:,} {word}{'' if count == 1 else plural}"


def ranks_text(ranks: Iterable[int | None]) -> str:
    """Ranks in words; None stands for processes that had none."""
    names = ["no rank" if rank is None else f"rank {rank}" for rank in ranks]
    return ", ".join(names) or "none"


def window_text(window: Window) -> str:
    """A window in words."""
    first = "the first step" if window.first is None else f"step {window.first}"
    last = "the last" if window.last is None else f"step {window.last}"
    modules = f", modules {window.modules!r}" if window.modules else ""
    return f"from {first} to {last}{modules}"
