"""Finds the first operation whose inputs match and whose outputs differ between two stacks.

The command runs traced in both, and again in both: a stack whose two traces differ before that
operation, or in it, shows nothing.
Operations are looked at first, then kernels. Where neither level sees what wrote the differing
tensor, the innermost module that takes the same and gives something else is the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pinner.compare import trace_reading
from pinner.compare.trace import Event, Scope, Window
from pinner.compare.trace_findings import RankFinding, call, where
from pinner.compare.trace_report import Report
from pinner.compare.trace_walk import walk
from pinner.compare.traces import compare_traces
from stackbisect.repro.stacks import Stack

Say = Callable[[str], object]

# Why there is no site, as one word.
EQUAL, STRUCTURE, UNSTABLE, RANKS = "equal", "structure", "unstable", "ranks"
HISTORY, OUTSIDE, UNTRACED, FAILED = "history", "outside", "untraced", "failed"

_LEVELS = ("ops", "kernels")
_CALLS = ("op", "kernel")
_MODULES_ONLY = Scope(Window(), 1)
# What computes these is compiled into their libraries: no kernel in them is seen any deeper.
_NOTHING_BELOW = ("aten.", "numpy.", "scipy.")


@dataclass(frozen=True)
class Site:
    """One event of the user's command, the same one in both stacks.

    kind: "op", "kernel" or "module". name: of the operation, the kernel or the module's class. nth:
    how often this label was seen in this step before. module: its scope. phase: "f" forward, "b"
    backward, "r" recomputed forward, "o" optimizer. rank: None where the process had none.
    text: where the traces part, in words. random: the state of the generator is an input of it.
    nested: it calls others that a deeper level sees.
    """

    kind: str
    name: str
    nth: int
    module: str
    phase: str
    step: int
    rank: int | None
    level: str
    text: str
    random: bool = False
    nested: bool = False

    @property
    def direction(self) -> str:
        """As repro.toml has it."""
        return "backward" if self.phase == "b" else "forward"

    def to_json(self) -> dict[str, Any]:
        """The event's identity, for the session in which it is captured."""
        return {
            "kind": self.kind,
            "name": self.name,
            "nth": self.nth,
            "module": self.module,
            "phase": self.phase,
            "step": self.step,
            "rank": self.rank,
            "random": self.random,
        }


@dataclass(frozen=True)
class NoSite:
    """There is none. reason: one word for programs. text: why, and what that means."""

    reason: str
    text: str


def locate(
    good: Stack,
    bad: Stack,
    argv: Sequence[str],
    folder: Path,
    say: Say,
    *,
    time_limit: float | None = None,
) -> Site | NoSite:
    """Trace the command in both stacks, in `folder`, and find the site.

    Raises InfrastructureError, and TraceError for a damaged trace.
    """
    tracing = _Tracing(good, bad, argv, folder, say, time_limit)
    found: Site | NoSite = NoSite(EQUAL, "nothing was traced")
    for level in _LEVELS:
        deeper = tracing.at(level)
        # A kernel inside of an operation says more, and only where there is one.
        found = found if isinstance(found, Site) and not isinstance(deeper, Site) else deeper
        if isinstance(found, NoSite) and found.reason in _FINAL:
            return found
        if isinstance(found, Site) and _is_innermost(found):
            return found
    return found


def _is_innermost(site: Site) -> bool:
    """Whether no deeper look shows anything else."""
    return site.name.startswith(_NOTHING_BELOW) and not site.nested


# What no deeper look changes. Not that a stack is unstable: of a launch under Triton's interpreter
# the level "ops" sees the inner operations, which look at memory that nobody wrote yet.
_FINAL = (RANKS, FAILED, HISTORY)


@dataclass
class _Tracing:
    good: Stack
    bad: Stack
    argv: Sequence[str]
    folder: Path
    say: Say
    time_limit: float | None

    def at(self, level: str) -> Site | NoSite:
        """What one level shows."""
        traced = self._all(level, 1)
        if isinstance(traced, NoSite):
            return traced
        report = compare_traces(*traced, jobs=1)
        if report.head is None:
            return nothing_differs(report)
        again = self._all(level, 2)
        if isinstance(again, NoSite):
            return again
        for side, stack in enumerate((self.good, self.bad)):
            same = compare_traces(traced[side], again[side], jobs=1)
            if same.exit == 0:
                continue
            if not stable(report.head, side, same):
                return unstable(stack.name, same)
            self.say(f"the {stack.name} stack does not repeat itself after that: {_first(same)}")
        return site(report, level, modules=level == _LEVELS[-1])

    def _all(self, level: str, number: int) -> tuple[Path, Path] | NoSite:
        """The traces of both stacks, or why one of them is none."""
        found = []
        for stack in (self.good, self.bad):
            self.say(f"tracing {level} in the {stack.name} stack, {number} of 2")
            place = self.folder / f"{level}-{stack.name}-{number}"
            watched = stack.watch(self.argv, place, {"level": level}, time_limit=self.time_limit)
            if watched.failure:
                return NoSite(FAILED, f"in the {stack.name} stack {watched.failure}")
            found.append(watched.trace)
        return found[0], found[1]


# -- reading the comparison ------------------------------------------------------------------------


def nothing_differs(report: Report) -> NoSite:
    """Why a comparison without a first mismatch has no site. Pure."""
    if report.incomparable is not None:
        why = report.incomparable
        if why.reason == "nothing":
            return NoSite(
                UNTRACED, f"nothing was traced that can be compared in the two stacks: {why.text}"
            )
        reason = RANKS if why.reason in ("world", "ranks") else STRUCTURE
        return NoSite(reason, f"the two stacks cannot be compared: {why.text}")
    if report.uncompared:
        return NoSite(
            STRUCTURE,
            "the two stacks do other things, not the same with other bits: "
            + "; ".join(report.uncompared),
        )
    return NoSite(
        EQUAL,
        f"the two stacks gave the same bits in all of the {report.events} events that were "
        "compared: what differs is not in what was traced",
    )


def stable(head: RankFinding, side: int, same: Report) -> bool:
    """Whether two traces of one stack agree as far as the stacks' first mismatch. Pure.

    side: of the stack in the comparison that found `head`. What differs after it, or in another
    process, does not matter to it: threads and workers of a loader take turns as they come.
    """
    assert head.mismatch is not None
    if same.incomparable is not None:
        return False
    log = (head.first, head.second)[side]
    line = (head.mismatch.first, head.mismatch.second)[side].line
    own = [each for each in same.ranks if each.first.path == log.path]
    return bool(own) and all(
        each.mismatch is None or each.mismatch.first.line > line for each in own
    )


def unstable(stack: str, same: Report) -> NoSite:
    """Two traces of one stack differ. Pure."""
    return NoSite(
        UNSTABLE,
        f"the {stack} stack does not repeat itself, so that no bits are its own; two of its runs: "
        f"{_first(same)}. Seed it, let threads not race, pin its choices (pinner record), or find "
        "what is not deterministic (pinner verify)",
    )


def _first(report: Report) -> str:
    return report.text().split("\n")[0]


def site(report: Report, level: str, *, modules: bool) -> Site | NoSite:
    """What the first mismatch of two traces is. modules: whether a module will do."""
    head = report.head
    assert head is not None
    assert head.reading is not None
    first = report.text().split("\n")[0].removeprefix("A and B differ: ")
    kind, event = head.reading.kind, head.event
    if kind == trace_reading.ARRIVED:
        return NoSite(
            RANKS,
            f"what arrived from other ranks differs first ({first}): it takes several ranks to "
            "show it, and one call is no repro",
        )
    if kind == trace_reading.STATE:
        return NoSite(
            HISTORY,
            f"the state of a random number generator differs first ({first}): it depends on all "
            "that was drawn before, not on the inputs of one call",
        )
    if event.kind in _CALLS and (kind in _SEEN_WHOLE or _writes_over(head)):
        return _site(event, head.rank, level, first, random=kind == trace_reading.RANDOM)
    if modules:
        found = _module(report, first)
        if found is not None:
            return found
    return _no_producer(kind, first)


_SEEN_WHOLE = (trace_reading.ORIGIN, trace_reading.RANDOM)


def _writes_over(head: RankFinding) -> bool:
    """Whether all that was not compared is memory that nobody wrote before this call.

    So it is of most kernels: `out = torch.empty(…)`, and the launch fills it. One that read what
    was there would not repeat itself.
    """
    assert head.reading is not None
    assert head.mismatch is not None
    if head.reading.kind not in (trace_reading.RESULT, trace_reading.UNWRITTEN):
        return False
    both = head.mismatch.first, head.mismatch.second
    return head.mismatch.inputs > 0 and all(each.extra.get("uninitialised") for each in both)


def _no_producer(kind: str, first: str) -> NoSite:
    if kind == trace_reading.OUTSIDE:
        return NoSite(
            OUTSIDE,
            f"the inputs differ before any operation that was traced ({first}): look at what loads "
            "or prepares them",
        )
    if kind == trace_reading.REPLACED:
        return NoSite(
            STRUCTURE,
            f"another operation does this work in the other stack ({first}), and no module around "
            "it takes the same inputs in both",
        )
    return NoSite(
        UNTRACED,
        f"what differs first was written by something that is not traced ({first}), and no module "
        "takes the same inputs in both stacks and gives other outputs",
    )


def _module(report: Report, first: str) -> Site | None:
    """The first module to end that takes the same in both stacks and gives something else."""
    found = [pair for finding in report.ranks for pair in _modules(finding)]
    if not found:
        return None
    event, rank = min(found, key=lambda pair: (pair[0].step, pair[0].order))
    text = f"{where(event)}: {call(event)}; below modules nothing that is traced shows it ({first})"
    return _site(event, rank, "modules", text)


def _modules(finding: RankFinding) -> Iterator[tuple[Event, int | None]]:
    apart = walk(finding.first, finding.second, _MODULES_ONLY)
    for mismatch in apart.mismatches:
        event = mismatch.first
        whole = bool(mismatch.outs) and not mismatch.ins and mismatch.hashed and mismatch.inputs
        if event.kind == "module" and whole:
            yield event, finding.rank
            return


def _site(event: Event, rank: int | None, level: str, text: str, *, random: bool = False) -> Site:
    return Site(
        kind=event.kind,
        name=event.name,
        nth=event.nth,
        module=event.module,
        phase=event.phase,
        step=event.step,
        rank=rank,
        level=level,
        text=text,
        random=random,
        nested=bool(event.extra.get("nested")),
    )
