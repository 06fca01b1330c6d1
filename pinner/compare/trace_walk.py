"""Walks two logs of one rank side by side: what is equal is skipped, what differs is kept first.

Memory does not grow with the logs: blocks of equal bytes are skipped unread, and of a step that
differs no more than a window of events is held. A longer step is read twice.
"""

from __future__ import annotations

import re
from bisect import insort
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from pinner.compare.trace import Cursor, Event, Group, Log, Scope, TraceError, events_in
from pinner.compare.trace_align import LIMITS, Limits, common_groups, join
from pinner.compare.trace_choices import Choice, choice_of
from pinner.compare.trace_pair import Mismatch, TensorDiff, compare_pair, has_digest, plainly_differ
from pinner.compare.trace_writers import Doubts, mentioning

KEPT = 6  # mismatches that are kept, from the first on; the rest is counted
_EXAMPLES = 3
# What says nothing about bits: the running number of an event, and the number of a storage.
_ORDER = re.compile(rb'"q": ?\d+')
_NUMBERS = re.compile(rb'(?<=[l"],)\d+(?=\])|"q": ?\d+')
_NO_DIGEST = b',null,"'  # between the path of a tensor and its dtype
# Generators that begin with what the system gives; those of torch's GPUs begin with a number of its
# own (2.4 to 2.14).
_OWN_SEED = ("python", "numpy", "torch.cpu")
_RUN_OF_EQUAL_LINES = 32
_STREAMS = 256  # so many streams may be fingerprinted in a row


@dataclass
class Walk:
    """What a walk found. Pairs of numbers are of the first and the second log.

    events: pairs. hashed: whether one of them had a digest. mismatches: the first few in execution
    order; differing: how many there are. only: events without a partner; tail: of these, events
    after the other log's end, tail_step: the step of the last of them. steps: first and last step
    that both have. unseeded: random number generators whose states never were the same. unhashed:
    tensors without a digest. choices: the first few kernels that a library computed by another
    algorithm, in execution order; chosen: how many there are.
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
    choices: list[Choice] = field(default_factory=list)
    chosen: int = 0


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
            if self._doubts[side].concerned(lines):
                self._doubts[side].look(lines, self._cursors[side].place)
        self.found.events += events
        if not self.found.hashed:
            self.found.hashed = any(map(has_digest, events_in(data)))
        if self.found.steps is None:
            self._step_of(data[: data.find(b"\n") + 1])
        self._last = data[data.rfind(b"\n", 0, -1) + 1 :]

    def _step_of(self, line: bytes) -> None:
        for event in events_in(line):
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
        found.hashed = found.hashed or has_digest(first)
        self._choice(first, second)
        late = len(found.mismatches) == KEPT and first.line > found.mismatches[-1].first.line
        if late and plainly_differ(first, second):
            found.differing += 1
            return
        mismatch = self._mismatch(first, second)
        if mismatch is None or self._never_seeded(first):
            return
        found.differing += 1
        insort(found.mismatches, mismatch, key=lambda m: m.first.line)
        del found.mismatches[KEPT:]

    def _choice(self, first: Event, second: Event) -> None:
        choice = choice_of(first, second)
        if choice is None:
            return
        self.found.chosen += 1
        insort(self.found.choices, choice, key=lambda each: each.first.line)
        del self.found.choices[KEPT:]

    def _never_seeded(self, event: Event) -> bool:
        """Whether a state differs because the program never set it, so that each process has its
        own. Where such a generator is used, what it gave differs too."""
        if event.kind != "random" or event.name not in _OWN_SEED:
            return False
        if event.name not in self.found.unseeded:
            earlier = mentioning(self._cursors[0].log, (), [f'"n":"{event.name}"'], event.line)
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
