"""What differs between two locks, field by field; what can change bits stands first."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from pinner.inside.choosers.cublaslt import fields
from pinner.inside.values import canonical, is_launch_option, readable, readable_named

from .configs import algorithm_field, config_text
from .conflicts import together
from .occurrences import by_occurrence
from .schema import (
    BLOB,
    Chooser,
    Entry,
    Evidence,
    Lock,
    Run,
    Setting,
    StreamRecord,
    TritonFallback,
    Values,
    place,
)

Part = Literal["config", "source", "heuristics", "options", "code", "alternatives"]

# Within an entry: how surely a change of this part changes bits.
_PARTS: tuple[Part, ...] = ("config", "source", "heuristics", "options", "code", "alternatives")

_HEADINGS: Mapping[Part, str] = {
    "config": "choices that differ",
    "source": "kernels whose source differs",
    "heuristics": "same choice, other heuristics",
    "options": "same choice, other compile options",
    "code": "same choice, other machine code",
    "alternatives": "same choice out of another number of configs",
}


@dataclass(frozen=True)
class Change:
    """One field, old and new; None where a side does not have it."""

    name: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.name} {_shown(self.old)} → {_shown(self.new)}"

    def as_json(self) -> dict[str, Any]:
        return {"field": self.name, "old": self.old, "new": self.new}


@dataclass(frozen=True)
class EntryChange:
    """One choice that both locks have, and what about it differs, most serious part first.

    old, new: the whole configs.
    """

    chooser: Chooser
    kernel: str
    key: Values
    old: Values
    new: Values
    changes: tuple[tuple[Part, Change], ...]

    @property
    def worst(self) -> Part:
        return self.changes[0][0]

    def as_json(self) -> dict[str, Any]:
        changes = [{"part": part, **change.as_json()} for part, change in self.changes]
        kernel = {"chooser": self.chooser, "kernel": self.kernel, "key": self.key}
        return {**kernel, "changes": changes}


@dataclass(frozen=True)
class StreamChange:
    """One stream of the evidence: the ranks on which it differs, or which only one lock has."""

    stream: str
    what: Literal["differs", "only in a", "only in b"]
    ranks: tuple[int, ...]

    def as_json(self) -> dict[str, Any]:
        return {"stream": self.stream, "what": self.what, "ranks": list(self.ranks)}


@dataclass(frozen=True)
class Diff:
    """All that differs, from lock a (old) to lock b (new)."""

    entries: tuple[EntryChange, ...]
    hard: tuple[Change, ...]
    policy: tuple[Change, ...]
    settings: tuple[Change, ...]
    only_a: tuple[Entry, ...]
    only_b: tuple[Entry, ...]
    fallbacks: tuple[Change, ...]
    evidence: tuple[StreamChange, ...]
    run: tuple[Change, ...]
    soft: tuple[Change, ...]

    @property
    def empty(self) -> bool:
        return not (self.entries or self.can_change_bits or self.evidence or self.run or self.soft)

    @property
    def can_change_bits(self) -> bool:
        """Whether enforcing one lock instead of the other can give other bits.

        A change in the number of alternatives alone cannot; what only describes the recording (its
        evidence, its length, soft facts) does not count either.
        """
        return bool(
            any(entry.worst != "alternatives" for entry in self.entries)
            or self.hard
            or self.policy
            or self.settings
            or self.only_a
            or self.only_b
            or self.fallbacks
        )

    def text(self, name_a: str = "a", name_b: str = "b") -> str:
        """For people: a heading for each kind of difference, one line a field."""
        lines = list(_text(self, name_a, name_b))
        return "\n".join(lines) if lines else f"{name_a} and {name_b} lock the same choices"

    def as_json(self) -> dict[str, Any]:
        return {
            "empty": self.empty,
            "can_change_bits": self.can_change_bits,
            "entries": [entry.as_json() for entry in self.entries],
            "hard": [change.as_json() for change in self.hard],
            "policy": [change.as_json() for change in self.policy],
            "settings": [change.as_json() for change in self.settings],
            "only_a": [_entry_json(entry) for entry in self.only_a],
            "only_b": [_entry_json(entry) for entry in self.only_b],
            "fallbacks": [change.as_json() for change in self.fallbacks],
            "evidence": [change.as_json() for change in self.evidence],
            "run": [change.as_json() for change in self.run],
            "soft": [change.as_json() for change in self.soft],
        }


def diff_locks(a: Lock, b: Lock) -> Diff:
    """From ``a``, the older, to ``b``.

    When and by which version a lock was written, and notes on its entries, are no difference.
    """
    pairs, only_a, only_b = _paired(a.entries, b.entries)
    changed = [change for old, new in pairs if (change := _entry_change(old, new)) is not None]
    return Diff(
        entries=tuple(sorted(changed, key=_by_weight)),
        hard=_changes(a.stack.hard, b.stack.hard),
        policy=_changes(a.policy, b.policy),
        settings=_changes(_settings(a.settings), _settings(b.settings)),
        only_a=only_a,
        only_b=only_b,
        fallbacks=_changes(_fallbacks(a.fallbacks), _fallbacks(b.fallbacks)),
        evidence=_evidence(a.evidence, b.evidence),
        run=_changes(_run(a.run), _run(b.run)),
        soft=_changes(a.stack.soft, b.stack.soft),
    )


def _paired(
    a: Iterable[Entry], b: Iterable[Entry]
) -> tuple[list[tuple[Entry, Entry]], tuple[Entry, ...], tuple[Entry, ...]]:
    """Entries of both sides for one kernel, source and key, then what is left of either.

    Of that, those of the same kernel and key make pairs too: their source changed.
    """
    left, right = list(a), list(b)
    pairs = []
    for same in (_by_identity, _by_key):
        waiting: dict[Any, list[Entry]] = {}
        for entry in sorted(right, key=_by_identity):
            waiting.setdefault(same(entry), []).append(entry)
        unmatched = []
        for entry in sorted(left, key=_by_identity):
            partners = waiting.get(same(entry))
            if partners:
                pairs.append((entry, partners.pop(0)))
            else:
                unmatched.append(entry)
        left, right = unmatched, [each for rest in waiting.values() for each in rest]
    right.sort(key=_by_identity)
    return pairs, tuple(left), tuple(right)


def _by_identity(entry: Entry) -> tuple[str, ...]:
    return entry.identity


def _by_key(entry: Entry) -> tuple[str, ...]:
    return entry.chooser, entry.kernel, entry.key_text


def _entry_change(old: Entry, new: Entry) -> EntryChange | None:
    found: dict[Part, Sequence[Change]] = {
        "config": _config_changes(old, new),
        "source": _changes({"source": old.source}, {"source": new.source}),
        "heuristics": _changes(old.heuristics, new.heuristics),
        "options": _changes(old.options, new.options),
        "code": _code_changes(old, new),
        "alternatives": _changes(
            {"alternatives": old.alternatives}, {"alternatives": new.alternatives}
        ),
    }
    changes = tuple((part, change) for part in _PARTS for change in found[part])
    if not changes:
        return None
    return EntryChange(old.chooser, old.kernel, old.key, old.config, new.config, changes)


def _config_changes(old: Entry, new: Entry) -> list[Change]:
    """Most surely bit-changing fields first; a blob only where the fields it stands for agree."""
    changes = sorted(_changes(old.config, new.config), key=_by_effect)
    if old.chooser != "cublaslt":
        return changes
    return [change for change in changes if change.name != BLOB] or changes


def _code_changes(old: Entry, new: Entry) -> tuple[Change, ...]:
    """For the specialisations that both saw; seeing more of them is no change."""
    before = dict(zip(old.specs, old.code, strict=True))
    after = dict(zip(new.specs, new.code, strict=True))
    both = before.keys() & after.keys()
    return _changes({spec: before[spec] for spec in both}, {spec: after[spec] for spec in both})


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[Change, ...]:
    names = sorted(old.keys() | new.keys())
    return tuple(
        Change(name, old.get(name), new.get(name))
        for name in names
        if canonical(old.get(name)) != canonical(new.get(name))
    )


def _by_effect(change: Change) -> tuple[int, str]:
    """How surely a field of a config changes bits, most surely first.

    Splitting a reduction, or reducing by another scheme or in other blocks (Inductor's ``RBLOCK``,
    ``R0_BLOCK``), changes its order outright; tiles and other arguments may; warps regroup within a
    tile; stages and registers only schedule.
    """
    name = change.name.lower()
    if "split" in name:
        return 0, change.name
    if "reduc" in name or re.fullmatch(r"r\d*_?block", name):
        return 1, change.name
    if name in fields.ORDER:  # of a cuBLASLt algorithm
        return 2, f"{fields.ORDER.index(name):02}"
    if not is_launch_option(change.name) or change.name == "ir_override":
        return 2, change.name
    return (3 if change.name in ("num_warps", "num_ctas") else 4), change.name


def _by_weight(entry: EntryChange) -> tuple[int, int, str, str, str]:
    part, change = entry.changes[0]
    effect = _by_effect(change)[0] if part == "config" else 0
    return _PARTS.index(part), effect, entry.chooser, entry.kernel, canonical(entry.key)


def _settings(settings: Iterable[Setting]) -> dict[str, Any]:
    """What differs between two locks: the value, and how it is held."""
    found: dict[str, Any] = {}
    for setting in settings:
        found[setting.place] = setting.value
        found[f"{setting.place} (held)"] = setting.held
    return found


def _fallbacks(fallbacks: Iterable[TritonFallback]) -> dict[str, list[Values]]:
    return {fallback.kernel: list(fallback.configs) for fallback in fallbacks}


def _run(run: Run) -> dict[str, Any]:
    return {
        "command": list(run.command),
        "sealed": run.sealed,
        "complete": run.complete,
        "runs": run.runs,
        "world_size": run.world_size,
        "hosts": run.hosts,
        "conflicts": run.conflicts,
    }


def _evidence(a: Evidence, b: Evidence) -> tuple[StreamChange, ...]:
    old = {(stream.name, stream.rank): stream for stream in a.streams}
    new = {(stream.name, stream.rank): stream for stream in b.streams}
    found: dict[tuple[str, Literal["differs", "only in a", "only in b"]], list[int]] = {}
    for name, rank in sorted(old.keys() | new.keys()):
        before, after = old.get((name, rank)), new.get((name, rank))
        if after is None:
            found.setdefault((name, "only in a"), []).append(rank)
        elif before is None:
            found.setdefault((name, "only in b"), []).append(rank)
        elif _streams_differ(before, after):
            found.setdefault((name, "differs"), []).append(rank)
    return tuple(StreamChange(name, what, tuple(ranks)) for (name, what), ranks in found.items())


def _streams_differ(old: StreamRecord, new: StreamRecord) -> bool:
    """Over all steps where both have the same ones, else over the steps that both list."""
    if (old.steps, old.at, old.numbers) == (new.steps, new.at, new.numbers):
        return old.digest != new.digest
    before, after = by_occurrence(old.numbered_head), by_occurrence(new.numbered_head)
    return any(before[place] != after[place] for place in before.keys() & after.keys())


# ---- as text -------------------------------------------------------------------------------


def _text(diff: Diff, name_a: str, name_b: str) -> Iterator[str]:
    yield from _entries_text(diff.entries, lambda part: part == "config")
    yield from _section("hard stack facts that differ", diff.hard)
    yield from _section("policy that differs", diff.policy)
    yield from _section("settings that differ", diff.settings)
    yield from _entries_text(diff.entries, lambda part: part not in ("config", "alternatives"))
    yield from _lone_text(name_a, diff.only_a)
    yield from _lone_text(name_b, diff.only_b)
    yield from _fallback_text(diff.fallbacks)
    yield from _evidence_text(diff.evidence, name_a, name_b)
    yield from _section("the recordings differ", diff.run)
    yield from _entries_text(diff.entries, lambda part: part == "alternatives")
    yield from _section("soft stack facts that differ", diff.soft)


def _entries_text(entries: Iterable[EntryChange], wanted: Callable[[Part], bool]) -> Iterator[str]:
    chosen = [entry for entry in entries if wanted(entry.worst)]
    for part, group in groupby(chosen, key=lambda entry: entry.worst):
        of_part = list(group)
        yield f"{_HEADINGS[part]}: {len(of_part)}"
        for entry in of_part:
            yield from _entry_text(entry)


def _entry_text(entry: EntryChange) -> Iterator[str]:
    """A choice of Inductor's is the whole of it: both stand on the line of the operation."""
    changes = entry.changes
    if entry.chooser == "inductor" and entry.worst == "config":
        both = f"{readable_named(entry.old)} → {readable_named(entry.new)}"
        yield f"  {place(entry.chooser, entry.kernel)}: {both}"
        yield f"    at {readable_named(entry.key)}".rstrip()
        if entry.old.keys() != entry.new.keys():  # not one kernel with other parameters
            changes = tuple(each for each in changes if each[0] != "config")
    else:
        yield f"  {_choice_name(entry.chooser, entry.kernel, entry.key)}"
    for kind, change in changes:
        worded = _as_attribute(change) if entry.chooser == "cublaslt" else change
        yield f"    {_prefix(kind)}{worded}"


def _as_attribute(change: Change) -> Change:
    """A field of an algorithm in cuBLASLt's own words: ``REDUCTION NONE → INPLACE``."""
    titled = [algorithm_field(change.name, value) for value in (change.old, change.new)]
    return Change(titled[0][0], titled[0][1], titled[1][1])


def _prefix(part: Part) -> str:
    """What a field belongs to, where its name alone does not say so."""
    return f"{part} " if part in ("heuristics", "options", "code") else ""


def _section(heading: str, changes: Sequence[Change]) -> Iterator[str]:
    if changes:
        yield f"{heading}: {len(changes)}"
        yield from (f"  {change}" for change in changes)


def _lone_text(name: str, entries: Sequence[Entry]) -> Iterator[str]:
    if entries:
        yield f"choices only in {name}: {len(entries)}"
    for entry in entries:
        named = _choice_name(entry.chooser, entry.kernel, entry.key)
        yield f"  {named}: {config_text(entry.chooser, entry.config)}"


def _fallback_text(changes: Sequence[Change]) -> Iterator[str]:
    if changes:
        yield f"fallbacks that differ: {len(changes)}"
    for change in changes:
        yield f"  {change.name}"
        yield f"    {_configs(change.old)} → {_configs(change.new)}"


def _evidence_text(changes: Sequence[StreamChange], name_a: str, name_b: str) -> Iterator[str]:
    words = {
        "differs": "differs",
        "only in a": f"only in {name_a}",
        "only in b": f"only in {name_b}",
    }
    if changes:
        yield f"evidence that differs: {len(changes)} streams"
    for change in changes:
        ranks = together(f"rank {rank}" for rank in change.ranks)
        yield f"  {change.stream}: {words[change.what]} ({ranks})"


def _choice_name(chooser: str, kernel: str, key: Values) -> str:
    return f"{place(chooser, kernel)}  {readable_named(key)}".rstrip()


def _configs(configs: Sequence[Values] | None) -> str:
    if configs is None:
        return "none"
    return ", ".join(f"({readable_named(config)})" for config in configs)


def _shown(value: Any) -> str:
    if value is None:
        return "(none)"
    if isinstance(value, str):
        return _short_digest(value)
    return readable(value)


def _short_digest(text: str) -> str:
    kind, _, digest = text.partition(":")
    return f"{kind}:{digest[:12]}…" if kind == "sha256" and len(digest) > 12 else text


def _entry_json(entry: Entry) -> dict[str, Any]:
    return {
        "chooser": entry.chooser,
        "kernel": entry.kernel,
        "source": entry.source,
        "key": entry.key,
        "config": entry.config,
    }
