"""Judges cases in both stacks: many at once in each, every one more than once."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stackbisect.repro import try_many
from stackbisect.repro.stacks import Ran, Stack

Files = Mapping[str, bytes]

# How a case differs between the stacks. A smaller case is the same finding only where it differs in
# the same way: numbers; where something is not finite; nothing but signs of zeros and what NaNs
# hold; dtype or shape.
NUMBERS, PLACES, BITS, SHAPE = "numbers", "places", "bits", "shape"

_SCRIPT = "try_many.py"
_GIB = 1 << 30


@dataclass(frozen=True)
class Look:
    """What every evaluation of a case gave in one stack (`try_many.look_at`)."""

    form: str
    raw: str
    plain: str
    places: str


@dataclass(frozen=True)
class Failed:
    """Why a case gives no bits of its own in a stack."""

    why: str


def finding(good: Look | Failed, bad: Look | Failed) -> str | None:
    """How a case differs between the stacks; None where it does not. Pure."""
    if isinstance(good, Failed) or isinstance(bad, Failed) or good == bad:
        return None
    if good.form != bad.form:
        return SHAPE
    if good.places != bad.places:
        return PLACES
    return NUMBERS if good.plain != bad.plain else BITS


@dataclass
class Judge:
    """Both stacks. A case is the files of each of its evaluations: two or more, or none.

    memory: bytes that one evaluation may take. refused: why the first case shows nothing.
    """

    good: Stack
    bad: Stack
    gpu: bool = False
    memory: int = 4 * _GIB
    clock: Callable[[], float] = time.monotonic
    refused: str = ""
    limit_s: float | None = field(init=False, default=None)

    def findings(
        self, cases: Sequence[Sequence[Files]], seconds: float | None = None
    ) -> list[str | None]:
        """How each case differs (`finding`). Raises InfrastructureError."""
        end = None if seconds is None else self.clock() + seconds
        first = self.limit_s is None
        asked = [place for place, runs in enumerate(cases) if runs]
        good = self._of(self.good, cases, asked, end)
        places = [place for place, look in enumerate(good) if isinstance(look, Look)]
        bad = self._of(self.bad, cases, places, end)
        if first:
            self.refused = _refused((self.good.name, good[0]), (self.bad.name, bad[0]))
        return [finding(one, other) for one, other in zip(good, bad, strict=True)]

    def _of(
        self,
        stack: Stack,
        cases: Sequence[Sequence[Files]],
        places: Sequence[int],
        end: float | None,
    ) -> list[Look | Failed]:
        """What some of the cases look like, each at its place."""
        found: list[Look | Failed] = [Failed("it was not run")] * len(cases)
        looks_there = self._looks(stack, [cases[place] for place in places], end)
        for place, look in zip(places, looks_there, strict=True):
            found[place] = look
        return found

    def _looks(
        self, stack: Stack, cases: Sequence[Sequence[Files]], end: float | None
    ) -> list[Look | Failed]:
        left = None if end is None else end - self.clock()
        if not cases or (left is not None and left <= 0):
            return [Failed("no time was left")] * len(cases)
        ran = stack.run(self._files(cases), ("python", _SCRIPT), time_limit=left)
        if self.limit_s is None:
            self.limit_s = _limit(ran)
        return looks(ran, len(cases))

    def _files(self, cases: Sequence[Sequence[Files]]) -> dict[str, bytes]:
        """The plan and what it needs; content that several files have is sent once."""
        files = {_SCRIPT: Path(try_many.__file__).read_bytes()}
        plan: list[list[dict[str, str]]] = []
        for runs in cases:
            plan.append([{name: _blob(files, data) for name, data in run.items()} for run in runs])
        about = {"runs": plan, "limit_s": self.limit_s, "gpu": self.gpu, "memory": self.memory}
        files[try_many.PLAN] = json.dumps(about).encode()
        return files


def _blob(files: dict[str, bytes], data: bytes) -> str:
    name = f"blobs/{hashlib.sha256(data).hexdigest()}"
    files[name] = data
    return name


def looks(ran: Ran, cases: int) -> list[Look | Failed]:
    """What a stack says of so many cases, those that it did not come to included. Pure."""
    text = ran.files.get(try_many.RESULTS, b"").decode(errors="replace")
    found = [_look(line) for line in text.split("\n")[:-1][:cases]]
    why = ran.failure or "it was not run"
    return [*found, *([Failed(why)] * (cases - len(found)))]


def _limit(ran: Ran) -> float | None:
    first = ran.files.get(try_many.RESULTS, b"").partition(b"\n")[0]
    try:
        return try_many.limit(json.loads(first)["seconds"])
    except (ValueError, KeyError):
        return None


def _look(line: str) -> Look | Failed:
    try:
        result: dict[str, Any] = json.loads(line)
    except ValueError:
        return Failed(f"it printed {line[:80]!r}")
    if "failed" in result:
        return Failed(str(result["failed"]))
    first, *others = (
        Look(json.dumps(each["form"]), each["raw"], each["plain"], each["places"])
        for each in result["looks"]
    )
    if any(other != first for other in others):
        return Failed("it does not repeat itself")
    return first


def _refused(good: tuple[str, Look | Failed], bad: tuple[str, Look | Failed]) -> str:
    for name, look in (good, bad):
        if isinstance(look, Failed):
            return f"in the {name} stack: {look.why}"
    return "both stacks gave the same bits"
