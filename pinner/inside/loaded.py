"""Versions of the CUDA libraries this process has loaded, as they report them themselves.

A library's file name or distribution may say something else than what the loader found first.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Callable, Dict, Iterable, List, Optional, Union

# Functions that return a constant and start nothing. cuBLAS itself needs a handle to say its
# version; it is released together with cuBLASLt.
_PLAIN = {
    "libcublasLt.so": ("cublaslt", "cublasLtGetVersion"),
    "libcudnn.so": ("cudnn", "cudnnGetVersion"),
}
_BY_POINTER = {
    "libnccl.so": ("nccl", "ncclGetVersion"),
    "libcudart.so": ("cudart", "cudaRuntimeGetVersion"),
}


def versions() -> Dict[str, Union[str, int]]:
    """Return {"loaded:cublaslt": 130002, …}; nothing for a library that is not loaded."""
    files = mapped_files()
    found: Dict[str, Union[str, int]] = {}
    for table, ask in ((_PLAIN, _plain), (_BY_POINTER, _by_pointer)):
        for stem, (name, function) in table.items():
            _add(found, name, _versions_of(copies(files, stem), function, ask))
    return found


def copies(files: Iterable[str], stem: str) -> List[str]:
    """Return the files of one library, such as "libcudnn.so": itself or with a version. Pure."""
    bases = ((os.path.basename(path), path) for path in files)
    return sorted({path for base, path in bases if base == stem or base.startswith(stem + ".")})


def _add(found: Dict[str, Union[str, int]], name: str, seen: List[int]) -> None:
    if len(seen) == 1:
        found["loaded:" + name] = seen[0]
    elif seen:  # two copies: which of them a caller gets depends on the order of loading
        found["loaded:" + name] = " and ".join(map(str, seen))


def mapped_files() -> List[str]:
    """Return the files that are mapped into this process, sorted."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as source:
            lines = source.read().splitlines()
    except OSError:
        return []
    columns = (line.split(None, 5) for line in lines)
    return sorted({row[5] for row in columns if len(row) == 6 and row[5].startswith("/")})


def _versions_of(
    paths: List[str], function: str, ask: Callable[[object, str], Optional[int]]
) -> List[int]:
    if not paths:
        return []
    import ctypes

    seen = set()
    for path in paths:
        try:  # never loads anything: only what is loaded already is opened
            library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
            version = ask(library, function)
        except (OSError, AttributeError):
            continue
        if version is not None:
            seen.add(version)
    return sorted(seen)


def _plain(library: object, function: str) -> Optional[int]:
    import ctypes

    call = getattr(library, function)
    call.restype = ctypes.c_size_t
    return int(call())


def _by_pointer(library: object, function: str) -> Optional[int]:
    import ctypes

    value = ctypes.c_int()
    status = getattr(library, function)(ctypes.byref(value))
    return value.value if status == 0 else None
