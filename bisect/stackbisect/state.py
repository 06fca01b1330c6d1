"""What is known of a bisection at this moment, while a program works on it or not."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from stackbisect import bisection, journal
from stackbisect.journal import Record


def state(folder: Path) -> dict[str, Any]:
    """The state as JSON values. Raises UsageError and JournalError."""
    record = journal.read(folder)
    running = journal.in_use(folder)
    known = bisection.verdicts(record)
    done = record.answer is not None
    at_work = "running" if running else "stopped"
    labels = [candidate.label for candidate in record.header.candidates]
    testable = [p for p, verdict in enumerate(known) if verdict is not None and verdict.testable]
    between = None
    if known[0] is not None and known[-1] is not None and testable:
        left = max((p for p in testable if known[p] == known[0]), default=0)
        right = min((p for p in testable if p > left and known[p] == known[-1]), default=len(known))
        between = [labels[left], labels[right]] if right < len(known) else None
    return {
        "name": folder.name,
        "state": str((record.answer or {}).get("status", "done")) if done else at_work,
        "probes": len(record.probes),
        "probes_left": 0 if done else bisection.probes_left(record),
        "between": between,
        "under_way": _under_way(record) if running else None,
        "stopped": record.stopped,
        "verdicts": {
            label: None if verdict is None else verdict.kind
            for label, verdict in zip(labels, known, strict=True)
        },
    }


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
