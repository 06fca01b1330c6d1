"""Which stage of a bisection comes next: read from what is concluded, and from nothing else."""

from __future__ import annotations

from stackbisect.journal import Record
from stackbisect.stage import Context, Stage
from stackbisect.stages.search import Search


def current(record: Record, context: Context) -> Stage | None:
    """The stage to go on with; None where the bisection is over."""
    search = Search.of(record.header)
    return None if search.name in record.conclusions else search
