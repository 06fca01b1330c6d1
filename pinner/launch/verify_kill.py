"""Kills a run once its ranks have saved the checkpoint that is looked at, and wait to be killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pinner.launch.session_dir import SESSION, SessionDir

LOOK_S = 0.1


class Killer:
    """Watches the ledgers of a run from a thread of its own, and ends the run with SIGKILL.

    Every process of the run on this machine is killed, whatever group or session it has put itself
    into: they are known by the variable that names the run's folder.

    savers: how many processes save the checkpoint. grace_s: how long the others may take after the
    first one that waits; one that needs the first for its own save would never come.
    """

    def __init__(self, session: SessionDir, savers: int, grace_s: float) -> None:
        self._session = session
        self._savers = savers
        self._grace_s = grace_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="pinner-kill", daemon=True)
        self._ledgers: dict[Path, _Tail] = {}
        self.killed = False
        self.holding: tuple[str, ...] = ()

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are pinner's own
        deadline: float | None = None
        while not self._ended.wait(LOOK_S):
            held = self._look()
            if held and deadline is None:
                deadline = time.monotonic() + self._grace_s
            late = deadline is not None and time.monotonic() > deadline
            if len(held) >= self._savers or late:
                self.holding = tuple(sorted(held))
                self.killed = True
                kill_all(str(self._session.path))
                return

    def _look(self) -> set[str]:
        """The ranks that wait."""
        for path in self._session.ledger.glob("*.jsonl"):
            self._ledgers.setdefault(path, _Tail(path)).read()
        return {tail.rank for tail in self._ledgers.values() if tail.held}


class _Tail:
    """What one ledger says of its rank, and whether that rank waits; read as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self.rank = path.name
        self.held = False

    def read(self) -> None:
        with open(self._path, "rb") as source:
            source.seek(self._at)
            data = source.read()
        whole = data[: data.rfind(b"\n") + 1]
        for line in whole.splitlines():
            if self._at == 0 or b'"at":"held"' in line:
                self._take(json.loads(line))
            self._at += len(line) + 1

    def _take(self, line: dict[str, object]) -> None:
        if line.get("t") == "process":
            rank = line.get("rank")
            self.rank = f"pid {line['pid']}" if rank is None else f"rank {rank}"
        self.held |= line.get("t") == "resume" and line.get("at") == "held"


def kill_all(folder: str, kill: Callable[[int, int], None] = os.kill) -> None:
    """Kills every process that belongs to the run in `folder`, until none is left."""
    quiet = 0
    while quiet < 2:  # what one of them started meanwhile shows at the next look
        found = [pid for pid in _members(folder) if pid != os.getpid()]
        quiet = 0 if found else quiet + 1
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _members(folder: str) -> Iterator[int]:
    mark = f"{SESSION}={folder}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in path.read_bytes().split(b"\0"):
                yield int(path.parent.name)
