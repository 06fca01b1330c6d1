"""Eager launches of `@triton.jit` kernels: their pointer arguments before and after."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from .capture_triton import awaited, noted
from .compiled import around, unseen

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Callable, Dict, List, Tuple

    from .recorder import Recorder


def install(recorder: Recorder, module: ModuleType) -> None:
    """Wrap `JITFunction.run` of `triton.runtime.jit`, just executed.

    Triton's launch hooks (`knobs.runtime.launch_enter_hook`) are given no pointers, and a launch
    that has one takes another way through the launcher.
    """
    _wrap_run(recorder, module.JITFunction)


def install_interpreter(recorder: Recorder, module: ModuleType) -> None:
    """The same for kernels that Triton interprets (`TRITON_INTERPRET`)."""
    kind = getattr(module, "InterpretedFunction", None)
    if kind is None:
        return
    if hasattr(kind, "run"):
        _wrap_run(recorder, kind)
    else:
        _wrap_later(recorder, kind)


def install_autotuner(recorder: Recorder, module: ModuleType) -> None:
    """Launches that Triton's autotuner only times are trials."""
    tuner = module.Autotuner
    tuner._bench = unseen(recorder, tuner._bench)


def _wrap_run(recorder: Recorder, kind: Any) -> None:
    original = kind.run

    @functools.wraps(original)
    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        grid = noted(recorder, grid)
        call = functools.partial(original, self, *args, grid=grid, warmup=warmup, **kwargs)
        return call() if warmup else _launched(recorder, self, (args, kwargs), grid, call)

    kind.run = run


def _wrap_later(recorder: Recorder, kind: Any) -> None:
    """Triton 3.0 to 3.4 give each interpreted kernel its own `run`, and launch past it.

    What tunes a kernel calls `run`; who launches it by `kernel[grid]` does not.
    """
    create, original = kind.__init__, kind.__getitem__

    @functools.wraps(create)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        create(self, *args, **kwargs)
        own = self.run

        def run(*args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
            grid = noted(recorder, grid)
            call = functools.partial(own, *args, grid=grid, warmup=warmup, **kwargs)
            return call() if warmup else _launched(recorder, self, (args, kwargs), grid, call)

        self.run = run

    @functools.wraps(original)
    def __getitem__(self: Any, grid: Any) -> Any:
        grid = noted(recorder, grid)
        launch = original(self, grid)

        def launched(*args: Any, **kwargs: Any) -> Any:
            return _launched(
                recorder, self, (args, kwargs), grid, functools.partial(launch, *args, **kwargs)
            )

        return launched

    kind.__init__, kind.__getitem__ = __init__, __getitem__


def _launched(
    recorder: Recorder,
    kernel: Any,
    arguments: Tuple[Tuple[Any, ...], Dict[str, Any]],
    grid: Any,
    call: Callable[[], Any],
) -> Any:
    if not recorder.looking():
        return call()
    args, kwargs = arguments
    notes: Dict[str, Any] = {}
    _note_launch(notes, grid, kwargs)
    named = _pointers(recorder, kernel, args, kwargs)
    name = _name_of(kernel)
    call = awaited(recorder, kernel, arguments, grid, call, name=name)
    return around(recorder, name, named, call, notes)


def _name_of(kernel: Any) -> str:
    function = kernel.fn
    return "triton:%s:%s" % (function.__module__, function.__qualname__)


def _pointers(
    recorder: Recorder, kernel: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]
) -> List[Tuple[str, Any]]:
    names = list(kernel.arg_names)
    tensor = recorder.torch.Tensor
    given = [(names[at] if at < len(names) else str(at), each) for at, each in enumerate(args)]
    given += list(kwargs.items())
    return [(name, each) for name, each in given if isinstance(each, tensor)]


def _note_launch(notes: Dict[str, Any], grid: Any, kwargs: Dict[str, Any]) -> None:
    if isinstance(grid, (tuple, list)) and all(isinstance(size, int) for size in grid):
        notes["grid"] = list(grid)
    config = {
        name: value for name, value in kwargs.items() if isinstance(value, (bool, int, float, str))
    }
    if config:
        notes["config"] = config
