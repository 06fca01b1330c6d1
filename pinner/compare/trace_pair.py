"""Compares one event with its partner, and leaves out what must not be looked at. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from pinner.compare.trace import Event, Log, Tensor, tensors


def aten(names: str) -> frozenset[str]:
    """Base names of torch's own operations, from words."""
    return frozenset("aten." + name for name in names.split())


def base_name(name: str) -> str:
    """An operation without its overload: `aten.mm.default` is `aten.mm`."""
    return ".".join(name.split(".")[:2]) if name.startswith("aten.") else name


# What stood in the tensor that these write over does not matter.
_OVERWRITE = aten(
    "bernoulli_ cauchy_ copy_ exponential_ fill_ geometric_ log_normal_ normal_ random_ set_ "
    "uniform_ zero_"
)


@dataclass(frozen=True)
class TensorDiff:
    """One tensor of a pair of events that differs. first, second: as the two logs have it."""

    side: str  # "input" or "output"
    first: Tensor
    second: Tensor

    @property
    def path(self) -> str:
        return self.first.path


@dataclass(frozen=True)
class Mismatch:
    """A pair of events that differs.

    inputs: how many tensors it read; what it only writes over is none. hashed: whether both runs
    hashed all of them. unwritten: paths of inputs that were left out because nothing had been
    written there.
    """

    first: Event
    second: Event
    ins: tuple[TensorDiff, ...]
    outs: tuple[TensorDiff, ...]
    inputs: int = 1
    hashed: bool = True
    unwritten: tuple[str, ...] = ()

    @property
    def diffs(self) -> tuple[TensorDiff, ...]:
        return self.ins + self.outs


def compare_pair(first: Event, second: Event, log: Log, other: Log) -> Mismatch | None:
    """What differs between an event and its partner; None where all that was hashed is equal."""
    here, there = read_by(first, log), read_by(second, other)
    ins, hashed = _compare("input", here, there)
    if first.label != second.label and not _same_arguments(first, second):
        ins = ()
    outs, _ = _compare(
        "output", tensors(first, first.outs, log), tensors(second, second.outs, other)
    )
    if unfinished(first) or unfinished(second):
        outs = tuple(diff for diff in outs if _layout(diff.first) != _layout(diff.second))
    return Mismatch(first, second, ins, outs, len(here), hashed) if ins or outs else None


def read_by(event: Event, log: Log) -> dict[str, Tensor]:
    """The tensors that an event read, by path; what it only writes over is none of them."""
    overwritten = _overwritten(event)
    found = tensors(event, event.ins, log)
    return {path: tensor for path, tensor in found.items() if path not in overwritten}


def _same_arguments(first: Event, second: Event) -> bool:
    """Whether an operation under another name takes its tensors as the first one does.

    Not where it was taken apart, or takes the same tensors in another order.
    """
    paths = [sorted(str(row[0]) for row in event.ins) for event in (first, second)]
    digests = [sorted(str(row[1]) for row in event.ins) for event in (first, second)]
    return paths[0] == paths[1] and digests[0] != digests[1]


def plainly_differ(first: Event, second: Event) -> bool:
    """Whether an output differs that both hashed when it was there: a mismatch in any case."""
    if unfinished(first) or unfinished(second):
        return False
    return any(
        a[0] == b[0] and a[1] != b[1] and a[1] is not None and b[1] is not None
        for a, b in zip(first.outs, second.outs, strict=False)
        if len(a) > 1 and len(b) > 1
    )


def _compare(
    side: str, first: dict[str, Tensor], second: dict[str, Tensor]
) -> tuple[tuple[TensorDiff, ...], bool]:
    """What differs, and whether all that both have was hashed."""
    found = []
    hashed = True
    for path, tensor in first.items():
        other = second.get(path)
        if other is None:
            continue
        comparable = tensor.digest is not None and other.digest is not None
        hashed = hashed and comparable
        if comparable and tensor.digest == other.digest:
            continue
        if comparable or _layout(tensor) != _layout(other):
            found.append(TensorDiff(side, tensor, other))
    return tuple(found), hashed


def _layout(tensor: Tensor) -> tuple[str, tuple[int, ...]]:
    return tensor.dtype, tensor.shape


def unfinished(event: Event) -> bool:
    """Whether its outputs were hashed before they were there.

    A writer that leaves out the digests of such tensors has said so: what it hashed can be trusted.
    """
    if not (event.extra.get("uninitialised") or event.extra.get("async")):
        return False
    return all(row[1] is not None for row in (*event.ins, *event.outs) if len(row) > 1)


def _overwritten(event: Event) -> set[str]:
    if base_name(event.name) not in _OVERWRITE:
        return set()
    writes = event.extra.get("writes")
    return set(map(str, writes)) if isinstance(writes, list) and writes else {"0"}


def has_digest(event: Event) -> bool:
    if unfinished(event):
        return False
    return any(len(row) > 1 and row[1] is not None for row in (*event.ins, *event.outs))
