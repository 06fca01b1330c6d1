"""Renders a call of cuBLASLt as repro.py: ctypes and the standard library, nothing else.

It takes libcublasLt and libcudart, of the wheels or of the system. Prototypes and numbers are those
of cublasLt.h and library_types.h (12.8 and 13.1), as pinner/inside/choosers/cublaslt has them.
"""

from __future__ import annotations

import struct
import textwrap
from collections.abc import Iterator, Mapping

from pinner.inside.choosers.cublaslt import fields, layout
from stackbisect.repro.calls import Program, elements
from stackbisect.repro.form import SCRIPT
from stackbisect.repro.read_cublaslt import DTYPES, ITEMSIZE, Matmul, shape_of

INPUTS = "inputs.bin"


def files(program: Program) -> dict[str, bytes]:
    """repro.py, and the operands in inputs.bin."""
    data = b""
    operands = {}
    for name, one in program.inputs.items():
        bits = elements(one, program.storage(name))
        operands[name] = (len(data), len(bits))
        data += bits
    text = "".join(_pieces(program, program.kernel, operands))
    return {SCRIPT: text.encode("utf-8"), INPUTS: data}


def _pieces(
    program: Program, matmul: Matmul, operands: Mapping[str, tuple[int, int]]
) -> Iterator[str]:
    problem = matmul.problem
    yield f'"""{program.operation}: one call of cublasLtMatmul, on a GPU.\n\n'
    yield "Needs libcublasLt and libcudart, of NVIDIA's wheels or of the system. Prints the\n"
    yield "SHA-256 over dtype, shape and bytes of D, without its gaps.\n"
    yield '"""\n' + _IMPORTS
    yield "\n# Attributes that are not the defaults: number in cublasLt.h, bytes, value.\n"
    yield f"DESCRIPTION = {_table(_description(problem))}\n"
    yield "# Type, rows, columns and leading dimension, then other attributes.\n"
    for name in "abcd":
        yield f"{name.upper()} = {_matrix(problem, name)}\n"
    yield f"COMPUTE, SCALE = {problem['compute']}, {problem['scale']}"
    yield f"  # {_word(fields.COMPUTE_TYPES, problem['compute'])}, "
    yield f"{_word(fields.DATA_TYPES, problem['scale'])}\n"
    yield f"ALPHA = {_scalar(problem, matmul.alpha)}\nBETA = {_scalar(problem, matmul.beta)}\n"
    yield f"WORKSPACE = {matmul.workspace}\n"
    yield "# Of the addresses, in bytes; 256 stands for more, too.\n"
    yield f"ALIGNMENT = {_plain(matmul.alignment)}\n"
    yield "# Where each operand lies in inputs.bin, and its bytes.\n"
    yield f"OPERANDS = {_plain(operands)}\n"
    if matmul.algorithm:
        words = fields.readable({**matmul.algorithm})
        yield from (f"# {line}\n" for line in textwrap.wrap(words, 92))
        yield f"ALGORITHM = {_table(_algorithm(matmul))}\n"
        yield f"# The same as version {matmul.version} of the library holds it.\n"
        yield f'VERSION, BLOB = {matmul.version}, bytes.fromhex(\n    "{matmul.blob[:32].hex()}"\n'
        yield f'    "{matmul.blob[32:].hex()}"\n)\n'
    yield f'RESULT = "{DTYPES[problem["d_type"]]}", {shape_of(problem)}, '
    yield f"{ITEMSIZE[problem['d_type']]}\n"
    lines = f"LINE, BATCH = {problem['d_ld']}, {problem['d_stride']}"
    yield lines + "  # elements from one line of D to the next, from one batch to the next\n"
    yield _BODY
    yield _FORCED if matmul.algorithm else _ASKED
    yield _END


def _description(problem: Mapping[str, int]) -> dict[str, tuple[int, int, int]]:
    return {
        name: (attribute, size, problem[name])
        for name, attribute, size, default in layout.DESC
        if name not in ("compute", "scale") and problem[name] != default
    }


def _matrix(problem: Mapping[str, int], name: str) -> str:
    kind, rows, cols, ld = (problem[f"{name}_{each}"] for each in ("type", "rows", "cols", "ld"))
    more = {
        field.removeprefix(name + "_"): (attribute, size, problem[field])
        for field, attribute, size, default in layout.PROBLEM
        if field in {f"{name}_{each}" for each in ("order", "batch", "stride")}
        and problem[field] != default
    }
    return f"({kind}, {rows}, {cols}, {ld}, {_plain(more)})  # {_word(fields.DATA_TYPES, kind)}"


def _algorithm(matmul: Matmul) -> dict[str, tuple[int, int, int]]:
    return {
        name: (attribute, size, matmul.algorithm[name])
        for name, attribute, size, _ in layout.ALGO
        if name in matmul.algorithm
    }


def _word(names: Mapping[int, str], number: int) -> str:
    return names.get(number, str(number))


def _table(rows: Mapping[str, tuple[int, int, int]]) -> str:
    lines = [f'    "{name}": {row},\n' for name, row in rows.items()]
    return "{\n" + "".join(lines) + "}" if lines else "{}"


def _plain(rows: Mapping[str, object]) -> str:
    return "{" + ", ".join(f'"{name}": {value}' for name, value in rows.items()) + "}"


def _scalar(problem: Mapping[str, int], data: bytes) -> str:
    """Alpha or beta in the type of `scale`, and what it says where that is a plain number."""
    data = data[: ITEMSIZE.get(problem["scale"], len(data))]
    letter = {0: "f", 1: "d", 2: "e", 10: "i"}.get(problem["scale"])
    said = f"  # {struct.unpack('<' + letter, data)[0]}" if letter else ""
    return f'bytes.fromhex("{data.hex()}"){said}'


_IMPORTS = """
import ctypes
import glob
import hashlib
import os
import sys
"""

_BODY = '''

class Algorithm(ctypes.Structure):
    """cublasLtMatmulAlgo_t."""

    _fields_ = [("data", ctypes.c_uint64 * 8)]


class Found(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = [
        ("algorithm", Algorithm),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


def library(name):
    """The newest that is installed: of the wheels, else of the system."""
    for major in (13, 12, 11):
        file = "lib%s.so.%d" % (name, major)
        wheels = [os.path.join(each, "nvidia", "*", "lib", file) for each in sys.path]
        for path in [*(path for each in wheels for path in glob.glob(each)), file]:
            try:
                return ctypes.CDLL(path)
            except OSError:
                continue
    sys.exit("lib%s.so is not installed" % name)


def checked(status, what):
    """Stop where a library says that something went wrong."""
    if status:
        sys.exit("%s: status %d" % (what, status))


lt, cuda = library("cublasLt"), library("cudart")
lt.cublasLtGetVersion.restype = ctypes.c_size_t
pointer, size_t, word = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int


def call(name, *arguments):
    """Call a function of cuBLASLt."""
    checked(getattr(lt, name)(*arguments), name)


def set_all(kind, target, attributes):
    """Set attributes of a descriptor, a layout, a preference or an algorithm."""
    for number, size, value in attributes.values():
        data = ctypes.create_string_buffer(value.to_bytes(size, "little", signed=value < 0), size)
        call(kind + "SetAttribute", target, word(number), data, size_t(size))


def layout(kind, rows, cols, ld, more):
    """The layout of a matrix."""
    made = pointer()
    sizes = ctypes.c_uint64(rows), ctypes.c_uint64(cols), ctypes.c_int64(ld)
    call("cublasLtMatrixLayoutCreate", ctypes.byref(made), word(kind), *sizes)
    set_all("cublasLtMatrixLayout", made, more)
    return made


def memory(name, size):
    """Memory of the device that is aligned as this operand was."""
    made = pointer()
    checked(cuda.cudaMalloc(ctypes.byref(made), size_t(size + 512)), "cudaMalloc")
    return made.value + ALIGNMENT.get(name, 256) % 256


def stored(name):
    """The address of an operand, with its bytes."""
    start, size = OPERANDS[name]
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "inputs.bin"), "rb") as file:
        data = file.read()[start : start + size]
    address = memory(name, size)
    checked(cuda.cudaMemcpy(pointer(address), data, size_t(size), word(1)), "cudaMemcpy")
    return address

'''

_FORCED = '''
def algorithm(handle, description, layouts):
    """The algorithm of above; built from its fields where the library is of another version."""
    if lt.cublasLtGetVersion() == VERSION:
        return Algorithm.from_buffer_copy(BLOB)
    made, found = Algorithm(), Found()
    types = [word(each[0]) for each in (A, B, C, D)]
    number = word(ALGORITHM["id"][2])
    name = "cublasLtMatmulAlgo"
    call(name + "Init", handle, word(COMPUTE), word(SCALE), *types, number, ctypes.byref(made))
    fields = {name: each for name, each in ALGORITHM.items() if name != "id"}
    set_all(name + "Config", ctypes.byref(made), fields)
    call(name + "Check", handle, description, *layouts, ctypes.byref(made), ctypes.byref(found))
    return found.algorithm

'''

_ASKED = '''
def algorithm(handle, description, layouts):
    """What the heuristic answers first."""
    preference, found, count = pointer(), Found(), word()
    call("cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
    asked = {"workspace": (1, 8, WORKSPACE)}
    for number, name in ((5, "a"), (6, "b"), (7, "c"), (8, "d")):
        asked[name] = (number, 4, ALIGNMENT.get(name, 256))
    set_all("cublasLtMatmulPreference", preference, asked)
    arguments = *layouts, preference, word(1), ctypes.byref(found), ctypes.byref(count)
    call("cublasLtMatmulAlgoGetHeuristic", handle, description, *arguments)
    if count.value < 1:
        sys.exit("the heuristic has no algorithm for it")
    return found.algorithm

'''

_END = '''
class Result:
    """D, with its gaps left out."""

    def __init__(self, data):
        name, self.shape, size = RESULT
        self.dtype = type("dtype", (), {"name": name})
        batches, lines, length = self.shape
        starts = [(b * BATCH + n * LINE) * size for b in range(batches) for n in range(lines)]
        self.data = b"".join(data[start : start + length * size] for start in starts)

    def tobytes(self):
        return self.data


def outputs():
    """What the call gives."""
    handle, description = pointer(), pointer()
    made = ctypes.byref(description)
    call("cublasLtMatmulDescCreate", made, word(COMPUTE), word(SCALE))
    set_all("cublasLtMatmulDesc", description, DESCRIPTION)
    layouts = [layout(*each) for each in (A, B, C, D)]
    call("cublasLtCreate", ctypes.byref(handle))
    operands = {name: stored(name) for name in OPERANDS}
    if "bias" in operands:
        set_all("cublasLtMatmulDesc", description, {"bias": (8, 8, operands["bias"])})
    batches, lines, length = RESULT[1]
    size = ((batches - 1) * BATCH + (lines - 1) * LINE + length) * RESULT[2]
    d = memory("d", size)
    c = operands.get("c", d)
    chosen = algorithm(handle, description, layouts)
    workspace = pointer(memory("workspace", WORKSPACE)) if WORKSPACE else None
    call(
        "cublasLtMatmul",
        *(handle, description, ALPHA),
        *(pointer(operands["a"]), layouts[0], pointer(operands["b"]), layouts[1], BETA),
        *(pointer(c), layouts[2], pointer(d), layouts[3]),
        *(ctypes.byref(chosen), workspace, size_t(WORKSPACE), None),
    )
    checked(cuda.cudaDeviceSynchronize(), "cudaDeviceSynchronize")
    data = ctypes.create_string_buffer(size)
    checked(cuda.cudaMemcpy(data, pointer(d), size_t(size), word(2)), "cudaMemcpy")
    return {"d": Result(data.raw)}


def digest(value):
    """SHA-256 over dtype, shape and bytes."""
    shape = ",".join(str(size) for size in value.shape)
    found = hashlib.sha256((value.dtype.name + "[" + shape + "]\\0").encode())
    found.update(value.tobytes())
    return "sha256:" + found.hexdigest()


if __name__ == "__main__":
    print("cuBLASLt", lt.cublasLtGetVersion(), file=sys.stderr)
    for name, value in outputs().items():
        print("digest", name, digest(value))
'''
