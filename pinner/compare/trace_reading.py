"""Reads the first mismatch of a rank: is it the origin, or where to look instead. Pure.

| what is seen | reading |
|---|---|
| inputs equal, outputs differ | the origin |
| the same of a collective or a receive | what arrived differs; ranks decide together whose it is |
| the same of a random operation | the state of its generator is a suspect |
| the same of a view or a copy | these change no bits: something that is not traced wrote there |
| inputs differ, their last writer agreed | the same: written to between the two |
| inputs differ, their last writer is another one, or was not compared | downstream of that |
| inputs differ, and nobody here wrote them | outside the capture |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pinner.compare.trace import Event, Log, Tensor
from pinner.compare.trace_pair import Mismatch, aten, base_name, read_by
from pinner.compare.trace_writers import is_trivial, last_writer

ORIGIN, REPLACED, RANDOM, STATE = "origin", "replaced", "random", "random-state"
ARRIVED, UNTRACED, DOWNSTREAM, OUTSIDE = "arrived", "untraced", "downstream", "outside"
UNWRITTEN, ASYNC, RESULT = "uninitialised", "asynchronous", "result"

_RANDOM = aten(
    "rand rand_like randn randn_like randint randint_like randperm bernoulli bernoulli_ "
    "multinomial normal normal_ uniform uniform_ random_ exponential_ geometric_ cauchy_ "
    "log_normal_ poisson binomial dropout dropout_ native_dropout alpha_dropout feature_dropout "
    "rrelu rrelu_with_noise _fused_dropout _standard_gamma _sample_dirichlet"
)
# What writes tensors itself; modules, reductions and streams only show what was written.
_WRITERS = ("op", "kernel", "collective", "p2p", "optim")
_INPUTS_LOOKED_AT = 4

Finder = Callable[[list[Tensor], bool], Event | None]


@dataclass(frozen=True)
class Reading:
    """What a mismatch means. writers: who wrote the tensor in question last, in each run.

    tensor: which one that is, as "input 0".
    """

    kind: str
    tensor: str = ""
    writers: tuple[Event | None, Event | None] = (None, None)


def read(mismatch: Mismatch, first: Log, second: Log) -> Reading:
    """The reading of a rank's first mismatch; looks through the logs before it for writers."""
    return judge(
        mismatch, first, second, _finder(first, mismatch.first), _finder(second, mismatch.second)
    )


def judge(
    mismatch: Mismatch, first: Log, second: Log, find_first: Finder, find_second: Finder
) -> Reading:
    """The same with the search for writers given: `find(tensors, only_writers)`."""
    event = mismatch.first
    if mismatch.ins:
        return _changed_inputs(mismatch, find_first, find_second)
    if event.kind == "random":
        return Reading(STATE)
    if mismatch.unwritten:
        return Reading(UNWRITTEN, "input " + mismatch.unwritten[0])
    both_trivial = is_trivial(event) and is_trivial(mismatch.second)
    if both_trivial and mismatch.inputs and mismatch.hashed:
        here, there = read_by(event, first), read_by(mismatch.second, second)
        writers = _last(find_first, [*here.values()]), _last(find_second, [*there.values()])
        return Reading(UNTRACED, f"input {next(iter(here))}", writers)
    if event.kind in ("collective", "p2p"):
        return Reading(ARRIVED)
    if base_name(event.name) in _RANDOM or event.extra.get("random"):
        return Reading(RANDOM)
    if event.label != mismatch.second.label:
        return Reading(REPLACED)
    seen = mismatch.inputs > 0 or event.kind in ("op", "kernel")
    return Reading(ORIGIN if seen and mismatch.hashed else RESULT)


def _changed_inputs(mismatch: Mismatch, find_first: Finder, find_second: Finder) -> Reading:
    for diff in mismatch.ins[:_INPUTS_LOOKED_AT]:
        writers = _last(find_first, [diff.first]), _last(find_second, [diff.second])
        if writers == (None, None):
            continue
        return Reading(_by_writers(*writers), "input " + diff.path, writers)
    return Reading(OUTSIDE, "input " + mismatch.ins[0].path)


def _by_writers(first: Event | None, second: Event | None) -> str:
    if first is None or second is None:
        return DOWNSTREAM
    if first.extra.get("async") or second.extra.get("async"):
        return ASYNC
    if first.label != second.label or first.step != second.step:
        return DOWNSTREAM
    hashed = all(row[1] is not None for event in (first, second) for row in event.outs)
    return UNTRACED if hashed and first.outs and second.outs else DOWNSTREAM


def _last(find: Finder, wanted: list[Tensor]) -> Event | None:
    return find(wanted, True) or find(wanted, False)


def _finder(log: Log, event: Event) -> Finder:
    def find(wanted: list[Tensor], only_writers: bool) -> Event | None:
        def useful(writer: Event) -> bool:
            return not only_writers or writer.kind in _WRITERS

        return last_writer(log, wanted, event.line, useful)

    return find
