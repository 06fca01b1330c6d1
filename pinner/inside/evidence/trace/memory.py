"""What is known of the memory behind tensors: a number for each storage, and what is not complete.

Memory that nothing has written yet holds what was left there, and the target of an asynchronous
copy holds a part of what will be there: a digest of either differs from run to run.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Set, Tuple

MOST_PIECES = 4096  # of one tensor with gaps that are followed one by one


class _Unwritten:
    """A storage that was made without values, and which of its bytes were written since."""

    __slots__ = ("places", "size", "spans")

    def __init__(self, size: int) -> None:
        self.size = size
        self.spans: List[Tuple[int, int]] = []
        self.places: Set[Any] = set()

    def write(self, tensor: Any) -> bool:
        """Note that all of `tensor` was written; True where nothing of the storage is left."""
        found = _spans(tensor)
        if found is None:
            self.places.add(_place(tensor))
            return False
        merged: List[Tuple[int, int]] = []
        for low, high in sorted(self.spans + found):
            if merged and low <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
            else:
                merged.append((low, high))
        self.spans = merged
        return bool(merged and merged[0][0] <= 0 and merged[0][1] >= self.size)

    def covers(self, tensor: Any) -> bool:
        """Whether all of `tensor` was written."""
        if tensor.numel() == 0 or _place(tensor) in self.places:
            return True
        found = _spans(tensor)
        return found is not None and all(map(self._holds, found))

    def _holds(self, span: Tuple[int, int]) -> bool:
        at = bisect.bisect_right(self.spans, (span[0], 1 << 62)) - 1
        return at >= 0 and span[1] <= self.spans[at][1]


class Memory:
    """The storages of one process. A number is never given twice, though addresses are reused."""

    def __init__(self) -> None:
        self._numbers: Dict[int, int] = {}
        self._next = 0
        self.unwritten: Dict[int, _Unwritten] = {}
        self.flying: Dict[int, Callable[[], bool]] = {}

    def number(self, tensor: Any) -> int:
        """The number of a tensor's storage; -1 where it has none (sparse and wrapped tensors)."""
        try:
            address = tensor.untyped_storage()._cdata
        except (NotImplementedError, RuntimeError, AttributeError):
            return -1
        number = self._numbers.get(address)
        return self._new(address) if number is None else number

    def fresh(self, tensor: Any, known: Set[int]) -> int:
        """The number of what an operation returned; a new one unless the storage is in `known`."""
        try:
            address = tensor.untyped_storage()._cdata
        except (NotImplementedError, RuntimeError, AttributeError):
            return -1
        number = self._numbers.get(address)
        if number is None:
            return self._new(address)
        if number in known:
            return number
        self.unwritten.pop(number, None)
        self.flying.pop(number, None)
        return self._new(address)

    def made_empty(self, tensor: Any, number: int) -> None:
        """Nothing has written to this storage yet."""
        if number >= 0 and tensor.numel():
            self.unwritten[number] = _Unwritten(tensor.untyped_storage().nbytes())

    def written(self, tensor: Any, number: int) -> None:
        """All of `tensor` was written."""
        storage = self.unwritten.get(number)
        if storage is not None and storage.write(tensor):
            del self.unwritten[number]

    def is_unwritten(self, tensor: Any, number: int) -> bool:
        """Whether `tensor` holds memory that nothing has written."""
        storage = self.unwritten.get(number)
        return storage is not None and not storage.covers(tensor)

    def never_complete(self, number: int) -> None:
        """Something writes to this storage at times that nobody tells us."""
        self.flying[number] = _never

    def is_flying(self, number: int) -> bool:
        """Whether something may still be writing to this storage."""
        done = self.flying.get(number)
        if done is None:
            return False
        if done():
            self.flying.pop(number, None)
            return False
        return True

    def _new(self, address: int) -> int:
        number = self._next
        self._next += 1
        self._numbers[address] = number
        return number


def _never() -> bool:
    return False


def _spans(tensor: Any) -> Optional[List[Tuple[int, int]]]:
    """The bytes of a tensor as (first, behind the last) of each piece without gaps; None where
    these are too many.
    """
    if tensor.numel() == 0:
        return []
    axes = sorted((step, size) for size, step in zip(tensor.shape, tensor.stride()) if size > 1)
    length, pieces = 1, [int(tensor.storage_offset())]
    for step, size in axes:
        if step <= length:  # no gap; 0 repeats an element
            length += (size - 1) * step
            continue
        if len(pieces) * size > MOST_PIECES:
            return None
        pieces = [start + at * step for start in pieces for at in range(size)]
    item = tensor.element_size()
    return [(start * item, (start + length) * item) for start in pieces]


def _place(tensor: Any) -> Any:
    return tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype
