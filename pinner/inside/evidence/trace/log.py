"""The log of one process: lines are gathered, and written in one piece to a file of its own.

The file is opened with O_APPEND and written at the end of each step, after so many lines or so
much time, and before anything that may wait for another process: a log of a killed process lacks
at most what the kill came in between. A child that was forked opens its own file.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

from ... import faults, ledger

if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional

VERSION = 1
MOST_LINES = 512
LONGEST_S = 1.0
MOST_LATE_LINES = 65536


def rank_folder(folder: str, rank: Optional[int]) -> str:
    """Return the part of a trace that belongs to one rank."""
    return os.path.join(folder, "rank-%s" % ("none" if rank is None else rank))


class Log:
    """Lines on their way to a file. `head` gives fields of the first line, when that is written.

    settle: completes lines whose digests are still computed by a device; then only the end of a
        step writes, so that nothing waits for the device in between
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.head: Callable[[], Dict[str, Any]] = dict
        self.settle: Optional[Callable[[str], str]] = None
        self._lines: List[str] = []
        self._fd = -1
        self._path = ""
        self._written = time.monotonic()
        self._closed = False
        self.events = 0

    def add(self, line: str) -> None:
        """Take one line, without its newline."""
        lines = self._lines
        if self._closed:
            return
        lines.append(line)
        self.events += 1
        count = len(lines)
        if self.settle is not None:
            if count >= MOST_LATE_LINES:
                self.flush()
        elif count >= MOST_LINES or (
            not count & 15 and time.monotonic() - self._written > LONGEST_S
        ):
            self.flush()

    def before_waiting(self) -> None:
        """This process may wait for another one, for ever: what it did so far is written."""
        if self.settle is None:
            self.flush()

    def flush(self) -> None:
        """Hand all lines to the system. Ends the process where they cannot be written."""
        lines, self._lines = self._lines, []
        self._written = time.monotonic()
        if not lines:
            return
        try:
            if self._fd < 0:
                self._open()
            text = "\n".join(lines) + "\n"
            self._write(text if self.settle is None else self.settle(text))
        except OSError as error:
            faults.die("cannot write the trace %s: %s" % (self._path, error.strerror))

    def close(self) -> None:
        """Write the last line. A process that traced nothing leaves no file.

        What still comes, from exit handlers that run after ours, is left out.
        """
        self._closed = True
        if self.events:
            self._lines.append('{"t":"end","events":%d}' % self.events)
            self.flush()

    def withdraw(self) -> None:
        """Take no more lines. A log without a file never gets one."""
        if self._fd < 0:
            self.forget()
        self.close()
        self.events = 0  # closing again writes nothing

    def forget(self) -> None:
        """In a child that was forked: what the parent has gathered is the parent's to write."""
        self._lines = []
        self.events = 0
        self._closed = False
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        layout = ledger.layout()
        rank = layout["rank"]
        host = os.uname().nodename
        folder = rank_folder(self._folder, rank)
        os.makedirs(folder, exist_ok=True)
        name = "%s-%d-%s.jsonl" % (_plain(host), os.getpid(), os.urandom(6).hex())
        self._path = os.path.join(folder, name)
        self._fd = os.open(
            self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644
        )
        first = {
            "t": "trace",
            "version": VERSION,
            "rank": rank,
            "world": layout["world"],
            "pid": os.getpid(),
            "host": host,
            "time": ledger.now(),
        }
        first.update(self.head())
        self._write(json.dumps(first, separators=(",", ":")) + "\n")

    def _write(self, text: str) -> None:
        data = text.encode("utf-8")
        written = os.write(self._fd, data)
        while written < len(data):  # a full disk takes a part, and the next write says so
            written += os.write(self._fd, data[written:])


def _plain(host: str) -> str:
    return "".join(c if c.isalnum() or c in "._" else "_" for c in host) or "host"
