"""Orders Debian package versions as dpkg does (deb-version(7))."""

from __future__ import annotations

import re
from typing import Any

_PARTS = re.compile(r"(\D*)(\d*)")


def order(version: str) -> tuple[Any, ...]:
    """A sort key: epoch, upstream version, revision."""
    epoch, colon, rest = version.partition(":")
    if not colon:
        epoch, rest = "0", version
    upstream, dash, revision = rest.rpartition("-")
    if not dash:
        upstream, revision = rest, "0"
    return int(epoch) if epoch.isdigit() else 0, _key(upstream), _key(revision)


def _key(text: str) -> tuple[tuple[tuple[int, ...], int], ...]:
    """Turns of non-digits and digits. A tilde sorts before the end, the end before letters."""
    pairs = _PARTS.findall(text)[:-1]  # the last match is always the empty end
    return (*((_letters(word), int(number or 0)) for word, number in pairs), (_letters(""), 0))


def _letters(word: str) -> tuple[int, ...]:
    return (*(_place(letter) for letter in word), 0)


def _place(letter: str) -> int:
    if letter == "~":
        return -1
    return ord(letter) if letter.isalpha() else ord(letter) + 256
