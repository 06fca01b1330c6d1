"""Captures a launch of a Triton kernel: what it consists of, and what it was given.

What a tuner and heuristics chose is among its arguments by now: the launch is seen below them.
"""

from __future__ import annotations

import contextlib
import inspect
import operator
import os
from typing import TYPE_CHECKING

from .capture import digest_of
from .kernel_source import NoSource, closure, code_of, is_function, plain_function
from .recorder import escaped

if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Sequence, Tuple

    from .capture import Capture
    from .recorder import Recorder

    Arguments = Tuple[Tuple[Any, ...], Dict[str, Any]]

# Variables of Triton that change what is computed, and are read when it compiles.
_VARIABLES = (
    "TRITON_DEFAULT_FP_FUSION",
    "TRITON_F32_DEFAULT",
    "TRITON_ALLOW_NON_CONSTEXPR_GLOBALS",
    "DISABLE_LLVM_OPT",
    "DISABLE_PTXAS_OPT",
    "PTXAS_OPTIONS",
    "TRITON_LIBDEVICE_PATH",
)


def awaited(
    recorder: Recorder,
    kernel: Any,
    arguments: Arguments,
    grid: Any,
    call: Callable[[], Any],
    *,
    name: str,
) -> Callable[[], Any]:
    """`call`, or what captures it too where this is the launch that is awaited."""
    if recorder.awaited is None:
        return call
    capture = recorder.awaited.begin(recorder, "kernel", escaped(name), recorder.place())
    if capture is None:
        return call
    launched = _Launched(recorder, capture)
    return lambda: launched.run(kernel, arguments, grid, call)


class _Launched:
    """One launch, as it is captured."""

    def __init__(self, recorder: Recorder, capture: Capture) -> None:
        self._recorder = recorder
        self._capture = capture
        self._call: Dict[str, Any] = {}
        self._tensors: Dict[int, Tuple[Any, Any]] = {}
        self._unwritten: List[int] = []

    def run(self, kernel: Any, arguments: Arguments, grid: Any, call: Callable[[], Any]) -> Any:
        """Launch it. What it is given is looked at when all hooks of the kernel have run."""
        args, kwargs = arguments
        capture = self._capture

        def look() -> None:
            self._call = launch(kernel, args, kwargs, self._take)
            self._call["unwritten"] = self._unwritten
            capture.read()

        end = after_hooks(kernel, lambda: capture.guarded(look))
        try:
            result = call()
        finally:
            end()
        after = {number: digest_of(tensor) for number, (tensor, _) in self._tensors.items()}
        self._call["written"] = {
            str(number): after[number]
            for number, (_, before) in sorted(self._tensors.items())
            if after[number] != before or number in self._unwritten
        }
        capture.guarded(lambda: self._note_grid(grid))
        capture.write("triton", self._call)
        return result

    def _note_grid(self, grid: Any) -> None:
        found = grid.sizes if isinstance(grid, _Noted) else sizes(grid)
        if not found:
            raise NoSource("what its grid comes to is not known")
        self._call["grid"] = found

    def _take(self, name: str, tensor: Any) -> int:
        number = self._capture.take(name, tensor)
        if number not in self._tensors:
            self._tensors[number] = tensor, digest_of(tensor)
            memory = self._recorder.memory
            if memory.is_unwritten(tensor, memory.number(tensor)):
                self._unwritten.append(number)
        return number


def launch(
    kernel: Any,
    args: Sequence[Any],
    kwargs: Dict[str, Any],
    take: Callable[[str, Any], Any],
) -> Dict[str, Any]:
    """What a repro needs to launch it again, but for the grid.

    kernel: a JITFunction or its like under the interpreter. args, kwargs: as its `run` got them.
    take: gets the name and the tensor of each pointer argument, and returns what stands for it.
    Raises NoSource for what cannot be written down.
    """
    parameters = inspect.signature(kernel.fn).parameters
    names = list(parameters)
    if len(args) > len(names):
        raise NoSource("it was given %d arguments and takes %d" % (len(args), len(names)))
    given = dict(zip(names, args))
    given.update((name, value) for name, value in kwargs.items() if name in parameters)
    functions = [each for name in names for each in _functions(given.get(name))]
    found = closure(kernel, functions)
    numbers = {id(plain_function(each)): at for at, each in enumerate(_unique(functions), start=1)}
    return {
        "source": found,
        "arguments": {
            name: _value(name, given[name], numbers, take) for name in names if name in given
        },
        "constexprs": [name for name in names if _is_constexpr(parameters[name])],
        "options": _launch_options(kwargs, parameters),
        "interpreted": type(kernel).__name__ == "InterpretedFunction",
        "environ": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }


def after_hooks(kernel: Any, look: Callable[[], None]) -> Callable[[], None]:
    """Look at the arguments of the next launch when its hooks have run; returns what ends that.

    A hook (`add_pre_run_hook`) may write to them. Without one there is nothing to wait for.
    """
    hooks = getattr(kernel, "pre_run_hooks", None)
    if not hooks:
        look()
        return lambda: None
    mine = lambda *args, **kwargs: look()  # noqa: E731
    hooks.append(mine)
    return lambda: hooks.remove(mine)


class _Noted:
    """A grid that is computed from the arguments: what it came to.

    Not computed by us, too: under the interpreter it gets numbers that divide as the device's do.
    """

    def __init__(self, grid: Callable[[Any], Any]) -> None:
        self._grid = grid
        self.sizes: List[int] = []

    def __call__(self, arguments: Any) -> Any:
        found = self._grid(arguments)
        with contextlib.suppress(Exception):  # these numbers are some only while it is launched
            self.sizes = sizes(found)
        return found


def noted(recorder: Recorder, grid: Any) -> Any:
    """The grid, where a launch is awaited as one that tells what it came to."""
    return _Noted(grid) if recorder.awaited is not None and callable(grid) else grid


def sizes(grid: Sequence[Any]) -> List[int]:
    """How many programs along each of three axes."""
    found = [operator.index(size) for size in grid]
    return found + [1] * (3 - len(found))


def _value(
    name: str, value: Any, numbers: Dict[int, int], take: Callable[[str, Any], Any]
) -> Dict[str, Any]:
    if hasattr(value, "untyped_storage"):
        return {"tensor": take(name, value)}
    if isinstance(value, tuple):
        inner = [_value("%s.%d" % (name, at), each, numbers, take) for at, each in enumerate(value)]
        if type(value) is tuple:
            return {"tuple": inner}
    elif is_function(value):
        return {"function": numbers[id(plain_function(value))]}
    else:
        code = code_of(_unwrapped(value))
        if code is not None:
            return {"code": code}
    kind = type(value)
    raise NoSource(
        "its argument %s is a %s.%s, which is not written down"
        % (name, kind.__module__, kind.__name__)
    )


def _functions(value: Any) -> List[Any]:
    if isinstance(value, tuple):
        return [each for inner in value for each in _functions(inner)]
    return [value] if is_function(value) else []


def _unique(functions: Sequence[Any]) -> List[Any]:
    found = {id(plain_function(each)): each for each in functions}
    return list(found.values())


def _unwrapped(value: Any) -> Any:
    return value.value if type(value).__name__ == "constexpr" else value


def _launch_options(kwargs: Dict[str, Any], parameters: Any) -> Dict[str, str]:
    """num_warps and its like, as Python writes them."""
    found: Dict[str, str] = {}
    for name, value in kwargs.items():
        if name in parameters or name in ("grid", "warmup") or value is None:
            continue
        code = code_of(_unwrapped(value))
        if code is None:
            raise NoSource("it is launched with %s=%r, which is not written down" % (name, value))
        found[name] = code
    return found


def _is_constexpr(parameter: Any) -> bool:
    annotation = parameter.annotation
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return "constexpr" in text
