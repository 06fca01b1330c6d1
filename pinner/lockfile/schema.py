"""What a lockfile holds, as frozen dataclasses; values in the tagged form of `inside.values`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pinner.inside.values import Encoded, canonical

VERSION = 1

# So many digests of a stream stand in the lock one by one: a run with other steps is compared as
# far as these go, and a difference among them is named by its step.
HEAD = 16

Scalar = bool | int | float | str
Values = Mapping[str, Encoded]

Chooser = Literal["triton", "inductor", "cublaslt"]
CHOOSERS: tuple[Chooser, ...] = ("triton", "inductor", "cublaslt")
Identity = tuple[str, str, str, str]  # chooser, kernel, source, canonical text of the key

# The one kind of decision that cuBLASLt makes, and the field of its config that stands apart.
MATMUL = "matmul"
BLOB = "blob"

Held = Literal["forced", "recorded", "no"]
HELD: tuple[Held, ...] = ("forced", "recorded", "no")


def place(chooser: str, kernel: str) -> str:
    """A kernel as people read it: Triton's stand for themselves, others follow their chooser."""
    return kernel if chooser == "triton" else f"{chooser} {kernel}".strip()


@dataclass(frozen=True)
class Run:
    """How the lock came to be. ``runs`` counts the validating runs that gave the same evidence."""

    command: tuple[str, ...]
    created: str  # ISO 8601, UTC
    pinner: str  # version that wrote the lock
    sealed: bool = False
    complete: bool = False  # every rank reported and every choice that was seen could be pinned
    runs: int = 0
    world_size: int = 1
    hosts: int = 1  # that its ranks ran on
    conflicts: int = 0  # keys for which the ranks' timings disagreed


@dataclass(frozen=True)
class Stack:
    """The stack of the recording: ``hard`` facts change bits, ``soft`` ones are for the reader."""

    hard: Mapping[str, Scalar] = field(default_factory=dict)
    soft: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True)
class StreamRecord:
    """One stream of one rank.

    digest: chained over all ``steps``. head: the first few digests one by one, so that a shorter
    run can be compared as far as it went. at: the step numbers of the head, and numbers: a digest
    of all step numbers where there are more than the head has; both empty where the steps are
    0, 1, 2, ….
    """

    name: str
    rank: int
    steps: int
    digest: str
    head: tuple[str, ...] = ()
    at: tuple[int, ...] = ()
    numbers: str = ""

    @property
    def numbered_head(self) -> tuple[tuple[int, str], ...]:
        """(step, digest) of the first few steps."""
        return tuple(zip(self.at or range(len(self.head)), self.head, strict=True))


@dataclass(frozen=True)
class Evidence:
    algorithm: str = "sha256"
    steps: int = 0  # of the longest stream
    streams: tuple[StreamRecord, ...] = ()


@dataclass(frozen=True)
class Entry:
    """One locked choice of one chooser.

    ``key`` maps names (of arguments: ``"N"``, ``"x:dtype"``; of a problem: ``"m"``) to values,
    ``config`` holds what was taken: a kernel's meta arguments and launch options, or the fields of
    a library's algorithm. ``source`` is empty where no source of ours was compiled. ``code[i]`` is
    the digest of the machine code observed for the argument specialisation ``specs[i]``; both are
    empty where no binary was made (interpreter) or none is ours (cuBLASLt).
    """

    chooser: Chooser
    kernel: str
    source: str
    key: Values
    config: Values
    alternatives: int
    code: tuple[str, ...] = ()
    specs: tuple[str, ...] = ()
    options: Values = field(default_factory=dict)
    heuristics: Values = field(default_factory=dict)
    note: str = ""

    @property
    def key_text(self) -> str:
        return canonical(self.key)

    @property
    def config_text(self) -> str:
        return canonical(self.config)

    @property
    def identity(self) -> Identity:
        """What makes an entry one of its kind; also the order of entries in the file."""
        return self.chooser, self.kernel, self.source, self.key_text

    @property
    def place(self) -> str:
        """What decides here, as people read it."""
        return place(self.chooser, self.kernel)


@dataclass(frozen=True)
class TritonFallback:
    """The configs to take, first live one first, for a key of ``kernel`` that is not in the
    lock."""

    kernel: str
    configs: tuple[Values, ...]


@dataclass(frozen=True)
class Setting:
    """A switch of a library that decides at run time, as it stood in the recording.

    held: "forced" (enforcing sets it to ``value``), "recorded" (it cannot be set: its value is
    compared), or "no" (it was active and nothing holds it: the lock is not complete).
    """

    chooser: str
    name: str
    value: Encoded
    held: Held
    note: str = ""

    @property
    def identity(self) -> tuple[str, str]:
        return self.chooser, self.name

    @property
    def place(self) -> str:
        return f"{self.chooser} {self.name}"


@dataclass(frozen=True)
class Lock:
    run: Run
    stack: Stack = field(default_factory=Stack)
    policy: Values = field(default_factory=dict)
    evidence: Evidence = field(default_factory=Evidence)
    triton: tuple[Entry, ...] = ()
    fallbacks: tuple[TritonFallback, ...] = ()
    inductor: tuple[Entry, ...] = ()
    cublaslt: tuple[Entry, ...] = ()
    settings: tuple[Setting, ...] = ()
    version: int = VERSION

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The choices of all choosers."""
        return (*self.triton, *self.inductor, *self.cublaslt)

    @property
    def count(self) -> int:
        """How many tables the file counts at its end."""
        return len(self.entries) + len(self.settings)
