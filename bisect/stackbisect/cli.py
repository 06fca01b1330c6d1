"""The stackbisect command: arguments and printing."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from pinner.launch.taps import TapError
from stackbisect import (
    asked,
    asked_components,
    asked_here,
    asked_slurm,
    journal,
    markdown,
    plan,
    progress,
    report,
    report_text,
    state,
    wording,
)
from stackbisect.bisection import Aborted, Bisection
from stackbisect.by_hand import commands as by_hand
from stackbisect.by_hand.verdicts import is_by_hand
from stackbisect.errors import UsageError
from stackbisect.journal import Header, Journal, JournalError, Record
from stackbisect.probe import InfrastructureError
from stackbisect.repro import capture, shrink
from stackbisect.repro import commands as extracting
from stackbisect.runtimes import choose
from stackbisect.stages import chain
from stackbisect.stages.search import Outcome, Search

USAGE, UNREADABLE, INTERRUPTED = 64, 65, 130
_DEEPER = "resume --depth goes deeper, "


@dataclass(frozen=True)
class World:
    """What the command sees and writes to; tests give their own."""

    environ: Mapping[str, str]
    workdir: Path
    out: Callable[[str], Any]
    err: Callable[[str], Any]
    watcher: progress.Plain | progress.Rich

    @property
    def root(self) -> Path:
        """Where bisections are kept."""
        return self.workdir / journal.ROOT


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    world = World(
        environ=os.environ,
        workdir=Path.cwd(),
        out=sys.stdout.write,
        err=sys.stderr.write,
        watcher=progress.for_stream(sys.stderr),
    )
    return run(words, world)


def run(words: Sequence[str], world: World) -> int:
    """Run the command in a given world."""
    own, command = _split(words)
    arguments = argparse.Namespace(json="--json" in own)
    try:
        arguments = _parsed(own, command)
        return int(arguments.function(arguments, world))
    except (UsageError, TapError) as error:
        return _fails(arguments, world, str(error), USAGE)
    except JournalError as error:
        return _fails(arguments, world, str(error), UNREADABLE)
    except InfrastructureError as error:
        return _fails(arguments, world, str(error), report.EXIT_CODES["infrastructure"])
    except KeyboardInterrupt:
        return _fails(arguments, world, "interrupted", INTERRUPTED)
    except BrokenPipeError:
        return 128 + signal.SIGPIPE
    except OSError as error:
        code = report.EXIT_CODES["infrastructure"]
        return _fails(arguments, world, f"{error.filename or 'system'}: {error.strerror}", code)
    finally:
        world.watcher.close()


def _parsed(own: Sequence[str], command: tuple[str, ...] = ()) -> argparse.Namespace:
    arguments = _parser().parse_args(asked_slurm.joined(own))
    arguments.words, arguments.command, arguments.parse = list(own), command, _parsed
    return arguments


def _fails(arguments: argparse.Namespace, world: World, text: str, code: int) -> int:
    world.watcher.close()
    world.err(f"stackbisect: {text}\n")
    if getattr(arguments, "json", False):
        status = "infrastructure" if code == 5 else "error"
        _print_json(world, {"status": status, "reason": text, "exit_code": code})
    return code


def _print_json(world: World, value: Any) -> None:
    world.out(json.dumps(value, indent=1) + "\n")


def _split(words: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Our own words, and the command after the first `--`."""
    if "--" not in words:
        return list(words), ()
    place = list(words).index("--")
    return list(words[:place]), tuple(words[place + 1 :])


# -- the commands ----------------------------------------------------------------------------------


def _run(arguments: argparse.Namespace, world: World) -> int:
    setup = asked.setup(arguments, world.environ)
    asked.need_command(arguments)
    name = journal.check_name(arguments.name or asked.default_name(arguments))
    found = asked.space(arguments, setup, world.environ, world.watcher.reads)
    folder = world.root / name
    if arguments.fresh:
        aside = journal.set_aside(folder)
        if aside is not None:
            world.watcher.says(f"the bisection that was there is kept as {aside.name}")
    runtime = choose.runtime(setup, folder, world.environ, world.watcher.pulls)
    try:
        header = asked.header(
            arguments,
            setup=setup,
            found=found,
            described=runtime.describe(),
            name=name,
            workdir=world.workdir,
        )
        return _go_on(_begin_or_resume(folder, header), runtime, arguments, world)
    finally:
        runtime.close()


def _resume(arguments: argparse.Namespace, world: World) -> int:
    folder = world.root / journal.check_name(arguments.name)
    with journal.resume(folder) as held:
        if is_by_hand(held.record.header):
            raise UsageError(f"{arguments.name} goes by hand: stackbisect next, good, bad, skip")
        _deepen(held, arguments.depth)
        header = held.record.header
        if arguments.command and tuple(arguments.command) != header.command:
            raise journal.ChangedError(
                arguments.name,
                [f"command: was {list(header.command)}, is {list(arguments.command)}"],
            )
        if not Path(header.workdir).is_dir():
            raise UsageError(f"{header.workdir}, where the command ran, is not there any more")
        runtime = choose.runtime(header.setup, folder, world.environ, world.watcher.pulls)
        try:
            if held.record.answer is None:
                now = replace(header, runtime=runtime.describe())
                journal.check_same(arguments.name, header, now)
            return _go_on(held, runtime, arguments, world)
        finally:
            runtime.close()


def _deepen(held: Journal, depth: str | None) -> None:
    """Go on to another depth, where one was asked for. Raises UsageError where it is less deep."""
    now = chain.depth(held.record.header)
    if depth is None or depth == now:
        return
    if chain.DEPTHS.index(depth) < chain.DEPTHS.index(now):
        raise UsageError(f"--depth: expected one behind {now}, where it goes to, found {depth}")
    held.deepen(depth, time.time())


def _begin_or_resume(folder: Path, header: Header) -> Journal:
    if not journal.exists(folder):
        return journal.create(folder, header)
    held = journal.resume(folder)
    try:
        journal.check_same(folder.name, held.record.header, header)
    except UsageError:
        held.close()
        raise
    return held


def _go_on(
    held: Journal, runtime: choose.Cleanable, arguments: argparse.Namespace, world: World
) -> int:
    """Go on to the answer, print it, and return the exit code."""
    name = held.folder.name
    setup = held.record.header.setup
    with held:
        if held.record.answer is not None:
            deeper = "" if chain.depth(held.record.header) == chain.DEPTHS[-1] else _DEEPER
            world.watcher.says(f"bisection {name} has its answer; {deeper}--fresh begins again")
            return _print_outcome(held.record.answer, arguments, world)
        if held.record.probes:
            world.watcher.says(f"goes on after {len(held.record.probes)} finished probes")
        work = Bisection(
            journal=held,
            runtime=runtime,
            watcher=world.watcher,
            pythonpath=world.environ.get("PYTHONPATH"),
            env=choose.command_env(setup, world.environ),
            taps=tuple(setup.get("taps", ())),
            jobs=asked.jobs(arguments) or int(setup.get("jobs", 1)),
        )
        with _signals_interrupt():
            try:
                work.run()
                world.watcher.close()
                found = report.outcome(held.record, name, _search_outcome(held.record), runtime)
                held.answer(found, work.clock())
            except (InfrastructureError, Aborted) as error:
                found = report.stopped(held.record, name, "infrastructure", str(error))
            except KeyboardInterrupt:
                found = report.stopped(held.record, name, "interrupted", "interrupted")
    world.watcher.close()
    return _print_outcome(found, arguments, world)


def _search_outcome(record: Record) -> Outcome | None:
    """How the search ended; None where it did not."""
    return Search.of(record.header).outcome(chain.first_search(record))


@contextlib.contextmanager
def _signals_interrupt() -> Iterator[None]:
    """Turns SIGTERM and SIGHUP into KeyboardInterrupt, so that every way out cleans up."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    ending = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in ending}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print_outcome(found: Mapping[str, Any], arguments: argparse.Namespace, world: World) -> int:
    if arguments.json:
        _print_json(world, found)
    else:
        world.out(report_text.text(found))
    return int(found["exit_code"])


def _plan(arguments: argparse.Namespace, world: World) -> int:
    setup = asked.setup(arguments, world.environ)
    found = asked.space(arguments, setup, world.environ, world.watcher.reads)
    world.watcher.close()
    planned = plan.planned(setup, found)
    if arguments.json:
        _print_json(world, planned)
    else:
        world.out(plan.text(planned))
    return 0


def _status(arguments: argparse.Namespace, world: World) -> int:
    if arguments.name is None:
        found = [state.state(world.root / name) for name in journal.names(world.root)]
        if arguments.json:
            _print_json(world, {"bisections": found})
        elif not found:
            world.out(f"no bisections in {world.root}\n")
        for each in found if not arguments.json else ():
            world.out(f"{each['name']}: {each['state']}, {each['probes']} probes\n")
        return 0
    now = state.state(world.root / journal.check_name(arguments.name))
    if arguments.json:
        _print_json(world, now)
        return 0
    world.out(f"bisection {now['name']}: {now['state']}\n")
    world.out(f"  probes: {now['probes']} done{_to_come(now)}\n")
    if now["stage"]:
        world.out(f"  looking for: {now['stage']['title']}\n")
    if now["between"]:
        world.out(f"  the change is between {now['between'][0]} and {now['between'][1]}\n")
    for each in now.get("known", ()):
        world.out(f"  {each['title']}: {each['result']}\n")
    if now["under_way"]:
        world.out(f"  under way: {', '.join(now['under_way'])}\n")
    if now["stopped"]:
        world.out(f"  stopped: {now['stopped']}\n")
    return 0


def _to_come(now: Mapping[str, Any]) -> str:
    """How many probes are to come, and about how long they take."""
    left, seconds = now["probes_left"], now["seconds_left"]
    if not left:
        return ""
    about = f" (about {wording.duration(seconds)})" if seconds else ""
    return f", at most {left} to come{about}"


def _log(arguments: argparse.Namespace, world: World) -> int:
    folder = world.root / by_hand.name_of(arguments, world)
    record = journal.read(folder)
    if is_by_hand(record.header):
        return by_hand.log(record, folder.name, arguments, world)
    if arguments.probe is not None:
        probed = next((p for p in record.probes if p.number == arguments.probe), None)
        if probed is None:
            numbers = ", ".join(str(p.number) for p in record.probes) or "none"
            raise UsageError(f"no finished probe {arguments.probe}; there are: {numbers}")
        world.out((folder / probed.result.log).read_text(errors="replace"))
        return 0
    rows = state.probes(record)
    if arguments.json:
        _print_json(world, {"probes": rows})
        return 0
    for row in rows:
        code = "" if row["exit_code"] is None else f"exit {row['exit_code']}"
        bits = wording.short(row["digest"]) if row["digest"] else "no bits"
        parts = [f"{row['probe']:4}", row["started"], f"{row['seconds']:8.1f} s", row["candidate"]]
        parts += [row["status"], code, bits, row["reason"]]
        world.out("  ".join(part for part in parts if part) + "\n")
    return 0


def _report(arguments: argparse.Namespace, world: World) -> int:
    name = by_hand.name_of(arguments, world)
    record = journal.read(world.root / name)
    if is_by_hand(record.header):
        return by_hand.report(record, name, arguments, world)
    found = record.answer
    if found is None:
        found = report.outcome(record, name, _search_outcome(record), None)
    if arguments.json:
        _print_json(world, found)
    elif arguments.markdown:
        world.out(markdown.page(found))
    else:
        world.out(report_text.text(found))
    return 0


def _clean(arguments: argparse.Namespace, world: World) -> int:
    names = journal.names(world.root) if arguments.all else arguments.names
    if not names and not arguments.all:
        raise UsageError("expected the names of bisections, or --all")
    removed: list[str] = []
    for name in names:
        folder = world.root / journal.check_name(name)
        record = journal.read(folder)
        with journal.hold(folder):
            if not is_by_hand(record.header):
                _clean_runtime(record.header, folder, world)
            shutil.rmtree(folder)
        removed.append(name)
    if arguments.json:
        _print_json(world, {"status": "cleaned", "removed": removed})
    else:
        world.out("".join(f"removed {name}\n" for name in removed))
    return 0


def _clean_runtime(header: Header, folder: Path, world: World) -> None:
    runtime = choose.runtime(header.setup, folder, world.environ)
    try:
        runtime.clean()
    except InfrastructureError as error:
        world.err(f"stackbisect: {folder.name}: containers may be left: {error}\n")
    finally:
        runtime.close()


# -- arguments -------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Raise the mistake; the whole usage would bury it."""
        raise UsageError(f"{message}; see {self.prog} --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="stackbisect",
        description="Finds where a run's bits change: across container tags and package versions.",
        epilog="Exit codes: 0 found, 1 not reproduced, 2 narrowed to a range that cannot be "
        "tested, 4 the ends cannot be tested, 5 the machinery failed (resumable), 64 usage, "
        "65 unreadable journal, 130 interrupted (resumable).",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    begin = _command(commands, "run", _run, "search between two ends: run ... -- CMD")
    _space_options(begin)
    _probe_options(begin)
    plan = _command(commands, "plan", _plan, "say what would be searched; nothing is tried")
    _space_options(plan)
    _probe_options(plan)
    resume = _command(commands, "resume", _resume, "go on with a bisection that was stopped")
    resume.add_argument("name", metavar="NAME")
    _jobs_option(resume, "as it was begun")
    _depth_option(resume, None)
    status = _command(commands, "status", _status, "what is known, and what is left")
    status.add_argument("name", metavar="NAME", nargs="?")
    log = _command(commands, "log", _log, "every probe, or the output of one")
    log.add_argument("name", metavar="NAME", nargs="?", help="default: the one by hand")
    log.add_argument("probe", metavar="PROBE", type=int, nargs="?")
    shown = _command(commands, "report", _report, "the answer again")
    shown.add_argument("name", metavar="NAME", nargs="?", help="default: the one by hand")
    shown.add_argument("--markdown", action="store_true", help="a page to paste in an issue")
    clean = _command(commands, "clean", _clean, "remove bisections and what they left")
    clean.add_argument("names", metavar="NAME", nargs="*")
    clean.add_argument("--all", action="store_true", help="every bisection of this folder")
    by_hand.register(partial(_command, commands), _space_options, _probe_options)
    parts = extracting.Parts(capture.capture, shrink.within)
    extracting.register(partial(_command, commands), parts, _signals_interrupt)
    return parser


def _command(
    commands: Any, name: str, function: Callable[[argparse.Namespace, World], int], help: str
) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = commands.add_parser(name, help=help, description=help)
    made.add_argument("--json", action="store_true", help="one JSON object on standard output")
    made.set_defaults(function=function)
    return made


def _space_options(parser: argparse.ArgumentParser) -> None:
    ends = parser.add_argument_group("what is searched")
    ends.add_argument(
        "--good",
        metavar="TAG|VERSION",
        help="where the bits are good; without it the search goes back from the bad end, in "
        "doubling steps, until they are others",
    )
    ends.add_argument("--bad", metavar="TAG|VERSION|REV", help="where they are not")
    _search_options(parser)
    ends.add_argument(
        "--runtime",
        choices=("docker", "podman", "venv", "local", "git", "slurm"),
        default=None,
        help="default: docker with --image, venv with --package, git with --git, else local",
    )
    tags = parser.add_argument_group("container tags")
    tags.add_argument("--image", metavar="HOST/NAME", help="the repository")
    tags.add_argument("--tags", metavar="REGEX", help="only tags that match")
    tags.add_argument(
        "--order",
        choices=("version", "created"),
        default="version",
        help="by the numbers in the tag, or by the image's creation date; default: version",
    )
    tags.add_argument("--list", metavar="FILE", help="tags in their order, one a line")
    tags.add_argument("--platform", metavar="OS/ARCH", help="default: this machine's")
    tags.add_argument("--insecure-registry", action="store_true", help="allow plain HTTP")
    versions = parser.add_argument_group("package versions (--runtime venv)")
    versions.add_argument("--package", metavar="NAME", help="the Python package")
    versions.add_argument(
        "--with",
        dest="extras",
        metavar="REQ",
        action="append",
        default=[],
        help="installed next to it in every environment",
    )
    versions.add_argument("--python", metavar="PATH", default=sys.executable, help="the base")
    versions.add_argument("--index-args", metavar="ARGS", default="", help="passed on to pip")
    versions.add_argument("--pre", action="store_true", help="pre-releases count")
    asked_here.add_options(parser)
    asked_components.add_options(parser)
    asked_slurm.add_options(parser)


def _search_options(parser: argparse.ArgumentParser) -> None:
    search = parser.add_argument_group("how it is searched")
    _depth_option(search, chain.DEPTHS[-1])
    _jobs_option(search)
    search.add_argument(
        "--noisy",
        action="store_true",
        help="probes of one candidate may differ: count them, and answer with a probability",
    )
    search.add_argument(
        "--all-transitions",
        metavar="N",
        type=int,
        nargs="?",
        const=1,
        help="look for every change: each run of N or more candidates with bits of its own is "
        "found; default: 1, which tries every candidate",
    )


def _depth_option(group: Any, default: str | None) -> None:
    group.add_argument(
        "--depth",
        choices=chain.DEPTHS,
        default=default,
        help="where to end: at the two neighbours (search), the choices, the components, or the "
        f"versions of the culprit; default: {default or 'as it was begun'}",
    )


def _jobs_option(group: Any, default: str = "1") -> None:
    group.add_argument(
        "--jobs",
        metavar="K",
        type=int,
        help=f"probes at once, where the machine has room for them; default: {default}",
    )


def _probe_options(parser: argparse.ArgumentParser) -> None:
    probes = parser.add_argument_group("probes and verdicts")
    probes.add_argument("--name", help="of this bisection; default: from what is searched")
    probes.add_argument("--fresh", action="store_true", help="begin again; the old one is kept")
    probes.add_argument(
        "--verdict",
        choices=("evidence", "exit-code"),
        default="evidence",
        help="from the bits (default), or by git's rule: 0 good, 125 skip, 1-127 bad, 128+ abort",
    )
    _repeated(probes, "--evidence-file", "GLOB", "files the command writes are evidence")
    _repeated(
        probes,
        "--evidence-stdout",
        "REGEX",
        "what the command prints is evidence: one step a match, the first group where there is one",
    )
    _repeated(probes, "--tap", "NAME|FILE", "fingerprint the metrics of a known trainer")
    probes.add_argument("--time-limit", metavar="TIME", help="for one probe: 90, 30m, 2h")
    _repeated(
        probes,
        "--env",
        "NAME[=VALUE]",
        "set for the command; a bare NAME is taken from here and its value never written down",
    )
    container = parser.add_argument_group("containers (as docker run has them)")
    _repeated(container, "--mount", "SPEC", "type=bind,source=/data,target=/data,readonly")
    container.add_argument("--shm-size", metavar="SIZE", help="of /dev/shm: 16g")
    container.add_argument("--ipc", metavar="MODE", help="host, private, shareable, ...")
    _repeated(container, "--ulimit", "NAME=SOFT[:HARD]", "memlock=-1")
    container.add_argument("--user", metavar="USER", help="default: the image's own")
    _repeated(container, "--device", "DEVICE", "HOST[:CONTAINER[:rwm]]")
    container.add_argument("--gpus", metavar="GPUS", help="all, 2, device=0")
    container.add_argument("--network", metavar="NAME", help="default: the daemon's")
    container.add_argument(
        "--read-only", action="store_true", help="the root file system cannot be written"
    )
    container.add_argument("--entrypoint", metavar="PROGRAM", help="instead of the image's own")
    container.add_argument(
        "--transfer",
        choices=("auto", "bind", "copy"),
        default="auto",
        help="how evidence comes out: a mounted folder, or an archive; default: what works",
    )
    container.add_argument(
        "--image-budget",
        metavar="SIZE",
        help="of images pulled here, the least recently used beyond it are removed; default: none",
    )


def _repeated(group: Any, name: str, metavar: str, help: str) -> None:
    group.add_argument(name, metavar=metavar, action="append", default=[], help=help)


if __name__ == "__main__":
    sys.exit(main())
