"""Reads what Slurm says of a job and what its script wrote: to be waited for, over, or lost.

The states are those of Slurm 22.05 (squeue's long form, `JOB STATE CODES` in its manual page).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# A file from another node may be seen late: NFS keeps attributes for up to a minute.
LATE_S = 90.0

_OVER = frozenset(
    ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY")
    + ("PREEMPTED", "REVOKED", "TIMEOUT")
)
# Not the candidate's doing: another try may go well.
_LOST = {
    "BOOT_FAIL": "its node did not boot",
    "CANCELLED": "somebody cancelled it",
    "DEADLINE": "its deadline came before it could end",
    "NODE_FAIL": "its node failed",
    "PREEMPTED": "another job took its place",
    "REVOKED": "it was moved to another cluster",
}
# A pending job with one of these never starts by itself.
_HOPELESS = frozenset(
    ("BadConstraints", "DependencyNeverSatisfied", "InvalidAccount", "InvalidQOS", "JobHeldAdmin")
    + ("JobHeldUser", "JobHoldMaxRequeue", "NodeDown", "PartitionDown", "PartitionInactive")
    + ("PartitionNodeLimit", "PartitionTimeLimit", "QOSNotAllowed", "AccountNotAllowed")
    + ("launch_failed_requeued_held",)
)
# These may be waited for where an administrator is at work; a job of another user may hold them.
_PATIENCE = frozenset(("NodeDown", "PartitionDown", "PartitionInactive"))


@dataclass(frozen=True)
class State:
    """A job as Slurm shows it; `limit` is its time limit."""

    id: str
    state: str
    reason: str = ""
    nodes: str = ""
    limit: str = ""
    name: str = ""

    @property
    def over(self) -> bool:
        """True where it will not run again."""
        return self.state in _OVER


@dataclass(frozen=True)
class Wrote:
    """What the job's script wrote in its last start: that it began, and the command's code."""

    began: bool = False
    code: int | None = None


@dataclass(frozen=True)
class Reading:
    """What that means. `ended`: the command did; `lost`: nothing is known of the candidate."""

    kind: Literal["wait", "ended", "untestable", "lost"]
    text: str = ""


def read(job: str, state: State | None, wrote: Wrote, *, silent_s: float) -> Reading:
    """What a job's state and its script's words mean together.

    `state`: None where Slurm knows no such job (any more). `silent_s`: for how long it has been
    over, or unknown, without the script's last word.
    """
    if wrote.code == 0:
        return Reading("ended")
    if state is None:
        if wrote.code is not None:
            return Reading("ended")
        if silent_s < LATE_S:
            return Reading("wait")
        return Reading("lost", f"Slurm does not know job {job} any more, and it left no result")
    name = f"Slurm job {job}"
    if state.state in ("OUT_OF_MEMORY", "TIMEOUT"):
        what = {
            "OUT_OF_MEMORY": "it was killed because it wanted more memory than it has",
            "TIMEOUT": f"it reached its time limit in Slurm ({state.limit or 'unknown'})",
        }
        return Reading("untestable", f"{name} ended as {state.state}: {what[state.state]}")
    if state.state in _LOST:
        return Reading("lost", f"{name} ended as {state.state}: {_LOST[state.state]}")
    if wrote.code is not None:
        # Where the memory ran out the command's code comes first, Slurm's verdict a moment later.
        return Reading("ended" if state.over or silent_s >= LATE_S else "wait")
    if not state.over:
        return _still_there(name, state)
    if silent_s < LATE_S:
        return Reading("wait")
    said = f"{name} ended as {state.state} ({state.reason or 'no reason given'})"
    if wrote.began:
        return Reading("untestable", f"{said}: its script was killed before the command ended")
    return Reading("lost", f"{said}; its script never began")


def _still_there(name: str, state: State) -> Reading:
    if state.state in ("REQUEUE_HOLD", "SPECIAL_EXIT"):
        return Reading("lost", f"{name} was put back and is held: {state.reason}")
    if state.state == "PENDING" and state.reason in _HOPELESS - _PATIENCE:
        return Reading("lost", f"{name} cannot start: {state.reason}")
    return Reading("wait")
