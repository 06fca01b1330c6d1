"""Launch every decided kernel twice on equal arguments, to find one that is not deterministic.

Used by `pinner record` when its validating runs differ: a kernel that writes other bits on the
same input is named with its config. Slow, and only for that purpose.
"""

from __future__ import annotations

import functools
from typing import Any, Dict, List

from . import versions
from .chooser import Chooser
from .watch import encode_configs

_LAUNCHES_CHECKED = 3  # of each kernel under each of Triton's keys


def install(tuner_class: Any, chooser: Chooser) -> None:
    """Replace `Autotuner.run` by one that runs twice, for the first launches under each key."""
    original = tuner_class.run
    seen: Dict[Any, int] = {}

    @functools.wraps(original)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        nargs = dict(zip(self.arg_names, args))
        place = (id(self), versions.library_key(self, nargs, kwargs))
        seen[place] = seen.get(place, 0) + 1
        if seen[place] > _LAUNCHES_CHECKED:
            return original(self, *args, **kwargs)
        cloner = _Cloner()
        again = [cloner.clone(value) for value in args]
        again_kwargs = {name: cloner.clone(value) for name, value in kwargs.items()}
        result = original(self, *args, **kwargs)
        config = self.best_config
        original(self, *again, **again_kwargs)
        names = _differing(
            {**nargs, **kwargs},
            {**dict(zip(self.arg_names, again)), **again_kwargs},
        )
        if names:
            fields = encode_configs([config])[0][0].fields
            chooser.lines.replayed(chooser.register(self), fields, names)
        return result

    tuner_class.run = run


class _Cloner:
    """Clones tensors so that those which share memory still do."""

    def __init__(self) -> None:
        self._storages: Dict[int, Any] = {}

    def clone(self, value: Any) -> Any:
        if not hasattr(value, "untyped_storage"):
            return value
        storage = value.untyped_storage()
        if storage.data_ptr() not in self._storages:
            self._storages[storage.data_ptr()] = storage.clone()
        copy = value.detach().new_empty(0)
        return copy.set_(
            self._storages[storage.data_ptr()],
            value.storage_offset(),
            value.size(),
            value.stride(),
        )


def _differing(first: Dict[str, Any], second: Dict[str, Any]) -> List[str]:
    return [
        name
        for name, value in first.items()
        if hasattr(value, "untyped_storage") and _bytes(value) != _bytes(second[name])
    ]


def _bytes(tensor: Any) -> bytes:
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy().tobytes())
