"""`pinner verify --resume`: a run that is killed and restored, against one that is not.

Three runs in fresh processes: the whole one; one that is killed with SIGKILL once the k-th
checkpoint is saved on every rank that saves; and one in the same folder, which restores. `{dir}` in
the command, and PINNER_VERIFY_DIR, is the folder of the history, new and empty for each of the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pinner.compare import evidence, resume
from pinner.compare.evidence import RunEvidence
from pinner.compare.resume import Findings, Told
from pinner.inside.evidence.resume.moments import KILLED, RESTORED, WHOLE
from pinner.inside.evidence.resume.ready import VARIABLE
from pinner.launch import enforce, judge, verify_run
from pinner.launch.collect import Run
from pinner.launch.judge import Refusal
from pinner.launch.session_dir import SessionDir
from pinner.launch.verify_kill import Killer
from pinner.launch.verify_run import Asked, Outcome, Runs, Say

# How long all ranks may take to save after the first one has, beside twice the whole run's time.
LEAST_GRACE_S = 60.0

FOLDER_VARIABLE = "PINNER_VERIFY_DIR"
PLACE = "{dir}"

Around = Callable[[SessionDir], Any] | None

SAVE_WAYS = (
    "call pinner.checkpoint_saved(state) on each rank after a checkpoint is on the disk; "
    "torch.save of a file with the model's or an optimizer's tensors, and "
    "torch.distributed.checkpoint, are seen by themselves"
)
RESTORE_WAYS = (
    "the command must go on from what it finds in its folder ({dir} in the command, or "
    "$PINNER_VERIFY_DIR), or --restore-with must name the command that does; call "
    "pinner.checkpoint_restored(state) after that (torch.load and torch.distributed.checkpoint are "
    "seen by themselves)"
)


@dataclass(frozen=True)
class Options:
    """What was asked for. at: which checkpoint the run is killed after, from 1.

    restore_with: the command that restores; empty where it is the same one.
    """

    asked: Asked
    at: int = 1
    restore_with: tuple[str, ...] = ()


def verify(options: Options, environ: Mapping[str, str], say: Say) -> Outcome:
    """Makes the three runs and compares them. Raises `SessionError`, `LedgerError`, `TapError`."""
    try:
        with verify_run.runs(options.asked, environ, say) as runs:
            return _Verification(options, options.asked, runs, say).outcome()
    except enforce.LockRefused as error:
        return verify_run.refused(Refusal(judge.REFUSED, "refused", str(error)))


class _Verification:
    def __init__(self, options: Options, asked: Asked, runs: Runs, say: Say) -> None:
        self._options = options
        self._argv = asked.job.argv
        self._runs = runs
        self._say = say

    def outcome(self) -> Outcome:
        at = self._options.at
        self._say("the whole run: " + " ".join(self._argv))
        whole = self._run(WHOLE, self._folder("whole"), self._argv)
        refused = self._runs.refusal(whole) or judge.evidence_refusal(whole.evidence(), "whole")
        told = self._told(whole)
        refused = refused or _unsaved(told, at)
        if refused is not None:
            return verify_run.refused(refused, self._runs)
        folder = self._folder("killed")
        self._say(f"the same until checkpoint {at} is saved, then killed")
        savers = sum(1 for each in told.values() if each.saved_at is not None)
        refused, killed = self._killed(folder, savers)
        if refused is not None:
            return verify_run.refused(refused, self._runs)
        self._say("restored from there")
        restored = self._run(RESTORED, folder, self._options.restore_with or self._argv)
        after = self._told(restored)
        refused = self._runs.refusal(restored) or _unrestored(after)
        if refused is not None:
            return verify_run.refused(refused, self._runs)
        return self._compared(whole.evidence(), told, killed, after)

    def _run(self, role: str, folder: Path, argv: Sequence[str], around: Around = None) -> Run:
        folder.mkdir(parents=True, exist_ok=True)
        more = {VARIABLE: f"{role} {self._options.at}", FOLDER_VARIABLE: str(folder)}
        words = [word.replace(PLACE, str(folder)) for word in argv]
        return self._runs.run(role, words, more, around)

    def _folder(self, name: str) -> Path:
        return self._runs.folder.absolute() / "histories" / name

    def _killed(self, folder: Path, savers: int) -> tuple[Refusal | None, Mapping[int, Told]]:
        killers: list[Killer] = []
        grace_s = LEAST_GRACE_S + 2 * float(self._runs.made[0]["seconds"])

        def around(session: SessionDir) -> Killer:
            killers.append(Killer(session, savers, grace_s))
            return killers[-1]

        run = self._run(KILLED, folder, self._argv, around)
        killer = killers[0]
        if not killer.killed:
            return judge.own_refusal(run) or _never_held(self._options.at), {}
        self._say(f"killed while these waited: {', '.join(killer.holding)}")
        if len(killer.holding) < savers:
            self._say(f"note: {savers} saved that checkpoint in the whole run")
        return None, self._told(run)

    def _told(self, run: Run) -> dict[int, Told]:
        ledgers = ((each.process.rank, each.lines()) for each in run.ledgers)
        return resume.by_rank(ledgers, self._options.at)

    def _compared(
        self,
        evidence_: RunEvidence,
        whole: Mapping[int, Told],
        killed: Mapping[int, Told],
        restored: Mapping[int, Told],
    ) -> Outcome:
        worthless = evidence.constant(evidence_)
        findings = resume.compare(whole, killed, restored)
        return judged(findings, worthless, self._options.at, {"runs": self._runs.made})


def judged(
    findings: Findings, worthless: Sequence[str], at: int, details: Mapping[str, Any]
) -> Outcome:
    """What the findings come to, for people and for programs."""
    shown = {place: n for place, n in findings.compared.items() if place[0] not in worthless and n}
    lines = [*(f"note: {note}" for note in findings.notes)]
    lines += [_text(lack) for lack in findings.lacks]
    lines += [_parted(findings)] if findings.parted else []
    exit_code, status, last = _verdict(findings, shown, at)
    return Outcome(
        exit_code,
        status,
        (*lines, last),
        {
            **details,
            "at": at,
            "lacks": [lack.to_json() for lack in findings.lacks],
            "parted": [difference.to_json() for difference in findings.parted],
            "differences": [difference.to_json() for difference in findings.differences],
            "compared": [
                {"stream": stream, "rank": rank, "steps": steps}
                for (stream, rank), steps in findings.compared.items()
            ],
            "notes": list(findings.notes),
        },
    )


def _verdict(
    findings: Findings, shown: Mapping[tuple[str, int], int], at: int
) -> tuple[int, str, str]:
    faults = findings.faults
    names = ", ".join(dict.fromkeys(lack.name for lack in faults))
    if findings.parted:
        text = "the program is not repeatable by itself: `pinner verify --runs 2` looks where"
        return judge.DIFFERS, "not-repeatable", text
    if findings.differences:
        where = evidence.describe(findings.differences[0], ("the whole run", "the restored one"))
        cause = f"; not restored: {names}" if names else "; all state that was seen is restored"
        return (
            judge.DIFFERS,
            "differs",
            f"resuming from checkpoint {at} changes bits: {where}{cause}",
        )
    steps = sum(shown.values())
    if faults:
        text = (
            f"the checkpoint lacks: {names}; the streams agree over {steps} steps after the "
            "restore all the same"
        )
        return judge.DIFFERS, "lacks", text
    if not shown:
        text = f"no step after the restore could be compared: {judge.WAYS}"
        return judge.NOTHING, "no-evidence", text
    streams = len({stream for stream, _ in shown})
    text = (
        f"resumed from checkpoint {at} bit for bit: {steps} steps in {streams} "
        f"stream{'' if streams == 1 else 's'} after the restore, and all state that was seen"
    )
    return judge.DONE, "equal", text


def _text(lack: resume.Lack) -> str:
    return f"{'' if lack.matters else 'note: '}rank {lack.rank}: {lack.text}"


def _parted(findings: Findings) -> str:
    where = evidence.describe(findings.parted[0], ("the whole run", "the one to be killed"))
    return f"the two runs differ before the checkpoint: {where}"


def _unsaved(told: Mapping[int, Told], at: int) -> Refusal | None:
    saves = max((each.saves for each in told.values()), default=0)
    if saves >= at:
        return None
    seen = f"found {saves}" if saves else "found none"
    return Refusal(
        judge.NOTHING, "no-checkpoint", f"expected at least {at} checkpoints, {seen}: {SAVE_WAYS}"
    )


def _unrestored(told: Mapping[int, Told]) -> Refusal | None:
    if any(each.restored_by for each in told.values()):
        return None
    text = (
        f"the second run of the killed history restored nothing, as far as is seen: {RESTORE_WAYS}"
    )
    return Refusal(judge.NOTHING, "nothing-restored", text)


def _never_held(at: int) -> Refusal:
    text = (
        f"the run that was to be killed came to its end before checkpoint {at} and a step after "
        "it, as the whole run did not: nothing to restore"
    )
    return Refusal(judge.NOTHING, "no-checkpoint", text)
