"""Decides what Inductor asks: by the lock, by what this process decided before, or by rule."""

from __future__ import annotations

import threading
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ... import values
from ..triton.decide import Invalid, Live, nearest
from . import identity
from .lines import Entry, Fields, Line, Lines, Taken, choice_line
from .question import Question


class Policy(NamedTuple):
    """How this process decides.

    enforcing: whether a lock is in force.
    on_miss: "fallback", "error" or "tune", for keys that are not in the lock.
    kernel: name to the kernel's part of the pins, or None.
    """

    enforcing: bool
    on_miss: str
    kernel: Callable[[str], Optional[Dict[str, Any]]]


class Decision(NamedTuple):
    """What to take. how: "forced", "fallback", or "again" (this process took it before)."""

    live: Live
    how: str
    entry: Optional[Entry]


class Chooser:
    """The Inductor chooser of one process."""

    def __init__(self, policy: Policy, lines: Lines) -> None:
        self.policy = policy
        self.lines = lines
        self._decided: Dict[Tuple[str, str, str], Tuple[str, Line]] = {}
        self._locked: Dict[str, Dict[Tuple[str, str], Entry]] = {}
        self._graph = threading.local()

    # -- before a decision ----------------------------------------------------------------------

    def decide(
        self,
        question: Question,
        live: Sequence[Live],
        make: Optional[Callable[[Fields], Optional[Live]]] = None,
    ) -> Optional[Decision]:
        """What to take, or None: the library decides, as it would.

        live: what the library offers, not empty. make: builds a candidate that the library would
        only find by searching, from its fields; None where these are not such a candidate.
        Raises InvalidPin or MissedPin, after the ledger line.
        """
        if question.refusal:
            return self._by_rule(live, "refused") if self.policy.enforcing else None
        before = self._decided.get(question.identity)
        if before is not None:
            found = _find(before[0], live) or (make and make(before[1]["config"]))
            if found:
                return Decision(found, "again", None)
        if not self.policy.enforcing:
            return None
        entry = self.entry(question)
        if entry is not None:
            return Decision(self._match(question, entry, live, make), "forced", entry)
        return self._missed(question, live, make is not None)

    def entry(self, question: Question) -> Optional[Entry]:
        """The locked entry of a question."""
        if question.kernel not in self._locked:
            record = self.policy.kernel(question.kernel) or {}
            entries = record.get("entries", ())
            self._locked[question.kernel] = {(e.get("source", ""), e["key"]): e for e in entries}
        return self._locked[question.kernel].get((question.source, question.text))

    def _match(
        self,
        question: Question,
        entry: Entry,
        live: Sequence[Live],
        make: Optional[Callable[[Fields], Optional[Live]]],
    ) -> Live:
        wanted = entry["config"]
        found = _find(values.canonical(wanted), live) or (make and make(wanted))
        if found:
            return found
        near = nearest(wanted, list(live))
        invalid = Invalid(
            "the locked config %s is not among the %d that Inductor offers; the nearest is %s. "
            "Record again, or bring back what offered it (backends, search space, versions)"
            % (values.canonical(wanted), len(live), near.text),
            [candidate.fields for candidate in live],
            near.fields,
            wanted,
        )
        raise self.lines.invalid(question, invalid) from None

    def _missed(
        self, question: Question, live: Sequence[Live], searching: bool
    ) -> Optional[Decision]:
        if len(live) == 1 and not searching:
            return None
        if self.policy.on_miss == "tune":
            return None
        if self.policy.on_miss == "error":
            raise self.lines.missed(question)
        return self._by_rule(live, "fallback")

    def _by_rule(self, live: Sequence[Live], how: str) -> Decision:
        """A library's kernel before generated ones, then the first in serialised order."""
        texts = identity.texts_of_extern(live) or tuple(each.text for each in live)
        found = _find(min(texts), live)
        assert found is not None
        return Decision(found, how, None)

    # -- after a decision -----------------------------------------------------------------------

    def settle(self, question: Question, taken: Taken) -> None:
        """Write down what was taken; `how` is "tuned" where the library decided by timing."""
        if question.refusal:
            self.lines.refused(question, question.refusal)
            return
        line = choice_line(question, taken)
        if taken.in_graph and hasattr(self._graph, "lines"):
            self._graph.lines.append(line)
        before = self._decided.get(question.identity)
        if before is not None and (taken.how == "again" or before[0] == taken.live.text):
            return
        self._decided[question.identity] = (taken.live.text, line)
        if taken.how == "tuned" and self.policy.enforcing:
            taken = taken._replace(how="missed")
        self.lines.choice(question, taken)

    # -- the decisions of one compiled graph ----------------------------------------------------

    def begin_graph(self) -> None:
        """Count the decisions from here on to the graph that is compiled next."""
        if not hasattr(self._graph, "lines"):
            self._graph.lines = []

    def end_graph(self) -> List[Line]:
        """The decisions since `begin_graph`, as lines without `how`."""
        found: List[Line] = self._graph.__dict__.pop("lines", [])
        return found


def _find(text: str, live: Sequence[Live]) -> Optional[Live]:
    return next((candidate for candidate in live if candidate.text == text), None)
