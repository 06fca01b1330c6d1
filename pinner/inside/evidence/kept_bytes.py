"""Keeps the bytes of a value in a file, for the last word on a mismatch.

The file is a safetensors file: 8 bytes of header length, a JSON header, the data, in C order and
little-endian. A dtype that the format does not have is kept as bytes (U8, one more axis); its name
stands in the metadata, as "dtype:NAME". What is made of parts (sparse, quantised, a shard, a list)
is kept part by part: NAME.0, NAME.1, …; numbers and strings among them stand in the metadata.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from ..faults import EvidenceError
from . import digest, tensor_sums
from .algorithms import last_name, view_of

if TYPE_CHECKING:
    from typing import Any, BinaryIO, Dict, Iterator, List, Mapping, Optional, Tuple

NAMES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "uint16": "U16",
    "int32": "I32",
    "uint32": "U32",
    "int64": "I64",
    "uint64": "U64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "complex64": "C64",
}


def keep(
    path: str,
    value: Any,
    name: str = "value",
    about: Optional[Mapping[str, str]] = None,
    durable: bool = True,
) -> None:
    """Write `value` to the file `path`, whole or not at all; needs little memory beside it.

    value: what `digest` takes
    about: what else stands in the metadata, such as stream, step and rank
    durable: it is on the disk when this returns, and outlives a crash of the machine

    Raises EvidenceError for what has no bytes, and OSError.
    """
    arrays: List[Tuple[str, Any]] = []
    metadata = dict(about or {})
    _collect(name, value, arrays, metadata)
    header: Dict[str, Any] = {}
    end = 0
    for each, array in arrays:
        dtype, shape, size = _described(array)
        if dtype not in NAMES:
            metadata["dtype:" + each] = dtype
        header[each] = {
            "dtype": NAMES.get(dtype, "U8"),
            "shape": shape if dtype in NAMES else [*shape, _item_size(array)],
            "data_offsets": [end, end + size],
        }
        end += size
    text = json.dumps({"__metadata__": metadata, **header}, separators=(",", ":"))
    data = text.encode("utf-8")
    data += b" " * (-len(data) % 8)
    own = "%s.%d.part" % (path, os.getpid())
    try:
        with open(own, "wb") as out:
            out.write(len(data).to_bytes(8, "little") + data)
            for _, array in arrays:
                _write(out, array)
            out.flush()
            if durable:
                os.fsync(out.fileno())
        os.rename(own, path)
    except BaseException:
        if os.path.exists(own):
            os.unlink(own)
        raise


def _collect(
    name: str, value: Any, arrays: List[Tuple[str, Any]], metadata: Dict[str, str]
) -> None:
    parts = digest.parts_of(value)
    if parts is not None:
        kind, pieces = parts
        metadata["parts:" + name] = "%d %s" % (len(pieces), kind)
        for number, piece in enumerate(pieces):
            _collect("%s.%d" % (name, number), piece, arrays, metadata)
    elif hasattr(value, "dtype") and hasattr(value, "shape"):
        arrays.append((name, value))
    else:
        digest.digest(value, digest.SHA256)  # raises for what has no bytes
        metadata["value:" + name] = value.hex() if isinstance(value, float) else repr(value)


def _described(array: Any) -> Tuple[str, List[int], int]:
    """Return dtype, shape and size in bytes."""
    dtype = last_name(array.dtype)
    shape = [int(size) for size in array.shape]
    count = 1
    for size in shape:
        count *= size
    return dtype, shape, count * _item_size(array)


def _item_size(array: Any) -> int:
    return int(array.dtype.itemsize)


def _write(out: BinaryIO, array: Any) -> None:
    for piece in _pieces(array):
        out.write(piece)


def _pieces(array: Any) -> Iterator[Any]:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(array, torch.Tensor):
        yield array.tobytes()
        return
    with digest.no_interference(torch):
        try:
            bits = tensor_sums.bits_of(torch, digest.settled(array))
            for piece in tensor_sums.pieces(bits, tensor_sums.HOST_PIECE, always=True):
                yield view_of(piece.cpu())
        except (RuntimeError, TypeError) as error:
            raise EvidenceError(
                "the bytes of a %s tensor on %s cannot be kept: %s"
                % (last_name(array.dtype), array.device, " ".join(str(error).split()))
            ) from error
