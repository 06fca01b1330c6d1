"""Looks through a log for who wrote to a tensor last, and whether anybody did."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from pinner.compare.trace import Cursor, Event, Log, Tensor, events_in, tensors
from pinner.compare.trace_pair import aten, base_name, unfinished

_DOUBTS = 1 << 16
_UNINITIALISED = re.compile(rb'"uninitialised": ?true')
_VIEWS = aten(
    "view _unsafe_view reshape slice select t transpose permute expand squeeze unsqueeze detach "
    "alias as_strided split split_with_sizes chunk unbind narrow unfold diagonal movedim swapaxes "
    "flatten unflatten view_as real imag lift_fresh _reshape_alias expand_as mT mH T H"
)

_COPIES = aten("clone contiguous copy copy_ cat stack lift_fresh_copy")


def is_trivial(event: Event) -> bool:
    """Whether an event puts out the bits it read, as views and copies do."""
    return is_view(event) or base_name(event.name) in _COPIES


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


def mentioning(
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
    for event, _ in mentioning(log, storages, digests, before):
        if not useful(event):
            continue
        outs = {row[1] for row in event.outs if len(row) > 1}
        if storages & written(event, log) or (digests & outs and not is_view(event)):
            last = event
    return last


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

    @staticmethod
    def concerned(lines: bytes) -> bool:
        """Whether `look` has to see these lines."""
        return _UNINITIALISED.search(lines) is not None

    def look(self, lines: bytes, place: tuple[int, int]) -> None:
        """The same for all events in lines that begin at `place`."""
        offset, number = place
        for line in lines.splitlines(keepends=True):
            if _UNINITIALISED.search(line):
                for event in events_in(line):
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
        for found, place in mentioning(self._log, {storage}, (), before, doubt.scanned):
            doubt.scanned = place
            if (
                place[1] > doubt.line
                and storage in written(found, self._log)
                and not unfinished(found)
            ):
                doubt.written = place[1]
                return
