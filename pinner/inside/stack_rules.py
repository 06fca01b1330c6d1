"""Which facts of a stack can change bits (hard), and which of them differ from a lock: pure."""

from __future__ import annotations

import fnmatch
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from .values import canonical

# Facts that change no bits of a run, by name or pattern, each with its reason. All others are
# hard: a fact that nobody has judged is treated as one that changes bits.
SOFT: Dict[str, str] = {
    "driver": "loads machine code that was compiled elsewhere, and that code has its own digest",
    "driver:*": "as the driver",
    "python": "does no arithmetic of the kernels",
    "host": "another machine of the same kind gives the same bits",
    "host:*": "as the host",
    "os": "no part of any kernel",
    "os:*": "as the operating system",
    "kernel": "the operating system's, no part of any computation",
    "gpu:count": "what each GPU does is decided by the ranks, not by how many there are",
    "gpu:memory": "its size decides nothing that is locked",
}

# Facts of the CPU and of the libraries that compute on it: hard only where there is no GPU, so
# that the evidence comes from the CPU. Elsewhere they differ from host to host and change nothing.
CPU_DISTRIBUTIONS = ("numpy", "scipy", "mkl", "intel-openmp", "jaxlib", "numba", "numexpr")
CPU_ONLY = (
    "cpu",
    "cpu:*",
    "glibc",  # its mathematics
    *CPU_DISTRIBUTIONS,
    "loaded:libmkl*",
    "loaded:libopenblas*",
    "loaded:libgomp*",
    "loaded:libiomp*",
)

# Facts that only a process has which loaded the library. One that never touched CUDA lacks them,
# and that says nothing about the stack (pytorch/pytorch#132464): they are compared where both
# sides have them. All other facts must not depend on what the process has done so far.
ONLY_WHEN_LOADED = "loaded:"

# The processes of one run do not all have the same facts: torchrun sets OMP_NUM_THREADS for its
# ranks and not for itself, and a helper may be denied the GPUs. A locked fact then lists what was
# seen, and any of it is right.
SEPARATOR = " | "
ABSENT = "not there"

_UNKNOWN = (None, "", "unknown")


class Mismatch(NamedTuple):
    """One fact that differs; None stands for a fact that one side does not have."""

    field: str
    locked: Optional[Any]
    here: Optional[Any]

    def row(self) -> Tuple[str, str, str]:
        """Field, locked value and value here, as text."""
        return self.field, _shown(self.locked), _shown(self.here)

    def __str__(self) -> str:
        return f"{self.field}: locked {_shown(self.locked)}, here {_shown(self.here)}"


def hard_mismatches(
    locked: Mapping[str, Any],
    here: Mapping[str, Any],
    allow: Iterable[str] = (),
    partial: bool = False,
) -> List[Mismatch]:
    """The hard facts that differ between a lock and this process, by name.

    locked: the lock's hard facts. here: all facts of the process, or of a part of it that is known
    so far (``partial``): then what is not there yet is not compared.
    allow: names of facts that may differ; a shell pattern (``loaded:*``) names several.
    """
    on_cpu = evidence_from_cpu(locked)
    hard = {name: value for name, value in here.items() if name in locked or is_hard(name, on_cpu)}
    allowed = list(allow)
    found = differences(locked, hard, partial)
    return [each for each in found if not named_by(each.field, allowed)]


def differences(
    locked: Mapping[str, Any], here: Mapping[str, Any], partial: bool = False
) -> List[Mismatch]:
    """The facts that differ, hard or soft.

    A fact without a known value counts as absent. Absent on both sides is no difference; on one
    side it is, but for libraries that only some processes load, and for ``partial`` facts.
    """
    found = []
    for field in sorted(set(locked) | set(here)):
        each = Mismatch(field, _known(locked, field), _known(here, field))
        if not _agrees(each, partial):
            found.append(each)
    return found


def evidence_from_cpu(facts: Mapping[str, Any]) -> bool:
    """Whether the CPU's own arithmetic is in the bits: true where no GPU is named."""
    return not is_known(facts.get("gpu"))


def is_hard(field: str, on_cpu: bool) -> bool:
    """Whether a difference in ``field`` can change the bits of a run."""
    if named_by(field, CPU_ONLY):
        return on_cpu
    return not named_by(field, SOFT)


def is_known(value: Any) -> bool:
    """Whether a fact's value says anything."""
    return value not in _UNKNOWN


def named_by(field: str, patterns: Iterable[str]) -> bool:
    """Whether one of the names or shell patterns stands for ``field``."""
    return any(fnmatch.fnmatchcase(field, pattern) for pattern in patterns)


def _known(facts: Mapping[str, Any], field: str) -> Optional[Any]:
    value = facts.get(field)
    return value if is_known(value) else None


def _agrees(each: Mismatch, partial: bool) -> bool:
    if each.here is None:
        if each.locked is None or partial or each.field.startswith(ONLY_WHEN_LOADED):
            return True
    elif each.locked is None:
        return each.field.startswith(ONLY_WHEN_LOADED)
    elif canonical(each.locked) == canonical(each.here):
        return True
    if not isinstance(each.locked, str) or SEPARATOR not in each.locked:
        return False
    return _shown(each.here) in each.locked.split(SEPARATOR)


def _shown(value: Any) -> str:
    return ABSENT if value is None else str(value)
