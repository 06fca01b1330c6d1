"""What a workload may call as `pinner.…`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from . import session

if TYPE_CHECKING:
    from typing import Any, Callable, Optional

on_fingerprint: Optional[Callable[[str, Any], None]] = None
"""Hears of each fingerprint's stream and value, whether evidence is written or not."""


def fingerprint(
    name: str, value: Any, step: Optional[int] = None, rows: bool = False, scales: Any = None
) -> None:
    """Write the digest of `value` to the evidence of this run, as one step of stream `name`.

    value: a tensor or array of any dtype, a number, string or bytes, or tuples, lists and dicts
        of these
    step: its number; without it, how often this process has written to the stream before
    rows: also digest each row (along the first axis), so that a comparison names the rows that
        differ: for routing maps and whatever else is read by place. Of more than 4,096 rows,
        neighbours share a digest.
    scales: the scales of packed values in a micro-scaled format, a tensor or several: the digest is
        of all of them, and a comparison says which of them differ

    Does nothing unless pinner started this process. Reads bytes and changes nothing: no random
    state, no gradient, no version counter. A value that cannot be read (a CUDA graph is being
    captured, a fake tensor) is said on stderr and in the ledger.
    """
    active = session.current()
    if active is None:
        return
    if on_fingerprint is not None:
        on_fingerprint(str(name), value)
    if not active.evidence:
        return
    from .evidence import fingerprint as evidence

    evidence.record(str(name), value, step, rows, scales)


# Dynamo must not trace into this: the graph breaks here, with a session and without one, so that
# the compiled code is the same.
fingerprint._torchdynamo_disable = True  # type: ignore[attr-defined]


def checkpoint_saved(state: Any = None, path: Optional[str] = None) -> None:
    """Say that a checkpoint is on the disk: call it on each rank, after all of its files.

    state: what was saved: dicts and lists of tensors, modules, optimizers, anything with a
        `state_dict`. What the process holds besides is looked at whether it is passed or not.
    path: the checkpoint's file or folder; where a lock is enforced, the lock's digest is left
        beside it

    Under `pinner verify --resume` this is where the run is killed. Changes nothing.
    """
    active = session.current()
    if active is None:
        return
    from .evidence.resume import carried, ready

    if path is not None:
        carried.write(os.fspath(path))
    moments = ready.active()
    if moments is not None:
        moments.saved(state)


def checkpoint_restored(state: Any = None, path: Optional[str] = None) -> None:
    """Say that all is restored: call it on each rank before the first step that goes on from there.

    state: what was restored, in the same form as it was passed when it was saved
    path: the checkpoint's file or folder. Raises PinnerError where it was saved under another lock
        than the one that is enforced now: the run would not go on as it was.
    """
    active = session.current()
    if active is None:
        return
    from .evidence.resume import carried, ready

    if path is not None:
        carried.check(os.fspath(path))
    moments = ready.active()
    if moments is not None:
        moments.restored(state)


checkpoint_saved._torchdynamo_disable = True  # type: ignore[attr-defined]
checkpoint_restored._torchdynamo_disable = True  # type: ignore[attr-defined]


def enforce(pins: str) -> None:
    """Enforce a compiled lock in this process and its children, where only this folder is mounted.

    pins: path of a `pins.json`

    An installed pinner offers `pinner.enforce(lockfile)` instead. Raises PinnerError where it is
    too late, or where this process is enforcing something else.
    """
    from . import activate

    activate.enforce_pins(os.path.abspath(pins))
