"""Shows a lock: in a few lines, in full, or as plain JSON values."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from pinner.inside.values import readable, readable_named

from .configs import config_text
from .schema import HELD, Entry, Held, Lock, Setting, place


def summary(lock: Lock) -> str:
    """A few lines: what the lock is of, how far it can be trusted, how much is in it."""
    return "\n".join(_summary(lock))


def show(lock: Lock) -> str:
    """The summary, the stack, and every choice on one line, by kernel."""
    return "\n".join([*_summary(lock), *_stack(lock), *_choices(lock), *_settings(lock)])


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
        "inductor": [_entry_json(entry) for entry in lock.inductor],
        "cublaslt": [_entry_json(entry) for entry in lock.cublaslt],
        "settings": [dict(vars(setting)) for setting in lock.settings],
        "entries": lock.count,
    }


def _entry_json(entry: Entry) -> dict[str, Any]:
    return {**vars(entry), "code": list(entry.code), "specs": list(entry.specs)}


def _summary(lock: Lock) -> Iterator[str]:
    run = lock.run
    yield f"command:  {shlex.join(run.command)}"
    yield f"written:  {run.created} by pinner {run.pinner}"
    yield f"state:    {_state(lock)}"
    hosts = "" if run.hosts == 1 else f" on {run.hosts} hosts"
    yield f"ranks:    {run.world_size}{hosts}, which disagreed on {run.conflicts} keys"
    if lock.triton or not lock.entries:
        yield f"choices:  {_count(lock.triton)}, {_timed(lock.triton)} decided by timing"
    if lock.inductor:
        yield f"inductor: {_count(lock.inductor)}, {_timed(lock.inductor)} with alternatives"
    if lock.cublaslt:
        yield f"cublaslt: {len(lock.cublaslt)} problems"
    if lock.settings:
        yield f"settings: {_settings_count(lock.settings)}"
    yield f"evidence: {_evidence(lock)}"


def _count(entries: Sequence[Entry]) -> str:
    return f"{len(entries)} of {len({entry.kernel for entry in entries})} kernels"


def _settings_count(settings: Sequence[Setting]) -> str:
    counts = {held: sum(each.held == held for each in settings) for held in HELD}
    parts = [f"{count} {_HELD_WORDS[held]}" for held, count in counts.items() if count]
    return f"{len(settings)} ({', '.join(parts)})"


_HELD_WORDS: Mapping[Held, str] = {
    "forced": "forced",
    "recorded": "recorded only",
    "no": "not enforceable",
}


def _timed(entries: Sequence[Entry]) -> int:
    return sum(entry.alternatives > 1 for entry in entries)


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
        yield from (f"  {name} = {readable(value)}" for name, value in sorted(lock.policy.items()))


def _choices(lock: Lock) -> Iterator[str]:
    fallbacks = {each.kernel: each.configs for each in lock.fallbacks}
    for of_chooser in (lock.triton, lock.inductor, lock.cublaslt):
        ordered = sorted(of_chooser, key=lambda entry: entry.identity)
        for (chooser, kernel), entries in groupby(ordered, key=_kernel):
            yield place(chooser, kernel)
            for entry in entries:
                yield f"  {_choice(entry)}"
            for config in fallbacks.get(kernel, ()) if chooser == "triton" else ():
                yield f"  otherwise → {readable_named(config)}"


def _kernel(entry: Entry) -> tuple[str, str]:
    return entry.chooser, entry.kernel


def _choice(entry: Entry) -> str:
    key = readable_named(entry.key) or "any call"
    codes = f", {len(entry.code)} machine codes" if entry.code else ""
    note = f"  # {entry.note}" if entry.note else ""
    config = config_text(entry.chooser, entry.config)
    return f"{key} → {config}  (of {entry.alternatives}{codes}){note}"


def _settings(lock: Lock) -> Iterator[str]:
    if lock.settings:
        yield "settings:"
    for setting in sorted(lock.settings, key=lambda each: each.identity):
        note = f"  # {setting.note}" if setting.note else ""
        held = _HELD_WORDS[setting.held]
        yield f"  {setting.place} = {readable(setting.value)}  ({held}){note}"
