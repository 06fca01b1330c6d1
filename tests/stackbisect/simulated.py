"""A bisection of several stages over simulated stacks: the journal is real, the loop is short."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stackbisect import journal
from stackbisect.probe import Candidate, EvidenceOptions
from stackbisect.stage import Ask, Context, Done
from stackbisect.stages import chain
from tests.fakes.stacks import Simulated, Values

KINDS = ("distribution", "package", "library", "environment")


def names(count: int) -> list[str]:
    """So many component ids, of all kinds in turn."""
    return [f"{KINDS[place % len(KINDS)]}:c{place:02}" for place in range(count)]


def tables(ids: Sequence[str], before: int = 2, after: int = 2) -> list[Values]:
    """Stacks in which every component changes at one place: from 1.0 to 2.0."""
    return [dict.fromkeys(ids, "1.0")] * before + [dict.fromkeys(ids, "2.0")] * after


def header(count: int, **setup: Any) -> journal.Header:
    """A bisection of so many candidates, 24.01, 24.02 and so on."""
    candidates = tuple(Candidate(f"id-{p}", f"24.{p + 1:02}", p) for p in range(count))
    return journal.Header(
        command=("python", "train.py"),
        workdir="/home/me/run",
        verdict="evidence",
        evidence=EvidenceOptions(),
        time_limit=None,
        candidates=candidates,
        setup={"runtime": "simulated", "depth": "versions", "files": False, **setup},
        runtime={},
        excluded=(),
        notes=(),
        again=("stackbisect", "run", "--fresh", "--name", "b", "--", "python", "train.py"),
        created="2026-01-01T00:00:00+00:00",
    )


def begin(folder: Path, runtime: Simulated, **setup: Any) -> journal.Journal:
    """A new journal over the runtime's tables."""
    return journal.create(folder, header(len(runtime.tables), **setup))


def go(
    held: journal.Journal,
    runtime: Simulated,
    *,
    jobs: int = 1,
    draw: random.Random | None = None,
    until: str = "",
) -> journal.Record:
    """Go on to the end, or to a stage; with several jobs `draw` says which probe ends next."""
    context = Context(runtime, held.folder)
    with held:
        while (stage := chain.current(held.record, context)) is not None:
            if stage.name == until:
                break
            if stage.name not in held.record.stages:
                held.begin_stage(stage.name, stage.begin(held.record), 0.0)
            held.conclude(stage.name, _through(held, stage, runtime, jobs, draw), 0.0)
    return held.record


def _through(
    held: journal.Journal,
    stage: Any,
    runtime: Simulated,
    jobs: int,
    draw: random.Random | None,
) -> Mapping[str, Any]:
    under_way: dict[int, Ask] = {}
    for _ in range(1000):
        steps = stage.next_steps(held.record, jobs, list(under_way.values()))
        if isinstance(steps, Done):
            return steps.result
        assert stage.probes_left(held.record) >= 0
        for ask in steps.asks:
            begun = Counter(each.candidate.id for each in under_way.values())[ask.candidate.id]
            done = len(held.record.seen().get(ask.candidate.id, ()))
            assert ask.attempt == begun + done + 1
            number = held.start(ask.candidate, ask.attempt, 0.0, stage.name)
            under_way[number] = ask
        assert under_way, "nothing to wait for"
        assert len(under_way) <= jobs
        stage.ahead(held.record, list(under_way.values()), 4)
        number = draw.choice(list(under_way)) if draw else next(iter(under_way))
        ask = under_way.pop(number)
        folder = f"probes/{number:04d}"
        (held.folder / folder / "session" / "ledger").mkdir(parents=True)
        result = replace(runtime.run(ask.candidate, None), log=f"{folder}/log")
        held.finish(number, ask.candidate, ask.attempt, result, stage.name)
        stage.verdict(held.record, ask.candidate)
    raise AssertionError(f"stage {stage.name} does not end")
