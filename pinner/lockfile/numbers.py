"""A growing set of process numbers that stays small where neighbours are in it together."""

from __future__ import annotations

from array import array
from collections.abc import Iterator


class Numbers:
    """Numbers that come in rising order, kept as spans.

    The processes of a run are numbered as their ledgers are read. What all of ten thousand ranks
    agree on is one span; what they disagree on takes eight bytes a rank at most.
    """

    __slots__ = ("_ends",)

    def __init__(self) -> None:
        self._ends = array("I")

    def add(self, number: int) -> None:
        """One more; the last one again changes nothing. Numbers never fall."""
        ends = self._ends
        if ends and number <= ends[-1]:
            return
        if ends and number == ends[-1] + 1:
            ends[-1] = number
        else:
            ends.extend((number, number))

    @property
    def spans(self) -> int:
        """How many spans of neighbours there are: what it costs."""
        return len(self._ends) // 2

    def __iter__(self) -> Iterator[int]:
        for place in range(0, len(self._ends), 2):
            yield from range(self._ends[place], self._ends[place + 1] + 1)

    def __len__(self) -> int:
        firsts, lasts = self._ends[::2], self._ends[1::2]
        return sum(lasts) - sum(firsts) + len(firsts)
