"""Digests of values: dtype, shape and every byte, so that -0, NaN payloads and order all count.

A digest never uses the arithmetic of the library that made the value. Nothing is imported: a value
of torch or numpy means that it is loaded. Tensors are digested where they live; `deferred` starts
that without waiting for it.
"""

from __future__ import annotations

import contextlib
import struct
import sys
from array import array
from typing import TYPE_CHECKING, NamedTuple

from ..faults import EvidenceError
from . import nh128, nh128_native, nh128_triton, tensor_sums
from .algorithms import (
    NH128,
    SHA256,
    Algorithm,
    Later,
    header_of,
    in_force,
    join,
    last_name,
    named,
    read,
    tables,
)

if TYPE_CHECKING:
    from typing import Any, Dict, FrozenSet, Iterable, Iterator, List, Optional, Sequence, Tuple

    from .algorithms import Node

    What = Dict[str, Any]
    Digest = Tuple[str, What]

__all__ = [
    "NH128",
    "SHA256",
    "Algorithm",
    "Deferred",
    "Record",
    "combine",
    "deferred",
    "digest",
    "digest_many",
    "digest_rows",
    "digest_scaled",
    "in_force",
    "layout_of",
    "named",
    "read_all",
    "record",
]

_DEEPEST = 8


def digest(value: Any, algorithm: Optional[Algorithm] = None) -> Digest:
    """Return ("nh128:…", {"dtype": …, "shape": […]}) of one value.

    value: a torch tensor or numpy array of any dtype and layout, a bool, int, float, str, bytes
        or None, or tuples, lists and dicts of these
    algorithm: without one, that of the lock in force, else nh128

    Equal digests mean equal dtype, shape and bytes. A torch tensor and a numpy array of the same
    dtype, shape and bytes have the same digest. Raises EvidenceError, naming the type, for what
    has no bytes that could be read here.
    """
    chosen = in_force() if algorithm is None else algorithm
    if chosen is NH128:
        found = _plain_tensor(value)
        if found is not None:
            return found
    node, what = _begin(value, chosen, _DEEPEST)
    return (node if isinstance(node, str) else _read([node])[0]), what


def digest_many(values: Sequence[Any], algorithm: Optional[Algorithm] = None) -> List[str]:
    """Return the digests of many values: as `digest` of each, with little work for each."""
    return deferred(values, algorithm).read()


def deferred(values: Sequence[Any], algorithm: Optional[Algorithm] = None) -> Deferred:
    """Start the digests of many values, and wait for none that is computed on a GPU.

    What is on the host is digested at once. The GPU's work is put on its current stream: the
    values may be changed afterwards by that stream.
    """
    chosen = in_force() if algorithm is None else algorithm
    torch = sys.modules.get("torch")
    if torch is None or chosen is not NH128:
        return Deferred([_begin(value, chosen, _DEEPEST)[0] for value in values])
    return Deferred(_Many(torch).begin(values))


class Deferred:
    """Digests of which some are still being computed on a device."""

    __slots__ = ("nodes",)

    def __init__(self, nodes: List[Node]) -> None:
        self.nodes = nodes

    def tensors(self) -> List[Any]:
        """Return the device tensors that will hold the sums, each int64 (number, 2)."""
        return tables(self.nodes)

    def read(self) -> List[str]:
        """Return the digests; waits for the current stream of each device they are on.

        Where another stream computed them, wait for that one first.
        """
        return _read(self.nodes)


def read_all(many: Sequence[Deferred]) -> List[List[str]]:
    """Return the digests of several, with one copy from each device."""
    texts = iter(_read([node for each in many for node in each.nodes]))
    return [[next(texts) for _ in each.nodes] for each in many]


def combine(digests: Iterable[Optional[str]], algorithm: Optional[Algorithm] = None) -> str:
    """Return one digest for a sequence of digests, of which some may be missing (None)."""
    text = "\n".join("none" if each is None else each for each in digests)
    chosen = in_force() if algorithm is None else algorithm
    return chosen.digest_bytes("digests", (), text.encode("ascii"))


def digest_scaled(
    packed: Any, scales: Sequence[Any], algorithm: Optional[Algorithm] = None
) -> Digest:
    """Return one digest of packed values and all their scales, as micro-scaled formats have them.

    packed: the values, such as fp8, or two fp4 in a byte
    scales: of blocks, of the whole tensor, and whatever else gives the values their meaning
    """
    chosen = in_force() if algorithm is None else algorithm
    parts = digest_many([packed, *scales], chosen)
    text = chosen.digest_bytes("scaled", (len(scales),), "\n".join(parts).encode("ascii"))
    return text, {"dtype": "scaled", "shape": [int(size) for size in packed.shape]}


def digest_rows(tensor: Any, algorithm: Optional[Algorithm] = None) -> List[str]:
    """Return the digest of each row (along the first axis), so that a report can name the first
    that differs. For routing maps, permutations and whatever else is read by place.
    """
    if len(tensor.shape) == 0:
        raise EvidenceError("expected a tensor with rows, found one without axes")
    return digest_many([tensor[row] for row in range(len(tensor))], algorithm)


class Record(NamedTuple):
    """What is kept of one tensor or array.

    layout: how it lies in memory, see `layout_of`; it does not count in the digest
    """

    shape: Tuple[int, ...]
    dtype: str
    elements: int
    layout: str
    digest: str


def record(value: Any, algorithm: Optional[Algorithm] = None) -> Record:
    """Return shape, dtype, element count, layout class and digest of a tensor or array."""
    text, what = digest(value, algorithm)
    count = 1
    for size in what["shape"]:
        count *= size
    ragged = any(size < 0 for size in what["shape"])
    if ragged or what["dtype"] in ("tuple", "dict"):
        count = int(value.numel()) if hasattr(value, "numel") else len(value)
    return Record(tuple(what["shape"]), what["dtype"], count, layout_of(value), text)


def layout_of(value: Any) -> str:
    """Return the layout class of a tensor or array; "value" for what is neither.

    contiguous | channels_last | channels_last_3d | permuted (dense, axes in another order) |
    expanded (an axis that repeats) | strided (gaps or overlaps); with "+conj" or "+neg" where the
    elements are to be conjugated or negated on reading; the name of any other layout, such as
    sparse_csr or jagged; nested, quantised; "TYPE of parts" for a wrapping subclass
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, getattr(torch, "Tensor", ())):
        flags = getattr(value, "flags", None)
        if flags is None or not hasattr(value, "strides"):
            return "value"
        steps = [step / value.itemsize for step in value.strides]
        return _strided_class(value.shape, steps, bool(flags["C_CONTIGUOUS"]))
    with no_interference(torch):
        return _layout_of_tensor(torch, value)


def _layout_of_tensor(torch: Any, value: Any) -> str:
    if value.layout != torch.strided:
        return last_name(value.layout)
    if value.is_nested:
        return "nested"
    if hasattr(value, "__tensor_flatten__"):
        return "%s of parts" % type(value).__name__
    if value.is_quantized:
        return "quantised"
    found = _strided_class(value.shape, value.stride(), value.is_contiguous())
    if found == "permuted" and value.dim() in (4, 5):
        last = {4: torch.channels_last, 5: torch.channels_last_3d}[value.dim()]
        if value.is_contiguous(memory_format=last):
            found = last_name(last)
    return found + ("+conj" if value.is_conj() else "") + ("+neg" if value.is_neg() else "")


def _strided_class(shape: Any, strides: Any, contiguous: bool) -> str:
    if contiguous:
        return "contiguous"
    axes = [(abs(step), size) for size, step in zip(shape, strides) if size != 1]
    if any(step == 0 for step, _ in axes):
        return "expanded"
    if any(step < 0 for step in strides):
        return "strided"
    expected = 1
    for step, size in sorted(axes):
        if step != expected:
            return "strided"
        expected *= size
    return "permuted"


class _Many:
    """The way of plain tensors, many at once: a few attributes of each, one call for all."""

    __slots__ = ("_gpu", "_host", "_nodes", "_torch")

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._nodes: List[Any] = []
        self._host: List[Tuple[int, int, int, bytes]] = []
        self._gpu: Dict[Any, List[Tuple[int, Any]]] = {}

    def begin(self, values: Sequence[Any]) -> List[Node]:
        """Return a digest, or what becomes one, for each value."""
        nodes: List[Any] = []
        host, gpu = self._host, self._gpu
        _know(self._torch)
        with _no_functions(self._torch):
            for place, value in enumerate(values):
                nodes.append(None)
                if type(value) in _plain_types:
                    if value.is_cpu:
                        found = _memory_of(value)
                        if found is not None:
                            host.append((place, *found))
                            continue
                        if (text := _with_gaps(value)) is not None:
                            nodes[-1] = text
                            continue
                    elif value.is_cuda and _memory_of(value) is not None:
                        gpu.setdefault(value.device, []).append((place, value))
                        continue
        self._nodes = nodes
        self._digest_host()
        for device, here in gpu.items():
            self._start_gpu(device, here)
        for place, value in enumerate(values):
            if nodes[place] is None:
                nodes[place] = _begin(value, NH128, _DEEPEST)[0]
        return nodes

    def _digest_host(self) -> None:
        if not self._host:
            return
        native = nh128_native.load()
        if native is None:
            self._digest_host_by_torch()
            return
        nodes = self._nodes
        places, addresses, sizes, heads = zip(*self._host)
        sums = native.sums_of_many(array("Q", addresses), array("Q", sizes))
        text_of = nh128.text_of
        start = 0
        for place, head in zip(places, heads):
            nodes[place] = text_of(head, sums[start : start + 16])
            start += 16

    def _digest_host_by_torch(self) -> None:
        """The small ones together; the others come one by one."""
        small = [each for each in self._host if each[2] <= nh128.BLOCK_BYTES]
        if not small:
            return
        places, addresses, sizes, heads = zip(*small)
        with no_interference(self._torch):
            found = tensor_sums.sums_of_small(self._torch, addresses, sizes)
        for place, head, sums in zip(places, heads, found):
            self._nodes[place] = nh128.text_of(head, sums)

    def _start_gpu(self, device: Any, here: List[Tuple[int, Any]]) -> None:
        torch = self._torch
        kernels = tensor_sums.kernels_for(device)
        if kernels is None or torch.cuda.is_current_stream_capturing():
            return  # one by one: by torch, or refused
        small = [pair for pair in here if _is_small(pair[1])]
        large = [pair for pair in here if not _is_small(pair[1])]
        try:
            with no_interference(torch):
                table = _launched(torch, kernels, device, small, large)
        except Exception:  # Triton's own errors have no common class
            tensor_sums.give_up_triton()
            return
        for row, (place, value) in enumerate(small + large):
            self._nodes[place] = Later(header_of(value.dtype, value.shape), table, row)


def _launched(
    torch: Any,
    kernels: nh128_triton.Kernels,
    device: Any,
    small: List[Tuple[int, Any]],
    large: List[Tuple[int, Any]],
) -> Any:
    """Return the table of sums, int64 (number, 2), in which the device is writing."""
    table = torch.zeros((len(small) + len(large), 2), dtype=torch.int64, device=device)
    if small:
        addresses = [value.data_ptr() for _, value in small]
        sizes = [value.nbytes for _, value in small]
        kernels.add_many(torch, addresses, sizes, table[: len(small)])
    for row, (_, value) in enumerate(large, start=len(small)):
        data = tensor_sums.bits_of(torch, value).reshape(-1).view(torch.uint8)
        kernels.add(torch, data, 0, table[row])
    return table


def _is_small(value: Any) -> bool:
    return bool(value.nbytes <= nh128_triton.SMALL_BYTES and value.data_ptr() % 8 == 0)


_plain_types: FrozenSet[type] = frozenset()
_plain_dtypes: FrozenSet[Any] = frozenset()


def _know(torch: Any) -> None:
    """Note the types and dtypes of tensors that are nothing but memory."""
    global _plain_types, _plain_dtypes
    if _plain_types:
        return
    quantised = ("qint8", "quint8", "qint32", "quint4x2", "quint2x4")
    found = (getattr(torch, name) for name in dir(torch) if name not in quantised)
    _plain_dtypes = frozenset(each for each in found if isinstance(each, torch.dtype))
    _plain_types = frozenset((torch.Tensor, torch.nn.Parameter))


def _memory_of(value: Any) -> Optional[Tuple[int, int, bytes]]:
    """Return address, size and header of a tensor that is nothing but memory without gaps; None
    for any other.
    """
    try:
        dtype = value.dtype
        if dtype not in _plain_dtypes or not value.is_contiguous():
            return None
        if value.is_neg() or value.is_conj():
            return None
        address = value.data_ptr()
        # No address: functional, zero or empty. An error: it has no memory of its own.
        return (address, value.nbytes, header_of(dtype, value.shape)) if address else None
    except RuntimeError:
        return None


def _with_gaps(value: Any) -> Optional[str]:
    """Return the digest of a tensor on the host that is nothing but memory with gaps, by the
    compiled library; None for any other.
    """
    native = nh128_native.load()
    try:
        dtype, shape = value.dtype, value.shape
        if native is None or dtype not in _plain_dtypes or value.is_neg() or value.is_conj():
            return None
        size, address = value.nbytes, value.data_ptr()
        if not size or not address or not 0 < len(shape) <= nh128_native.MOST_AXES:
            return None
        sums = native.sums_of_view(address, value.element_size(), shape, value.stride())
        return nh128.text_of(header_of(dtype, shape), sums)
    except RuntimeError:
        return None


def _plain_tensor(value: Any) -> Optional[Digest]:
    """The way of one plain tensor on the host; None for anything else."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    _know(torch)
    if type(value) not in _plain_types:
        return None
    native = nh128_native.load()
    if native is None:
        return None
    with _no_functions(torch):
        if not value.is_cpu:
            return None
        found = _memory_of(value)
        if found is not None:
            text: Optional[str] = nh128.text_of(found[2], native.sums(found[0], found[1]))
        else:
            text = _with_gaps(value)
        if text is None:
            return None
        return text, {"dtype": last_name(value.dtype), "shape": list(value.shape)}


def _no_functions(torch: Any) -> Any:
    """Attributes of a tensor are calls that the program's function modes would see."""
    guard = getattr(torch._C, "DisableTorchFunction", None)
    return contextlib.nullcontext() if guard is None else guard()


def _read(nodes: Sequence[Node]) -> List[str]:
    for node in nodes:
        if not isinstance(node, str):
            with no_interference(sys.modules["torch"]):
                return read(nodes)
    return list(nodes)  # type: ignore[arg-type]


def _begin(value: Any, algorithm: Algorithm, depth: int) -> Tuple[Node, What]:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, getattr(torch, "Tensor", ())):
        with no_interference(torch):
            return _of_tensor(torch, value, algorithm, depth)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        return _of_array(numpy, value, algorithm)
    plain = _plain_bytes(value)
    if plain is not None:
        dtype, data = plain
        return algorithm.digest_bytes("python." + dtype, (), data), {"dtype": dtype, "shape": []}
    return _of_container(value, algorithm, depth)


def _plain_bytes(value: Any) -> Optional[Tuple[str, bytes]]:
    if value is None:
        return "none", b""
    if isinstance(value, bool):
        return "bool", b"\1" if value else b"\0"
    if isinstance(value, int):
        return "int", b"%x" % value
    if isinstance(value, float):
        return "float", struct.pack("<d", value)
    if isinstance(value, complex):
        return "complex", struct.pack("<dd", value.real, value.imag)
    if isinstance(value, str):
        return "str", value.encode("utf-8", "surrogatepass")
    if isinstance(value, (bytes, bytearray)):
        return "bytes", bytes(value)
    return None


def _of_container(value: Any, algorithm: Algorithm, depth: int) -> Tuple[Node, What]:
    parts = _parts_of_container(value)
    if parts is None:
        raise EvidenceError(
            "expected a tensor, an array, a number, a string, bytes, or a tuple, list or dict of "
            "these, found a %s: pass one of its tensors" % _type_name(value)
        )
    if depth == 0:
        raise EvidenceError("a value nested more than %d deep has no digest" % _DEEPEST)
    return _joined(parts[0], parts[1], [len(value)], algorithm, depth)


def _parts_of_container(value: Any) -> Optional[Tuple[str, List[Any]]]:
    if isinstance(value, (tuple, list)):
        return "tuple", list(value)
    if isinstance(value, dict):
        return "dict", [part for pair in value.items() for part in pair]
    return None


def parts_of(value: Any) -> Optional[Tuple[str, List[Any]]]:
    """Return (kind, parts) of what is digested part by part; None for what has bytes itself.

    Raises EvidenceError for a tensor that has no bytes to read.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, getattr(torch, "Tensor", ())):
        return _parts_of_container(value)
    with no_interference(torch):
        return _parts_of_tensor(torch, value)


def _joined(
    kind: str, parts: List[Any], shape: List[int], algorithm: Algorithm, depth: int
) -> Tuple[Node, What]:
    digests = [_begin(part, algorithm, depth - 1)[0] for part in parts]
    return join(algorithm, kind, shape, digests), {"dtype": kind, "shape": shape}


def _of_array(numpy: Any, value: Any, algorithm: Algorithm) -> Digest:
    if value.dtype.hasobject:
        raise EvidenceError("an array of Python objects has no digest: pass its numbers")
    if isinstance(value, getattr(numpy.ma, "MaskedArray", ())):
        raise EvidenceError("a masked array has no one digest: pass its data and its mask")
    dtype = value.dtype.name if value.dtype.isnative else value.dtype.str
    if value.dtype.names is not None:
        dtype = str(value.dtype.descr)
    shape = list(value.shape)
    text = algorithm.digest_array(numpy, dtype, value)
    return text, {"dtype": dtype, "shape": shape}


def _of_tensor(torch: Any, value: Any, algorithm: Algorithm, depth: int) -> Tuple[Node, What]:
    parts = _parts_of_tensor(torch, value)
    if parts is not None:
        if depth == 0:
            raise EvidenceError("a tensor nested more than %d deep has no digest" % _DEEPEST)
        return _joined(parts[0], parts[1], _sizes(value), algorithm, depth)
    if type(value).__name__ == "AsyncCollectiveTensor":  # its bytes may still be on their way
        value = value.trigger_wait()
    what = {"dtype": last_name(value.dtype), "shape": list(value.shape)}
    try:
        return algorithm.begin_tensor(settled(value)), what
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise EvidenceError(
            "the bytes of a %s tensor (%s, on %s) cannot be read: %s"
            % (
                last_name(value.dtype),
                _type_name(value),
                value.device,
                " ".join(str(error).split()),
            )
        ) from error


def _parts_of_tensor(torch: Any, value: Any) -> Optional[Tuple[str, List[Any]]]:
    _refuse_what_has_no_bytes(torch, value)
    if type(value).__name__ == "AsyncCollectiveTensor":
        return None
    inner = _inner_tensors(torch, value)
    if inner:
        return _type_name(value), inner
    if type(value).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise EvidenceError(
            "a %s does not say what it is made of (__tensor_flatten__), and asking it for its "
            "bytes would calculate: pass its data and its scales" % _type_name(value)
        )
    return _parts_of_layout(torch, value)


def settled(value: Any) -> Any:
    """Return the tensor with its elements as they read, where that is put off until reading."""
    value = value.detach()
    if value._is_zerotensor():
        return value.clone()
    return value.resolve_conj().resolve_neg()


def _refuse_what_has_no_bytes(torch: Any, value: Any) -> None:
    kind = _no_bytes_because(torch, value)
    if kind is not None:
        raise EvidenceError(
            "%s has no bytes to read here: take the fingerprint outside the transformation" % kind
        )
    if value.device.type == "meta":
        raise EvidenceError("a tensor on the meta device has no bytes to read")
    if value.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise EvidenceError(
            "a CUDA graph is being captured, and reading a tensor is illegal then: take the "
            "fingerprint outside the graph, after its replay"
        )


def _no_bytes_because(torch: Any, value: Any) -> Optional[str]:
    if any(each.__name__ == "FakeTensor" for each in type(value).__mro__):
        return "a fake tensor"
    if _asks(torch, "_is_functional_tensor", value):
        return "a functional tensor (torch.func or functionalization)"
    functorch = getattr(getattr(torch, "_C", None), "_functorch", None)
    if _asks(functorch, "is_functorch_wrapped_tensor", value):
        return "a tensor inside torch.func (vmap, grad)"
    return None


def _asks(place: Any, name: str, value: Any) -> bool:
    function = getattr(place, name, None)
    return function is not None and bool(function(value))


def _inner_tensors(torch: Any, value: Any) -> List[Any]:
    """Return what a wrapping subclass is made of (DTensor: the local shard; a quantised tensor:
    packed values and scales), as names and tensors in its own order; nothing for a plain tensor.
    """
    flatten = getattr(value, "__tensor_flatten__", None)
    if flatten is None:
        return []
    named = [(name, getattr(value, name, None)) for name in flatten()[0]]
    tensors = [pair for pair in named if isinstance(pair[1], torch.Tensor)]
    return [part for pair in tensors for part in pair]


def _sizes(value: Any) -> List[int]:
    """Return the shape; -1 for a size without a number of its own, as ragged tensors have."""
    if value.is_nested and value.layout == sys.modules["torch"].strided:
        return [value.size(0)] + [-1] * (value.dim() - 1)
    return [size if isinstance(size, int) else -1 for size in value.shape]


def _parts_of_layout(torch: Any, value: Any) -> Optional[Tuple[str, List[Any]]]:
    layout = value.layout
    if layout == torch.strided:
        if value.is_nested:
            return "nested", list(value.detach().unbind())
        return _parts_of_quantised(torch, value) if value.is_quantized else None
    plain = value.detach()
    if layout == torch.sparse_coo:
        return "sparse_coo", [plain._indices(), plain._values(), plain.is_coalesced()]
    if layout in (torch.sparse_csr, torch.sparse_bsr):
        return last_name(layout), [plain.crow_indices(), plain.col_indices(), plain.values()]
    if layout in (torch.sparse_csc, torch.sparse_bsc):
        return last_name(layout), [plain.ccol_indices(), plain.row_indices(), plain.values()]
    raise EvidenceError(
        "a tensor of layout %s has no digest: convert it with to_dense()" % last_name(layout)
    )


def _parts_of_quantised(torch: Any, value: Any) -> Tuple[str, List[Any]]:
    kind = "%s %s" % (last_name(value.dtype), last_name(value.qscheme()))
    if value.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return kind, [value.int_repr(), value.q_scale(), value.q_zero_point()]
    scales = [value.q_per_channel_scales(), value.q_per_channel_zero_points()]
    return kind, [value.int_repr(), *scales, value.q_per_channel_axis()]


@contextlib.contextmanager
def no_interference(torch: Any) -> Iterator[None]:
    """Keep the program's own torch modes from seeing, or changing, what is done to read a value.

    A mode that counts, logs or transforms operations would otherwise take ours for the program's.
    """
    with contextlib.ExitStack() as stack:
        no_functions = getattr(torch._C, "DisableTorchFunction", None)
        if no_functions is not None:
            stack.enter_context(no_functions())
        modes = sys.modules.get("torch.utils._python_dispatch")
        no_modes = getattr(modes, "_disable_current_modes", None)
        if no_modes is not None:
            stack.enter_context(no_modes())
        stack.enter_context(torch.no_grad())
        yield


def _type_name(value: Any) -> str:
    kind = type(value)
    return "%s.%s" % (kind.__module__, kind.__qualname__)
