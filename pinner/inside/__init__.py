"""The part of pinner that runs in the user's processes: standard library only, Python 3.8.

Nothing here imports anything outside this folder, so that it alone can be mounted into a
container. Every module is loaded on demand: a process that decides nothing pays for nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing `typing` would double the cost of starting
if TYPE_CHECKING:
    from typing import Any

VERSION = "0.1.0"


def __getattr__(name: str) -> Any:
    """Load a module of this package when it is first asked for.

    Without this, `from . import ledger` makes Python import the parent `pinner` as well, which
    may be missing here, or be a stranger of the same name.
    """
    return submodule(__name__, name)


def submodule(package: str, name: str) -> Any:
    """Return module `name` of `package`; AttributeError where there is none."""
    from importlib import import_module

    full = package + "." + name
    try:
        return import_module(full)
    except ModuleNotFoundError as error:
        if error.name != full:
            raise
    raise AttributeError("module %r has no attribute %r" % (package, name))
