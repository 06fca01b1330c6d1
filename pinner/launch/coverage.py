"""Counts what became of each locked choice, and of each choice that is not locked. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pinner.inside.values import canonical, share_class
from pinner.lockfile.ledgers import ChoiceRecord, ProblemRecord, ProcessLedger
from pinner.lockfile.schema import Lock, TritonEntry

# In the order of the closing line. The first is the lock; the next three share it out.
FIELDS = (
    *("locked", "used", "unused", "cached", "fallback"),
    *("missed", "invalid", "unenforceable", "drifted"),
)

_BY_PROBLEM = {
    "missed": "missed",
    "invalid": "invalid",
    "elsewhere": "unenforceable",
    "refused": "unenforceable",
    "drift": "drifted",
}
_BY_CHOICE = {"fallback": "fallback", "missed": "missed"}

_KEPT = ("chooser", "kernel", "key", "config", "text", "spec", "candidates", "nearest")

Entry = Mapping[str, Any]
_Identity = tuple[str, str, str]


@dataclass(frozen=True)
class Coverage:
    """The entries behind each field of the report, in the order they were met."""

    entries: Mapping[str, tuple[Entry, ...]]
    notes: tuple[str, ...] = ()

    def count(self, name: str) -> int:
        """How many there are of one field."""
        return len(self.entries[name])

    def broken(self, on_miss: str) -> tuple[str, ...]:
        """The fields that break the promise: invalid always, the others where misses are errors."""
        strict = ("missed", "drifted") if on_miss == "error" else ()
        return tuple(name for name in ("invalid", *strict) if self.count(name))

    def line(self) -> str:
        """The closing line of `enforce`."""
        count = self.count
        return (
            f"{count('locked')} locked: {count('used')} used, {count('unused')} unused, "
            f"{count('cached')} cached · {count('fallback')} fallback · {count('missed')} missed · "
            f"{count('invalid')} invalid · {count('unenforceable')} not enforceable · "
            f"{count('drifted')} drifted"
        )

    def report(self) -> dict[str, Any]:
        """The object that `--report` writes: each field a count, and the entries behind them."""
        return {
            **{name: self.count(name) for name in FIELDS},
            "entries": {name: [dict(e) for e in self.entries[name]] for name in FIELDS},
        }


def cover(lock: Lock, ledgers: Sequence[ProcessLedger]) -> Coverage:
    """What the processes of a run did with the lock."""
    met = _Met(lock)
    for ledger in ledgers:
        for record in ledger.records():
            if isinstance(record, ChoiceRecord):
                met.choice(ledger.process.name, record)
            elif isinstance(record, ProblemRecord):
                met.problem(ledger.process.name, record)
    return met.coverage()


class _Met:
    """Gathers records; what several ranks report of one key is one entry with several names."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self._by_identity = {entry.identity: entry for entry in lock.triton}
        self._by_share: dict[_Identity, TritonEntry] = {}
        for entry in lock.triton:
            place = (entry.kernel, entry.source, share_class(entry.key))
            self._by_share.setdefault(place, entry)
        self._forced: dict[_Identity, list[str]] = {}
        self._cached: dict[_Identity, list[str]] = {}
        self._others: dict[str, dict[str, dict[str, Any]]] = {}
        self._notes: dict[str, None] = {}

    def choice(self, process: str, record: ChoiceRecord) -> None:
        for note in record.notes:
            self._notes.setdefault(f"{record.kernel}: {note}")
        if record.how in _BY_CHOICE:
            fields = {"chooser": record.chooser, "kernel": record.kernel}
            found = {**fields, "key": dict(record.key), "config": dict(record.config)}
            self._other(_BY_CHOICE[record.how], process, found)
            return
        places = self._cached if record.how == "disk" else self._forced
        for entry in self._entries(record):
            places.setdefault(entry.identity, []).append(process)

    def problem(self, process: str, record: ProblemRecord) -> None:
        if record.kind in _BY_PROBLEM:
            found = {name: record.fields[name] for name in _KEPT if name in record.fields}
            self._other(_BY_PROBLEM[record.kind], process, found)
        elif record.kind == "note":
            self._notes.setdefault(f"{record.kernel}: {record.text}".removeprefix(": "))

    def _entries(self, record: ChoiceRecord) -> list[TritonEntry]:
        """The locked entries that decided this.

        A key may stand under that of a twin ("shared"). Where one config is left of a list, every
        call takes it and no key is looked up: the entries that lock this config are in force.
        """
        place = (record.kernel, record.source)
        exact = self._by_identity.get((*place, canonical(record.key)))
        if exact is not None:
            return [exact]
        if record.how == "shared":
            twin = self._by_share.get((*place, share_class(record.key)))
            return [] if twin is None else [twin]
        if record.how != "forced" or record.key or record.alternatives != 1:
            return []
        config = canonical(record.config)
        return [
            entry
            for entry in self._lock.triton
            if (entry.kernel, entry.source, entry.config_text) == (*place, config)
        ]

    def _other(self, field: str, process: str, found: dict[str, Any]) -> None:
        known = self._others.setdefault(field, {}).setdefault(_same(field, found), found)
        names = known.setdefault("processes", [])
        if process not in names:
            names.append(process)

    def coverage(self) -> Coverage:
        locked = self._lock.triton
        forced, cached = self._forced, self._cached
        only_cached = cached.keys() - forced.keys()
        met = cached.keys() | forced.keys()
        entries: dict[str, tuple[Entry, ...]] = {
            "locked": tuple(_plain(e) for e in locked),
            "used": tuple(_plain(e, forced[e.identity]) for e in locked if e.identity in forced),
            "unused": tuple(_plain(e) for e in locked if e.identity not in met),
            "cached": tuple(
                _plain(e, cached[e.identity]) for e in locked if e.identity in only_cached
            ),
        }
        for name in FIELDS:
            entries.setdefault(name, tuple(self._others.get(name, {}).values()))
        return Coverage(entries, tuple(self._notes))


def _same(field: str, entry: Mapping[str, Any]) -> str:
    """What makes two lines one entry: a key missed by rule and by error is one miss."""
    parts = ("kernel", "key") if field in ("fallback", "missed") else tuple(entry)
    return canonical({name: entry.get(name) for name in parts})


def _plain(entry: TritonEntry, processes: Iterable[str] = ()) -> Entry:
    names = list(dict.fromkeys(processes))
    return {
        "chooser": "triton",
        "kernel": entry.kernel,
        "key": dict(entry.key),
        "config": dict(entry.config),
        **({"processes": names} if names else {}),
    }
