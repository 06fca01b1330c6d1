"""Keeps the bytes of what a trace digests, each tensor once, so that two runs can be told apart.

`DIR/rank-R/bytes/ALGORITHM-DIGEST.safetensors`: equal tensors have one file. Where the limit is
reached, or the disk is full, no more are kept: the file `full` says so, and so does the process.
The trace itself goes on.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from ... import faults, ledger
from ...faults import EvidenceError
from .. import kept_bytes
from .log import rank_folder

if TYPE_CHECKING:
    from typing import Any, Optional, Sequence, Set

FOLDER = "bytes"
FULL = "full"
SUFFIX = ".safetensors"
_BLOCK = 4096  # what a file takes of a disk, at least


class Keeping:
    """The kept tensors of one process, beside those that its rank has already.

    folder: of the trace. limit: how many bytes one rank may take of the disk, in whole blocks.
    """

    def __init__(self, folder: str, limit: int) -> None:
        self._trace = folder
        self._limit = limit
        self._folder = ""
        self._known: Set[str] = set()
        self._used = 0
        self._full = False
        self._lock = threading.Lock()

    def take(self, tensors: Sequence[Any], digests: Sequence[Optional[str]]) -> None:
        """Keep each tensor that has a digest, unless one with its bytes is there. Never raises."""
        for tensor, text in zip(tensors, digests):
            if text is None or text in self._known or self._full:
                continue
            with self._lock:  # threads of the program write to one file otherwise
                if text not in self._known and not self._full:
                    self._keep(tensor, text)

    def forget(self) -> None:
        """In a child that was forked: other processes of its rank keep tensors, too."""
        self._folder = ""
        self._lock = threading.Lock()  # another thread may have held it

    def _keep(self, tensor: Any, text: str) -> None:
        try:
            if not self._folder:
                self._open()
            path = os.path.join(self._folder, file_name(text))
            if not os.path.exists(path):
                size = _size_of(tensor)
                if self._used + size > self._limit:
                    self._stop("the limit of %d bytes is reached" % self._limit)
                    return
                kept_bytes.keep(path, tensor, durable=False)
                self._used += size
            self._known.add(text)
        except EvidenceError as error:  # it has a digest of its parts, and a part has no bytes
            self._known.add(text)
            faults.say("no bytes are kept of a tensor: %s" % error)
        except OSError as error:
            self._stop("the bytes cannot be written: %s" % (error.strerror or error))

    def _open(self) -> None:
        folder = os.path.join(rank_folder(self._trace, ledger.layout()["rank"]), FOLDER)
        os.makedirs(folder, exist_ok=True)
        self._used = _used(folder)
        self._folder = folder

    def _stop(self, why: str) -> None:
        self._full = True
        faults.say("WARNING: no more tensors of this rank are kept: %s" % why)
        if not self._folder:
            return
        try:
            with open(os.path.join(self._folder, FULL), "w") as out:
                out.write(why + "\n")
        except OSError:  # said already; a comparison finds that the tensors are not there
            pass


def file_name(text: str) -> str:
    """The name of the file with the bytes of a digest."""
    return text.replace(":", "-") + SUFFIX


def _size_of(tensor: Any) -> int:
    """What its file will take, about."""
    try:
        size = int(tensor.numel()) * int(tensor.element_size())
    except (RuntimeError, NotImplementedError, AttributeError, TypeError):
        found = getattr(tensor, "nbytes", 0)  # an array; what is made of parts has none
        size = found if isinstance(found, int) else 0
    return _in_blocks(size + 128)


def _used(folder: str) -> int:
    used = 0
    with os.scandir(folder) as found:
        for each in found:
            try:
                used += _in_blocks(each.stat().st_size)
            except OSError:  # another process of this rank has just given it its name
                used += _BLOCK
    return used


def _in_blocks(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK
