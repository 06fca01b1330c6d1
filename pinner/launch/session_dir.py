"""The folder of one run: what its processes read and write, and the variables that lead there.

```
SESSION/session.json   what was asked for (read by pinner/inside/session.py)
SESSION/pins.json      the compiled lock, where one is enforced
SESSION/ledger/        one file a process
SESSION/cublaslt/      one mapped file a process: what cuBLASLt was asked and answered
SESSION/cublaslt.pins  the pins of cuBLASLt as a table for C, where the lock has some
SESSION/faults/        one file a process that could not be started under pinner
SESSION/launchers/     one file a launcher: its command, its end, the evidence only it could see
```
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from pinner import shipped
from pinner.inside.faults import PinnerError
from pinner.lockfile.errors import LockError
from pinner.policy import apply

VERSION = 1
Mode = Literal["observe", "enforce"]
OnMiss = Literal["fallback", "error", "tune"]
CublasLt = Literal["auto", "on", "off"]

SESSION = "PINNER_SESSION"
MODE = "PINNER_MODE"


class SessionError(Exception):
    """A session folder that cannot be made, joined or read; says what to do."""


class SessionTaken(SessionError):
    """A session folder that belongs to another run."""


@dataclass(frozen=True)
class Settings:
    """What a run asks of its processes; the fields of session.json."""

    mode: Mode
    run: str
    created: str
    on_miss: OnMiss = "fallback"
    taps: tuple[Mapping[str, Any], ...] = ()
    evidence: bool = True
    allow: tuple[str, ...] = ()
    agree: float | None = None  # seconds; see `pinner/inside/agree.py`
    replay: bool = False
    cublaslt: CublasLt = "auto"
    hidden_pythonpath: str | None = None
    policy: Mapping[str, Any] | None = None  # see `pinner/policy/apply.py`, Policy.settings
    trace: Mapping[str, Any] | None = None  # see `pinner/inside/evidence/trace/settings.py`
    values: bool = False  # fingerprints of single numbers carry their bits beside the digest


@dataclass(frozen=True)
class SessionDir:
    """A session folder that exists. `settings` are those of whoever created it.

    locked: the variables that the profile of the lock held, where one is enforced.
    """

    path: Path
    settings: Settings
    locked: Mapping[str, str] = field(default_factory=dict)

    @property
    def ledger(self) -> Path:
        """One file a process."""
        return self.path / "ledger"

    @property
    def faults(self) -> Path:
        """One file a process that refused to start."""
        return self.path / "faults"

    @property
    def launchers(self) -> Path:
        """One file a launcher."""
        return self.path / "launchers"

    @property
    def cublaslt(self) -> Path:
        """One mapped file a process that called cuBLASLt."""
        return self.path / "cublaslt"

    @property
    def pins(self) -> Path:
        """The compiled lock; absent where nothing is enforced."""
        return self.path / "pins.json"

    def variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """What must be set, on top of `environ`, for a process to belong to this run.

        What a policy profile sets is among them; a value that `environ` has is never changed.
        """
        own = str(shipped.inject_dir())
        hidden = _without(environ.get("PYTHONPATH"), own)
        asked = self.locked if self.settings.policy is None else self.settings.policy["sets"]
        return {
            **{name: value for name, value in asked.items() if name not in environ},
            SESSION: str(self.path),
            MODE: self.settings.mode,
            "PYTHONPATH": own + os.pathsep + hidden if hidden else own,
        }

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """`environ` with those variables in it."""
        return {**environ, **self.variables(environ)}


def now() -> str:
    """This moment as ISO 8601, UTC."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def new_name() -> str:
    """A name for a run that nothing else names: sorts by time, and no two are equal."""
    return datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S") + "-" + secrets.token_hex(3)


def hidden_pythonpath(environ: Mapping[str, str]) -> str | None:
    """The PYTHONPATH the command would have had: an outer pinner's folder is not part of it."""
    return _without(environ.get("PYTHONPATH"), str(shipped.inject_dir()))


def create(path: Path, settings: Settings, pins: str | None = None) -> SessionDir:
    """Makes the folder, complete or not at all. Raises `SessionError` where it exists already.

    pins: the text of the compiled lock.
    """
    made = join(path, settings, pins)
    if made.settings != settings:
        raise SessionTaken(
            f"expected no run in {made.path} yet, found one ({made.settings.run!r}): "
            "give another folder, or remove this one"
        )
    return made


def join(path: Path, settings: Settings, pins: str | None = None) -> SessionDir:
    """Makes the folder or, where another launcher was first, takes the one that is there.

    The folder is filled under another name and renamed, so whoever sees it sees all of it. The
    caller compares the settings it gets with those it wanted.
    """
    path = Path(os.path.abspath(path))
    staged = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        _fill(staged, settings, path, pins)
        os.rename(staged, path)
    except LockError:
        shutil.rmtree(staged, ignore_errors=True)
        raise
    except OSError as error:
        shutil.rmtree(staged, ignore_errors=True)
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise SessionError(
                f"cannot make the folder of this run, {path}: {error.strerror or error}; "
                "give a folder that can be written with --dir"
            ) from error
    return read(path)


def read(path: Path) -> SessionDir:
    """The session in `path`. Raises `SessionError` where there is none that can be read."""
    file = path / "session.json"
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(fields, dict) or fields.get("version") != VERSION:
            raise ValueError(f"expected an object of version {VERSION}")
        settings = _from_json(fields)
    except OSError as error:
        raise SessionError(
            f"expected a pinner run in {path}, found no readable session.json ({error.strerror})"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise SessionError(f"{file} is not a pinner session: {error}") from error
    return SessionDir(Path(os.path.abspath(path)), settings, fields.get("locked_policy") or {})


def lock_digest(session: SessionDir) -> str | None:
    """The digest of the lock this run enforces; None where it enforces none."""
    try:
        return str(json.loads(session.pins.read_text(encoding="utf-8"))["lock"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SessionError(f"cannot read {session.pins}: {error}") from error


@contextlib.contextmanager
def fresh_caches(environ: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """`environ` with empty compile caches on this machine, which are removed afterwards.

    A warm cache of Triton or Inductor holds decisions: under it a validating run would repeat the
    observed one without deciding anything, and would show nothing.
    """
    folder = tempfile.mkdtemp(prefix="pinner-caches-")
    try:
        yield {
            **environ,
            "TRITON_CACHE_DIR": os.path.join(folder, "triton"),
            "TORCHINDUCTOR_CACHE_DIR": os.path.join(folder, "inductor"),
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _fill(folder: Path, settings: Settings, final: Path, pins: str | None) -> None:
    for name in ("ledger", "faults", "launchers", "cublaslt"):
        (folder / name).mkdir(parents=True)
    fields = _to_json(settings, str(final / "pins.json") if pins is not None else None)
    if pins is not None:
        (folder / "pins.json").write_text(pins, encoding="utf-8")
        body = json.loads(pins)
        if body.get("cublaslt"):
            (folder / "cublaslt.pins").write_bytes(cublaslt_pins(body["cublaslt"]))
        if apply.profile_of(body.get("policy") or {}) is not None:
            fields["locked_policy"] = apply.variables_of(body["policy"])
    (folder / "session.json").write_text(json.dumps(fields, indent=1) + "\n", encoding="utf-8")


def cublaslt_pins(entries: list[dict[str, Any]]) -> bytes:
    """The pins of cuBLASLt, which C looks up in the middle of a call.

    Raises `LockError` for entries that have no place in it, as an edit by hand may leave them.
    """
    from pinner.inside.choosers.cublaslt import table

    try:
        return table.build(entries)
    except (PinnerError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise LockError(f"cannot be pinned: {error}", entry="[[cublaslt]]") from error


def _to_json(settings: Settings, pins: str | None) -> dict[str, Any]:
    return {
        "version": VERSION,
        "mode": settings.mode,
        "on_miss": settings.on_miss,
        "pins": pins,
        "taps": [dict(tap) for tap in settings.taps],
        "evidence": settings.evidence,
        "allow": list(settings.allow),
        "replay": settings.replay,
        "cublaslt": settings.cublaslt,
        "run": settings.run,
        "hidden_pythonpath": settings.hidden_pythonpath,
        "created": settings.created,
        **({} if settings.agree is None else {"agree": settings.agree}),
        **({} if settings.policy is None else {"policy": dict(settings.policy)}),
        **({} if settings.trace is None else {"trace": dict(settings.trace)}),
        **({"values": True} if settings.values else {}),
    }


def _from_json(fields: Mapping[str, Any]) -> Settings:
    return Settings(
        mode=fields["mode"],
        run=fields["run"],
        created=fields["created"],
        on_miss=fields["on_miss"],
        taps=tuple(fields["taps"]),
        evidence=fields["evidence"],
        allow=tuple(fields["allow"]),
        agree=fields.get("agree"),
        replay=fields["replay"],
        cublaslt=fields.get("cublaslt", "auto"),
        hidden_pythonpath=fields["hidden_pythonpath"],
        policy=fields.get("policy"),
        trace=fields.get("trace"),
        values=fields.get("values", False),
    )


def _without(pythonpath: str | None, folder: str) -> str | None:
    """A PYTHONPATH without one of its folders; None and "" stay what they are."""
    if not pythonpath:
        return pythonpath
    kept: Sequence[str] = [part for part in pythonpath.split(os.pathsep) if part != folder]
    return os.pathsep.join(kept) if kept else None
