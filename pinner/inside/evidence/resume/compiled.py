"""Compile state: which sizes Dynamo has made dynamic in this process, and how many graphs it has.

A process that met two shapes serves a dynamic kernel where one that was just restored compiles a
static one. Both are right, and their bits may differ. Names are those of torch 2.6 to 2.13.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, Dict


def marks() -> Dict[str, str]:
    """Return {"function (file:line): variable": sizes, "?" for a dynamic one}."""
    states = getattr(sys.modules.get("torch._dynamo.pgo"), "_CODE_STATE", None)
    found = {}
    for code, state in list((states or {}).items()):
        place = "%s (%s:%s)" % (code.name, os.path.basename(code.filename), code.firstlineno)
        for name, entry in list(state.automatic_dynamic.items()):
            found["%s: %s" % (place, name)] = _sizes(entry)
    return found


def graphs() -> int:
    """Return how many graphs were compiled."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    return int(counters["stats"].get("unique_graphs", 0)) if counters and "stats" in counters else 0


def _sizes(entry: Any) -> str:
    size = getattr(entry, "size", None)
    if isinstance(size, tuple):
        return "[%s]" % ", ".join(str(each) if isinstance(each, int) else "?" for each in size)
    scalar = getattr(entry, "scalar", None)
    return str(scalar) if isinstance(scalar, int) else "?"
