"""Joins what a lock keeps with what a run under it decided anew. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from pinner.inside.values import canonical, share_class

from .ledgers import ChoiceRecord, ProcessLedger
from .merge import Draft, fallbacks_of
from .schema import Entry, Identity, Lock, TritonFallback

# How a decision was made that the lock made, or another entry of it.
LOCKED = ("forced", "shared", "cached")


def with_new(kept: Lock, draft: Draft, decided: Collection[Identity]) -> Lock:
    """`kept` as it is, and those entries of `draft` that it lacks and that were `decided` anew.

    draft: merged from a run under `kept`. The fallback of a kernel is made anew only where its
    entries changed; facts and settings are added, never changed. The result is a draft.
    """
    have = {entry.identity for entry in kept.entries}
    new = [e for e in draft.entries if e.identity in decided and e.identity not in have]
    triton = (*kept.triton, *(entry for entry in new if entry.chooser == "triton"))
    ours = {setting.identity for setting in kept.settings}
    settings = tuple(each for each in draft.settings if each.identity not in ours)
    return replace(
        kept,
        run=replace(kept.run, sealed=False, runs=0, complete=kept.run.complete and not draft.holes),
        stack=replace(
            kept.stack,
            hard={**draft.stack.hard, **kept.stack.hard},
            soft={**draft.stack.soft, **kept.stack.soft},
        ),
        policy={**draft.policy, **kept.policy},
        triton=_ordered(triton),
        fallbacks=_fallbacks(kept, triton, {e.kernel for e in new if e.chooser == "triton"}),
        inductor=_ordered((*kept.inductor, *(e for e in new if e.chooser == "inductor"))),
        cublaslt=_ordered((*kept.cublaslt, *(e for e in new if e.chooser == "cublaslt"))),
        settings=(*kept.settings, *settings),
    )


def identities(ledgers: Iterable[ProcessLedger]) -> set[Identity]:
    """The keys that some process decided by itself, and not by an entry of its lock."""
    return {
        (record.chooser, record.kernel, record.source, canonical(record.key))
        for ledger in ledgers
        for record in ledger.records()
        if isinstance(record, ChoiceRecord) and record.how not in LOCKED
    }


def meant(lock: Lock, found: Mapping[str, Any]) -> set[Identity]:
    """The entries that a report of what does not hold is about, as narrowly as it says.

    found: chooser and kernel, and where they are known key, config and specialisation.
    """
    about = [
        entry
        for entry in lock.entries
        if (entry.chooser, entry.kernel) == (found.get("chooser"), found.get("kernel"))
    ]
    for same in (_same_key, _same_config, _same_spec):
        about = [entry for entry in about if same(entry, found)] or about
    return {entry.identity for entry in about}


def _same_key(entry: Entry, found: Mapping[str, Any]) -> bool:
    """Its own key, or one that the tuner's own key cannot tell apart."""
    key = found.get("key")
    if key is None:
        return True
    return entry.key_text == canonical(key) or share_class(entry.key) == share_class(key)


def _same_config(entry: Entry, found: Mapping[str, Any]) -> bool:
    config = found.get("config")
    return config is None or entry.config_text == canonical(config)


def _same_spec(entry: Entry, found: Mapping[str, Any]) -> bool:
    spec = found.get("spec")
    return spec is None or spec in entry.specs


def _fallbacks(
    kept: Lock, triton: tuple[Entry, ...], changed: Collection[str]
) -> tuple[TritonFallback, ...]:
    anew = {each.kernel: each for each in fallbacks_of(triton) if each.kernel in changed}
    rest = [each for each in kept.fallbacks if each.kernel not in changed]
    return tuple(sorted((*rest, *anew.values()), key=lambda each: each.kernel))


def _ordered(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    return tuple(sorted(entries, key=lambda entry: entry.identity))
