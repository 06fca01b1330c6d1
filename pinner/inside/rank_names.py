"""How the ranks of a job are called in texts."""

from __future__ import annotations

TYPE_CHECKING = False  # importing `typing` would double the cost of starting
if TYPE_CHECKING:
    from typing import List, Sequence


def in_words(ranks: Sequence[int]) -> str:
    """``rank 2`` or ``ranks 0-1, 3``. ranks: one or more, rising."""
    spans: List[List[int]] = []
    for rank in ranks:
        if spans and spans[-1][1] == rank - 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    texts = ["%d" % a if a == b else "%d-%d" % (a, b) for a, b in spans]
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(texts)
