"""A container's output on this machine's disk, line by line, with secrets blotted out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

HIDDEN = b"<hidden>"

_LONG_LINE = 1 << 20
"""A line above this many bytes is written in pieces; a secret over a seam could be seen."""


class OutputFile:
    """A file that takes output in chunks; no occurrence of a secret reaches it."""

    def __init__(self, path: Path, secrets: Sequence[str]) -> None:
        """Open `path` anew. `secrets` should come longest first."""
        texts = [re.escape(secret.encode("utf-8", "surrogateescape")) for secret in secrets]
        self._pattern = re.compile(b"|".join(texts)) if texts else None
        self._rest = b""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("wb")

    def __enter__(self) -> OutputFile:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Write the unfinished last line and close."""
        try:
            self._write(self._rest)
        finally:
            self._file.close()

    def write(self, chunk: bytes) -> None:
        """Take one chunk; whole lines are on the disk when this returns."""
        if self._pattern is None:
            self._write(chunk)
            return
        text = self._rest + chunk
        cut = text.rfind(b"\n") + 1
        if len(text) - cut > _LONG_LINE:
            cut = len(text)
        self._rest = text[cut:]
        self._write(text[:cut])

    def _write(self, text: bytes) -> None:
        if not text:
            return
        self._file.write(text if self._pattern is None else self._pattern.sub(HIDDEN, text))
        self._file.flush()
