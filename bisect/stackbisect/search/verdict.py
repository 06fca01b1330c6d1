"""Verdicts: what one candidate's probes say, read against the probes of the good and bad ends."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol

from stackbisect.probe import Evidence, Status

Kind = Literal["good", "bad", "third", "unstable", "untestable"]
RuleName = Literal["evidence", "exit-code"]

# What git bisect run understands (git-bisect(1), "Bisect run").
SKIP = 125
CANNOT_RUN = (126, 127)
ABORT = 128
# pytest: 4 is a usage error, 5 is "no tests collected"; neither says anything about the bits.
PYTEST_SAYS_NOTHING = {4: "pytest usage error", 5: "pytest collected no tests"}


class Observation(Protocol):
    """What a verdict needs to know of one probe (`probe.ProbeResult` has it)."""

    @property
    def status(self) -> Status:
        """ "ran" or "untestable"; results of failed machinery are never judged."""

    @property
    def exit_code(self) -> int | None:
        """The command's exit code; None where it has none."""

    @property
    def reason(self) -> str:
        """Why it is untestable."""

    @property
    def evidence(self) -> Evidence:
        """The digests it left."""


@dataclass(frozen=True)
class Rule:
    """How probes are read. `pytest`: the command is pytest, whose codes 4 and 5 mean no verdict."""

    name: RuleName = "evidence"
    pytest: bool = False

    @classmethod
    def of(cls, name: RuleName, command: Sequence[str]) -> Rule:
        """The rule for a command."""
        return cls(name, is_pytest(command))


@dataclass(frozen=True)
class Verdict:
    """One candidate's class. Equal `value` means equal bits; it is "" where nothing is known."""

    kind: Kind
    value: str = ""
    reason: str = ""

    @property
    def testable(self) -> bool:
        """True where the candidate has bits that can be compared."""
        return self.kind in ("good", "bad", "third")


@dataclass(frozen=True)
class Reading:
    """One probe by itself: the value of its bits, or why it has none."""

    value: str | None
    reason: str = ""


# Steps that must be there, by (stream, rank): what both ends have.
Shape = Mapping[tuple[str, str], int]


@dataclass(frozen=True)
class Ends:
    """What every other candidate is compared with. `notes` are for the report."""

    good: str
    bad: str
    shape: Shape
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class EndsFailure:
    """Why the ends cannot be used. `end` is "good", "bad" or "both"."""

    end: str
    reason: str
    no_evidence: bool = False


def is_pytest(command: Sequence[str]) -> bool:
    """Whether a command starts pytest: by name, by path or as a module (`-m pytest`)."""
    return any(os.path.basename(word) in ("pytest", "py.test") for word in command)


def aborts(rule: Rule, observation: Observation) -> bool:
    """Whether the bisection stops here without a verdict (git's rule: 128 and above)."""
    if rule.name != "exit-code" or observation.status != "ran":
        return False
    return observation.exit_code is not None and observation.exit_code >= ABORT


def end_fault(end: str, seen: Sequence[Observation], rule: Rule) -> EndsFailure | None:
    """What is wrong with one end's probes so far, by themselves; None where nothing is."""
    readings = [read(observation, rule, {}) for observation in seen]
    for observation, reading in zip(seen, readings, strict=True):
        if reading.value is None:
            no_evidence = observation.status == "ran" and reading.reason == NO_EVIDENCE
            return EndsFailure(end, reading.reason, no_evidence)
        if rule.name == "exit-code" and end == "good" and reading.value != "good":
            return EndsFailure(end, _not_good(observation))
    if len({reading.value for reading in readings}) > 1:
        return EndsFailure(end, _unstable([observation.evidence for observation in seen], rule))
    return None


def compare_ends(
    good: Sequence[Observation], bad: Sequence[Observation], rule: Rule
) -> Ends | EndsFailure:
    """The two references. Both ends' probes must have passed `end_fault`."""
    if rule.name == "exit-code":
        values = [str(read(seen[0], rule, {}).value) for seen in (good, bad)]
        return Ends(values[0], values[1], {}, _cannot_run_note(bad[0]))
    first, second = good[0].evidence, bad[0].evidence
    left, right = _shape(first), _shape(second)
    shape = {place: min(left[place], right[place]) for place in left if place in right}
    for end, own, other in (("good", left, right), ("bad", right, left)):
        if _half_is_missing(own, other):
            return EndsFailure(end, f"evidence incomplete: {_lacks(own, other)}")
    if not shape:
        return EndsFailure("both", f"they have no stream in common: {_lacks(left, right)}")
    notes = _shape_notes(left, right) + _constant_notes(first, second)
    return Ends(value_of(first, shape), value_of(second, shape), shape, notes)


def judge(seen: Sequence[Observation], ends: Ends, rule: Rule) -> Verdict | None:
    """The verdict on a candidate between the ends; None where it must be tried once more.

    Bits that are neither good nor bad are tried twice: the same bits again are a third value,
    others are unstable.
    """
    readings = [read(observation, rule, ends.shape) for observation in seen]
    if not readings:
        return None
    values = [reading.value for reading in readings if reading.value is not None]
    if len(set(values)) > 1:
        return Verdict("unstable", "", _unstable([o.evidence for o in seen], rule))
    for reading in readings:
        if reading.value is None:
            return Verdict("untestable", "", reading.reason)
    value = values[0]
    if value == ends.good:
        return Verdict("good", value)
    if value == ends.bad:
        return Verdict("bad", value)
    return Verdict("third", value) if len(values) > 1 else None


NO_EVIDENCE = "the command left no evidence"


def read(observation: Observation, rule: Rule, shape: Shape) -> Reading:
    """One probe by itself, against the steps that must be there."""
    if observation.status != "ran":
        return Reading(None, observation.reason)
    code = observation.exit_code
    if rule.name == "exit-code":
        return _read_code(code, rule)
    if code != 0:
        return Reading(None, f"the command failed (exit code {code})")
    if observation.evidence.empty:
        return Reading(None, NO_EVIDENCE)
    own = _shape(observation.evidence)
    if any(own.get(place, 0) < steps for place, steps in shape.items()):
        return Reading(None, f"evidence incomplete: {_lacks(own, shape)}")
    return Reading(value_of(observation.evidence, shape or own))


def value_of(evidence: Evidence, shape: Shape) -> str:
    """The digest of the evidence's steps in `shape`; of all of it where it has no more."""
    return _value(_Itself(evidence), frozenset(shape.items()))


class _Itself:
    """Evidence as a key: evidence never changes, and its contents are too much to compare."""

    __slots__ = ("evidence",)

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other.evidence is self.evidence

    def __hash__(self) -> int:
        return id(self.evidence)


# Every step of a search reads all probes again; long runs have much evidence.
@lru_cache(maxsize=1024)
def _value(of: _Itself, shape: frozenset[tuple[tuple[str, str], int]]) -> str:
    evidence = of.evidence
    kept: dict[str, dict[str, tuple[str, ...]]] = {}
    for (stream, rank), steps in shape:
        kept.setdefault(stream, {})[rank] = evidence.streams[stream][rank][:steps]
    return Evidence(kept).digest


def first_difference(left: Evidence, right: Evidence) -> str | None:
    """The earliest step where two candidates' common evidence differs, in words."""
    found = [
        (step, stream, rank)
        for stream, ranks in left.streams.items()
        for rank, steps in ranks.items()
        for step, (a, b) in enumerate(
            zip(steps, right.streams.get(stream, {}).get(rank, ()), strict=False)
        )
        if a != b
    ]
    if not found:
        return None
    step, stream, rank = min(found)
    return f"stream {stream}, rank {rank}, {_ordinal(step)} step"


def _read_code(code: int | None, rule: Rule) -> Reading:
    if code == 0:
        return Reading("good")
    if code == SKIP:
        return Reading(None, "the command asked to skip this one (exit code 125)")
    if rule.pytest and code in PYTEST_SAYS_NOTHING:
        return Reading(None, f"{PYTEST_SAYS_NOTHING[code]} (exit code {code})")
    return Reading("bad")


def _not_good(observation: Observation) -> str:
    code = observation.exit_code
    if code in CANNOT_RUN:
        return f"the command cannot be run there (exit code {code}: not found or not executable)"
    return f"the command did not succeed (exit code {code}), so it is not a good end"


def _cannot_run_note(bad: Observation) -> tuple[str, ...]:
    if bad.exit_code not in CANNOT_RUN:
        return ()
    return (
        f"at the bad end the command ended with {bad.exit_code}, which usually means that it was "
        "not found there; the good end was tried first and is good, so this counts as bad",
    )


def _shape(evidence: Evidence) -> dict[tuple[str, str], int]:
    return {
        (stream, rank): len(steps)
        for stream, ranks in evidence.streams.items()
        for rank, steps in ranks.items()
        if steps
    }


def _half_is_missing(own: Shape, other: Shape) -> bool:
    """Whether the end with less evidence lacks half or more of what the other one has."""
    here, there = sum(own.values()), sum(other.values())
    common = sum(min(steps, own.get(place, 0)) for place, steps in other.items())
    return here < there and 2 * common <= there


def _lacks(own: Shape, wanted: Shape) -> str:
    """What is missing, in words: the first few places, and how many more."""
    missing = [
        f"stream {stream}, rank {rank}: {own.get((stream, rank), 0)} of {steps} steps"
        for (stream, rank), steps in sorted(wanted.items())
        if own.get((stream, rank), 0) < steps
    ]
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    return "; ".join(missing[:3]) + more


def _unstable(evidence: Sequence[Evidence], rule: Rule) -> str:
    if rule.name == "exit-code":
        return "two runs of it ended differently"
    first, last = evidence[0], evidence[-1]
    where = first_difference(first, last)
    if where is None:
        where = _lacks(_shape(last), _shape(first)) or _lacks(_shape(first), _shape(last))
    return "two runs of it gave different bits" + (f" ({where})" if where else "")


def _shape_notes(left: Shape, right: Shape) -> tuple[str, ...]:
    if left == right:
        return ()
    texts = (_lacks(left, right), _lacks(right, left))
    found = [
        f"the {end} end has less: {text}; only what both ends have is compared"
        for end, text in zip(("good", "bad"), texts, strict=True)
        if text
    ]
    return tuple(found)


def _constant_notes(*ends: Evidence) -> tuple[str, ...]:
    constant = [
        stream
        for stream in ends[0].streams
        if all(_never_changes(end.streams.get(stream, {})) for end in ends)
    ]
    return tuple(f"stream {s} never changes over its steps: it shows little" for s in constant)


def _never_changes(ranks: Mapping[str, Sequence[str]]) -> bool:
    lengths = [len(steps) for steps in ranks.values()]
    return max(lengths, default=0) > 1 and all(len(set(steps)) <= 1 for steps in ranks.values())


def _ordinal(step: int) -> str:
    names = ("first", "second", "third")
    return names[step] if step < len(names) else f"{step + 1}th"
