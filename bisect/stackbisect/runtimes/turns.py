"""Turns of probes that want the same thing at once; a wait ends where the probe is not wanted."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from stackbisect.runtimes import process

_WAIT_S = 0.2


@dataclass
class Turns:
    """One user at a time for each name. Any number of threads may wait."""

    _guard: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _locks: dict[str, threading.Lock] = field(default_factory=dict, repr=False)

    @contextlib.contextmanager
    def alone(self, name: str, stopped: Callable[[], bool]) -> Iterator[None]:
        """Wait for `name` and keep it. Raises process.Stopped once `stopped` says so."""
        with self._guard:
            lock = self._locks.setdefault(name, threading.Lock())
        while not lock.acquire(timeout=_WAIT_S):
            if stopped():
                raise process.Stopped("the program stops")
        try:
            yield
        finally:
            lock.release()

    def taken(self, name: str) -> bool:
        """Whether somebody has it now."""
        lock = self._locks.get(name)
        return lock is not None and lock.locked()
