"""Takes entries out of a lock and leaves the rest exactly as it is. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from .schema import Entry, Evidence, Identity, Lock


def without(lock: Lock, gone: Collection[Identity]) -> Lock:
    """The lock without some entries, as a draft: its evidence was made with them.

    A kernel that keeps an entry keeps its fallback, configs of entries that go among them: what a
    key that is not locked gets must not change because another key went.
    """
    triton = _left(lock.triton, gone)
    kernels = {entry.kernel for entry in triton}
    return replace(
        lock,
        run=replace(lock.run, sealed=False, runs=0),
        evidence=Evidence(),
        triton=triton,
        fallbacks=tuple(each for each in lock.fallbacks if each.kernel in kernels),
        inductor=_left(lock.inductor, gone),
        cublaslt=_left(lock.cublaslt, gone),
    )


def _left(entries: tuple[Entry, ...], gone: Collection[Identity]) -> tuple[Entry, ...]:
    return tuple(entry for entry in entries if entry.identity not in gone)
