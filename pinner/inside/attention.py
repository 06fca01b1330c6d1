"""The flash attention that is installed: which of its functions take `deterministic`.

Read from the source, since an import loads compiled code and may need a GPU. (flash-attn 2.8.4:
flash_attn/flash_attn_interface.py, hopper/flash_attn_interface.py, flash_attn/cute/interface.py)
"""

from __future__ import annotations

import ast
import os
from typing import Dict, List, Tuple

PARAMETER = "deterministic"
# Backend, the package or module at the top, and the file below it ("": the module itself).
INTERFACES: Tuple[Tuple[str, str, str], ...] = (
    ("flash-attn 2", "flash_attn", "flash_attn_interface.py"),
    ("flash-attn 3", "flash_attn_interface", ""),
    ("flash-attn 3", "flash_attn_3", "flash_attn_interface.py"),
    ("flash-attn 4", "flash_attn", os.path.join("cute", "interface.py")),
)


def installed() -> Dict[str, Dict[str, bool]]:
    """Return the public functions of each backend that is here, and whether they take it.

    No functions where the source cannot be read. Nothing is imported.
    """
    found: Dict[str, Dict[str, bool]] = {}
    for backend, top, file in INTERFACES:
        for path in _places(top, file):
            found.setdefault(backend, {}).update(_functions_in(path))
    return found


def _places(top: str, file: str) -> List[str]:
    import importlib.util

    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):  # a module that somebody made by hand has no spec
        return []
    if spec is None:
        return []
    if not file:
        return [spec.origin] if spec.origin else []
    folders = spec.submodule_search_locations or []
    paths = [os.path.join(folder, file) for folder in folders]
    return [path for path in paths if os.path.exists(path)]


def _functions_in(path: str) -> Dict[str, bool]:
    try:
        with open(path, encoding="utf-8") as source:
            return functions_of(source.read())
    except (OSError, ValueError):  # a compiled module, or a source of a newer Python
        return {}


def functions_of(source: str) -> Dict[str, bool]:
    """Return the public functions `flash_attn…` of a source text, and whether they take it.

    Raises ValueError for what this Python cannot parse.
    """
    found = {}
    for node in _parsed(source).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("flash_attn"):
            given = node.args
            names = [each.arg for each in [*given.posonlyargs, *given.args, *given.kwonlyargs]]
            found[node.name] = PARAMETER in names
    return found


def _parsed(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except SyntaxError as error:
        raise ValueError(str(error)) from None
