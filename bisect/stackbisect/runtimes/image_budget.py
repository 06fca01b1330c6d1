"""Which pulled images must go so that a bisection stays within a number of bytes.

Only images that the bisection pulled itself are counted and removed: what was on the machine before
belongs to somebody else. The list is kept in a file, so a resumed bisection knows what it pulled.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from pinner.durable import replace_text


@dataclass(frozen=True)
class Pulled:
    """One image that was pulled: bytes on disk, and when it was used last (seconds)."""

    size: int
    used: float


def too_many(images: Mapping[str, Pulled], budget: int, in_use: Collection[str]) -> list[str]:
    """Return the references to remove, least recently used first; never one that is in use.

    Layers that images share are counted for each: the sum is an upper bound, so the disk is never
    fuller than the budget says.
    """
    total = sum(image.size for image in images.values())
    found = []
    for reference in sorted(images, key=lambda name: images[name].used):
        if total <= budget:
            break
        if reference not in in_use:
            total -= images[reference].size
            found.append(reference)
    return found


def load(path: Path) -> dict[str, Pulled]:
    """Read the list; an absent or damaged one is empty (its images then stay)."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        return {name: Pulled(int(size), float(used)) for name, (size, used) in value.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def save(path: Path, images: Mapping[str, Pulled]) -> None:
    """Write the list."""
    value = {name: [image.size, image.used] for name, image in sorted(images.items())}
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, json.dumps(value, indent=1) + "\n")
