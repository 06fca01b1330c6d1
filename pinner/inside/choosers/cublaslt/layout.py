"""The layout of the files that the C library and Python share: interpose/layout.h in Python.

`text()` and `places()` are compared with what the compiled library says before it is used, and each
file carries their hash: a library or file of another layout is refused, never misread.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Tuple

    Field = Tuple[str, int, int, int]


def _matrix(name: str) -> List[Field]:
    return [
        (name + "_type", 0, 4, 0),
        (name + "_order", 1, 4, 0),
        (name + "_rows", 2, 8, 0),
        (name + "_cols", 3, 8, 0),
        (name + "_ld", 4, 8, 0),
        (name + "_batch", 5, 4, 1),
        (name + "_stride", 6, 8, 0),
        (name + "_plane", 7, 8, 0),
        (name + "_batch_mode", 8, 4, 0),
    ]


# (name, number of the library's attribute or -1, bytes, default), in the order of the key.
DESC: List[Field] = [
    ("compute", 0, 4, 0),
    ("scale", 1, 4, 0),
    ("pointer_mode", 2, 4, 0),
    ("transa", 3, 4, 0),
    ("transb", 4, 4, 0),
    ("transc", 5, 4, 0),
    ("fill", 6, 4, 2),
    ("epilogue", 7, 4, 1),
    ("bias_stride", 10, 8, 0),
    ("aux_ld", 12, 8, 0),
    ("aux_stride", 13, 8, 0),
    ("alpha_stride", 14, 8, 0),
    ("sm_target", 15, 4, 0),
    ("attribute16", 16, 4, 0),  # in no header; 12.8 and 13.1 answer for it
    ("aux_type", 22, 4, -1),
    ("fast_accum", 25, 1, 0),
    ("bias_type", 26, 4, -1),
    ("sync_rows", 27, 4, 0),  # 27 to 30, atomic synchronisation, are gone in 13
    ("sync_cols", 28, 4, 0),
    ("a_scale_mode", 31, 4, 0),
    ("b_scale_mode", 32, 4, 0),
    ("c_scale_mode", 33, 4, 0),
    ("d_scale_mode", 34, 4, 0),
    ("aux_scale_mode", 35, 4, 0),
    ("d_out_scale_mode", 37, 4, 0),
]
EMULATION: List[Field] = [
    ("emulation_strategy", 0, 4, 0),
    ("emulation_special_values", 1, 4, 0xFFFF),
    ("emulation_mantissa_control", 2, 4, 0),
    ("emulation_mantissa_bits", 3, 4, 0),
    ("emulation_mantissa_offset", 4, 4, 0),
]
POINTERS: List[Field] = [
    ("a_scale", 17, 8, 0),
    ("b_scale", 18, 8, 0),
    ("c_scale", 19, 8, 0),
    ("d_scale", 20, 8, 0),
    ("d_amax", 21, 8, 0),
    ("aux_scale", 23, 8, 0),
    ("aux_amax", 24, 8, 0),
    ("sync_in", 29, 8, 0),
    ("sync_out", 30, 8, 0),
    ("d_out_scale", 36, 8, 0),
]
PREFERENCE: List[Field] = [
    ("search", 0, 4, 0),
    ("workspace", 1, 8, 0),
    ("reduction_mask", 3, 4, 7),
    ("a_align", 5, 4, 256),
    ("b_align", 6, 4, 256),
    ("c_align", 7, 4, 256),
    ("d_align", 8, 4, 256),
    ("max_waves", 9, 4, 0),
    ("impl_mask", 12, 8, -1),
]
PROBLEM: List[Field] = [("major", -1, 0, 0), ("emulation", -1, 0, 0)]
PROBLEM += DESC + EMULATION + _matrix("a") + _matrix("b") + _matrix("c") + _matrix("d")
QUESTION: List[Field] = [("bias_align", -1, 0, 0), ("aux_align", -1, 0, 0), *POINTERS, *PREFERENCE]
ALGO: List[Field] = [
    ("id", 0, 4, 0),
    ("tile", 1, 4, 0),
    ("splitk", 2, 4, 0),
    ("reduction", 3, 4, 0),
    ("swizzle", 4, 4, 0),
    ("custom", 5, 4, 0),
    ("stages", 6, 4, 0),
    ("inner", 7, 2, 0),
    ("cluster", 8, 2, 0),
    ("field10", 10, 2, 0),  # in no header; 12.8 and 13.1 read and set it
]
KEY_NAMES = [field[0] for field in PROBLEM + QUESTION]
ALGO_NAMES = [field[0] for field in ALGO]
DEFAULTS = {field[0]: field[3] for field in PROBLEM + QUESTION}

TEXT, CANDIDATES, SYMBOLS, PROCESS_TEXT, CAPACITY, PREFIX = 64, 16, 96, 8192, 8192, 4096
NAME, CALLS, MATRICES, SCALAR = 48, 64, 5, 16
MAP_MAGIC = b"pinltmap"
PINS_MAGIC = b"pinltpin"

KINDS = {
    1: "heuristic",
    2: "forced",
    3: "fallback",
    4: "missed",
    5: "invalid",
    6: "asked",
    7: "refused",
    8: "bypass",
    9: "unasked",
    10: "implicit",
}
REASONS = {
    0: "",
    1: "check",
    2: "workspace",
    3: "version",
    4: "rebuild",
    5: "device",
    6: "matmul",
    7: "fields",
}
WHOLE = 2
"""The state of a record that was written to its end."""


class Algo(ctypes.Structure):
    """cublasLtMatmulAlgo_t."""

    _fields_ = [("data", ctypes.c_uint64 * 8)]


class Result(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = [
        ("algo", Algo),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int32),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int32 * 4),
    ]


class Key(ctypes.Structure):
    """The question: one word for each name in KEY_NAMES."""

    _fields_ = [("value", ctypes.c_int64 * len(KEY_NAMES))]


class Fields(ctypes.Structure):
    """The decoded algorithm: one word for each name in ALGO_NAMES; bit n of known: field n is."""

    _fields_ = [("value", ctypes.c_int64 * len(ALGO_NAMES)), ("known", ctypes.c_uint64)]


class Record(ctypes.Structure):
    """One decision, or one kind of trouble, for one key."""

    _fields_ = [
        ("state", ctypes.c_uint32),
        ("kind", ctypes.c_uint32),
        ("reason", ctypes.c_uint32),
        ("status", ctypes.c_int32),
        ("version", ctypes.c_int64),
        ("time", ctypes.c_uint64),
        ("asked", ctypes.c_uint64),
        ("used", ctypes.c_uint64),
        ("offered", ctypes.c_uint32),
        ("rebuilt", ctypes.c_uint32),
        ("settles_as", ctypes.c_uint32),
        ("candidates", ctypes.c_uint32),
        ("candidate", ctypes.c_uint64 * CANDIDATES),
        ("candidate_needs", ctypes.c_uint64 * CANDIDATES),
        ("needs", ctypes.c_uint64),
        ("key_hash", ctypes.c_uint64),
        ("problem_hash", ctypes.c_uint64),
        ("algo", Algo),
        ("fields", Fields),
        ("key", Key),
        ("caller", ctypes.c_char * TEXT),
    ]


class Call(ctypes.Structure):
    """One matmul, as a trace hears of it; symbol: of libcublas, whose calls tell nothing else."""

    _fields_ = [
        ("kind", ctypes.c_uint32),
        ("status", ctypes.c_int32),
        ("version", ctypes.c_int64),
        ("algo", Algo),
        ("fields", Fields),
        ("key", Key),
        ("address", ctypes.c_uint64 * MATRICES),
        ("workspace", ctypes.c_uint64),
        ("alpha", ctypes.c_uint8 * SCALAR),
        ("beta", ctypes.c_uint8 * SCALAR),
        ("pointers", ctypes.c_uint64),
        ("symbol", ctypes.c_char * NAME),
    ]


class Symbol(ctypes.Structure):
    """One function of libcublas whose calls are counted."""

    _fields_ = [
        ("name", ctypes.c_char * NAME),
        ("calls", ctypes.c_uint64),
        ("autotuned", ctypes.c_uint64),
    ]


class Map(ctypes.Structure):
    """The head of a map file; records follow."""

    _fields_ = [
        ("magic", ctypes.c_char * 8),
        ("layout", ctypes.c_uint64),
        ("record_size", ctypes.c_uint64),
        ("capacity", ctypes.c_uint64),
        ("pid", ctypes.c_int64),
        ("parent", ctypes.c_int64),
        ("time", ctypes.c_uint64),
        ("enforcing", ctypes.c_uint64),
        ("questions", ctypes.c_uint64),
        ("matmuls", ctypes.c_uint64),
        ("lost", ctypes.c_uint64),
        ("ambiguous", ctypes.c_uint64),
        ("symbols", ctypes.c_uint64),
        ("symbol", Symbol * SYMBOLS),
        ("device", ctypes.c_char * TEXT),
        ("process", ctypes.c_char * PROCESS_TEXT),
        ("record", Record * 0),
    ]


class Pin(ctypes.Structure):
    """One locked algorithm."""

    _fields_ = [
        ("key", Key),
        ("algo", Algo),
        ("fields", Fields),
        ("version", ctypes.c_int64),
        ("needs", ctypes.c_int64),
        ("device", ctypes.c_char * TEXT),
    ]


class Pins(ctypes.Structure):
    """The head of a pins file; pins follow."""

    _fields_ = [
        ("magic", ctypes.c_char * 8),
        ("layout", ctypes.c_uint64),
        ("pin_size", ctypes.c_uint64),
        ("count", ctypes.c_uint64),
        ("pin", Pin * 0),
    ]


class Settings(ctypes.Structure):
    """How a process is told what to do."""

    _fields_ = [
        ("layout", ctypes.c_uint64),
        ("enforcing", ctypes.c_uint64),
        ("on_miss", ctypes.c_uint64),
        ("rebuild", ctypes.c_uint64),
        ("any_gpu", ctypes.c_uint64),
        ("capacity", ctypes.c_uint64),
        ("prefix", ctypes.c_char * PREFIX),
        ("process", ctypes.c_char * PROCESS_TEXT),
    ]


_KINDS_OF_STRUCT = {
    "algo": Algo,
    "result": Result,
    "key": Key,
    "fields": Fields,
    "record": Record,
    "call": Call,
    "symbol": Symbol,
    "map": Map,
    "pin": Pin,
    "pins": Pins,
    "settings": Settings,
}
_WITH_OFFSETS = ("record", "call", "symbol", "map", "pin", "pins", "settings")


def places() -> List[Tuple[str, int]]:
    """Return ("record", size) of each struct, then ("record.kind", offset) of each member."""
    found = [(name, ctypes.sizeof(kind)) for name, kind in _KINDS_OF_STRUCT.items()]
    for name in _WITH_OFFSETS:
        kind: Any = _KINDS_OF_STRUCT[name]
        found += [
            ("%s.%s" % (name, field[0]), getattr(kind, field[0]).offset) for field in kind._fields_
        ]
    return found


def text() -> str:
    """Return the lists as the library exports them."""
    return "| ".join(map(_line, (PROBLEM, QUESTION, ALGO)))


def _line(fields: Iterable[Field]) -> str:
    return "".join("%s:%d:%d:%s " % (n, a, size, _as_c(d)) for n, a, size, d in fields)


def _as_c(default: int) -> str:
    return "0xffff" if default == 0xFFFF else str(default)


def digest() -> int:
    """Return FNV-1a (64 bits) of the lists and of all places, as the library computes it."""
    global _digest
    if not _digest:
        _digest = 0xCBF29CE484222325
        for part in [*text().encode("ascii"), *(at for _, at in places())]:
            _digest = ((_digest ^ part) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return _digest


_digest = 0


def named(names: List[str], values: Iterable[int]) -> Dict[str, int]:
    """Return {name: value} of an array of words."""
    return dict(zip(names, values))
