"""Compares the series of a run with a standard's, bit for bit but for tolerances. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pinner.compare import evidence
from pinner.compare.evidence import RunEvidence
from pinner.standards.form import Place, Points, Standard, Tolerance
from pinner.standards.points import kind, number, point, shown

Series = Mapping[Place, Points]


@dataclass(frozen=True)
class Finding:
    """One series that is not the standard's.

    what: "value", "kind", "not-a-number", "truncated", "longer", "missing", "extra" or "steps".
    step: the first step at which it is so; None where it is the whole series. text: for people.
    """

    place: Place
    what: str
    step: int | None
    text: str

    def to_json(self) -> dict[str, Any]:
        """The same as plain JSON values."""
        owner = "rank" if self.place.ranked else "process"
        return {
            "stream": self.place.stream,
            owner: self.place.number,
            "what": self.what,
            "step": self.step,
            "text": self.text,
        }


@dataclass(frozen=True)
class Judged:
    """A comparison.

    incomparable: why there can be no verdict; empty where there is one. tolerated: one line for
    each stream that agrees only within its tolerance. compared: points looked at.
    """

    findings: tuple[Finding, ...]
    tolerated: tuple[str, ...]
    compared: int
    incomparable: str = ""


def series_of(run: RunEvidence, streams: str | None) -> dict[Place, Points]:
    """The series of a run, those of which the stream's name matches."""
    wanted = re.compile(streams or "")
    return {
        Place(stream, number, stream not in run.anonymous): tuple(
            (step, point(digest, run.details.get(digest))) for step, digest in steps
        )
        for stream, ranks in run.streams.items()
        if wanted.search(stream)
        for number, steps in ranks.items()
        if steps
    }


def not_finite(series: Series) -> str:
    """The first number that is infinite or NaN, as text; empty where there is none."""
    for place, points in sorted(series.items()):
        for step, text in points:
            value = number(text)
            if value is not None and not math.isfinite(value):
                return f"{place}, step {step}: {text}"
    return ""


def judge(standard: Standard, series: Series) -> Judged:
    """Says what differs. `series` are those that the standard's choice of streams leaves."""
    here = _paired(standard.series, series)
    strangers = _other_digests(standard.series, here)
    if strangers:
        return Judged((), (), 0, strangers)
    findings: list[Finding] = []
    apart: dict[str, float] = {}
    compared = 0
    for place, expected in sorted(standard.series.items()):
        found = here.get(place)
        if found is None:
            text = f"{place}: missing, the standard has {len(expected)} points"
            findings.append(Finding(place, "missing", None, text))
            continue
        allowed = standard.tolerance(place.stream)
        compared += min(len(expected), len(found))
        finding, most = _compare(place, expected, found, allowed)
        if finding is not None:
            findings.append(finding)
        elif most:
            apart[place.stream] = max(most, apart.get(place.stream, 0.0))
    constant = _constant(here)
    for place in sorted(set(here) - set(standard.series)):
        if place.stream not in constant:
            text = f"{place}: not in the standard, {len(here[place])} points in this run"
            findings.append(Finding(place, "extra", None, text))
    tolerated = (
        f"stream {each.stream!r}: up to {apart[each.stream]!r} apart, within the registered "
        f"{each.absolute!r}: {each.reason}"
        for each in sorted(standard.tolerances, key=lambda each: each.stream)
        if each.stream in apart
    )
    return Judged(tuple(findings), tuple(tolerated), compared)


def _compare(
    place: Place, expected: Points, found: Points, allowed: Tolerance | None
) -> tuple[Finding | None, float]:
    """The first thing that is not as it was, and the largest distance that was tolerated."""
    most = 0.0
    for (step, old), (at, new) in zip(expected, found, strict=False):
        if step != at:
            text = f"{place}: expected step {step}, found step {at}"
            return Finding(place, "steps", min(step, at), text), most
        if old == new:
            continue
        distance = _distance(old, new)
        if allowed is not None and distance is not None and distance <= allowed.absolute:
            most = max(most, distance)
            continue
        return _differing(place, step, old, new, allowed), most
    if len(found) < len(expected):
        step = expected[len(found)][0]
        text = f"{place}: truncated, {len(found)} of {len(expected)} points: none at step {step}"
        return Finding(place, "truncated", step, text), most
    if len(found) > len(expected):
        step = found[len(expected)][0]
        text = (
            f"{place}: longer than the standard, {len(found)} points for {len(expected)}: "
            f"the first more at step {step}"
        )
        return Finding(place, "longer", step, text), most
    return None, most


def _differing(place: Place, step: int, old: str, new: str, allowed: Tolerance | None) -> Finding:
    text = f"{place}, step {step}: standard {shown(old)}, this run {shown(new)}"
    value = number(new)
    if value is not None and not math.isfinite(value):
        return Finding(place, "not-a-number", step, f"{text}: no finite number")
    if kind(old) != kind(new):
        return Finding(place, "kind", step, f"{text}: another dtype or kind of value")
    distance = _distance(old, new)
    if distance is not None:
        text += f"; {distance!r} apart"
    if allowed is not None:
        text += f", the registered tolerance is {allowed.absolute!r}"
    return Finding(place, "value", step, text)


def _distance(old: str, new: str) -> float | None:
    """How far two numbers of one dtype are apart; None where one is no finite number."""
    first, second = number(old), number(new)
    if first is None or second is None or kind(old) != kind(new):
        return None
    distance = abs(first - second)
    return distance if math.isfinite(distance) else None


def _other_digests(standard: Series, here: Series) -> str:
    """Digests by two algorithms cannot be compared."""
    for place, expected in standard.items():
        for (step, old), (_, new) in zip(expected, here.get(place, ()), strict=False):
            if kind(old) != kind(new) and kind(old)[-1] == kind(new)[-1] == ":":
                return (
                    f"{place}, step {step}: the standard has a digest by {kind(old)[:-1]}, this "
                    f"run one by {kind(new)[:-1]}: record the standard again"
                )
    return ""


def _paired(standard: Series, here: Series) -> dict[Place, Points]:
    """The series of a run; processes without a rank get the numbers they have in the standard."""
    found = {place: points for place, points in here.items() if place.ranked}
    for stream in {place.stream for place in here if not place.ranked}:
        old = _processes(standard, stream)
        new = _processes(here, stream)
        numbers = {theirs: ours for ours, theirs in evidence.pair(old, new).items()}
        spare = max([*old, *new]) + 1
        for number_, points in sorted(new.items()):
            found[Place(stream, numbers.get(number_, spare + number_), False)] = points
    return found


def _processes(series: Series, stream: str) -> dict[int, Points]:
    return {p.number: s for p, s in series.items() if p.stream == stream and not p.ranked}


def _constant(series: Series) -> tuple[str, ...]:
    """Streams that never change: no standard holds them."""
    streams: dict[str, dict[int, Points]] = {}
    for place, points in series.items():
        streams.setdefault(place.stream, {})[place.number] = points
    return evidence.constant(RunEvidence(streams))
