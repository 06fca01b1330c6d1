"""Digests of tensors for a log: their text, or why there is none. Never an exception."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...faults import EvidenceError
from .. import digest

if TYPE_CHECKING:
    from typing import Any, List, Optional, Tuple


class Hashing:
    """The algorithm of a trace. `name` stands in the log's first line."""

    name = digest.SHA256.name

    def many(self, tensors: List[Any]) -> List[Optional[str]]:
        """One digest for each tensor; None where it has no bytes to read (`why` says which)."""
        return [self._one(tensor) for tensor in tensors]

    def _one(self, tensor: Any) -> Optional[str]:
        try:
            return digest.digest(tensor)[0]
        except EvidenceError:
            return None

    def why(self, tensor: Any) -> str:
        """Why `tensor` has no digest."""
        try:
            digest.digest(tensor)
        except EvidenceError as error:
            return str(error)
        return "unknown"


def collected(torch_tensor: type, value: Any, path: str = "0") -> List[Tuple[str, Any]]:
    """The tensors in a value of a module or function, with their paths, in its own order."""
    found: List[Tuple[str, Any]] = []
    _collect(torch_tensor, value, path, found, 6)
    return found


def _collect(kind: type, value: Any, path: str, found: List[Tuple[str, Any]], depth: int) -> None:
    if isinstance(value, kind):
        found.append((path, value))
        return
    if depth == 0:
        return
    if isinstance(value, (tuple, list)):
        for number, part in enumerate(value):
            _collect(kind, part, "%s.%d" % (path, number), found, depth - 1)
    elif isinstance(value, dict):
        for key, part in value.items():
            _collect(kind, part, "%s.%s" % (path, key), found, depth - 1)
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            _collect(kind, getattr(value, name, None), "%s.%s" % (path, name), found, depth - 1)
