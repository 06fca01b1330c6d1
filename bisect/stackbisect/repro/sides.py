"""The two stacks that are asked for: a bisection's, interpreters, images, or sets of variables."""

from __future__ import annotations

import contextlib
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pinner.launch import session_dir
from stackbisect import journal
from stackbisect.by_hand.verdicts import is_by_hand
from stackbisect.errors import UsageError
from stackbisect.journal import Record
from stackbisect.probe import Candidate, ContainerOptions
from stackbisect.repro.stacks import CandidateStack, PythonStack, Stack
from stackbisect.runtimes import choose
from stackbisect.sessions import lock_step
from stackbisect.spaces import environment, window
from stackbisect.spaces.components import DERIVED
from stackbisect.stage import Context
from stackbisect.stages import chain
from stackbisect.stages.confirm import Confirm

GOOD, BAD = "good", "bad"
_SCRATCH = "extract"


@dataclass(frozen=True)
class Sides:
    """Both stacks, and what is known of them.

    culprit, diagnose: as repro.toml has them. scratch: where sessions are made (`CandidateStack`).
    """

    good: Stack
    bad: Stack
    argv: tuple[str, ...]
    culprit: str = ""
    diagnose: tuple[str, ...] = ()
    scratch: Path | None = None


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
    """A Python of this machine under two sets of variables (NAME=VALUE, or NAME as it is here).

    It is the one that the command names by a path, or the one that PATH finds.
    """
    axis = environment.Axis(tuple(good), tuple(bad))
    axis.check(environ)
    base = {name: value for name, value in environ.items() if name not in axis.names}
    found = []
    for name, texts in ((GOOD, good), (BAD, bad)):
        given = environment.read(f"--env-{name}", texts)
        values = {each: environ[each] if v is None else v for each, v in given.items()}
        found.append(PythonStack(name, _named_by(argv, workdir), base, workdir, values))
    return Sides(found[0], found[1], tuple(argv))


def _named_by(argv: Sequence[str], workdir: Path) -> Path | None:
    """The interpreter that a command names by a path: a repro runs in the same one."""
    if not argv or "/" not in argv[0] or not Path(argv[0]).name.startswith("python"):
        return None
    path = workdir / argv[0]
    return path if path.is_file() else None


# -- containers ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Images:
    """Two images, `HOST/NAME:TAG`, and how containers of them start (`ContainerOptions`)."""

    good: str
    bad: str
    options: ContainerOptions = field(default_factory=ContainerOptions)
    platform: str | None = None
    insecure: bool = False


@contextlib.contextmanager
def of_images(
    images: Images,
    argv: Sequence[str],
    environ: Mapping[str, str],
    workdir: Path,
    tell: Callable[[str], object],
) -> Iterator[Sides]:
    """Two images. Their containers are gone afterwards; what was pulled stays."""
    candidates = [
        _image(f"--{name}-image", text, images, environ)
        for name, text in ((GOOD, images.good), (BAD, images.bad))
    ]
    setup = {
        "runtime": "docker",
        "image": candidates[0].details["reference"].partition("@")[0],
        "platform": images.platform,
        "insecure": images.insecure,
        "options": images.options.to_json(),
        "transfer": "auto",
        "image_budget": None,
    }
    # A name of its own: the first probe sweeps away what another program of this name left.
    own = workdir / journal.ROOT / f"{_SCRATCH}-{secrets.token_hex(4)}"
    runtime = choose.runtime(setup, own, environ, tell)
    try:
        good, bad = (
            CandidateStack(name, runtime, candidate, workdir)
            for name, candidate in zip((GOOD, BAD), candidates, strict=True)
        )
        yield Sides(good, bad, tuple(argv))
    finally:
        runtime.close()


def _image(option: str, text: str, images: Images, environ: Mapping[str, str]) -> Candidate:
    try:
        from stackbisect.spaces import docker_login, reference, registry, tags
    except ImportError as error:
        raise UsageError(
            f"images need a registry client ({error}); pip install 'pinner-stackbisect[bisect]'"
        ) from None
    place, slash, last = text.rpartition("/")
    name, _, tag = last.partition(":")
    if "@" in text or not name:
        raise UsageError(f"{option} {text}: expected HOST/NAME:TAG")
    repository = reference.parse(f"{place}{slash}{name}")
    tag = tag or "latest"
    client = registry.Registry(
        repository,
        lambda: docker_login.find(repository.login_key, environ),
        insecure=images.insecure,
    )
    wanted = tags.Wanted(tag, tag, listed=(tag,), platform=images.platform or "")
    try:
        listed = tags.client_tags(client, repository)
        if tag not in listed:
            raise window.no_such(f"{option}: tag {repository.name}", tag, listed)
        return tags.space(client, repository, wanted).candidates[0]
    finally:
        client.close()


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
                    scratch=folder / _SCRATCH,
                )
                for name, candidate in ((GOOD, good), (BAD, bad))
            ]
            yield Sides(
                stacks[0],
                stacks[1],
                tuple(argv) or header.command,
                culprit(record),
                ("stackbisect", "report", folder.name),
                folder / _SCRATCH,
            )
        finally:
            runtime.close()
            shutil.rmtree(folder / _SCRATCH, ignore_errors=True)


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
