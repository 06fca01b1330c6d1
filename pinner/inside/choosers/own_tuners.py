"""Packages with tuners of their own, derived from Triton's, that a room here holds by itself.

A tuner that is derived from Triton's `Autotuner` but never runs its `run` is no concern of the
Triton chooser; it says so, and a lock without it is not complete, unless the package is named here.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing `typing` would double the cost of starting
if TYPE_CHECKING:
    from typing import Set

_held: Set[str] = set()


def hold(package: str) -> None:
    """Whatever tuners of `package` take is recorded and forced by a room of its own."""
    _held.add(package)


def is_held(kind: type) -> bool:
    """Whether a tuner of this class belongs to such a package."""
    return kind.__module__.partition(".")[0] in _held
