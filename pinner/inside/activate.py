"""Begin a session from inside a program that started by itself, before it imports torch."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from . import ledger, pins, session, start
from .faults import PinnerError

if TYPE_CHECKING:
    from typing import Any, Dict

_TOO_LATE = ("torch", "triton")


def is_enforced_already(lock: str) -> bool:
    """Whether this process needs no session of its own to enforce the lock with digest `lock`.

    True under `pinner enforce` with that lock; also while pinner records or validates, because
    the lock is being made then. Raises PinnerError where another lock is enforced.
    """
    active = session.current()
    if active is None:
        return False
    if not active.enforcing:
        return True
    current = pins.load()
    if current.lock == lock or not current.sealed:
        return True
    raise PinnerError(
        "this process enforces the lock %s already, and pinner.enforce() names %s: start the "
        "program with one of them only" % (current.lock, lock)
    )


def refuse_if_too_late() -> None:
    """Raise PinnerError where torch or triton was imported: their choices may be made already."""
    found = [name for name in _TOO_LATE if name in sys.modules]
    if found:
        raise PinnerError(
            "pinner.enforce() must be called before torch and triton are imported, and %s was: "
            "move the call to the top of the program, or start it with `pinner enforce -- …`"
            % " and ".join(found)
        )


def begin(folder: str) -> None:
    """Begin the session in `folder`, here and in every process started from here on."""
    mode = session.read(folder, None).mode
    inject = os.path.join(os.path.dirname(os.path.abspath(__file__)), "inject")
    hidden = os.environ.get("PYTHONPATH")
    os.environ["PINNER_SESSION"] = folder
    os.environ["PINNER_MODE"] = mode
    os.environ["PYTHONPATH"] = inject + os.pathsep + hidden if hidden else inject
    start.begin(os.environ)


def enforce_pins(path: str) -> None:
    """Enforce a compiled lock. Raises PinnerError where it is too late, or torn, or another's."""
    loaded = pins.read(path)
    if is_enforced_already(loaded.lock):
        return
    refuse_if_too_late()
    begin(_private_session(path))


def _private_session(path: str) -> str:
    """Make a session folder that lives as long as this process, and return it."""
    import shutil
    import tempfile

    folder = tempfile.mkdtemp(prefix="pinner-enforce-")
    for name in ("ledger", "faults"):
        os.mkdir(os.path.join(folder, name))
    with open(os.path.join(folder, "session.json"), "w", encoding="utf-8") as out:
        out.write(json.dumps(_settings(path)) + "\n")
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    import atexit

    atexit.register(remove)  # before the ledger's own, so after it at exit
    return folder


def _settings(path: str) -> Dict[str, Any]:
    return {
        "version": session.VERSION,
        "mode": "enforce",
        "on_miss": "fallback",
        "pins": path,
        "taps": [],
        "evidence": False,
        "allow": [],
        "replay": False,
        "run": "enforce",
        "hidden_pythonpath": os.environ.get("PYTHONPATH"),
        "locked_policy": {} if "profile" in pins.read(path).policy else None,
        "created": ledger.now(),
    }
