"""Captures a call of cuBLASLt: its problem, its algorithm, and the memory of its operands.

The library in front of cuBLASLt tells of a call when it has ended, by addresses. Whose memory that
is, the tensors of the operation say that made the call: what is written there now is what the call
was given, where the call does not write over it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...choosers.cublaslt import layout
from .capture import NotCaptured
from .recorder import escaped

if TYPE_CHECKING:
    from typing import Any, Dict, List, Sequence, Tuple

    from ...choosers.cublaslt.calls import Call
    from .capture import Capture
    from .recorder import Recorder

OPERANDS = ("a", "b", "c", "d", "bias")
# Bytes of one element, by cudaDataType_t. Types of less than a byte are not here.
SIZES = {0: 4, 1: 8, 2: 2, 3: 1, 4: 8, 5: 16, 6: 4, 7: 2, 8: 1, 10: 4, 14: 2, 15: 4, 28: 1, 29: 1}
_PLAIN_EPILOGUES = (1, 2, 4, 6, 32, 36)
_WITH_BIAS = 4
_MOST_ALIGNED = 256


def look(recorder: Recorder, call: Call, place: Tuple[str, str], tensors: Sequence[Any]) -> None:
    """Write a call down, if it is the one that is awaited.

    tensors: what the operation that made it read and made.
    """
    if recorder.awaited is None:
        return
    capture = recorder.awaited.begin(recorder, "kernel", escaped(call.name), place)
    if capture is None:
        return
    written: Dict[str, Any] = {}
    capture.guarded(lambda: written.update(_facts(capture, call.raw, tensors)))
    capture.write("cublaslt", written)


def _facts(capture: Capture, raw: Any, tensors: Sequence[Any]) -> Dict[str, Any]:
    """What a repro needs to make the call again. Raises NotCaptured."""
    problem = layout.named(layout.KEY_NAMES[: len(layout.PROBLEM)], raw.key.value)
    address = dict(zip(OPERANDS, raw.address))
    operands: Dict[str, int] = {}
    for name in needed(problem, raw):
        size = span(problem, name)
        memory = _memory(capture.torch, tensors, address[name], size)
        if memory is None:
            raise NotCaptured(
                "its operand %s is in no tensor of an operation that is seen" % name.upper()
            )
        operands[name] = capture.take(name, memory)
    capture.read()
    known = [number for number in range(len(layout.ALGO)) if raw.fields.known >> number & 1]
    return {
        "problem": problem,
        "version": raw.version,
        "algorithm": {layout.ALGO_NAMES[n]: raw.fields.value[n] for n in known},
        "blob": bytes(raw.algo).hex(),
        "how": layout.KINDS.get(raw.kind, "unknown"),
        "workspace": raw.workspace,
        "alpha": bytes(raw.alpha).hex(),
        "beta": bytes(raw.beta).hex(),
        "operands": operands,
        "alignment": {
            name: min(each & -each, _MOST_ALIGNED) for name, each in address.items() if each
        },
    }


def _refuse(problem: Dict[str, int], raw: Any) -> None:
    """Raise NotCaptured for what a repro of ours does not set up."""
    why = ""
    if raw.symbol:
        why = "it is a call of cuBLAS itself, which tells nothing of its problem"
    elif raw.status:
        why = "it failed with status %d" % raw.status
    elif problem["pointer_mode"]:
        why = "its scalars are in the memory of the device"
    elif raw.pointers:
        why = "it has scales or other arrays beside its matrices"
    elif problem["emulation"]:
        why = "it emulates its type"
    elif problem["epilogue"] not in _PLAIN_EPILOGUES:
        why = "its epilogue is number %d" % problem["epilogue"]
    for name in "abcd":
        kind = problem[name + "_type"]
        if kind not in SIZES:
            why = why or "the type of %s is number %d" % (name.upper(), kind)
        if problem[name + "_order"] > 1 or problem[name + "_plane"]:
            why = why or "the layout of %s is neither by columns nor by rows" % name.upper()
        if problem[name + "_batch_mode"]:
            why = why or "its batches are found by pointers"
    if why:
        raise NotCaptured(why)


def needed(problem: Dict[str, int], raw: Any) -> List[str]:
    """The operands whose memory is taken. Raises NotCaptured for a call that it does not tell of.

    raw: the layout.Call.
    """
    _refuse(problem, raw)
    address = dict(zip(OPERANDS, raw.address))
    found = ["a", "b", "d"]
    if any(raw.beta):
        if address["c"] == address["d"]:
            raise NotCaptured("it adds to what was in D, which is not there any more")
        found.insert(2, "c")
    if problem["epilogue"] & _WITH_BIAS:
        found.append("bias")
    end = address["d"] + span(problem, "d")
    for name in found:
        start = address[name]
        if name != "d" and start < end and address["d"] < start + span(problem, name):
            raise NotCaptured("it writes over its operand %s" % name.upper())
    return found


def span(problem: Dict[str, int], name: str) -> int:
    """The bytes of an operand, from its first element to its last."""
    if name == "bias":
        kind = problem["bias_type"] if problem["bias_type"] >= 0 else problem["d_type"]
        return problem["d_rows"] * SIZES[kind]
    rows, cols, order = (problem["%s_%s" % (name, each)] for each in ("rows", "cols", "order"))
    lines, length = (rows, cols) if order == 1 else (cols, rows)
    count = (lines - 1) * problem[name + "_ld"] + length
    count += (problem[name + "_batch"] - 1) * problem[name + "_stride"]
    return count * SIZES[problem[name + "_type"]]


def _memory(torch: Any, tensors: Sequence[Any], address: int, size: int) -> Any:
    """The bytes at an address, as a view of the tensor whose storage holds them."""
    for tensor in tensors:
        try:
            storage = tensor.untyped_storage()
            start = address - storage.data_ptr()
        except (NotImplementedError, RuntimeError, AttributeError):  # it has no memory of its own
            continue
        if start >= 0 and start + size <= storage.nbytes():
            whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
            return whole.set_(storage, start, (size,), (1,))
    return None
