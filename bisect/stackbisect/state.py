"""What is known of a bisection at this moment, while a program works on it or not."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from stackbisect import journal, report_chain
from stackbisect.by_hand import shown
from stackbisect.by_hand.verdicts import is_by_hand
from stackbisect.journal import Record
from stackbisect.stage import Context, Stage
from stackbisect.stages import chain
from stackbisect.stages.search import Search


def state(folder: Path) -> dict[str, Any]:
    """The state as JSON values. Raises UsageError and JournalError.

    `probes_left` and `seconds_left` are what is expected of the stage that is searched now; None
    where that cannot be told yet.
    """
    record = journal.read(folder)
    if is_by_hand(record.header):
        return shown.state(folder, record)
    running = journal.in_use(folder)
    search, first = Search.of(record.header), chain.first_search(record)
    stage = chain.current(record, Context(None, folder))
    done = record.answer is not None or stage is None
    at_work = "running" if running else "stopped"
    left = 0 if done or stage is None else _left(record, stage)
    return {
        "name": folder.name,
        "state": str((record.answer or {}).get("status", "done")) if done else at_work,
        "stage": None if done or stage is None else {"name": stage.name, "title": stage.title},
        "probes": len(record.probes),
        "probes_left": left,
        "seconds_left": _seconds_left(record, left),
        "between": _between(first, search),
        "known": [
            {"stage": name, "title": report_chain.title(name), "result": text}
            for name, text in _known(record)
        ],
        "under_way": _under_way(record) if running else None,
        "stopped": record.stopped,
        "verdicts": {
            candidate.label: None if verdict is None else verdict.kind
            for candidate, verdict in zip(search.candidates, search.verdicts(first), strict=True)
        },
    }


def _left(record: Record, stage: Stage) -> int | None:
    """The most probes to come; None where nothing is known of it."""
    begun = stage.name == journal.SEARCH or stage.name in record.stages
    return (stage.probes_left(record) or None) if begun else None


def _seconds_left(record: Record, left: int | None) -> float | None:
    """The time these take if they take as long as those that ended."""
    if left is None or (left and not record.probes):
        return None
    if not left:
        return 0.0
    spent = [probed.result.ended - probed.result.started for probed in record.probes]
    jobs = max(int(record.header.setup.get("jobs", 1)), 1)
    return round(sum(spent) / len(spent) * math.ceil(left / jobs), 1)


def _between(record: Record, search: Search) -> list[str] | None:
    """The narrowest pair of labels that the change is known to lie between."""
    labels = [candidate.label for candidate in search.candidates]
    pair = record.conclusions.get(search.name, {}).get("pair")
    if pair is not None:
        return [labels[position] for position in pair]
    if search.noise is not None:
        return None
    known = search.verdicts(record)
    first = next((p for p, verdict in enumerate(known) if verdict is not None), None)
    testable = [p for p, verdict in enumerate(known) if verdict is not None and verdict.testable]
    if first not in testable or len(known) - 1 not in testable or known[first] == known[-1]:
        return None
    left = max(p for p in testable if known[p] == known[first])
    right = min((p for p in testable if p > left and known[p] == known[-1]), default=None)
    return None if right is None else [labels[left], labels[right]]


def _known(record: Record) -> Iterator[tuple[str, str]]:
    """The stages behind the search that are over, each with its result in a few words."""
    for name, result in record.conclusions.items():
        if name != journal.SEARCH:
            yield name, report_chain.in_short(name, result)


def _under_way(record: Record) -> list[str]:
    return [each.label for _, each in sorted(record.under_way.items())]


def probes(record: Record) -> list[dict[str, Any]]:
    """Every finished probe as JSON values, in order."""
    return [
        {
            "probe": probed.number,
            "stage": probed.stage,
            "candidate": probed.label,
            "attempt": probed.attempt,
            "status": probed.result.status,
            "exit_code": probed.result.exit_code,
            "digest": probed.result.evidence.digest or None,
            "reason": probed.result.reason,
            "started": _iso(probed.result.started),
            "seconds": round(probed.result.ended - probed.result.started, 3),
            "log": probed.result.log,
        }
        for probed in record.probes
    ]


def _iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, timezone.utc).isoformat(timespec="seconds")
