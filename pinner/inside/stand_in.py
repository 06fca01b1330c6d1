"""A module `pinner` for programs that call `pinner.fingerprint` where no pinner is installed."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # importing `typing` would double the cost of starting
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, Optional

_NAME = "pinner"


class _Finder:
    """The last of `sys.meta_path`: asked only when nothing else has a `pinner`."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:
        if name != _NAME:
            return None
        from importlib.machinery import ModuleSpec

        return ModuleSpec(name, _Loader(), origin=__file__, is_package=True)  # type: ignore[arg-type]


class _Loader:
    def create_module(self, spec: ModuleSpec) -> None:
        """Let the import system make the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Bind what a workload may call."""
        from . import VERSION, api

        module.__doc__ = __doc__
        names = {
            "__version__": VERSION,
            "checkpoint_restored": api.checkpoint_restored,
            "checkpoint_saved": api.checkpoint_saved,
            "enforce": api.enforce,
            "fingerprint": api.fingerprint,
            "inside": sys.modules[__package__],
        }
        for name, value in names.items():
            setattr(module, name, value)


def offer() -> None:
    """Append the finder to `sys.meta_path`."""
    sys.meta_path.append(_Finder())
