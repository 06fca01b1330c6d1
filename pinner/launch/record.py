"""Records a lock: one observed run, then enforced runs in fresh processes that are compared."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pinner.compare import evidence, locked
from pinner.inside import VERSION
from pinner.inside.values import Encoded
from pinner.launch import enforce, judge, one_run, session_dir
from pinner.launch.collect import Run, collect
from pinner.launch.command_line import needs_shared_folder
from pinner.launch.judge import Agreement, Disagreement, Refusal
from pinner.launch.session_dir import SessionDir, Settings
from pinner.lockfile import schema
from pinner.lockfile.codec import dumps, read_lock, read_lock_with_digest, write_lock
from pinner.lockfile.compiled import pins_text
from pinner.lockfile.conflicts import ConflictError, Rule
from pinner.lockfile.errors import LockError
from pinner.lockfile.merge import Draft, draft_lock, hosts, merge_ledgers, world_size
from pinner.lockfile.schema import Lock
from pinner.policy import apply

Say = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """What `pinner record` was asked for.

    out: where the lock goes. runs: how many validating runs. expect: how many ranks must report.
    folder: where the runs' folders stay; None for a temporary one, kept only after a failure.
    """

    job: one_run.Job
    out: Path
    runs: int = 2
    on_conflict: Rule = "fastest"
    expect: int | None = None
    folder: Path | None = None


@dataclass(frozen=True)
class Outcome:
    """What came of it.

    lock: the file that was written, None where there was nothing to write.
    details: what `--json` says besides. told: what a person is told, where that is not the text.
    """

    exit: int
    status: str
    text: str
    lock: Path | None = None
    sealed: bool = False
    details: Mapping[str, Any] = field(default_factory=dict)
    told: str = ""

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return {
            "exit": self.exit,
            "status": self.status,
            "text": self.text,
            "lock": None if self.lock is None else str(self.lock),
            "sealed": self.sealed,
            **self.details,
        }


def record(options: Options, environ: Mapping[str, str], say: Say) -> Outcome:
    """Records a lock and says how it went. Raises `SessionError`, `LedgerError`, `LockError`."""
    return in_folder("record", options, environ, say, Recording.outcome)


def in_folder(
    command: str,
    options: Options,
    environ: Mapping[str, str],
    say: Say,
    work: Callable[[Recording], Outcome],
) -> Outcome:
    """Does `work` in the folder that was asked for, or a temporary one that only failures keep."""
    temporary = options.folder is None
    if temporary and (hint := needs_shared_folder(options.job.argv, environ)):
        say(f"note: {hint}")
    folder = options.folder or Path(tempfile.mkdtemp(prefix=f"pinner-{command}-"))
    recording = Recording(options, folder, environ, say)
    outcome = work(recording)
    if outcome.exit != 0:
        told = told_once(outcome.text, recording.said)
        return replace(outcome, told=f"{told}\nthe ledgers of the runs are in {folder}")
    if recording.survivors:
        say(f"note: processes outlive the command; the runs' folders stay for them: {folder}")
    elif temporary:
        shutil.rmtree(folder, ignore_errors=True)
    return outcome


def under_lock(options: Options, lock: Lock, environ: Mapping[str, str]) -> Options | Refusal:
    """What runs under a lock take over from it; or why there can be none."""
    try:
        enforce.check_watched(lock, options.job.cublaslt)
        enforce.check_policy(lock, environ, ())
    except enforce.LockRefused as error:
        return Refusal(judge.REFUSED, "refused", str(error))
    return replace(options, job=enforce.with_recorded(options.job, lock))


class Recording:
    """One recording; holds what is known so far, so that an early end can still tell it.

    details: what `--json` says of it so far.
    """

    def __init__(
        self, options: Options, folder: Path, environ: Mapping[str, str], say: Say
    ) -> None:
        self._options = options
        self._folder = folder
        self._environ = environ
        self._say = say
        self.details: dict[str, Any] = {"runs": []}
        self.survivors = False
        self.said: tuple[str, ...] = ()

    def outcome(self) -> Outcome:
        observed = self._observe()
        refused = self.usable(observed)
        if refused is not None:
            return self._ended(refused)
        try:
            draft = merge_ledgers(observed.ledgers, self._options.on_conflict)
        except ConflictError as error:
            self.details["conflicts"] = [conflict.as_json() for conflict in error.conflicts]
            return self._ended(Refusal(judge.REFUSED, "conflicts", str(error)))
        lock = make_draft(draft, observed)
        self._tell_draft(draft, observed)
        refused = judge.evidence_refusal(observed.evidence(), "observed")
        if refused is not None:
            return self._ended(refused, lock)
        sealed = self.validated(lock, observed)
        if isinstance(sealed, Refusal):
            return self._ended(sealed, lock)
        return write_sealed(self._options.out, sealed, self.details)

    def _observe(self) -> Run:
        self._say("observing: " + " ".join(self._options.job.argv))
        settings = self._settings("observe", "observe")
        session = session_dir.create(self._folder / "observe", settings)
        return self._run(session, self._environ)

    def validated(self, lock: Lock, observed: Run) -> Lock | Refusal:
        """The lock, sealed by fresh enforced runs of it; or why they do not seal it."""
        runs = []
        for number in range(1, self._options.runs + 1):
            name = f"validate-{number}"
            self._say(f"{name} of {self._options.runs}: enforced, with empty compile caches")
            run = self.enforced(lock, name)
            refused = self.usable(run) or judge.held_refusal(lock, run)
            if refused is not None:
                return refused
            runs.append(run)
        agreed = judge.agree(runs)
        if isinstance(agreed, Disagreement):
            return self._differing(agreed, lock)
        if isinstance(agreed, Refusal):
            return agreed
        self.details.update(tell_agreement(agreed, observed, runs[0], self._say))
        return seal(lock, agreed, runs, self._say)

    def enforced(
        self,
        lock: Lock,
        name: str,
        on_miss: session_dir.OnMiss = "error",
        replay: bool = False,
    ) -> Run:
        """One run under a lock, sealed or not, in fresh processes with empty compile caches."""
        settings = replace(self._settings("enforce", name), on_miss=on_miss, replay=replay)
        pins = pins_text(lock, text_digest(lock))
        session = session_dir.create(self._folder / name, settings, pins)
        with session_dir.fresh_caches(self._environ) as environ:
            return self._run(session, environ)

    def _run(self, session: SessionDir, environ: Mapping[str, str]) -> Run:
        seen = one_run.run(session, self._options.job, environ, self._say)
        self.survivors |= bool(seen.survivors)
        found = collect(session)
        self.said += judge.said_already(found)
        self.details["runs"].append(
            {
                "name": found.name,
                "code": seen.ended.code,
                "seconds": round(seen.ended.seconds, 3),
                "processes": len(found.ledgers),
                "folder": str(session.path),
            }
        )
        return found

    def usable(self, run: Run) -> Refusal | None:
        """Why a run cannot be used; None where it can."""
        return judge.refusal(run, expect=self._options.expect, own=one_run.own_place())

    def _differing(self, found: Disagreement, lock: Lock) -> Refusal:
        """Two runs under one lock differ: look whether one kernel alone shows it."""
        self.details["difference"] = found.to_json()
        self._say("the validating runs differ")
        self._say("looking for a kernel that is not deterministic by itself: one more run")
        run = self.enforced(lock, "replay", replay=True)
        culprits = [
            {"kernel": p.kernel, "config": p.fields.get("config"), "text": p.text}
            for _, p in run.problems("replay")
        ]
        self.details["replay"] = culprits
        text = f"{found.refusal.text}\n{judge.replayed(run)}"
        return replace(found.refusal, text=text)

    def _settings(self, mode: session_dir.Mode, name: str) -> Settings:
        return self._options.job.settings(mode, name, self._environ)

    def _tell_draft(self, draft: Draft, observed: Run) -> None:
        self.details.update(draft_details(draft))
        for line in draft_lines(draft):
            self._say(line)
        processes = counted(len(observed.ledgers), "process")
        self._say(f"{counted(len(draft.entries), 'choice')} seen in {processes}")

    def _ended(self, refused: Refusal, lock: Lock | None = None) -> Outcome:
        return refused_outcome(refused, self._options.out, lock, self.details)


def told_once(text: str, said: Sequence[str]) -> str:
    """The text for a person who has read what the command said by itself just before."""
    for cause in said:
        text = text.replace(f": {cause}", ", for the cause it gave")
    return text


def make_draft(draft: Draft, observed: Run) -> Lock:
    """The unsealed lock that an observed run makes. It depends on nothing but that run."""
    launcher = observed.launchers[0]
    run = schema.Run(
        command=launcher.texts("command"),
        created=observed.session.settings.created,
        pinner=VERSION,
        complete=True,  # unless the draft has holes
    )
    options = ("evidence_files", "evidence_stdout", "taps")
    policy: dict[str, Encoded] = {
        name: list(launcher.texts(name)) for name in options if launcher.texts(name)
    }
    policy.update(apply.for_lock(observed.session.settings.policy))
    return draft_lock(draft, run, policy, schema.Evidence())


def remade(run: schema.Run, observed: Run) -> schema.Run:
    """How a lock came to be that is sealed anew: by the command, ranks and hosts of this run."""
    processes = [ledger.process for ledger in observed.ledgers]
    return replace(
        run,
        command=observed.launchers[0].texts("command"),
        created=observed.session.settings.created,
        pinner=VERSION,
        world_size=world_size(processes),
        hosts=hosts(processes),
    )


def seal(lock: Lock, agreed: Agreement, runs: Sequence[Run], say: Say) -> Lock:
    """The draft with the evidence of its validating runs in it.

    A complete draft stays so only if these runs made no decision past it; such ones are said.
    """
    holes = judge.holes(lock, runs)
    if lock.run.complete:
        for hole in holes:
            say(f"not held in a validating run: {hole}")
    complete = lock.run.complete and not holes
    return replace(
        lock,
        run=replace(lock.run, sealed=True, runs=len(runs), complete=complete),
        evidence=locked.keep(agreed.evidence),
    )


def tell_other_bits(lock: Lock, run: Run, say: Say) -> dict[str, Any] | None:
    """Says where a run under a lock left other bits than its evidence, and returns that.

    No fault where the program is another one by now; but the lock's reader must know.
    """
    differences = locked.verify(lock.evidence, run.evidence()).differences
    if not differences:
        return None
    where = evidence.describe(differences[0], ("the lock", "this run"))
    say(f"note: under the lock as it is, this run left other bits than its evidence says: {where}")
    return differences[0].to_json()


def replace_lock(out: Path, digest: str, lock: Lock, details: Mapping[str, Any]) -> Outcome:
    """Replaces a lock by one that was sealed, if the file is still the one of this digest."""
    if read_lock_with_digest(out)[1] == digest:
        return write_sealed(out, lock, details)
    text = f"{out} has changed since these runs began: nothing was written; start again"
    return Outcome(judge.REFUSED, "changed", text, details=details)


def write_sealed(out: Path, lock: Lock, details: Mapping[str, Any]) -> Outcome:
    """Writes a sealed lock and says so."""
    write_lock(out, lock)
    return Outcome(judge.DONE, "sealed", sealed_text(out, lock), out, True, details)


def refused_outcome(
    refused: Refusal, out: Path, lock: Lock | None, details: Mapping[str, Any]
) -> Outcome:
    """A recording that ends without a sealed lock; what was merged by then is kept as a draft."""
    written = None if lock is None else write_draft(out, lock)
    text = refused.text if written is None else f"{refused.text}\nthe draft is in {written}"
    return Outcome(refused.exit, refused.status, text, written, details=details)


def left_alone(refused: Refusal, details: Mapping[str, Any]) -> Outcome:
    """An end at which nothing was written over the lock, nor beside it."""
    text = f"{refused.text}\nthe lock is as it was"
    return Outcome(refused.exit, refused.status, text, details=details)


def write_draft(out: Path, lock: Lock) -> Path:
    """Writes an unsealed lock: to `out` if that is free or holds a draft, else beside it.

    A sealed lock is never replaced by a draft.
    """
    path = out if _is_draft_or_absent(out) else out.with_name(out.name + ".draft")
    write_lock(path, lock)
    return path


def text_digest(lock: Lock) -> str:
    """The digest that the lockfile of this lock would have."""
    return "sha256:" + hashlib.sha256(dumps(lock).encode()).hexdigest()


def draft_lines(draft: Draft) -> list[str]:
    """What a person must know of a draft: what was resolved, and what is not in it."""
    lines = []
    if draft.conflicts:
        lines.append(
            f"{len(draft.conflicts)} keys were decided differently by the processes of one run:"
        )
        lines += [str(conflict) for conflict in draft.conflicts]
    lines += [f"not in the lock: {hole}" for hole in draft.holes]
    lines += [str(p) for p in draft.problems if p.kind == "note"]
    lines += [f"note: {p}" for p in draft.problems if p.kind == "drift"]
    lines += [f"note: the processes differ in {fact}" for fact in draft.fact_conflicts if fact.hard]
    lines += [f"note: the processes differ in {setting}" for setting in draft.setting_conflicts]
    return lines


def draft_details(draft: Draft) -> dict[str, Any]:
    """The same for programs."""
    return {
        "entries": len(draft.entries),
        "world_size": draft.world_size,
        "conflicts": [conflict.as_json() for conflict in draft.conflicts],
        "problems": [str(problem) for problem in draft.problems],
        "fact_conflicts": [str(fact) for fact in draft.fact_conflicts],
        "settings": [dict(vars(setting)) for setting in draft.settings],
        "setting_conflicts": [str(setting) for setting in draft.setting_conflicts],
        "holes": list(draft.holes),
    }


def tell_agreement(agreed: Agreement, observed: Run, validated: Run, say: Say) -> dict[str, Any]:
    """Says what is worth knowing of runs that agree, and returns it for programs."""
    notes = [
        f"stream {stream!r} never changes over the steps: it shows nothing and was left out"
        for stream in agreed.worthless
    ]
    notes += _observed_note(observed, validated)
    for note in notes:
        say(f"note: {note}")
    streams = {
        stream: {str(rank): len(steps) for rank, steps in ranks.items()}
        for stream, ranks in agreed.evidence.streams.items()
    }
    return {
        "evidence": {"streams": streams, "worthless": list(agreed.worthless)},
        "notes": notes,
    }


def _observed_note(observed: Run, validated: Run) -> list[str]:
    """Where the observed run differs from the validated ones; that is no fault."""
    differences = evidence.compare(observed.evidence(), validated.evidence())
    if not differences:
        return []
    where = evidence.describe(differences[0], (observed.name, validated.name))
    why = "as tuning trials and settled conflicts may make it"
    return [f"the observed run left other bits, {why}: {where}"]


def sealed_text(out: Path, lock: Lock) -> str:
    """The last line of a recording that worked."""
    holes = "" if lock.run.complete else ", incomplete: some choices cannot be pinned"
    streams = counted(len({stream.name for stream in lock.evidence.streams}), "stream")
    return (
        f"sealed {out}: {counted(len(lock.entries), 'choice')}, {lock.run.runs} validating runs "
        f"gave the same bits in {streams} over {counted(lock.evidence.steps, 'step')}{holes}"
    )


def counted(number: int, noun: str) -> str:
    """``1 process``, ``2 processes``."""
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{number} {noun if number == 1 else plural}"


def _is_draft_or_absent(path: Path) -> bool:
    if not path.exists():
        return True
    try:
        return not read_lock(path).run.sealed
    except LockError:
        return False  # not ours to replace: it may be a newer pinner's
