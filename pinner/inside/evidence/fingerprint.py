"""Evidence lines: the digest of a value in a named stream, step by step."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from .. import faults, ledger, session
from .detail import detailed
from .digest import digest

if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Optional, Set

    from .digest import Digest

_lock = threading.Lock()
_steps: Dict[str, int] = {}
_refused: Set[str] = set()


def record(
    stream: str, value: Any, step: Optional[int] = None, rows: bool = False, scales: Any = None
) -> None:
    """Write the digest of `value` as the next step of `stream`.

    step: its number; without it, how often this process has written to the stream before. That
        count goes on for a value that has no digest, so that a hole stays visible.
    rows, scales: see `detail.detailed`
    """
    if not rows and scales is None:
        active = session.current()
        make = digest if active is None or not active.values else _with_number
        record_digest(stream, lambda: make(value), step)
    else:
        record_digest(stream, lambda: detailed(value, rows, scales), step)


def _with_number(value: Any) -> Digest:
    """The digest and, where the value is one number, its bits."""
    from .number import bits_of_number

    text, what = digest(value)
    bits = bits_of_number(value)
    return text, what if bits is None else dict(what, number=bits)


def record_digest(stream: str, make: Callable[[], Digest], step: Optional[int] = None) -> None:
    """Write what `make()` returns as the next step of `stream`, or say why it could not."""
    number = _next(stream) if step is None else step
    try:
        text, what = make()
    except faults.EvidenceError as error:
        refuse(stream, str(error))
        return
    ledger.write({"t": "evidence", "stream": stream, "step": number, "digest": text, "what": what})


def refuse(stream: str, cause: str) -> None:
    """Say once for each stream and cause that a value of it has no digest; never stops the run."""
    if session.current() is None or not _first_time(stream, cause):
        return
    faults.say("no evidence from %s: %s" % (stream, cause))
    ledger.write(
        {"t": "problem", "kind": "note", "chooser": "evidence", "kernel": stream, "text": cause}
    )


def _next(stream: str) -> int:
    with _lock:
        number = _steps.get(stream, 0)
        _steps[stream] = number + 1
    return number


def _first_time(stream: str, cause: str) -> bool:
    with _lock:
        key = stream + "\n" + cause
        if key in _refused:
            return False
        _refused.add(key)
        return True


def _after_fork() -> None:
    """A child's streams are its own and begin at 0."""
    global _lock
    _lock = threading.Lock()
    _steps.clear()
    _refused.clear()


os.register_at_fork(after_in_child=_after_fork)
