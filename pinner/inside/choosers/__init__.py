"""The rooms that know the internals of the libraries that choose: one for each library."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import submodule

if TYPE_CHECKING:
    from typing import Any


def __getattr__(name: str) -> Any:
    """Load a room when it is first asked for (see `pinner.inside`)."""
    return submodule(__name__, name)
