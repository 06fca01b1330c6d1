"""Counts what became of each locked choice, and of each choice that is not locked. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pinner.inside import policy
from pinner.inside.values import canonical, readable, readable_named, share_class
from pinner.lockfile.configs import config_text
from pinner.lockfile.ledgers import ChoiceRecord, ProblemRecord, ProcessLedger, SettingRecord
from pinner.lockfile.schema import (
    CHOOSERS,
    Entry,
    Identity,
    Lock,
    place,
)
from pinner.lockfile.settings import Row, SeenSettings

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
    "bypass": "unenforceable",
    "drift": "drifted",
}
_BY_CHOICE = {"fallback": "fallback", "missed": "missed"}
# The decision stood in a compile cache already.
_CACHED = ("disk", "cached")
# Decided by measuring, now or when the library's own disk cache was filled.
_TIMED = ("tuned", "disk")
# Decided past the lock unless the lock says the same: by a library's heuristic, by a cache.
_UNFORCED = ("heuristic", "cached")

_KEPT = ("chooser", "kernel", "key", "config", "text", "spec", "candidates", "nearest")

Found = Mapping[str, Any]


@dataclass(frozen=True)
class Coverage:
    """The entries behind each field of the report, in the order they were met.

    settings: the switches of other libraries that were active.
    """

    entries: Mapping[str, tuple[Found, ...]]
    notes: tuple[str, ...] = ()
    settings: tuple[Row, ...] = ()

    def count(self, name: str) -> int:
        """How many there are of one field."""
        return len(self.entries[name])

    def broken(self, on_miss: str) -> tuple[str, ...]:
        """The fields that break the promise: invalid always, the others where misses are errors."""
        strict = ("missed", "drifted") if on_miss == "error" else ()
        return tuple(name for name in ("invalid", *strict) if self.count(name))

    def broken_text(self, name: str) -> str:
        """How many of one field, of what, and why."""
        abouts = dict.fromkeys(named(found) for found in self.entries[name])
        texts = dict.fromkeys(str(e["text"]) for e in self.entries[name] if e.get("text"))
        what = f"{self.count(name)} {name}: {', '.join(abouts)}"
        return ": ".join(part for part in (what, "; ".join(texts)) if part)

    def line(self) -> str:
        """What became of all choices together, on one line."""
        count = self.count
        return (
            f"{count('locked')} locked: {count('used')} used, {count('unused')} unused, "
            f"{count('cached')} cached · {count('fallback')} fallback · {count('missed')} missed · "
            f"{count('invalid')} invalid · {count('unenforceable')} not enforceable · "
            f"{count('drifted')} drifted"
        )

    def closing(self) -> tuple[str, ...]:
        """The last lines of `enforce`: all choices, each chooser, and every hole by name.

        A run in which Triton alone decided has no line of its own for it: the first says it all.
        """
        choosers = self._choosers()
        alone = choosers == ("triton",)
        return (
            self.line(),
            *(self._chooser_line(chooser) for chooser in choosers if not alone),
            *(f"not enforceable: {described(found)}" for found in self.entries["unenforceable"]),
        )

    def _choosers(self) -> tuple[str, ...]:
        named = {str(found.get("chooser", "")) for name in FIELDS for found in self.entries[name]}
        named |= {row.chooser for row in self.settings}
        known = tuple(chooser for chooser in CHOOSERS if chooser in named)
        return known + tuple(sorted(named - {*CHOOSERS, ""}))

    def _chooser_line(self, chooser: str) -> str:
        counts = {
            name: sum(found.get("chooser") == chooser for found in self.entries[name])
            for name in FIELDS
        }
        locked, used = counts.pop("locked"), counts.pop("used")
        parts = [f"{used} of {locked} used"] if locked else []
        parts += [f"{count} {_WORDS.get(name, name)}" for name, count in counts.items() if count]
        held = sum(row.chooser == chooser and row.state == "held" for row in self.settings)
        parts += [f"{held} {'setting' if held == 1 else 'settings'} held"] if held else []
        return f"{chooser}: {', '.join(parts) or 'active, and not in the lock'}"

    def report(self) -> dict[str, Any]:
        """The object that `--report` writes: each field a count, and the entries behind them."""
        return {
            **{name: self.count(name) for name in FIELDS},
            "entries": {name: [dict(e) for e in self.entries[name]] for name in FIELDS},
            "settings": [row.as_json() for row in self.settings],
        }


_WORDS = {"unenforceable": "not enforceable"}


def named(found: Found) -> str:
    """What an entry of the report is about, as people read it."""
    about = str(found.get("kernel") or found.get("setting") or "")
    return place(str(found.get("chooser") or ""), about)


def described(found: Found) -> str:
    """The same with its key and text, and the processes where not all may have met it."""
    key = readable_named(found["key"]) if found.get("key") else ""
    what = " ".join(part for part in (named(found), key) if part)
    return ": ".join(part for part in (what, str(found.get("text", ""))) if part)


def cover(lock: Lock, ledgers: Sequence[ProcessLedger]) -> Coverage:
    """What the processes of a run did with the lock."""
    return _met(lock, ledgers).coverage()


def met_entries(lock: Lock, ledgers: Sequence[ProcessLedger]) -> set[Identity]:
    """The entries of the lock that decided something in a run, or that a compile cache held."""
    return _met(lock, ledgers).entries()


def _met(lock: Lock, ledgers: Sequence[ProcessLedger]) -> _Met:
    met = _Met(lock)
    for number, ledger in enumerate(ledgers):
        for record in ledger.records():
            if isinstance(record, ChoiceRecord):
                met.choice(ledger.process.name, record)
            elif isinstance(record, ProblemRecord):
                met.problem(ledger.process.name, record)
            elif isinstance(record, SettingRecord):
                met.settings.add(record, ledger.process, number)
    return met


class _Met:
    """Gathers records; what several ranks report of one key is one entry with several names."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self.settings = SeenSettings()
        self._by_identity = {entry.identity: entry for entry in lock.entries}
        self._by_share: dict[Identity, Entry] = {}
        for entry in lock.triton:
            shared = (entry.chooser, entry.kernel, entry.source, share_class(entry.key))
            self._by_share.setdefault(shared, entry)
        self._forced: dict[Identity, list[str]] = {}
        self._cached: dict[Identity, list[str]] = {}
        self._others: dict[str, dict[str, dict[str, Any]]] = {}
        self._contradictions: list[tuple[str, dict[str, Any]]] = []
        self._notes: dict[str, None] = {}

    def choice(self, process: str, record: ChoiceRecord) -> None:
        for note in record.notes:
            self._notes.setdefault(f"{place(record.chooser, record.kernel)}: {note}")
        if record.how in _BY_CHOICE:
            self._other(_BY_CHOICE[record.how], process, _chosen(record))
            return
        decided = self._entries(record)
        if record.how in _TIMED and not decided and record.alternatives > 1:
            text = "decided by timing, in this run or an earlier one, and not in the lock"
            self._other("missed", process, {**_chosen(record), "text": text})
            return
        if record.how in _UNFORCED and not self._as_locked(process, record, decided):
            return
        places = self._cached if record.how in _CACHED else self._forced
        for entry in decided:
            places.setdefault(entry.identity, []).append(process)

    def _as_locked(self, process: str, record: ChoiceRecord, decided: Sequence[Entry]) -> bool:
        """Whether what was decided past the lock is what the lock holds; told where it is not."""
        who = "a compile cache" if record.how == "cached" else "the library's own heuristic"
        if not decided:
            if record.how == "heuristic":
                self._other("fallback", process, _chosen(record))
            else:
                text = f"{who} decided it, and it is not in the lock: record with empty caches"
                self._other("unenforceable", process, {**_chosen(record), "text": text})
            return False
        locked = decided[0]
        if locked.config_text == canonical(record.config):
            return True
        here, there = (config_text(record.chooser, x.config) for x in (record, locked))
        text = f"{who} decided ({here}), the lock holds ({there})"
        self._contradictions.append((process, {**_chosen(record), "text": text}))
        return False

    def problem(self, process: str, record: ProblemRecord) -> None:
        if record.kind in _BY_PROBLEM:
            found = {name: record.fields[name] for name in _KEPT if name in record.fields}
            self._other(_BY_PROBLEM[record.kind], process, found)
        elif record.kind == "note":
            about = place(record.chooser, record.kernel)
            self._notes.setdefault(f"{about}: {record.text}".removeprefix(": "))

    def _entries(self, record: ChoiceRecord) -> list[Entry]:
        """The locked entries that decided this.

        A key may stand under that of a twin ("shared"). Where one config is left of a list, every
        call takes it and no key is looked up: the entries that lock this config are in force.
        """
        kernel = (record.chooser, record.kernel, record.source)
        exact = self._by_identity.get((*kernel, canonical(record.key)))
        if exact is not None:
            return [exact]
        if record.how == "shared":
            twin = self._by_share.get((*kernel, share_class(record.key)))
            return [] if twin is None else [twin]
        if record.how != "forced" or record.key or record.alternatives != 1:
            return []
        config = canonical(record.config)
        return [
            entry
            for entry in self._lock.entries
            if (*entry.identity[:3], entry.config_text) == (*kernel, config)
        ]

    def _other(self, field: str, process: str, found: dict[str, Any]) -> None:
        known = self._others.setdefault(field, {}).setdefault(_same(field, found), found)
        names = known.setdefault("processes", [])
        if process not in names:
            names.append(process)

    def entries(self) -> set[Identity]:
        return {*self._forced, *self._cached}

    def coverage(self) -> Coverage:
        rows = self.settings.rows(self._lock)
        told = self._told()
        for process, found in self._contradictions:
            if _about(found) not in told:
                self._other("invalid", process, found)
        for row in rows:
            if (row.chooser, row.name, canonical(None)) not in told:
                self._setting(row)
        locked = self._lock.entries
        forced, cached = self._forced, self._cached
        only_cached = cached.keys() - forced.keys()
        met = cached.keys() | forced.keys()
        entries: dict[str, tuple[Found, ...]] = {
            "locked": tuple(_plain(e) for e in locked),
            "used": tuple(_plain(e, forced[e.identity]) for e in locked if e.identity in forced),
            "unused": tuple(_plain(e) for e in locked if e.identity not in met),
            "cached": tuple(
                _plain(e, cached[e.identity]) for e in locked if e.identity in only_cached
            ),
        }
        for name in FIELDS:
            entries.setdefault(name, tuple(self._others.get(name, {}).values()))
        drifted = (f"drifted: {described(found)}" for found in entries["drifted"])
        return Coverage(entries, (*self._notes, *drifted), rows)

    def _told(self) -> set[tuple[str, str, str]]:
        """What choosers themselves reported as broken: it is counted once, in their words."""
        fields = ("missed", "invalid", "unenforceable", "drifted")
        return {_about(found) for name in fields for found in self._others.get(name, {}).values()}

    def _setting(self, row: Row) -> None:
        """Counts a setting that does not stand as in the lock; one that does is a row alone."""
        if row.state == "new":
            value = readable(row.value)
            self._notes.setdefault(f"{place(row.chooser, row.name)} = {value}: {row.text}")
        field = _setting_field(row, self._lock)
        if field is None:
            return
        found = {"chooser": row.chooser, "setting": row.name, "value": row.value, "text": row.text}
        for process in row.processes:
            self._other(field, process, dict(found))


def _about(found: Found) -> tuple[str, str, str]:
    key = canonical(found.get("key"))
    return str(found.get("chooser", "")), str(found.get("kernel", "")), key


def _setting_field(row: Row, lock: Lock) -> str | None:
    if row.state == "not enforceable":
        return "unenforceable"
    if row.state != "differs":
        return None
    if row.chooser == policy.CHOOSER:
        return "invalid"
    forced = any(
        each.identity == (row.chooser, row.name) and each.held == "forced" for each in lock.settings
    )
    return "invalid" if forced else "drifted"


def _chosen(record: ChoiceRecord) -> dict[str, Any]:
    return {
        "chooser": record.chooser,
        "kernel": record.kernel,
        "key": dict(record.key),
        "config": dict(record.config),
    }


def _same(field: str, entry: Mapping[str, Any]) -> str:
    """What makes two lines one entry: a key missed by rule and by error is one miss."""
    parts = ("chooser", "kernel", "key") if field in ("fallback", "missed") else tuple(entry)
    return canonical({name: entry.get(name) for name in parts})


def _plain(entry: Entry, processes: Iterable[str] = ()) -> Found:
    names = list(dict.fromkeys(processes))
    return {
        "chooser": entry.chooser,
        "kernel": entry.kernel,
        "key": dict(entry.key),
        "config": dict(entry.config),
        **({"processes": names} if names else {}),
    }
