"""Reads and writes lockfiles: text and files on one side, `Lock` on the other, strict both ways."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable

from pinner.durable import one_writer, replace_text

from .errors import LockError
from .fields import Document
from .from_toml import lock_from
from .schema import Lock
from .to_toml import lines_of


def read_lock(path: str | os.PathLike[str]) -> Lock:
    """Raises `LockError` for whatever is wrong with the file, its absence included."""
    return read_lock_with_digest(path)[0]


def read_lock_with_digest(path: str | os.PathLike[str]) -> tuple[Lock, str]:
    """The lock and ``"sha256:…"`` of the very bytes it was read from."""
    data = _bytes_of(path)
    source = os.fspath(path)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise LockError(
            f"expected UTF-8 text, found byte 0x{data[error.start]:02x}; the file is damaged or "
            "cut: restore it or record again",
            source=source,
            line=line,
        ) from None
    return loads(text, source), "sha256:" + hashlib.sha256(data).hexdigest()


def write_lock(path: str | os.PathLike[str], lock: Lock) -> None:
    """Replaces the file as a whole: a reader sees the old lock or this one. Raises `LockError`."""
    text = dumps(lock)
    try:
        replace_text(path, text)
    except OSError as error:
        raise _cannot("write", path, error) from error


def update_lock(path: str | os.PathLike[str], change: Callable[[Lock], Lock]) -> Lock:
    """Replaces the lock by ``change`` of it and returns that; other updates wait, none is lost."""
    try:
        with one_writer(path):
            changed = change(read_lock(path))
            write_lock(path, changed)
    except OSError as error:
        raise _cannot("update", path, error) from error
    return changed


def loads(text: str, source_name: str) -> Lock:
    """Reads the text of a lockfile. Raises `LockError`, and nothing else, for text that is none."""
    return lock_from(Document(text.replace("\r\n", "\n"), source_name))


def dumps(lock: Lock) -> str:
    """The text of a lockfile. Raises `LockError` for a lock that `loads` would not take back."""
    text = "\n".join(lines_of(lock)) + "\n"
    loads(text, "the lock to be written")
    return text


def _bytes_of(path: str | os.PathLike[str]) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise _cannot("read", path, error) from error


def _cannot(what: str, path: str | os.PathLike[str], error: OSError) -> LockError:
    hint = "; `pinner record` makes one" if isinstance(error, FileNotFoundError) else ""
    reason = error.strerror or str(error)
    return LockError(f"cannot {what} the lockfile: {reason}{hint}", source=os.fspath(path))
