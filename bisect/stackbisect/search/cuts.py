"""Where to try next in what was not tried yet: so that the widest piece becomes as small as it can.

With one probe at a time a piece is halved. With k at a time it is cut into k + 1 parts; probes that
are under way count as cuts whose answer is still to come, so results may arrive in any order.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence


def pieces(untried: Sequence[int], running: Collection[int]) -> list[list[int]]:
    """What was not tried, split at the probes that are under way (these are in no piece)."""
    found: list[list[int]] = [[]]
    for each in untried:
        if each in running:
            found.append([])
        else:
            found[-1].append(each)
    return [piece for piece in found if piece]


def choose(between: Sequence[Sequence[int]], count: int) -> list[int]:
    """At most `count` points to try, evenly spread within each piece.

    Each further cut goes to the piece whose parts are widest, so the widest part in the end is as
    small as `count` cuts can make it.
    """
    shares = [0] * len(between)
    for _ in range(count):
        left = [p for p, piece in enumerate(between) if shares[p] < len(piece)]
        if not left:
            break
        widest = max(left, key=lambda p: _widest(len(between[p]), shares[p]))
        shares[widest] += 1
    return [
        point
        for piece, share in zip(between, shares, strict=True)
        for point in _evenly(piece, share)
    ]


def _widest(size: int, cuts: int) -> int:
    """The widest of the parts that `cuts` points leave of a piece."""
    return -(-(size - cuts) // (cuts + 1))


def _evenly(piece: Sequence[int], cuts: int) -> list[int]:
    """Points that leave parts of equal width, the wider ones (by one) last."""
    width, wider = divmod(len(piece) - cuts, cuts + 1)
    found, place = [], -1
    for part in range(cuts):
        place += width + (part >= cuts + 1 - wider) + 1
        found.append(piece[place])
    return found
