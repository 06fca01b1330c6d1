"""The commands of a bisection by hand, as people know them from git: start, good, bad, skip."""

from __future__ import annotations

import argparse
import json
import shlex
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from stackbisect import asked, asked_here, journal, wording
from stackbisect.by_hand import current, shown, verdicts
from stackbisect.by_hand import log as logs
from stackbisect.by_hand.search import Next, Waiting, step
from stackbisect.errors import UsageError
from stackbisect.journal import Header, Journal, Mark, Record
from stackbisect.probe import Candidate
from stackbisect.spaces import window

if TYPE_CHECKING:
    from stackbisect.cli import World

Command = Callable[[argparse.Namespace, "World"], int]
Add = Callable[[str, Command, str], argparse.ArgumentParser]

_NAME = "by-hand"


def register(
    add: Add,
    space_options: Callable[[argparse.ArgumentParser], None],
    probe_options: Callable[[argparse.ArgumentParser], None],
) -> None:
    """Add the commands to the program's parser."""
    begin = add("start", _start, "begin a bisection by hand: start CANDIDATE... from good to bad")
    begin.add_argument("names", metavar="CANDIDATE", nargs="*", help="or --list FILE, or a space")
    begin.add_argument("--name", help=f"of this bisection; default: {_NAME}")
    space_options(begin)
    rest = argparse.ArgumentParser(add_help=False)
    probe_options(rest)
    begin.set_defaults(**{k: v for k, v in vars(rest.parse_args([])).items() if k != "name"})
    for verdict, about in _ABOUT.items():
        mark = add(verdict, _mark, about)
        mark.add_argument("names", metavar="CANDIDATE", nargs="*", help="default: the next one")
        mark.add_argument("--note", default="", metavar="TEXT", help="kept with the verdict")
        mark.set_defaults(verdict=verdict)
        _name_option(mark)
    take_back = add("unmark", _unmark, "take a verdict back")
    take_back.add_argument("names", metavar="CANDIDATE", nargs="+")
    _name_option(take_back)
    _name_option(add("next", _next, "which candidate to try, and how many are left"))
    again = add("replay", _replay, "begin again from what `log` printed")
    again.add_argument("file", metavar="FILE")
    again.add_argument("--name", help="of the new bisection; default: as in the log")
    end = add("reset", _reset, "end a bisection by hand; its journal stays until `clean`")
    end.add_argument("name", metavar="NAME", nargs="?")


_ABOUT = {
    "good": "say that a candidate's bits are good",
    "bad": "say that they are not",
    "skip": "say that it cannot be tested; A..B is what comes after A, up to and with B",
}


def _name_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", help="of the bisection; default: the one begun last")


# -- start and replay ------------------------------------------------------------------------------


def _start(arguments: argparse.Namespace, world: World) -> int:
    header, marks = _asked(arguments, world)
    folder = _begin(world, arguments.name or _NAME, header, marks)
    return _tell(journal.read(folder), folder.name, arguments, world)


def _asked(arguments: argparse.Namespace, world: World) -> tuple[Header, list[Mark]]:
    """What a bisection by hand is begun with: candidates, and the verdicts on its ends."""
    good, bad = arguments.good, arguments.bad
    name = journal.check_name(arguments.name or _NAME)
    if _is_space(arguments):
        if arguments.names:
            raise UsageError(
                f"expected candidates or a space to take them from, found both: {arguments.names}"
            )
        setup = asked.setup(arguments, world.environ)
        found = asked.space(arguments, setup, world.environ, world.watcher.reads)
        world.watcher.close()
        good = None if setup.get("no_good_end") else found.candidates[0].label
        bad = found.candidates[-1].label
        again = ["stackbisect", *_with_name(arguments.words, arguments.name, name)]
    else:
        found = _own(arguments, world.workdir, good, bad)
        labels = [each.label for each in found.candidates]
        again = ["stackbisect", "start", "--name", name, *labels]
    created = datetime.now(timezone.utc).isoformat(timespec="seconds")
    header = verdicts.header(found, workdir=world.workdir, again=again, created=created)
    marks: list[Mark] = []
    for verdict, end in (("good", good), ("bad", bad)):
        if end is not None:
            candidate = verdicts.find(header.candidates, end)
            _add(marks, header.candidates, candidate, Mark(candidate.id, verdict, "", time.time()))
    return header, marks


def _is_space(arguments: argparse.Namespace) -> bool:
    """Whether the candidates are looked up as `run` does it."""
    given = arguments.image or arguments.package or arguments.git or arguments.runtime
    return bool(given or asked_here.axis(arguments) is not None)


def _with_name(words: Sequence[str], given: str | None, name: str) -> list[str]:
    named = [] if given is not None else ["--name", name]
    first, *rest = (word for word in words if word != "--json")
    return [first, *named, *rest]


def _own(
    arguments: argparse.Namespace, workdir: Path, good: str | None, bad: str | None
) -> window.Space:
    """Candidates that are named one by one, on the command line or in a file."""
    names = [*arguments.names]
    if arguments.candidates:
        names += [each.strip() for each in arguments.candidates.split(",") if each.strip()]
    if arguments.list:
        names += _listed(workdir / arguments.list)
    if len(names) < 2:
        raise UsageError(
            "expected candidates from good to bad (start v1 v2 v3, or --list FILE), or a space to "
            f"take them from (--image, --package, --git, --env-values), found {len(names)}"
        )
    for end in (good, bad):
        if end is not None and end not in names:
            raise window.no_such("candidate", end, names)
    notes: tuple[str, ...] = ()
    if good is not None and bad is not None and names.index(bad) < names.index(good):
        names.reverse()
        notes = (f"the good end {good} comes after the bad end {bad}: searched backwards",)
    return window.Space(tuple(verdicts.of_names(names)), (), notes)


def _listed(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UsageError(f"--list {path}: {reason}") from error
    names = [line.partition("#")[0].strip() for line in text.splitlines()]
    return [name for name in names if name]


def _begin(world: World, name: str, header: Header, marks: Sequence[Mark]) -> Path:
    """Write the journal, and work on it from now on. One by hand of that name is set aside."""
    folder = world.root / journal.check_name(name)
    if journal.exists(folder):
        if not verdicts.is_by_hand(journal.read(folder).header):
            raise UsageError(
                f"{name} is a bisection that runs by itself; give another --name, or remove it: "
                f"stackbisect clean {name}"
            )
        aside = journal.set_aside(folder)
        if aside is not None:
            world.watcher.says(f"the bisection that was there is kept as {aside.name}")
    with journal.create(folder, header) as held:
        for mark in marks:
            held.mark(mark)
    current.choose(world.root, name)
    return folder


def _replay(arguments: argparse.Namespace, world: World) -> int:
    """All lines are read and checked before anything is written."""
    first, *others = logs.read(world.workdir / arguments.file)
    words = list(first.words)
    asked_for = arguments.parse(words)
    asked_for.name = arguments.name or asked_for.name
    header, marks = _asked(asked_for, world)
    for line in others:
        try:
            _replay_line(arguments.parse(list(line.words)), header, marks)
        except UsageError as error:
            raise UsageError(f"{arguments.file}, line {line.number}: {error}") from error
    folder = _begin(world, asked_for.name or _NAME, header, marks)
    return _tell(journal.read(folder), folder.name, arguments, world)


def _replay_line(said: argparse.Namespace, header: Header, marks: list[Mark]) -> None:
    if not said.names:
        raise UsageError("expected a candidate, found none")
    for each in _named(header.candidates, said):
        if said.function is _unmark:
            marks[:] = [mark for mark in marks if mark.candidate != each.id]
        else:
            mark = Mark(each.id, said.verdict, said.note, time.time())
            _add(marks, header.candidates, each, mark)


def _add(
    marks: list[Mark], candidates: Sequence[Candidate], candidate: Candidate, mark: Mark
) -> None:
    """Put a mark in force. Raises UsageError where it contradicts the others."""
    known = {each.candidate: each.verdict for each in marks}
    verdicts.check(candidates, known, candidate, mark.verdict)
    marks[:] = [*(each for each in marks if each.candidate != mark.candidate), mark]


# -- verdicts --------------------------------------------------------------------------------------


def _mark(arguments: argparse.Namespace, world: World) -> int:
    with _held(arguments, world) as held:
        candidates = held.record.header.candidates
        names = arguments.names or [_proposed(held.record, arguments.verdict)]
        known = [*held.record.marks]
        new = []
        for each in _named(candidates, argparse.Namespace(**{**vars(arguments), "names": names})):
            mark = Mark(each.id, arguments.verdict, arguments.note, time.time())
            _add(known, candidates, each, mark)
            new.append(mark)
        for mark in new:  # none is written where one of them is wrong
            if not _stands(held.record, mark):
                held.mark(mark)
        return _tell(held.record, held.folder.name, arguments, world)


def _stands(record: Record, mark: Mark) -> bool:
    """Whether the same was said already."""
    return any(
        (each.candidate, each.verdict) == (mark.candidate, mark.verdict)
        and mark.note in ("", each.note)
        for each in record.marks
    )


def _unmark(arguments: argparse.Namespace, world: World) -> int:
    with _held(arguments, world) as held:
        found = _named(held.record.header.candidates, arguments)
        marked = verdicts.in_force(held.record)
        for each in found:
            if each.id not in marked:
                raise UsageError(f"expected a verdict on {each.label} to take back, found none")
        for each in found:
            held.unmark(each.id, time.time())
        return _tell(held.record, held.folder.name, arguments, world)


def _named(candidates: Sequence[Candidate], said: argparse.Namespace) -> list[Candidate]:
    """The candidates that a command names; ranges are for what is skipped."""
    if getattr(said, "verdict", None) == "skip":
        return verdicts.find_all(candidates, said.names)
    return [verdicts.find(candidates, name) for name in said.names]


def _proposed(record: Record, verdict: str) -> str:
    now = step(record)
    if isinstance(now, Next):
        return now.candidate.label
    why = shown.waits_for(now) if isinstance(now, Waiting) else "the search is over"
    raise UsageError(f"{verdict}: expected a candidate, found none, and none is to be tried: {why}")


def _held(arguments: argparse.Namespace, world: World) -> Journal:
    held = journal.resume(world.root / name_of(arguments, world))
    if not verdicts.is_by_hand(held.record.header):
        held.close()
        raise UsageError(
            f"{held.folder.name} is a bisection that runs by itself: its verdicts come from probes"
        )
    return held


def name_of(arguments: argparse.Namespace, world: World) -> str:
    """The bisection that is meant: by name, else the one by hand that is worked on."""
    if arguments.name is not None:
        return journal.check_name(arguments.name)
    return current.name(world.root)


# -- what is known ---------------------------------------------------------------------------------


def _next(arguments: argparse.Namespace, world: World) -> int:
    name = name_of(arguments, world)
    record = journal.read(world.root / name)
    if not verdicts.is_by_hand(record.header):
        raise UsageError(f"{name} is a bisection that runs by itself: stackbisect resume {name}")
    now = step(record)
    if isinstance(now, Waiting):
        raise UsageError(shown.waits_for(now))
    return _tell(record, name, arguments, world)


def _tell(record: Record, name: str, arguments: argparse.Namespace, world: World) -> int:
    """Print what to try next, or the answer; returns the exit code."""
    found = shown.outcome(record, name)
    if arguments.json:
        world.out(json.dumps(found, indent=1) + "\n")
        return int(found["exit_code"])
    now = step(record)
    if isinstance(now, Next):
        world.watcher.says(f"{shown.left_text(now)}; try")
        world.out(f"{now.candidate.label}\n")
    elif isinstance(now, Waiting):
        world.watcher.says(shown.waits_for(now))
    else:
        world.out(shown.text(found))
    return int(found["exit_code"])


def report(record: Record, name: str, arguments: argparse.Namespace, world: World) -> int:
    """`stackbisect report` of a bisection by hand."""
    found = shown.outcome(record, name)
    world.out(json.dumps(found, indent=1) + "\n" if arguments.json else shown.text(found))
    return 0


def log(record: Record, name: str, arguments: argparse.Namespace, world: World) -> int:
    """`stackbisect log` of a bisection by hand."""
    lines = logs.lines(record, name)
    if arguments.json:
        commands = [shlex.split(line) for line in lines if not line.startswith("#")]
        world.out(json.dumps({"commands": commands}, indent=1) + "\n")
    else:
        world.out("".join(line + "\n" for line in lines))
    return 0


def _reset(arguments: argparse.Namespace, world: World) -> int:
    name = name_of(arguments, world)
    record = journal.read(world.root / name)
    if not verdicts.is_by_hand(record.header):
        raise UsageError(f"{name} is a bisection that runs by itself: stackbisect clean {name}")
    if _is_current(world, name):
        current.choose(world.root, None)
    marks = wording.counted(len(record.marks), "verdict")
    world.watcher.says(f"{name} is over; its {marks} stay until `stackbisect clean {name}`")
    if arguments.json:
        world.out(json.dumps({"status": "reset", "name": name}) + "\n")
    return 0


def _is_current(world: World, name: str) -> bool:
    try:
        return current.name(world.root) == name
    except UsageError:
        return False
