"""Models that were compiled ahead of time: what they chose was chosen when they were packaged."""

from __future__ import annotations

import functools
import hashlib
import os
from typing import Any

from .lines import Lines

_TEXT = "compiled ahead of time: its choices are those of the package; keep the file with the lock"
_CHUNK = 1 << 20


def patch(package: Any, lines: Lines) -> None:
    """Write down which package is loaded, by its content (torch 2.6, `package/package.py`)."""
    original = package.load_package

    @functools.wraps(original)
    def load_package(path: Any, *args: Any, **kwargs: Any) -> Any:
        name = os.path.basename(os.fspath(path)) if _is_path(path) else "in memory"
        lines.setting("package " + name, _digest(path), "recorded", _TEXT)
        return original(path, *args, **kwargs)

    package.load_package = load_package


def _is_path(path: Any) -> bool:
    return isinstance(path, (str, os.PathLike))


def _digest(path: Any) -> str:
    """Of a file's bytes; of an open file from where it stands, where it is put back to."""
    if not _is_path(path):
        start = path.tell()
        found = _digest_of(path)
        path.seek(start)
        return found
    try:
        with open(path, "rb") as source:
            return _digest_of(source)
    except OSError as error:  # torch will say so
        return "unreadable: %s" % error.strerror


def _digest_of(source: Any) -> str:
    state = hashlib.sha256()
    for chunk in iter(lambda: source.read(_CHUNK), b""):
        state.update(chunk)
    return "sha256:" + state.hexdigest()
