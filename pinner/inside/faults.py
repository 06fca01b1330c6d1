"""What can go wrong inside a user's process, and the one way to end it."""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False  # importing `typing` would double the cost of starting
if TYPE_CHECKING:
    from typing import List, NoReturn, Sequence

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


def say(*lines: str) -> None:
    """Write lines to the process's standard error at once, past any buffer or replaced stream."""
    text = "".join("pinner: %s\n" % line.replace("\n", " ") for line in lines)
    try:  # noqa: SIM105
        os.write(2, text.encode("utf-8", "backslashreplace"))
    except OSError:
        pass


def die(
    cause: str,
    code: int = REFUSED,
    table: Sequence[Sequence[str]] = (),
    advice: str = "",
) -> NoReturn:
    """End this process at once: `cause` on stderr, a fault file for the launcher, then `code`.

    table: rows of equal length that belong to the cause, printed as columns
    advice: one last line, what to do

    `os._exit` because nothing of the user's may run any more: an `except` clause or an exit
    handler that goes on would be the unpinned work that must not happen.
    """
    _flush()
    say(cause, *_columns(table), *([advice] if advice else []))
    record(cause, table)
    os._exit(code)


def record(cause: str, table: Sequence[Sequence[str]] = ()) -> None:
    """Leave `cause` in the session's `faults/` for the launcher, where that can be written."""
    folder = os.environ.get("PINNER_SESSION")
    if not folder:
        return
    import json

    host = os.uname().nodename
    fault = {
        "cause": cause,
        "rows": [list(row) for row in table],
        "host": host,
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "argv": list(getattr(sys, "argv", [])),
        "executable": sys.executable,
        "time": time.time(),
    }
    name = "%s-%d-%s" % (host.replace(os.sep, "_"), os.getpid(), os.urandom(4).hex())
    path = os.path.join(folder, "faults", name + ".json")
    hidden = os.path.join(folder, "faults", "." + name)
    try:
        with open(hidden, "w", encoding="utf-8") as out:
            out.write(json.dumps(fault) + "\n")
        os.rename(hidden, path)  # whoever lists the folder sees whole files
    except OSError:
        pass


def _columns(table: Sequence[Sequence[str]]) -> List[str]:
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))] if table else []
    return ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in table]


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:  # noqa: SIM105
            stream.flush()
        except Exception:
            pass
