"""Decides which config stands for a key that the processes of one run decided differently: pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from pinner.inside import rank_names
from pinner.inside.faults import PinnerError
from pinner.inside.values import canonical, readable_named

from .configs import config_text
from .ledgers import ChoiceRecord, ProcessRecord
from .numbers import Numbers
from .schema import Chooser, Values, place

Rule = Literal["fastest", "rank0", "fail"]
RULES: tuple[Rule, ...] = ("fastest", "rank0", "fail")


@dataclass(frozen=True)
class Pick:
    """A config and the processes that took it.

    worst: its longest time over the processes that timed it, in milliseconds; None if none did.
    """

    config: Values
    processes: tuple[str, ...]
    worst: float | None


@dataclass(frozen=True)
class Conflict:
    """A key for which the processes of a run took different configs, and how it was settled."""

    chooser: str
    kernel: str
    source: str
    key: Values
    picks: tuple[Pick, ...]
    chosen: Values
    how: str

    def __str__(self) -> str:
        lines = [f"{place(self.chooser, self.kernel)}  {readable_named(self.key)}"]
        for pick in self.picks:
            time = "" if pick.worst is None else f"  (at worst {_time(pick.worst)})"
            lines.append(
                f"  {config_text(self.chooser, pick.config)}: {together(pick.processes)}{time}"
            )
        lines.append(f"  taken: {config_text(self.chooser, self.chosen)}, {self.how}")
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        picks = [
            {"config": pick.config, "processes": list(pick.processes), "worst": _json(pick.worst)}
            for pick in self.picks
        ]
        return {
            "chooser": self.chooser,
            "kernel": self.kernel,
            "key": self.key,
            "picks": picks,
            "chosen": self.chosen,
            "how": self.how,
        }


class ConflictError(PinnerError):
    """The processes disagree, and the rule was to fail then."""

    def __init__(self, conflicts: tuple[Conflict, ...]) -> None:
        self.conflicts = conflicts
        listed = "\n".join(str(conflict) for conflict in conflicts)
        super().__init__(
            f"expected every process to take the same configs, found {len(conflicts)} keys with "
            f"different ones; settle them with --on-conflict fastest or rank0\n{listed}"
        )


@dataclass
class Timing:
    """What the processes measured of one config: the longest time, and how many measured it."""

    worst: float = 0.0
    count: int = 0
    last: int = -1

    def add(self, time: float, process: int) -> None:
        self.worst = max(self.worst, math.inf if math.isnan(time) else time)
        self.count += process != self.last
        self.last = process


@dataclass
class Seen:
    """What all processes together saw of one key; grows by one choice at a time.

    picks: config text to the processes (numbers) that took it. timings: config text to times.
    first: the pick of the first process in order, with that order.
    """

    chooser: Chooser
    kernel: str
    source: str
    key: Values
    configs: dict[str, Values] = field(default_factory=dict)
    picks: dict[str, Numbers] = field(default_factory=dict)
    timings: dict[str, Timing] = field(default_factory=dict)
    alternatives: int = 1
    heuristics: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: set[str] = field(default_factory=set)
    first: tuple[Any, str, str] | None = None

    def add(self, choice: ChoiceRecord, process: ProcessRecord, number: int) -> None:
        text = canonical(choice.config)
        self.configs.setdefault(text, choice.config)
        self.picks.setdefault(text, Numbers()).add(number)
        if self.first is None or process.order < self.first[0]:
            self.first = (process.order, process.name, text)
        for config, time in choice.timings:
            timed = canonical(config)
            self.configs.setdefault(timed, config)
            self.timings.setdefault(timed, Timing()).add(time, number)
        self.alternatives = max(self.alternatives, choice.alternatives)
        for name, value in (choice.heuristics or {}).items():
            self.heuristics.setdefault(name, {})[canonical(value)] = value
        self.notes.update(choice.notes)

    @property
    def disagreed(self) -> bool:
        return len(self.picks) > 1

    def failed(self, text: str) -> bool:
        """Whether a process that timed this config could not run it."""
        return text in self.timings and math.isinf(self.timings[text].worst)


def settle(seen: Seen, rule: Rule) -> tuple[str, str] | None:
    """The text of the config to lock and how it was found; None if every pick failed to run."""
    usable = [text for text in seen.picks if not seen.failed(text)]
    if not usable:
        return None
    if not seen.disagreed:
        return usable[0], "all agree"
    if rule == "rank0":
        return _first(seen, usable)
    return _fastest(seen, usable)


def _first(seen: Seen, usable: list[str]) -> tuple[str, str]:
    if seen.first is None or seen.first[2] not in usable:
        return min(usable), "rank0: its own pick failed elsewhere; first in serialised order"
    _, name, text = seen.first
    reason = "" if name == "rank 0" else ", the first process that saw the key"
    return text, f"rank0: the pick of {name}{reason}"


def _fastest(seen: Seen, usable: list[str]) -> tuple[str, str]:
    """By worst time among the configs that everybody timed; else among those most have timed."""
    timed = {text: timing for text, timing in seen.timings.items() if not math.isinf(timing.worst)}
    if not timed:
        most = min(usable, key=lambda text: (-len(seen.picks[text]), text))
        return most, "fastest: no times were measured; the pick of most processes"
    seen_by = len({number for takers in seen.picks.values() for number in takers})
    covered = max(timing.count for timing in timed.values())
    candidates = [text for text, timing in timed.items() if timing.count == covered]
    best = min(candidates, key=lambda text: (timed[text].worst, text))
    reach = f"over all {seen_by} processes"
    if covered < seen_by:
        reach = f"over {covered} of {seen_by} processes, no config was timed by more"
    return best, f"fastest: lowest worst time {reach}, {_time(timed[best].worst)}"


def conflict_of(seen: Seen, chosen: str, how: str, names: list[str]) -> Conflict:
    """names: what each process is called, by number."""
    picks = [
        Pick(
            seen.configs[text],
            tuple(names[number] for number in takers),
            seen.timings[text].worst if text in seen.timings else None,
        )
        for text, takers in sorted(seen.picks.items(), key=lambda item: (-len(item[1]), item[0]))
    ]
    return Conflict(
        seen.chooser,
        seen.kernel,
        seen.source,
        seen.key,
        tuple(picks),
        seen.configs[chosen],
        how,
    )


def together(processes: Iterable[str]) -> str:
    """``ranks 0-2, 5, pid 7 on host`` for names of processes."""
    ranks, others = [], []
    for name in processes:
        word, _, number = name.partition(" ")
        if word == "rank" and number.isdigit():
            ranks.append(int(number))
        else:
            others.append(name)
    named = [rank_names.in_words(sorted(set(ranks)))] if ranks else []
    return ", ".join([*named, *sorted(others)])


def _time(value: float) -> str:
    return "failed" if math.isinf(value) else f"{value:.4g} ms"


def _json(value: float | None) -> float | str | None:
    return "inf" if value is not None and math.isinf(value) else value
