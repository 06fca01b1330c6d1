"""Which modules, optimizers, schedules, gradient scalers and loaders this process has made.

They are met when they are made, in that order, and held weakly. Modules are met by torch's own
global registration hooks, the others by `__new__` of their base class: a subclass may do without
its base's `__init__`, as ReduceLROnPlateau does (torch 2.13), but not without that.
"""

from __future__ import annotations

import gc
import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Dict, List, Set, Tuple


class Registry:
    """Objects of one kind; each is called by its class and its number among those of the class."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._references: Dict[int, Any] = {}
        self._names: Dict[int, str] = {}
        self._counts: Dict[str, int] = {}

    def add(self, made: Any) -> None:
        """Remember `made`, unless it is known."""
        key = id(made)
        with self._lock:
            reference = self._references.get(key)
            if reference is not None and reference() is made:
                return
            kind = type(made).__name__
            number = self._counts.get(kind, 0)
            self._counts[kind] = number + 1
            self._references.pop(key, None)  # behind the others, where an id is used again
            self._references[key] = weakref.ref(made)
            self._names[key] = "%s %d" % (kind, number)

    def name(self, made: Any) -> str:
        """Return what `made` is called: "AdamW 0"."""
        self.add(made)
        return self._names[id(made)]

    def living(self) -> List[Tuple[str, Any]]:
        """Return (name, object) in the order in which they were made."""
        with self._lock:
            found = [(self._names[key], ref()) for key, ref in self._references.items()]
        return [(name, made) for name, made in found if made is not None]


modules = Registry()
optimizers = Registry()
schedules = Registry()
scalers = Registry()
loaders = Registry()


def meet_modules(module: ModuleType) -> None:
    """Follow `torch.nn.modules.module`: who registers a parameter, buffer or child is met."""
    for name in ("parameter", "buffer", "module"):
        register = getattr(module, "register_module_%s_registration_hook" % name, None)
        if register is not None:  # torch 2.0
            register(_meet_module)


def _meet_module(module: Any, _name: str, _value: Any) -> None:
    modules.add(module)


_meet_module._torchdynamo_disable = True  # type: ignore[attr-defined]


def meet_new(base: Any, registry: Registry) -> None:
    """Meet every object of `base` and its subclasses when it is made."""
    own = base.__dict__.get("__new__")
    plain = own.__func__ if isinstance(own, staticmethod) else own

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        make = super(base, cls).__new__ if plain is None else plain
        made = make(cls) if make is object.__new__ else make(cls, *args, **kwargs)
        registry.add(made)
        return made

    base.__new__ = staticmethod(new)


def roots(torch: Any) -> List[Tuple[str, Any]]:
    """Return the modules that are inside no other one; copies, which no hook sees, come last."""
    kinds = _kinds(torch.nn.Module)
    for each in gc.get_objects():
        if type(each) in kinds:  # never isinstance: a proxy would wake up
            modules.add(each)
    living = [pair for pair in modules.living() if "_modules" in vars(pair[1])]
    inside = {id(child) for _, module in living for child in module._modules.values()}
    return [(name, module) for name, module in living if id(module) not in inside]


def _kinds(base: Any) -> Set[Any]:
    """Return `base` and all of its subclasses."""
    found = {base}
    waiting = [base]
    while waiting:
        new = [each for each in type.__subclasses__(waiting.pop()) if each not in found]
        found.update(new)
        waiting += new
    return found
