"""`pinner verify --runs` and `--scale`: whether fresh processes leave the same bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pinner.compare import evidence
from pinner.compare.evidence import Difference, RunEvidence
from pinner.launch import enforce, judge, verify_run
from pinner.launch.collect import Run
from pinner.launch.judge import Agreement, Disagreement, Refusal
from pinner.launch.verify_chase import (
    LEVELS,
    TRIES,
    Compare,
    Incomparable,
    Level,
    Link,
    Window,
    chase,
    conclusion,
    figures,
    reading,
)
from pinner.launch.verify_run import Asked, Outcome, Runs, Say

PLACE = "{n}"
SIZES_DIFFER = (
    "the sizes differ, and with them the order in which collectives add: equal bits across world "
    "sizes need reductions whose order does not depend on the size"
)


@dataclass(frozen=True)
class Options:
    """What was asked for. runs: how many. chase: whether a divergence is followed by traces.

    tries: how many pairs of runs are traced at each level before it is given up. keep: how many
    bytes of tensors the finest traces keep for each rank; None where they keep none.
    """

    asked: Asked
    runs: int = 2
    chase: bool = True
    tries: int = TRIES
    keep: int | None = None


def verify(
    options: Options, environ: Mapping[str, str], say: Say, compare: Compare | None = None
) -> Outcome:
    """Makes the runs and compares them. Raises `SessionError`, `LedgerError` and `TapError`.

    compare: how two traces are compared, where not by `pinner.compare.traces`.
    """
    try:
        with verify_run.runs(options.asked, environ, say) as runs:
            return _verified(options, options.asked, runs, say, compare)
    except enforce.LockRefused as error:
        return verify_run.refused(Refusal(judge.REFUSED, "refused", str(error)))


def scale(asked: Asked, sizes: Sequence[int], environ: Mapping[str, str], say: Say) -> Outcome:
    """Runs the command at each world size and compares the streams. Raises as `verify` does."""
    try:
        with verify_run.runs(asked, environ, say) as runs:
            return _scaled(asked, sizes, runs, say)
    except enforce.LockRefused as error:
        return verify_run.refused(Refusal(judge.REFUSED, "refused", str(error)))


def _verified(
    options: Options, asked: Asked, runs: Runs, say: Say, compare: Compare | None
) -> Outcome:
    made: list[Run] = []
    for number in range(1, options.runs + 1):
        say(f"run {number} of {options.runs}: " + " ".join(asked.job.argv))
        run = runs.run(f"run-{number}")
        refused = runs.refusal(run)
        if refused is not None:
            return verify_run.refused(refused, runs)
        made.append(run)
    refused = judge.evidence_refusal(made[0].evidence(), "first")
    if refused is not None and made[0].evidence().empty:
        return verify_run.refused(refused, runs)
    agreed = judge.agree(made)
    if isinstance(agreed, Disagreement):
        links: tuple[Link, ...] = ()
        looked = _Looked(evidence.shared([run.evidence() for run in made]))
        if options.chase:
            say("the runs differ; following that with traces, level by level")
            links = _follow(options, agreed, made[0].evidence(), runs, compare, looked=looked)
            runs.keep = any(runs.folder.glob("traces/*/rank-*/bytes"))
        return _differing(agreed, links, runs, looked)
    if isinstance(agreed, Refusal):
        return verify_run.refused(agreed, runs)
    return _equal(agreed, runs)


def _equal(agreed: Agreement, runs: Runs) -> Outcome:
    streams = agreed.evidence.streams
    steps = sum(len(found) for ranks in streams.values() for found in ranks.values())
    lines = [
        f"note: stream {stream!r} never changes over the steps: it shows nothing and was left out"
        for stream in agreed.worthless
    ]
    lines.append(
        f"{len(runs.made)} runs in fresh processes with fresh caches left the same bits: "
        f"{steps} steps in {len(streams)} stream{'' if len(streams) == 1 else 's'}"
    )
    details = {
        "runs": runs.made,
        "evidence": {
            stream: {str(rank): len(found) for rank, found in ranks.items()}
            for stream, ranks in streams.items()
        },
        "worthless": list(agreed.worthless),
        "difference": None,
        "chain": [],
    }
    return Outcome(judge.DONE, "equal", tuple(lines), details)


class _Looked:
    """Whether the traced runs left the bits of the others, as far as those agree with each other.

    valid: None where nothing was traced. why: where the first one left them.
    """

    def __init__(self, agreed: RunEvidence) -> None:
        self._agreed = agreed
        self.valid: bool | None = None
        self.why = ""

    def at(self, run: Run) -> None:
        """Take in a traced run."""
        found = evidence.strays(self._agreed, run.evidence())
        if self.valid is not False:
            self.valid = not found
        if found and not self.why:
            names = ("the runs without a trace", run.name)
            self.why = evidence.describe(found[0], names)

    @property
    def lines(self) -> list[str]:
        """The warning, where there is one."""
        if self.valid is not False:
            return []
        return [
            "WARNING: a traced run left other bits where the runs without a trace agree, so either "
            f"looking changed them or they part elsewhere each time: {self.why}"
        ]


def _follow(
    options: Options,
    found: Disagreement,
    run: RunEvidence,
    runs: Runs,
    compare: Compare | None,
    *,
    looked: _Looked,
) -> tuple[Link, ...]:
    from pinner.launch import verify_trace

    def trace(name: str, level: Level, window: Window) -> Path | Incomparable:
        keep = options.keep if level == LEVELS[-1] else None
        return verify_trace.trace(runs, name, level, window, keep, look=looked.at)

    start = failing_window(run, found.difference)
    return chase(start, trace, compare or verify_trace.compare, tries=options.tries)


def _differing(found: Disagreement, links: Sequence[Link], runs: Runs, looked: _Looked) -> Outcome:
    where = evidence.describe(found.difference, (found.first, found.second))
    lines = [f"independent runs left different bits: {where}"]
    lines += [f"  {link.line}" for link in links]
    lines += looked.lines
    lines += figures(links)
    lines += [f"reading: {text}"] if (text := reading(links)) else []
    lines += [f"the kept tensors are in {runs.folder / 'traces'}"] if runs.keep else []
    lines += [conclusion(links)] if links else []
    details = {
        "runs": runs.made,
        "difference": found.to_json(),
        "chain": [link.to_json() for link in links],
        "traces_valid": looked.valid,
        "kept": str(runs.folder / "traces") if runs.keep else None,
    }
    return Outcome(judge.DIFFERS, "differs", tuple(lines), details)


def failing_window(run: RunEvidence, difference: Difference) -> Window:
    """The steps in which a divergence began, as traces count them: in optimizer steps.

    All evidence of the steps before agreed. A stream's own numbers may begin anywhere, so its place
    among its steps counts; what a program fingerprints after its optimizer step belongs to the
    step before. All steps, where a stream is missing as a whole.
    """
    ranks = run.streams.get(difference.stream, {})
    steps = ranks.get(-1 if difference.rank is None else difference.rank, ())
    if difference.step is None or not steps:
        return Window()
    place = sum(1 for step, _ in steps if step < difference.step)
    exact = difference.stream.startswith("optimizer")
    return Window(place, place if exact else place + 1)


def _scaled(asked: Asked, sizes: Sequence[int], runs: Runs, say: Say) -> Outcome:
    made: dict[int, RunEvidence] = {}
    for size in sizes:
        argv = [word.replace(PLACE, str(size)) for word in asked.job.argv]
        say(f"world size {size}: " + " ".join(argv))
        run = runs.run(f"size-{size}", argv)
        found = run.evidence()
        refused = runs.refusal(run) or judge.evidence_refusal(found, f"size {size}")
        if refused is not None:
            return verify_run.refused(refused, runs)
        made[size] = evidence.without(found, evidence.constant(found))
    return _sizes(sizes, made, runs)


def _sizes(sizes: Sequence[int], made: Mapping[int, RunEvidence], runs: Runs) -> Outcome:
    """What the evidence of all sizes says."""
    first, *others = sizes
    found = {size: across(made[first], made[size]) for size in others}
    differing = {size: apart for size, (_, apart) in found.items() if apart}
    alone = [size for size, (compared, _) in found.items() if not compared]
    equal = [first, *(size for size in others if size not in {*differing, *alone})]
    steps = max((found[size][0] for size in equal[1:]), default=0)
    same = f"the same bits at world sizes {', '.join(map(str, equal))}: {steps} steps compared"
    details = {
        "runs": runs.made,
        "sizes": list(sizes),
        "equal": equal,
        "differences": [
            {"sizes": [first, size], **apart[0].to_json()} for size, apart in differing.items()
        ],
    }
    lines = [
        f"sizes {first} and {size} differ: "
        + evidence.describe(apart[0], (f"size {first}", f"size {size}"))
        for size, apart in differing.items()
    ]
    if len(equal) > 1:
        lines.insert(0, same)
    if alone:
        which = ", ".join(map(str, alone))
        lines.append(
            f"no stream of world size {first} is in size {which}, so nothing could be compared "
            f"there: {judge.WAYS}"
        )
    if differing:
        return Outcome(judge.DIFFERS, "differs", (*lines, SIZES_DIFFER), details)
    if alone:
        return Outcome(judge.NOTHING, "nothing-in-common", tuple(lines), details)
    return Outcome(judge.DONE, "equal", tuple(lines), details)


def across(first: RunEvidence, second: RunEvidence) -> tuple[int, tuple[Difference, ...]]:
    """How many steps were compared between two sizes, and the first difference of each stream.

    A rank of one size has no counterpart in another, but the first: what rank 0 says of the whole
    (losses, norms) is what can be equal. Streams that only one size has are left out.
    """
    compared = 0
    differences: list[Difference] = []
    for stream, ranks in first.streams.items():
        others = second.streams.get(stream, {})
        rank = min((rank for rank in ranks if rank in others), default=None)
        if rank is None:
            continue
        mine = RunEvidence({stream: {rank: ranks[rank]}}, details=first.details)
        its = RunEvidence({stream: {rank: others[rank]}}, details=second.details)
        found = evidence.compare(mine, its)
        compared += min(len(ranks[rank]), len(others[rank]))
        differences.extend(found)
    differences.sort(key=lambda d: -1 if d.step is None else d.step)
    return compared, tuple(differences)
