"""Problems and algorithms of cuBLASLt in words: what a person reads in a lock, and back to numbers.

The numbers are those of cublasLt.h, cublas_api.h and library_types.h of CUDA 13.1. A number without
a name stays a number, and both are read back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...faults import InvalidPin
from . import layout

if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Sequence, Union

    Value = Union[int, str, bool]
    Named = Dict[str, Value]

DATA_TYPES = {
    -1: "unset",
    0: "R_32F",
    1: "R_64F",
    2: "R_16F",
    3: "R_8I",
    4: "C_32F",
    5: "C_64F",
    6: "C_16F",
    7: "C_8I",
    8: "R_8U",
    10: "R_32I",
    14: "R_16BF",
    15: "C_16BF",
    16: "R_4I",
    28: "R_8F_E4M3",
    29: "R_8F_E5M2",
    30: "R_8F_UE8M0",
    31: "R_6F_E2M3",
    32: "R_6F_E3M2",
    33: "R_4F_E2M1",
}
COMPUTE_TYPES = {
    64: "16F",
    65: "16F_PEDANTIC",
    68: "32F",
    69: "32F_PEDANTIC",
    70: "64F",
    71: "64F_PEDANTIC",
    72: "32I",
    73: "32I_PEDANTIC",
    74: "32F_FAST_16F",
    75: "32F_FAST_16BF",
    77: "32F_FAST_TF32",
    78: "32F_EMULATED_16BFX9",
    79: "64F_EMULATED_FIXEDPOINT",
}
OPERATIONS = {0: "N", 1: "T", 2: "C", 3: "CONJG"}
ORDERS = {0: "COL", 1: "ROW", 2: "COL32", 3: "COL4_4R2_8C", 4: "COL32_2R_4R4"}
FILLS = {0: "LOWER", 1: "UPPER", 2: "FULL"}
POINTER_MODES = {
    0: "HOST",
    1: "DEVICE",
    2: "DEVICE_VECTOR",
    3: "ALPHA_DEVICE_VECTOR_BETA_ZERO",
    4: "ALPHA_DEVICE_VECTOR_BETA_HOST",
}
EPILOGUES = {
    1: "DEFAULT",
    2: "RELU",
    4: "BIAS",
    6: "RELU_BIAS",
    32: "GELU",
    36: "GELU_BIAS",
    130: "RELU_AUX",
    134: "RELU_AUX_BIAS",
    136: "DRELU",
    152: "DRELU_BGRAD",
    160: "GELU_AUX",
    164: "GELU_AUX_BIAS",
    192: "DGELU",
    208: "DGELU_BGRAD",
    256: "BGRADA",
    512: "BGRADB",
}
SCALE_MODES = {
    0: "SCALAR_32F",
    1: "VEC16_UE4M3",
    2: "VEC32_UE8M0",
    3: "OUTER_VEC_32F",
    4: "VEC128_32F",
    5: "BLK128x128_32F",
}
SEARCHES = {0: "BEST_FIT", 1: "LIMITED_BY_ALGO_ID"}
BATCH_MODES = {0: "STRIDED", 1: "POINTER_ARRAY"}
BOOLS = {0: False, 1: True}

REDUCTIONS = {0: "NONE", 1: "INPLACE", 2: "COMPUTE_TYPE", 4: "OUTPUT_TYPE"}
_TILES = (
    "UNDEFINED 8x8 8x16 16x8 8x32 16x16 32x8 8x64 16x32 32x16 64x8 32x32 32x64 64x32 32x128 64x64 "
    "128x32 64x128 128x64 64x256 128x128 256x64 64x512 128x256 256x128 512x64 64x96 96x64 96x128 "
    "128x160 160x128 192x128 128x192 128x96 32x256 256x32"
)
_STAGES = (
    "UNDEFINED 16x1 16x2 16x3 16x4 16x5 16x6 32x1 32x2 32x3 32x4 32x5 32x6 64x1 64x2 64x3 64x4 "
    "64x5 64x6 128x1 128x2 128x3 128x4 128x5 128x6 32x10 8x4 16x10 8x5 - - 8x3 8xAUTO 16xAUTO "
    "32xAUTO 64xAUTO 128xAUTO 256xAUTO 768xAUTO"
)
_CLUSTERS = "AUTO - 1x1x1 2x1x1 4x1x1 1x2x1 2x2x1 4x2x1 1x4x1 2x4x1 4x4x1 8x1x1 1x8x1"


def _counted(names: str) -> Dict[int, str]:
    """Names by their place; a dash is a number without one."""
    return {number: name for number, name in enumerate(names.split()) if name != "-"}


TILES = _counted(_TILES)
STAGES = _counted(_STAGES)
CLUSTERS = _counted(_CLUSTERS)
INNER_SHAPES = {0: "UNDEFINED", 1: "MMA884", 2: "MMA1684", 3: "MMA1688", 4: "MMA16816"}

_WORDS_BY_END = (
    ("_scale_mode", SCALE_MODES),
    ("_batch_mode", BATCH_MODES),
    ("_order", ORDERS),
    ("_type", DATA_TYPES),
)
_WORDS: Dict[str, Mapping[int, Value]] = {
    "compute": COMPUTE_TYPES,
    "scale": DATA_TYPES,
    "transa": OPERATIONS,
    "transb": OPERATIONS,
    "transc": OPERATIONS,
    "fill": FILLS,
    "epilogue": EPILOGUES,
    "pointer_mode": POINTER_MODES,
    "search": SEARCHES,
    "fast_accum": BOOLS,
    "emulation": BOOLS,
}
_WORDS.update((field[0], BOOLS) for field in layout.POINTERS)

_SHAPE = ("type", "rows", "cols", "ld")
_ALWAYS = {"compute", "scale", "transa", "transb", "workspace"}
_ALWAYS.update("%s_%s" % (matrix, name) for matrix in "abc" for name in _SHAPE)
_LAYOUT_OF_D = {field[0] for field in layout.PROBLEM if field[0].startswith("d_")}
_LAYOUT_OF_D -= {field[0] for field in layout.DESC}
VERSION, GPU = "cublaslt", "gpu"

ORDER = (
    "splitk",
    "reduction",
    "id",
    "stages",
    "tile",
    "cluster",
    "inner",
    "custom",
    "swizzle",
    "field10",
    "workspace",
    "blob",
)
"""The fields of an algorithm: first those that decide the order of the sum."""

# What a field has room for, and the workspace in the file that the C library maps.
_ALGO_LIMITS = {field[0]: (1 << 8 * field[2]) - 1 for field in layout.ALGO}
_ALGO_LIMITS["workspace"] = (1 << 63) - 1

_TITLES = {
    "splitk": "SPLITK",
    "reduction": "REDUCTION",
    "id": "ALGO_ID",
    "stages": "STAGES",
    "tile": "TILE",
    "cluster": "CLUSTER_SHAPE",
    "inner": "INNER_SHAPE",
    "custom": "CUSTOM",
    "swizzle": "SWIZZLE",
    "field10": "field 10",
    "workspace": "workspace",
}
_ALGO_WORDS = {
    "reduction": REDUCTIONS,
    "stages": STAGES,
    "tile": TILES,
    "cluster": CLUSTERS,
    "inner": INNER_SHAPES,
}


def problem(words: Sequence[int], version: int, gpu: str) -> Named:
    """Return a key as a table of names: what has its default is left out.

    words: as many as layout.KEY_NAMES; the layout of D is left out where it is that of C
    version: of cuBLASLt, as it says itself; gpu: "" where it is not known
    """
    values = layout.named(layout.KEY_NAMES, words)
    found: Named = {VERSION: version}
    if gpu:
        found[GPU] = gpu
    for name, value in values.items():
        if name != "major" and (name in _ALWAYS or value != _default(name, values)):
            found[name] = _word(name, value)
    return found


def words(named: Mapping[str, Any]) -> List[int]:
    """Return the key of a table that `problem` made. Raises InvalidPin, naming the field."""
    unknown = sorted(set(named) - set(layout.KEY_NAMES) - {VERSION, GPU})
    version = named.get(VERSION)
    if unknown or type(version) is not int or not 0 < version < 1 << 31:
        wrong = "no version in `cublaslt`"
        if version is not None:
            wrong = "the version %r in `cublaslt`" % (version,)
        if unknown:
            wrong = "the field %s" % ", ".join(unknown)
        raise InvalidPin(
            "expected a problem of cuBLASLt as this pinner records it, found %s: record again"
            % wrong
        )
    values = {"major": version // 10000}
    for name in layout.KEY_NAMES:
        if name in named:
            values[name] = _number(name, named[name])
        elif name != "major":
            values[name] = _default(name, values)
    return [values[name] for name in layout.KEY_NAMES]


def algorithm(values: Sequence[int], known: int, blob: bytes, workspace: Optional[int]) -> Named:
    """Return a config: the fields this version of the library has, the workspace and the blob."""
    found: Named = {}
    for number, name in enumerate(layout.ALGO_NAMES):
        if known >> number & 1:
            found[name] = int(values[number])
    if workspace is not None:
        found["workspace"] = workspace
    found["blob"] = blob.hex()
    return found


def fault_of(algo: Mapping[str, Any]) -> str:
    """Return why fields of an algorithm, without the blob, can be none of cuBLASLt's; else ""."""
    for name, value in algo.items():
        if name not in _ALGO_LIMITS:
            names = ", ".join(sorted(_ALGO_LIMITS))
            return "%s: expected one of the fields %s" % (name, names)
        most = _ALGO_LIMITS[name]
        if type(value) is not int or not 0 <= value <= most:
            return "%s: expected an integer from 0 to %d, found %r" % (name, most, value)
    return ""


def decode(blob: bytes, library: Any) -> Named:
    """Return the fields of an algorithm as the loaded library (a ctypes.CDLL) reads them."""
    import ctypes

    algo = layout.Algo.from_buffer_copy(blob)
    found: Named = {}
    for name, attribute, size, _ in layout.ALGO:
        value = ctypes.c_uint32(0)
        written = ctypes.c_size_t(0)
        status = library.cublasLtMatmulAlgoConfigGetAttribute(
            ctypes.byref(algo), attribute, ctypes.byref(value), ctypes.c_size_t(size),
            ctypes.byref(written),
        )  # fmt: skip
        if status == 0:
            found[name] = value.value
    return found


def readable(config: Mapping[str, Any]) -> str:
    """Return an algorithm on one line: ``SPLITK 4, REDUCTION INPLACE, ALGO_ID 66, …``."""
    return ", ".join(
        "%s %s" % (_TITLES[name], _algo_word(name, config[name]))
        for name in ORDER
        if name in config and name != "blob"
    )


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> List[str]:
    """Return what differs between two algorithms, such as "SPLITK 4 → 1": split-K first."""
    found = []
    for name in ORDER[:-1]:
        if old.get(name) != new.get(name):
            before, after = (_algo_word(name, each.get(name)) for each in (old, new))
            found.append("%s %s → %s" % (_TITLES[name], before, after))
    if not found and old.get("blob") != new.get("blob"):
        found.append("a part of the algorithm that has no name differs")
    return found


def _algo_word(name: str, value: Any) -> str:
    if value is None:
        return "none"
    return str(_ALGO_WORDS.get(name, {}).get(value, value))


def _default(name: str, values: Mapping[str, int]) -> int:
    """The value that is left out; that of D's layout is C's, since they are mostly one matrix."""
    if name in _LAYOUT_OF_D:
        return values["c_" + name[2:]]
    return layout.DEFAULTS[name]


def _words_of(name: str) -> Mapping[int, Value]:
    for end, table in _WORDS_BY_END:
        if name.endswith(end):
            return table
    return _WORDS.get(name, {})


def _word(name: str, value: int) -> Value:
    return _words_of(name).get(value, value)


def _number(name: str, value: Any) -> int:
    for number, word in _words_of(name).items():
        if type(word) is type(value) and word == value:
            return number
    if isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63:
        return value
    raise InvalidPin(
        "expected a number or a known word for %s in a problem of cuBLASLt, found %r: record again"
        % (name, value)
    )
