"""Random streams that the program itself holds: by global names of its own modules.

Its own modules are the main one and those in that one's folder. Of an object whose class is from
there the attributes are looked at too, and no deeper. What only a function holds is not seen.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from . import nested

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Dict, Iterator, Set, Tuple


def generators() -> Iterator[Tuple[str, Any]]:
    """Yield (place, random stream), each stream once."""
    torch = sys.modules.get("torch")
    seen = {id(getattr(torch, "default_generator", None))}
    modules = list(_own_modules())
    names = {name for name, _ in modules}
    for module_name, module in modules:
        prefix = "" if module_name == "__main__" else module_name + "."
        for name, value in sorted(_attributes(module).items()):
            for place, stream in _streams(name, value, names):
                if id(stream) not in seen:
                    seen.add(id(stream))
                    yield prefix + place, stream


def _own_modules() -> Iterator[Tuple[str, ModuleType]]:
    main = sys.modules.get("__main__")
    if main is None:
        return
    yield "__main__", main
    file = vars(main).get("__file__")
    if not isinstance(file, str):  # python -c, or a session that people type in
        return
    folder = os.path.join(os.path.dirname(os.path.abspath(file)), "")
    for name, module in sorted(sys.modules.items()):
        place = _attributes(module).get("__file__")
        if module is not main and isinstance(place, str) and place.startswith(folder):
            yield name, module


def _streams(name: str, value: Any, modules: Set[str]) -> Iterator[Tuple[str, Any]]:
    if nested.is_generator(value):
        yield name, value
    elif type(value).__module__ in modules and not _is_torch_module(value):
        for inner, part in sorted(_attributes(value).items()):
            if nested.is_generator(part):
                yield "%s.%s" % (name, inner), part


def _attributes(value: Any) -> Dict[str, Any]:
    """Return what stands in `value` itself, without running any code of it."""
    try:
        return dict(object.__getattribute__(value, "__dict__"))
    except AttributeError:  # slots
        return {}


def _is_torch_module(value: Any) -> bool:
    """Whether it is one of those whose state is read by itself."""
    torch = sys.modules.get("torch")
    nn = getattr(torch, "nn", None)
    return nn is not None and issubclass(type(value), nn.Module)
