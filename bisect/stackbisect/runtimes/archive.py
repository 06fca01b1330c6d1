"""Tar streams to and from containers: what is packed is fixed, what is unpacked is not trusted."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO

_BLOCK = 1 << 20
_SKIPPED = frozenset({"__pycache__"})


class ArchiveError(Exception):
    """An archive from a container that holds something it should not, or is cut short."""


def pack(trees: Iterable[tuple[str, Path]], folders: Mapping[str, int]) -> bytes:
    """Return a tar of host folders under new names, and of more folders with their modes.

    Files get 0644 and folders 0755, or the mode in `folders`, whatever this host's umask made of
    them: any user in a container can read them. Owners and times are left out. A folder stands in
    the tar once: Docker gives a second entry's mode to nothing.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        seen: set[str] = set()
        for name, root in trees:
            seen.update(_pack_tree(archive, name, root, folders))
        for name in sorted(set(folders) - seen):
            archive.addfile(_folder(name, folders[name]))
    return buffer.getvalue()


def _pack_tree(
    archive: tarfile.TarFile, name: str, root: Path, modes: Mapping[str, int]
) -> Iterator[str]:
    """Add a tree; yield the names of its folders."""
    for parent, folders, files in os.walk(root):
        folders[:] = sorted(folder for folder in folders if folder not in _SKIPPED)
        inner = PurePosixPath(name, Path(parent).relative_to(root).as_posix())
        archive.addfile(_folder(str(inner), modes.get(str(inner), 0o755)))
        yield str(inner)
        for file in sorted(files):
            content = Path(parent, file).read_bytes()
            info = tarfile.TarInfo(str(inner / file))
            info.size, info.mode = len(content), 0o644
            archive.addfile(info, io.BytesIO(content))


def _folder(name: str, mode: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, mode
    return info


def unpack(stream: Iterable[bytes], target: Path) -> list[Path]:
    """Write the files of a container's archive below `target`; return them.

    The archive's first path component (the folder that was asked for) is dropped. Links, devices
    and names that lead outside are left out: the command in the container may have made them.
    Files already there are replaced. Raises ArchiveError where the stream is not a whole tar.
    """
    written: list[Path] = []
    for info, content in members(stream):
        parts = PurePosixPath(info.name).parts[1:]
        if not parts or ".." in parts or PurePosixPath(info.name).is_absolute():
            continue
        place = target.joinpath(*parts)
        if info.isdir():
            place.mkdir(parents=True, exist_ok=True)
        elif content is not None:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.unlink(missing_ok=True)
            with place.open("wb") as out:
                shutil.copyfileobj(content, out)
            written.append(place)
    return written


def members(stream: Iterable[bytes]) -> Iterator[tuple[tarfile.TarInfo, io.RawIOBase | None]]:
    """Yield each member of a tar stream with its content, read once, front to back.

    The content is None for anything but a regular file, and only good until the next member.
    """
    reader = _Reader(stream)
    try:
        with tarfile.open(fileobj=reader, mode="r|", bufsize=_BLOCK) as archive:
            for info in archive:
                content = archive.extractfile(info) if info.isreg() else None
                yield info, None if content is None else _Content(content)
    except tarfile.TarError as error:
        raise _torn(error) from error


def _torn(error: tarfile.TarError) -> ArchiveError:
    return ArchiveError(f"the archive from the container is cut or torn: {error}")


class _Content(io.RawIOBase):
    """A member's content, whose end before its time is an ArchiveError."""

    def __init__(self, content: IO[bytes]) -> None:
        self._content = content

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        try:
            return self._content.read(size)
        except tarfile.TarError as error:
            raise _torn(error) from error


class _Reader(io.RawIOBase):
    """Byte chunks as the file that `tarfile` wants to read."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._rest = b""
        self._at = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        parts = []
        left = size
        while left != 0:
            if self._at == len(self._rest):
                self._rest, self._at = next(self._chunks, b""), 0
                if not self._rest:
                    break
            # Cut without copying what is left: a chunk of some megabytes is read in small pieces.
            end = len(self._rest) if left < 0 else min(self._at + left, len(self._rest))
            parts.append(self._rest[self._at : end])
            left -= end - self._at if left > 0 else 0
            self._at = end
        return b"".join(parts)
