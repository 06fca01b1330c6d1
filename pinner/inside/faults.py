"""What can go wrong inside a user's process, and the one way to end it."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import NoReturn

REFUSED = 96
"""Exit code of a process that pinner ended: refused before, or instead of, unpinned work."""


class PinnerError(Exception):
    """A fault the user is meant to see: it says what was expected, found, and what to do."""


class StartFault(PinnerError):
    """The session cannot be used: its files are missing, torn, or of another version."""


class InvalidPin(PinnerError):
    """A locked choice cannot be forced here."""


class MissedPin(PinnerError):
    """A choice that is not in the lock was asked for, and the session wants an error then."""


class EvidenceError(PinnerError):
    """A value whose bits cannot be read exactly here."""


def describe(error: BaseException) -> str:
    """Return one line for `error`: its text alone for our own classes, else with its type."""
    text = " ".join(str(error).split())
    if isinstance(error, PinnerError) and text:
        return text
    name = type(error).__name__
    return "%s: %s" % (name, text) if text else name


def say(text: str) -> None:
    """Write one line to the process's standard error, past any buffer or replaced stream."""
    line = "pinner: %s\n" % " ".join(text.split())
    try:  # noqa: SIM105
        os.write(2, line.encode("utf-8", "backslashreplace"))
    except OSError:
        pass


def die(cause: str, code: int = REFUSED) -> NoReturn:
    """End this process at once: one line on stderr, a fault file for the launcher, `code`.

    `os._exit` because nothing of the user's may run any more: an `except` clause or an exit
    handler that goes on would be the unpinned work that must not happen.
    """
    _flush()
    say(cause)
    record(cause)
    os._exit(code)


def record(cause: str) -> None:
    """Leave `cause` in the session's `faults/` for the launcher, where that can be written."""
    folder = os.environ.get("PINNER_SESSION")
    if not folder:
        return
    import json

    fault = {
        "cause": cause,
        "host": os.uname().nodename,
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "argv": list(getattr(sys, "argv", [])),
        "executable": sys.executable,
        "time": time.time(),
    }
    name = "%s-%d-%s.json" % (os.uname().nodename, os.getpid(), os.urandom(4).hex())
    try:
        with open(os.path.join(folder, "faults", name), "w", encoding="utf-8") as out:
            out.write(json.dumps(fault) + "\n")
    except OSError:
        pass


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:  # noqa: SIM105
            stream.flush()
        except Exception:
            pass
