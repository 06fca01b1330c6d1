"""Libraries that choose kernels by themselves, beside Triton, Inductor and cuBLASLt: one file each.

Each is held through an official switch of its own, or its setting in force is written down, or it
is named as not enforceable. `registry` says which modules are hooked; nothing is imported by us,
and nothing runs on the path of a decision that was made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import submodule

if TYPE_CHECKING:
    from typing import Any


def __getattr__(name: str) -> Any:
    """Load a file of this room when it is first asked for (see `pinner.inside`)."""
    return submodule(__name__, name)
