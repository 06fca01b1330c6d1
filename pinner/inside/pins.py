"""The compiled lock of this session, read when it is first asked for and checked then."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from . import faults, session

if TYPE_CHECKING:
    from typing import Any, Dict, FrozenSet, Optional

VERSION = 1


class Pins:
    """The compiled lock: `lock` is the digest of the lock file it was made from."""

    __slots__ = ("lock", "sealed", "stack_hard", "triton")

    def __init__(self, body: Dict[str, Any]) -> None:
        self.lock: str = body.get("lock", "")
        self.sealed: bool = body.get("sealed", False)
        self.stack_hard: Dict[str, Any] = (body.get("stack") or {}).get("hard") or {}
        self.triton: Dict[str, Dict[str, Any]] = body.get("triton") or {}


_loaded: Optional[Pins] = None
_loaded_from: Optional[str] = None


def load() -> Pins:
    """Return the session's pins; without a session, or without a lock, none are pinned.

    Ends the process where the file is missing, torn or of another version.
    """
    global _loaded, _loaded_from
    active = session.current()
    path = None if active is None else active.pins
    if _loaded is None or _loaded_from != path:
        _loaded = Pins({}) if path is None else _read(path)
        _loaded_from = path
    return _loaded


def triton_kernel(name: str) -> Optional[Dict[str, Any]]:
    """Return {"entries": [...], "fallback": [...]} of the kernel, or None where it has no pin."""
    return load().triton.get(name)


def modules() -> FrozenSet[str]:
    """Return the names of the modules whose kernels are pinned."""
    return frozenset(name.partition(":")[0] for name in load().triton)


def digest(body: Dict[str, Any]) -> str:
    """Return the digest that stands in a pins file: SHA-256 of all but the digest itself."""
    import hashlib

    rest = {name: value for name, value in body.items() if name != "digest"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode("ascii")).hexdigest()


def _read(path: str) -> Pins:
    body: Any = None
    try:
        with open(path, encoding="utf-8") as source:
            body = json.loads(source.read())
    except OSError as error:
        faults.die("cannot read the pins file %s: %s" % (path, error.strerror))
    except ValueError as error:
        faults.die("the pins file %s is torn: %s" % (path, error))
    if not isinstance(body, dict):
        faults.die("the pins file %s is torn: it must hold a JSON object" % path)
    if body.get("version") != VERSION:
        faults.die(
            "the pins file %s has version %r, this pinner reads version %d"
            % (path, body.get("version"), VERSION)
        )
    expected = digest(body)
    found = str(body.get("digest"))
    if found not in (expected, expected.partition(":")[2]):
        faults.die(
            "the pins file %s is torn: its digest is %s, its content has %s"
            % (path, found, expected)
        )
    return Pins(body)
