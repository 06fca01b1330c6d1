"""The lock's digest beside a checkpoint: resuming under another lock is refused.

Choices are part of what a run goes on from. Nothing is written unless a lock is enforced and the
program names the checkpoint's path; the digest then stands in PATH.pinner.json (PATH a file) or
PATH/.pinner.json (PATH a folder).
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from ... import faults, ledger, pins, session

if TYPE_CHECKING:
    from typing import Optional


def place(path: str) -> str:
    """Return the file beside the checkpoint at `path`."""
    return os.path.join(path, ".pinner.json") if os.path.isdir(path) else path + ".pinner.json"


def lock_in_force() -> Optional[str]:
    """Return the digest of the lock that this process enforces, or None.

    A process that asks takes part in the run, though it may decide nothing.
    """
    active = session.current()
    if active is None or active.pins is None or not active.enforcing:
        return None
    ledger.open_now()
    return pins.load().lock


def write(path: str) -> None:
    """Leave the digest of the lock in force beside the checkpoint."""
    lock = lock_in_force()
    if lock is None:
        return
    target = place(path)
    hidden = "%s.%d" % (target, os.getpid())
    with open(hidden, "w", encoding="utf-8") as out:
        out.write(json.dumps({"lock": lock}) + "\n")
    os.replace(hidden, target)  # every rank writes the same


def check(path: str) -> None:
    """Raise PinnerError where the checkpoint was saved under another lock than the one in force.

    A checkpoint that was saved under no lock, or that is restored under none, is not refused.
    """
    lock = lock_in_force()
    saved = None if lock is None else _read(place(path))
    if lock is None or saved is None or saved == lock:
        return
    text = (
        "the checkpoint %s was saved under the lock %s, and this run enforces %s: resume under "
        "that lock, or start without pinner if other bits are meant" % (path, saved, lock)
    )
    ledger.write(
        {"t": "problem", "kind": "invalid", "chooser": "resume", "kernel": "lock", "text": text},
        sync=True,
    )
    raise faults.PinnerError(text)


def _read(path: str) -> Optional[str]:
    try:
        with open(path, encoding="utf-8") as source:
            return str(json.loads(source.read())["lock"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise faults.PinnerError(
            "cannot read under which lock the checkpoint was saved: %s: %s" % (path, error)
        ) from None
