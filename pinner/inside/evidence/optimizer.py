"""Fingerprints of every optimizer step: gradients before it, parameters after it."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from .. import faults, session
from . import fingerprint
from .digest import combine, digest, digest_many

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Callable, Iterable, List

    from .digest import Digest

_lock = threading.Lock()
_numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_count = 0


def install(module: ModuleType) -> None:
    """Register the global step hooks of `torch.optim.optimizer`.

    They run for every optimizer built on torch's class. Optimizers that keep gradients elsewhere
    (main or decoupled gradients) show their parameters only: tap their gradient norm.
    """
    module.register_optimizer_step_pre_hook(_before_step)
    module.register_optimizer_step_post_hook(_after_step)


def _before_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    _record(optimizer, "gradients", lambda parameter: parameter.grad)


def _after_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    _record(optimizer, "parameters", lambda parameter: parameter)


# A compiled training step must not be traced into our code.
_before_step._torchdynamo_disable = True  # type: ignore[attr-defined]
_after_step._torchdynamo_disable = True  # type: ignore[attr-defined]


def _record(optimizer: Any, kind: str, value_of: Callable[[Any], Any]) -> None:
    """Write one digest over all parameters, in their order."""
    active = session.current()
    if active is None or not active.evidence:
        return
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    stream = "optimizer%d/%s" % (_number(optimizer), kind)
    fingerprint.record_digest(stream, lambda: _digest(kind, map(value_of, parameters)))


def _digest(kind: str, values: Iterable[Any]) -> Digest:
    """Return one digest of many values; a missing gradient counts as such."""
    parts = list(values)
    try:
        found = iter(digest_many([each for each in parts if each is not None]))
    except faults.EvidenceError:
        _name_the_one_without(parts)
        raise
    digests = [None if each is None else next(found) for each in parts]
    return combine(digests), {"dtype": kind, "shape": [len(digests)]}


def _name_the_one_without(parts: List[Any]) -> None:
    """Raise EvidenceError with the number of the first part that has no digest."""
    for index, each in enumerate(parts):
        try:
            digest(each)
        except faults.EvidenceError as error:
            raise faults.EvidenceError("parameter %d: %s" % (index, error)) from error


def _number(optimizer: Any) -> int:
    """Return which optimizer of this process this is, in the order of their first steps."""
    global _count
    with _lock:
        if optimizer not in _numbers:
            _numbers[optimizer] = _count
            _count += 1
        return _numbers[optimizer]
