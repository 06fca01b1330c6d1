"""Merges the ledgers of one run into a draft: one entry a key, every disagreement listed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pinner.inside.values import canonical, readable_named
from pinner.stack import classify, combine, known

from .conflicts import Conflict, ConflictError, Rule, Seen, conflict_of, settle, together
from .ledgers import (
    ChoiceRecord,
    CodeRecord,
    FactsRecord,
    ProblemRecord,
    ProcessLedger,
    ProcessRecord,
    Record,
    SettingRecord,
)
from .numbers import Numbers
from .schema import (
    CHOOSERS,
    Chooser,
    Entry,
    Evidence,
    Identity,
    Lock,
    Run,
    Scalar,
    Setting,
    Stack,
    TritonFallback,
    Values,
    place,
)
from .settings import Merged, SeenSettings, SettingConflict

# Kinds of problems that are a choice which was seen and cannot stand in the lock.
HOLES = ("refused", "elsewhere", "bypass")


@dataclass(frozen=True)
class Problem:
    """A problem that processes reported, once for all that reported the same, or found in merging.

    fields: the line of the first of them, with what else it says (candidates, nearest, config).
    """

    kind: str
    text: str
    chooser: str
    kernel: str
    key: Values | None
    processes: tuple[str, ...]
    fields: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        key = readable_named(self.key) if self.key is not None else ""
        what = " ".join(part for part in (place(self.chooser, self.kernel), key) if part)
        where = f" ({together(self.processes)})" if self.processes else ""
        return f"{self.kind}: " + (f"{what}: " if what else "") + self.text + where


@dataclass(frozen=True)
class FactConflict:
    """A fact for which the processes of one run have several values."""

    field: str
    hard: bool
    values: tuple[tuple[Scalar, tuple[str, ...]], ...]

    def __str__(self) -> str:
        return f"{self.field}: " + "; ".join(
            f"{value} on {together(processes)}" for value, processes in self.values
        )


@dataclass(frozen=True)
class Draft:
    """What the ledgers of one run come to, before any validation.

    policy: the switches that recording set, by ``CHOOSER.NAME``.
    """

    entries: tuple[Entry, ...]
    fallbacks: tuple[TritonFallback, ...]
    conflicts: tuple[Conflict, ...]
    problems: tuple[Problem, ...]
    stack: Stack
    fact_conflicts: tuple[FactConflict, ...]
    processes: tuple[ProcessRecord, ...]
    world_size: int
    hosts: int
    policy: Values
    settings: tuple[Setting, ...]
    setting_conflicts: tuple[SettingConflict, ...]

    def of(self, chooser: Chooser) -> tuple[Entry, ...]:
        """The choices of one chooser."""
        return tuple(entry for entry in self.entries if entry.chooser == chooser)

    @property
    def triton(self) -> tuple[Entry, ...]:
        return self.of("triton")

    @property
    def holes(self) -> tuple[str, ...]:
        """One line for each choice or setting that was seen and that no lock can hold."""
        seen = [str(problem) for problem in self.problems if problem.kind in HOLES]
        return (
            *seen,
            *(f"{each.place}: {each.note}" for each in self.settings if each.held == "no"),
        )


def merge_ledgers(ledgers: Iterable[ProcessLedger], on_conflict: Rule = "fastest") -> Draft:
    """Goes through each ledger once and keeps what differs, so that thousands of ranks fit.

    The result does not depend on the order of the ledgers. Raises `ConflictError`, with every
    conflict, under the rule ``fail``, and `LedgerError` for a damaged ledger.
    """
    gathered = _Gathered()
    for ledger in ledgers:
        gathered.add(ledger)
    draft = _draft(gathered, on_conflict)
    if on_conflict == "fail" and draft.conflicts:
        raise ConflictError(draft.conflicts)
    return draft


def draft_lock(draft: Draft, run: Run, policy: Values, evidence: Evidence) -> Lock:
    """The lock that a draft makes.

    ``run`` gets the draft's world size, hosts and number of conflicts, and is complete only where
    the draft has no holes. ``policy`` gets the switches that recording set.
    """
    run = replace(
        run,
        world_size=draft.world_size,
        hosts=draft.hosts,
        conflicts=len(draft.conflicts),
        complete=run.complete and not draft.holes,
    )
    return Lock(
        run=run,
        stack=draft.stack,
        policy={**policy, **draft.policy},
        evidence=evidence,
        triton=draft.triton,
        fallbacks=draft.fallbacks,
        inductor=draft.of("inductor"),
        cublaslt=draft.of("cublaslt"),
        settings=draft.settings,
    )


def fallbacks_of(entries: Iterable[Entry]) -> tuple[TritonFallback, ...]:
    """For each kernel with a choice to make, its locked configs, most used first."""
    used: dict[str, Counter[str]] = {}
    configs: dict[str, Values] = {}
    chooses = set()
    for entry in entries:
        used.setdefault(entry.kernel, Counter())[entry.config_text] += 1
        configs[entry.config_text] = entry.config
        if entry.alternatives > 1:
            chooses.add(entry.kernel)
    return tuple(
        TritonFallback(kernel, tuple(configs[text] for text in _most_used(used[kernel])))
        for kernel in sorted(chooses)
    )


def _most_used(counts: Counter[str]) -> list[str]:
    return sorted(counts, key=lambda text: (-counts[text], text))


# Which entries a compiled config belongs to:
# (chooser, kernel, source or None, config, key or None).
_Place = tuple[str, str, str | None, str, str | None]


@dataclass
class _Code:
    """What one config was compiled to: specialisation to digests; and the options it got."""

    digests: dict[str, set[str]] = field(default_factory=dict)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, record: CodeRecord) -> None:
        if record.code is not None:
            self.digests.setdefault(record.spec, set()).add(record.code)
        _tally(self.options, record.options)

    def join(self, other: _Code) -> None:
        for spec, digests in other.digests.items():
            self.digests.setdefault(spec, set()).update(digests)
        for name, seen in other.options.items():
            self.options.setdefault(name, {}).update(seen)


@dataclass
class _Reports:
    """One problem: the record of the first process in order that reported it, and who else did."""

    first: ProblemRecord
    of: int
    processes: Numbers = field(default_factory=Numbers)

    def add(self, record: ProblemRecord, number: int, processes: list[ProcessRecord]) -> None:
        self.processes.add(number)
        if processes[number].order < processes[self.of].order:
            self.first, self.of = record, number


class _Gathered:
    """All that was read so far. Grows with distinct keys and with processes, not with lines."""

    def __init__(self) -> None:
        self.processes: list[ProcessRecord] = []
        self.seen: dict[Identity, Seen] = {}
        self.settings = SeenSettings()
        self.code: dict[_Place, _Code] = {}
        self.distinct_facts: dict[str, dict[str, Scalar]] = {}
        self.facts: dict[str, dict[str, tuple[Scalar, Numbers]]] = {}
        self.problems: dict[tuple[str, ...], _Reports] = {}

    def add(self, ledger: ProcessLedger) -> None:
        number = len(self.processes)
        self.processes.append(ledger.process)
        facts: dict[str, Scalar] = {}
        for record in ledger.records():
            if isinstance(record, FactsRecord):
                facts.update(known(record.facts))
            else:
                self._add_record(record, number)
        if facts:
            self.distinct_facts.setdefault(canonical(facts), facts)
        for name, value in facts.items():
            seen = self.facts.setdefault(name, {})
            seen.setdefault(canonical(value), (value, Numbers()))[1].add(number)

    def _add_record(self, record: Record, number: int) -> None:
        if isinstance(record, ChoiceRecord):
            self._add_choice(record, number)
        elif isinstance(record, CodeRecord):
            key = None if record.key is None else canonical(record.key)
            kernel = (record.chooser, record.kernel, record.source)
            self.code.setdefault((*kernel, canonical(record.config), key), _Code()).add(record)
        elif isinstance(record, SettingRecord):
            self.settings.add(record, self.processes[number], number)
        elif isinstance(record, ProblemRecord):
            self._add_problem(record, number)

    def _add_choice(self, record: ChoiceRecord, number: int) -> None:
        chooser = next((name for name in CHOOSERS if name == record.chooser), None)
        if chooser is None:
            text = f"choices of {record.chooser} cannot be locked by this version of pinner"
            fields = {"chooser": record.chooser, "kernel": record.kernel}
            self._add_problem(
                ProblemRecord("refused", text, record.chooser, record.kernel, record.key, fields),
                number,
            )
            return
        identity = (chooser, record.kernel, record.source, canonical(record.key))
        seen = self.seen.get(identity)
        if seen is None:
            seen = Seen(chooser, record.kernel, record.source, record.key)
            self.seen[identity] = seen
        seen.add(record, self.processes[number], number)

    def _add_problem(self, record: ProblemRecord, number: int) -> None:
        same = (
            record.kind,
            record.chooser,
            record.kernel,
            canonical(record.key),
            canonical(record.fields.get("config")),
            record.text,
        )
        reports = self.problems.setdefault(same, _Reports(record, number))
        reports.add(record, number, self.processes)


def _draft(gathered: _Gathered, rule: Rule) -> Draft:
    names = _names(gathered.processes)
    entries, conflicts, problems = [], [], _reported(gathered, names)
    for identity in sorted(gathered.seen):
        seen = gathered.seen[identity]
        settled = settle(seen, rule)
        if settled is None:
            problems.append(_refused(seen, names))
            continue
        chosen, how = settled
        if seen.disagreed:
            conflicts.append(conflict_of(seen, chosen, how, names))
        code = _code_for(gathered, identity, chosen)
        entries.append(_entry(seen, chosen, rule, code))
        problems.extend(_two_codes(entries[-1], code))
    stack = classify(combine(gathered.distinct_facts.values()))
    switches: Merged = gathered.settings.merged(names)
    return Draft(
        entries=tuple(entries),
        fallbacks=fallbacks_of(entry for entry in entries if entry.chooser == "triton"),
        conflicts=tuple(conflicts),
        problems=tuple(problems),
        stack=stack,
        fact_conflicts=_fact_conflicts(gathered, names, stack),
        processes=tuple(sorted(gathered.processes, key=lambda process: process.order)),
        world_size=world_size(gathered.processes),
        hosts=hosts(gathered.processes),
        policy=switches.policy,
        settings=switches.settings,
        setting_conflicts=switches.conflicts,
    )


def _names(processes: list[ProcessRecord]) -> list[str]:
    """What each process is called; where a rank has several, with the process id."""
    counts = Counter(process.name for process in processes)
    return [
        process.name if counts[process.name] == 1 else f"{process.name} (pid {process.pid})"
        for process in processes
    ]


def _in_order(numbers: Iterable[int], gathered: _Gathered) -> list[int]:
    return sorted(numbers, key=lambda number: gathered.processes[number].order)


def _reported(gathered: _Gathered, names: list[str]) -> list[Problem]:
    problems = []
    for _, reports in sorted(gathered.problems.items()):
        numbers = _in_order(reports.processes, gathered)
        first = reports.first
        problems.append(
            Problem(
                kind=first.kind,
                text=first.text,
                chooser=first.chooser,
                kernel=first.kernel,
                key=first.key,
                processes=tuple(names[number] for number in numbers),
                fields=first.fields,
            )
        )
    return problems


def _refused(seen: Seen, names: list[str]) -> Problem:
    takers = sorted({names[number] for numbers in seen.picks.values() for number in numbers})
    text = "cannot be a pin: every config that was taken failed where it was timed"
    return Problem("refused", text, seen.chooser, seen.kernel, seen.key, tuple(takers))


def _code_for(gathered: _Gathered, identity: Identity, chosen: str) -> _Code:
    chooser, kernel, source, key = identity
    code = _Code()
    for of_source in (source, None):
        for of_key in (key, None):
            found = gathered.code.get((chooser, kernel, of_source, chosen, of_key))
            if found is not None:
                code.join(found)
    return code


def _entry(seen: Seen, chosen: str, rule: Rule, code: _Code) -> Entry:
    specs = sorted(code.digests)
    return Entry(
        chooser=seen.chooser,
        kernel=seen.kernel,
        source=seen.source,
        key=seen.key,
        config=seen.configs[chosen],
        alternatives=seen.alternatives,
        code=tuple(min(code.digests[spec]) for spec in specs),
        specs=tuple(specs),
        options=_in_common(code.options),
        heuristics=_in_common(seen.heuristics),
        note="; ".join([*_on_conflict(seen, rule), *sorted(seen.notes)]),
    )


def _on_conflict(seen: Seen, rule: Rule) -> list[str]:
    """For the lock's reader; without times, which would change with every recording."""
    if not seen.disagreed:
        return []
    return [f"the processes took {len(seen.picks)} different configs; settled by {rule}"]


def _two_codes(entry: Entry, code: _Code) -> list[Problem]:
    """The same config and specialisation, yet two machine codes in one run: not one stack."""
    doubled = [spec for spec, digests in code.digests.items() if len(digests) > 1]
    return [
        Problem(
            "drift",
            f"one config became {len(code.digests[spec])} machine codes in this run "
            f"(specialisation {spec}): its processes do not share one stack",
            entry.chooser,
            entry.kernel,
            entry.key,
            (),
            {"config": entry.config, "spec": spec, "code": sorted(code.digests[spec])},
        )
        for spec in sorted(doubled)
    ]


def _fact_conflicts(
    gathered: _Gathered, names: list[str], stack: Stack
) -> tuple[FactConflict, ...]:
    """The facts with several values, hard ones first; the first process's value first."""
    conflicts = []
    for name, seen in gathered.facts.items():
        if len(seen) == 1:
            continue
        having = [(_in_order(numbers, gathered), value) for value, numbers in seen.values()]
        having.sort(key=lambda item: gathered.processes[item[0][0]].order)
        values = tuple((value, tuple(names[each] for each in numbers)) for numbers, value in having)
        conflicts.append(FactConflict(name, name in stack.hard, values))
    return tuple(sorted(conflicts, key=lambda each: (not each.hard, each.field)))


def world_size(processes: Collection[ProcessRecord]) -> int:
    """How many ranks there were, as the launchers told or as ranks were seen; 1 without any."""
    ranks = [process.rank + 1 for process in processes if process.rank is not None]
    told = [process.world for process in processes if process.world is not None]
    return max([1, *told, *ranks])


def hosts(processes: Collection[ProcessRecord]) -> int:
    """On how many hosts these ranks were; 1 without any."""
    return max(1, len({process.host for process in processes if process.rank is not None}))


def _tally(seen: dict[str, dict[str, Any]], values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        seen.setdefault(name, {})[canonical(value)] = value


def _in_common(seen: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The names that had one value wherever they were seen."""
    return {
        name: next(iter(values.values()))
        for name, values in sorted(seen.items())
        if len(values) == 1
    }
