"""Compares the evidence of runs, stream by stream, rank by rank, step by step. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pinner.compare import detail as detail_of
from pinner.lockfile.occurrences import by_occurrence

# (step, digest) in the order of the steps; a step that was fingerprinted twice stands there twice.
Steps = tuple[tuple[int, str], ...]
Details = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Emitter:
    """What one process left: its rank, None where it has none, and (stream, step, digest)s.

    details: what is known of a value beside its digest, by that digest (`compare.detail`).
    """

    rank: int | None
    lines: tuple[tuple[str, int, str], ...]
    details: Details = field(default_factory=dict)


@dataclass(frozen=True)
class RunEvidence:
    """The evidence of one run: stream, then rank, then its steps.

    anonymous: streams of processes without a rank. These are numbered by their contents, so that
    two runs can be laid side by side whatever the process ids were. details: as an emitter has
    them.
    """

    streams: Mapping[str, Mapping[int, Steps]] = field(default_factory=dict)
    anonymous: frozenset[str] = frozenset()
    details: Details = field(default_factory=dict, compare=False)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to compare."""
        return not any(steps for ranks in self.streams.values() for steps in ranks.values())


@dataclass(frozen=True)
class Difference:
    """The first place where one stream of one rank differs between two runs.

    rank, step: None where a whole stream, or all of a rank, is missing on one side.
    first, second: the digests; None where that side has none.
    from_here_on: the digests are over all steps, and the difference is at this step or later.
    detail: where the two values differ, in words, as far as that is known.
    """

    stream: str
    rank: int | None
    step: int | None
    first: str | None
    second: str | None
    from_here_on: bool = False
    detail: str = ""

    def to_json(self) -> dict[str, str | int | bool | None]:
        """The difference as plain JSON values."""
        return {
            "stream": self.stream,
            "rank": self.rank,
            "step": self.step,
            "first": self.first,
            "second": self.second,
            "from_here_on": self.from_here_on,
            "detail": self.detail,
        }


# Stands for "it is there" where a whole stream or rank is missing on the other side.
PRESENT = "present"


def gather(emitters: Sequence[Emitter]) -> RunEvidence:
    """Puts the processes of a run together.

    Processes of one rank (a restart) follow each other in the order given. Processes without a
    rank are numbered from 0 by what they left; beside ranks they are a stream of their own.
    """
    ranked: dict[str, dict[int, list[tuple[int, str]]]] = {}
    unranked: dict[str, list[Steps]] = {}
    for emitter in emitters:
        for stream, steps in _by_stream(emitter.lines).items():
            if emitter.rank is None:
                unranked.setdefault(stream, []).append(_in_order(steps))
            else:
                ranked.setdefault(stream, {}).setdefault(emitter.rank, []).extend(steps)
    streams: dict[str, dict[int, Steps]] = {
        stream: {rank: _in_order(ranks[rank]) for rank in sorted(ranks)}
        for stream, ranks in ranked.items()
    }
    anonymous = {f"{s} (no rank)" if s in ranked else s: found for s, found in unranked.items()}
    for stream, found in anonymous.items():
        streams[stream] = dict(enumerate(sorted(found)))
    details = {digest: what for emitter in emitters for digest, what in emitter.details.items()}
    return RunEvidence(streams, frozenset(anonymous), details)


def compare(first: RunEvidence, second: RunEvidence) -> tuple[Difference, ...]:
    """The first difference of every stream and rank, earliest step first; empty where bits agree.

    A stream, rank or step that only one side has is a difference like any other.
    """
    found: list[Difference] = []
    for stream in [*first.streams, *(s for s in second.streams if s not in first.streams)]:
        found.extend(_detailed(d, first, second) for d in _compare_stream(stream, first, second))
    return tuple(sorted(found, key=lambda d: -1 if d.step is None else d.step))


def shared(runs: Sequence[RunEvidence]) -> RunEvidence:
    """What all runs agree on: of each stream and rank the steps before the first that differs."""
    first, *others = runs
    streams = {stream: dict(ranks) for stream, ranks in first.streams.items()}
    for other in others:
        for stream, ranks in streams.items():
            theirs = _their_ranks(stream, first, other)
            for rank, steps in ranks.items():
                ranks[rank] = _before_difference(steps, theirs.get(rank, ()))
    return RunEvidence(streams, first.anonymous, first.details)


def strays(agreed: RunEvidence, run: RunEvidence) -> tuple[Difference, ...]:
    """Where a run leaves what others agree on; what it has besides does not count."""
    found: list[Difference] = []
    for stream, ranks in agreed.streams.items():
        theirs = _their_ranks(stream, agreed, run)
        for rank, steps in ranks.items():
            places = by_occurrence(steps)
            here = by_occurrence(theirs.get(rank, ()))
            found += [
                Difference(stream, rank, place[0], places[place], here.get(place))
                for place in sorted(places)
                if here.get(place) != places[place]
            ][:1]
    return tuple(sorted(found, key=lambda d: -1 if d.step is None else d.step))


def _their_ranks(stream: str, first: RunEvidence, second: RunEvidence) -> Mapping[int, Steps]:
    """The ranks of a stream in `second`, under the numbers that they have in `first`."""
    left, right = first.streams.get(stream, {}), second.streams.get(stream, {})
    return _renumbered(left, right) if stream in first.anonymous | second.anonymous else right


def _before_difference(steps: Steps, others: Steps) -> Steps:
    left, right = by_occurrence(steps), by_occurrence(others)
    for number, place in enumerate(sorted(left)):
        if left[place] != right.get(place):
            return steps[:number]
    return steps


def constant(run: RunEvidence) -> tuple[str, ...]:
    """Streams that never change over two or more steps: agreement on them shows nothing."""
    return tuple(stream for stream, ranks in run.streams.items() if _never_changes(ranks))


def without(run: RunEvidence, streams: Iterable[str]) -> RunEvidence:
    """The run without some of its streams."""
    dropped = set(streams)
    kept = {stream: ranks for stream, ranks in run.streams.items() if stream not in dropped}
    return RunEvidence(kept, run.anonymous - dropped, run.details)


def chain(steps: Sequence[tuple[int, str]]) -> str:
    """One digest over steps and their digests, in order: what a lockfile keeps of a stream."""
    digest = hashlib.sha256()
    for step, value in steps:
        digest.update(f"{step} {value}\n".encode())
    return "sha256:" + digest.hexdigest()


def describe(difference: Difference, names: tuple[str, str]) -> str:
    """One line: where the two runs differ, and both digests."""
    place = f"stream {difference.stream!r}"
    if difference.rank is not None:
        place += f", rank {difference.rank}"
    if difference.step is not None:
        place += f", step {difference.step}" + (" or later" if difference.from_here_on else "")
    if difference.first is None:
        return f"{place}: missing in {names[0]}, present in {names[1]}"
    if difference.second is None:
        return f"{place}: present in {names[0]}, missing in {names[1]}"
    detail = f" ({difference.detail})" if difference.detail else ""
    return f"{place}: {difference.first} in {names[0]}, {difference.second} in {names[1]}{detail}"


def _detailed(difference: Difference, first: RunEvidence, second: RunEvidence) -> Difference:
    here = first.details.get(difference.first or "")
    there = second.details.get(difference.second or "")
    if here is None or there is None:
        return difference
    return replace(difference, detail=detail_of.where(here, there))


def _by_stream(lines: Iterable[tuple[str, int, str]]) -> dict[str, list[tuple[int, str]]]:
    streams: dict[str, list[tuple[int, str]]] = {}
    for stream, step, digest in lines:
        streams.setdefault(stream, []).append((step, digest))
    return streams


def _in_order(steps: Iterable[tuple[int, str]]) -> Steps:
    """By step; what was written for one step twice keeps its order."""
    return tuple(sorted(steps, key=lambda item: item[0]))


def _compare_stream(stream: str, first: RunEvidence, second: RunEvidence) -> list[Difference]:
    if stream not in second.streams:
        return [Difference(stream, None, None, PRESENT, None)]
    if stream not in first.streams:
        return [Difference(stream, None, None, None, PRESENT)]
    left, right = first.streams[stream], second.streams[stream]
    if stream in first.anonymous | second.anonymous:
        right = _renumbered(left, right)
    found = []
    for rank in sorted({*left, *right}):
        if rank not in right:
            found.append(Difference(stream, rank, None, PRESENT, None))
        elif rank not in left:
            found.append(Difference(stream, rank, None, None, PRESENT))
        else:
            found.extend(_first_difference(stream, rank, left[rank], right[rank]))
    return found


def _first_difference(stream: str, rank: int, first: Steps, second: Steps) -> list[Difference]:
    left, right = by_occurrence(first), by_occurrence(second)
    for place in sorted({*left, *right}):
        if left.get(place) != right.get(place):
            return [Difference(stream, rank, place[0], left.get(place), right.get(place))]
    return []


def pair(left: Mapping[int, Steps], right: Mapping[int, Steps]) -> dict[int, int]:
    """Which number of `left` is which of `right`: equal contents first, then common beginnings."""
    pairs = sorted(
        (left[a] != right[b], -_common(left[a], right[b]), a, b) for a in left for b in right
    )
    found: dict[int, int] = {}
    for _, _, number, other in pairs:
        if number not in found and other not in found.values():
            found[number] = other
    return found


def made_by(digest: str) -> str:
    """The algorithm of a digest, which stands before its colon; "" where none does."""
    algorithm, colon, _ = digest.partition(":")
    return algorithm if colon else ""


def algorithms(run: RunEvidence) -> set[str]:
    """What digested the values of a run."""
    return {
        made_by(digest)
        for ranks in run.streams.values()
        for steps in ranks.values()
        for _, digest in steps
    }


def _renumbered(left: Mapping[int, Steps], right: Mapping[int, Steps]) -> Mapping[int, Steps]:
    """`right` under the numbers of `left`; what is left over follows."""
    numbers = pair(left, right)
    spare = [other for other in sorted(right) if other not in numbers.values()]
    first = max([*left, -1]) + 1
    return {
        **{number: right[other] for number, other in numbers.items()},
        **{first + place: right[other] for place, other in enumerate(spare)},
    }


def _common(first: Steps, second: Steps) -> int:
    count = 0
    for left, right in zip(first, second, strict=False):
        if left != right:
            break
        count += 1
    return count


def _never_changes(ranks: Mapping[int, Steps]) -> bool:
    if not any(len(steps) > 1 for steps in ranks.values()):
        return False
    return all(len({digest for _, digest in steps}) <= 1 for steps in ranks.values())
