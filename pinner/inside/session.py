"""The session this process belongs to, read once from the environment the launcher set."""

from __future__ import annotations

import json
import os

from .faults import StartFault

TYPE_CHECKING = False  # importing `typing` would double the cost of starting
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Tuple

VERSION = 1
MODES = ("observe", "enforce")
ON_MISS = ("fallback", "error", "tune")
CUBLASLT = ("auto", "on", "off")


class Session:
    """One run of one command: where its files are and what was asked for.

    folder: absolute folder with `ledger/`, `faults/` and `session.json`
    mode: "observe" or "enforce"
    on_miss: "fallback", "error" or "tune"
    pins: absolute path of the compiled lock, or None
    taps: compiled metric taps
    evidence: whether fingerprints are written
    agree: seconds within which the ranks agree (see agree.py), or None
    allow: names of hard stack fields that may differ
    cublaslt: whether cuBLASLt is watched: "auto" (where it can be), "on" or "off"
    replay: launch every decided kernel twice, to find one that is not deterministic
    run: name of this run
    trace: what `pinner trace` asked for (see evidence/trace/settings.py), or None
    policy: the rules of a policy profile (see policy.py), or None
    locked_policy: whether the lock that is enforced holds the values of a policy profile
    hidden_pythonpath: the PYTHONPATH the command would have had, or None
    values: whether fingerprints of single numbers carry their bits beside the digest
    created: ISO time
    """

    __slots__ = (
        "agree",
        "allow",
        "created",
        "cublaslt",
        "evidence",
        "folder",
        "hidden_pythonpath",
        "locked_policy",
        "mode",
        "on_miss",
        "pins",
        "policy",
        "replay",
        "run",
        "taps",
        "trace",
        "values",
    )

    def __init__(self, folder: str, fields: Dict[str, Any]) -> None:
        self.folder = folder
        self.mode: str = fields["mode"]
        self.on_miss: str = fields.get("on_miss", "fallback")
        self.pins: Optional[str] = fields.get("pins")
        self.taps: List[Dict[str, Any]] = fields.get("taps") or []
        self.evidence: bool = fields.get("evidence", True)
        self.values: bool = fields.get("values", False)
        self.agree: Optional[float] = fields.get("agree")
        self.allow: List[str] = fields.get("allow") or []
        self.cublaslt: str = fields.get("cublaslt", "auto")
        self.replay: bool = fields.get("replay", False)
        self.run: str = fields.get("run", "")
        self.trace = _placed(folder, fields.get("trace"))
        self.policy: Optional[Dict[str, Any]] = fields.get("policy")
        self.locked_policy: bool = fields.get("locked_policy") is not None
        self.hidden_pythonpath: Optional[str] = fields.get("hidden_pythonpath")
        self.created: str = fields.get("created", "")

    @property
    def enforcing(self) -> bool:
        """True where locked choices are forced."""
        return self.mode == "enforce"

    @property
    def ledger_folder(self) -> str:
        """Folder that holds one ledger file per process."""
        return os.path.join(self.folder, "ledger")


_current: Optional[Session] = None


def current() -> Optional[Session]:
    """Return the session that is active in this process, or None."""
    return _current


def activate(environ: Mapping[str, str]) -> Optional[Session]:
    """Read the session that `environ` names and make it current; None where it names none.

    Raises StartFault, naming the file, where the session is there but cannot be used.
    """
    global _current
    folder = environ.get("PINNER_SESSION")
    if not folder:
        return None
    _current = read(folder, environ.get("PINNER_MODE"))
    return _current


def _placed(folder: str, trace: Optional[Dict[str, Any]]) -> Optional[Dict[str, Any]]:
    """The trace with an absolute folder.

    A relative one is the session's: where that lies is only known where the process runs.
    """
    if trace is None:
        return None
    return dict(trace, folder=os.path.join(folder, trace["folder"]))


def read(folder: str, mode: Optional[str]) -> Session:
    """Return the session in `folder`; `mode` is what PINNER_MODE says and must agree."""
    path = os.path.join(folder, "session.json")
    if not os.path.isabs(folder):
        raise StartFault("PINNER_SESSION must be an absolute folder, found %r" % folder)
    fields = _load(path)
    if mode is not None and mode != fields["mode"]:
        raise StartFault("PINNER_MODE is %r but %s says %r" % (mode, path, fields["mode"]))
    return Session(folder, fields)


def _load(path: str) -> Dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as source:
            fields = json.loads(source.read())
    except OSError as error:
        raise StartFault("cannot read the session file %s: %s" % (path, error.strerror)) from None
    except ValueError as error:
        raise StartFault("the session file %s is torn: %s" % (path, error)) from None
    if not isinstance(fields, dict):
        raise StartFault("the session file %s must hold a JSON object" % path)
    if fields.get("version") != VERSION:
        raise StartFault(
            "the session file %s has version %r, this pinner reads version %d"
            % (path, fields.get("version"), VERSION)
        )
    _member(path, fields, "mode", MODES)
    if "on_miss" in fields:
        _member(path, fields, "on_miss", ON_MISS)
    if "cublaslt" in fields:
        _member(path, fields, "cublaslt", CUBLASLT)
    return fields


def _member(path: str, fields: Dict[str, Any], name: str, allowed: Tuple[str, ...]) -> None:
    if fields.get(name) not in allowed:
        raise StartFault(
            "the session file %s: %s must be one of %s, found %r"
            % (path, name, ", ".join(allowed), fields.get(name))
        )
