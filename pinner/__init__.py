"""Write down the run-time choices of a deterministic run, and force them afterwards.

A workload may call `pinner.fingerprint(name, value)` anywhere: it does nothing unless pinner
started the process. Importing this package loads nothing else.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing `typing` would cost more than all of this
if TYPE_CHECKING:
    from .inside.api import checkpoint_restored as checkpoint_restored
    from .inside.api import checkpoint_saved as checkpoint_saved
    from .inside.api import fingerprint as fingerprint
    from .programmatic import enforce as enforce

__all__ = ["__version__", "checkpoint_restored", "checkpoint_saved", "enforce", "fingerprint"]

_SOURCES = {
    "checkpoint_restored": "inside.api",
    "checkpoint_saved": "inside.api",
    "fingerprint": "inside.api",
    "enforce": "programmatic",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from .inside import VERSION

        return VERSION
    if name == "inside":  # injection puts it into sys.modules without its parent
        from importlib import import_module

        return import_module("pinner.inside")
    if name not in _SOURCES:
        raise AttributeError(f"module 'pinner' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"pinner.{_SOURCES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
