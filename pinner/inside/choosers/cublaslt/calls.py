"""The matmuls that cuBLASLt was asked for, call by call, for a trace."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, NamedTuple

from . import chooser, fields, layout

if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

_MOST_KNOWN = 4096


class Call(NamedTuple):
    """One call. name: what was multiplied. notes: its problem, its algorithm and who chose that.

    raw: the layout.Call of it.
    """

    name: str
    notes: Dict[str, Any]
    raw: Any


class Calls:
    """What each thread of this process called, since it was looked at last.

    counter: moves with each call of any thread, so that looking costs nothing between them
    """

    def __init__(self, library: Any) -> None:
        self.counter = ctypes.c_uint64.in_dll(library, "pinner_cublaslt_followed")
        self._take = library.pinner_cublaslt_calls
        self._take.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self._take.restype = ctypes.c_size_t
        self._problems: Dict[Tuple[int, bytes], Tuple[str, Dict[str, Any]]] = {}

    def take(self) -> List[Call]:
        """Return the calls of this thread, oldest first. Where there were too many since the last
        time, the first that is left says how many are not.
        """
        made = (layout.Call * layout.CALLS)()
        lost = ctypes.c_uint64()
        count = self._take(made, ctypes.byref(lost))
        found = [self._call(made[number]) for number in range(count)]
        if lost.value and found:
            found[0].notes["lost"] = lost.value
        return found

    def _call(self, call: Any) -> Call:
        notes: Dict[str, Any] = {}
        if call.status:
            notes["status"] = call.status
        if call.symbol:
            return Call("cublas:" + call.symbol.decode("ascii"), notes, call)
        name, problem = self._problem(call)
        notes.update(how=layout.KINDS.get(call.kind, "unknown"), problem=problem)
        if call.fields.known:
            values = list(call.fields.value)
            notes["config"] = fields.algorithm(values, call.fields.known, bytes(call.algo), None)
        return Call(name, notes, call)

    def _problem(self, call: Any) -> Tuple[str, Dict[str, Any]]:
        key = call.version, bytes(call.key)
        known = self._problems.get(key)
        if known is None:
            if len(self._problems) >= _MOST_KNOWN:
                self._problems.clear()
            values = list(call.key.value)
            problem = dict(fields.problem(values, call.version, ""))
            for field in layout.QUESTION:
                problem.pop(field[0], None)
            known = self._problems[key] = _name(values), problem
        return known


def follow() -> Optional[Calls]:
    """Begin to remember calls; None where pinner's library does not stand in front of cuBLASLt."""
    library = chooser.library()
    if library is None or library.pinner_cublaslt_follow():
        return None
    return Calls(library)


def _name(values: List[int]) -> str:
    """What is multiplied: "cublaslt:matmul 8x16x64 R_32F", rows and columns of D and the sum."""
    value = layout.named(layout.KEY_NAMES, values)
    summed = value["a_cols"] if value["transa"] == 0 else value["a_rows"]
    batch = " batch %d" % value["d_batch"] if value["d_batch"] > 1 else ""
    kind = fields.DATA_TYPES.get(value["a_type"], value["a_type"])
    return "cublaslt:matmul %dx%dx%d%s %s" % (value["d_rows"], value["d_cols"], summed, batch, kind)
