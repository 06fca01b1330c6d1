"""A product of two matrices whose bits change with numpy 2.2.0, because its OpenBLAS does.

Prints the digests of one product in float32 and in float64. Run it with numpy 2.1.3 and with 2.2.0.
Only numpy is needed; which bits are right for this machine depends on its processor.
"""

from __future__ import annotations

import hashlib
import os

import numpy

ROWS, INNER, COLUMNS = 257, 311, 129


def outputs():
    """The products, (ROWS, COLUMNS), of numbers from -0.5 to 0.5 that fill a float64."""
    draw = numpy.random.RandomState(0)  # its numbers are the same in every version of numpy
    left = draw.random_sample((ROWS, INNER)) - 0.5
    right = draw.random_sample((INNER, COLUMNS)) - 0.5
    return {kind: left.astype(kind) @ right.astype(kind) for kind in ("float32", "float64")}


def digest(array):
    """SHA-256 over dtype, shape and the bytes in C order."""
    shape = ",".join(str(size) for size in array.shape)
    found = hashlib.sha256(f"{array.dtype.name}[{shape}]\0".encode())
    found.update(numpy.ascontiguousarray(array).tobytes())
    return "sha256:" + found.hexdigest()


def threads():
    """How many threads OpenBLAS may take, as far as its variables and the machine tell."""
    for name in ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"):
        asked = os.environ.get(name, "")
        if asked.isdigit() and int(asked) > 0:
            return min(int(asked), len(os.sched_getaffinity(0)))
    return len(os.sched_getaffinity(0))


if __name__ == "__main__":
    for name, array in outputs().items():
        print("digest", name, digest(array))
    blas = numpy.show_config(mode="dicts")["Build Dependencies"]["blas"]
    print(f"numpy {numpy.__version__}, {blas['name']} {blas['version']}, threads: {threads()}")
    if threads() == 1:
        print("note: with one thread the two versions give the same bits")
