"""Makes the pinner session of one probe: one that only observes, or one under a lock.

A candidate whose last step is a lock (`spaces.components.lock`) runs with that lock's choices
forced. The lock comes from another stack, so none of its stack facts is held against the process,
and a draft will do: whether the bits are the good ones is what the probe is made for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pinner.launch import session_dir
from pinner.lockfile.codec import read_lock_with_digest
from pinner.lockfile.compiled import pins_text
from pinner.lockfile.errors import LockError
from stackbisect.probe import Candidate, InfrastructureError
from stackbisect.spaces.components import DERIVED

_ANY_STACK = ("*",)


@dataclass(frozen=True)
class Session:
    """A session folder; `lock` is the file whose choices it forces, None where it forces none."""

    folder: Path
    mode: session_dir.Mode = "observe"
    lock: Path | None = None


@dataclass(frozen=True)
class Sessions:
    """Makes the sessions of a bisection in `folder`.

    `hidden_pythonpath` is the PYTHONPATH the command would have had; `taps` are compiled taps.
    `trace` is what is traced (pinner/inside/evidence/trace/settings.py); None where nothing is.
    """

    folder: Path
    hidden_pythonpath: str | None = None
    taps: Sequence[Mapping[str, Any]] = field(default=())
    trace: Mapping[str, Any] | None = None

    def create(self, place: Path, candidate: Candidate, run: str) -> Session:
        """Make the session folder `place` for a probe. Raises InfrastructureError."""
        asked = lock_step(candidate)
        settings = session_dir.Settings(
            mode="observe" if asked is None else "enforce",
            run=run,
            created=session_dir.now(),
            taps=tuple(self.taps),
            hidden_pythonpath=self.hidden_pythonpath,
            allow=() if asked is None else _ANY_STACK,
            trace=self.trace,
        )
        try:
            if asked is None:
                return Session(session_dir.create(place, settings).path)
            file = self.folder / asked["file"]
            made = session_dir.create(place, settings, _pins(file, asked["digest"]))
            return Session(made.path, "enforce", file)
        except (OSError, session_dir.SessionError, LockError) as error:
            raise InfrastructureError(f"cannot prepare a probe: {error}") from error


def lock_step(candidate: Candidate) -> Mapping[str, Any] | None:
    """The step that makes a candidate run under a lock; None where it has none."""
    steps = candidate.details.get(DERIVED, {}).get("steps", ())
    if not steps or steps[-1]["kind"] != "lock":
        return None
    step: Mapping[str, Any] = steps[-1]
    return step


def _pins(file: Path, digest: str) -> str:
    lock, found = read_lock_with_digest(file)
    if found != digest:
        raise InfrastructureError(
            f"{file}: expected the lock {digest} that this bisection made, found {found}; "
            "put it back, or begin again with --fresh"
        )
    return pins_text(lock, found)
