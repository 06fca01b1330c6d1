"""Walks two logs of one rank side by side: what is equal is skipped, what differs is kept first.

Memory does not grow with the logs: blocks of equal bytes are skipped unread, and of a step that
differs no more than a window of events is held. A longer step is read twice.
"""

from __future__ import annotations

import re
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from pinner.compare.trace import (
    Cursor,
    Event,
    Group,
    Log,
    Scope,
    Tensor,
    TraceError,
    parse,
    tensors,
)
from pinner.compare.trace_align import LIMITS, Limits, common_groups, join

KEPT = 6  # mismatches that are kept, from the first on; the rest is counted
_EXAMPLES = 3
_DOUBTS = 1 << 16

# What says nothing about bits: the running number of an event, and the number of a storage.
_ORDER = re.compile(rb'"q": ?\d+')
_NUMBERS = re.compile(rb'(?<=[l"],)\d+(?=\])|"q": ?\d+')
_NO_DIGEST = b',null,"'  # between the path of a tensor and its dtype
_UNINITIALISED = re.compile(rb'"uninitialised": ?true')
_OWN_SEED = ("python", "numpy")  # generators that begin with what the system gives; torch's do not
_RUN_OF_EQUAL_LINES = 32
_STREAMS = 256  # so many streams may be fingerprinted in a row


def aten(names: str) -> frozenset[str]:
    """Base names of torch's own operations, from words."""
    return frozenset("aten." + name for name in names.split())


def base_name(name: str) -> str:
    """An operation without its overload: `aten.mm.default` is `aten.mm`."""
    return ".".join(name.split(".")[:2]) if name.startswith("aten.") else name


# What stood in the tensor that these write over does not matter.
_OVERWRITE = aten(
    "bernoulli_ cauchy_ copy_ exponential_ fill_ geometric_ log_normal_ normal_ random_ set_ "
    "uniform_ zero_"
)


@dataclass(frozen=True)
class TensorDiff:
    """One tensor of a pair of events that differs. first, second: as the two logs have it."""

    side: str  # "input" or "output"
    first: Tensor
    second: Tensor

    @property
    def path(self) -> str:
        return self.first.path


@dataclass(frozen=True)
class Mismatch:
    """A pair of events that differs.

    inputs: how many tensors it read; what it only writes over is none. hashed: whether both runs
    hashed all of them. unwritten: paths of inputs that were left out because nothing had been
    written there.
    """

    first: Event
    second: Event
    ins: tuple[TensorDiff, ...]
    outs: tuple[TensorDiff, ...]
    inputs: int = 1
    hashed: bool = True
    unwritten: tuple[str, ...] = ()

    @property
    def diffs(self) -> tuple[TensorDiff, ...]:
        return self.ins + self.outs


@dataclass
class Walk:
    """What a walk found. Pairs of numbers are of the first and the second log.

    events: pairs. hashed: whether one of them had a digest. mismatches: the first few in execution
    order; differing: how many there are. only: events without a partner; tail: of these, events
    after the other log's end, tail_step: the step of the last of them. steps: first and last step
    that both have. unseeded: random number generators whose states never were the same. unhashed:
    tensors without a digest.
    """

    events: int = 0
    hashed: bool = False
    mismatches: list[Mismatch] = field(default_factory=list)
    differing: int = 0
    only: list[int] = field(default_factory=lambda: [0, 0])
    examples: tuple[list[Event], list[Event]] = field(default_factory=lambda: ([], []))
    tail: list[int] = field(default_factory=lambda: [0, 0])
    tail_step: list[int | None] = field(default_factory=lambda: [None, None])
    ended: list[bool] = field(default_factory=lambda: [False, False])
    steps: tuple[int, int] | None = None
    unseeded: list[str] = field(default_factory=list)
    unhashed: list[int] = field(default_factory=lambda: [0, 0])


def walk(first: Log, second: Log, scope: Scope | None = None, limits: Limits = LIMITS) -> Walk:
    """Compares two logs. Raises `TraceError` where one is damaged."""
    walker = _Walker(first.cursor(scope), second.cursor(scope), limits)
    try:
        return walker.run()
    finally:
        walker.close()


class _Walker:
    def __init__(self, first: Cursor, second: Cursor, limits: Limits) -> None:
        self._cursors = (first, second)
        self._limits = limits
        self._doubts = (Doubts(first.log), Doubts(second.log))
        self._counted = [0, 0]
        self._last = b""  # line that was skipped
        self.found = Walk()

    def close(self) -> None:
        for cursor in self._cursors:
            cursor.close()

    def run(self) -> Walk:
        while True:
            self._skip_equal()
            self._step_of(self._last)
            a, b = self._cursors
            if a.ahead is None or b.ahead is None:
                break
            self._differing_step(_step_ahead(a), _step_ahead(b))
        for side, cursor in enumerate(self._cursors):
            self._tail(side, cursor)
            self._whole(side, cursor)
        return self.found

    def _tail(self, side: int, cursor: Cursor) -> None:
        if cursor.ahead is not None and len(self.found.examples[side]) < _EXAMPLES:
            self.found.examples[side].append(cursor.event())
        count, self.found.tail_step[side] = cursor.rest()
        self._counted[side] += count
        self.found.tail[side] = count
        self.found.only[side] += count

    def _whole(self, side: int, cursor: Cursor) -> None:
        declared, counted = cursor.declared, self._counted[side]
        self.found.ended[side] = declared is not None
        if declared is not None and cursor.scope is None and declared != counted:
            raise TraceError(
                f"{cursor.log.path}:{cursor.line}: expected the {declared} events that the last "
                f"line declares, found {counted}: lines were lost; trace the run again"
            )

    def _skip_equal(self) -> None:
        """Goes on as long as both logs say the same, but for the numbers of events and storages."""
        a, b = self._cursors
        same = _RUN_OF_EQUAL_LINES
        while a.ahead is not None and b.ahead is not None:
            if same >= _RUN_OF_EQUAL_LINES:
                self._skip_blocks()
                same = 0
                continue
            if a.ahead == b.ahead:
                same += 1
            elif not _alike(a.ahead, b.ahead):
                return
            self._equal(a.ahead, b.ahead, 1)
            a.advance()
            b.advance()

    def _skip_blocks(self) -> None:
        a, b = self._cursors
        if a.scope is not None:
            return
        while a.ahead is not None and (block := a.block()):
            if block != b.block():
                return
            self._equal(block, block, block.count(b"\n"))
            a.skip(block)
            b.skip(block)

    def _equal(self, data: bytes, other: bytes, events: int) -> None:
        """Takes note of lines that need no comparison."""
        for side, lines in enumerate((data, other)):
            self._counted[side] += events
            self.found.unhashed[side] += lines.count(_NO_DIGEST)
            if _UNINITIALISED.search(lines):
                self._doubts[side].look(lines, self._cursors[side].place)
        self.found.events += events
        if not self.found.hashed:
            self.found.hashed = any(map(_hashed, _events(data)))
        if self.found.steps is None:
            self._step_of(data[: data.find(b"\n") + 1])
        self._last = data[data.rfind(b"\n", 0, -1) + 1 :]

    def _step_of(self, line: bytes) -> None:
        for event in _events(line):
            self._step(event.step)

    def _step(self, step: int) -> None:
        first, last = self.found.steps or (step, step)
        self.found.steps = (min(first, step), max(last, step))

    def _differing_step(self, first: int, second: int) -> None:
        """Aligns what is left of a step; a step that only one side has stays alone."""
        a, b = self._cursors
        here = self._block(0, a, first) if first <= second else None
        there = self._block(1, b, second) if second <= first else None
        if here is not None and there is not None:
            self._step(first)
            stable = common_groups(here.groups, there.groups)
            join(here, there, stable, self._take, self._limits)
            return
        for event in here or ():
            self._take(event, None)
        for event in there or ():
            self._take(None, event)

    def _block(self, side: int, cursor: Cursor, step: int) -> _Block:
        block = _Block(cursor, step, self._limits.window, self._doubts[side])
        self._counted[side] += block.size
        self.found.unhashed[side] += block.unhashed
        return block

    def _take(self, first: Event | None, second: Event | None) -> None:
        found = self.found
        if first is None or second is None:
            side, event = (0, first) if first is not None else (1, second)
            assert event is not None
            found.only[side] += 1
            if len(found.examples[side]) < _EXAMPLES:
                found.examples[side].append(event)
            return
        found.events += 1
        found.hashed = found.hashed or _hashed(first)
        late = len(found.mismatches) == KEPT and first.line > found.mismatches[-1].first.line
        if late and _plainly_differ(first, second):
            found.differing += 1
            return
        mismatch = self._mismatch(first, second)
        if mismatch is None or self._never_seeded(first):
            return
        found.differing += 1
        insort(found.mismatches, mismatch, key=lambda m: m.first.line)
        del found.mismatches[KEPT:]

    def _never_seeded(self, event: Event) -> bool:
        """Whether a state differs because the program never set it, so that each process has its
        own. Where such a generator is used, what it gave differs too."""
        if event.kind != "random" or event.name not in _OWN_SEED:
            return False
        if event.name not in self.found.unseeded:
            earlier = _mentioning(self._cursors[0].log, (), [f'"n":"{event.name}"'], event.line)
            if any(other.kind == "random" for other, _ in earlier):
                return False
            self.found.unseeded.append(event.name)
        return True

    def _mismatch(self, first: Event, second: Event) -> Mismatch | None:
        if first.ins == second.ins and first.outs == second.outs:
            return None
        a, b = self._cursors
        found = compare_pair(first, second, a.log, b.log)
        if found is None or not found.ins:
            return found
        unwritten = [diff for diff in found.ins if self._unwritten(diff, first, second)]
        if not unwritten:
            return found
        ins = tuple(diff for diff in found.ins if diff not in unwritten)
        if not ins and not found.outs:
            return None
        paths = tuple(diff.path for diff in unwritten)
        return replace(found, ins=ins, unwritten=paths)

    def _unwritten(self, diff: TensorDiff, first: Event, second: Event) -> bool:
        here, there = self._doubts
        return here.unwritten(diff.first.storage, first) or there.unwritten(
            diff.second.storage, second
        )


def _alike(first: bytes, second: bytes) -> bool:
    """Whether two lines say the same of the same event."""
    if _ORDER.sub(b"", first, 1) == _ORDER.sub(b"", second, 1):
        return True
    return _NUMBERS.sub(b"", first) == _NUMBERS.sub(b"", second)


def compare_pair(first: Event, second: Event, log: Log, other: Log) -> Mismatch | None:
    """What differs between an event and its partner; None where all that was hashed is equal."""
    overwritten = _overwritten(first) | _overwritten(second)
    here, there = (
        {path: t for path, t in tensors(event, event.ins, of).items() if path not in overwritten}
        for event, of in ((first, log), (second, other))
    )
    ins, hashed = _compare("input", here, there)
    if first.label != second.label and not _same_arguments(first, second):
        ins = ()
    outs, _ = _compare(
        "output", tensors(first, first.outs, log), tensors(second, second.outs, other)
    )
    if unfinished(first) or unfinished(second):
        outs = tuple(diff for diff in outs if _layout(diff.first) != _layout(diff.second))
    return Mismatch(first, second, ins, outs, len(here), hashed) if ins or outs else None


def _same_arguments(first: Event, second: Event) -> bool:
    """Whether an operation under another name takes its tensors as the first one does.

    Not where it was taken apart, or takes the same tensors in another order.
    """
    paths = [sorted(str(row[0]) for row in event.ins) for event in (first, second)]
    digests = [sorted(str(row[1]) for row in event.ins) for event in (first, second)]
    return paths[0] == paths[1] and digests[0] != digests[1]


def _plainly_differ(first: Event, second: Event) -> bool:
    """Whether an output differs that both hashed when it was there: a mismatch in any case."""
    if unfinished(first) or unfinished(second):
        return False
    return any(
        a[0] == b[0] and a[1] != b[1] and a[1] is not None and b[1] is not None
        for a, b in zip(first.outs, second.outs, strict=False)
        if len(a) > 1 and len(b) > 1
    )


def _compare(
    side: str, first: dict[str, Tensor], second: dict[str, Tensor]
) -> tuple[tuple[TensorDiff, ...], bool]:
    """What differs, and whether all that both have was hashed."""
    found = []
    hashed = True
    for path, tensor in first.items():
        other = second.get(path)
        if other is None:
            continue
        comparable = tensor.digest is not None and other.digest is not None
        hashed = hashed and comparable
        if comparable and tensor.digest == other.digest:
            continue
        if comparable or _layout(tensor) != _layout(other):
            found.append(TensorDiff(side, tensor, other))
    return tuple(found), hashed


def _layout(tensor: Tensor) -> tuple[str, tuple[int, ...]]:
    return tensor.dtype, tensor.shape


def unfinished(event: Event) -> bool:
    """Whether its outputs were hashed before they were there.

    A writer that leaves out the digests of such tensors has said so: what it hashed can be trusted.
    """
    if not (event.extra.get("uninitialised") or event.extra.get("async")):
        return False
    return all(row[1] is not None for row in (*event.ins, *event.outs) if len(row) > 1)


def _overwritten(event: Event) -> set[str]:
    if base_name(event.name) not in _OVERWRITE:
        return set()
    writes = event.extra.get("writes")
    return set(map(str, writes)) if isinstance(writes, list) and writes else {"0"}


def _hashed(event: Event) -> bool:
    if unfinished(event):
        return False
    return any(len(row) > 1 and row[1] is not None for row in (*event.ins, *event.outs))


def _events(data: bytes) -> Iterator[Event]:
    for line in data.splitlines():
        event = parse(line, 0)
        if event is not None:
            yield event


def _step_ahead(cursor: Cursor) -> int:
    """The step that goes on at a cursor. Streams are numbered as the program likes."""
    event = cursor.event()
    if event.kind != "step":
        return event.step
    again = cursor.again(cursor.place)
    try:
        ahead = (other for _, other in zip(range(_STREAMS), again.events(), strict=False))
        return next((other.step for other in ahead if other.kind != "step"), event.step)
    finally:
        again.close()


class _Block:
    """What is left of one step: its labels, and a way to go through its events."""

    def __init__(self, cursor: Cursor, step: int, window: int, doubts: Doubts) -> None:
        self.groups: Counter[Group] = Counter()
        self.size = 0
        self.unhashed = 0
        self._cursor = cursor
        self._place = cursor.place
        self._events: list[Event] | None = []
        streams = True
        while cursor.ahead is not None:
            event = cursor.event()
            if event.step != step and (event.kind != "step" or (streams and self.size)):
                break
            streams = streams and event.kind == "step"
            if event.extra.get("uninitialised"):
                doubts.add(event, cursor.place)
            self.size += 1
            self.unhashed += cursor.ahead.count(_NO_DIGEST)
            self.groups[event.group] += 1
            if self._events is not None:
                self._events.append(event)
                if self.size > window:
                    self._events = None
            cursor.advance()

    def __iter__(self) -> Iterator[Event]:
        if self._events is not None:
            yield from self._events
            return
        again = self._cursor.again(self._place)
        try:
            for _, event in zip(range(self.size), again.events(), strict=False):
                yield event
        finally:
            again.close()


@dataclass
class _Doubt:
    """One time that a storage was handed out. scanned: looked at up to there. written: the line."""

    line: int
    scanned: tuple[int, int]
    written: int | None = None


class Doubts:
    """Storages that were handed out uninitialised, until something is written there."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._found: dict[int, list[_Doubt]] = {}

    def add(self, event: Event, place: tuple[int, int]) -> None:
        """Takes note of what an event that stands at `place` handed out."""
        every = unfinished(event)
        for tensor in tensors(event, event.outs, self._log).values():
            if tensor.storage is not None and (every or tensor.digest is None):
                times = self._found.pop(tensor.storage, [])
                self._found[tensor.storage] = [*times[-3:], _Doubt(place[1], place)]
        while len(self._found) > _DOUBTS:
            del self._found[next(iter(self._found))]

    def look(self, lines: bytes, place: tuple[int, int]) -> None:
        """The same for all events in lines that begin at `place`."""
        offset, number = place
        for line in lines.splitlines(keepends=True):
            if _UNINITIALISED.search(line):
                for event in _events(line):
                    self.add(event, (offset, number))
            offset, number = offset + len(line), number + 1

    def unwritten(self, storage: int | None, event: Event) -> bool:
        """Whether nothing that was traced had written to a storage when an event read it."""
        if storage is None:
            return False
        times = [doubt for doubt in self._found.get(storage, ()) if doubt.line < event.line]
        if not times:
            return False
        doubt = times[-1]
        if doubt.written is None:
            self._scan(doubt, storage, event.line)
        return doubt.written is None or event.line <= doubt.written

    def _scan(self, doubt: _Doubt, storage: int, before: int) -> None:
        for found, place in _mentioning(self._log, {storage}, (), before, doubt.scanned):
            doubt.scanned = place
            if (
                place[1] > doubt.line
                and storage in written(found, self._log)
                and not unfinished(found)
            ):
                doubt.written = place[1]
                return


_VIEWS = aten(
    "view _unsafe_view reshape slice select t transpose permute expand squeeze unsqueeze detach "
    "alias as_strided split split_with_sizes chunk unbind narrow unfold diagonal movedim swapaxes "
    "flatten unflatten view_as real imag lift_fresh _reshape_alias expand_as mT mH T H"
)


def is_view(event: Event) -> bool:
    """Whether an event only looks at memory in another way, so that it can change no bit."""
    return bool(event.extra.get("view")) or base_name(event.name) in _VIEWS


def written(event: Event, log: Log) -> set[int]:
    """The storages that an event wrote to, as far as it says."""
    if is_view(event) or event.kind in ("step", "random"):
        return set()
    found = {t.storage for t in tensors(event, event.outs, log).values()}
    writes = event.extra.get("writes")
    if isinstance(writes, list):
        ins = tensors(event, event.ins, log)
        found |= {ins[path].storage for path in map(str, writes) if path in ins}
    return {storage for storage in found if storage is not None}


def _mentioning(
    log: Log,
    storages: Iterable[int],
    texts: Iterable[str],
    before: int,
    place: tuple[int, int] | None = None,
) -> Iterator[tuple[Event, tuple[int, int]]]:
    """Events before a line that name one of some storages or texts, and where they stand."""
    numbers = b"|".join(b"%d" % storage for storage in storages)
    marks = [rb'(?:null|"), ?(?:%s)\]' % numbers] if numbers else []
    marks += [re.escape(text.encode()) for text in texts]
    look = re.compile(b"|".join(marks)).search
    cursor = Cursor(log, None, place)
    try:
        while cursor.ahead is not None and cursor.line < before:
            if look(cursor.ahead):
                yield cursor.event(), cursor.place
            cursor.advance()
    finally:
        cursor.close()


def last_writer(
    log: Log, wanted: Iterable[Tensor], before: int, useful: Callable[[Event], bool]
) -> Event | None:
    """The last event before a line that wrote to one of some tensors.

    Where the log has no storage numbers: the last one that put out the same digest.
    """
    tensors_ = list(wanted)
    storages = {t.storage for t in tensors_ if t.storage is not None}
    digests = {t.digest for t in tensors_ if t.storage is None and t.digest is not None}
    if not storages and not digests:
        return None
    last = None
    for event, _ in _mentioning(log, storages, digests, before):
        if not useful(event):
            continue
        outs = {row[1] for row in event.outs if len(row) > 1}
        if storages & written(event, log) or (digests & outs and not is_view(event)):
            last = event
    return last
