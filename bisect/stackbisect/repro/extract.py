"""From two stacks and a command to a folder that shows it: locate, capture, shrink, prove, write.

Nothing is handed over that was not run in both stacks, several times, in fresh processes. Where a
step cannot be made the answer says why, and no folder is written.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from pinner import durable
from stackbisect.errors import UsageError
from stackbisect.repro import differing, form, locate, machine, prove, words
from stackbisect.repro.locate import NoSite, Site
from stackbisect.repro.prove import NoProof, Proof
from stackbisect.repro.stacks import Stack, folder

Say = Callable[[str], object]

# As the other commands of stackbisect have them.
EXTRACTED, NOT_REPRODUCED, NO_REPRO, UNTESTABLE = 0, 1, 2, 4
_STATUS = {
    EXTRACTED: "extracted",
    NOT_REPRODUCED: "not_reproduced",
    NO_REPRO: "no_repro",
    UNTESTABLE: "untestable",
}
_EXITS = {
    locate.EQUAL: NOT_REPRODUCED,
    locate.UNSTABLE: UNTESTABLE,
    locate.FAILED: UNTESTABLE,
}


class Case(Protocol):
    """A captured call, whole or made smaller.

    kind, operation: as repro.toml has them. needs: distributions that repro.py imports. elements:
    of all its inputs. notes: what else README.md has to say, in paragraphs.
    """

    @property
    def kind(self) -> str:
        """One of `form.KINDS`."""

    @property
    def operation(self) -> str:
        """As its library calls it."""

    @property
    def needs(self) -> Sequence[str]:
        """Distributions that repro.py imports."""

    @property
    def gpu(self) -> bool:
        """Whether it takes one."""

    @property
    def elements(self) -> int:
        """How many its inputs have."""

    @property
    def notes(self) -> Sequence[str]:
        """Paragraphs for README.md."""

    def files(self) -> Mapping[str, bytes]:
        """repro.py and what lies beside it."""


@dataclass(frozen=True)
class NoCase:
    """The call cannot be captured, or not be made a program of its own; says why."""

    text: str


@dataclass(frozen=True)
class Smaller:
    """What shrinking came to. steps: that succeeded, of `tries`."""

    case: Case
    steps: int
    tries: int


class Capture(Protocol):
    """Captures the call of a site in a stack; `place` is a folder that is not there yet.

    `other` is the other stack: a kernel whose source is not the same there is no call of one
    library alone, and what it is launched with may have been chosen otherwise.
    """

    def __call__(
        self,
        stack: Stack,
        argv: Sequence[str],
        site: Site,
        place: Path,
        *,
        other: Stack,
        time_limit: float | None,
    ) -> Case | NoCase:
        """Run the command once more, and take what the call got."""


class Shrink(Protocol):
    """Makes a case smaller while both stacks keep to bits of their own.

    `kept` is told of every case that is smaller than the one before: an interrupt loses none.
    """

    def __call__(
        self, case: Case, good: Stack, bad: Stack, *, kept: Callable[[Smaller], None], say: Say
    ) -> Smaller:
        """The smallest case that was found."""


@dataclass(frozen=True)
class Asked:
    """What `stackbisect extract` was asked for.

    argv: the user's command. out: the folder to write, which must not be there. shrink: None where
    the call is to stay as it is. culprit: what a bisection found, in words. times: how often the
    folder is run in each stack. scratch: where sessions are made (`CandidateStack`).
    """

    argv: tuple[str, ...]
    out: Path
    capture: Capture
    shrink: Shrink | None
    culprit: str = ""
    diagnose: tuple[str, ...] = ()
    times: int = prove.TIMES
    time_limit: float | None = None
    scratch: Path | None = None


@dataclass(frozen=True)
class Outcome:
    """What came of it. text is for people; its first line is the answer."""

    exit: int
    text: str
    site: Site | None = None
    form: form.Form | None = None
    out: Path | None = None

    @property
    def status(self) -> str:
        """One word, for programs."""
        return _STATUS[self.exit]

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        found = self.form
        return {
            "exit_code": self.exit,
            "status": self.status,
            "text": self.text,
            "site": None if self.site is None else self.site.to_json(),
            "folder": None if self.out is None else str(self.out),
            "operation": None if found is None else found.finding.operation,
            "digests": {each.name: dict(each.digests) for each in found.stacks} if found else {},
        }


def extract(good: Stack, bad: Stack, asked: Asked, say: Say) -> Outcome:
    """Do all of it. Raises UsageError, InfrastructureError and TraceError."""
    if asked.out.exists():
        raise UsageError(f"{asked.out}: expected a folder that is not there yet; give another -o")
    _check_place(asked.out)
    with folder(asked.scratch) as work:
        return _extract(good, bad, asked, work, say)


def _extract(good: Stack, bad: Stack, asked: Asked, work: Path, say: Say) -> Outcome:
    limit = asked.time_limit
    site = locate.locate(good, bad, asked.argv, work / "traces", say, time_limit=limit)
    if isinstance(site, NoSite):
        return Outcome(_EXITS.get(site.reason, NO_REPRO), site.text)
    say(f"they part {site.text}")
    say(f"capturing {site.name} in the {good.name} stack")
    case = asked.capture(good, asked.argv, site, work / "capture", other=bad, time_limit=limit)
    if isinstance(case, NoCase):
        return Outcome(NO_REPRO, f"{site.text}: {case.text}", site)
    if asked.shrink is not None:
        whole = prove.prove(case.files(), good, bad, say, times=1, time_limit=limit)
        if isinstance(whole, NoProof):
            return _no_repro(site, whole)
    smaller, proof = _proved(_shrunk(case, good, bad, asked, say), good, bad, asked, say)
    if isinstance(proof, NoProof):
        return _no_repro(site, proof)
    content = dict(smaller.case.files())
    tables = _tables((good, bad), proof, smaller.case, limit)
    difference = _difference(content, (good, bad), limit, say)
    made = _form(smaller, site, tables, difference, asked)
    made = replace(made, machine=machine.machine(good, time_limit=limit))
    _write(asked.out, content, made, smaller.case.notes)
    return Outcome(EXTRACTED, words.extracted(made, asked.out), site, made, asked.out)


def _no_repro(site: Site, why: NoProof) -> Outcome:
    return Outcome(NO_REPRO, f"{site.text}, but the call alone is no repro: {why.text}", site)


def _shrunk(case: Case, good: Stack, bad: Stack, asked: Asked, say: Say) -> list[Smaller]:
    """The case as it was captured and every smaller one, up to where the user has seen enough."""
    found = [Smaller(case, 0, 0)]
    if asked.shrink is None:
        return found
    try:
        smallest = asked.shrink(case, good, bad, kept=found.append, say=say)
    except KeyboardInterrupt:
        say("interrupted: what was found so far is proved and kept; once more to stop")
        return found
    if found[-1].case == smallest.case:
        found.pop()
    return [*found, smallest]


def _proved(
    found: Sequence[Smaller], good: Stack, bad: Stack, asked: Asked, say: Say
) -> tuple[Smaller, Proof | NoProof]:
    """The smallest case, or where fresh processes do not show it one with half of the steps, ….

    Shrinking looks at many cases in one process, which may be what a case shows the difference in.
    The last answer is that for the case as it was captured.
    """
    place = len(found) - 1
    while True:
        smaller = found[place]
        files = smaller.case.files()
        proof = prove.prove(files, good, bad, say, times=asked.times, time_limit=asked.time_limit)
        if isinstance(proof, Proof) or place == 0:
            return smaller, proof
        say(f"in fresh processes the smaller case shows nothing ({proof.text}): a larger one")
        place //= 2


def _difference(
    content: Mapping[str, bytes], stacks: tuple[Stack, Stack], limit: float | None, say: Say
) -> form.Difference | None:
    """How the outputs differ; None where that cannot be said. What was proved stays a repro."""
    try:
        good, bad = (differing.outputs(content, each, time_limit=limit) for each in stacks)
        return differing.difference(good, bad)
    except form.FormError as error:
        say(f"how the outputs differ is not said: {error}")
        return None


def _tables(
    stacks: tuple[Stack, Stack], proof: Proof, case: Case, limit: float | None
) -> tuple[form.StackTable, form.StackTable]:
    good, bad = (
        form.StackTable(
            name=stack.name,
            versions=versions(stack, case.needs, time_limit=limit),
            environment=stack.variables,
            digests=digests,
        )
        for stack, digests in zip(stacks, (proof.good, proof.bad), strict=True)
    )
    return good, bad


def _form(
    smaller: Smaller,
    site: Site,
    tables: tuple[form.StackTable, form.StackTable],
    difference: form.Difference | None,
    asked: Asked,
) -> form.Form:
    case = smaller.case
    shrunk = form.Shrunk(smaller.steps, smaller.tries, case.elements)
    return form.Form(
        finding=form.Finding(
            title=words.title(case.operation, tables),
            kind=case.kind,
            operation=case.operation,
            cause=asked.culprit or words.cause(tables),
            direction=site.direction if case.kind in _DIRECTED else "",
        ),
        run=form.Run(needs=tuple(case.needs), gpu=case.gpu),
        stacks=tables,
        difference=difference,
        diagnose=asked.diagnose,
        shrink=None if asked.shrink is None else shrunk,
    )


_DIRECTED = ("aten", "custom", "module", "triton", "cublaslt")


def versions(
    stack: Stack, names: Sequence[str], *, time_limit: float | None = None
) -> dict[str, str]:
    """The versions of distributions in a stack, and of its Python; empty where it does not say."""
    ran = stack.run({"v.py": _VERSIONS}, ("python", "v.py", *names), time_limit=time_limit)
    return ran.table


_VERSIONS = b"""
import json, platform, sys
from importlib import metadata

found = {"python": platform.python_version()}
for name in sys.argv[1:]:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def _check_place(out: Path) -> None:
    """Raises UsageError where no folder can be made: not after all the work was done."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent).cleanup()
    except OSError as error:
        raise UsageError(
            f"{out}: expected a place where a folder can be made, found: {error}; give another -o"
        ) from error


def _write(out: Path, content: Mapping[str, bytes], made: form.Form, notes: Sequence[str]) -> None:
    """The whole folder or none of it."""
    out.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        staged.chmod(0o755)
        for name, data in content.items():
            place = staged / name
            place.parent.mkdir(parents=True, exist_ok=True)
            durable.write_new(place, data)
        form.write(staged, made)
        durable.replace_text(staged / form.TEXT, words.page(made, notes))
        staged.rename(out)
        durable.sync_folder(out.parent)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise
