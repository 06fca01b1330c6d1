"""The first stage: where along the ordered candidates do the bits change?

One of three searches, by what was asked for: between a good and a bad end (`search.probing`, with a
window where every transition is wanted), back from the bad end alone (`search.gallop`), or with
counts and a posterior where probes are noisy (`search.noisy`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from stackbisect.journal import SEARCH, Header, Record
from stackbisect.probe import Candidate
from stackbisect.search import gallop, noisy, probing
from stackbisect.search.probing import Found, Policy, Same, Try
from stackbisect.search.verdict import EndsFailure, Rule, Verdict
from stackbisect.stage import Ask, Batch, Done, Steps

Outcome = Same | EndsFailure | Found | noisy.Estimate
"""How the search ended."""


@dataclass(frozen=True)
class Search:
    """The search over a bisection's own candidates (a `stage.Stage`).

    `window`: see `probing.Policy`. `back`: there is no good end. `noise`: None where probes of one
    candidate must not differ.
    """

    candidates: tuple[Candidate, ...]
    rule: Rule
    policy: Policy = probing.DEFAULT
    back: bool = False
    noise: noisy.Noise | None = None
    name: str = SEARCH
    title: str = "where the bits change"

    @classmethod
    def of(cls, header: Header) -> Search:
        """The search that a bisection asks for."""
        setup = header.setup
        return cls(
            header.candidates,
            Rule.of("exit-code" if header.verdict == "exit-code" else "evidence", header.command),
            Policy(window=setup.get("all_transitions")),
            back=bool(setup.get("no_good_end")),
            noise=noisy.DEFAULT if setup.get("noisy") else None,
        )

    @property
    def ids(self) -> list[str]:
        """The candidates' ids in their order."""
        return [candidate.id for candidate in self.candidates]

    def begin(self, record: Record) -> Mapping[str, Any]:
        """Nothing to keep: the candidates are in the header."""
        return {}

    def next_steps(self, record: Record, jobs: int, under_way: Sequence[Ask]) -> Steps:
        """What to probe next."""
        step = self._steps(record, jobs, self._tries(under_way))
        if isinstance(step, probing.Batch):
            return Batch(self._asks(step.tries), self._asks(step.needless))
        return Done(self.result(record, step))

    def outcome(self, record: Record) -> Outcome | None:
        """How the search ended; None where it did not yet."""
        step = self._steps(record, 1, ())
        return None if isinstance(step, probing.Batch) else step

    def result(self, record: Record, outcome: Outcome) -> dict[str, Any]:
        """What is kept of the end: `status`, and the `pair` of positions where there is one."""
        if isinstance(outcome, EndsFailure):
            return {"status": "ends_untestable", "end": outcome.end, "reason": outcome.reason}
        if isinstance(outcome, Same):
            return {"status": "not_reproduced", "reason": outcome.reason}
        if isinstance(outcome, Found):
            answer = outcome.answer
            status = "range" if answer.ambiguous else "found"
            return {"status": status, **self._pair(answer.last_good, answer.first_bad)}
        between = self.ids[outcome.last_good + 1 : outcome.first_bad]
        return {
            "status": "found" if outcome.decided and not between else "range",
            **self._pair(outcome.last_good, outcome.first_bad),
            "reason": "" if outcome.decided else self._undecided(record, outcome),
            "noise": self._noise(outcome),
        }

    def probes_left(self, record: Record) -> int:
        """The most probes still to come; in noise, what the budget leaves."""
        seen = record.seen()
        if self.noise is not None:
            if self.noise.budget is None or self.outcome(record) is not None:
                return 0
            return max(self.noise.budget - self._spent(record), 0)
        ask = gallop.probes_left if self.back else probing.probes_left
        return ask(self.ids, seen, self.rule, self.policy)

    def verdict(self, record: Record, candidate: Candidate) -> Verdict | None:
        """What is known of one candidate."""
        return self.verdicts(record)[self.ids.index(candidate.id)]

    def verdicts(self, record: Record) -> list[Verdict | None]:
        """Every candidate's verdict so far. In noise: what most of its probes say."""
        ids, seen = self.ids, record.seen()
        if self.noise is not None:
            if not (seen.get(ids[0]) and seen.get(ids[-1])):
                return [None] * len(ids)
            counts = noisy.count(ids, seen, self.rule)
            if isinstance(counts, EndsFailure):
                return [None] * len(ids)
            return [_in_noise(each) for each in counts]
        ask = gallop.verdicts if self.back else probing.verdicts
        return ask(ids, seen, self.rule, self.policy)

    def ahead(self, record: Record, under_way: Sequence[Ask], limit: int) -> Sequence[Candidate]:
        """Candidates that may be asked for soon."""
        if self.noise is not None:
            return ()
        ask = gallop.ahead if self.back else probing.ahead
        found = ask(
            self.ids,
            record.seen(),
            self.rule,
            self.policy,
            jobs=max(len(under_way), 1),
            under_way=self._tries(under_way),
            limit=limit,
        )
        return [self.candidates[each.position] for each in found]

    def _steps(
        self, record: Record, jobs: int, under_way: Sequence[Try]
    ) -> probing.Batch | Outcome:
        seen = record.seen()
        if self.noise is not None:
            return noisy.next_steps(
                self.ids, seen, self.rule, self.noise, jobs=jobs, under_way=under_way
            )
        ask = gallop.next_steps if self.back else probing.next_steps
        return ask(self.ids, seen, self.rule, self.policy, jobs=jobs, under_way=under_way)

    def _asks(self, tries: Sequence[Try]) -> tuple[Ask, ...]:
        return tuple(Ask(self.candidates[t.position], t.attempt, t.why) for t in tries)

    def _tries(self, asks: Sequence[Ask]) -> tuple[Try, ...]:
        return tuple(Try(ask.candidate.position, ask.attempt, ask.why) for ask in asks)

    def _spent(self, record: Record) -> int:
        ids = set(self.ids)
        return sum(probed.candidate in ids for probed in record.probes)

    def _pair(self, last_good: int, first_bad: int) -> dict[str, Any]:
        return {
            "pair": [last_good, first_bad],
            "last_good": self.candidates[last_good].label,
            "first_bad": self.candidates[first_bad].label,
        }

    def _undecided(self, record: Record, outcome: noisy.Estimate) -> str:
        return (
            f"{self._spent(record)} probes did not tell the place: a change in this range has a "
            f"probability of {outcome.confidence:.0%}, no change one of {outcome.none:.0%}"
        )

    def _noise(self, outcome: noisy.Estimate) -> dict[str, Any]:
        """The posterior and the counts behind it, by label; candidates never tried are left out."""
        labels = [candidate.label for candidate in self.candidates]
        return {
            "decided": outcome.decided,
            "confidence": outcome.confidence,
            "none": outcome.none,
            "good_rate": outcome.good_rate,
            "bad_rate": outcome.bad_rate,
            "posterior": {
                label: mass
                for label, mass in zip(labels, outcome.posterior, strict=True)
                if mass >= 0.0005
            },
            "counts": {
                label: {"good": each.good, "bad": each.bad}
                for label, each in zip(labels, outcome.counts, strict=True)
                if each.good or each.bad
            },
        }


def _in_noise(counts: noisy.Counts) -> Verdict | None:
    tried = counts.good + counts.bad
    if not tried:
        return Verdict("untestable") if counts.skipped else None
    if counts.good == counts.bad:
        return None
    kind: Literal["good", "bad"] = "good" if counts.good > counts.bad else "bad"
    return Verdict(kind, "", f"{max(counts.good, counts.bad)} of {tried} probes")
