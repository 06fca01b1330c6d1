"""nh128 in plain Python, written from docs/digest.md alone: what every other form is held to."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

WRAP = 2**64
HALF = 2**32


def keys() -> list[int]:
    """K[0] … K[66]."""
    found, state = [], 0
    for _ in range(67):
        state = (state + 0x9E3779B97F4A7C15) % WRAP
        z = state
        z = (z ^ z // 2**30) * 0xBF58476D1CE4E5B9 % WRAP
        z = (z ^ z // 2**27) * 0x94D049BB133111EB % WRAP
        found.append(z ^ z // 2**31)
    return found


def sums(data: bytes) -> tuple[int, int]:
    """A and B of some bytes."""
    key = keys()
    columns: dict[int, list[int]] = {}
    for i in range((len(data) + 7) // 8):
        word = int.from_bytes(data[8 * i : 8 * i + 8].ljust(8, b"\0"), "little")
        row = i % 512 // 8
        column = columns.setdefault(i // 512 * 8 + i % 8, [0, 0, 0, 0])
        for lane in range(4):
            k = key[row + lane]
            low = (word % HALF + k % HALF) % HALF
            high = (word // HALF + k // HALF) % HALF
            column[lane] = (column[lane] + low * high) % WRAP
    first = second = 0
    for number, lanes in columns.items():
        a = (number + 1) * 0x9E3779B97F4A7C15 % WRAP
        b = (number + 1) * 0xD1B54A32D192ED03 % WRAP
        for lane in lanes:
            a = step(a, lane, 0xBF58476D1CE4E5B9)
        for lane in reversed(lanes):
            b = step(b, lane, 0xFF51AFD7ED558CCD)
        a = a * 0x94D049BB133111EB % WRAP
        b = b * 0xC4CEB9FE1A85EC53 % WRAP
        first = (first + (a ^ a // HALF)) % WRAP
        second = (second + (b ^ b // HALF)) % WRAP
    return first, second


def step(h: int, s: int, m: int) -> int:
    """One step of the mixing."""
    h = h ^ s
    h = h ^ h // HALF
    h = h * m % WRAP
    return h ^ h // 2**29


def digest(dtype: str, shape: Iterable[int], data: bytes) -> str:
    """The digest of an array's bytes."""
    header = f"nh128 {dtype}[{','.join(map(str, shape))}]".encode() + b"\0"
    a, b = sums(data)
    body = a.to_bytes(8, "little") + b.to_bytes(8, "little")
    return "nh128:" + hashlib.sha256(header + body).hexdigest()[:32]
