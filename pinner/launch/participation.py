"""Decides who had to take part in a run, and who did not. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pinner.lockfile.ledgers import ProcessRecord


@dataclass(frozen=True)
class Participation:
    """Who took part.

    processes: those that reported, torchrun's agents left out.
    world: the largest world size that was seen, at least 1.
    missing: one line for each that had to report and did not.
    """

    processes: int
    ranks: tuple[int, ...]
    world: int
    missing: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether everybody who had to take part did."""
        return not self.missing


def judge(
    processes: Sequence[ProcessRecord], *, expect: int | None = None, own_rank: int | None = None
) -> Participation:
    """Who took part, and who is missing.

    At least one process must; every rank below a world size that was seen; or, where the user
    knows better, `expect` ranks (processes, where none has a rank).

    own_rank: the rank of the launcher itself, where each rank has a launcher and a session of its
    own: the other ranks report elsewhere.
    """
    working = [process for process in processes if not only_launches(process)]
    ranks = tuple(sorted({p.rank for p in working if p.rank is not None}))
    world = max([1, *(p.world for p in working if p.world is not None)])
    missing = _missing(working, ranks, expect, own_rank)
    return Participation(len(working), ranks, world, missing)


def only_launches(process: ProcessRecord) -> bool:
    """Whether this is torchrun's agent, which imports torch and starts ranks but is none.

    Under srun it has Slurm's rank, which is its node's.
    """
    return any(
        word.endswith(("torchrun", "torch/distributed/run.py", "torch/distributed/launch.py"))
        or word in ("torch.distributed.run", "torch.distributed.launch")
        for word in process.argv[:4]
    )


def _missing(
    working: Sequence[ProcessRecord], ranks: Sequence[int], expect: int | None, own_rank: int | None
) -> tuple[str, ...]:
    if not working:
        return ("no process took part",)
    if expect is not None and not ranks:
        if len(working) >= expect:
            return ()
        return (f"{expect} processes were expected, {len(working)} took part",)
    if expect is not None:
        return _absent(range(expect), ranks, f"{expect} ranks were expected")
    if own_rank is not None:
        return _absent([own_rank], ranks, "this launcher's own")
    absent: dict[str, None] = {}
    for world in sorted({p.world for p in working if p.world is not None}):
        for line in _absent(range(world), ranks, f"WORLD_SIZE was {world}"):
            absent.setdefault(line)
    return tuple(absent)


def _absent(wanted: Sequence[int], ranks: Sequence[int], why: str) -> tuple[str, ...]:
    return tuple(f"rank {rank} never reported ({why})" for rank in wanted if rank not in ranks)
