"""Which bisection by hand is worked on in a folder, so that it need not be named each time."""

from __future__ import annotations

from pathlib import Path

from pinner.durable import replace_text
from stackbisect import journal
from stackbisect.errors import UsageError

_FILE = ".by-hand"


def name(root: Path) -> str:
    """The name of the bisection by hand that is worked on in this folder. Raises UsageError."""
    try:
        found = (root / _FILE).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        found = ""
    if not found or not journal.exists(root / found):
        raise UsageError(
            "no bisection by hand is under way here: begin one with `stackbisect start`, or name "
            "one with --name"
        )
    return found


def choose(root: Path, wanted: str | None) -> None:
    """Remember which one is worked on; None: none is."""
    if wanted is None:
        (root / _FILE).unlink(missing_ok=True)
        return
    replace_text(root / _FILE, wanted + "\n")
