"""Says how the pull of an image goes: at its start, now and then, and at its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

Tell = Callable[[str], object]

_EVERY_S = 15.0
_ARRIVED = ("Download complete", "Pull complete", "Verifying Checksum", "Extracting")


def silent(text: str) -> None:
    """Say nothing."""


class PullProgress:
    """Reads the engine's lines about one pull. `size` is what the manifest says, in bytes."""

    def __init__(
        self, label: str, size: int, tell: Tell, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Say that the pull begins."""
        self._label, self._size, self._tell, self._clock = label, size, tell, clock
        self._began = self._told = clock()
        self._layers: dict[str, tuple[int, int]] = {}
        tell(f"pulling {label} ({_megabytes(size)} MB)...")

    def saw(self, line: Mapping[str, Any]) -> None:
        """Take one line of the engine's."""
        layer, status = str(line.get("id") or ""), str(line.get("status") or "")
        detail = line.get("progressDetail") or {}
        if status == "Downloading" and "current" in detail:
            self._layers[layer] = (int(detail["current"]), int(detail.get("total") or 0))
        elif status in _ARRIVED and layer in self._layers:
            here, whole = self._layers[layer]
            self._layers[layer] = (max(here, whole), whole)
        now = self._clock()
        if now - self._told >= _EVERY_S:
            self._told = now
            here = sum(done for done, _ in self._layers.values())
            what = "unpacking" if status == "Extracting" else "pulling"
            self._tell(
                f"{what} {self._label}: {_megabytes(here)} of {_megabytes(self._size)} MB "
                f"downloaded, {now - self._began:.0f} s"
            )

    def done(self) -> None:
        """Say that it is here."""
        self._tell(f"pulled {self._label} in {self._clock() - self._began:.1f} s")


def _megabytes(size: int) -> int:
    return round(size / 1e6)
