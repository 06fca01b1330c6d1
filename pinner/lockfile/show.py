"""Shows a lock: in a few lines, in full, or as plain JSON values."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from pinner.inside.values import readable_named

from .schema import Lock, TritonEntry


def summary(lock: Lock) -> str:
    """A few lines: what the lock is of, how far it can be trusted, how much is in it."""
    return "\n".join(_summary(lock))


def show(lock: Lock) -> str:
    """The summary, the stack, and every choice on one line, by kernel."""
    return "\n".join([*_summary(lock), *_stack(lock), *_choices(lock)])


def as_json(lock: Lock) -> dict[str, Any]:
    """All of the lock, values in the tagged form."""
    return {
        "version": lock.version,
        "run": {**vars(lock.run), "command": list(lock.run.command)},
        "stack": {"hard": dict(lock.stack.hard), "soft": dict(lock.stack.soft)},
        "policy": dict(lock.policy),
        "evidence": {
            "algorithm": lock.evidence.algorithm,
            "steps": lock.evidence.steps,
            "streams": [
                {**vars(stream), "head": list(stream.head), "at": list(stream.at)}
                for stream in lock.evidence.streams
            ],
        },
        "triton": [_entry_json(entry) for entry in lock.triton],
        "fallback": {each.kernel: list(each.configs) for each in lock.fallbacks},
        "entries": len(lock.triton),
    }


def _entry_json(entry: TritonEntry) -> dict[str, Any]:
    return {**vars(entry), "code": list(entry.code), "specs": list(entry.specs)}


def _summary(lock: Lock) -> Iterator[str]:
    run = lock.run
    kernels = {entry.kernel for entry in lock.triton}
    timed = sum(entry.alternatives > 1 for entry in lock.triton)
    yield f"command:  {shlex.join(run.command)}"
    yield f"written:  {run.created} by pinner {run.pinner}"
    yield f"state:    {_state(lock)}"
    yield f"ranks:    {run.world_size}, which disagreed on {run.conflicts} keys"
    yield f"choices:  {len(lock.triton)} of {len(kernels)} kernels, {timed} decided by timing"
    yield f"evidence: {_evidence(lock)}"


def _state(lock: Lock) -> str:
    run = lock.run
    sealed = (
        f"sealed, {run.runs} validating runs agreed" if run.sealed else "a draft, not validated"
    )
    return sealed + ("" if run.complete else "; not complete: some choices have no entry")


def _evidence(lock: Lock) -> str:
    names = sorted({stream.name for stream in lock.evidence.streams})
    if not names:
        return "none"
    return f"{lock.evidence.steps} steps of {', '.join(names)} ({lock.evidence.algorithm})"


def _stack(lock: Lock) -> Iterator[str]:
    for name, facts in (("hard", lock.stack.hard), ("soft", lock.stack.soft)):
        yield f"stack, {name}:"
        yield from (f"  {field}: {value}" for field, value in sorted(facts.items()))
    if lock.policy:
        yield "policy:"
        yield f"  {readable_named(lock.policy)}"


def _choices(lock: Lock) -> Iterator[str]:
    fallbacks = {each.kernel: each.configs for each in lock.fallbacks}
    ordered = sorted(lock.triton, key=lambda entry: entry.identity)
    for kernel, entries in groupby(ordered, key=lambda entry: entry.kernel):
        yield kernel
        for entry in entries:
            yield f"  {_choice(entry)}"
        for config in fallbacks.get(kernel, ()):
            yield f"  otherwise → {readable_named(config)}"


def _choice(entry: TritonEntry) -> str:
    key = readable_named(entry.key) or "any call"
    codes = f", {len(entry.code)} machine codes" if entry.code else ""
    note = f"  # {entry.note}" if entry.note else ""
    return f"{key} → {readable_named(entry.config)}  (of {entry.alternatives}{codes}){note}"
