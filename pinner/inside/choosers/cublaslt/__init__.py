"""cuBLASLt: what its heuristic returns, recorded and forced by a C library in front of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import submodule

if TYPE_CHECKING:
    from typing import Any


def __getattr__(name: str) -> Any:
    """Load a module of this package when it is first asked for (see `pinner.inside`)."""
    return submodule(__name__, name)
