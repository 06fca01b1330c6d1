"""What a stage of a bisection is: one search with a question of its own, and how stages follow.

A bisection is a chain of stages over one journal: tags (or versions, or commits), then the choices,
the components between the two neighbours, the versions of the culprit, the confirmation. Each is
asked again after every probe with all that the journal holds (`Record`), and remembers nothing, so
a bisection that was killed goes on where it was. Probes are known by their candidate's id over all
stages: what one stage has tried is never tried again for another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from stackbisect.probe import Candidate, Runtime
from stackbisect.search.verdict import Verdict

if TYPE_CHECKING:
    from stackbisect.journal import Record


@dataclass(frozen=True)
class Context:
    """What stages may look at besides the journal.

    `runtime`: None where nothing is tried, only looked at. `folder`: the bisection's.
    """

    runtime: Runtime | None
    folder: Path


@dataclass(frozen=True)
class Ask:
    """Probe `candidate`; `attempt` counts its probes from 1 over all stages."""

    candidate: Candidate
    attempt: int
    why: str


@dataclass(frozen=True)
class Batch:
    """Start `asks` now; none means wait for what is under way.

    `needless` are under way and can change nothing any more: they may be given up.
    """

    asks: tuple[Ask, ...]
    needless: tuple[Ask, ...] = ()


@dataclass(frozen=True)
class Done:
    """A stage is over. `result` is JSON, kept in the journal; it has at least `status`."""

    result: Mapping[str, Any]


Steps = Batch | Done


class Stage(Protocol):
    """One search. `name` is unique in its bisection, `title` is what people read."""

    @property
    def name(self) -> str:
        """What it is called in the journal."""

    @property
    def title(self) -> str:
        """What people read."""

    def begin(self, record: Record) -> Mapping[str, Any]:
        """What it is about, as JSON: asked once, journalled, then in `record.stages[name]`.

        May look at the machine (an inventory); raises InfrastructureError. `{}` where there is
        nothing to keep.
        """

    def next_steps(self, record: Record, jobs: int, under_way: Sequence[Ask]) -> Steps:
        """What to do next where `jobs` probes may be under way at once."""

    def probes_left(self, record: Record) -> int:
        """The most probes still to come if all goes well; 0 where that cannot be told."""

    def verdict(self, record: Record, candidate: Candidate) -> Verdict | None:
        """What is known of one of its candidates now; None where that needs more probes."""

    def ahead(self, record: Record, under_way: Sequence[Ask], limit: int) -> Sequence[Candidate]:
        """Candidates that may be asked for soon, most probable first: to be fetched meanwhile."""
