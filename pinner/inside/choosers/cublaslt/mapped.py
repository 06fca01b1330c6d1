"""Reads what the C library recorded, also in a process that was killed, as ledger lines."""

from __future__ import annotations

import ctypes
import json
import time
from typing import TYPE_CHECKING

from ...faults import PinnerError
from . import fields, layout

if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List

    Line = Dict[str, Any]

CHOOSER, KERNEL = "cublaslt", "matmul"
_STATUS = {
    1: "NOT_INITIALIZED",
    3: "ALLOC_FAILED",
    7: "INVALID_VALUE",
    8: "ARCH_MISMATCH",
    11: "MAPPING_ERROR",
    13: "EXECUTION_FAILED",
    14: "INTERNAL_ERROR",
    15: "NOT_SUPPORTED",
    16: "LICENSE_ERROR",
}
_WHY = {
    "check": "cuBLASLt does not take the locked algorithm here (AlgoCheck returned %(status)s)",
    "workspace": "the locked algorithm needs more workspace than the %(offered)d bytes that were "
    "offered",
    "version": "the lock is of another version of cuBLASLt: install that one, or say --allow "
    "loaded:cublaslt to build its algorithms from their fields",
    "rebuild": "the locked algorithm cannot be built from its fields for this version of cuBLASLt "
    "(%(status)s)",
    "device": "the locked algorithm was recorded on another GPU, %(gpu)s is here: use that one, or "
    "say --allow gpu",
    "fields": "the fields in `algo` are not those of the blob, and the blob is what is forced: one "
    "of both was edited; restore the entry or record again",
    "matmul": "cublasLtMatmul returned %(status)s for the algorithm, %(used)d times; PyTorch then "
    "goes on with another library",
}


class MapFault(PinnerError, ValueError):
    """A map file that this pinner cannot read."""


def lines(path: str) -> List[Line]:
    """Return the ledger lines of one process: who it is, its choices, its problems.

    Nothing where the process was killed before it decided anything. Raises MapFault for a file of
    another layout, or one that was cut.
    """
    with open(path, "rb") as source:
        content = source.read()
    if content[:8] != layout.MAP_MAGIC:
        return []
    if len(content) < ctypes.sizeof(layout.Map):
        raise MapFault("%s is torn: it ends in its head" % path)
    head = layout.Map.from_buffer_copy(content)
    if head.layout != layout.digest():
        raise MapFault("%s was written by another version of pinner: record again" % path)
    records = sorted(_records(path, content, head), key=lambda record: record.time)
    found = [_process(head)]
    for record in records:
        found.extend(_lines_of(record, head))
    found.extend(_legacy(head))
    found.extend(_losses(head, sum(record.state != layout.WHOLE for record in records)))
    return found


def _records(path: str, content: bytes, head: Any) -> Iterator[Any]:
    size = ctypes.sizeof(layout.Record)
    start = ctypes.sizeof(layout.Map)
    if len(content) < start + head.capacity * size:
        raise MapFault("%s is torn: it ends in its records" % path)
    free = bytes(4)
    for number in range(head.capacity):
        at = start + number * size
        if content[at : at + 4] != free:
            yield layout.Record.from_buffer_copy(content, at)


def _process(head: Any) -> Line:
    try:
        line: Line = json.loads(head.process.decode("utf-8", "replace"))
    except ValueError:
        line = {"t": "process"}
    line.update(pid=head.pid, ppid=head.parent, time=_iso(head.time))
    return line


def _iso(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, 10**9)
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return "%s.%03dZ" % (whole, rest // 10**6)


def _lines_of(record: Any, head: Any) -> List[Line]:
    if record.state != layout.WHOLE:
        return []
    kind = layout.KINDS.get(record.kind, "")
    if kind in ("heuristic", "forced", "fallback"):
        return [_choice(record, head, kind)]
    if kind == "asked" and record.used:
        return []  # settled: the answer that was used is a choice of its own
    return [_PROBLEMS[kind](record, head)]


def _key(record: Any, head: Any) -> Line:
    gpu = head.device.decode("utf-8", "replace")
    return dict(fields.problem(list(record.key.value), record.version, gpu))


def _config(record: Any, workspace: bool = True) -> Line:
    needs = record.needs if workspace else None
    values = list(record.fields.value)
    return dict(fields.algorithm(values, record.fields.known, bytes(record.algo), needs))


def _choice(record: Any, head: Any, how: str) -> Line:
    line = {
        "t": "choice",
        "chooser": CHOOSER,
        "kernel": KERNEL,
        "source": "",
        "key": _key(record, head),
        "config": _config(record),
        "alternatives": record.offered,
        "how": how,
        "time": _iso(record.time),
    }
    if record.rebuilt:
        line["notes"] = ["built from its fields: the lock is of another version of cuBLASLt"]
    return line


def _problem(kind: str, text: str, kernel: str = KERNEL, **more: Any) -> Line:
    line = {"t": "problem", "kind": kind, "chooser": CHOOSER, "kernel": kernel, "text": text}
    line.update(more)
    return line


def _missed(record: Any, head: Any) -> Line:
    text = "not in the lock, asked for %d times and refused" % record.asked
    return _problem("missed", text, key=_key(record, head))


def _invalid(record: Any, head: Any) -> Line:
    values = layout.named(layout.KEY_NAMES, record.key.value)
    text = _WHY[layout.REASONS[record.reason]] % {
        "status": _status(record.status),
        "offered": values["workspace"],
        "used": record.used,
        "gpu": head.device.decode("utf-8", "replace") or "another one",
    }
    return _problem("invalid", text, key=_key(record, head), config=_config(record, False))


def _asked(record: Any, head: Any) -> Line:
    text = "%d algorithms were asked for and none of them was used" % record.offered
    return _problem("note", text, key=_key(record, head))


def _refused(record: Any, head: Any) -> Line:
    text = "cuBLASLt has no algorithm for it (%s), asked %d times" % (
        _status(record.status),
        record.asked,
    )
    return _problem("refused", text, key=_key(record, head))


def _bypass(record: Any, head: Any) -> Line:
    text = (
        "%d matmuls of a locked problem, called by %s, used an algorithm that is not the locked one"
    )
    text %= (record.used, _caller(record))
    return _problem("bypass", text, key=_matmul_key(record, head), config=_config(record, False))


def _unasked(record: Any, head: Any) -> Line:
    text = (
        "%d matmuls, called by %s, used an algorithm that no question seen here returned: it "
        "cannot be held" % (record.used, _caller(record))
    )
    return _problem("elsewhere", text, key=_matmul_key(record, head), config=_config(record, False))


def _implicit(record: Any, head: Any) -> Line:
    text = (
        "%d matmuls, called by %s, named no algorithm: cuBLASLt chose one inside, which cannot be "
        "held" % (record.used, _caller(record))
    )
    return _problem("elsewhere", text, key=_matmul_key(record, head))


def _matmul_key(record: Any, head: Any) -> Line:
    """The part of the key that a matmul shows: nobody asked with a preference."""
    key = _key(record, head)
    for name in [field[0] for field in layout.QUESTION]:
        key.pop(name, None)
    return key


def _caller(record: Any) -> str:
    return str(record.caller.decode("utf-8", "replace")) or "an unknown library"


def _status(number: int) -> str:
    return "CUBLAS_STATUS_" + _STATUS[number] if number in _STATUS else "status %d" % number


_PROBLEMS = {
    "missed": _missed,
    "invalid": _invalid,
    "asked": _asked,
    "refused": _refused,
    "bypass": _bypass,
    "unasked": _unasked,
    "implicit": _implicit,
}


def _legacy(head: Any) -> List[Line]:
    found = []
    for number in range(head.symbols):
        symbol = head.symbol[number]
        name = symbol.name.decode("ascii")
        if symbol.calls:
            text = "%s was called %d times: what cuBLAS chooses inside cannot be held" % (
                name,
                symbol.calls,
            )
            found.append(_problem("elsewhere", text, name))
        if symbol.autotuned:
            text = (
                "%s was called %d times with CUBLAS_GEMM_AUTOTUNE (999), which decides by timing, "
                "inside the handle: use another algorithm number" % (name, symbol.autotuned)
            )
            found.append(_problem("elsewhere", text, name))
    return found


def _losses(head: Any, torn: int) -> List[Line]:
    found = []
    if head.lost:
        text = (
            "%d times a decision found no room (%d problems fit) and was not recorded: make more "
            "with PINNER_CUBLASLT_RECORDS" % (head.lost, head.capacity)
        )
        found.append(_problem("bypass", text))
    if head.ambiguous:
        text = (
            "cuBLAS was called by a library that names no version of cuBLAS, and two are loaded: "
            "the lower one was taken (looked up %d times)" % head.ambiguous
        )
        found.append(_problem("bypass", text))
    if torn:
        text = "%d decisions were being written when the process was killed" % torn
        found.append(_problem("note", text))
    return found
