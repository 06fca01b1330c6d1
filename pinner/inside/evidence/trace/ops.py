"""The level "ops": a dispatch mode that sees each operation, and writes it down."""

from __future__ import annotations

import functools
import sys
import threading
from typing import TYPE_CHECKING

from . import collectives
from .capture_ops import Operation
from .operations import SUBCLASSES_WITHOUT_BYTES, Facts
from .passing import Passing

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Dict, Tuple

    from .recorder import Recorder


def install(recorder: Recorder) -> None:
    """Put the mode on the main thread's stack, and on that of each thread of Python from here on.

    torch's module must be executed by now. A process that forks has the stack of its parent.
    """
    torch = recorder.torch
    made = mode(recorder)
    _teach_operators(torch, type(made))
    torch._C._push_on_torch_dispatch_stack(made)
    _follow_threads(torch, made)


def mode(recorder: Recorder) -> Any:
    """A mode that writes to this recorder."""
    return _mode_class(recorder.torch)(recorder)


def _teach_operators(torch: Any, kind: type) -> None:
    """Let higher-order operators pass our mode, where each of them wants a rule for it.

    torch 2.4 to 2.6; later ones ask the mode (`supports_higher_order_operators`).
    """
    modes = sys.modules["torch.utils._python_dispatch"]
    if hasattr(modes.TorchDispatchMode, "supports_higher_order_operators"):
        return
    operators = torch._ops
    create = operators.HigherOrderOperator.__init__

    @functools.wraps(create)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        create(self, *args, **kwargs)
        _teach(self, kind)

    operators.HigherOrderOperator.__init__ = __init__
    for operator in list(operators._higher_order_ops.values()):
        _teach(operator, kind)


def _teach(operator: Any, kind: type) -> None:
    rules = getattr(operator, "python_key_table", None)  # torch 2.5 and 2.6
    if rules is None:
        rules = operator.python_key_mode_table
    rules[kind] = functools.partial(_pass_on, operator)


def _pass_on(operator: Any, made: Any, *args: Any, **kwargs: Any) -> Any:
    return made.__torch_dispatch__(operator, (), args, kwargs)


def _follow_threads(torch: Any, made: Any) -> None:
    start = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]
    push = torch._C._push_on_torch_dispatch_stack

    @functools.wraps(start)
    def _bootstrap_inner(self: Any) -> None:
        push(made)
        try:
            start(self)
        finally:  # else it is freed when the thread has no Python any more
            modes = sys.modules["torch.utils._python_dispatch"]
            if modes._get_current_dispatch_mode() is made:
                modes._pop_mode()

    threading.Thread._bootstrap_inner = _bootstrap_inner  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=None)
def _mode_class(torch: ModuleType) -> Any:
    """The class of the mode; torch is not there yet when this file is imported."""
    from torch.utils._python_dispatch import TorchDispatchMode

    plain = torch.Tensor
    # Ours is off the stack while it is asked. What is left are modes of infrastructure, which come
    # last wherever they were entered: somebody traces symbolically, and would trace our reading.
    modes_below = torch._C._len_torch_dispatch_stack
    scripting = torch._C._get_tracing_state  # the same of torch.jit.trace

    class Trace(TorchDispatchMode):  # type: ignore[misc]
        """Writes down what passes, and changes nothing."""

        supports_higher_order_operators = True

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            """Compile as without us, and let the compiled code run (torch 2.10 asks this)."""
            return True

        def __init__(self, recorder: Recorder) -> None:
            super().__init__()
            self.recorder = recorder
            self.facts: Dict[Any, Facts] = {}

        def __torch_dispatch__(
            self, function: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            recorder = self.recorder
            thread = recorder.thread
            if kwargs is None:
                kwargs = {}
            facts = self.facts.get(function)
            if facts is None:
                facts = self.facts[function] = Facts(function)
            if thread.busy or facts.silent or modes_below() or scripting() is not None:
                return function(*args, **kwargs)
            for kind in types:
                if kind is plain or kind.__torch_dispatch__ is plain.__torch_dispatch__:
                    continue  # a Parameter, say
                if kind.__name__ in SUBCLASSES_WITHOUT_BYTES:
                    return function(*args, **kwargs)
                return NotImplemented  # the subclass first: its inner tensors come to us again
            if thread.region is not None and not recorder.deep:
                return function(*args, **kwargs)
            if facts.collective:
                if thread.inside or not recorder.open:
                    return function(*args, **kwargs)
                return collectives.dispatched(recorder, facts, function, args, kwargs)
            place = recorder.place()
            if not recorder.open or not recorder.in_window(place[0]):
                return _outside_window(recorder, facts, function, args, kwargs)
            passing = Passing(recorder, facts, args, kwargs, plain)
            captured = None
            thread.busy = True
            try:
                passing.before()
                if recorder.awaited is not None:
                    captured = recorder.awaited.operation(recorder, facts.name, place)
                if captured is not None:
                    operation = Operation(captured, recorder, facts, function, (args, kwargs))
            finally:
                thread.busy = False
            if recorder.calls is None:
                result = function(*args, **kwargs)
            else:
                with recorder.operation(facts.name):
                    result = function(*args, **kwargs)
            thread.busy = True
            try:
                if captured is not None:
                    operation.done(result)
                passing.after(result, place)
            finally:
                thread.busy = False
            return result

    def _outside_window(
        recorder: Recorder,
        facts: Facts,
        function: Any,
        args: Tuple[Any, ...],
        kwargs: Dict[str, Any],
    ) -> Any:
        """Nothing is written, but memory that was made empty is followed all the same."""
        recorder.settle_calls()
        result = function(*args, **kwargs)
        recorder.settle_calls()
        memory = recorder.memory
        if type(result) is not plain or result.device.type == "meta":
            return result
        if facts.empty:
            memory.made_empty(result, memory.fresh(result, set()))
        elif facts.overwrites and memory.unwritten:
            memory.written(result, memory.number(result))
        return result

    return Trace
