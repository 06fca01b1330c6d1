"""A lock as text for `git diff`: each line says by itself what it is about, in a stable order.

One way only: nothing reads it back. Whatever can change bits is there in full or as a digest, so
that two locks with equal text force the same choices.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from pinner.inside.values import readable, readable_named

from .configs import config_text
from .schema import BLOB, Entry, Lock

_SHOWN = 12  # of a digest's digits


def review_text(lock: Lock) -> str:
    """Entries first, as a reviewer wants them, then what they rest on."""
    parts = (_entries(lock), _settings(lock), _policy(lock), _stack(lock), _run(lock))
    return "".join(f"{line}\n" for part in (*parts, _evidence(lock)) for line in part)


def _entries(lock: Lock) -> Iterator[str]:
    for entry in sorted(lock.entries, key=lambda each: each.identity):
        yield from _entry(entry)
    for fallback in sorted(lock.fallbacks, key=lambda each: each.kernel):
        for place, config in enumerate(fallback.configs, start=1):
            yield f"{fallback.kernel}  otherwise ({place}) → {readable_named(config)}"


def _entry(entry: Entry) -> Iterator[str]:
    about = f"{entry.place}  {readable_named(entry.key) or 'any call'}"
    yield f"{about} → {config_text(entry.chooser, entry.config)}"
    if entry.source:
        yield f"    source {_short(entry.source)}"
    if BLOB in entry.config:
        yield f"    blob {entry.config[BLOB]}"
    yield f"    of {entry.alternatives} alternatives"
    for name, values in (("options", entry.options), ("heuristics", entry.heuristics)):
        if values:
            yield f"    {name} {readable_named(values)}"
    for spec, code in sorted(zip(entry.specs, entry.code, strict=True)):
        yield f"    code {spec} {_short(code)}"
    if entry.note:
        yield f"    note {entry.note}"


def _settings(lock: Lock) -> Iterator[str]:
    for setting in sorted(lock.settings, key=lambda each: each.identity):
        note = f"  # {setting.note}" if setting.note else ""
        yield f"setting {setting.place} = {readable(setting.value)} ({setting.held}){note}"


def _policy(lock: Lock) -> Iterator[str]:
    for name, value in sorted(lock.policy.items()):
        yield f"policy {name} = {readable(value)}"


def _stack(lock: Lock) -> Iterator[str]:
    for kind, facts in (("hard", lock.stack.hard), ("soft", lock.stack.soft)):
        for name, value in sorted(facts.items()):
            yield f"stack {kind} {name} = {readable(value)}"


def _run(lock: Lock) -> Iterator[str]:
    for name, value in vars(lock.run).items():
        yield f"run {name} = {shlex.join(value) if isinstance(value, tuple) else value}"


def _evidence(lock: Lock) -> Iterator[str]:
    yield f"evidence {lock.evidence.algorithm}"
    for stream in sorted(lock.evidence.streams, key=lambda each: (each.name, each.rank)):
        numbers = f" numbers {_short(stream.numbers)}" if stream.numbers else ""
        about = f"evidence {stream.name}, rank {stream.rank}"
        yield f"{about}: {stream.steps} steps {_short(stream.digest)}{numbers}"


def _short(digest: str) -> str:
    kind, _, digits = digest.partition(":")
    return f"{kind}:{digits[:_SHOWN]}"
