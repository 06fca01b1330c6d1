"""Compiled regions: their boundary, and the kernels that Inductor made for them.

The compiled code runs as it would without a trace: what is inside a region is not traced as
operations, but at its boundary and, at the level "kernels", kernel by kernel.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from ... import faults
from .hashing import collected
from .recorder import escaped, is_older

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Callable, Dict, List, Tuple

    from .recorder import Recorder


def install(recorder: Recorder, module: ModuleType) -> None:
    """Wrap the call of a compiled graph: `CompiledFxGraph` of `module`, forward and backward.

    torch 2.13 has it in `torch._inductor.output_code`, torch 2.4 and 2.5 in
    `torch._inductor.codecache`.
    """
    graph = getattr(module, "CompiledFxGraph", None)
    if graph is None or graph.__module__ != module.__name__:
        return
    if recorder.settings.at_least("ops") and is_older(recorder.torch, (2, 10)):
        faults.say(_COMPILED_AGAIN % recorder.torch.__version__)
    original = graph.__call__

    @functools.wraps(original)
    def __call__(self: Any, inputs: Any) -> Any:
        if recorder.thread.region is not None or recorder.thread.busy:
            return original(self, inputs)
        return _run_region(recorder, self, lambda: original(self, inputs), inputs)

    graph.__call__ = __call__


_COMPILED_AGAIN = (
    "WARNING: torch %s compiles again at each call while operations are traced, and after some "
    "calls runs without compiled code, which may change bits: trace compiled code with --level "
    "modules, or with torch 2.11 or later"
)


def _run_region(recorder: Recorder, graph: Any, call: Callable[[], Any], inputs: Any) -> Any:
    """Between the digests of what goes in and what comes out, the library's own code runs.

    inputs: a list that the callee empties, so nothing of it may be kept.
    """
    thread = recorder.thread
    place = recorder.place()
    seen = recorder.open and recorder.in_window(place[0])
    notes: Dict[str, Any] = {}
    name = _name_of(graph, place[1])
    ins: List[str] = []
    if seen:
        with recorder.unseen():
            ins = _entries(recorder, inputs, notes)
    thread.region = name
    try:
        result = call()
    finally:
        recorder.settle_calls()
        thread.region = None
    if seen:
        notes.update(compiled=True, region=name)
        with recorder.unseen():
            _complete(recorder, result)
            outs = _entries(recorder, result, notes)
        recorder.event("kernel", "compiled region", place, ins, outs, notes=notes)
    return result


def _name_of(graph: Any, phase: str) -> str:
    """A name that is the same in each run: graphs are numbered in the order they are made."""
    number = (getattr(graph, "fx_kwargs", None) or {}).get("graph_id")
    return "graph %s %s" % ("?" if number is None else number, phase)


def _entries(recorder: Recorder, value: Any, notes: Dict[str, Any]) -> List[str]:
    tensor = recorder.torch.Tensor
    named: List[Tuple[str, Any]] = []
    parts = value if isinstance(value, (list, tuple)) else [value]
    for at, each in enumerate(parts):
        named += collected(tensor, each, str(at))
    return recorder.entries([path for path, _ in named], [each for _, each in named], notes)


def _complete(recorder: Recorder, result: Any) -> None:
    """What a region returns was written, by however many kernels and in whatever parts."""
    memory = recorder.memory
    for _, each in collected(recorder.torch.Tensor, result):
        memory.unwritten.pop(memory.number(each), None)


def install_kernels(recorder: Recorder, module: ModuleType) -> None:
    """Wrap the C++ kernels of a generated module as `AsyncCompile.wait` hands them over, and what
    it allocates its buffers with (torch 2.4 to 2.14: `empty_strided_cpu` and its like).
    """
    compiler = module.AsyncCompile
    original = compiler.wait

    @functools.wraps(original)
    def wait(self: Any, scope: Dict[str, Any]) -> Any:
        result = original(self, scope)
        for name, value in list(scope.items()):
            if not callable(value):
                continue
            if name.startswith("cpp_"):
                scope[name] = _wrapped_kernel(recorder, name, value)
            elif name.startswith("empty_strided_"):
                scope[name] = _wrapped_allocation(recorder, value)
        return result

    compiler.wait = wait


def _wrapped_allocation(recorder: Recorder, function: Callable[..., Any]) -> Callable[..., Any]:
    """Buffers come from C++, past the dispatcher. A kernel gets them with what was left there."""
    memory = recorder.memory

    def allocate(*args: Any, **kwargs: Any) -> Any:
        made = function(*args, **kwargs)
        memory.made_empty(made, memory.fresh(made, set()))
        return made

    return allocate


def _wrapped_kernel(recorder: Recorder, name: str, kernel: Callable[..., Any]) -> Any:
    @functools.wraps(kernel, assigned=(), updated=())
    def launch(*args: Any, **kwargs: Any) -> Any:
        call = lambda: kernel(*args, **kwargs)  # noqa: E731
        return around(recorder, "inductor:" + name, _named(recorder, args, kwargs), call, {})

    return launch


def install_launcher(recorder: Recorder, module: ModuleType) -> None:
    """Wrap the launch of Inductor's Triton kernels, and leave alone those it only times."""
    tuner = getattr(module, "CachingAutotuner", None)
    if tuner is None:
        return
    run = tuner.run

    @functools.wraps(run)
    def launched(self: Any, *args: Any, **kwargs: Any) -> Any:
        name = "inductor:" + getattr(self.fn, "__name__", "triton")
        names = getattr(self.fn, "arg_names", ())
        named = [
            (str(names[at]) if at < len(names) else str(at), each)
            for at, each in enumerate(args)
            if isinstance(each, recorder.torch.Tensor)
        ]
        return around(recorder, name, named, lambda: run(self, *args, **kwargs), {})

    tuner.run = launched
    for name in ("benchmark_all_configs", "coordinate_descent_tuning", "bench"):
        if name in vars(tuner):
            setattr(tuner, name, unseen(recorder, vars(tuner)[name]))


def unseen(recorder: Recorder, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, whose launches are trials: nothing is read between them, or the times change."""

    @functools.wraps(function)
    def quiet(*args: Any, **kwargs: Any) -> Any:
        with recorder.unseen():
            return function(*args, **kwargs)

    return quiet


def around(
    recorder: Recorder,
    name: str,
    named: List[Tuple[str, Any]],
    call: Callable[[], Any],
    notes: Dict[str, Any],
) -> Any:
    """Run one kernel between the digests of its pointer arguments before and after."""
    if not recorder.looking():
        return call()
    place = recorder.place()
    if not recorder.in_window(place[0]):
        return call()
    paths = [path for path, _ in named]
    tensors = [each for _, each in named]
    with recorder.unseen():
        before = recorder.entries(paths, tensors, notes)
    with recorder.unseen():  # operations by which an interpreter plays the device are its own
        result = call()
        for each in tensors:
            recorder.memory.written(each, recorder.memory.number(each))
        after = recorder.entries(paths, tensors, notes)
    notes["writes"] = [
        path
        for path, a, b in zip(paths, before, after)
        if _without_storage(a) != _without_storage(b)
    ]
    recorder.event("kernel", escaped(name), place, before, after, notes=notes)
    return result


def _without_storage(entry: str) -> str:
    """An entry without the number of its storage: Triton's interpreter gives tensors another."""
    return entry.rpartition(",")[0]


def _named(
    recorder: Recorder, args: Tuple[Any, ...], kwargs: Dict[str, Any]
) -> List[Tuple[str, Any]]:
    tensor = recorder.torch.Tensor
    named = [(str(at), each) for at, each in enumerate(args) if isinstance(each, tensor)]
    return named + [("kw." + key, each) for key, each in kwargs.items() if isinstance(each, tensor)]
