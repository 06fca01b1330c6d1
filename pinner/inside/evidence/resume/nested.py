"""Nested state, taken apart into named leaves that have bytes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ... import faults
from ..digest import digest

if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, Set, Tuple

    Leaves = Dict[str, str]

_DEEPEST = 12
_ROW = 32
_PLAIN = (bool, int, float, complex, str, bytes, bytearray, type(None))


def leaves(value: Any, path: str = "") -> Iterator[Tuple[str, Any]]:
    """Yield (path, value) for each tensor, array, number, text and generator inside `value`.

    value: dicts, lists and tuples of these, of modules (their parameters and buffers) and of
        anything with a `state_dict`; what is none of that, a function say, is left out
    """
    return _leaves(value, path, _DEEPEST, set())


def digests(value: Any) -> Leaves:
    """Return {path: digest} of the leaves of `value`; a leaf without bytes tells why."""
    return {path: of(leaf) for path, leaf in leaves(value)}


def of(value: Any) -> str:
    """Return the digest of one leaf; "unread: …" where it has no bytes that can be read here."""
    try:
        return digest(value)[0]
    except faults.EvidenceError as error:
        return "unread: %s" % error


def is_generator(value: Any) -> bool:
    """Whether `value` is a random stream with a state of its own; a proxy does not wake up."""
    kind = type(value)
    torch, numpy, random = (sys.modules.get(name) for name in ("torch", "numpy", "random"))
    if torch is not None and issubclass(kind, torch.Generator):
        return True
    if random is not None and issubclass(kind, random.Random):
        return True
    places = getattr(numpy, "random", None)
    kinds = tuple(getattr(places, name) for name in ("Generator", "RandomState") if places)
    return issubclass(kind, kinds)


def generator_state(value: Any) -> Any:
    """Return what the next numbers of a random stream depend on, as something with bytes."""
    if hasattr(value, "getstate"):  # random.Random
        return repr(value.getstate()).encode("ascii")
    if hasattr(value, "bit_generator"):  # numpy.random.Generator
        return _sorted(value.bit_generator.state)
    return value.get_state()


def _sorted(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: _sorted(value[name]) for name in sorted(value)}


def _leaves(value: Any, path: str, depth: int, above: Set[int]) -> Iterator[Tuple[str, Any]]:
    if _is_leaf(value):
        yield path, value
        return
    if _is_row(value):
        yield path, repr(value).encode("utf-8", "surrogatepass")
        return
    if depth == 0 or id(value) in above:
        return
    if is_generator(value):
        yield path, generator_state(value)
        return
    for name, part in _parts(value):
        inner = "%s/%s" % (path, name) if path else str(name)
        yield from _leaves(part, inner, depth - 1, above | {id(value)})


def _is_leaf(value: Any) -> bool:
    if isinstance(value, _PLAIN):
        return True
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        return True
    return numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic))


def _is_row(value: Any) -> bool:
    """Whether it is a long row of numbers, as Python's random state is: one leaf, not hundreds."""
    if not isinstance(value, (list, tuple)) or len(value) <= _ROW:
        return False
    return all(isinstance(part, _PLAIN) for part in value)


def _parts(value: Any) -> Iterator[Tuple[Any, Any]]:
    torch = sys.modules.get("torch")
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, (list, tuple)):
        yield from enumerate(value)
    elif torch is not None and isinstance(value, torch.nn.Module):
        yield from value.named_parameters()
        yield from value.named_buffers()
    elif callable(getattr(value, "state_dict", None)) and not isinstance(value, type):
        yield from _parts(value.state_dict())
