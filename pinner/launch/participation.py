"""Decides who had to take part in a run, and who did not. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pinner.lockfile.ledgers import ProcessRecord
from pinner.lockfile.schema import Run

# So many absent ranks are named one by one.
_NAMED = 8


@dataclass(frozen=True)
class Participation:
    """Who took part.

    processes: those that reported, torchrun's agents left out.
    world: the largest world size that was seen, at least 1.
    missing: one line for each that had to report and did not.
    hosts: on how many hosts ranks reported, at least 1.
    """

    processes: int
    ranks: tuple[int, ...]
    world: int
    missing: tuple[str, ...]
    hosts: int = 1

    @property
    def complete(self) -> bool:
        """Whether everybody who had to take part did."""
        return not self.missing


@dataclass(frozen=True)
class Place:
    """The place of a launcher that is one of several, each with a session of its own."""

    rank: int
    world: int


def judge(
    processes: Sequence[ProcessRecord], *, expect: int | None = None, own: Place | None = None
) -> Participation:
    """Who took part, and who is missing.

    At least one process must; every rank below a world size that was seen; or, where the user
    knows better, `expect` ranks, whichever (processes, where none has a rank).

    own: where other launchers have the other ranks, only what is this one's own must report.
    """
    working = [process for process in processes if not only_launches(process)]
    ranks = tuple(sorted({p.rank for p in working if p.rank is not None}))
    worlds = sorted({p.world for p in working if p.world is not None})
    missing = _missing(len(working), ranks, worlds, expect, own)
    hosts = {p.host for p in working if p.rank is not None}
    return Participation(len(working), ranks, max([1, *worlds]), missing, max(1, len(hosts)))


def larger(locked: Run, found: Participation) -> str | None:
    """A line where a run has more ranks or hosts than the one that was validated.

    Where there are more, sums are split and added in another order: the pins hold, the evidence
    says nothing of these bits.
    """
    if found.world <= locked.world_size and found.hosts <= locked.hosts:
        return None
    return (
        f"the lock was validated with {_size(locked.world_size, locked.hosts)}, this run has "
        f"{_size(found.world, found.hosts)}: its choices are forced all the same, but that this "
        "run repeats has not been shown; record at this size, or compare with --verify"
    )


def _size(ranks: int, hosts: int) -> str:
    return f"{ranks} rank{'s' * (ranks > 1)} on {hosts} host{'s' * (hosts > 1)}"


def _missing(
    working: int, ranks: Sequence[int], worlds: Sequence[int], expect: int | None, own: Place | None
) -> tuple[str, ...]:
    if not working:
        return ("no process took part",)
    if expect is not None:
        return _too_few(expect, len(ranks) or working, "ranks" if ranks else "processes")
    if own is not None:
        # In a world of another size the ranks are not launchers' ranks: torchrun on each node, say.
        mine = [own.rank] if own.world in worlds else []
        return _absent(mine, ranks, "this launcher's own")
    absent: dict[str, None] = {}
    for world in worlds:
        for line in _absent(range(world), ranks, f"WORLD_SIZE was {world}; see --expect"):
            absent.setdefault(line)
    return tuple(absent)


def _too_few(expected: int, found: int, what: str) -> tuple[str, ...]:
    return () if found >= expected else (f"{expected} {what} were expected, {found} took part",)


def _absent(wanted: Sequence[int], ranks: Sequence[int], why: str) -> tuple[str, ...]:
    there = set(ranks)
    absent = [rank for rank in wanted if rank not in there]
    lines = [f"rank {rank} never reported ({why})" for rank in absent[:_NAMED]]
    if len(absent) > _NAMED:
        lines.append(f"and {len(absent) - _NAMED} more ranks")
    return tuple(lines)


def only_launches(process: ProcessRecord) -> bool:
    """Whether this is torchrun's agent, which imports torch and starts ranks but is none.

    Under srun it has Slurm's rank, which is its node's.
    """
    return any(
        word.endswith(("torchrun", "torch/distributed/run.py", "torch/distributed/launch.py"))
        or word in ("torch.distributed.run", "torch.distributed.launch")
        for word in process.argv[:4]
    )
