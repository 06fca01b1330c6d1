"""The moments at which the state of a library is looked at: after the first step, and at the end.

By the first step of an optimizer a training run has used what it uses. A process that is killed
before has lost only what is read here, and no choice.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ... import ledger, loaded

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Callable, List, Optional, Set

_looks: List[Callable[[], object]] = []
_stepped_in: Optional[int] = None


def at_looks(callback: Callable[[], object]) -> None:
    """Call `callback()` after the first optimizer step of each process, and at its normal end."""
    if not _looks:
        ledger.at_exit(_look_at_end)
    _looks.append(callback)


def install(optimizer: ModuleType) -> None:
    """Look after the first step: register with `torch.optim.optimizer`."""
    optimizer.register_optimizer_step_post_hook(_after_step)


def mapped_names() -> Set[str]:
    """Return the base names of the files that are mapped into this process."""
    return {os.path.basename(path) for path in loaded.mapped_files()}


def _after_step(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
    global _stepped_in
    if _stepped_in != os.getpid():
        _stepped_in = os.getpid()
        _look()


# A compiled training step must not be traced into our code.
_after_step._torchdynamo_disable = True  # type: ignore[attr-defined]


def _look_at_end() -> None:
    """A child that was forked and has told nothing, such as a loader's worker, starts no ledger."""
    if ledger.is_open():
        _look()


def _look() -> None:
    for callback in list(_looks):
        callback()
