"""The algorithms by which bytes become a digest, by name; and digests that are read later."""

from __future__ import annotations

import hashlib
import sys
from typing import TYPE_CHECKING

from .. import pins, session
from ..faults import EvidenceError
from . import nh128, nh128_native, tensor_sums

if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple, Union

    Node = Union[str, "Later", "Joined"]


class Algorithm:
    """How the bytes of a tensor or array become a digest.

    name: stands in the lock; digests of different algorithms are never compared
    """

    name = ""

    def digest_tensor(self, tensor: Any) -> str:
        """Return the digest of a plain strided torch tensor: dtype, shape and bytes."""
        raise NotImplementedError

    def digest_bytes(self, dtype: str, shape: Iterable[int], data: Any) -> str:
        """Return the digest of `data`, any object with the buffer protocol, C order."""
        raise NotImplementedError

    def begin_tensor(self, tensor: Any) -> Node:
        """Return the digest, or what will be one when it is read (see `read`)."""
        return self.digest_tensor(tensor)

    def digest_array(self, numpy: Any, dtype: str, array: Any) -> str:
        """Return the digest of a numpy array."""
        return self.digest_bytes(dtype, array.shape, array.tobytes())


class HostSha256(Algorithm):
    """SHA-256 over dtype, shape and bytes, on the host."""

    name = "sha256"

    def digest_tensor(self, tensor: Any) -> str:
        """Copy the tensor to the host, in C order, and hash it."""
        here = tensor.cpu().contiguous()
        return self.digest_bytes(last_name(here.dtype), here.shape, view_of(here))

    def digest_bytes(self, dtype: str, shape: Iterable[int], data: Any) -> str:
        """Hash a header that no other dtype and shape has, then the bytes."""
        header = "%s[%s]" % (dtype, ",".join(str(int(size)) for size in shape))
        state = hashlib.sha256(header.encode("utf-8") + b"\0")
        state.update(data)
        return "sha256:" + state.hexdigest()


class Nh128(Algorithm):
    """nh128 of tensors and arrays, where they live; of all other bytes SHA-256, cut to 128 bits."""

    name = nh128.NAME

    def digest_tensor(self, tensor: Any) -> str:
        """Compute the sums on the tensor's device, and wait for them."""
        return read([self.begin_tensor(tensor)])[0]

    def begin_tensor(self, tensor: Any) -> Node:
        """Start computing on the tensor's device; on the host it is done at once."""
        head = header_of(tensor.dtype, tensor.shape)
        sums = tensor_sums.sums_of(sys.modules["torch"], tensor)
        if isinstance(sums, bytes):
            return nh128.text_of(head, sums)
        return Later(head, sums.reshape(1, 2), 0)

    def digest_bytes(self, dtype: str, shape: Iterable[int], data: Any) -> str:
        """Hash the bytes themselves instead of their sums."""
        return nh128.text_of(nh128.header(dtype, shape), bytes(data))

    def digest_array(self, numpy: Any, dtype: str, array: Any) -> str:
        """Compute the sums of the array's memory."""
        head = nh128.header(dtype, array.shape)
        native = nh128_native.load()
        if native is not None and _can_be_followed(array):
            address, item = array.__array_interface__["data"][0], array.itemsize
            steps = [step // item for step in array.strides]
            return nh128.text_of(head, native.sums_of_view(address, item, array.shape, steps))
        here = numpy.ascontiguousarray(array)
        if native is not None:
            address = here.__array_interface__["data"][0]
            return nh128.text_of(head, native.sums(address, here.nbytes))
        return nh128.text_of(head, sums_by_numpy(numpy, here))


def _can_be_followed(array: Any) -> bool:
    """Whether a numpy array with gaps is of a kind that the compiled library reads by itself."""
    item = array.itemsize
    return bool(
        not array.flags["C_CONTIGUOUS"]
        and isinstance(getattr(array, "strides", None), tuple)
        and item in (1, 2, 4, 8, 16)
        and array.size
        and array.ndim <= nh128_native.MOST_AXES
        and not any(step % item for step in array.strides)
    )


SHA256 = HostSha256()
NH128 = Nh128()
_BY_NAME = {each.name: each for each in (SHA256, NH128)}


def named(name: str) -> Algorithm:
    """Return the algorithm of this name, as a lock has it. Raises EvidenceError for a stranger."""
    if name not in _BY_NAME:
        raise EvidenceError(
            "the lock's evidence has digests by %r, and this pinner knows %s: record again, or "
            "take the pinner that recorded it" % (name, " and ".join(sorted(_BY_NAME)))
        )
    return _BY_NAME[name]


def in_force() -> Algorithm:
    """Return the algorithm of the lock that is enforced here, so that its evidence can be
    compared; else the one for new evidence.
    """
    active = session.current()
    if active is None or not active.enforcing:
        return NH128
    return named(pins.load().algorithm or NH128.name)


class Later:
    """A digest whose sums still lie on a device.

    table: int64 (number, 2); index: the row that belongs to this digest
    """

    __slots__ = ("head", "index", "table")

    def __init__(self, head: bytes, table: Any, index: int) -> None:
        self.head = head
        self.table = table
        self.index = index


class Joined:
    """A digest over the digests of parts, some of which are read later."""

    __slots__ = ("algorithm", "kind", "parts", "shape")

    def __init__(self, algorithm: Algorithm, kind: str, shape: List[int], parts: List[Node]):
        self.algorithm = algorithm
        self.kind = kind
        self.shape = shape
        self.parts = parts

    def text(self, parts: List[str]) -> str:
        """Return the digest, given those of the parts."""
        return self.algorithm.digest_bytes(self.kind, self.shape, "\n".join(parts).encode("ascii"))


def join(algorithm: Algorithm, kind: str, shape: List[int], parts: List[Node]) -> Node:
    """Return one digest over those of parts."""
    joined = Joined(algorithm, kind, shape, parts)
    if all(isinstance(part, str) for part in parts):
        return joined.text(parts)  # type: ignore[arg-type]
    return joined


def read(nodes: Sequence[Node]) -> List[str]:
    """Return the digests as text: one copy from each device, on its current stream."""
    waiting = tables(nodes)
    numbers = _read_tables(waiting) if waiting else {}
    return [_text(node, numbers) for node in nodes]


def tables(nodes: Sequence[Node]) -> List[Any]:
    """Return the device tensors that hold sums of these, each once."""
    found: Dict[int, Any] = {}
    rest: List[Node] = [node for node in nodes if not isinstance(node, str)]
    while rest:
        node = rest.pop()
        if isinstance(node, Later):
            found[id(node.table)] = node.table
        elif isinstance(node, Joined):
            rest.extend(node.parts)
    return list(found.values())


def _read_tables(waiting: List[Any]) -> Dict[int, List[List[int]]]:
    torch = sys.modules["torch"]
    by_device: Dict[Any, List[Any]] = {}
    for table in waiting:
        by_device.setdefault(table.device, []).append(table)
    found: Dict[int, List[List[int]]] = {}
    for here in by_device.values():
        rows = (torch.cat(here) if len(here) > 1 else here[0]).tolist()
        start = 0
        for table in here:
            found[id(table)] = rows[start : start + len(table)]
            start += len(table)
    return found


def _text(node: Node, numbers: Dict[int, List[List[int]]]) -> str:
    if isinstance(node, str):
        return node
    if isinstance(node, Later):
        return nh128.text_of(node.head, nh128.sums_as_bytes(*numbers[id(node.table)][node.index]))
    return node.text([_text(part, numbers) for part in node.parts])


_heads: Dict[Tuple[Any, Any], bytes] = {}
_MOST_HEADS = 4096


def header_of(dtype: Any, shape: Any) -> bytes:
    """Return the header of a torch dtype and shape; the same few come again and again."""
    key = (dtype, shape)
    head = _heads.get(key)
    if head is None:
        if len(_heads) >= _MOST_HEADS:
            _heads.clear()
        head = _heads[key] = nh128.header(last_name(dtype), shape)
    return head


def last_name(name: Any) -> str:
    """Return the last part of a dotted name: `float32` of torch.float32."""
    return str(name).rpartition(".")[2]


def view_of(tensor: Any) -> Any:
    """Return a buffer over the memory of a contiguous tensor on the host. Valid as long as it."""
    import ctypes

    size = tensor.numel() * tensor.element_size()
    if size == 0:
        return b""
    buffer = (ctypes.c_ubyte * size).from_address(tensor.data_ptr())
    buffer._pinner_owner = tensor  # keeps the memory alive
    return buffer


_numpy_ops: Optional[nh128.ArrayOps] = None


def sums_by_numpy(numpy: Any, array: Any) -> bytes:
    """Return A and B of an array without gaps, by numpy alone."""
    global _numpy_ops
    if _numpy_ops is None:
        _numpy_ops = nh128.ArrayOps(
            lambda numbers: numpy.array(numbers, dtype="int64"), nh128.ArrayOps.HOST_BLOCKS
        )
    data = numpy.frombuffer(memoryview(array.tobytes()), dtype="uint8")
    most = _numpy_ops.chunk_blocks * nh128.BLOCK_BYTES
    first = second = 0
    for start in range(0, len(data), most):
        chunk = data[start : start + most]
        words = numpy.zeros(-(-len(chunk) // nh128.BLOCK_BYTES) * nh128.BLOCK_WORDS, "int64")
        words.view("uint8")[: len(chunk)] = chunk
        count = -(-len(chunk) // nh128.WORD_BYTES)
        a, b = _numpy_ops.sums(words, count, start // nh128.BLOCK_BYTES)
        first += int(a[0])
        second += int(b[0])
    return nh128.sums_as_bytes(first, second)
