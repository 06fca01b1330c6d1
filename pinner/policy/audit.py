"""Says of one observed run how each choice was made, how near the runner-up was, and what has no
pin. Pure.

A choice by timing is one measurement away from another: where the runner-up took less than
`NEAR` longer, a later run will flip sooner or later. Times are those of the process that saw the
two nearest together, in milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pinner.inside.values import canonical, readable, readable_named
from pinner.lockfile.configs import config_text
from pinner.lockfile.conflicts import together
from pinner.lockfile.ledgers import ChoiceRecord, ProcessLedger
from pinner.lockfile.merge import Draft
from pinner.lockfile.schema import CHOOSERS, Identity, Setting, Values, place

# The runner-up took so much longer at most, as a share of the best time: a future flip.
NEAR = 0.05

Way = Literal["timing", "cache", "heuristic", "only"]

# How a choice was made, by what the chooser wrote; where ranks differ, the first of these counts.
_WAYS: dict[str, Way] = {
    "tuned": "timing",
    "missed": "timing",
    "disk": "cache",
    "cached": "cache",
    "heuristic": "heuristic",
    "only": "only",
}
_ORDER: tuple[Way, ...] = ("timing", "cache", "heuristic", "only")


@dataclass(frozen=True)
class Race:
    """The two fastest candidates of one choice: configs, and milliseconds."""

    best: Values
    second: Values
    best_ms: float
    second_ms: float
    process: str

    @property
    def ratio(self) -> float:
        """Best to second: 1 for a dead heat."""
        return self.best_ms / self.second_ms if self.second_ms > 0 else 1.0

    @property
    def gap(self) -> float:
        """How much longer the runner-up took, as a share of the best time."""
        if self.second_ms == self.best_ms:
            return 0.0
        return self.second_ms / self.best_ms - 1 if self.best_ms > 0 else math.inf

    @property
    def near(self) -> bool:
        return self.gap < NEAR

    def as_json(self) -> dict[str, Any]:
        return {
            "best": dict(self.best),
            "second": dict(self.second),
            "best_ms": self.best_ms,
            "second_ms": self.second_ms,
            "ratio": self.ratio,
            "near_tie": self.near,
            "process": self.process,
        }


@dataclass(frozen=True)
class Made:
    """One choice and how it was made.

    race: the two fastest, None where fewer than two candidates have a time.
    """

    chooser: str
    kernel: str
    key: Values
    config: Values
    alternatives: int
    way: Way
    race: Race | None
    processes: tuple[str, ...]

    @property
    def near(self) -> bool:
        return self.race is not None and self.race.near

    @property
    def order(self) -> tuple[float, str, str, str]:
        """The nearest race first, choices without times last."""
        gap = math.inf if self.race is None else self.race.gap
        return gap, self.chooser, self.kernel, canonical(self.key)

    def as_json(self) -> dict[str, Any]:
        return {
            "chooser": self.chooser,
            "kernel": self.kernel,
            "key": dict(self.key),
            "config": dict(self.config),
            "alternatives": self.alternatives,
            "race": None if self.race is None else self.race.as_json(),
            "processes": list(self.processes),
        }


@dataclass(frozen=True)
class Audit:
    """All choices of one run, the nearest races first; and what else decided, or differed.

    settings: switches of other libraries that were active. policy: switches that pinner set.
    holes, conflicts: one text each.
    """

    made: tuple[Made, ...]
    settings: tuple[Setting, ...] = ()
    policy: Values = field(default_factory=dict)
    holes: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()

    def by(self, way: Way) -> tuple[Made, ...]:
        """The choices that were made one way."""
        return tuple(each for each in self.made if each.way == way)

    @property
    def near(self) -> tuple[Made, ...]:
        """Future flips, the nearest first."""
        return tuple(each for each in self.by("timing") if each.near)

    def text(self) -> str:
        """For people: what may flip first, what has no pin and differs, then all by how it was
        made, and a line for each chooser."""
        return "\n".join(_text(self))

    def as_json(self) -> dict[str, Any]:
        return {
            "near_ties": [each.as_json() for each in self.near],
            **{_JSON[way]: [each.as_json() for each in self.by(way)] for way in _ORDER},
            "settings": [dict(vars(each)) for each in self.settings],
            "policy": dict(self.policy),
            "no_pin": list(self.holes),
            "conflicts": list(self.conflicts),
            "choosers": {
                chooser: dict(_counts(self, chooser), near_ties=_near_of(self, chooser))
                for chooser in _choosers(self)
            },
        }


_JSON: dict[Way, str] = {
    "timing": "by_timing",
    "cache": "by_cache",
    "heuristic": "by_heuristic",
    "only": "without_alternative",
}


def audit(ledgers: Iterable[ProcessLedger], draft: Draft) -> Audit:
    """What the ledgers of an observed run say; draft: what they merge to."""
    seen: dict[Identity, _Seen] = {}
    for ledger in ledgers:
        for record in ledger.records():
            if isinstance(record, ChoiceRecord):
                identity = (
                    record.chooser,
                    record.kernel,
                    record.source,
                    canonical(record.key),
                )
                seen.setdefault(identity, _Seen(record)).add(record, ledger.process.name)
    made = sorted((each.made() for each in seen.values()), key=lambda each: each.order)
    return Audit(
        made=tuple(made),
        settings=draft.settings,
        policy=draft.policy,
        holes=draft.holes,
        conflicts=(
            *map(str, draft.conflicts),
            *map(str, draft.setting_conflicts),
            *(str(each) for each in draft.fact_conflicts if each.hard),
        ),
    )


def race_of(record: ChoiceRecord, process: str) -> Race | None:
    """The two fastest candidates; of equal times the one that was taken is the best."""
    taken = canonical(record.config)
    timed = [(time, canonical(config) != taken, config) for config, time in record.timings]
    timed = [each for each in timed if math.isfinite(each[0])]
    if len(timed) < 2:
        return None
    timed.sort(key=lambda each: (each[0], each[1], canonical(each[2])))
    (best_ms, _, best), (second_ms, _, second) = timed[:2]
    return Race(best, second, best_ms, second_ms, process)


class _Seen:
    """What the processes said of one choice."""

    def __init__(self, first: ChoiceRecord) -> None:
        self._first = first
        self._ways: set[Way] = set()
        self._alternatives = 1
        self._race: Race | None = None
        self._processes: dict[str, None] = {}

    def add(self, record: ChoiceRecord, process: str) -> None:
        way = _WAYS.get(record.how)
        if way is not None:
            self._ways.add(way)
        self._alternatives = max(self._alternatives, record.alternatives)
        self._processes.setdefault(process)
        race = race_of(record, process)
        if race is not None and (self._race is None or race.gap < self._race.gap):
            self._race = race

    def made(self) -> Made:
        first = self._first
        ways = self._ways or {"only" if self._alternatives == 1 else "heuristic"}
        return Made(
            chooser=first.chooser,
            kernel=first.kernel,
            key=first.key,
            config=first.config,
            alternatives=self._alternatives,
            way=min(ways, key=_ORDER.index),
            race=self._race,
            processes=tuple(self._processes),
        )


def _choosers(audit: Audit) -> tuple[str, ...]:
    named = {each.chooser for each in audit.made} | {each.chooser for each in audit.settings}
    return (*(x for x in CHOOSERS if x in named), *sorted(named - set(CHOOSERS)))


def _counts(audit: Audit, chooser: str) -> dict[str, int]:
    made = [each for each in audit.made if each.chooser == chooser]
    settings = sum(each.chooser == chooser for each in audit.settings)
    counts = {_JSON[way]: sum(each.way == way for each in made) for way in _ORDER}
    return {**counts, "settings": settings}


def _near_of(audit: Audit, chooser: str) -> int:
    return sum(each.chooser == chooser for each in audit.near)


# ---- as text -------------------------------------------------------------------------------


def _text(audit: Audit) -> Iterator[str]:
    near = audit.near
    rest = [each for each in audit.by("timing") if not each.near]
    yield from _made(f"near ties (under {NEAR:.0%}), each a future flip", near)
    yield from _listed("no pin, not enforceable", audit.holes)
    yield from _listed("the processes of this run differ", audit.conflicts)
    yield from _made("decided by timing", rest)
    yield from _made("held by a compile cache already, no times here", audit.by("cache"))
    yield from _made("decided by a heuristic, without timing", audit.by("heuristic"))
    yield from _settings("recorded only, compared when enforcing", audit.settings, "recorded")
    yield from _settings("forced by a switch when enforcing", audit.settings, "forced")
    switched = [f"{name} = {readable(value)}" for name, value in sorted(audit.policy.items())]
    yield from _listed("switched by pinner, recording and enforcing alike", switched)
    choosers = _choosers(audit)
    yield from (_chooser(audit, chooser) for chooser in choosers)
    if not choosers:
        yield "no chooser decided anything in this run"


def _listed(heading: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield f"{heading}: {len(lines)}"
    for text in lines:
        first, *more = text.splitlines()
        yield f"  {first}"
        yield from (f"  {line}" for line in more)


def _made(heading: str, made: Sequence[Made]) -> Iterator[str]:
    if made:
        yield f"{heading}: {len(made)}"
    for each in made:
        yield f"  {place(each.chooser, each.kernel)}  {readable_named(each.key)}".rstrip()
        yield from (f"    {line}" for line in _how(each))


def _how(made: Made) -> Iterator[str]:
    race = made.race if made.way == "timing" else None
    if race is None:
        yield f"{_config(made, made.config)}, of {made.alternatives}" + _untimed(made)
        return
    yield (
        f"runner-up {race.gap:.2%} behind, of {made.alternatives}; "
        f"best : second = {race.ratio:.4f} on {together([race.process])}"
    )
    yield f"{race.best_ms:.4g} ms  {_config(made, race.best)}"
    yield f"{race.second_ms:.4g} ms  {_config(made, race.second)}"
    if canonical(made.config) != canonical(race.best):
        yield f"taken: {_config(made, made.config)}"


def _untimed(made: Made) -> str:
    return "; no two candidates with a time" if made.way == "timing" else ""


def _settings(heading: str, settings: Sequence[Setting], held: str) -> Iterator[str]:
    lines = [
        f"{each.place} = {readable(each.value)}" + (f"  # {each.note}" if each.note else "")
        for each in settings
        if each.held == held
    ]
    yield from _listed(heading, lines)


_WORDS = {
    "by_timing": "by timing",
    "by_cache": "by a compile cache",
    "by_heuristic": "by a heuristic",
    "without_alternative": "without alternative",
    "settings": "settings",
}


def _chooser(audit: Audit, chooser: str) -> str:
    counts = _counts(audit, chooser)
    parts = [f"{count} {_WORDS[name]}" for name, count in counts.items() if count]
    near = _near_of(audit, chooser)
    if near:
        parts[0] += f" ({near} near {'tie' if near == 1 else 'ties'})"
    return f"{chooser}: {', '.join(parts)}"


def _config(made: Made, config: Values) -> str:
    return config_text(made.chooser, config) or "(no arguments)"
