"""Choices first: is it only that the bad stack chooses otherwise at run time?

The choices of both ends are in the ledgers that their probes left. Where they differ, the good
stack's are enforced in the bad stack (a transplant):

- All applied, and the bits are back, twice: the selection is the culprit; keeping the lock is the
  cure. The reverse, the bad stack's choices in the good stack, is tried once as a second proof.
- All applied, and the bits are not back: it is not the selection. That is said only after a
  control: the same choices under a lock in the good stack must give the good bits, or else a lock
  by itself changes bits (tuning trials that leave something behind, ranks that chose differently).
- Not all applied: inconclusive, with the numbers. The rest is tried once all the same: bits that
  are back with some of the choices are a lead, and are told.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinner.launch.record import text_digest
from pinner.launch.session_dir import SessionError
from pinner.lockfile.codec import read_lock_with_digest, write_lock
from pinner.lockfile.errors import LedgerError, LockError
from pinner.lockfile.schema import Lock
from stackbisect.journal import ROOT
from stackbisect.probe import Candidate, InfrastructureError, ProbeResult
from stackbisect.search import probing
from stackbisect.search.verdict import Ends, Rule, Verdict, judge
from stackbisect.search.verdict import read as read_probe
from stackbisect.spaces import selection
from stackbisect.spaces.components import derived, lock
from stackbisect.spaces.selection import Applied, Selection
from stackbisect.stage import Ask, Batch, Context, Done, Steps

if TYPE_CHECKING:
    from stackbisect.journal import Record

NAME = "choices"
FOLDER = "choices"

# So much of a difference is kept in the journal; the locks have all of it.
_DIFF_LINES = 400

# So many kernels are named in a note.
_KERNELS = 8

# How often the transplant is tried before it counts.
_TRIES = 2


@dataclass(frozen=True)
class Choices:
    """Whether the choices at run time explain the difference between two stacks."""

    good: Candidate
    bad: Candidate
    rule: Rule
    context: Context
    name: str = NAME
    title: str = "whether only the choices at run time differ"

    def begin(self, record: Record) -> Mapping[str, Any]:
        """Read and compare the choices of both ends, and write the locks to transplant.

        {"answer": a result} where nothing is to be tried; else the locks, by what they are for
        ("transplant", "control", "reverse"), and what differs.
        """
        good, bad = self._selections(record, self.good), self._selections(record, self.bad)
        if isinstance(good, str) or isinstance(bad, str):
            reason = "; ".join(each for each in (good, bad) if isinstance(each, str))
            return {"answer": {"status": "inconclusive", "reason": reason}}
        found = selection.nearest(good, bad)
        about = self._about(found)
        if not found.count:
            return {"answer": {"status": "no-difference", "reason": _alike(found), **about}}
        if not found.transplantable:
            reason = (
                f"{_counted(found.count, 'choice')} differ, and none of them was asked for in both "
                "stacks by the same kernel, so that none can be transplanted"
            )
            return {"answer": {"status": "inconclusive", "reason": reason, **about}}
        return {**about, **self._locks(found)}

    def next_steps(self, record: Record, jobs: int, under_way: Sequence[Ask]) -> Steps:
        """The transplant, then what its result calls for."""
        data = record.stages[self.name]
        if "answer" in data:
            return Done(data["answer"])
        ends = self._ends(record)
        if ends is None:
            return Done({"status": "inconclusive", "reason": self._unsettled})
        trial = _Trial(self, record, data, ends)
        wanted = trial.wanted()
        if not wanted:
            return Done(trial.result())
        running = [ask.candidate.id for ask in under_way]
        asks = []
        for candidate, times, why in wanted:
            begun = len(record.seen().get(candidate.id, ())) + running.count(candidate.id)
            asks += [Ask(candidate, number, why) for number in range(begun + 1, times + 1)]
        return Batch(tuple(asks[: max(jobs - len(under_way), 0)]))

    def probes_left(self, record: Record) -> int:
        """Where the bits come back: the transplant twice, and the reverse."""
        data = record.stages.get(self.name, {})
        if "transplant" not in data:
            return 0
        whole = not data["transplant"]["left_out"]
        done = sum(probed.stage == self.name for probed in record.probes)
        return max((_TRIES + ("reverse" in data) if whole else 1) - done, 0)

    def verdict(self, record: Record, candidate: Candidate) -> Verdict | None:
        """What is known of one of its candidates."""
        ends = self._ends(record)
        if ends is None:
            return None
        return judge(record.seen().get(candidate.id, ()), ends, self.rule)

    def ahead(self, record: Record, under_way: Sequence[Ask], limit: int) -> Sequence[Candidate]:
        """Both stacks were there already."""
        return ()

    def candidate(self, what: str, data: Mapping[str, Any]) -> Candidate:
        """The stack under one of the locks."""
        base, giver = {
            "transplant": (self.bad, self.good),
            "control": (self.good, self.good),
            "reverse": (self.good, self.bad),
        }[what]
        whose = "its own choices locked" if base is giver else f"the choices of {giver.label}"
        step = lock(data[what]["file"], data[what]["digest"])
        return derived(base, [step], f"{base.label} with {whose}")

    def _ends(self, record: Record) -> Ends | None:
        return probing.settled_ends([self.good.id, self.bad.id], record.seen(), self.rule)

    @property
    def _unsettled(self) -> str:
        return f"the bits of {self.good.label} or {self.bad.label} do not repeat"

    def _selections(self, record: Record, of: Candidate) -> list[Selection] | str:
        """What each finished probe of a stack chose; why nothing can be said of it."""
        found: list[Selection] = []
        damage = f"no probe of {of.label} ran to its end"
        for probed in record.probes:
            if probed.candidate != of.id or probed.result.status != "ran":
                continue
            session = session_of(self.context.folder, probed.result)
            try:
                header = record.header
                chosen = selection.read(session, probed.number, header.command, header.created)
            except (LedgerError, LockError, OSError) as error:
                damage = f"what {of.label} chose cannot be read: {error}"
                continue
            found.append(chosen)
        return found or damage

    def _about(self, found: selection.Comparison) -> dict[str, Any]:
        ends = ((self.good.label, found.good), (self.bad.label, found.bad))
        notes = [_conflicts(label, len(each.conflicts)) for label, each in ends if each.conflicts]
        if found.bodies:
            kernels = ", ".join(selection.named(found.bodies, _KERNELS))
            notes.append(f"kernels that are not the same in {self.bad.label}: {kernels}")
        return {
            "good": _shown_selection(self.good, found.good),
            "bad": _shown_selection(self.bad, found.bad),
            "differ": found.count,
            "diff": selection.named(found.lines(self.good.label, self.bad.label), _DIFF_LINES),
            "components": found.components(),
            "notes": notes,
        }

    def _locks(self, found: selection.Comparison) -> dict[str, Any]:
        made = {
            "transplant": ("good", found.good, found.bad),
            "control": ("control", found.good, found.good),
            "reverse": ("bad", found.bad, found.good),
        }
        return {what: self._lock(*each) for what, each in made.items()}

    def _lock(self, name: str, giver: Selection, taker: Selection) -> dict[str, Any]:
        given = selection.transplant(giver, taker)
        return {
            **self._write(f"{name}.lock.toml", given.lock),
            "left_out": list(given.left_out),
            "count": given.count,
            "holes": [list(hole) for hole in giver.holes],
        }

    def _write(self, name: str, content: Lock) -> dict[str, str]:
        folder = self.context.folder / FOLDER
        try:
            folder.mkdir(exist_ok=True)
            write_lock(folder / name, content)
        except (OSError, LockError) as error:
            raise InfrastructureError(f"cannot write the locks to transplant: {error}") from error
        return {"file": f"{FOLDER}/{name}", "digest": text_digest(content)}


@dataclass(frozen=True)
class _Trial:
    """The probes of the stage so far, and what they come to."""

    stage: Choices
    record: Record
    data: Mapping[str, Any]
    ends: Ends

    def wanted(self) -> list[tuple[Candidate, int, str]]:
        """Candidates to be tried so many times in all, and why; empty where it is over."""
        transplant = self.stage.candidate("transplant", self.data)
        whole = not self.data["transplant"]["left_out"]
        tries = self._bits("transplant")
        why = "the good stack's choices in the bad stack"
        if not tries:
            return [(transplant, _TRIES if whole else 1, why)]
        if not whole or any(faults for faults in self._faults()):
            return []
        if any(bits != "good" for bits in tries):
            if all(bits in ("good", "untestable") for bits in tries) or self._bits("control"):
                return []
            control = self.stage.candidate("control", self.data)
            return [(control, 1, "does a lock by itself change the bits?")]
        if len(tries) < _TRIES:
            return [(transplant, _TRIES, "do its bits repeat?")]
        if self._bits("reverse") or self.data["reverse"]["left_out"]:
            return []
        reverse = self.stage.candidate("reverse", self.data)
        return [(reverse, 1, "the bad stack's choices in the good stack")]

    def result(self) -> dict[str, Any]:
        """What the stage concludes."""
        status, reason = self._status()
        shown = self.data["transplant"]
        counted = self._applied("transplant")[-1]
        found: dict[str, Any] = {
            "status": status,
            "reason": reason,
            **{name: self.data[name] for name in ("good", "bad", "differ", "diff", "components")},
            "bits": self._bits("transplant")[0],
            "applied": counted.applied if isinstance(counted, Applied) else None,
            "of": shown["count"],
            "not_applied": selection.named(_faults_of(counted)),
            "coverage": dict(counted.counts) if isinstance(counted, Applied) else None,
            "drifted": selection.named(counted.drifted if isinstance(counted, Applied) else ()),
            "transplant": self._shown("transplant"),
            "control": self._shown("control"),
            "reverse": self._shown("reverse"),
            "notes": list(self.data["notes"]),
            "culprits": [],
        }
        if status == "selection":
            found.update(self._kept())
            found["culprits"] = [self._culprit(found)]
        return found

    def _status(self) -> tuple[str, str]:
        data, good, bad = self.data, self.stage.good.label, self.stage.bad.label
        tries = self._bits("transplant")
        covered = self._applied("transplant")[-1]
        if isinstance(covered, str):
            return (
                "inconclusive",
                f"what became of the transplanted choices is not known: {covered}",
            )
        counted = (
            f"{covered.applied} of {_counted(covered.of, 'choice')} of {good} applied in {bad}"
        )
        differ = f"{_counted(data['differ'], 'choice')} differ; {counted}"
        if any(self._faults()):
            lead = {
                "good": "with these the bits are back, so the choices are part of the cause",
                "untestable": f"the command did not come through: {self._reason('transplant')}",
            }.get(tries[0], "with these the bits are not back")
            return "inconclusive", f"{differ}: {lead}"
        if all(bits == "good" for bits in tries):
            return "selection", (
                f"{differ}: the bits are back. {bad} computes as {good} does, it only chooses "
                "otherwise"
            )
        if set(tries) == {"untestable"} or "good" in tries:
            why = self._reason("transplant") or "two tries of it gave different bits"
            return "inconclusive", f"{differ}: {why}"
        if self._bits("control") != ["good"]:
            return "inconclusive", (
                f"{differ}: the bits are not back, but {good} itself does not give its bits with "
                f"its own choices locked ({', '.join(self._bits('control'))})"
            )
        body = "; the same choices became other machine code" if covered.drifted else ""
        return "not-selection", (
            f"{differ}: the bits are not back, so it is what the kernels compute, or something "
            f"else than kernels{body}"
        )

    def _kept(self) -> dict[str, Any]:
        """The lock to keep, sealed where the two tries show enough for it."""
        file, extra = self.data["transplant"]["file"], ["--allow-draft"]
        sealed = self._sealed()
        if sealed is not None:
            written = self.stage._write("keep.lock.toml", sealed)
            file, extra = written["file"], []
        path = str(ROOT / self.stage.context.folder.name / file)
        command = self.record.header.command
        return {
            "lock": file,
            "sealed": not extra,
            "enforce": shlex.join(["pinner", "enforce", *extra, "-l", path, "--", *command]),
        }

    def _sealed(self) -> Lock | None:
        sessions = [session_of(self.stage.context.folder, r) for _, r in self._probes("transplant")]
        given = self._lock("transplant")
        try:
            return selection.kept(given, sessions[:_TRIES])
        except (LedgerError, SessionError, OSError):
            return None

    def _culprit(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """The selection as a culprit: alone it flips the good stack, without it the bad one."""
        return {
            "kind": "selection",
            "components": found["components"],
            "alone": found["reverse"],
            "without": found["transplant"],
            "inseparable": [],
            "given": [],
            "versions": None,
        }

    def _shown(self, what: str) -> dict[str, Any] | None:
        probes = self._probes(what)
        if not probes:
            return None
        verdict = judge([result for _, result in probes], self.ends, self.stage.rule)
        return {
            "label": self.stage.candidate(what, self.data).label,
            "verdict": self._bits(what)[0] if verdict is None else verdict.kind,
            "value": self._value(probes[0][1]),
            "reason": "" if verdict is None else verdict.reason,
            "probes": [number for number, _ in probes],
        }

    def _probes(self, what: str) -> list[tuple[int, ProbeResult]]:
        wanted = self.stage.candidate(what, self.data).id
        return [(p.number, p.result) for p in self.record.probes if p.candidate == wanted]

    def _bits(self, what: str) -> list[str]:
        """Each probe's class of bits: good, bad, third, untestable."""
        classes = {self.ends.bad: "bad", self.ends.good: "good", None: "untestable"}
        return [classes.get(self._value(result), "third") for _, result in self._probes(what)]

    def _value(self, result: ProbeResult) -> str | None:
        return read_probe(result, self.stage.rule, self.ends.shape).value

    def _reason(self, what: str) -> str:
        reasons = (
            read_probe(result, self.stage.rule, self.ends.shape).reason
            for _, result in self._probes(what)
        )
        return next((reason for reason in reasons if reason), "")

    def _applied(self, what: str) -> list[Applied | str]:
        """What each probe did with the lock; a text where that cannot be read."""
        return [self._read_applied(what, result) for _, result in self._probes(what)]

    def _read_applied(self, what: str, result: ProbeResult) -> Applied | str:
        shown = self.data[what]
        holes = {tuple(hole): "" for hole in shown["holes"]}
        left_out = tuple(shown["left_out"])
        given = selection.Transplant(self._lock(what), left_out, shown["count"])
        try:
            return selection.applied(session_of(self.stage.context.folder, result), given, holes)
        except (LedgerError, OSError) as error:
            return str(error)

    def _lock(self, what: str) -> Lock:
        """One of the locks that `begin` wrote. Raises InfrastructureError where it is another."""
        file = self.stage.context.folder / self.data[what]["file"]
        try:
            lock, digest = read_lock_with_digest(file)
        except LockError as error:
            raise InfrastructureError(
                f"{error}; put it back, or begin again with --fresh"
            ) from error
        if digest != self.data[what]["digest"]:
            raise InfrastructureError(
                f"{file}: expected the lock that this bisection made, found another; put it back, "
                "or begin again with --fresh"
            )
        return lock

    def _faults(self) -> list[tuple[str, ...]]:
        return [_faults_of(each) for each in self._applied("transplant")]


def session_of(folder: Path, result: ProbeResult) -> Path:
    """The session folder of a finished probe: beside its log."""
    return folder / Path(result.log).parent / "session"


def _faults_of(covered: Applied | str) -> tuple[str, ...]:
    return covered.faults if isinstance(covered, Applied) else (covered,)


def _alike(found: selection.Comparison) -> str:
    if found.good.empty and found.bad.empty:
        return "neither stack made a choice at run time that pinner sees"
    return f"both stacks made the same choices ({_size(found.good)})"


def _shown_selection(of: Candidate, chosen: Selection) -> dict[str, Any]:
    return {"label": of.label, "probe": chosen.probe, "choices": _size(chosen)}


def _size(chosen: Selection) -> int:
    return chosen.lock.count + sum(hole[:2] not in _settings(chosen) for hole in chosen.holes)


def _settings(chosen: Selection) -> set[tuple[str, str]]:
    return {setting.identity for setting in chosen.lock.settings}


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def _conflicts(label: str, count: int) -> str:
    return (
        f"{_counted(count, 'choice')} of {label} {'was' if count == 1 else 'were'} made "
        "differently by the processes of one probe; a lock holds one of them for all"
    )
