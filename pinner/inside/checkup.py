"""Looks, for `pinner doctor`, at a process that runs as it would without pinner: sets nothing.

Told at the first step and at the end, by processes that import torch: variables that the program
set after the library that reads them had looked, the switches of torch in force, the flash
attention that is installed, and operations that neither torch nor pinner's table knows.
A process that is killed before has told nothing; a variable that C code sets is not seen.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING

from . import attention, imports, policy_switches
from .choosers.others import looks, settings

if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Set, Tuple

CHOOSER = "checkup"
LATE, SWITCH, BACKEND, OPERATIONS = "late ", "switch ", "backend ", "operations "
# Namespaces of operators that torch registers, at its import and later (torch 2.13).
TORCHS = frozenset(
    (
        "_c10d_functional",
        "_c10d_functional_autograd",
        "_dtensor",
        "_inductor_debug",
        "_inductor_test",
        "_native",
        "_quantized",
        "ao",
        "aten",
        "bucketing",
        "c10d",
        "c10d_functional",
        "debug_mode_ops",
        "debugprims",
        "device_mesh",
        "dist_autograd",
        "export",
        "flex_lib",
        "fsdp",
        "higher_order",
        "inductor",
        "inductor_prims",
        "mkl",
        "mkldnn",
        "mkldnn_prepacked",
        "onednn",
        "onnx",
        "onnx_symbolic",
        "prim",
        "prims",
        "profiler",
        "quantization",
        "quantized",
        "quantized_decomposed",
        "rngprims",
        "semi_structured",
        "sparse",
        "static_runtime",
        "streams",
        "symm_mem",
        "torch_attn",
        "triton",
    )
)

_reads: Dict[str, str] = {}
_late: List[Tuple[str, str, str]] = []
_of_torch: Set[str] = set()
_defined: Set[str] = set()


def begin(rules: List[Dict[str, Any]]) -> None:
    """Watch the variables of `rules` from here on, and look at the rest when the process ends."""
    _reads.update(
        {rule["name"]: rule["read"] for rule in rules if rule["kind"] == "variable"},
    )
    sys.addaudithook(_heard)
    imports.after("torch", _after_torch)


def _heard(event: str, args: Tuple[Any, ...]) -> None:
    if event != "os.putenv":
        return
    name, value = os.fsdecode(args[0]), os.fsdecode(args[1])
    if name in _reads and os.environ.get(name) != value:
        moment = passed(_reads[name], sys.modules)
        if moment:
            _late.append((name, value, moment))


def passed(read: str, modules: Mapping[str, Any]) -> str:
    """Return which moment has passed, in words, for a variable that is read then; "" for none.

    A product or attention may run at once when the device has started; whether one did is not
    known, so from there on a value counts as late.
    """
    if read == "process start":
        return "the process had started"
    torch = modules.get("torch")
    if torch is None:
        return ""
    if read == "torch import":
        return "torch was imported"
    if read in ("device start", "first matmul", "first attention"):
        cuda = getattr(torch, "cuda", None)
        return "CUDA had started" if _says(cuda, "is_initialized") else ""
    if read == "process-group init":
        distributed = modules.get("torch.distributed")
        return "the process group was there" if _says(distributed, "is_initialized") else ""
    return ""


def _says(owner: Any, name: str) -> bool:
    ask = getattr(owner, name, None)
    return ask is not None and bool(ask())


def _after_torch(torch: Any) -> None:
    _of_torch.update(name.partition("::")[0] for name in _operations(torch))
    _watch_definitions(torch.library.Library)
    looks.at_looks(_look)


def _watch_definitions(library: Any) -> None:
    """Operations that Python defines are gone again when the process ends."""
    define = library.define

    @functools.wraps(define)
    def wrapped(self: Any, schema: str, *args: Any, **kwargs: Any) -> Any:
        _defined.add("%s::%s" % (self.ns, schema.partition("(")[0].partition(".")[0]))
        return define(self, schema, *args, **kwargs)

    library.define = wrapped


def _look() -> None:
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return
    for name, value, moment in _late:
        settings.report(CHOOSER, LATE + name, value, settings.RECORDED, moment)
    for name, switch in policy_switches.SWITCHES.items():
        found = switch.read(torch)
        if found is not None:
            settings.report(CHOOSER, SWITCH + name, found, settings.RECORDED)
    for backend, functions in attention.installed().items():
        named = [[name, takes] for name, takes in sorted(functions.items())]
        settings.report(CHOOSER, BACKEND + backend, named, settings.RECORDED)
    strange: Dict[str, List[str]] = {}
    for operation in sorted(_defined | _operations(torch)):
        space = operation.partition("::")[0]
        if space not in _of_torch and space not in TORCHS:
            strange.setdefault(space, []).append(operation)
    for space, operations in strange.items():
        settings.report(CHOOSER, OPERATIONS + space, operations, settings.RECORDED)


def _operations(torch: Any) -> Set[str]:
    """Every operation that is registered now, without its overloads."""
    ask = getattr(torch._C, "_dispatch_get_all_op_names", None)
    return set() if ask is None else {str(name).partition(".")[0] for name in ask()}
