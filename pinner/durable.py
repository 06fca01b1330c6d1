"""Replaces whole files: a reader, or a kill at any moment, finds the old text or the new one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator


def replace_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes ``text`` to a temporary file beside ``path``, syncs it and renames it.

    UTF-8, newlines as they are. A symbolic link stays one: the file it names is replaced. Raises
    `OSError`.
    """
    target = os.path.realpath(path)
    folder, name = os.path.split(target)
    temporary = os.path.join(folder, f".{name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        write_new(temporary, text.encode("utf-8"))
        _keep_mode(target, temporary)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_folder(folder)


@contextlib.contextmanager
def one_writer(path: str | os.PathLike[str]) -> Iterator[None]:
    """Holds off every other `one_writer` of ``path``, in any process, until the end of the block.

    The lock is a ``flock`` on a file beside ``path``: the kernel drops it when its holder dies, so
    a killed writer never blocks the next one. Raises `OSError` where the file system has no such
    locks.
    """
    target = os.path.realpath(path)
    beside = f"{target}.writing"
    descriptor = _hold(beside)
    try:
        yield
    finally:
        os.unlink(beside)
        os.close(descriptor)


def _hold(beside: str) -> int:
    """Opens and locks the file; again if its last holder has removed it meanwhile."""
    while True:
        descriptor = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_same_file(descriptor, beside):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_same_file(descriptor: int, path: str) -> bool:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), found)


def write_new(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes a file that must not be there yet, and syncs it. Raises `OSError`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _keep_mode(old: str, new: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.chmod(new, os.stat(old).st_mode & 0o7777)


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Makes the rename survive a power cut where the file system can; some network ones cannot."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
