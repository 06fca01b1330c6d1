"""Captures one operation of the dispatcher: its arguments, its results, and who registered it."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

from .capture import NotCaptured, digest_of

if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Sequence, Tuple

    from .capture import Capture
    from .operations import Facts
    from .recorder import Recorder

    _Given = Tuple[Tuple[Any, ...], Dict[str, Any]]

# The spaces of operations that come with torch itself.
OWN = frozenset(
    (
        *("aten", "prims", "quantized", "_quantized", "quantized_decomposed", "mkldnn", "mkl"),
        *("mkldnn_prepacked", "onednn", "sparse", "xnnpack", "inductor", "rngprims", "symm_mem"),
    )
)
_DRAWS = "nondeterministic_seeded"
_REGISTERED = re.compile(r"^debug: registered at (.+):\d+$", re.MULTILINE)


class Operation:
    """One call: made before it runs, and `done` when it has ended."""

    def __init__(
        self, capture: Capture, recorder: Recorder, facts: Facts, function: Any, given: _Given
    ) -> None:
        self.capture = capture
        self.recorder = recorder
        self.call: Dict[str, Any] = {"function": facts.name}
        self.written: List[Any] = []
        self.made: List[Any] = []
        capture.guarded(lambda: self._look(function, *given))

    def _look(self, function: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        draws = any(str(tag).endswith(_DRAWS) for tag in function.tags)
        if draws and not self.capture.target:
            raise NotCaptured("it draws random numbers")
        schema = function._schema
        names = [argument.name for argument in schema.arguments]
        capture, call = self.capture, self.call
        given = list(zip(names, args))
        call["args"] = [capture.value(name, value) for name, value in given]
        call["kwargs"] = {name: capture.value(name, value) for name, value in kwargs.items()}
        writes = {
            argument.name
            for argument in schema.arguments
            if argument.alias_info is not None and argument.alias_info.is_write
        }
        for name, value in given + list(kwargs.items()):
            if name in writes:
                self._note_written(name, value)
        call["written"] = [capture.take("", tensor) for tensor in self.written]
        memory = self.recorder.memory
        call["unwritten"] = [
            capture.take("", each)
            for each in self.written
            if memory.is_unwritten(each, memory.number(each))
        ]
        space = schema.name.partition("::")[0]
        call["registered"] = None if space in OWN else registered(capture.torch, schema)
        capture.read()

    def _note_written(self, name: str, value: Any) -> None:
        if isinstance(value, self.capture.torch.Tensor):
            self.written.append(value)
        elif isinstance(value, (list, tuple)):
            for each in value:
                self._note_written(name, each)

    def done(self, result: Any) -> None:
        """The call gave this: digests of what it made and wrote over, and all is written down."""
        capture = self.capture
        before = capture.awaited.before
        capture.guarded(lambda: self._look_after(result))
        if capture.target:
            _link([*before, self])
            capture.write("torch", self.call, [(each.capture, each.call) for each in before])
            before.clear()
        elif capture.why:  # what comes after it cannot be made without it
            before.clear()
        else:
            before.append(self)

    def _look_after(self, result: Any) -> None:
        tensor = self.capture.torch.Tensor
        single = not isinstance(result, (list, tuple))
        results = [] if result is None else [result] if single else list(result)
        if any(isinstance(each, (list, tuple)) for each in results):
            raise NotCaptured("it gives lists of tensors inside of a tuple")
        self.made = results
        self.call["single"] = single
        self.call["results"] = [self._made(each, tensor) for each in results]
        self.call["digests"] = [digest_of(each) for each in self.written]

    def _made(self, value: Any, tensor: type) -> Any:
        """One result: its digest; the number of the argument that it is; None for no tensor."""
        if not isinstance(value, tensor):
            return None
        for each in self.written:
            if each is value:
                return {"is": self.capture.take("", each)}
        return {"digest": digest_of(value)}


def _link(operations: Sequence[Operation]) -> None:
    """Number tensors, so that one that an operation made is known where another one gets it."""
    numbers: Dict[int, int] = {}
    for each in operations:
        each.call["objects"] = [
            numbers.setdefault(id(t), len(numbers)) for t in each.capture.tensors
        ]
        each.call["made"] = [numbers.setdefault(id(made), len(numbers)) for made in each.made]


# -- who registers an operation --------------------------------------------------------------------


def registered(torch: Any, schema: Any) -> Dict[str, Optional[str]]:
    """Which module has to be imported for an operation to be there.

    {"module", "file", "distribution"}; None for what is not known. "__main__" is the program.
    """
    module = _python_module(torch, schema) or _library_module(torch, schema)
    if module is None:
        return {"module": None, "file": None, "distribution": None}
    file = getattr(sys.modules.get(module), "__file__", None)
    return {"module": module, "file": file, "distribution": distribution(module)}


def _python_module(torch: Any, schema: Any) -> Optional[str]:
    """The module of Python code that registered it, if it was such code."""
    made = getattr(sys.modules.get("torch._library.custom_ops"), "OPDEFS", {})
    definition = made.get(schema.name)
    if definition is not None:
        function = getattr(definition, "_init_fn", None)
        return getattr(function, "__module__", None)
    dump = getattr(torch._C, "_dispatch_dump", None)
    name = schema.name + ("." + schema.overload_name if schema.overload_name else "")
    found = _REGISTERED.search(dump(name)) if dump is not None else None
    if found is None:
        return None
    for module, loaded in list(sys.modules.items()):
        if getattr(loaded, "__file__", None) == found[1]:
            return module
    return None


def _library_module(torch: Any, schema: Any) -> Optional[str]:
    """The package of the shared library in which the operation's schema stands."""
    wanted = schema.name.partition("::")[2].encode("ascii") + b"("
    for path in sorted(_libraries(torch)):
        try:
            with open(path, "rb") as source:
                here = wanted in source.read()
        except OSError:
            continue
        if here:
            return _package_around(path)
    return None


def _libraries(torch: Any) -> List[str]:
    """Shared libraries of other packages than torch that are loaded into this process."""
    own = os.path.dirname(os.path.realpath(torch.__file__)) + os.sep
    found = {os.path.realpath(each) for each in getattr(torch.ops, "loaded_libraries", ())}
    for loaded in list(sys.modules.values()):
        path = getattr(loaded, "__file__", None)
        if path and path.endswith((".so", ".pyd")):
            found.add(os.path.realpath(path))
    return [each for each in found if not each.startswith(own)]


def _package_around(path: str) -> Optional[str]:
    """The outermost package that was imported from a folder around a file."""
    best: Optional[str] = None
    for name, loaded in list(sys.modules.items()):
        file = getattr(loaded, "__file__", None) or ""
        if os.path.realpath(file) == path and best is None:
            best = name.partition(".")[0]
        if "." in name or os.path.basename(file) != "__init__.py":
            continue
        if path.startswith(os.path.dirname(os.path.realpath(file)) + os.sep):
            best = name
    return best


def distribution(module: str) -> Optional[str]:
    """The installed distribution that brings a module; None for the program's own."""
    import importlib.metadata

    top = module.partition(".")[0]
    for each in importlib.metadata.distributions():
        tops = (each.read_text("top_level.txt") or "").split()
        if not tops:
            tops = [file.parts[0].partition(".")[0] for file in each.files or ()]
        if top in tops:
            return str(each.metadata["Name"])
    return None
