"""Digests of values: dtype, shape and every byte, so that -0, NaN payloads and order all count.

A digest never uses the arithmetic of the library that made the value. Tensors are copied to the
host and hashed there. Nothing is imported: a value of torch or numpy means that it is loaded.
"""

from __future__ import annotations

import contextlib
import hashlib
import struct
import sys
from typing import TYPE_CHECKING

from ..faults import EvidenceError

if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

    What = Dict[str, Any]
    Digest = Tuple[str, What]

_DEEPEST = 8


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


class HostSha256(Algorithm):
    """SHA-256 over dtype, shape and bytes, on the host."""

    name = "sha256"

    def digest_tensor(self, tensor: Any) -> str:
        """Copy the tensor to the host, in C order, and hash it."""
        here = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
        return self.digest_bytes(_torch_dtype(here), here.shape, _view_of(here))

    def digest_bytes(self, dtype: str, shape: Iterable[int], data: Any) -> str:
        """Hash a header that no other dtype and shape has, then the bytes."""
        header = "%s[%s]" % (dtype, ",".join(str(int(size)) for size in shape))
        state = hashlib.sha256(header.encode("utf-8") + b"\0")
        state.update(data)
        return "sha256:" + state.hexdigest()


SHA256 = HostSha256()


def digest(value: Any, algorithm: Algorithm = SHA256) -> Digest:
    """Return ("sha256:…", {"dtype": …, "shape": […]}) of one value.

    value: a torch tensor or numpy array of any dtype and layout, a bool, int, float, str, bytes
        or None, or tuples, lists and dicts of these

    Equal digests mean equal dtype, shape and bytes. A torch tensor and a numpy array of the same
    dtype, shape and bytes have the same digest. Raises EvidenceError, naming the type, for what
    has no bytes that could be read here.
    """
    return _digest(value, algorithm, _DEEPEST)


def combine(digests: Iterable[Optional[str]], algorithm: Algorithm = SHA256) -> str:
    """Return one digest for a sequence of digests, of which some may be missing (None)."""
    text = "\n".join("none" if each is None else each for each in digests)
    return algorithm.digest_bytes("digests", (), text.encode("ascii"))


def _digest(value: Any, algorithm: Algorithm, depth: int) -> Digest:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, getattr(torch, "Tensor", ())):
        with _no_interference(torch):
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


def _of_container(value: Any, algorithm: Algorithm, depth: int) -> Digest:
    if isinstance(value, (tuple, list)):
        parts = list(value)
    elif isinstance(value, dict):
        parts = [part for pair in value.items() for part in pair]
    else:
        raise EvidenceError(
            "expected a tensor, an array, a number, a string, bytes, or a tuple, list or dict of "
            "these, found a %s: pass one of its tensors" % _type_name(value)
        )
    if depth == 0:
        raise EvidenceError("a value nested more than %d deep has no digest" % _DEEPEST)
    digests = [_digest(part, algorithm, depth - 1)[0] for part in parts]
    kind = "dict" if isinstance(value, dict) else "tuple"
    return _joined(kind, digests, [len(value)], algorithm)


def _joined(kind: str, digests: List[str], shape: List[int], algorithm: Algorithm) -> Digest:
    text = "\n".join(digests).encode("ascii")
    return algorithm.digest_bytes(kind, shape, text), {"dtype": kind, "shape": shape}


def _of_array(numpy: Any, value: Any, algorithm: Algorithm) -> Digest:
    if value.dtype.hasobject:
        raise EvidenceError("an array of Python objects has no digest: pass its numbers")
    if isinstance(value, getattr(numpy.ma, "MaskedArray", ())):
        raise EvidenceError("a masked array has no one digest: pass its data and its mask")
    dtype = value.dtype.name if value.dtype.isnative else value.dtype.str
    if value.dtype.names is not None:
        dtype = str(value.dtype.descr)
    shape = list(value.shape)
    text = algorithm.digest_bytes(dtype, shape, value.tobytes())
    return text, {"dtype": dtype, "shape": shape}


def _of_tensor(torch: Any, value: Any, algorithm: Algorithm, depth: int) -> Digest:
    _refuse_what_has_no_bytes(torch, value)
    if type(value).__name__ == "AsyncCollectiveTensor":  # its bytes may still be on their way
        value = value.trigger_wait()
    inner = _inner_tensors(torch, value)
    if inner:
        if depth == 0:
            raise EvidenceError("a tensor nested more than %d deep has no digest" % _DEEPEST)
        parts = [_digest(part, algorithm, depth - 1)[0] for part in inner]
        return _joined(_type_name(value), parts, _sizes(value), algorithm)
    if type(value).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise EvidenceError(
            "a %s does not say what it is made of (__tensor_flatten__), and asking it for its "
            "bytes would calculate: pass its data and its scales" % _type_name(value)
        )
    parts_of_layout = _parts_of_layout(torch, value)
    if parts_of_layout is not None:
        kind, pieces = parts_of_layout
        parts = [_digest(part, algorithm, depth - 1)[0] for part in pieces]
        return _joined(kind, parts, _sizes(value), algorithm)
    what = {"dtype": _torch_dtype(value), "shape": list(value.shape)}
    try:
        return algorithm.digest_tensor(value), what
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise EvidenceError(
            "the bytes of a %s tensor (%s, on %s) cannot be read: %s"
            % (_torch_dtype(value), _type_name(value), value.device, " ".join(str(error).split()))
        ) from error


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
    return [size if isinstance(size, int) else -1 for size in value.shape]


def _parts_of_layout(torch: Any, value: Any) -> Optional[Tuple[str, List[Any]]]:
    layout = value.layout
    if layout == torch.strided:
        return _parts_of_quantised(torch, value) if value.is_quantized else None
    plain = value.detach()
    if layout == torch.sparse_coo:
        return "sparse_coo", [plain._indices(), plain._values(), plain.is_coalesced()]
    if layout in (torch.sparse_csr, torch.sparse_bsr):
        return _last(layout), [plain.crow_indices(), plain.col_indices(), plain.values()]
    if layout in (torch.sparse_csc, torch.sparse_bsc):
        return _last(layout), [plain.ccol_indices(), plain.row_indices(), plain.values()]
    raise EvidenceError(
        "a tensor of layout %s has no digest: convert it with to_dense()" % _last(layout)
    )


def _parts_of_quantised(torch: Any, value: Any) -> Tuple[str, List[Any]]:
    if value.qscheme() not in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        raise EvidenceError(
            "a quantised tensor of scheme %s has no digest: pass int_repr() and its scales"
            % _last(value.qscheme())
        )
    kind = "%s %s" % (_torch_dtype(value), _last(value.qscheme()))
    return kind, [value.int_repr(), value.q_scale(), value.q_zero_point()]


def _view_of(tensor: Any) -> Any:
    """Return a buffer over the memory of a contiguous tensor on the host. Valid as long as it."""
    import ctypes

    size = tensor.numel() * tensor.element_size()
    if size == 0:
        return b""
    buffer = (ctypes.c_ubyte * size).from_address(tensor.data_ptr())
    buffer._pinner_owner = tensor  # keeps the memory alive
    return buffer


@contextlib.contextmanager
def _no_interference(torch: Any) -> Iterator[None]:
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


def _torch_dtype(tensor: Any) -> str:
    return _last(tensor.dtype)


def _last(name: Any) -> str:
    return str(name).rpartition(".")[2]


def _type_name(value: Any) -> str:
    kind = type(value)
    return "%s.%s" % (kind.__module__, kind.__qualname__)
