"""Invented histories: candidates whose probes answer as a text says, and a search over them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from stackbisect.probe import Evidence, ProbeResult
from stackbisect.search import probing
from stackbisect.search.probing import DEFAULT, Batch, Outcome, Policy, Step, Steps, Try, next_step
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


@cache
def probe(kind: str, attempt: int) -> ProbeResult:
    """One probe of a candidate of some kind.

    `g`, `b` and any other letter: those bits every time. `x`: not to be started. `f`: the command
    fails. `h`: half of the evidence. `~`: other bits at every try. `1`, `2`, `3`: good, bad or
    third bits at the first try and other bits at every later one. `4`: good bits at the first try
    and not to be started later.
    """
    if kind in "123":
        return ran("gbt"[int(kind) - 1] if attempt == 1 else f"unstable-{attempt}")
    if kind == "4":
        return ran("g") if attempt == 1 else untestable()
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
    *,
    answer: Callable[[str, int], ProbeResult] = probe,
    seen: Mapping[str, Sequence[ProbeResult]] | None = None,
    policy: Policy = DEFAULT,
) -> Searched:
    """Run the search over a history, from what was seen already, to its end."""
    names = list(ids) if ids is not None else [str(position) for position in range(len(kinds))]
    results: dict[str, list[ProbeResult]] = {name: list(v) for name, v in (seen or {}).items()}
    tried: list[int] = []
    while len(tried) <= 5 * len(kinds) + 8:
        step = next_step(names, results, rule, policy)
        if not isinstance(step, Try):
            return Searched(step, tried)
        mine = results.setdefault(names[step.position], [])
        assert step.attempt == len(mine) + 1
        tried.append(step.position)
        mine.append(answer(kinds[step.position], step.attempt))
    raise AssertionError(f"the search does not end: {''.join(kinds)} {tried}")


@dataclass
class Together:
    """A finished search with several probes at a time.

    `finished`: positions in the order their probes ended. `rounds`: how often the search was asked.
    `needless`: probes that it called needless, each once.
    """

    step: Outcome
    finished: list[int] = field(default_factory=list)
    rounds: int = 0
    needless: list[Try] = field(default_factory=list)


Asked = Callable[..., Steps]


def search_together(
    kinds: Sequence[str],
    jobs: int,
    draw: random.Random | None,
    *,
    policy: Policy = DEFAULT,
    next_steps: Asked = probing.next_steps,
    give_up: bool = False,
) -> Together:
    """Run a search with `jobs` probes at a time.

    `draw` says which of them ends next; None: all end together. `give_up`: needless probes are.
    """
    names = [str(position) for position in range(len(kinds))]
    seen: dict[str, list[ProbeResult]] = {}
    under_way: list[Try] = []
    done = Together(probing.Same("not asked"))
    started: Counter[tuple[int, int]] = Counter()
    while done.rounds <= 6 * len(kinds) + 12:
        step = next_steps(names, seen, EVIDENCE, policy, jobs=jobs, under_way=under_way)
        done.rounds += 1
        if not isinstance(step, Batch):
            done.step = step
            return done
        assert set(step.needless) <= set(under_way)
        done.needless += [each for each in step.needless if each not in done.needless]
        if give_up:
            under_way = [each for each in under_way if each not in step.needless]
            started.subtract((each.position, each.attempt) for each in step.needless)
        under_way += step.tries
        started.update((each.position, each.attempt) for each in step.tries)
        assert under_way, f"nothing to wait for: {''.join(kinds)} {done.finished}"
        assert len(under_way) <= jobs
        assert max(started.values()) == 1, "one try was started twice"
        ended = under_way if draw is None else [draw.choice(under_way)]
        under_way = [each for each in under_way if each not in ended]
        for each in ended:
            done.finished.append(each.position)
            mine = seen.setdefault(names[each.position], [])
            mine.append(probe(kinds[each.position], each.attempt))
    raise AssertionError(f"the search does not end: {''.join(kinds)} {done.finished}")
