"""The ledger lines of the Inductor chooser: choices, settings, and what went wrong."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from ... import faults, values
from ..triton.decide import Invalid, Live
from .question import Question

Line = Dict[str, Any]
Fields = Dict[str, Any]
Entry = Dict[str, Any]
Timings = Sequence[Tuple[Fields, float]]


class Taken(NamedTuple):
    """A decision that was made.

    alternatives: how many were on offer.
    how: "tuned" (by timing), "disk", "forced", "fallback", "again", "cached", ….
    timings: (encoded config, milliseconds) of what was measured.
    entry: the locked entry that decided, if one did.
    in_graph: whether a compile cache that holds the graph holds this decision.
    """

    live: Live
    alternatives: int
    how: str
    timings: Timings = ()
    entry: Optional[Entry] = None
    in_graph: bool = True


class Code(NamedTuple):
    """What a decision became: generated C++ or machine code.

    spec: 16 hex digits of what it was made for; digest: ``sha256:…``, None without a binary.
    """

    config: Fields
    spec: str
    digest: Optional[str]
    options: Fields
    entry: Optional[Entry]


class Lines:
    """Writes one ledger line for each fact, and says each fault once. write: takes a line."""

    def __init__(self, write: Callable[[Line], None], now: Callable[[], str]) -> None:
        self._write = write
        self._now = now
        self._said: Set[Any] = set()

    def choice(self, question: Question, taken: Taken) -> None:
        """A decision that was just made, or that a compile cache held."""
        line = choice_line(question, taken)
        line.update(how=taken.how, time=self._now())
        if taken.timings:
            line["timings"] = [[c, "inf" if t == float("inf") else t] for c, t in taken.timings]
        note = _grown(taken)
        if note and self._first("grown", question.identity):
            line["notes"] = [note]
        self._write(line)

    def code(self, question: Question, made: Code) -> None:
        """What a decision became, once; drift where the lock knows it otherwise."""
        if not self._first("code", question.identity, made.spec, made.digest):
            return
        self._write(
            {
                "t": "code",
                "chooser": "inductor",
                "kernel": question.kernel,
                "source": question.source,
                "key": question.key,
                "config": made.config,
                "spec": made.spec,
                "code": made.digest,
                "options": made.options,
            }
        )
        drift = _drift(made)
        if drift:
            self.problem("drift", question, drift, config=made.config, spec=made.spec)

    def setting(self, name: str, value: Any, held: str, text: str) -> None:
        """A switch of the library that bears on its choices; said once in a process."""
        if self._first("setting", name):
            self._write(
                {
                    "t": "setting",
                    "chooser": "inductor",
                    "name": name,
                    "value": values.encode(value),
                    "held": held,
                    "text": text,
                    "time": self._now(),
                }
            )

    def invalid(self, question: Question, invalid: Invalid) -> faults.InvalidPin:
        """A locked entry that cannot be forced; the error to raise."""
        if self._first("invalid", question.identity, str(invalid)):
            more: Line = {"key": question.key}
            if invalid.config is not None:
                more["config"] = invalid.config
            if invalid.nearest is not None:
                more.update(nearest=invalid.nearest, candidates=invalid.candidates)
            self.problem("invalid", question, str(invalid), **more)
        return faults.InvalidPin("%s (key %s): %s" % (question.kernel, question.text, invalid))

    def missed(self, question: Question) -> faults.MissedPin:
        """A key that is not in the lock where that is an error; the error to raise."""
        text = (
            "no entry for this key, and misses are errors (--on-miss error). "
            "Record it, or allow the fallback"
        )
        if self._first("missed", question.identity):
            self.problem("missed", question, text, key=question.key)
        return faults.MissedPin("%s (key %s): %s" % (question.kernel, question.text, text))

    def refused(self, question: Question, why: str) -> None:
        """A decision that cannot be a pin."""
        if self._first("refused", question.kernel, why):
            self.problem("refused", question, "cannot be a pin: " + why)

    def elsewhere(self, kernel: str, text: str) -> None:
        """A decision that was made past the chooser."""
        if self._first("elsewhere", kernel, text):
            self._write(_problem("elsewhere", kernel, text))

    def bypass(self, question: Question, config: Fields, text: str) -> None:
        """A decision that the lock holds was made otherwise, past the chooser."""
        if self._first("bypass", question.identity):
            self.problem("bypass", question, text, key=question.key, config=config)

    def problem(self, kind: str, question: Question, text: str, **more: Any) -> None:
        """Anything that the coverage counts against the run."""
        self._write({**_problem(kind, question.kernel, text), **more})

    def _first(self, *what: Any) -> bool:
        if what in self._said:
            return False
        self._said.add(what)
        return True


def choice_line(question: Question, taken: Taken) -> Line:
    """The part of a choice's line that is the same wherever and however it is made."""
    return {
        "t": "choice",
        "chooser": "inductor",
        "kernel": question.kernel,
        "source": question.source,
        "key": question.key,
        "config": taken.live.fields,
        "alternatives": taken.alternatives,
    }


def _problem(kind: str, kernel: str, text: str) -> Line:
    return {"t": "problem", "kind": kind, "chooser": "inductor", "kernel": kernel, "text": text}


def _grown(taken: Taken) -> str:
    before = None if taken.entry is None else taken.entry.get("alternatives")
    now = taken.alternatives
    if before is None or before == now:
        return ""
    verb = "grew" if now > before else "shrank"
    return "the candidate set %s from %d to %d; still pinned" % (verb, before, now)


def _drift(made: Code) -> str:
    if made.entry is None:
        return ""
    locked = dict(zip(made.entry.get("specs", ()), made.entry.get("code", ()))).get(made.spec)
    parts: List[str] = []
    if None not in (locked, made.digest) and locked != made.digest:
        parts.append("the same config, other code")
    before: Fields = made.entry.get("options") or {}
    now = made.options
    parts.extend(
        "%s %s → %s" % (name, values.readable(before[name]), values.readable(now[name]))
        for name in sorted(set(before) & set(now))
        if values.canonical(before[name]) != values.canonical(now[name])
    )
    return ", ".join(parts)
