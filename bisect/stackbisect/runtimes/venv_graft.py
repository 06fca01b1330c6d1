"""Copies a distribution's own files from one virtual environment into another of the same Python.

Its RECORD says which they are, so it works for what no index has (a private build, a local wheel).
Files are hard-linked where that works, so a mixture of two torches takes no room; like every
installer's, an environment's files are replaced, never written into.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

# A path in RECORD that pip itself compiled: made again where it is missing.
_COMPILED = ".pyc"


class GraftError(Exception):
    """A distribution that cannot be copied; the text says why."""


def graft(name: str, info: Path, donor: Path, into: Path) -> None:
    """Copy one distribution. `info` is its .dist-info folder below the environment `donor`.

    Raises GraftError where its files are not all known or not all there, OSError for the disk.
    """
    for source, digest in _files(name, info, donor):
        target = into / source.relative_to(donor)
        if target.exists() and not _wrote(source, digest):
            continue  # another distribution's, which was installed over this one's
        target.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            target.unlink()
        if source.parent == donor / "bin":
            _copy_script(source, target, donor, into)
        else:
            _link(source, target)


def _files(name: str, info: Path, donor: Path) -> Iterator[tuple[Path, str]]:
    """Each file, and the digest of it that RECORD has ("" where it has none)."""
    record = info / "RECORD"
    try:
        rows = list(csv.reader(record.read_text(encoding="utf-8").splitlines()))
    except FileNotFoundError:
        raise GraftError(
            f"{name}: expected {info.name}/RECORD to list its files, found none; it was not "
            "installed from a wheel"
        ) from None
    for row in rows:
        if not row:
            continue
        source = Path(os.path.normpath(info.parent / row[0]))
        if donor not in source.parents:
            raise GraftError(f"{name}: {row[0]} lies outside its environment")
        if source.is_file():
            yield source, row[1] if len(row) > 1 else ""
        elif source.suffix != _COMPILED:
            raise GraftError(f"{name}: its RECORD lists {row[0]}, which is not there")


def _wrote(source: Path, digest: str) -> bool:
    """Whether a file is what RECORD says; true where it does not say, or not as SHA-256."""
    algorithm, _, wanted = digest.partition("=")
    if algorithm != "sha256":
        return True
    found = base64.urlsafe_b64encode(hashlib.sha256(source.read_bytes()).digest())
    return found.decode().rstrip("=") == wanted.rstrip("=")


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, too many links, or one without any
        shutil.copy2(source, target)


def _copy_script(source: Path, target: Path, donor: Path, into: Path) -> None:
    """A program starts its environment's Python by its path, in its first lines."""
    content = source.read_bytes()
    if content.startswith(b"#!"):
        head, tail = content[:4096], content[4096:]
        content = head.replace(os.fsencode(donor), os.fsencode(into)) + tail
    target.write_bytes(content)
    shutil.copystat(source, target)
