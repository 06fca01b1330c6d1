"""Where the data loaders are: the batch each one gave last, and the seeds of its workers.

A position is shown by the batch itself, whatever way the program takes to get there again: a
loader that keeps its state, a sampler that starts later, batches that are drawn and dropped.
A loader's own `state_dict` is not asked: where no epoch has begun, torchdata's begins one for it.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING

from . import nested, registry

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Dict, Iterator, Optional, Set, Tuple


class _Position:
    """begun: epochs; drawn: batches of this epoch; last: digest of the last batch, None before."""

    __slots__ = ("begun", "drawn", "fresh", "iterator", "last")

    def __init__(self) -> None:
        self.begun = 0
        self.drawn = 0
        self.last: Optional[str] = None
        self.fresh = False
        self.iterator: Any = lambda: None


_positions: weakref.WeakKeyDictionary[Any, _Position] = weakref.WeakKeyDictionary()
_of_iterator: weakref.WeakKeyDictionary[Any, _Position] = weakref.WeakKeyDictionary()
_watched: Set[Any] = set()


def watch(module: ModuleType) -> None:
    """Follow `torch.utils.data.dataloader`."""
    registry.meet_new(module.DataLoader, registry.loaders)
    watch_class(module.DataLoader)


def watch_class(loader: Any) -> None:
    """Follow the epochs of a loader class that has an `__iter__` of its own."""
    plain = loader.__dict__.get("__iter__")
    if plain is None or loader in _watched:
        return
    _watched.add(loader)

    @functools.wraps(plain)
    def iterate(self: Any) -> Any:
        iterator = plain(self)
        _begun(self, iterator)
        return iterator

    loader.__iter__ = iterate


def positions() -> Iterator[Tuple[str, Any, _Position]]:
    """Yield (name, loader, position) of each loader."""
    for name, loader in registry.loaders.living():
        if "dataset" in vars(loader):  # its __init__ has come that far
            yield name, loader, _position(loader)


def batches() -> Dict[str, str]:
    """Return {loader: digest of its last batch} of those that gave one since this was asked."""
    found = {}
    for name, _, position in positions():
        if position.fresh and position.last is not None:
            found[name] = position.last
        position.fresh = False
    return found


def generators(loader: Any) -> Iterator[Tuple[str, Any]]:
    """Yield (place, random stream) of what a loader draws from, as far as it can be seen."""
    seen = set()
    for place, owner in _owners(loader):
        for name, value in sorted(vars(owner).items()):
            if nested.is_generator(value) and id(value) not in seen:
                seen.add(id(value))
                yield place + name, value


def sampler_epoch(loader: Any) -> Optional[int]:
    """Return the epoch that a distributed sampler was told, or None."""
    for _, owner in _owners(loader):
        epoch = vars(owner).get("epoch")
        if isinstance(epoch, int):
            return epoch
    return None


def _owners(loader: Any) -> Iterator[Tuple[str, Any]]:
    yield "", loader
    batch = vars(loader).get("batch_sampler")
    inner = getattr(batch, "sampler", None)
    owners = (("sampler.", vars(loader).get("sampler")), ("batch_sampler.", batch))
    for name, owner in (*owners, ("sampler.", inner), ("dataset.", vars(loader).get("dataset"))):
        if hasattr(owner, "__dict__"):
            yield name, owner


def _position(loader: Any) -> _Position:
    position = _positions.get(loader)
    if position is None:
        position = _positions[loader] = _Position()
    return position


def _begun(loader: Any, iterator: Any) -> None:
    position = _position(loader)
    position.begun += 1
    position.drawn = 0
    try:
        _of_iterator[iterator] = position
        position.iterator = weakref.ref(iterator)
    except TypeError:  # a generator cannot be followed: this loader's batches are not seen
        return
    _watch_next(type(iterator))


def _watch_next(kind: Any) -> None:
    owner = next((each for each in kind.__mro__ if "__next__" in vars(each)), None)
    if owner is None or owner in _watched:
        return
    _watched.add(owner)
    plain = owner.__next__

    @functools.wraps(plain)
    def draw(self: Any) -> Any:
        batch = plain(self)
        position = _of_iterator.get(self)
        if position is not None:
            position.drawn += 1
            position.last = nested.of(nested.digests(batch))
            position.fresh = True
        return batch

    try:
        owner.__next__ = draw
    except TypeError:  # a class of C
        return
