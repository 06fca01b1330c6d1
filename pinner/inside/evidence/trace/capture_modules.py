"""Captures one call of a module: what pickle holds of the module, its arguments, what it gives.

For where what computes is not seen: a function of an extension, or numpy in memory that a tensor
shares. The module is written by `torch.save`: its class by name, its attributes, its parameters and
buffers as bytes.
"""

from __future__ import annotations

import _compat_pickle
import inspect
import io
import os
import pickletools
import sys
import sysconfig
import zipfile
from typing import TYPE_CHECKING

from .capture import Capture, NotCaptured, digest_of, random_states
from .capture_ops import distribution

if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Tuple

    from .recorder import Recorder

    _Given = Tuple[Tuple[Any, ...], Dict[str, Any]]

_DEVICES = ("cpu", "cuda")


def begin(
    recorder: Recorder, module: Any, name: str, place: Tuple[str, str], given: _Given
) -> Optional[ModuleCall]:
    """What captures the call that is about to run; None where it is not the one.

    A recorder that awaits a call is given.
    """
    assert recorder.awaited is not None
    capture = recorder.awaited.begin(recorder, "module", name, place)
    return None if capture is None else ModuleCall(capture, module, given)


def begin_back(
    recorder: Recorder, module: Any, name: str, place: Tuple[str, str], given: _Given
) -> Optional[WayBack]:
    """What captures a call whose way back may be the awaited one; as `begin` otherwise.

    Which call it is shows when its gradients come, so that each of the same place is kept.
    """
    awaited = recorder.awaited
    assert awaited is not None
    way_back = awaited.kind == "module" and awaited.place == (place[0], "b") and place[1] == "f"
    if not way_back or recorder.step != awaited.step or not awaited.is_called(name):
        return None
    return WayBack(ModuleCall(Capture(awaited, recorder.torch), module, given))


class ModuleCall:
    """One call: made before it runs, and `done` when it has ended."""

    def __init__(self, capture: Capture, module: Any, given: _Given) -> None:
        self.capture = capture
        kind = type(module)
        self.call: Dict[str, Any] = {"function": "%s.%s" % (kind.__module__, kind.__qualname__)}
        self._before: List[Optional[str]] = []
        self._states: Dict[str, Any] = {}
        capture.guarded(lambda: self._look(module, *given))

    def _look(self, module: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        capture, call = self.capture, self.call
        names = _names(module, len(args))
        call["args"] = [capture.value(name, value) for name, value in zip(names, args)]
        call["kwargs"] = {name: capture.value(name, value) for name, value in kwargs.items()}
        data = pickled(capture.torch, module)
        call["pickle"] = capture.piece(data)
        call["origins"] = origins(data)
        call["parameters"] = sum(int(each.numel()) for each in module.parameters())
        call["gpu"] = any(each.is_cuda for each in (*module.parameters(), *module.buffers()))
        call["modes"] = _modes(capture.torch)
        self._before = [digest_of(each) for each in capture.tensors]
        self._states = random_states(capture.torch)
        capture.read()

    def done(self, result: Any) -> None:
        """The call gave this: digests of what it made and wrote over, and all is written down."""
        self.ended(result)
        self.capture.write("module", self.call)

    def ended(self, result: Any) -> None:
        """The call gave this."""
        if not self.capture.why:
            self.capture.guarded(lambda: self._look_after(result))

    def _look_after(self, result: Any) -> None:
        capture, call = self.capture, self.call
        tensor = capture.torch.Tensor
        made = list(named(tensor, "out", result))
        if any(not name.isidentifier() for name, _ in made):
            raise NotCaptured("it gives a dict with keys that are no names")
        call["single"] = isinstance(result, tensor)
        call["results"] = [[name, digest_of(each)] for name, each in made]
        after = [digest_of(each) for each in capture.tensors]
        changed = [number for number, each in enumerate(self._before) if each != after[number]]
        call["written"] = [[number, after[number]] for number in changed]
        states = random_states(capture.torch)
        drawn = {each: state for each, state in self._states.items() if states[each] != state}
        call["drawn"] = drawn


class WayBack:
    """The gradients of one call, which arrive one by one: `arrived`, and `done` with the last."""

    def __init__(self, forward: ModuleCall) -> None:
        self.forward = forward
        self._names: Dict[int, str] = {}
        self.forget()

    def forget(self) -> None:
        """Begin anew: a graph may be gone through again."""
        self.capture = Capture(self.forward.capture.awaited, self.forward.capture.torch)
        self._given: List[List[Any]] = []
        self._wanted: List[List[Any]] = []

    def ended(self, result: Any) -> None:
        """The call itself gave this."""
        self.forward.ended(result)
        tensor = self.capture.torch.Tensor
        self._names = {id(each): name for name, each in named(tensor, "out", result)}

    def output(self, tensor: Any) -> Optional[str]:
        """The name of one of its outputs."""
        return self._names.get(id(tensor))

    def input(self, tensor: Any) -> Optional[int]:
        """The number of a tensor that the call got."""
        given = self.forward.capture.tensors
        return next((at for at, each in enumerate(given) if each is tensor), None)

    def arrived(self, of: Any, gradient: Any, given: bool) -> None:
        """One gradient: of the output of this name, or of the input of this number."""
        if of is None:
            self.capture.why = self.capture.why or "a tensor of it has no name"
        elif given:
            self.capture.guarded(
                lambda: self._given.append([of, self.capture.take("grad_" + of, gradient)])
            )
        else:
            self._wanted.append([of, digest_of(gradient)])

    def done(self) -> None:
        """All have come: write it down."""
        capture = self.capture
        capture.why = capture.why or self.forward.capture.why
        capture.guarded(capture.read)
        call = {
            "function": self.forward.call["function"],
            "gradients": self._given,
            "wanted": self._wanted,
        }
        capture.write("module", call, [(self.forward.capture, self.forward.call)])


def named(tensor: type, name: str, value: Any) -> Iterator[Tuple[str, Any]]:
    """The tensors in what a module gives, with names made of where they are; as repro.py has it."""
    if isinstance(value, tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, each in value.items():
            for pair in named(tensor, "%s_%s" % (name, key), each):
                yield pair
    elif isinstance(value, (list, tuple)):
        for at, each in enumerate(value):
            for pair in named(tensor, "%s%s%d" % (name, "_" * name[-1].isdigit(), at), each):
                yield pair
    elif hasattr(value, "__dataclass_fields__"):
        for pair in named(tensor, name, dict(vars(value))):
            yield pair


def _names(module: Any, count: int) -> List[str]:
    """A name for each argument in its place, as `forward` has it."""
    try:
        found = [
            each.name
            for each in inspect.signature(module.forward).parameters.values()
            if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):
        found = []
    return found[:count] + ["input_%d" % at for at in range(len(found), count)]


def _modes(torch: Any) -> Dict[str, Any]:
    """grad: whether autograd records. inference. autocast: its dtype on devices where it is on."""
    autocast = {}
    if hasattr(torch, "get_autocast_dtype"):  # from torch 2.4 on
        on = [each for each in _DEVICES if torch.is_autocast_enabled(each)]
        autocast = {each: str(torch.get_autocast_dtype(each)) for each in on}
    return {
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": autocast,
    }


# -- the pickle ------------------------------------------------------------------------------------


def pickled(torch: Any, module: Any) -> bytes:
    """The module as `torch.save` writes it. Raises NotCaptured."""
    target = io.BytesIO()
    try:
        torch.save(module, target)
    except Exception as error:  # whatever the code of its classes raises
        raise NotCaptured(
            "the module cannot be pickled (%s: %s)" % (type(error).__name__, error)
        ) from None
    return target.getvalue()


def origins(data: bytes) -> List[Dict[str, Optional[str]]]:
    """Where the classes and functions come from that a file of `torch.save` names.

    {"name", "module", "distribution"}, one for each module that is not of the standard library;
    the distribution is None where none that is installed brings it. "__main__" is the program.
    """
    found: Dict[str, Dict[str, Optional[str]]] = {}
    for module, name in _named_in(data):
        if module not in found and not _is_standard(module):
            found[module] = {
                "name": "%s.%s" % (module, name),
                "module": module,
                "distribution": None if module == "__main__" else distribution(module),
            }
    return list(found.values())


def _named_in(data: bytes) -> Iterator[Tuple[str, str]]:
    """torch.save pickles by protocol 2: an opcode names each, modules as Python 2 called them."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        (entry,) = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        for opcode, argument, _ in pickletools.genops(archive.read(entry)):
            if opcode.name == "GLOBAL":
                module, _, name = str(argument).partition(" ")
                yield _compat_pickle.IMPORT_MAPPING.get(module, module), name


def _is_standard(module: str) -> bool:
    """Whether a module comes with Python."""
    top = module.partition(".")[0]
    if top == "__main__":
        return False
    if top in sys.builtin_module_names:
        return True
    file = getattr(sys.modules.get(top), "__file__", None)
    if file is None:
        return False
    library = os.path.realpath(sysconfig.get_paths()["stdlib"])
    inside = os.path.relpath(os.path.realpath(file), library).split(os.sep)
    return inside[0] not in (os.pardir, "site-packages", "dist-packages")
