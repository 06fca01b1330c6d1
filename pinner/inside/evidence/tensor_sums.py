"""The sums of nh128 of plain strided torch tensors, computed where each tensor lives.

On the host by the compiled library, on a GPU by the Triton kernel; by torch operations on the
device where there is neither. A tensor with gaps is copied piece by piece, never as a whole.
"""

from __future__ import annotations

import ctypes
import os
import threading
from typing import TYPE_CHECKING

from . import nh128, nh128_native, nh128_triton

if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Sequence, Union

    # 16 bytes, or two int64 on a device that are read later.
    Sums = Union[bytes, Any]

# The largest piece of a tensor with gaps that is copied at once.
HOST_PIECE = 1 << 20
DEVICE_PIECE = 32 << 20

_lock = threading.Lock()
_ops: Dict[Any, nh128.ArrayOps] = {}
_without_triton = False


def sums_of(torch: Any, tensor: Any) -> Sums:
    """Return the sums of a tensor's bytes in logical order.

    tensor: strided, of any device that torch can copy on; not conjugated, nor negated lazily
    """
    plain = bits_of(torch, tensor)
    if _copied_by_library(plain):
        native = nh128_native.load()
        if native is not None:
            item = plain.element_size()
            return native.sums_of_view(plain.data_ptr(), item, plain.shape, plain.stride())
    if kernels_for(tensor.device) is None:
        return _added(torch, plain, _adder_for(torch, tensor.device))
    try:
        return _added(torch, plain, _adder_for(torch, tensor.device))
    except Exception:  # Triton's own errors have no common class
        give_up_triton()
        return _added(torch, plain, _adder_for(torch, tensor.device))


def _copied_by_library(plain: Any) -> bool:
    """Whether this is memory with gaps that the compiled library could follow."""
    if plain.device.type != "cpu" or plain.is_contiguous():
        return False
    return bool(0 < plain.dim() <= nh128_native.MOST_AXES and plain.numel())


def _added(torch: Any, plain: Any, adder: Any) -> Sums:
    limit = HOST_PIECE if plain.device.type == "cpu" else DEVICE_PIECE
    if plain.is_contiguous() or plain.numel() * plain.element_size() <= limit:
        adder.add(_bytes_of(torch, plain.contiguous()), 0)
        return adder.sums()
    joint = _Joint(torch, adder, plain.device)
    for piece in pieces(plain, limit):
        joint.take(_bytes_of(torch, piece))
    joint.end()
    return adder.sums()


def bits_of(torch: Any, tensor: Any) -> Any:
    """Return the tensor as integers of the same size, so that every dtype can be copied."""
    tensor = tensor.detach()
    size = tensor.element_size()
    if size == 16:  # no integer is as large
        tensor, size = torch.view_as_real(tensor), 8
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
    return tensor if tensor.dtype == integer else tensor.view(integer)


def pieces(tensor: Any, limit: int, always: bool = False) -> Iterator[Any]:
    """Yield tensors without gaps that follow each other in it, of about `limit` bytes at most.

    always: also where the tensor has no gaps itself; else that is one piece
    """
    size = tensor.numel() * tensor.element_size()
    if size <= limit or (tensor.is_contiguous() and not always):
        if size:
            yield tensor.contiguous()
        return
    inner = size // len(tensor)
    if inner > limit:
        for part in tensor:
            yield from pieces(part, limit, always)
        return
    step = limit // inner
    for start in range(0, len(tensor), step):
        yield tensor[start : start + step].contiguous()


def _bytes_of(torch: Any, contiguous: Any) -> Any:
    return contiguous.reshape(-1).view(torch.uint8)


class _Joint:
    """Gives pieces of any size on as whole blocks; only the last one ends within a block."""

    def __init__(self, torch: Any, adder: Any, device: Any) -> None:
        self._adder = adder
        self._kept = torch.empty(nh128.BLOCK_BYTES, dtype=torch.uint8, device=device)
        self._held = 0
        self._block = 0

    def take(self, data: Any) -> None:
        """Take the next bytes."""
        if self._held:
            missing = min(nh128.BLOCK_BYTES - self._held, data.numel())
            self._kept[self._held : self._held + missing].copy_(data[:missing])
            self._held += missing
            data = data[missing:]
            if self._held < nh128.BLOCK_BYTES:
                return
            self._give(self._kept)
        whole = data.numel() // nh128.BLOCK_BYTES * nh128.BLOCK_BYTES
        self._give(data[:whole])
        self._held = data.numel() - whole
        self._kept[: self._held].copy_(data[whole:])

    def end(self) -> None:
        """Give what is left."""
        self._give(self._kept[: self._held])

    def _give(self, data: Any) -> None:
        if data.numel():
            self._adder.add(data, self._block)
            self._block += data.numel() // nh128.BLOCK_BYTES


class OnHost:
    """By the compiled library."""

    def __init__(self, native: nh128_native.Native) -> None:
        self._native = native
        self._sums = nh128_native.Pair()

    def add(self, data: Any, block: int) -> None:
        self._native.add(data.data_ptr(), data.numel(), block, self._sums)

    def sums(self) -> bytes:
        return bytes(self._sums)


class OnGpu:
    """By the Triton kernel."""

    def __init__(self, torch: Any, kernels: nh128_triton.Kernels, device: Any) -> None:
        self._torch = torch
        self._kernels = kernels
        self._sums = torch.zeros(2, dtype=torch.int64, device=device)

    def add(self, data: Any, block: int) -> None:
        self._kernels.add(self._torch, data, block, self._sums)

    def sums(self) -> Any:
        return self._sums


class ByTorch:
    """By torch operations on the device."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch = torch
        self._device = device
        self._ops = _ops_on(torch, device)
        self._sums: Any = None

    def add(self, data: Any, block: int) -> None:
        most = self._ops.chunk_blocks * nh128.BLOCK_BYTES
        for start in range(0, data.numel(), most):
            self._add(data[start : start + most], block + start // nh128.BLOCK_BYTES)

    def _add(self, data: Any, block: int) -> None:
        size = data.numel()
        words = self._words(data, size)
        first, second = self._ops.sums(words, -(-size // nh128.WORD_BYTES), block)
        found = self._torch.cat((first, second))
        self._sums = found if self._sums is None else self._sums + found

    def _words(self, data: Any, size: int) -> Any:
        """The bytes as int64, whole blocks; a copy only where they are not that already."""
        torch = self._torch
        aligned = data.storage_offset() % 8 == 0 and data.data_ptr() % 8 == 0
        whole = size // nh128.BLOCK_BYTES * nh128.BLOCK_BYTES if aligned else 0
        if whole == size:
            return data.view(torch.int64)
        blocks = -(-size // nh128.BLOCK_BYTES)
        words = torch.zeros(blocks * nh128.BLOCK_WORDS, dtype=torch.int64, device=self._device)
        if whole:
            words[: whole // 8].copy_(data[:whole].view(torch.int64))
        words.view(torch.uint8)[whole:size].copy_(data[whole:])
        return words

    def sums(self) -> Sums:
        found = self._sums
        if found is None:
            found = self._torch.zeros(2, dtype=self._torch.int64, device=self._device)
        return nh128.sums_as_bytes(*found.tolist()) if self._device.type == "cpu" else found


def _adder_for(torch: Any, device: Any) -> Any:
    if device.type == "cpu":
        native = nh128_native.load()
        return ByTorch(torch, device) if native is None else OnHost(native)
    kernels = kernels_for(device)
    return ByTorch(torch, device) if kernels is None else OnGpu(torch, kernels, device)


def kernels_for(device: Any) -> Optional[nh128_triton.Kernels]:
    """Return the Triton kernels for a device; None where there is no Triton for it."""
    if _without_triton or device.type not in ("cuda", "xpu"):
        return None
    try:
        return nh128_triton.load()
    except Exception:  # whatever a Triton that is broken or too old raises: torch can do it
        give_up_triton()
        return None


def sums_of_small(torch: Any, addresses: Sequence[int], sizes: Sequence[int]) -> List[bytes]:
    """Return the sums of many pieces of the host's memory of at most one block, by torch.

    Those of about one size are laid side by side: an operation costs more than its numbers here.
    """
    ops = _ops_on(torch, torch.device("cpu"))
    groups: Dict[int, List[int]] = {}
    for number, size in enumerate(sizes):
        rows = 1 << max(0, size - 1).bit_length() >> 6  # a row has 64 bytes
        groups.setdefault(max(1, rows), []).append(number)
    found = [b""] * len(sizes)
    for rows, numbers in groups.items():
        most = ops.chunk_blocks * nh128.ROWS // rows
        for start in range(0, len(numbers), most):
            part = numbers[start : start + most]
            words = torch.zeros((len(part), rows, nh128.COLUMNS), dtype=torch.int64, device="cpu")
            to = words.data_ptr()
            for place, number in enumerate(part):
                ctypes.memmove(to + 64 * rows * place, addresses[number], sizes[number])
            counts = [-(-sizes[number] // nh128.WORD_BYTES) for number in part]
            sums = ops.each(words, torch.tensor(counts, dtype=torch.int64, device="cpu"))
            for number, first, second in zip(part, sums[0].tolist(), sums[1].tolist()):
                found[number] = nh128.sums_as_bytes(first, second)
    return found


def give_up_triton() -> None:
    """Use torch from now on: the kernel could not be built or launched here."""
    global _without_triton
    _without_triton = True


def _ops_on(torch: Any, device: Any) -> nh128.ArrayOps:
    with _lock:
        ops = _ops.get(device)
        if ops is None:

            def int64(numbers: Any) -> Any:
                return torch.tensor(numbers, dtype=torch.int64, device="cpu").to(device)

            here = device.type == "cpu"
            size = nh128.ArrayOps.HOST_BLOCKS if here else nh128.ArrayOps.DEVICE_BLOCKS
            ops = _ops[device] = nh128.ArrayOps(int64, size)
        return ops


def _after_fork() -> None:
    """Another thread of the parent may have held the lock."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
