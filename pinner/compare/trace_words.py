"""Says in words what the first mismatch of a rank means. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pinner.compare import trace_choices
from pinner.compare import trace_reading as reading_of
from pinner.compare.trace_findings import RankFinding, call, ranks_text, where
from pinner.compare.trace_pair import Mismatch
from pinner.compare.trace_reading import Reading


def in_words(finding: RankFinding, ranks: Sequence[RankFinding]) -> str:
    """What a rank's first mismatch means. ranks: all that were compared, for what arrived."""
    read, mismatch = finding.reading, finding.mismatch
    assert read is not None
    assert mismatch is not None
    event = mismatch.first
    words = _WORDS.get(read.kind)
    if words is not None:
        return words
    if read.kind == reading_of.ORIGIN:
        return _origin(mismatch)
    if read.kind == reading_of.RESULT:
        return _RESULTS.get(event.kind, _RESULTS["step"])
    if read.kind == reading_of.ARRIVED:
        return _arrived(finding, ranks)
    if read.kind == reading_of.REPLACED:
        return (
            f"this is the origin: B calls {mismatch.second.name} where A calls {event.name}, and "
            "it gives other bits"
        )
    first, second = read.writers
    if read.kind == reading_of.UNTRACED:
        return _untraced(read, mismatch)
    if read.kind == reading_of.ASYNC and first is not None:
        return (
            f"{read.tensor} was written by {call(first)} in {where(first)}, which is "
            "asynchronous, and was read before that was complete: wait for it first"
        )
    if first is None or second is None:
        known, name, other = (second, "B", "A") if first is None else (first, "A", "B")
        assert known is not None
        return (
            f"downstream: {read.tensor} differs already; look upstream at {call(known)} in "
            f"{where(known)}, step {known.step}, which wrote it in {name}; nothing that was "
            f"traced in {other} did"
        )
    if first.label != second.label or first.step != second.step:
        return (
            f"downstream: {read.tensor} differs already; look upstream: {call(first)} in "
            f"{where(first)}, step {first.step}, wrote it in A, but {call(second)} in "
            f"{where(second)}, step {second.step}, in B"
        )
    why = first.extra.get("why") or second.extra.get("why")
    return (
        f"downstream: {read.tensor} differs already; look upstream at {call(first)} in "
        f"{where(first)}, step {first.step}, which wrote it and was not hashed"
        + (f" ({why})" if why else "")
    )


_WORDS = {
    reading_of.RANDOM: "this is the origin as far as traced: a random operation with equal inputs; "
    "the state of its random number generator is a suspect (seed, offset, a restore that is "
    "missing, or one draw more or less before it)",
    reading_of.STATE: "the state of a random number generator differs: another seed, a restore "
    "that is missing, or one draw more or less since the state was last equal",
    reading_of.UNWRITTEN: "an operation read uninitialised memory: nothing that was traced wrote "
    "to its input after it was allocated; initialise it, or trace what writes there",
    reading_of.OUTSIDE: "outside the capture: an input differs and nothing that was traced wrote "
    "it (initial weights, data, or something before the window or on another rank): widen the "
    "window or trace more ranks",
}


_RESULTS = {
    "step": "only the result was captured: it differs, and what it was made of was not hashed: "
    "trace at a finer level",
    "grad": "a gradient differs as the optimizer takes it: look at forward, backward and reduction "
    "of this step at a finer level",
    "optim": "what the optimizer wrote differs, and no gradient that was traced does: the update "
    "itself, or the state it had, is the place to look at",
}


def _origin(mismatch: Mismatch) -> str:
    event = mismatch.first
    if not mismatch.inputs:
        return (
            "this is the origin as far as traced: it reads no tensors, so it got other arguments "
            "or made other bits of the same"
        )
    text = "this is the origin: inputs equal, outputs different"
    if trace_choices.is_call(event):
        return text + _chosen(mismatch)
    for name in ("config", "grid"):
        first, second = event.extra.get(name), mismatch.second.extra.get(name)
        if first != second:
            text += f"; its {name} is {_plain(first)} in A and {_plain(second)} in B"
    if event.kind == "module":
        text += "; a module's parameters count as its own unless they are among its inputs"
    return text


def _chosen(mismatch: Mismatch) -> str:
    """Of a call of cuBLASLt, whose digests are those of the operation that made it."""
    first = mismatch.first
    of = f" of {trace_choices.operation(first)}, which made this call and no other"
    choice = trace_choices.choice_of(first, mismatch.second)
    if choice is not None:
        return f"{of}; cuBLASLt computed it by another algorithm: {trace_choices.both(choice)}"
    return (
        f"{of}; cuBLASLt computed it by the same algorithm in both, {trace_choices.same(first)}: "
        "look at its workspace and stream, and at what else the operation does"
    )


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={each}" for key, each in value.items()) or "empty"
    return "not known" if value is None else str(value)


def _untraced(read: Reading, mismatch: Mismatch) -> str:
    first, _ = read.writers
    cause = (
        "a view or copy changes no bits, so something that is not traced wrote to its memory"
        if not mismatch.ins
        else f"{read.tensor} changed between two traced operations"
    )
    if first is None:
        return f"the producer is not traced: {cause}; no writer of it was seen"
    return (
        f"the producer is not traced: {cause}; the last writer seen is {call(first)} in "
        f"{where(first)}, step {first.step}, and its outputs agree: look between the two"
    )


def _arrived(finding: RankFinding, ranks: Sequence[RankFinding]) -> str:
    event = finding.event
    group = event.extra.get("group")
    members = [r for r in group if isinstance(r, int)] if isinstance(group, list) else []
    traced = {found.rank for found in ranks}
    unknown = [rank for rank in members if rank not in traced]
    if event.kind == "p2p":
        return (
            f"what {event.name} received differs, and no traced rank differs before it: the "
            "sender's work is not traced, or the transport changed it; trace the sending rank"
        )
    if unknown:
        return (
            f"{event.name} has equal inputs on the traced ranks and different outputs; "
            f"{ranks_text(unknown)} took part and was not traced: trace more ranks"
        )
    whom = f"all {len(members)} ranks of its group" if members else "all traced ranks"
    return (
        f"this is the origin: the collective {event.name} itself, with equal inputs on {whom} and "
        "different outputs (its algorithm, protocol or order of reduction: see NCCL_ALGO and "
        "NCCL_PROTO)"
    )
