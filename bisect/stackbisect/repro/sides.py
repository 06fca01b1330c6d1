"""The two stacks that are asked for: a bisection's, interpreters, images, or sets of variables."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pinner.launch import session_dir
from stackbisect import journal
from stackbisect.by_hand.verdicts import is_by_hand
from stackbisect.errors import UsageError
from stackbisect.journal import Record
from stackbisect.probe import Candidate
from stackbisect.repro.stacks import CandidateStack, PythonStack, Stack
from stackbisect.runtimes import choose
from stackbisect.sessions import lock_step
from stackbisect.spaces import environment
from stackbisect.spaces.components import DERIVED
from stackbisect.stage import Context
from stackbisect.stages import chain
from stackbisect.stages.confirm import Confirm

GOOD, BAD = "good", "bad"


@dataclass(frozen=True)
class Sides:
    """Both stacks, and what is known of them. culprit, diagnose: as repro.toml has them."""

    good: Stack
    bad: Stack
    argv: tuple[str, ...]
    culprit: str = ""
    diagnose: tuple[str, ...] = ()


# -- this machine ----------------------------------------------------------------------------------


def of_interpreters(
    good: str, bad: str, argv: Sequence[str], environ: Mapping[str, str], workdir: Path
) -> Sides:
    """Two Pythons of this machine: interpreters, or the folders of environments."""
    found = [
        PythonStack(name, _interpreter(f"--{name}-python", text, workdir), environ, workdir)
        for name, text in ((GOOD, good), (BAD, bad))
    ]
    return Sides(found[0], found[1], tuple(argv))


def _interpreter(option: str, text: str, workdir: Path) -> Path:
    path = workdir / Path(text).expanduser()
    place = path / "bin" / "python" if path.is_dir() else path
    named = None if "/" in text else shutil.which(text)
    if not place.is_file() and named is not None:
        return Path(named)
    if not place.is_file():
        raise UsageError(f"{option} {text}: expected an interpreter or an environment, found none")
    return place


def of_variables(
    good: Sequence[str],
    bad: Sequence[str],
    argv: Sequence[str],
    environ: Mapping[str, str],
    workdir: Path,
) -> Sides:
    """This machine's `python` under two sets of variables (NAME=VALUE, or NAME as it is here)."""
    axis = environment.Axis(tuple(good), tuple(bad))
    axis.check(environ)
    base = {name: value for name, value in environ.items() if name not in axis.names}
    found = []
    for name, texts in ((GOOD, good), (BAD, bad)):
        given = environment.read(f"--env-{name}", texts)
        values = {each: environ[each] if v is None else v for each, v in given.items()}
        found.append(PythonStack(name, None, base, workdir, values))
    return Sides(found[0], found[1], tuple(argv))


# -- containers ------------------------------------------------------------------------------------


@contextlib.contextmanager
def of_images(
    candidates: tuple[Candidate, Candidate],
    setup: Mapping[str, Any],
    argv: Sequence[str],
    environ: Mapping[str, str],
    workdir: Path,
) -> Iterator[Sides]:
    """Two images; what is made for them is gone afterwards. `setup` is that of a bisection."""
    folder = workdir / journal.ROOT / ".extract"
    runtime = choose.runtime(setup, folder, environ)
    try:
        good, bad = (
            CandidateStack(name, runtime, candidate, workdir)
            for name, candidate in zip((GOOD, BAD), candidates, strict=True)
        )
        yield Sides(good, bad, tuple(argv))
    finally:
        runtime.close()


# -- a finished bisection --------------------------------------------------------------------------


@contextlib.contextmanager
def of_bisection(
    folder: Path, argv: Sequence[str], environ: Mapping[str, str], tell: Callable[[str], object]
) -> Iterator[Sides]:
    """The pair that a bisection ended with; `argv` is empty where its own command is meant."""
    record = journal.read(folder)
    header = record.header
    if is_by_hand(header):
        raise UsageError(
            f"{folder.name} goes by hand, so that its stacks are not known here: "
            "give --good-python and --bad-python, images or variables"
        )
    good, bad = pair(record, folder)
    workdir = Path(header.workdir)
    if not workdir.is_dir():
        raise UsageError(f"{workdir}, where the command ran, is not there any more")
    with journal.hold(folder):
        runtime = choose.runtime(header.setup, folder, environ, tell)
        try:
            stacks = [
                CandidateStack(
                    name,
                    runtime,
                    candidate,
                    workdir,
                    hidden_pythonpath=session_dir.hidden_pythonpath(environ),
                    env=choose.command_env(header.setup, environ),
                    variables=_variables(candidate),
                )
                for name, candidate in ((GOOD, good), (BAD, bad))
            ]
            yield Sides(
                stacks[0],
                stacks[1],
                tuple(argv) or header.command,
                culprit(record),
                ("stackbisect", "report", folder.name),
            )
        finally:
            runtime.close()


def pair(record: Record, folder: Path) -> tuple[Candidate, Candidate]:
    """The two stacks that differ least. Raises UsageError where the bisection did not find any."""
    if record.answer is None:
        raise UsageError(
            f"{folder.name} has no answer yet; go on with: stackbisect resume {folder.name}"
        )
    last = [*chain.stages(record, Context(None, folder))][-1]
    if isinstance(last, Confirm):
        found = last.good, last.bad
    else:
        between = chain.between(record)
        if between is None:
            raise UsageError(f"{folder.name} found no change: {record.answer['answer']}")
        found = between.good, between.bad
    if any(lock_step(candidate) is not None for candidate in found):
        raise UsageError(
            f"{folder.name}: {record.answer['answer']}: no library computes anything else, so that "
            f"no call of one shows it; the lock to keep is named by: stackbisect report "
            f"{folder.name}"
        )
    return found


def culprit(record: Record) -> str:
    """What the bisection found, in a sentence."""
    assert record.answer is not None
    return str(record.answer["answer"])


def _variables(candidate: Candidate) -> dict[str, str]:
    """The variables that make a candidate what it is, as far as they may be written down."""
    base = candidate.details.get(DERIVED, {}).get("base", candidate.to_json())
    if environment.VARIABLES not in base["details"]:
        return {}
    given = environment.resolved(candidate)[1]
    return {name: value for name, value in given.items() if value is not None}
