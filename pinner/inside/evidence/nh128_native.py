"""The compiled form of nh128 for memory of the host: built on first use, kept, checked, loaded.

The library is kept under a name made of the source, the compiler and the processor, so that
another of either gets its own; it appears by renaming, so that processes which start together
never see half of one. Without a compiler, or where anything fails, there is none: the same digest
is then computed by torch or numpy.
"""

from __future__ import annotations

import ctypes
import os
import threading
from array import array
from typing import TYPE_CHECKING

from .. import c_compiler
from . import nh128

if TYPE_CHECKING:
    from typing import Any, Iterator, List, Optional, Sequence

_FLAGS = ("-O3", "-march=native", "-shared", "-fPIC", "-pthread")
_SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "nh128.c")
_COMPILE_SECONDS = 120

# A thread costs about 20 µs to start; below this one thread is faster.
_BYTES_A_THREAD = 4 << 20
_MOST_THREADS = 16
# Shorter work keeps the interpreter's lock: giving it up can cost more than the work.
_SHORT_BYTES = 256 << 10

# Axes that the library can follow; torch has no tensors with more than 64.
MOST_AXES = 32

Pair = ctypes.c_uint64 * 2


class Native:
    """The loaded library."""

    def __init__(self, path: str) -> None:
        held, free = ctypes.PyDLL(path), ctypes.CDLL(path)
        self._holding: Any = held.pinner_nh128
        self._freeing: Any = free.pinner_nh128
        self._many_holding: Any = held.pinner_nh128_many
        self._many_freeing: Any = free.pinner_nh128_many
        for function in (self._holding, self._freeing):
            function.argtypes = [
                ctypes.c_void_p,
                ctypes.c_uint64,
                ctypes.c_uint64,
                ctypes.c_uint32,
                Pair,
            ]
            function.restype = None
        self._view_holding: Any = held.pinner_nh128_view
        self._view_freeing: Any = free.pinner_nh128_view
        for function in (self._view_holding, self._view_freeing):
            function.argtypes = [
                ctypes.c_void_p,
                ctypes.c_uint64,
                ctypes.c_uint64,
                ctypes.c_uint64,
                ctypes.c_void_p,
                ctypes.c_void_p,
                Pair,
            ]
            function.restype = None
        for function in (self._many_holding, self._many_freeing):
            function.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_uint64, ctypes.c_void_p]
            function.restype = None

    def add(self, address: int, size: int, block: int, sums: Any, threads: int = 0) -> None:
        """Add the sums of `size` bytes at `address` to `sums`, a `Pair`.

        block: the number of the first block there
        threads: how many to use; 0 chooses
        """
        if size <= _SHORT_BYTES:
            self._holding(address, size, block, 1, sums)
        else:
            self._freeing(address, size, block, threads or threads_for(size), sums)

    def sums(self, address: int, size: int, threads: int = 0) -> bytes:
        """Return A and B of `size` bytes at `address` as 16 bytes."""
        found = Pair()
        self.add(address, size, 0, found, threads)
        return bytes(found)

    def sums_of_view(
        self, address: int, item: int, shape: Sequence[int], strides: Sequence[int]
    ) -> bytes:
        """Return A and B of memory with gaps, of which nothing but a block is copied.

        address: of the first element
        item: bytes of an element, 1 to 16
        shape, strides: at least one axis, at most `MOST_AXES`, no size 0; strides in elements
        """
        found = Pair()
        sizes = array("q", shape)
        steps = array("q", [stride * item for stride in strides])
        count = 1
        for size in shape:
            count *= size
        function = self._view_holding if count * item <= _SHORT_BYTES else self._view_freeing
        where = sizes.buffer_info()[0], steps.buffer_info()[0]
        function(address, item, count, len(sizes), *where, found)
        return bytes(found)

    def sums_of_many(self, addresses: array[int], sizes: array[int]) -> bytes:
        """Return A and B of many pieces of memory, 16 bytes each, in their order.

        addresses, sizes: arrays of type "Q"
        """
        found = array("Q", bytes(16 * len(sizes)))
        if max(sizes) >= 2 * _BYTES_A_THREAD:
            return b"".join(map(self.sums, addresses, sizes))
        function = self._many_holding if sum(sizes) <= _SHORT_BYTES else self._many_freeing
        function(
            addresses.buffer_info()[0],
            sizes.buffer_info()[0],
            len(sizes),
            found.buffer_info()[0],
        )
        return found.tobytes()


def threads_for(size: int) -> int:
    """Return how many threads pay for this many bytes: no more than torch may use."""
    if size < 2 * _BYTES_A_THREAD:
        return 1
    return max(1, min(size // _BYTES_A_THREAD, _allowed_threads(), _MOST_THREADS))


def _allowed_threads() -> int:
    import sys

    torch = sys.modules.get("torch")
    count = getattr(torch, "get_num_threads", None)
    here = len(os.sched_getaffinity(0))
    return here if count is None else min(here, int(count()))


_lock = threading.Lock()
_asked = False
_native: Optional[Native] = None


def load() -> Optional[Native]:
    """Return the library, built if need be; None where there can be none."""
    global _asked, _native
    if _asked:
        return _native
    with _lock:
        if not _asked:
            _native = _load()
            _asked = True
    return _native


def forget() -> None:
    """Make the next `load` look again, as a new process does."""
    global _asked, _native
    with _lock:
        _asked, _native = False, None


def _load() -> Optional[Native]:
    if not nh128.little_endian():
        return None
    compiler = _compiler()
    if compiler is None:
        return None
    try:
        with open(_SOURCE, "rb") as file:
            source = file.read()
    except OSError:
        return None
    name = "nh128-%s.so" % _key(source, compiler)
    for folder in _folders():
        path = os.path.join(folder, name)
        if not os.path.exists(path) and not _build(compiler, folder, path):
            continue
        native = _checked(path)
        if native is not None:
            return native
    return None


def _compiler() -> Optional[List[str]]:
    try:
        words = c_compiler.wanted(os.environ)
    except ValueError:  # as if CC named nothing: a digest needs no compiler
        words = []
    for each in (words, *([name] for name in c_compiler.NAMES)):
        found = c_compiler.program(each, os.environ)
        if found is not None:
            return found
    return None


def _key(source: bytes, compiler: List[str]) -> str:
    """Name the source, the compiler as a file, the flags and the processor's instructions."""
    import hashlib

    parts = [c_compiler.identity(compiler), *_FLAGS, os.uname().machine, _instructions()]
    return hashlib.sha256(source + "\n".join(parts).encode("utf-8")).hexdigest()[:24]


def _instructions() -> str:
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith(("flags", "Features")):
                    return line.strip()
    except OSError:
        pass
    return ""


def _folders() -> Iterator[str]:
    """Where the library may be kept: the user's cache, else a folder of the user's in the
    temporary one. Code is loaded from there, so nobody else may be able to write to it.
    """
    import tempfile

    named = os.environ.get(c_compiler.CACHE)
    own = os.path.join(tempfile.gettempdir(), "pinner-%d" % os.getuid())
    for folder in [named] if named else [c_compiler.user_cache(os.environ), own]:
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            state = os.stat(folder)
        except OSError:
            continue
        if state.st_uid == os.getuid() and not state.st_mode & 0o022:
            yield folder


def _build(compiler: List[str], folder: str, path: str) -> bool:
    """Compile to a name of our own, then rename; whoever is last wins, with the same content."""
    import subprocess

    own = os.path.join(folder, ".nh128-%d-%s.so" % (os.getpid(), os.urandom(4).hex()))
    try:
        for flags in (_FLAGS, tuple(flag for flag in _FLAGS if flag != "-march=native")):
            command = [*compiler, *flags, "-o", own, _SOURCE]
            done = c_compiler.run(command, timeout=_COMPILE_SECONDS)
            if done.returncode == 0:
                os.rename(own, path)
                return True
    except (OSError, subprocess.SubprocessError):
        pass
    try:  # noqa: SIM105
        os.unlink(own)
    except OSError:
        pass
    return False


# A and B of `check_bytes()`, which has whole blocks, a whole row and a part of a word.
CHECK = (0x09F28F7B7C513BEB, 0x2F8398E89ADA54C7)


def check_bytes() -> bytes:
    """Return what a fresh library is tried on."""
    return bytes((7 * i * i + 3 * i) & 0xFF for i in range(2 * nh128.BLOCK_BYTES + 203))


def _checked(path: str) -> Optional[Native]:
    """Load the library and try it: a wrong one would be worse than none."""
    data = check_bytes()
    memory = (ctypes.c_char * len(data)).from_buffer_copy(data)
    try:
        native = Native(path)
        found = native.sums(ctypes.addressof(memory), len(data), 2)
    except (OSError, AttributeError):
        return None
    return native if found == nh128.sums_as_bytes(*CHECK) else None


def _after_fork() -> None:
    """Another thread of the parent may have held the lock."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
