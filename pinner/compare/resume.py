"""Compares a run that was killed and restored with one that was not. Pure.

Two things are compared. The *streams* after the restore, with the same steps of the whole run: that
is the verdict. And the *state*, by name: what is not put back is named, also where the streams
still agree, because the run may need it later.

State counts as restored if it is, digest for digest, what it was when it was saved, at the moment
the program says that all is restored; or if it is what the whole run has at the same place of the
program, right before the first optimizer step after the checkpoint. The second needs no word from
the program and does not depend on the order in which it restores. For random streams it alone
counts where it is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pinner.compare import detail
from pinner.compare.evidence import PRESENT, Difference

Leaves = Mapping[str, str]
State = Mapping[str, Mapping[str, Any]]
Line = Mapping[str, Any]

# What is named, but is no fault by itself while the streams agree.
_EXCUSABLE = ("derived", "compile")


@dataclass(frozen=True)
class Emission:
    """One step of a stream, and how many optimizer steps the process had made by then.

    what: what is known of the value beside its digest (`compare.detail`).
    """

    clock: int
    step: int
    digest: str
    what: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Told:
    """What one process told in one of the three runs.

    saves: how many checkpoints. saved_at: the optimizer steps made when the looked-at one was
    saved, None if it was not. saved, restored, begins, end: state at these moments, None where it
    was not told. batches: (optimizer steps, {loader: digest of the batch drawn last}).
    streams: stream to its emissions; of a restored process those after the restore.
    """

    saves: int = 0
    saved_at: int | None = None
    how: str = ""
    saved: State | None = None
    restored: State | None = None
    restored_by: str = ""
    begins: State | None = None
    end: State | None = None
    batches: tuple[tuple[int, Leaves], ...] = ()
    streams: Mapping[str, tuple[Emission, ...]] = field(default_factory=dict)
    counted: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Lack:
    """State that is not after the restore what it was.

    matters: whether it is a fault. follows: whether it may come of another lack alone, because it
    was looked at after a step's forward pass, which changes it.
    """

    rank: int
    name: str
    text: str
    matters: bool
    leaves: tuple[str, ...] = ()
    follows: bool = False

    def to_json(self) -> dict[str, Any]:
        """The lack as plain JSON values."""
        return {
            "rank": self.rank,
            "name": self.name,
            "text": self.text,
            "matters": self.matters,
            "leaves": list(self.leaves),
        }


@dataclass(frozen=True)
class Findings:
    """What came of a comparison.

    parted: where the killed run differs from the whole one before it was killed.
    differences: where the restored run differs from the whole one; the earliest first.
    compared: (stream, rank) and how many steps were compared after the restore.
    """

    parted: tuple[Difference, ...]
    differences: tuple[Difference, ...]
    lacks: tuple[Lack, ...]
    compared: Mapping[tuple[str, int], int]
    notes: tuple[str, ...] = ()

    @property
    def faults(self) -> tuple[Lack, ...]:
        """The lacks that matter."""
        return tuple(lack for lack in self.lacks if lack.matters)


def told(lines: Iterable[Line], at: int) -> Told | None:
    """What the lines of one ledger tell; None for a process that computed nothing."""
    reading = _Reading(at)
    for line in lines:
        reading.take(line)
    return reading.told() if reading.computed else None


def by_rank(ledgers: Iterable[tuple[int | None, Iterable[Line]]], at: int) -> dict[int, Told]:
    """What the processes of a run told, of (rank, lines); those without a rank are numbered."""
    found: dict[int, Told] = {}
    for rank, lines in ledgers:
        told_here = told(lines, at)
        if told_here is not None:
            found[len(found) if rank is None else rank] = told_here
    return found


def looked_at(ledgers: Iterable[Iterable[Line]]) -> tuple[int | None, bool] | None:
    """The checkpoint that a run is about, and whether the run went on from it.

    None for a run that is no part of such a verification. The checkpoint's number is None where a
    restored run made no optimizer step, which would tell it.
    """
    for lines in ledgers:
        for line in lines:
            at = line.get("at") if line.get("t") == "resume" else None
            if at == "begins":
                return int(line["number"]), line["after"] == "restored"
            if at == "saved" and line["state"]:  # read at that one alone, and never once restored
                return int(line["number"]), False
            if at == "restored" and line["state"]:  # only the restored run reads it
                return None, True
    return None


def compare(
    whole: Mapping[int, Told], killed: Mapping[int, Told], restored: Mapping[int, Told]
) -> Findings:
    """Compares the three runs, by rank."""
    clock = _clock(whole)
    differences: list[Difference] = []
    parted: list[Difference] = []
    compared: dict[tuple[str, int], int] = {}
    for rank in sorted(whole):
        if rank in killed:
            parted += _parted(rank, whole[rank], killed[rank])
        if rank not in restored:
            differences.append(Difference("(all)", rank, None, PRESENT, None))
            continue
        saved_at = whole[rank].saved_at
        start = clock if saved_at is None else saved_at
        for stream, number, found in _streams(rank, whole[rank], restored[rank], start):
            compared[stream, rank] = number
            differences += [] if found is None else [found]
    differences.sort(key=_place)
    parted.sort(key=_place)
    lacks, notes = _lacks(whole, killed, restored, streams_differ=bool(differences))
    return Findings(tuple(parted), tuple(differences), lacks, compared, notes)


def _place(difference: Difference) -> int:
    return -1 if difference.step is None else difference.step


class _Reading:
    """Goes through the lines of one process."""

    def __init__(self, at: int) -> None:
        self._at = at
        self._clock = 0
        self._fields: dict[str, Any] = {}
        self._batches: list[tuple[int, Leaves]] = []
        self._streams: dict[str, list[Emission]] = {}
        self._numbers: dict[str, int] = {}
        self._explicit: set[str] = set()
        self.computed = False

    def take(self, line: Line) -> None:
        kind = line.get("t")
        if kind == "evidence":
            self._evidence(line)
        elif kind == "resume":
            self._moment(str(line["at"]), line)

    def told(self) -> Told:
        return Told(
            batches=tuple(self._batches),
            streams={stream: tuple(found) for stream, found in self._streams.items()},
            counted=frozenset(self._numbers) - self._explicit,
            **self._fields,
        )

    def _evidence(self, line: Line) -> None:
        self.computed = True
        stream, step = str(line["stream"]), int(line["step"])
        number = self._numbers.get(stream, 0)
        self._numbers[stream] = number + 1
        if number != step:
            self._explicit.add(stream)
        what = detail.kept(line.get("what") or {})
        found = Emission(self._clock, step, str(line["digest"]), what)
        self._streams.setdefault(stream, []).append(found)

    def _moment(self, at: str, line: Line) -> None:
        self.computed |= at != "end"
        state = line.get("state") or None
        if at == "step":
            self._clock = int(line["steps"])
            self._batches.append((self._clock, line.get("batches") or {}))
        elif at == "saved":
            self._saved(int(line["number"]), line, state)
        elif at == "restored":
            self._restored(str(line["how"]), state)
        elif at in ("begins", "end"):
            self._fields[at] = state

    def _saved(self, number: int, line: Line, state: State | None) -> None:
        self._fields["saves"] = max(number, self._fields.get("saves", 0))
        if number == self._at:
            self._fields.update(saved=state, saved_at=int(line["steps"]), how=str(line["how"]))

    def _restored(self, how: str, state: State | None) -> None:
        """What came before only made room for what was loaded, or was a warm-up."""
        if "restored_by" in self._fields and how != "call":
            return
        self._fields.update(restored_by=how, restored=state)
        self._clock = 0
        self._batches.clear()
        self._streams.clear()


def _clock(whole: Mapping[int, Told]) -> int:
    """When the checkpoint was saved, for ranks that save nothing of their own."""
    return min((t.saved_at for t in whole.values() if t.saved_at is not None), default=0)


def _parted(rank: int, whole: Told, killed: Told) -> Iterator[Difference]:
    """Where the killed run left something else than the whole one at the same places."""
    for stream, emissions in killed.streams.items():
        known = whole.streams.get(stream, ())
        for place, emission in enumerate(emissions):
            expected = known[place] if place < len(known) else None
            if expected is None or expected.digest != emission.digest:
                yield _difference(stream, rank, expected, emission)
                break


def _streams(
    rank: int, whole: Told, restored: Told, start: int
) -> Iterator[tuple[str, int, Difference | None]]:
    """(stream, steps compared, first difference) of every stream after the restore."""
    for stream in [*whole.streams, *(s for s in restored.streams if s not in whole.streams)]:
        pairs = _paired(stream, whole, restored, start)
        differing = next(((a, b) for a, b in pairs if _digest(a) != _digest(b)), None)
        number = sum(1 for a, b in pairs if a is not None and b is not None)
        if differing is None:
            if pairs:
                yield stream, number, None
            continue
        yield stream, number, _difference(stream, rank, *differing)


def _difference(
    stream: str, rank: int, first: Emission | None, second: Emission | None
) -> Difference:
    there = first if first is not None else second
    step = None if there is None else there.step
    where = "" if first is None or second is None else detail.where(first.what, second.what)
    return Difference(stream, rank, step, _digest(first), _digest(second), detail=where)


def _digest(emission: Emission | None) -> str | None:
    return None if emission is None else emission.digest


Pair = tuple[Emission | None, Emission | None]


def _paired(stream: str, whole: Told, restored: Told, start: int) -> list[Pair]:
    """The emissions of the whole run beside those of the restored one.

    Steps that the program numbers itself are paired by number. Otherwise by the clock: the
    restored process has made as many optimizer steps less as the checkpoint had. What the whole run
    left at that very moment belongs to the step before or to the next one; the restored run tells
    how many belong to the next.
    """
    before = whole.streams.get(stream, ())
    after = restored.streams.get(stream, ())
    if stream not in whole.counted or stream not in restored.counted:
        return _by_number(before, after, start)
    left, right = _by_clock(before), _by_clock(after)
    pairs: list[Pair] = []
    for clock in sorted({c for c in left if c >= start} | {c + start for c in right}):
        mine, its = left.get(clock, []), right.get(clock - start, [])
        if clock == start:
            mine = mine[len(mine) - len(its) :] if len(its) <= len(mine) else mine
        pairs += _side_by_side(mine, its)
    return pairs


def _by_clock(emissions: Sequence[Emission]) -> dict[int, list[Emission]]:
    found: dict[int, list[Emission]] = {}
    for emission in emissions:
        found.setdefault(emission.clock, []).append(emission)
    return found


def _by_number(before: Sequence[Emission], after: Sequence[Emission], start: int) -> list[Pair]:
    if not after:
        return _side_by_side([e for e in before if e.clock > start], [])
    first = min(emission.step for emission in after)
    left: dict[int, list[Emission]] = {}
    right: dict[int, list[Emission]] = {}
    for emission in before:
        if emission.step >= first:
            left.setdefault(emission.step, []).append(emission)
    for emission in after:
        right.setdefault(emission.step, []).append(emission)
    pairs: list[Pair] = []
    for step in sorted({*left, *right}):
        pairs += _side_by_side(left.get(step, []), right.get(step, []))
    return pairs


def _side_by_side(mine: Sequence[Emission], its: Sequence[Emission]) -> list[Pair]:
    count = max(len(mine), len(its))
    return [
        (mine[place] if place < len(mine) else None, its[place] if place < len(its) else None)
        for place in range(count)
    ]


@dataclass(frozen=True)
class _Rank:
    """One rank in the three runs."""

    number: int
    whole: Told
    killed: Told
    restored: Told
    streams_differ: bool


def _lacks(
    whole: Mapping[int, Told],
    killed: Mapping[int, Told],
    restored: Mapping[int, Told],
    *,
    streams_differ: bool,
) -> tuple[tuple[Lack, ...], tuple[str, ...]]:
    lacks: list[Lack] = []
    notes: list[str] = []
    for number in sorted(whole):
        if number not in restored:
            continue
        if whole[number].saved_at is None:
            notes.append(
                f"rank {number} saved nothing of its own: its streams are compared, not its state"
            )
            continue
        rank = _Rank(
            number, whole[number], killed.get(number, Told()), restored[number], streams_differ
        )
        if rank.restored.begins is None and not rank.restored.restored_by:
            text = (
                "nothing was restored, as far as is seen: no call, no file read, no step to look at"
            )
            lacks.append(Lack(number, "the checkpoint", text, True))
        elif rank.restored.begins is None and rank.restored.restored is None:
            notes.append(f"rank {number} made no optimizer step after the restore: state unseen")
        else:
            lacks += _lacks_of(rank)
    return tuple(lacks), tuple(notes)


def _lacks_of(rank: _Rank) -> list[Lack]:
    known = {**(rank.whole.begins or {}), **(rank.killed.saved or {})}
    found = [
        _JUDGES[str(group["kind"])](rank, name, str(group["kind"]))
        for name, group in known.items()
        if group["kind"] != "passed"
    ]
    lacks = [lack for lack in (*found, _passed(rank)) if lack is not None]
    first = [lack for lack in lacks if not lack.follows]
    return first or lacks


def _state(rank: _Rank, name: str, kind: str) -> Lack | None:
    missing = _not_restored(rank, name)
    if not missing:
        return None
    matters = kind not in _EXCUSABLE or rank.streams_differ
    text = _not_restored_text(rank, name, missing)
    return Lack(rank.number, name, text, matters, missing, _moves(rank, name, missing))


def _moves(rank: _Rank, name: str, missing: Sequence[str]) -> bool:
    """Whether the forward pass changes all that is missing, and nothing was looked at before it."""
    if rank.restored.restored is not None:
        return False
    saved, begins = _leaves(rank.whole.saved, name), _leaves(rank.whole.begins, name)
    return all(saved.get(leaf) != begins.get(leaf) for leaf in missing)


def _random(rank: _Rank, name: str, _kind: str) -> Lack | None:
    """A random stream must stand at the same place right before the first step.

    That it was put back is not enough: making a loader's iterator draws from it.
    """
    at_step = _missing(rank.whole.begins, rank.restored.begins, name)
    at_call = _missing(rank.killed.saved, rank.restored.restored, name)
    missing = at_call if at_step is None else at_step
    missing = tuple(leaf for leaf in missing or () if _drawn(rank.whole, name, leaf))
    if not missing:
        return None
    mine, its = _leaves(rank.whole.saved, name), _leaves(rank.killed.saved, name)
    if any(mine.get(leaf) != its.get(leaf) for leaf in missing):
        text = (
            f"not seeded: {name}: it differed between the two runs before the checkpoint, and was "
            "not restored"
        )
        return Lack(rank.number, name, text, True, missing)
    text = _not_restored_text(rank, name, missing)
    if at_call == ():
        text = f"restored, but then drawn from before the first step: {name}"
    elif at_call is None:
        text += ", or it was drawn from before the first step"
    return Lack(rank.number, name, f"{text}; the whole run draws from it later", True, missing)


def _drawn(whole: Told, name: str, leaf: str) -> bool:
    """Whether the whole run draws from a random stream after the checkpoint, or may."""
    states = (whole.saved, whole.begins, whole.end)
    moments = [_leaves(state, name).get(leaf) for state in states if state is not None]
    return len(moments) < 2 or any(moment != moments[0] for moment in moments[1:])


def _batch(rank: _Rank, name: str, _kind: str) -> Lack | None:
    mine, its = _leaves(rank.whole.begins, name), _leaves(rank.restored.begins, name)
    if rank.restored.begins is None or not mine or mine == its:
        return None
    loader = name.removeprefix("position of ")
    text = f"not restored: {name}: "
    if not its:
        text += "no batch was drawn before the first step"
        return Lack(rank.number, name, text, True, tuple(mine))
    found = its["last batch"]
    places = [clock for clock, drawn in rank.whole.batches if drawn.get(loader) == found]
    expected = (rank.whole.saved_at or 0) + 1
    text += f"the first step after the restore takes another batch than step {expected}"
    if places:
        text += f": the one of step {places[0]}"
        text += ", so the data begin again" if places[0] == _first(rank.whole, loader) else ""
    return Lack(rank.number, name, text, True, tuple(mine))


def _first(whole: Told, loader: str) -> int | None:
    return next((clock for clock, drawn in whole.batches if loader in drawn), None)


def _compiled(rank: _Rank, name: str, _kind: str) -> Lack | None:
    """Where one run serves a dynamic kernel and the other a static one."""
    mine, its = _leaves(rank.whole.begins, name), _leaves(rank.restored.begins, name)
    differing = [leaf for leaf in mine if leaf in its and _is_dynamic(mine[leaf], its[leaf])]
    if not differing:
        return None
    leaf = differing[0]
    text = (
        f"not restored: {name}: {leaf} has sizes {mine[leaf]} in the whole run and "
        f"{its[leaf]} after the restore, so another kernel is served{_graphs(mine, its)}"
    )
    return Lack(rank.number, name, text, rank.streams_differ, tuple(differing))


def _graphs(mine: Leaves, its: Leaves) -> str:
    """How many graphs each run has compiled by then, where both tell."""
    if "graphs" not in mine or "graphs" not in its:
        return ""
    return f" (graphs compiled by then: {mine['graphs']} and {its['graphs']})"


def _is_dynamic(first: str, second: str) -> bool:
    return first != second and "?" in first + second


def _passed(rank: _Rank) -> Lack | None:
    """What the program gave to both calls; it may give less to the second one."""
    restored, saved = rank.restored.restored, rank.killed.saved
    if restored is None or saved is None:
        return None
    given = [name for name, group in restored.items() if group["kind"] == "passed"]
    passed = [name for name, group in saved.items() if group["kind"] == "passed"]
    names = [n for n in passed if _differing(_leaves(saved, n), _leaves(restored, n))]
    if not given or not names:
        return None
    text = f"of what was passed these differ: {', '.join(names)}"
    return Lack(rank.number, "what was passed", text, True, tuple(names))


_JUDGES: dict[str, Callable[[_Rank, str, str], Lack | None]] = {
    "state": _state,
    "derived": _state,
    "random": _random,
    "batch": _batch,
    "compile": _compiled,
}


def _not_restored(rank: _Rank, name: str) -> tuple[str, ...]:
    """The leaves that are restored neither by one measure nor by the other."""
    answers = (
        _missing(rank.killed.saved, rank.restored.restored, name),
        _missing(rank.whole.begins, rank.restored.begins, name),
    )
    return min((answer for answer in answers if answer is not None), key=len, default=())


def _missing(before: State | None, after: State | None, name: str) -> tuple[str, ...] | None:
    """The leaves that differ between two moments; None where one of them was not told."""
    expected = _leaves(before, name)
    return _differing(expected, _leaves(after, name)) if expected and after is not None else None


def _not_restored_text(rank: _Rank, name: str, missing: Sequence[str]) -> str:
    known = _leaves(rank.killed.saved, name) or _leaves(rank.whole.begins, name)
    for state in (rank.restored.begins, rank.restored.restored):
        if state is not None and name in state:
            return f"not restored: {name}{_which(missing, known)}"
    return f"not restored: {name}: not there after the restore"


def _which(missing: Sequence[str], known: Leaves) -> str:
    """Which of several parts, in words; nothing where there is but one without a name."""
    if len(known) == 1 and not missing[0]:
        return ""
    if len(known) == 1:
        return f" ({missing[0]})"
    return f": {len(missing)} of {len(known)} differ, the first is {missing[0]!r}"


def _leaves(state: State | None, name: str) -> Leaves:
    group = (state or {}).get(name)
    return {} if group is None else group["leaves"]


def _differing(expected: Leaves, found: Leaves) -> tuple[str, ...]:
    return tuple(leaf for leaf, digest in expected.items() if found.get(leaf) != digest)
