"""Runs two commands in turns, each in fresh processes, and says what the second costs more."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pinner.compare import step_times
from pinner.compare.step_times import NotComparable, Steps, Tax
from pinner.inside.policy_rules import accepts
from pinner.inside.step_times import VARIABLE
from pinner.launch import judge, one_run, session_dir
from pinner.launch.record import Say
from pinner.policy.profiles import load

BASELINE, DETERMINISTIC = "baseline", "deterministic"
_NO_STEPS = (
    "{name}: no process marked a step: use a torch optimizer or call pinner.fingerprint in each "
    "step, and let the process come to its own end"
)


@dataclass(frozen=True)
class Options:
    """What `pinner tax` was asked for. runs: of each command. warmup: steps dropped of each run.
    same: streams whose first value must be equal in all runs."""

    baseline: tuple[str, ...]
    deterministic: tuple[str, ...]
    runs: int = 5
    warmup: int = 3
    same: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What came of it; `lines` are for people."""

    exit: int
    status: str
    lines: tuple[str, ...]
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return {
            "exit": self.exit,
            "status": self.status,
            "text": "\n".join(self.lines),
            **self.details,
        }


class _Unusable(Exception):
    """A run that failed, or that marked no step."""

    def __init__(self, exit_code: int, status: str, text: str) -> None:
        super().__init__(text)
        self.outcome = Outcome(exit_code, status, (text,))


def measure(options: Options, environ: Mapping[str, str], say: Say) -> Outcome:
    """Times both commands. Raises `SessionError`."""
    folder = Path(tempfile.mkdtemp(prefix="pinner-tax-"))
    commands = {BASELINE: options.baseline, DETERMINISTIC: options.deterministic}
    runs: dict[str, list[Steps]] = {BASELINE: [], DETERMINISTIC: []}
    try:
        for name in order(options.runs):
            number = len(runs[name]) + 1
            say(f"{name} {number} of {options.runs}")
            run = _run(f"{name}-{number}", commands[name], folder, environ, say)
            runs[name].append(run)
        pairs = list(zip(runs[BASELINE], runs[DETERMINISTIC], strict=True))
        found = step_times.tax(pairs, options.warmup, options.same)
    except _Unusable as error:
        return error.outcome
    except NotComparable as error:
        return Outcome(judge.NOTHING, "not-comparable", (str(error),))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sides = {name: step_times.in_force(of_side) for name, of_side in runs.items()}
    return Outcome(judge.DONE, "measured", tuple(told(found, sides)), _details(found, sides))


def order(runs: int) -> list[str]:
    """In turns, and turned round in each pair, so that a machine that slows down favours nobody."""
    names = []
    for number in range(runs):
        pair = [BASELINE, DETERMINISTIC]
        names += pair if number % 2 == 0 else pair[::-1]
    return names


def told(found: Tax, sides: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The lines for people; the settings of the baseline stand beside the ratio."""
    ratio = found.ratio
    ours, theirs = (f"{seconds * 1e3:.4g} ms" for seconds in found.seconds)
    lines = [
        f"deterministic / baseline: {ratio.median:.3f} "
        f"({ratio.low:.3f} to {ratio.high:.3f}, {ratio.confidence:.1%}); "
        f"median step {theirs} / {ours}, {found.steps} steps a run by {found.mark}",
    ]
    if found.same:
        lines.append("the same in the first step of all runs: " + ", ".join(found.same))
    else:
        lines.append(
            "note: nothing shows that both had one batch: fingerprint it, "
            'pinner.fingerprint("batch", inputs), and name it with --same batch'
        )
    if found.other:
        lines.append("differs in the first step: " + ", ".join(found.other))
    both = also_in_baseline(sides)
    if both:
        lines.append(
            "note: the baseline has these too, so that their cost is not in the ratio: "
            + ", ".join(both)
        )
    return [*lines, *_settings_lines(sides)]


def also_in_baseline(sides: Mapping[str, Mapping[str, str]]) -> list[str]:
    """What the deterministic profile asks for and the baseline has alike."""
    accepted = {rule.name: rule.as_json() for rule in load("deterministic").of(None)}
    return [
        f"{name}={value}"
        for name, value in sides[BASELINE].items()
        if sides[DETERMINISTIC].get(name) == value
        and name in accepted
        and (accepts(accepted[name], value) or accepts(accepted[name], _plain(value)))
    ]


def _plain(text: str) -> Any:
    """What a switch's value was before it was text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _settings_lines(sides: Mapping[str, Mapping[str, str]]) -> list[str]:
    ours, theirs = sides[BASELINE], sides[DETERMINISTIC]
    names = sorted(ours.keys() | theirs.keys())
    differing = [name for name in names if ours.get(name) != theirs.get(name)]
    lines = ["settings that differ, baseline → deterministic:" if differing else ""]
    lines += [
        f"  {n}: {ours.get(n, '(not set)')} → {theirs.get(n, '(not set)')}" for n in differing
    ]
    same = [name for name in names if name not in differing]
    lines += ["settings of both:" if same else "", *(f"  {name}: {ours[name]}" for name in same)]
    return [line for line in lines if line]


def _run(
    name: str, argv: Sequence[str], folder: Path, environ: Mapping[str, str], say: Say
) -> Steps:
    place = folder / f"{name}.steps"
    place.mkdir()
    job = one_run.Job(argv=tuple(argv), cublaslt="off", output=2)
    settings = replace(job.settings("observe", name, environ), evidence=False)
    session = session_dir.create(folder / name, settings)
    seen = one_run.run(session, job, {**environ, VARIABLE: str(place)}, say)
    if seen.ended.code != 0:
        text = seen.ended.failure or f"{name}: the command ended with {seen.ended.code}"
        raise _Unusable(judge.FAILED, "command-failed", text)
    found = [json.loads(path.read_text()) for path in sorted(place.glob("*.json"))]
    if not found:
        raise _Unusable(judge.NOTHING, "no-steps", _NO_STEPS.format(name=name))
    first = min(found, key=_place)
    return Steps(first["times"], first["first"], first["switches"], first["variables"])


def _place(found: Mapping[str, Any]) -> tuple[int, bool, int]:
    """The lowest rank, and of its processes the one that trains: helpers have its rank, too."""
    marks = sum(len(times) for times in found["times"].values())
    return int(found["rank"]), step_times.OPTIMIZER not in found["times"], -marks


def _details(found: Tax, sides: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    return {
        "ratio": vars(found.ratio),
        "mark": found.mark,
        "steps": found.steps,
        "seconds": {BASELINE: found.seconds[0], DETERMINISTIC: found.seconds[1]},
        "same": list(found.same),
        "differs": list(found.other),
        "settings": {name: dict(values) for name, values in sides.items()},
        "also_in_baseline": also_in_baseline(sides),
    }
