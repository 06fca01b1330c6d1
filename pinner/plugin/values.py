"""What one run of a callable left, as named digests and bytes, and where two runs differ."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pinner.compare.tensor_bytes import compare_bytes
from pinner.inside.evidence import tensor_sums
from pinner.inside.evidence.algorithms import NH128, view_of
from pinner.inside.evidence.digest import combine, digest, no_interference, parts_of, settled


@dataclass(frozen=True)
class Value:
    """One tensor, array or number. data: its bytes in C order."""

    name: str
    digest: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @property
    def kind(self) -> str:
        """Dtype and shape."""
        return f"{self.dtype}{list(self.shape)}"


def values_of(name: str, value: Any) -> Iterator[Value]:
    """The parts of a value that have bytes. Raises `EvidenceError` for what has none."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from values_of(f"{name}[{key!r}]", part)
        return
    parts = parts_of(value)
    if parts is not None:
        for number, part in enumerate(parts[1]):
            yield from values_of(f"{name}[{number}]", part)
        return
    text, what = digest(value, NH128)
    yield Value(name, text, str(what["dtype"]), tuple(what["shape"]), bytes_of(value))


def bits(values: Sequence[Value]) -> str:
    """One digest of all of them."""
    return combine((value.digest for value in values), NH128)


def difference(first: Sequence[Value], other: Sequence[Value]) -> str:
    """Where `other` first differs; empty where every byte is the same."""
    theirs = {value.name: value for value in other}
    for value in first:
        counterpart = theirs.pop(value.name, None)
        if counterpart is None:
            return f"{value.name}: missing"
        found = _difference(value, counterpart)
        if found:
            return found
    return f"{next(iter(theirs))}: was not there before" if theirs else ""


def _difference(first: Value, other: Value) -> str:
    if first.kind != other.kind:
        return f"{first.name}: {first.kind} became {other.kind}"
    found = compare_bytes(first.name, first.dtype, first.shape, first.data, other.data)
    if found is not None:
        return f"{found.line()}; the first is element {found.first} in C order"
    if first.digest != other.digest:  # cannot be, unless the bytes changed between two readings
        return f"{first.name}: equal bytes, but digests {first.digest} and {other.digest}"
    return ""


def bytes_of(value: Any) -> bytes:
    """The bytes of a tensor, array or number, as they are."""
    if hasattr(value, "data_ptr"):
        import torch

        with no_interference(torch):
            found = tensor_sums.bits_of(torch, settled(value)).contiguous().cpu()
            return bytes(view_of(found))
    if hasattr(value, "tobytes"):
        return bytes(value.tobytes())
    return struct.pack("<d", value) if isinstance(value, float) else repr(value).encode()
