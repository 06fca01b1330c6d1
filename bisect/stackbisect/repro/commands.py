"""The command `stackbisect extract`: arguments and printing."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pinner.compare.trace import TraceError
from stackbisect import journal
from stackbisect.errors import UsageError
from stackbisect.probe import ContainerOptions, InfrastructureError
from stackbisect.repro import form, issue, personal, prove, sides
from stackbisect.repro.extract import EXTRACTED, Asked, Capture, Outcome, Shrink, extract
from stackbisect.repro.sides import Sides
from stackbisect.runtimes import container_options

if TYPE_CHECKING:
    from stackbisect.cli import World

Command = Callable[[argparse.Namespace, "World"], int]
Add = Callable[[str, Command, str], argparse.ArgumentParser]

_ENDS = {
    "--good-python and --bad-python": ("good_python", "bad_python"),
    "--good-image and --bad-image": ("good_image", "bad_image"),
    "--env-good and --env-bad": ("env_good", "env_bad"),
}


@dataclass(frozen=True)
class Budget:
    """How much shrinking may cost; None is no limit."""

    tries: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Parts:
    """What captures a call, and what makes it smaller within a budget."""

    capture: Capture
    shrink: Callable[[Budget], Shrink]


def register(
    add: Add, parts: Parts, interrupting: Callable[[], AbstractContextManager[None]]
) -> None:
    """Add the command to the program's parser.

    `interrupting` turns the signals that end programs into KeyboardInterrupt.
    """
    function = partial(_extract, parts, interrupting)
    made = add("extract", function, "one small program that shows the change: extract ... -- CMD")
    made.add_argument(
        "bisection",
        metavar="NAME",
        nargs="?",
        help="a bisection that has its answer; with --issue also a folder that was written before",
    )
    ends = made.add_argument_group("two stacks, where there is no bisection")
    ends.add_argument("--good-python", metavar="PATH", help="an interpreter or an environment")
    ends.add_argument("--bad-python", metavar="PATH", help="another one")
    ends.add_argument("--good-image", metavar="HOST/NAME:TAG", help="an image")
    ends.add_argument("--bad-image", metavar="HOST/NAME:TAG", help="another one")
    for end in ("good", "bad"):
        ends.add_argument(
            f"--env-{end}",
            metavar="NAME[=VALUE]",
            action="append",
            default=[],
            help=f"set for the {end} stack; the other one has it only if it is named there",
        )
    containers = made.add_argument_group("containers (as docker run has them)")
    containers.add_argument("--mount", metavar="SPEC", action="append", default=[])
    containers.add_argument("--gpus", metavar="GPUS")
    made.add_argument("-o", "--out", metavar="DIR", help="the folder to write; default: repro-NAME")
    made.add_argument(
        "--budget",
        metavar="TIME|N",
        default="10m",
        help="how long it is made smaller: 90s, 10m, or so many tries; default: 10m",
    )
    made.add_argument(
        "--runs",
        metavar="N",
        type=int,
        default=prove.TIMES,
        help=f"of the program in each stack before it is handed over; default: {prove.TIMES}",
    )
    made.add_argument("--no-shrink", action="store_true", help="the call as it was captured")
    made.add_argument(
        "--issue",
        action="store_true",
        help="print a report ready to paste, without names of people, machines and folders",
    )
    made.add_argument(
        "--time-limit", metavar="TIME", help="for one run of the command: 90, 30m, 2h"
    )


def budget(text: str) -> Budget:
    """A budget as people write it. Raises UsageError."""
    match = re.fullmatch(r"(\d+)([smh]?)", text)
    if match is None or int(match[1]) == 0:
        raise UsageError(f"--budget: expected 90s, 10m, 2h or a number of tries, found {text!r}")
    if not match[2]:
        return Budget(tries=int(match[1]))
    return Budget(seconds=float(int(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]))


def _extract(
    parts: Parts,
    interrupting: Callable[[], AbstractContextManager[None]],
    arguments: argparse.Namespace,
    world: World,
) -> int:
    from stackbisect.asked import seconds

    written = _written_before(arguments, world)
    if written is not None:
        report = _report(written, world)
        world.out(json.dumps({"issue": report}, indent=1) + "\n" if arguments.json else report)
        return EXTRACTED
    allowed = budget(arguments.budget)
    limit = seconds(arguments.time_limit)
    if arguments.runs < 2:
        raise UsageError(
            f"--runs: expected 2 or more, to see that the bits stay, found {arguments.runs}"
        )
    with interrupting(), _sides(arguments, world) as both:
        asked = Asked(
            argv=both.argv,
            out=world.workdir / (arguments.out or f"repro-{arguments.bisection or 'found'}"),
            capture=parts.capture,
            shrink=None if arguments.no_shrink else parts.shrink(allowed),
            culprit=both.culprit,
            diagnose=both.diagnose,
            times=arguments.runs,
            time_limit=limit,
            scratch=both.scratch,
        )
        try:
            outcome = extract(both.good, both.bad, asked, world.watcher.says)
        except TraceError as error:
            raise InfrastructureError(str(error)) from error
    world.watcher.close()
    return _print(outcome, arguments, world)


def _written_before(arguments: argparse.Namespace, world: World) -> Path | None:
    """The folder of a repro whose report is asked for, and nothing else."""
    if not arguments.issue or arguments.bisection is None or arguments.command:
        return None
    folder = world.workdir / Path(arguments.bisection).expanduser()
    return folder if (folder / form.TABLE).is_file() else None


def _report(folder: Path, world: World) -> str:
    """A report of a repro's folder. Raises FormError."""
    names = personal.here(world.environ, str(world.workdir))
    return issue.report(form.read(folder), prove.files(folder), names)


def _print(outcome: Outcome, arguments: argparse.Namespace, world: World) -> int:
    text = outcome.text.rstrip("\n") + "\n"
    report = _report(outcome.out, world) if arguments.issue and outcome.out is not None else None
    if arguments.json:
        found = outcome.to_json()
        if report is not None:
            found["issue"] = report
        world.out(json.dumps(found, indent=1) + "\n")
    elif report is not None:
        # What is to be pasted is alone on the standard output.
        world.err(text)
        world.out(report)
    else:
        world.out(text)
    return outcome.exit


@contextlib.contextmanager
def _sides(arguments: argparse.Namespace, world: World) -> Iterator[Sides]:
    """The two stacks that are asked for. Raises UsageError."""
    given = [text for text, names in _ENDS.items() if any(vars(arguments)[n] for n in names)]
    if arguments.bisection is not None:
        given.insert(0, arguments.bisection)
    if len(given) != 1:
        found = " and ".join(given) or "none of them"
        raise UsageError(
            f"expected the NAME of a bisection, or two stacks by {', by '.join(_ENDS)}; "
            f"found {found}"
        )
    argv, environ, workdir = tuple(arguments.command), world.environ, world.workdir
    if arguments.bisection is not None:
        folder = world.root / journal.check_name(arguments.bisection)
        with sides.of_bisection(folder, argv, environ, world.watcher.says) as both:
            yield both
        return
    if not argv:
        raise UsageError("expected the command that shows the difference after `--`, found none")
    good, bad = (vars(arguments)[name] for name in _ENDS[given[0]])
    if arguments.env_good or arguments.env_bad:
        yield sides.of_variables(good, bad, argv, environ, workdir)
        return
    if not good or not bad:
        raise UsageError(f"expected {given[0]}, found one of them alone")
    if arguments.good_python:
        yield sides.of_interpreters(good, bad, argv, environ, workdir)
        return
    asked = sides.Images(good, bad, _options(arguments))
    with sides.of_images(asked, argv, environ, workdir, world.watcher.pulls) as both:
        yield both


def _options(arguments: argparse.Namespace) -> ContainerOptions:
    options = ContainerOptions(mounts=tuple(arguments.mount), gpus=arguments.gpus)
    try:
        container_options.host_config(options)
    except container_options.OptionError as error:
        raise UsageError(str(error)) from None
    return options
