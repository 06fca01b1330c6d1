"""Recomputation by torch.utils.checkpoint: where it begins, and that what runs in it is such."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from .recorder import Recorder


def install(recorder: Recorder, module: ModuleType) -> None:
    """Wrap both kinds of checkpoint in `torch.utils.checkpoint`, just executed."""
    hooks = getattr(module, "_recomputation_hook", None)
    if hooks is not None:
        _wrap_hooks(recorder, hooks)
    function = getattr(module, "CheckpointFunction", None)
    if function is not None:
        _wrap_backward(recorder, function)


def _wrap_hooks(recorder: Recorder, hooks: Any) -> None:
    """A checkpoint that is not reentrant runs its forward again under these hooks."""
    enter, leave = hooks.__enter__, hooks.__exit__

    @functools.wraps(enter)
    def __enter__(self: Any) -> Any:
        _begin(recorder, "checkpoint")
        return enter(self)

    @functools.wraps(leave)
    def __exit__(self: Any, *args: Any) -> Any:
        _end(recorder)
        return leave(self, *args)

    hooks.__enter__, hooks.__exit__ = __enter__, __exit__


def _wrap_backward(recorder: Recorder, function: Any) -> None:
    """A reentrant checkpoint runs its forward again in the backward of its function.

    The gradients of what it recomputed are taken inside it, too, and are told as recomputed.
    """
    original = function.backward

    @functools.wraps(original)
    def backward(ctx: Any, *args: Any) -> Any:
        _begin(recorder, "checkpoint.reentrant")
        try:
            return original(ctx, *args)
        finally:
            _end(recorder)

    function.backward = staticmethod(backward)


def _begin(recorder: Recorder, name: str) -> None:
    if recorder.torch.compiler.is_compiling():
        return
    scope = recorder.place()[0]
    recorder.thread.recomputing += 1
    if recorder.looking():
        recorder.event("recompute", name, (scope, "r"))


def _end(recorder: Recorder) -> None:
    if not recorder.torch.compiler.is_compiling():
        recorder.thread.recomputing = max(0, recorder.thread.recomputing - 1)
