"""Invented histories: candidates whose probes answer as a text says, and a search over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from stackbisect.probe import Evidence, ProbeResult
from stackbisect.search.probing import Step, Try, next_step
from stackbisect.search.verdict import Rule

EVIDENCE = Rule("evidence")
STEPS = 4


def ran(bits: str, code: int = 0, steps: int = STEPS) -> ProbeResult:
    """A probe that left `steps` steps of evidence in two streams; `bits` names their contents."""
    streams = {
        name: {"0": tuple(f"sha256:{bits}{name}{step}" for step in range(steps))}
        for name in ("loss", "norm")
    }
    return ProbeResult("ran", code, "", Evidence(streams), {}, {}, 0.0, 1.0, "")


def untestable(reason: str = "it did not start") -> ProbeResult:
    """A probe that the runtime could not make."""
    return ProbeResult("untestable", None, reason, Evidence(), {}, {}, 0.0, 1.0, "")


def probe(kind: str, attempt: int) -> ProbeResult:
    """One probe of a candidate of some kind.

    `g`, `b` and any other letter: those bits every time. `x`: not to be started. `f`: the command
    fails. `h`: half of the evidence. `~`: other bits at every try.
    """
    if kind == "x":
        return untestable()
    if kind == "f":
        return ran("f", code=1)
    if kind == "h":
        return ran("g", steps=STEPS // 2)
    if kind == "~":
        return ran(f"unstable-{attempt}")
    return ran(kind)


@dataclass
class Searched:
    """A finished search: where it ended and what was tried, in order."""

    step: Step
    tried: list[int] = field(default_factory=list)


def search(
    kinds: Sequence[str],
    ids: Sequence[str] | None = None,
    rule: Rule = EVIDENCE,
    answer: Callable[[str, int], ProbeResult] = probe,
    seen: Mapping[str, Sequence[ProbeResult]] | None = None,
) -> Searched:
    """Run the search over a history, from what was seen already, to its end."""
    names = list(ids) if ids is not None else [str(position) for position in range(len(kinds))]
    results: dict[str, list[ProbeResult]] = {name: list(v) for name, v in (seen or {}).items()}
    tried: list[int] = []
    while len(tried) <= 4 * len(kinds) + 8:
        step = next_step(names, results, rule)
        if not isinstance(step, Try):
            return Searched(step, tried)
        mine = results.setdefault(names[step.position], [])
        assert step.attempt == len(mine) + 1
        tried.append(step.position)
        mine.append(answer(kinds[step.position], step.attempt))
    raise AssertionError(f"the search does not end: {''.join(kinds)} {tried}")
