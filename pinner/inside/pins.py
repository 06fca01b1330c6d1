"""The compiled lock of this session, read when it is first asked for and checked then."""

from __future__ import annotations

import json

from . import faults, session

TYPE_CHECKING = False  # importing `typing` would double the cost of starting
if TYPE_CHECKING:
    from typing import Any, Dict, FrozenSet, List, Optional

VERSION = 1


class Pins:
    """The compiled lock.

    lock: digest of the lock file it was made from
    triton, inductor: by kernel, {"entries": [...]}, Triton's with a "fallback"
    inductor_digest: digest of the whole of `inductor`, for keys of compile caches
    cublaslt: list of {"problem", "algo", "blob"}
    settings: list of {"chooser", "name", "value", "held"}
    policy: the switches that were set when recording, "CHOOSER.NAME" to value
    algorithm: of the digests in the lock's evidence; "" where it has none
    """

    __slots__ = (
        "algorithm",
        "cublaslt",
        "inductor",
        "inductor_digest",
        "lock",
        "policy",
        "sealed",
        "settings",
        "stack_hard",
        "triton",
    )

    def __init__(self, body: Dict[str, Any]) -> None:
        self.lock: str = body.get("lock", "")
        self.sealed: bool = body.get("sealed", False)
        self.stack_hard: Dict[str, Any] = (body.get("stack") or {}).get("hard") or {}
        self.triton: Dict[str, Dict[str, Any]] = body.get("triton") or {}
        self.inductor: Dict[str, Dict[str, Any]] = body.get("inductor") or {}
        self.inductor_digest: str = body.get("inductor_digest", "")
        self.cublaslt: List[Dict[str, Any]] = body.get("cublaslt") or []
        self.settings: List[Dict[str, Any]] = body.get("settings") or []
        self.policy: Dict[str, Any] = body.get("policy") or {}
        self.algorithm: str = body.get("algorithm", "")


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
        try:
            _loaded = Pins({}) if path is None else read(path)
        except faults.StartFault as error:
            _refuse(str(error))
            _loaded = Pins({})
        _loaded_from = path
    return _loaded


def _refuse(cause: str) -> None:
    """End the process, or keep the cause for the other ranks where they wait to hear of it."""
    from . import agree

    if not agree.keep(cause):
        faults.die(cause)


def triton_kernel(name: str) -> Optional[Dict[str, Any]]:
    """Return {"entries": [...], "fallback": [...]} of the kernel, or None where it has no pin."""
    return load().triton.get(name)


def inductor_kernel(name: str) -> Optional[Dict[str, Any]]:
    """Return {"entries": [...]} of one of Inductor's kernels or operations, or None."""
    return load().inductor.get(name)


def settings_of(chooser: str) -> List[Dict[str, Any]]:
    """Return the locked settings of one library: {"chooser", "name", "value", "held"} each."""
    return [setting for setting in load().settings if setting["chooser"] == chooser]


def modules() -> FrozenSet[str]:
    """Return the names of the modules whose kernels are pinned."""
    return frozenset(name.partition(":")[0] for name in load().triton)


def digest(body: Dict[str, Any]) -> str:
    """Return the digest that stands in a pins file: SHA-256 of all but the digest itself."""
    import hashlib

    rest = {name: value for name, value in body.items() if name != "digest"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode("ascii")).hexdigest()


def check_end(path: str) -> None:
    """Raise StartFault where the file is missing or was cut: seen at start, without loading it."""
    try:
        with open(path, "rb") as source:
            source.seek(0, 2)
            source.seek(max(0, source.tell() - 16))
            end = source.read()
    except OSError as error:
        raise faults.StartFault(
            "cannot read the pins file %s: %s" % (path, error.strerror)
        ) from None
    if not end.rstrip().endswith(b"}"):
        raise faults.StartFault("the pins file %s is torn: it ends in the middle" % path)


def read(path: str) -> Pins:
    """Return the pins in a file. Raises StartFault, naming it, where it is not whole."""
    try:
        with open(path, encoding="utf-8") as source:
            body: Any = json.loads(source.read())
    except OSError as error:
        raise faults.StartFault(
            "cannot read the pins file %s: %s" % (path, error.strerror)
        ) from None
    except ValueError as error:
        raise faults.StartFault("the pins file %s is torn: %s" % (path, error)) from None
    if not isinstance(body, dict):
        raise faults.StartFault("the pins file %s is torn: it must hold a JSON object" % path)
    if body.get("version") != VERSION:
        raise faults.StartFault(
            "the pins file %s has version %r, this pinner reads version %d"
            % (path, body.get("version"), VERSION)
        )
    expected = digest(body)
    if body.get("digest") != expected:
        raise faults.StartFault(
            "the pins file %s is torn: its digest is %s, its content has %s"
            % (path, body.get("digest"), expected)
        )
    return Pins(body)
