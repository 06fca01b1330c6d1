"""`pinner.enforce(lockfile)`: for programs that start themselves, without `pinner enforce`."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pinner.inside import activate, ledger
from pinner.inside.faults import PinnerError, say

if TYPE_CHECKING:
    from pinner.launch.session_dir import OnMiss, SessionDir
    from pinner.lockfile.schema import Lock


def enforce(
    lockfile: str | os.PathLike[str],
    *,
    on_miss: OnMiss = "fallback",
    allow: Sequence[str] = (),
    allow_draft: bool = False,
) -> None:
    """Enforce a lock in this process and in all that it starts. Call it before `import torch`.

    lockfile: path of the `pinner.lock.toml`
    on_miss: what becomes of a key that is not locked: "fallback" (by rule), "error", "tune"
    allow: names of hard stack facts that may differ
    allow_draft: whether a lock that no run has validated is taken

    Where pinner started this process with the same lock, or is recording, nothing happens. Raises
    PinnerError where the lock cannot be read or is a draft, where torch or triton is imported
    already, and where another lock is enforced. At exit one line on stderr says what became of
    each locked choice.
    """
    from pinner.launch.enforce import LockRefused, load

    try:
        lock, digest = load(Path(lockfile), allow_draft=allow_draft, allow=allow)
    except LockRefused as error:
        raise PinnerError(str(error)) from None
    if activate.is_enforced_already(digest):
        return
    activate.refuse_if_too_late()
    folder = Path(tempfile.mkdtemp(prefix="pinner-enforce-"))
    session = _session(folder, lock, digest, on_miss, tuple(allow))
    activate.begin(str(session.path))
    owner = os.getpid()
    ledger.at_exit(lambda: _close(folder, session, lock) if os.getpid() == owner else None)


def _session(
    folder: Path, lock: Lock, digest: str, on_miss: OnMiss, allow: tuple[str, ...]
) -> SessionDir:
    from pinner.launch import session_dir
    from pinner.lockfile.compiled import pins_text

    settings = session_dir.Settings(
        mode="enforce",
        run="enforce",
        created=session_dir.now(),
        on_miss=on_miss,
        evidence=False,
        allow=allow,
        hidden_pythonpath=session_dir.hidden_pythonpath(os.environ),
    )
    return session_dir.create(folder / "enforce", settings, pins_text(lock, digest))


def _close(folder: Path, session: SessionDir, lock: Lock) -> None:
    """Say what became of the lock, and remove the session's folder."""
    from pinner.launch.collect import collect
    from pinner.launch.coverage import cover
    from pinner.lockfile.errors import LedgerError

    try:
        coverage = cover(lock, collect(session).ledgers)
    except LedgerError as error:
        say(f"cannot say what became of the lock: {error}")
    else:
        say(*(f"note: {text}" for text in coverage.notes), coverage.line())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
