"""Writes how a library's switches stand, once each, and answers what the lock wants of them.

Values are compared in their canonical text and hold no rank, device index, path or process.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ... import faults, ledger, pins, session, values

if TYPE_CHECKING:
    from typing import Any, Dict, Optional, Tuple

FORCED = "forced"
RECORDED = "recorded"
NOT_HELD = "no"

_written: Dict[Tuple[str, str], str] = {}
_written_by: Optional[int] = None


def report(chooser: str, name: str, value: Any, held: str, text: str = "") -> None:
    """Write one setting of a library that is active here; nothing where it was written already.

    A value that changed is written again: the last word of a process counts.
    """
    encoded, held, text = _encoded(value, held, text)
    said = values.canonical([encoded, held])
    if not _is_news((chooser, name), said):
        return
    line = {
        "t": "setting",
        "chooser": chooser,
        "name": name,
        "value": encoded,
        "held": held,
        "text": text,
        "time": ledger.now(),
    }
    ledger.write(line, sync=True)


def report_forced(chooser: str, name: str, value: Any, text: str = "") -> None:
    """Write a setting that a switch holds; one that is not as the lock forces it is invalid."""
    report(chooser, name, value, FORCED, text)
    wanted = forced(chooser).get(name)
    if wanted is not None and not same(wanted, value):
        contradicted(chooser, name, wanted, value)


def contradicted(chooser: str, name: str, wanted: Any, found: Any) -> None:
    """Say that the program itself set something else than the lock forces."""
    problem(
        "invalid",
        chooser,
        name,
        "the lock forces %s = %s, the program has %s: take that out of the program, or record "
        "again with it" % (name, values.readable(wanted), values.readable(_plain(found))),
    )


def problem(kind: str, chooser: str, name: str, text: str) -> None:
    """Write one problem of a library's, once in a process."""
    if _is_news((chooser + " " + kind, name), text):
        line = {"t": "problem", "kind": kind, "chooser": chooser, "kernel": name, "text": text}
        ledger.write(line, sync=True)


def locked(chooser: str) -> Dict[str, Dict[str, Any]]:
    """Return the lock's settings of a library by name; none unless this session enforces."""
    if not enforcing():
        return {}
    return {setting["name"]: setting for setting in pins.settings_of(chooser)}


def forced(chooser: str) -> Dict[str, Any]:
    """Return the values that the lock forces, in their tagged form."""
    every = locked(chooser).items()
    return {name: setting["value"] for name, setting in every if setting["held"] == FORCED}


def enforcing() -> bool:
    """Whether locked choices are forced in this process."""
    active = session.current()
    return active is not None and active.enforcing


def on_miss() -> str:
    """What is done here where the lock has no answer: "fallback", "error" or "tune"."""
    active = session.current()
    return "tune" if active is None or not active.enforcing else active.on_miss


def refuse_miss(chooser: str, name: str, instead: str) -> None:
    """Write that the lock has no answer; raises MissedPin where the session wants an error.

    instead: what is taken, as a clause
    """
    text = "not in the lock: %s; record again, or add it to the lock" % instead
    problem("missed", chooser, name, text)
    if on_miss() == "error":
        raise faults.MissedPin("%s: %s is %s" % (chooser, name, text))


def same(one: Any, other: Any) -> bool:
    """Whether two values are one, by their canonical text."""
    return values.canonical(_plain(one)) == values.canonical(_plain(other))


def _plain(value: Any) -> Any:
    """The tagged form of a value; what is tagged already stays as it is."""
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value if isinstance(value, dict) else values.encode(value)


def _encoded(value: Any, held: str, text: str) -> Tuple[Any, str, str]:
    try:
        return _plain(value), held, text
    except values.Unpinnable as error:
        return values.type_name(value), NOT_HELD, "%s; its value has no text: %s" % (text, error)


def _is_news(key: Tuple[str, str], said: str) -> bool:
    global _written_by
    if _written_by != os.getpid():  # a child of a fork has a ledger of its own
        _written.clear()
        _written_by = os.getpid()
    if _written.get(key) == said:
        return False
    _written[key] = said
    return True
