"""The level "modules": inputs and outputs of each module, forward and backward, by its path."""

from __future__ import annotations

import functools
import threading
import weakref
from typing import TYPE_CHECKING

from .hashing import collected
from .recorder import escaped, is_older

if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

    from .capture_modules import WayBack
    from .recorder import Recorder

# Modules around a module that are not the program's own: the paths are the same without them.
_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")

_paths: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def install(recorder: Recorder, module_class: Any) -> None:
    """Wrap `torch.nn.Module.__call__` before dynamo is imported.

    Dynamo takes what it finds there for the plain method (torch 2.13: `unpatched_nn_module_call`)
    and goes straight to `forward`; and the frame of the wrapper itself is never compiled.
    """
    plain = original = module_class.__call__
    torch = recorder.torch
    frames: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    strict = is_older(torch, (2, 10))
    if strict:
        original = _with_dynamo(plain, frames.set_eval_frame)
    is_compiling = torch.compiler.is_compiling
    scripting = torch._C._get_tracing_state

    @functools.wraps(original)
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling() or scripting() is not None:
            return original(self, *args, **kwargs)
        thread = recorder.thread
        if thread.busy or thread.region is not None:
            return original(self, *args, **kwargs)
        scope = _path_of(self, thread.scopes)
        recorder.enter(scope)
        try:
            if not recorder.open or not recorder.in_window(scope):
                return original(self, *args, **kwargs)
            call = lambda: original(self, *args, **kwargs)  # noqa: E731
            return _called(recorder, self, scope, call, (args, kwargs))
        finally:
            recorder.leave()

    hook: Any = _without_dynamo(torch, called, plain, frames.set_eval_frame) if strict else called
    module_class.__call__ = hook
    if hasattr(frames, "skip_code"):
        frames.skip_code(hook.__code__)


_dynamo = threading.local()


def _without_dynamo(torch: Any, called: Any, plain: Any, set_eval_frame: Any) -> Any:
    """Run our code without dynamo, where it looks into what a compiled module's call begins with.

    Before torch 2.10 each frame of ours would be compiled.
    """

    is_compiling = torch.compiler.is_compiling

    @functools.wraps(called)
    def outside(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return plain(self, *args, **kwargs)
        prior = set_eval_frame(None)
        before, _dynamo.callback = getattr(_dynamo, "callback", None), prior
        try:
            return called(self, *args, **kwargs)
        finally:
            _dynamo.callback = before
            set_eval_frame(prior)

    return outside


def _with_dynamo(plain: Any, set_eval_frame: Any) -> Any:
    """Run the module's own code as it would have been run."""

    @functools.wraps(plain)
    def inside(self: Any, *args: Any, **kwargs: Any) -> Any:
        set_eval_frame(_dynamo.callback)
        try:
            return plain(self, *args, **kwargs)
        finally:
            set_eval_frame(None)

    return inside


def _path_of(module: Any, scopes: List[str]) -> str:
    """The path from the root; a module that is called inside no other is a root, and has none."""
    known = _paths.get(module)
    if known is not None:
        return known
    if scopes:  # not there when its root was first called
        above = scopes[-1]
        _name_below(module, (above + "." if above else "") + type(module).__name__)
    else:
        _name_below(module, "")
    return _paths[module]


def _name_below(root: Any, path: str) -> None:
    _paths.setdefault(root, path)
    for full, child in root.named_modules():
        name = ".".join(part for part in full.split(".") if part not in _WRAPPERS)
        _paths.setdefault(child, path + "." + name if path and name else path or name)


def _called(
    recorder: Recorder,
    module: Any,
    scope: str,
    call: Callable[[], Any],
    arguments: Tuple[Tuple[Any, ...], Dict[str, Any]],
) -> Any:
    tensor = recorder.torch.Tensor
    name = escaped(type(module).__name__)
    notes: Dict[str, Any] = {}
    with recorder.unseen():
        given = _tensors_in(tensor, *arguments)
        place = (scope, recorder.place()[1])
        ins = recorder.entries([p for p, _ in given], [t for _, t in given], notes)
        captured = back = None
        if recorder.awaited is not None:
            from . import capture_modules  # which few processes need

            captured = capture_modules.begin(recorder, module, name, place, arguments)
            back = capture_modules.begin_back(recorder, module, name, place, arguments)
    wanting = [(path, each) for path, each in given if _is_inner(each)]
    del given
    result = call()
    with recorder.unseen():
        if captured is not None:
            captured.done(result)
        if back is not None:
            back.ended(result)
        made = _result(tensor, result)
        outs = recorder.entries([p for p, _ in made], [t for _, t in made], notes)
        recorder.event("module", name, place, ins, outs, notes=notes or None)
        if recorder.torch.is_grad_enabled() and place[1] == "f":
            _follow_backward(_Backward(recorder, name, scope, back), wanting, made)
    return result


def _tensors_in(
    tensor: type, args: Tuple[Any, ...], kwargs: Dict[str, Any]
) -> List[Tuple[str, Any]]:
    found = [pair for at, each in enumerate(args) for pair in collected(tensor, each, str(at))]
    for name, each in kwargs.items():
        found += collected(tensor, each, "kw." + name)
    return found


def _result(tensor: type, result: Any) -> List[Tuple[str, Any]]:
    if isinstance(result, (tuple, list)):
        return [pair for at, each in enumerate(result) for pair in collected(tensor, each, str(at))]
    return collected(tensor, result)


def _is_inner(tensor: Any) -> bool:
    """Whether autograd computes a gradient for it on its way to others."""
    return bool(tensor.requires_grad) and tensor.grad_fn is not None


class _Backward:
    """One call of a module on its way back: its gradients arrive one by one."""

    def __init__(self, recorder: Recorder, name: str, scope: str, back: Optional[WayBack]) -> None:
        self.recorder = recorder
        self.name = name
        self.scope = scope
        self.awaited = 0
        self.back = back
        self.ins: List[str] = []
        self.outs: List[str] = []

    def arrived(self, path: str, gradient: Any, given: bool, of: Any) -> None:
        """Take one gradient; with the last one of the module's inputs the event is written.

        of: what the capture of the call knows the tensor by.
        """
        recorder = self.recorder
        if not recorder.looking() or recorder.torch.compiler.is_compiling():
            return
        notes: Dict[str, Any] = {}
        with recorder.unseen():
            line = recorder.entries([path], [gradient], notes)[0]
            (self.ins if given else self.outs).append(line)
            if self.back is not None:
                self.back.arrived(of, gradient, given)
            if len(self.outs) == self.awaited and self.ins:
                place = (self.scope, "b")
                self._captured(place)
                recorder.event("module", self.name, place, self.ins, self.outs, notes=notes or None)
                self.ins, self.outs = [], []  # a graph may be gone through again

    def _captured(self, place: Tuple[str, str]) -> None:
        """Write the call down, if this is the one."""
        awaited, back = self.recorder.awaited, self.back
        if back is None or awaited is None:
            return
        if awaited.begin(self.recorder, "module", self.name, place) is not None:
            back.done()
        back.forget()


def _follow_backward(
    backward: _Backward, given: List[Tuple[str, Any]], made: List[Tuple[str, Any]]
) -> None:
    """Hook the gradients of a module's outputs and inputs. They are read as they pass."""
    outputs = [(path, each) for path, each in made if _is_inner(each)]
    if not outputs:
        return
    passing = {id(each) for _, each in outputs}
    inputs = [(path, each) for path, each in given if id(each) not in passing]
    backward.awaited = len(inputs)
    back = backward.back
    for path, each in outputs:
        of = None if back is None else back.output(each)
        each.register_hook(_hook(backward, "grad_out." + path, True, of))
    for path, each in inputs:
        number = None if back is None else back.input(each)
        each.register_hook(_hook(backward, "grad_in." + path, False, number))


def _hook(backward: _Backward, path: str, given: bool, of: Any) -> Any:
    def hook(gradient: Any) -> None:
        backward.arrived(path, gradient, given, of)

    hook._torchdynamo_disable = True  # type: ignore[attr-defined]
    return hook
