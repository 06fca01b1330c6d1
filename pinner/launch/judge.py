"""Decides about finished runs: can one be used, do several agree, what shows it. Pure."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pinner.compare import evidence
from pinner.compare.evidence import Difference, RunEvidence
from pinner.inside import policy
from pinner.inside.values import readable_named
from pinner.launch.collect import Run
from pinner.launch.command_line import is_python
from pinner.launch.coverage import Coverage, cover, described
from pinner.launch.one_run import nobody_because
from pinner.launch.participation import Participation, Place
from pinner.launch.participation import judge as who_took_part
from pinner.launch.watch import Unpinned
from pinner.lockfile.ledgers import ProblemRecord
from pinner.lockfile.schema import Lock

# Exit codes of every command but `enforce`.
DONE, DIFFERS, NOTHING, BROKEN, REFUSED, FAILED = 0, 1, 2, 3, 4, 5

WAYS = (
    'call pinner.fingerprint("loss", loss) in the workload; '
    "use a torch optimizer, or name a metric of a library with --tap FILE; "
    "or give --evidence-file GLOB or --evidence-stdout REGEX"
)


@dataclass(frozen=True)
class Refusal:
    """Why a run, or a set of runs, is not what was wanted.

    status: one word for programs; text: for people.
    """

    exit: int
    status: str
    text: str


@dataclass(frozen=True)
class Agreement:
    """What validating runs came to.

    evidence: what they agree on, without the streams that show nothing (`worthless`).
    """

    evidence: RunEvidence
    worthless: tuple[str, ...] = ()


def refusal(run: Run, *, expect: int | None = None, own: Place | None = None) -> Refusal | None:
    """Why this run cannot be used; None where it can. Causes before their consequences."""
    part = participation(run, expect=expect, own=own)
    return own_refusal(run) or _absent(run, part) or _evidence_missing(run)


def held_refusal(lock: Lock, run: Run) -> Refusal | None:
    """Why a run under `lock` did not hold what only a look at both can tell; None where it did.

    A library's heuristic or a compile cache that decided otherwise, a setting with another value.
    """
    return broken_refusal(cover(lock, run.ledgers), "error")


def broken_refusal(coverage: Coverage, on_miss: str) -> Refusal | None:
    """Why the pins of a run did not hold; None where they did."""
    broken = [coverage.broken_text(name) for name in coverage.broken(on_miss)]
    if not broken:
        return None
    return Refusal(BROKEN, "broken-pins", "pins were broken: " + "; ".join(broken))


def holes(lock: Lock, runs: Sequence[Run]) -> tuple[str, ...]:
    """One line for each decision of validating runs that the lock could not hold."""
    found: dict[str, None] = {}
    for run in runs:
        for entry in cover(lock, run.ledgers).entries["unenforceable"]:
            found.setdefault(described(entry))
    return tuple(found)


def own_refusal(run: Run) -> Refusal | None:
    """The part of `refusal` that holds for each launcher of a run by itself."""
    checks = (_interrupted, _not_started, _unended, _faults, _problems, _failed, _unpinned)
    return next((found for check in checks if (found := check(run)) is not None), None)


def participation(
    run: Run, *, expect: int | None = None, own: Place | None = None
) -> Participation:
    """Who took part in a run."""
    return who_took_part([ledger.process for ledger in run.ledgers], expect=expect, own=own)


def evidence_refusal(found: RunEvidence, run: str) -> Refusal | None:
    """Why this evidence could validate nothing; None where it can."""
    if found.empty:
        return Refusal(
            NOTHING,
            "no-evidence",
            f"the {run} run left no evidence, so nothing could be shown: {WAYS}",
        )
    worthless = evidence.constant(found)
    if len(worthless) == len(found.streams):
        names = ", ".join(repr(stream) for stream in worthless)
        return Refusal(
            NOTHING,
            "worthless-evidence",
            f"worthless evidence: {names} never changed over the steps of the {run} run, so that "
            f"agreement on it would show nothing; fingerprint something that changes: {WAYS}",
        )
    return None


@dataclass(frozen=True)
class Disagreement:
    """Two validating runs under one lock that left different bits, and the first place where."""

    first: str
    second: str
    difference: Difference

    def to_json(self) -> dict[str, Any]:
        """The same as plain JSON values."""
        return {"runs": [self.first, self.second], **self.difference.to_json()}

    @property
    def refusal(self) -> Refusal:
        """The same as a reason not to seal."""
        where = evidence.describe(self.difference, (self.first, self.second))
        text = f"two runs under the same choices left different bits: {where}"
        return Refusal(DIFFERS, "differs", text)


def agree(runs: Sequence[Run]) -> Agreement | Disagreement | Refusal:
    """Whether validating runs left the same bits, and whether that shows anything."""
    first, *others = runs
    found = first.evidence()
    for other in others:
        differences = evidence.compare(found, other.evidence())
        if differences:
            return Disagreement(first.name, other.name, differences[0])
    refused = evidence_refusal(found, "validating")
    if refused is not None:
        return refused
    worthless = evidence.constant(found)
    return Agreement(evidence.without(found, worthless), worthless)


def replayed(run: Run) -> str:
    """What launching every decided kernel twice on equal arguments showed."""
    found: dict[str, None] = {}
    for _, problem in run.problems("replay"):
        found.setdefault(f"{_where(problem)}: {problem.text}")
    if found:
        return "not deterministic by itself: " + "; ".join(found)
    return (
        "no kernel that was launched twice on equal arguments in one process left different bytes: "
        "the cause is not a single launch of an autotuned Triton kernel"
    )


def unpinned(run: Run) -> tuple[Unpinned, ...]:
    """The processes that the run's launchers saw run without pinner."""
    return tuple(
        Unpinned(**item)
        for launcher in run.launchers
        for item in launcher.fields.get("unpinned", ())
    )


def fault_texts(run: Run) -> tuple[str, ...]:
    """One line for each cause for which a process refused to start; ranks mostly share one."""
    found: dict[str, None] = {}
    for fault in run.faults:
        _, *rows = fault.get("rows") or [()]
        details = [f"{row[0]}: locked {row[1]}, here {row[2]}" for row in rows if len(row) == 3]
        found.setdefault(" ".join([str(fault.get("cause", fault)), "; ".join(details)]).strip())
    return tuple(found)


def silent_taps(run: Run) -> tuple[str, ...]:
    """One line for each metric tap that was asked for and gave no value, with the cause."""
    settings = run.session.settings
    if not settings.taps or not settings.evidence:
        return ()
    seen = run.evidence().streams
    causes: dict[str, dict[str, None]] = {}
    for _, problem in run.problems("note"):
        if problem.chooser == "evidence":
            causes.setdefault(problem.kernel, {}).setdefault(problem.text)
    return tuple(
        f"metric tap {tap['stream']!r} gave no value: "
        + ("; ".join(causes.get(tap["stream"], ())) or _NEVER_CALLED.format(**tap))
        for tap in settings.taps
        if tap["stream"] not in seen
    )


_NEVER_CALLED = (
    "module {module} was never imported, or its {function} never called outside compiled regions"
)


def said_already(run: Run) -> tuple[str, ...]:
    """Those of `fault_texts` that stand on the launcher's own standard error by now.

    A process says why it refuses to start, but a shell may have sent that elsewhere. Where the
    command is Python and refused by itself, nothing stood between.
    """
    places = {
        (launcher.fields.get("host"), launcher.fields.get("pid"))
        for launcher in run.launchers
        if any(map(_is_python, launcher.texts("command")[:1]))
    }
    said = tuple(fault for fault in run.faults if (fault.get("host"), fault.get("ppid")) in places)
    return fault_texts(replace(run, faults=said))


def _is_python(word: str) -> bool:
    return is_python(word) or os.path.basename(word) == "torchrun"


def incomplete_launchers(run: Run) -> tuple[str, ...]:
    """One line for each launcher of a run that did not come to its end, or never came."""
    lines = [f"{x.name} started and never ended" for x in run.launchers if not x.ended]
    tasks = max([1, *(int(x.fields.get("tasks", 1)) for x in run.launchers)])
    present = {launcher.task for launcher in run.launchers}
    lines += [
        f"task {task} of {tasks} never started" for task in range(tasks) if task not in present
    ]
    return tuple(lines)


def _interrupted(run: Run) -> Refusal | None:
    for launcher in run.launchers:
        for number in launcher.fields.get("interrupted", ()):
            name = signal.Signals(number).name
            return Refusal(
                128 + number, "interrupted", f"interrupted by {name}; nothing was sealed"
            )
    return None


def _not_started(run: Run) -> Refusal | None:
    for launcher in run.launchers:
        if launcher.fields.get("failure"):
            return Refusal(FAILED, "command-failed", str(launcher.fields["failure"]))
    return None


def _unended(run: Run) -> Refusal | None:
    lost = [launcher.name for launcher in run.launchers if not launcher.ended]
    if not lost:
        return None
    return Refusal(BROKEN, "incomplete", f"nobody knows how it ended: {', '.join(lost)}")


def _faults(run: Run) -> Refusal | None:
    if not run.faults:
        return None
    causes = "; ".join(fault_texts(run))
    enforcing = run.session.settings.mode == "enforce"
    return Refusal(
        REFUSED if enforcing else FAILED, "start-fault", f"a process refused to start: {causes}"
    )


def _problems(run: Run) -> Refusal | None:
    """Broken pins. A command that failed over them is told apart from one that failed by itself."""
    if run.session.settings.mode != "enforce":
        return _profile_refusal(run)
    strict = run.session.settings.on_miss == "error"
    kinds = ("invalid", "missed", "drift") if strict else ("invalid",)
    found: dict[str, None] = {}
    for ledger, problem in run.problems(*kinds):
        found.setdefault(
            f"{problem.kind}: {_where(problem)}: {problem.text} ({ledger.process.name})"
        )
    if not found:
        return None
    return Refusal(BROKEN, "broken-pins", "pins were broken: " + "; ".join(found))


def _profile_refusal(run: Run) -> Refusal | None:
    """What an observed program set by itself and its policy profile does not accept."""
    found: dict[str, None] = {}
    for ledger, problem in run.problems("invalid"):
        if problem.chooser == policy.CHOOSER:
            found.setdefault(f"{problem.kernel}: {problem.text} ({ledger.process.name})")
    if not found:
        return None
    return Refusal(BROKEN, "policy", "the policy does not hold: " + "; ".join(found))


def _failed(run: Run) -> Refusal | None:
    for launcher in run.launchers:
        if launcher.code:
            where = f" in {launcher.name}" if len(run.launchers) > 1 else ""
            return Refusal(
                FAILED, "command-failed", f"the command ended with {launcher.code}{where}"
            )
    return None


def _unpinned(run: Run) -> Refusal | None:
    found = [item.text for item in unpinned(run) if item.loaded]
    if not found:
        return None
    return Refusal(BROKEN, "unpinned", "; ".join(found))


def _absent(run: Run, part: Participation) -> Refusal | None:
    if part.complete:
        return None
    if part.processes:
        return Refusal(BROKEN, "incomplete", "; ".join(part.missing))
    argv = run.launchers[0].texts("command") if run.launchers else ()
    return Refusal(NOTHING, "nobody", f"{part.missing[0]}: {nobody_because(argv, unpinned(run))}")


def _evidence_missing(run: Run) -> Refusal | None:
    """Evidence that was asked for and that nobody saw."""
    missing = _in_all([launcher.texts("missing") for launcher in run.launchers])
    missing += silent_taps(run)
    if not missing:
        return None
    return Refusal(NOTHING, "evidence-missing", "; ".join(missing))


def _in_all(lists: Sequence[Iterable[str]]) -> list[str]:
    if not lists:
        return []
    first, *others = [list(items) for items in lists]
    return [item for item in first if all(item in other for other in others)]


def _where(problem: ProblemRecord) -> str:
    """The kernel, its key and config, as far as a problem names them."""
    parts = [problem.kernel or problem.chooser]
    if problem.key:
        parts.append(readable_named(problem.key))
    config = problem.fields.get("config")
    if isinstance(config, dict):
        parts.append(f"config {readable_named(config)}")
    return " ".join(parts)
