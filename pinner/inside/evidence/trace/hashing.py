"""Digests of tensors for a log: their text, or why there is none. Never an exception."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ...faults import EvidenceError
from .. import digest

if TYPE_CHECKING:
    from typing import Any, List, Optional, Sequence, Tuple

_MARK = "\1%d\1"
_MARKED = re.compile("\1([0-9]+)\1")


class Hashing:
    """Digests in the algorithm that is in force; with `defer` those on a device are read later."""

    def __init__(self, defer: bool) -> None:
        self._defer = defer
        self._late: List[digest.Deferred] = []
        self._count = 0

    @property
    def name(self) -> str:
        """The algorithm's name, as the log's first line has it."""
        return digest.in_force().name

    def many(self, tensors: Sequence[Any]) -> Sequence[Optional[str]]:
        """One digest for each tensor; None where it has no bytes to read (`why` says which).

        What is computed later has a mark in its place, which `settle` replaces.
        """
        try:
            if self._defer:
                return self._marked(digest.deferred(tensors))
            return digest.digest_many(tensors)
        except EvidenceError:
            return [self._one(tensor) for tensor in tensors]

    def _marked(self, found: digest.Deferred) -> Sequence[Optional[str]]:
        if all(type(node) is str for node in found.nodes):
            return found.nodes  # type: ignore[return-value]
        first = self._count
        self._count += len(found.nodes)
        self._late.append(found)
        return [_MARK % (first + at) for at in range(len(found.nodes))]

    def settle(self, text: str) -> str:
        """`text` with the digests that its marks stand for. Waits for the devices."""
        late, self._late = self._late, []
        first = self._count - sum(len(each.nodes) for each in late)
        texts = [one for each in digest.read_all(late) for one in each]
        return _MARKED.sub(lambda found: texts[int(found.group(1)) - first], text)

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
