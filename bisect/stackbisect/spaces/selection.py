"""What the choosers of two stacks chose: read from probes, compared, made into locks to transplant.

A transplant is the choices of one stack as a lock for another one. Only what both were asked for
can be transplanted: the same kernel, of the same source, at the same key. What was left out, and
what a run under the lock then did with the rest (`Applied`), say how much the run's bits prove.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pinner.inside import VERSION
from pinner.inside.values import canonical, readable, readable_named
from pinner.launch import judge, record, session_dir
from pinner.launch.collect import Run, collect, read_ledgers
from pinner.launch.coverage import Coverage, cover, described
from pinner.lockfile import schema
from pinner.lockfile.configs import config_text
from pinner.lockfile.conflicts import Conflict, together
from pinner.lockfile.diff import Diff, EntryChange, diff_locks
from pinner.lockfile.merge import HOLES, Draft, Problem, draft_lock, fallbacks_of, merge_ledgers
from pinner.lockfile.schema import Entry, Evidence, Identity, Lock, place

# So many entries of one kind are named in a result; more are counted.
_NAMED = 20

_RANK = re.compile(r"^rank \d+")

_Hole = tuple[str, str, str, str]  # chooser, kernel or setting, canonical key, canonical config


@dataclass(frozen=True)
class Selection:
    """What the processes of one probe chose.

    `lock` is unsealed. `holes` were chosen and cannot stand in a lock. `conflicts` are keys that
    the processes of this one probe decided differently: the lock holds one of their choices.
    """

    probe: int
    lock: Lock
    holes: Mapping[_Hole, str]
    conflicts: Mapping[Identity, Conflict]

    @property
    def empty(self) -> bool:
        """Whether nothing was chosen."""
        return not self.lock.count and not self.holes


def read(session: Path, probe: int, command: Sequence[str], created: str) -> Selection:
    """The selection of one probe's session folder. Raises `LedgerError`.

    `command` and `created` are those of the bisection, so that the same ledgers always make the
    same lock.
    """
    draft = merge_ledgers(read_ledgers(session))
    run = schema.Run(command=tuple(command), created=created, pinner=VERSION, complete=True)
    lock = draft_lock(draft, run, {}, Evidence())
    conflicts = {(c.chooser, c.kernel, c.source, canonical(c.key)): c for c in draft.conflicts}
    return Selection(probe, lock, dict(_holes(draft)), conflicts)


def _holes(draft: Draft) -> Iterator[tuple[_Hole, str]]:
    for problem in draft.problems:
        if problem.kind in HOLES:
            yield _hole(_of_problem(problem)), str(problem)
    for setting in draft.settings:
        if setting.held == "no":
            found = {"chooser": setting.chooser, "setting": setting.name, "value": setting.value}
            yield _hole(found), f"{setting.place} = {readable(setting.value)}: {setting.note}"


def _of_problem(problem: Problem) -> dict[str, Any]:
    config = problem.fields.get("config")
    return {
        "chooser": problem.chooser,
        "kernel": problem.kernel,
        "key": problem.key,
        "config": config,
    }


def _hole(found: Mapping[str, Any]) -> _Hole:
    """What makes a choice that no lock holds the same in two runs."""
    return (
        str(found.get("chooser") or ""),
        str(found.get("kernel") or found.get("setting") or ""),
        canonical(found.get("key")),
        canonical(found.get("config", found.get("value"))),
    )


@dataclass(frozen=True)
class Comparison:
    """What differs between the selections of a good and a bad stack.

    `moved`: asked the same, decided differently. `altered`: decided by a kernel of another source,
    with another config. `only_good` and `only_bad`: asked for in one stack only. `settings`:
    switches of libraries. `holes`: choices that no lock holds and only one of the two made.
    `spread`: keys whose entries are alike, but which not the same processes decided the same way.
    """

    good: Selection
    bad: Selection
    diff: Diff
    moved: tuple[EntryChange, ...]
    altered: tuple[EntryChange, ...]
    settings: tuple[str, ...]
    holes: tuple[str, ...]
    spread: tuple[Identity, ...]

    @property
    def count(self) -> int:
        """How many choices differ."""
        lone = len(self.diff.only_a) + len(self.diff.only_b)
        kinds = (self.moved, self.altered, self.settings, self.holes, self.spread)
        return sum(map(len, kinds)) + lone

    @property
    def transplantable(self) -> bool:
        """Whether a lock of one stack's choices can change what the other one chooses."""
        return bool(self.moved or self.settings or self.spread)

    @property
    def bodies(self) -> tuple[str, ...]:
        """Kernels that are not the same in both stacks, whatever was chosen for them."""
        words = {"source": "source", "code": "machine code"}
        found: dict[str, None] = {}
        for each in self.diff.entries:
            of = [words[part] for part, _ in each.changes if part in words]
            if of:
                found.setdefault(f"{place(each.chooser, each.kernel)} ({of[0]})")
        return tuple(found)

    def lines(self, good: str, bad: str) -> list[str]:
        """The difference for people, by the names of the stacks."""
        chosen = replace(
            self.diff,
            entries=tuple(each for each in self.diff.entries if _has(each, "config")),
            hard=(),
            policy=(),
            fallbacks=(),
            evidence=(),
            run=(),
            soft=(),
        )
        lines = [] if chosen.empty else chosen.text(good, bad).splitlines()
        lines += [f"no lock holds: {hole}" for hole in self.holes]
        for each in self.spread:
            lines.append(f"decided otherwise by its processes: {_identity_text(each)}")
            ends = ((good, self.good), (bad, self.bad))
            lines += [f"    {name}: {_deciders(chosen, each)}" for name, chosen in ends]
        return lines

    def components(self) -> list[dict[str, Any]]:
        """What was decided differently, as the parts of a culprit: name, good value, bad value."""
        found: list[dict[str, Any]] = [
            {
                "kind": "selection",
                "name": f"{place(each.chooser, each.kernel)} {readable_named(each.key)}".strip(),
                "good": config_text(each.chooser, each.old),
                "bad": config_text(each.chooser, each.new),
            }
            for each in self.moved
        ]
        found += [
            {
                "kind": "selection",
                "name": _identity_text(each),
                "good": _deciders(self.good, each),
                "bad": _deciders(self.bad, each),
            }
            for each in self.spread
        ]
        for change in self.diff.settings:
            if not change.name.endswith(" (held)"):
                old, new = _setting_text(change.old), _setting_text(change.new)
                found.append({"kind": "selection", "name": change.name, "good": old, "bad": new})
        return found


def _setting_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else readable(value)


def compare(good: Selection, bad: Selection) -> Comparison:
    """What differs between two selections."""
    diff = diff_locks(good.lock, bad.lock)
    differing = [each for each in diff.entries if _has(each, "config")]
    known = [{entry.identity: entry for entry in each.lock.entries} for each in (good, bad)]
    in_both = sorted({*good.conflicts, *bad.conflicts} & known[0].keys() & known[1].keys())
    return Comparison(
        good,
        bad,
        diff,
        moved=tuple(each for each in differing if not _has(each, "source")),
        altered=tuple(each for each in differing if _has(each, "source")),
        settings=tuple(str(each) for each in diff.settings if not each.name.endswith(" (held)")),
        holes=tuple(
            text
            for here, there in ((good, bad), (bad, good))
            for hole, text in here.holes.items()
            if hole not in there.holes and not _is_setting(hole, good, bad)
        ),
        spread=tuple(
            each
            for each in in_both
            if known[0][each].config_text == known[1][each].config_text
            and _spread(good, each) != _spread(bad, each)
        ),
    )


def _spread(chosen: Selection, key: Identity) -> list[tuple[str, str]] | None:
    """Who took what of a key: process and config; None where all took the same.

    Processes without a rank have no name that two probes share.
    """
    conflict = chosen.conflicts.get(key)
    if conflict is None:
        return None
    return sorted(
        ("".join(_RANK.findall(process)[:1]), canonical(pick.config))
        for pick in conflict.picks
        for process in pick.processes
    )


def _deciders(chosen: Selection, key: Identity) -> str:
    conflict = chosen.conflicts.get(key)
    if conflict is None:
        entry = next(each for each in chosen.lock.entries if each.identity == key)
        return f"{config_text(entry.chooser, entry.config)} everywhere"
    return "; ".join(
        f"{config_text(conflict.chooser, pick.config)} on {together(pick.processes)}"
        for pick in conflict.picks
    )


def _identity_text(key: Identity) -> str:
    chooser, kernel, _, text = key
    return f"{place(chooser, kernel)} {readable_named(json.loads(text))}".strip()


def nearest(good: Sequence[Selection], bad: Sequence[Selection]) -> Comparison:
    """The comparison of the two probes that differ least; both must have one.

    What varies from probe to probe of one stack is timing noise that changes no bits, for the bits
    of each end repeat. And each probe's own choices are known to go with its bits, while a mixture
    of two probes' choices was never run.
    """
    pairs = (compare(a, b) for a in good for b in bad)
    return min(pairs, key=lambda each: each.count)


def _has(change: EntryChange, part: str) -> bool:
    return any(kind == part for kind, _ in change.changes)


def _is_setting(hole: _Hole, *selections: Selection) -> bool:
    """Whether a hole is a setting, which the diff of the locks tells already."""
    identities = {each.identity for selection in selections for each in selection.lock.settings}
    return hole[:2] in identities


@dataclass(frozen=True)
class Transplant:
    """One stack's choices as a lock for another one, and what could not be transplanted, and why.

    `count` is how many choices the giver made.
    """

    lock: Lock
    left_out: tuple[str, ...]
    count: int


def transplant(giver: Selection, taker: Selection) -> Transplant:
    """The choices of `giver` as a lock for the stack of `taker`.

    The facts of the stack are the taker's: it is where the lock is enforced.
    """
    asked = {entry.identity for entry in taker.lock.entries}
    sources = {(e.chooser, e.kernel, e.key_text) for e in taker.lock.entries}
    whole = giver.lock
    kept = [entry for entry in whole.entries if entry.identity in asked]
    triton = tuple(entry for entry in kept if entry.chooser == "triton")
    lock = replace(
        whole,
        stack=taker.lock.stack,
        triton=triton,
        fallbacks=fallbacks_of(triton),
        inductor=tuple(entry for entry in kept if entry.chooser == "inductor"),
        cublaslt=tuple(entry for entry in kept if entry.chooser == "cublaslt"),
    )
    left_out = []
    for entry in whole.entries:
        if entry.identity in asked:
            continue
        other = (entry.chooser, entry.kernel, entry.key_text) in sources
        why = "the kernel's source is another one there" if other else "not asked for there"
        left_out.append(f"{_entry_text(entry)}: {why}")
    own = {entry.identity for entry in whole.entries}
    answered = {(e.chooser, e.kernel, e.key_text) for e in whole.entries}
    left_out += [
        f"{_entry_text(entry)}: asked for there only"
        for entry in taker.lock.entries
        if entry.identity not in own
        and (entry.chooser, entry.kernel, entry.key_text) not in answered
    ]
    return Transplant(lock, tuple(left_out), _count(whole))


def _count(lock: Lock) -> int:
    return len(lock.entries) + sum(setting.held != "no" for setting in lock.settings)


def _entry_text(entry: Entry) -> str:
    key = readable_named(entry.key)
    return f"{entry.place} {key}".strip()


@dataclass(frozen=True)
class Applied:
    """What a run did with a transplanted lock.

    `applied` of the `of` choices of the giver were in force. `faults`: what was not, one text each;
    empty where the run made exactly the giver's choices. `drifted`: applied, but the kernel became
    other machine code there. `counts`: pinner's own report.
    """

    applied: int
    of: int
    faults: tuple[str, ...]
    drifted: tuple[str, ...]
    counts: Mapping[str, int]

    @property
    def whole(self) -> bool:
        """Whether every choice was the giver's."""
        return not self.faults


def applied(session: Path, given: Transplant, holes: Mapping[_Hole, str]) -> Applied:
    """Read what a probe did with a lock. Raises `LedgerError`.

    `holes`: the giver's; a choice that no lock holds and that is the same in both is no fault.
    """
    coverage = cover(given.lock, read_ledgers(session))
    held = [row for row in coverage.settings if row.state == "held" and row.held != "set"]
    in_force = coverage.count("used") + coverage.count("cached") + len(held)
    faults = [*given.left_out, *_faults(coverage, given.lock, holes)]
    return Applied(
        applied=in_force,
        of=given.count,
        faults=tuple(faults),
        drifted=tuple(described(each) for each in coverage.entries["drifted"] if _is_code(each)),
        counts={name: coverage.count(name) for name in coverage.entries},
    )


def _faults(coverage: Coverage, lock: Lock, holes: Mapping[_Hole, str]) -> Iterator[str]:
    for name in ("invalid", "missed", "fallback"):
        yield from (f"{name}: {described(each)}" for each in coverage.entries[name])
    for each in coverage.entries["unenforceable"]:
        if _hole(each) not in holes:
            yield f"not enforceable: {described(each)}"
    for each in coverage.entries["drifted"]:
        if not _is_code(each):
            yield f"not forced: {described(each)}"
    invalid = {_place(each) for each in coverage.entries["invalid"]}
    for each in coverage.entries["unused"]:
        if _place(each) not in invalid:
            yield f"unused: {described(each)}"
    met = {(row.chooser, row.name) for row in coverage.settings}
    for setting in lock.settings:
        if setting.identity not in met:
            yield f"unused: {setting.place}"
    for row in coverage.settings:
        if row.state == "new" and row.held != "set":
            yield f"not in the lock: {place(row.chooser, row.name)} = {readable(row.value)}"


def _is_code(found: Mapping[str, Any]) -> bool:
    """Whether a drift is in the machine code: the choice itself was applied."""
    return "spec" in found


def _place(found: Mapping[str, Any]) -> tuple[str, str, str]:
    return str(found["chooser"]), str(found.get("kernel", "")), canonical(found.get("key"))


def named(texts: Sequence[str], few: int = _NAMED) -> list[str]:
    """The first few texts, and how many more there are."""
    more = len(texts) - few
    return [*texts[:few], *([f"and {more} more"] if more > 0 else [])]


def kept(lock: Lock, sessions: Sequence[Path]) -> Lock | None:
    """A lock that probes held, sealed by their evidence; None where they do not show enough.

    The probes are what `pinner record` calls validating runs: fresh processes with empty caches
    under one lock. The stack, the machine code and the settings are theirs. Raises `LedgerError`
    and `SessionError`.
    """
    runs = [collect(session_dir.read(session)) for session in sessions]
    if len(runs) < 2 or not all(judge.participation(run).complete for run in runs):
        return None
    agreed = judge.agree(runs)
    if not isinstance(agreed, judge.Agreement):
        return None
    now = _as_found(lock, runs[0])
    if any(judge.held_refusal(now, run) is not None for run in runs):
        return None
    return record.seal(now, agreed, runs, lambda text: None)


def _as_found(lock: Lock, run: Run) -> Lock:
    """The lock with the machine code and the stack that a run under it had."""
    draft = merge_ledgers(run.ledgers)
    code = {(e.kernel, e.source, e.config_text): e for e in draft.entries if e.code}

    def found(entry: Entry) -> Entry:
        same = code.get((entry.kernel, entry.source, entry.config_text))
        if same is None:
            return replace(entry, code=(), specs=(), options={})
        return replace(entry, code=same.code, specs=same.specs, options=same.options)

    return replace(
        lock,
        run=replace(lock.run, world_size=draft.world_size, complete=not draft.holes),
        stack=draft.stack,
        triton=tuple(map(found, lock.triton)),
    )
