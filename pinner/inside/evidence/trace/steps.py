"""The level "steps": evidence streams, gradients as the optimizer takes them, its state after it.

A step ends with the optimizer that stepped first; in a program that made none, with the stream
that came first.
"""

from __future__ import annotations

import functools
import random
import sys
import weakref
from typing import TYPE_CHECKING

from ..digest import SHA256
from .recorder import escaped

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Dict, List, Optional, Tuple

    from .recorder import Recorder

    _Named = Tuple[str, List[Tuple[str, Any]]]  # a parameter, and its tensors by their paths


class Steps:
    """Counts the steps of one process and writes what belongs to each."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._first_optimizer: Optional[weakref.ref[Any]] = None
        self._first_stream: Optional[str] = None
        self._optimizes = False

    # -- evidence -------------------------------------------------------------------------------

    def follow(self, line: Dict[str, Any]) -> None:
        """Take a line of the ledger; those of evidence are events of this level."""
        if line.get("t") != "evidence":
            return
        recorder = self.recorder
        stream, step = line["stream"], line["step"]
        if recorder.settings.step_in_window(step):
            what = line.get("what") or {}
            shape = ",".join(str(size) for size in what.get("shape", ()))
            out = '["0","%s","%s",[%s]]' % (line["digest"], what.get("dtype", ""), shape)
            place = ("", recorder.place()[1])
            notes = {name: what[name] for name in ("rows", "parts") if name in what} or None
            recorder.event("step", escaped(stream), place, (), (out,), notes=notes, step=step)
        if self._first_stream is None:
            self._first_stream = stream
        if not self._optimizes and stream == self._first_stream:
            self._ended()

    # -- optimizers -----------------------------------------------------------------------------

    def install(self, module: ModuleType) -> None:
        """Register the global step hooks of `torch.optim.optimizer`."""
        _undisturbed(self._before_step, module.register_optimizer_step_pre_hook)
        _undisturbed(self._after_step, module.register_optimizer_step_post_hook)
        kind: Any = module.Optimizer
        original, load = kind.__init__, kind.load_state_dict

        @functools.wraps(original)
        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            self._optimizes = True
            original(optimizer, *args, **kwargs)

        @functools.wraps(load)
        def load_state_dict(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            result = load(optimizer, *args, **kwargs)
            self._resume(optimizer)
            return result

        kind.__init__, kind.load_state_dict = __init__, load_state_dict

    def _resume(self, optimizer: Any) -> None:
        """A run that goes on from a checkpoint goes on with the number of its steps."""
        with self.recorder.unseen():
            counts = [state.get("step") for state in optimizer.state.values() if state]
            done = max((int(count) for count in counts if count is not None), default=0)
        if done > self.recorder.step:
            self.recorder.go_to(done)

    def _before_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        recorder = self.recorder
        if self._first_optimizer is None or self._first_optimizer() is None:
            self._first_optimizer = weakref.ref(optimizer)
        recorder.thread.stepping = 1
        if not recorder.looking():
            return
        name = escaped(type(optimizer).__name__)
        with recorder.unseen():
            taken = [
                (where, [("grad", parameter.grad)])
                for where, parameter in _parameters(optimizer)
                if parameter.grad is not None
            ]
            self._write("grad", name, taken)

    def _after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        recorder = self.recorder
        recorder.thread.stepping = 0  # and not one less: a step that raised has no end
        if recorder.looking():
            name = escaped(type(optimizer).__name__)
            tensor = recorder.torch.Tensor
            with recorder.unseen():
                left = []
                for where, parameter in _parameters(optimizer):
                    state = optimizer.state.get(parameter) or {}
                    named = [("param", parameter)]
                    named += [("state." + str(k), v) for k, v in state.items() if _is(v, tensor)]
                    left.append((where, named))
                self._write("optim", name, left)
        first = self._first_optimizer
        if first is not None and first() is optimizer:
            self._ended()

    def _write(self, kind: str, name: str, parameters: List[_Named]) -> None:
        """One event for each parameter; all their tensors are digested together."""
        recorder = self.recorder
        notes: Dict[str, Any] = {}
        outs = self._entries([pair for _, named in parameters for pair in named], notes)
        at = 0
        for where, named in parameters:
            own: Dict[str, Any] = {}
            lines = outs[at : at + len(named)]
            if notes:  # one of them has no digest: which event must say so is found one by one
                lines = self._entries(named, own)
            at += len(named)
            own["parameter"] = where
            recorder.event(kind, name, ("", "o"), (), lines, notes=own)

    def _entries(self, named: List[Tuple[str, Any]], notes: Dict[str, Any]) -> List[str]:
        return self.recorder.entries(
            [path for path, _ in named], [each for _, each in named], notes
        )

    # -- the end of a step ----------------------------------------------------------------------

    def _ended(self) -> None:
        recorder = self.recorder
        if recorder.open:
            with recorder.unseen():
                _write_random(recorder)
        recorder.next_step()


def _parameters(optimizer: Any) -> List[Tuple[str, Any]]:
    """Parameters in the optimizer's order, as "group.position"."""
    return [
        ("%d.%d" % (at, number), parameter)
        for at, group in enumerate(optimizer.param_groups)
        for number, parameter in enumerate(group["params"])
    ]


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, kind)


def _undisturbed(method: Any, register: Any) -> None:
    """A compiled training step must not be traced into our code."""

    def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
        method(optimizer, args, kwargs)

    hook._torchdynamo_disable = True  # type: ignore[attr-defined]
    register(hook)


def _write_random(recorder: Recorder) -> None:
    """The state of each random stream. Reading it moves none."""
    torch = recorder.torch
    streams = {"python": repr(random.getstate()).encode("ascii")}
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        kind, keys, *rest = numpy.random.get_state()
        streams["numpy"] = b"%s %s %s" % (kind.encode(), keys.tobytes(), repr(rest).encode())
    for name, data in streams.items():
        out = '["state","%s","bytes",[%d]]' % (
            SHA256.digest_bytes("random", (), data),
            len(data),
        )
        recorder.event("random", name, ("", "o"), (), (out,))
    if torch is None:
        return
    named = [("torch.cpu", torch.default_generator.get_state())]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        capturing = torch.cuda.is_current_stream_capturing()
        for at in range(0 if capturing else torch.cuda.device_count()):
            named.append(("torch.cuda.%d" % at, torch.cuda.default_generators[at].get_state()))
    for name, state in named:
        recorder.event("random", name, ("", "o"), (), recorder.entries(["state"], [state], {}))
