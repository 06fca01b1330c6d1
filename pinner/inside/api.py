"""What a workload may call as `pinner.…`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from . import session

if TYPE_CHECKING:
    from typing import Any, Optional


def fingerprint(name: str, value: Any, step: Optional[int] = None) -> None:
    """Write the digest of `value` to the evidence of this run, as one step of stream `name`.

    value: a tensor or array of any dtype, a number, string or bytes, or tuples, lists and dicts
        of these
    step: its number; without it, how often this process has written to the stream before

    Does nothing unless pinner started this process. Reads bytes and changes nothing: no random
    state, no gradient, no version counter. A value that cannot be read (a CUDA graph is being
    captured, a fake tensor) is said on stderr and in the ledger.
    """
    active = session.current()
    if active is None or not active.evidence:
        return
    from .evidence import fingerprint as evidence

    evidence.record(str(name), value, step)


# Dynamo must not trace into this: the graph breaks here, with a session and without one, so that
# the compiled code is the same.
fingerprint._torchdynamo_disable = True  # type: ignore[attr-defined]


def enforce(pins: str) -> None:
    """Enforce a compiled lock in this process and its children, where only this folder is mounted.

    pins: path of a `pins.json`

    An installed pinner offers `pinner.enforce(lockfile)` instead. Raises PinnerError where it is
    too late, or where this process is enforcing something else.
    """
    from . import activate

    activate.enforce_pins(os.path.abspath(pins))
