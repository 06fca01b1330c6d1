"""The last stage: the pair of the answer once more, in turns (A B A B), with four fresh probes.

Probes of the two sides were made hours apart. In turns, on one host, a host that drifted between
them cannot look like a change of the stack: its bits would not go back and forth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stackbisect.probe import Candidate
from stackbisect.search.verdict import Ends, Reading, Rule, Verdict, judge, read
from stackbisect.stage import Ask, Batch, Done, Steps

if TYPE_CHECKING:
    from stackbisect.journal import Probed, Record

NAME = "confirm"
TURNS = 2


@dataclass(frozen=True)
class Confirm:
    """`good` and `bad` are the two sides; `ends` is what their bits must be."""

    good: Candidate
    bad: Candidate
    ends: Ends
    rule: Rule
    name: str = NAME
    title: str = "both sides once more, in turns"

    def begin(self, record: Record) -> Mapping[str, Any]:
        """The two sides."""
        return {"good": self.good.label, "bad": self.bad.label}

    def next_steps(self, record: Record, jobs: int, under_way: Sequence[Ask]) -> Steps:
        """One probe after the other, whatever `jobs` says: the order is the point."""
        done = _turns(record)
        if len(done) == len(self._order):
            return Done(self._result(done))
        if under_way:
            return Batch(())
        side = self._order[len(done)]
        attempt = len(record.seen().get(side.id, ())) + 1
        word = "good" if side is self.good else "bad"
        return Batch((Ask(side, attempt, f"the {word} side in turn"),))

    def probes_left(self, record: Record) -> int:
        """Exactly so many."""
        return len(self._order) - len(_turns(record))

    def verdict(self, record: Record, candidate: Candidate) -> Verdict | None:
        """What its probes of this stage say."""
        mine = [p.result for p in _turns(record) if p.candidate == candidate.id]
        return judge(mine, self.ends, self.rule)

    def ahead(self, record: Record, under_way: Sequence[Ask], limit: int) -> Sequence[Candidate]:
        """Both were there already."""
        return ()

    @property
    def _order(self) -> tuple[Candidate, ...]:
        return (self.good, self.bad) * TURNS

    def _result(self, done: Sequence[Probed]) -> dict[str, Any]:
        readings = [read(probed.result, self.rule, self.ends.shape) for probed in done]
        expected = (self.ends.good, self.ends.bad) * TURNS
        faults = [
            self._fault(place, reading)
            for place, (reading, value) in enumerate(zip(readings, expected, strict=True))
            if reading.value != value
        ]
        untestable = any(reading.value is None for reading in readings)
        status = "untestable" if untestable else "contradicted" if faults else "confirmed"
        return {
            "status": status,
            "reason": "; ".join(faults),
            "good": [reading.value for reading in readings[0::2]],
            "bad": [reading.value for reading in readings[1::2]],
            "good_label": self.good.label,
            "bad_label": self.bad.label,
            "turns": [
                {
                    "side": "good" if place % 2 == 0 else "bad",
                    "probe": probed.number,
                    "verdict": self._kind(reading),
                }
                for place, (probed, reading) in enumerate(zip(done, readings, strict=True))
            ],
        }

    def _kind(self, reading: Reading) -> str:
        kinds = {None: "untestable", self.ends.good: "good", self.ends.bad: "bad"}
        return kinds.get(reading.value, "third")

    def _fault(self, place: int, reading: Reading) -> str:
        label = self._order[place].label
        turn = "first" if place < 2 else "second"
        if reading.value is None:
            return f"{label} could not be tested in its {turn} turn: {reading.reason}"
        kinds = {self.ends.good: "the good", self.ends.bad: "the bad"}
        bits = kinds.get(reading.value, "neither the good nor the bad")
        return f"{label} gave {bits} bits in its {turn} turn"


def _turns(record: Record) -> list[Probed]:
    return [probed for probed in record.probes if probed.stage == NAME]
