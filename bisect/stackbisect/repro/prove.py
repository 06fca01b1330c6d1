"""Shows that a repro's folder is one: good bits in one stack, other bits in the other, every time.

Both stacks take turns, each run in a fresh process, so that what drifts on the machine meanwhile
meets both of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from stackbisect.repro import form
from stackbisect.repro.stacks import Stack

Say = Callable[[str], object]
Digests = Mapping[str, str]

TIMES = 3

# Why a folder is no repro, as one word.
FAILS, SILENT, UNSTABLE, EQUAL, OTHER = "fails", "silent", "unstable", "equal", "other"


@dataclass(frozen=True)
class Proof:
    """It is one. good, bad: the digest of each output; `times` runs in each stack gave them."""

    good: Digests
    bad: Digests
    times: int


@dataclass(frozen=True)
class NoProof:
    """It is none. reason: one word for programs. text: why, and what it may need."""

    reason: str
    text: str


def files(folder: Path) -> dict[str, bytes]:
    """What is in a repro's folder, by name."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def prove(
    content: Mapping[str, bytes],
    good: Stack,
    bad: Stack,
    say: Say,
    *,
    command: tuple[str, ...] = ("python", form.SCRIPT),
    times: int = TIMES,
    expected: Mapping[str, Digests] | None = None,
    time_limit: float | None = None,
) -> Proof | NoProof:
    """Run a folder `times` times in each stack.

    content: its files (`files`). expected: what repro.toml says that each stack gives, by the
    stack's name. Raises InfrastructureError.
    """
    seen: dict[str, list[Digests]] = {good.name: [], bad.name: []}
    for number in range(1, times + 1):
        for stack in (good, bad):
            say(f"the repro in the {stack.name} stack, {number} of {times}")
            ran = stack.run(content, command, time_limit=time_limit)
            if ran.failure:
                return NoProof(FAILS, f"in the {stack.name} stack the repro {_said(ran.failure)}")
            try:
                digests = form.printed(ran.stdout)
            except form.FormError as error:
                return NoProof(FAILS, f"in the {stack.name} stack: {error}")
            if not digests:
                return NoProof(SILENT, f"in the {stack.name} stack it printed no digest")
            seen[stack.name].append(digests)
        refused = judge(seen[good.name], seen[bad.name], (good.name, bad.name), expected or {})
        if refused is not None:
            return refused
    return Proof(seen[good.name][0], seen[bad.name][0], times)


def judge(
    good: list[Digests],
    bad: list[Digests],
    names: tuple[str, str],
    expected: Mapping[str, Digests],
) -> NoProof | None:
    """Why what both stacks printed so far makes no repro; None where nothing speaks against it.

    Pure.
    """
    for name, runs in zip(names, (good, bad), strict=True):
        for number, digests in enumerate(runs[1:], start=2):
            if digests != runs[0]:
                return NoProof(
                    UNSTABLE,
                    f"the {name} stack does not repeat itself: run {number} printed other bits "
                    f"than run 1 for {_differing(runs[0], digests)}",
                )
    if set(good[0]) != set(bad[0]):
        return NoProof(
            FAILS,
            f"the stacks print other outputs: {', '.join(sorted(good[0]))} in {names[0]}, "
            f"{', '.join(sorted(bad[0]))} in {names[1]}",
        )
    if good[0] == bad[0]:
        return NoProof(
            EQUAL,
            "both stacks gave the same bits, though the operation differed inside the program: it "
            "may need what ran before it, several ranks, another memory layout, or the choice that "
            "the program's tuner made",
        )
    for name, runs in zip(names, (good, bad), strict=True):
        wanted = expected.get(name)
        if wanted and runs[0] != wanted:
            return NoProof(
                OTHER,
                f"the {name} stack gave other bits than {form.TABLE} says for "
                f"{_differing(wanted, runs[0])}",
            )
    return None


def _differing(first: Digests, second: Digests) -> str:
    names = sorted(name for name in {*first, *second} if first.get(name) != second.get(name))
    return ", ".join(names)


def _said(failure: str) -> str:
    return failure.removeprefix("it ")
