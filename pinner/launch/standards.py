"""`pinner standards record` and `compare`: makes the runs, and writes or reads the standard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pinner.compare import evidence
from pinner.durable import replace_text
from pinner.launch import enforce, judge, session_dir, verify_run
from pinner.launch.collect import Run
from pinner.launch.judge import Agreement, Disagreement, Refusal
from pinner.launch.verify_run import Asked, Outcome, Runs, Say
from pinner.lockfile.schema import Stack
from pinner.stack import classify, combine
from pinner.standards import form
from pinner.standards.form import Standard
from pinner.standards.judge import Judged, not_finite, series_of
from pinner.standards.judge import judge as judged_by

USAGE = 64
ABSENT = "(not there)"

# What says that nobody looks on. `CI` alone is set by GitHub, GitLab, CircleCI, Travis and others.
CI_VARIABLES = (
    "CI",
    "CONTINUOUS_INTEGRATION",
    "GITHUB_ACTIONS",
    "GITLAB_CI",
    "BUILDKITE",
    "JENKINS_URL",
    "TEAMCITY_VERSION",
    "TF_BUILD",
    "CODEBUILD_BUILD_ID",
    "BITBUCKET_BUILD_NUMBER",
)


@dataclass(frozen=True)
class Options:
    """What was asked for. folder: where the standards are. runs, streams, replaces: for `record`.

    streams: a regular expression for the names of the streams that are kept, or None for all.
    replaces: whether a standard that is there may be written anew; its tolerances stay.
    """

    asked: Asked
    name: str
    folder: Path = field(default=Path("standards"))
    runs: int = 2
    streams: str | None = None
    replaces: bool = False

    @property
    def path(self) -> Path:
        """The file of the standard."""
        return form.path_of(self.folder, self.name)


def record(options: Options, environ: Mapping[str, str], say: Say) -> Outcome:
    """Makes the runs and, where they agree, writes the standard.

    Raises `SessionError`, `LedgerError`, `TapError`, `LockError` and `OSError`.
    """
    refused = _not_here(environ) or _taken(options)
    if refused is not None:
        return verify_run.refused(refused)
    old = form.read(options.path) if options.path.exists() else None
    try:
        with verify_run.runs(options.asked, environ, say) as runs:
            return _recorded(options, old, runs, say)
    except enforce.LockRefused as error:
        return verify_run.refused(Refusal(judge.REFUSED, "refused", str(error)))


def compare(options: Options, environ: Mapping[str, str], say: Say) -> Outcome:
    """Makes one run and compares it with the standard. Raises as `record` does."""
    if not options.path.exists():
        text = (
            f"inactive: there is no standard {options.path}, so nothing was run and nothing is "
            f"shown; its author records one with `pinner standards record {options.name} -- CMD`"
        )
        return Outcome(judge.NOTHING, "inactive", (text,), {"standard": str(options.path)})
    standard = form.read(options.path)
    if standard.lock is not None and options.asked.lock is None:
        text = (
            f"the standard was recorded under a lock ({standard.lock}), and without one choices "
            "may differ: give it with -l FILE"
        )
        return Outcome(judge.NOTHING, "no-lock", (text,), {"standard": str(options.path)})
    try:
        with verify_run.runs(options.asked, environ, say) as runs:
            return _compared(options, standard, runs, say)
    except enforce.LockRefused as error:
        return verify_run.refused(Refusal(judge.REFUSED, "refused", str(error)))


def _not_here(environ: Mapping[str, str]) -> Refusal | None:
    """A standard that a machine renews when it fails is none."""
    for name in CI_VARIABLES:
        if environ.get(name, "").lower() not in ("", "0", "false", "no"):
            return Refusal(
                USAGE,
                "refused",
                f"a standard is recorded by its author and reviewed, never in CI: {name} is "
                f"{environ[name]!r}; record it elsewhere and commit the file",
            )
    return None


def _taken(options: Options) -> Refusal | None:
    if options.replaces or not options.path.exists():
        return None
    text = f"{options.path} is there already: write it anew with --replace, and say why in review"
    return Refusal(USAGE, "refused", text)


def _recorded(options: Options, old: Standard | None, runs: Runs, say: Say) -> Outcome:
    made: list[Run] = []
    for number in range(1, options.runs + 1):
        say(f"run {number} of {options.runs}: " + " ".join(options.asked.job.argv))
        run = runs.run(f"run-{number}", values=True)
        refused = runs.refusal(run)
        if refused is not None:
            return verify_run.refused(refused, runs)
        made.append(run)
    agreed = judge.agree(made)
    if isinstance(agreed, Disagreement):
        where = evidence.describe(agreed.difference, (agreed.first, agreed.second))
        text = f"two runs left different bits, so there is no standard: {where}"
        details = {"runs": runs.made, "difference": agreed.to_json()}
        return Outcome(judge.DIFFERS, "differs", (text, *_FOLLOW), details)
    if isinstance(agreed, Refusal):
        return verify_run.refused(agreed, runs)
    return _written(options, old, made[0], agreed, runs)


_FOLLOW = ("`pinner verify -- CMD` follows that to its operation",)


def _written(
    options: Options, old: Standard | None, run: Run, agreed: Agreement, runs: Runs
) -> Outcome:
    series = series_of(agreed.evidence, options.streams)
    if not series:
        found = ", ".join(map(repr, agreed.evidence.streams))
        text = f"no stream matches {options.streams!r}; the run has {found}"
        return verify_run.refused(Refusal(judge.NOTHING, "no-evidence", text), runs)
    broken = not_finite(series)
    if broken:
        text = f"a run with a number that is not finite is no standard: {broken}"
        return verify_run.refused(Refusal(judge.NOTHING, "not-finite", text), runs)
    stack = _stack(run)
    standard = Standard(
        name=options.name,
        created=session_dir.now(),
        command=options.asked.job.argv,
        runs=options.runs,
        series=series,
        hard=stack.hard,
        soft=stack.soft,
        streams=options.streams,
        lock=session_dir.lock_digest(run.session),
        tolerances=() if old is None else old.tolerances,
    )
    options.folder.mkdir(parents=True, exist_ok=True)
    _checked(options.path, standard)
    count = sum(map(len, series.values()))
    lines = [
        f"note: stream {stream!r} never changes over the steps: it shows nothing and was left out"
        for stream in agreed.worthless
    ]
    lines.append(
        f"{options.runs} runs in fresh processes left the same bits: {count} points in "
        f"{len(series)} series are the standard {options.path}; review it and commit it"
    )
    details = {"runs": runs.made, "standard": str(options.path), "points": count}
    return Outcome(judge.DONE, "recorded", tuple(lines), details)


def _checked(path: Path, standard: Standard) -> None:
    """Writes the file where it can be read back, or leaves what is there. Raises `LockError`."""
    text = form.dumps(standard)
    form.parse(text.encode("utf-8"), path)
    replace_text(path, text)


def _compared(options: Options, standard: Standard, runs: Runs, say: Say) -> Outcome:
    say("run: " + " ".join(options.asked.job.argv))
    run = runs.run("run", values=True)
    refused = runs.refusal(run)
    if refused is not None:
        return verify_run.refused(refused, runs)
    found = judged_by(standard, series_of(run.evidence(), standard.streams))
    changed = _changed(standard, run)
    details = {
        "runs": runs.made,
        "standard": str(options.path),
        "findings": [each.to_json() for each in found.findings],
        "tolerated": list(found.tolerated),
        "points": found.compared,
        "changed": changed,
    }
    status = _status(found)
    exit_code = {"equal": judge.DONE, "differs": judge.DIFFERS}.get(status, judge.NOTHING)
    return Outcome(exit_code, status, tuple(_lines(options, standard, found, changed)), details)


def _status(found: Judged) -> str:
    if found.incomparable:
        return "incomparable"
    return "differs" if found.findings else "equal"


def _lines(
    options: Options, standard: Standard, found: Judged, changed: Mapping[str, list[Any]]
) -> list[str]:
    if found.incomparable:
        return [found.incomparable]
    lines = [each.text for each in found.findings]
    lines += [f"note: {text}" for text in found.tolerated]
    lines += [
        f"note: {name} was {old} when the standard was recorded, here it is {new}"
        for name, (old, new) in changed.items()
    ]
    if found.findings:
        lines.append(f"the run is not the standard {options.path} of {standard.created}")
        lines.append(
            f"where that is meant, its author records it anew: "
            f"pinner standards record {options.name} --replace -- CMD"
        )
        return lines
    how = "but for registered tolerances" if found.tolerated else "bit for bit"
    lines.append(f"the standard {options.path} holds {how}: {found.compared} points compared")
    return lines


def _changed(standard: Standard, run: Run) -> dict[str, list[Any]]:
    """What else is not as it was: hard facts and the lock, the standard's value first."""
    here = _stack(run).hard
    names = sorted({*standard.hard, *here})
    changed = {
        name: [standard.hard.get(name, ABSENT), here.get(name, ABSENT)]
        for name in names
        if standard.hard.get(name) != here.get(name)
    }
    lock = session_dir.lock_digest(run.session)
    if lock != standard.lock:
        changed["lock"] = [standard.lock or ABSENT, lock or ABSENT]
    return changed


def _stack(run: Run) -> Stack:
    return classify(combine([facts for _, facts in run.facts()]))
