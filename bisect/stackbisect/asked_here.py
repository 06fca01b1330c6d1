"""The options of what needs no index and no registry: commits, own candidates, variables.

Adds them to the parser and reads them into what a bisection's journal keeps (see `asked`).
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stackbisect.errors import UsageError
from stackbisect.probe import Candidate
from stackbisect.runtimes import container_options
from stackbisect.spaces import window
from stackbisect.spaces.environment import Axis

GIT_OPTIONS = ("git", "build", "first_parent", "pin_file", "build_budget")
LOCAL_OPTIONS = ("prepare", "candidates")
AXIS_OPTIONS = ("env_good", "env_bad", "env_values")

HERE = "this machine as it is"
_BUDGET = "20g"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options, in groups of their own."""
    git = parser.add_argument_group("commits")
    git.add_argument("--git", metavar="REPO", help="the repository; --good and --bad are revisions")
    git.add_argument("--build", metavar="CMD", help="run by sh in each checkout before it is tried")
    git.add_argument(
        "--first-parent",
        action="store_true",
        help="stay on the main line: not into merged branches",
    )
    git.add_argument(
        "--pin-file",
        metavar="PATH=REPO",
        action="append",
        default=[],
        help="a file that names a commit (hash, tag, version) of REPO (a path or URL)",
    )
    git.add_argument(
        "--build-budget", metavar="SIZE", help=f"of builds that are kept; default: {_BUDGET}"
    )
    local = parser.add_argument_group("candidates of your own (--runtime local)")
    local.add_argument(
        "--prepare",
        metavar="CMD",
        help="run by sh for each candidate: STACKBISECT_CANDIDATE, STACKBISECT_FOLDER",
    )
    local.add_argument(
        "--candidates", metavar="A,B,...", help="from good to bad; or --list FILE, one a line"
    )
    variables = parser.add_argument_group(
        "environment variables (with any of these, one candidate)"
    )
    for end in ("good", "bad"):
        variables.add_argument(
            f"--env-{end}",
            metavar="NAME[=VALUE]",
            action="append",
            default=[],
            help=f"set at the {end} end only; a bare NAME is taken from here, never written down",
        )
    variables.add_argument(
        "--env-values", metavar="NAME=V1,V2,...", help="one variable's values, from good to bad"
    )


def wanted(arguments: argparse.Namespace) -> str | None:
    """The runtime, where it is one of those without an index or a registry."""
    asked = arguments.runtime
    if arguments.git:
        return "git" if asked is None else str(asked)
    if asked in ("git", "local"):
        return str(asked)
    own = arguments.prepare or arguments.candidates or axis(arguments)
    if asked is None and own and not arguments.image and not arguments.package:
        return "local"
    return None


def complete(arguments: argparse.Namespace) -> None:
    """Fill in the ends that need not be said. Raises UsageError."""
    if wanted(arguments) == "local":
        listed = _listed(arguments)
        arguments.good = arguments.good or listed[0]
        arguments.bad = arguments.bad or (listed[0] if axis(arguments) else listed[-1])
    if axis(arguments) is not None:
        arguments.good = arguments.good or arguments.bad
        arguments.bad = arguments.bad or arguments.good
    if wanted(arguments) == "git" and not arguments.good:
        raise UsageError("--git: expected --good REV, found none")
    if not arguments.bad:
        raise UsageError("expected --bad (where the bits are not good), found none")


def axis(arguments: argparse.Namespace) -> Axis | None:
    """The variables that are searched; None where there are none."""
    found = Axis(tuple(arguments.env_good), tuple(arguments.env_bad), arguments.env_values)
    return None if found == Axis() else found


def axis_setup(arguments: argparse.Namespace, environ: Mapping[str, str]) -> dict[str, Any]:
    """What the journal keeps of the variables. Raises UsageError."""
    found = axis(arguments)
    if found is None:
        return {}
    found.check(environ)
    if found.bare and wanted(arguments) is None and not arguments.package:
        raise UsageError(
            f"--env-good, --env-bad: expected NAME=VALUE with containers, found "
            f"{', '.join(sorted(found.bare))} alone"
        )
    return {"environment": found.to_json()}


def setup(arguments: argparse.Namespace, runtime: str) -> dict[str, Any]:
    """What it takes to make the runtime again. Raises UsageError."""
    if runtime == "local":
        _refuse(arguments, runtime, GIT_OPTIONS)
        return {"runtime": runtime, "prepare": arguments.prepare, "env": list(arguments.env)}
    if runtime != "git" or not arguments.git:
        raise UsageError("--git REPO goes with --runtime git, and the other way round")
    _refuse(arguments, runtime, LOCAL_OPTIONS)
    from stackbisect.spaces.commits import Repository

    return {
        "runtime": runtime,
        "git": Repository(arguments.git).path,
        "build": arguments.build,
        "first_parent": arguments.first_parent,
        "pins": [_pin(text) for text in arguments.pin_file],
        "build_budget": container_options.size("--build-budget", arguments.build_budget or _BUDGET),
        "env": list(arguments.env),
    }


def space(arguments: argparse.Namespace, setup: Mapping[str, Any]) -> window.Space:
    """The candidates. Raises UsageError."""
    if setup["runtime"] == "local":
        return _named(_listed(arguments), arguments.good, arguments.bad)
    from stackbisect.spaces import commits

    return commits.space(
        commits.Repository(setup["git"]),
        arguments.good,
        arguments.bad,
        first_parent=setup["first_parent"],
    )


def name(arguments: argparse.Namespace) -> str | None:
    """What a bisection is named after; None where it is an image or a package."""
    if wanted(arguments) is None:
        return None
    return os.path.basename(os.path.abspath(arguments.git)) if arguments.git else "local"


def with_variables(found: window.Space, setup: Mapping[str, Any]) -> window.Space:
    """The candidates with variables, where these are searched."""
    if "environment" not in setup:
        return found
    from stackbisect.spaces import environment

    return environment.space(found, Axis.from_json(setup["environment"]))


def fixed(words: Sequence[str], setup: Mapping[str, Any], found: window.Space) -> list[str]:
    """The words with commits for revisions, which may name others tomorrow (HEAD, a branch)."""
    if setup["runtime"] != "git":
        return list(words)
    ends = [each.details.get("base", each.to_json()) for each in found.candidates]
    commits = {"--good": ends[0]["details"]["commit"], "--bad": ends[-1]["details"]["commit"]}
    made: list[str] = []
    for word in words:
        option, given, _ = word.partition("=")
        if made and made[-1] in commits:
            made.append(commits[made[-1]])
        else:
            made.append(f"{option}={commits[option]}" if given and option in commits else word)
    return made


def _listed(arguments: argparse.Namespace) -> list[str]:
    if arguments.candidates and arguments.list:
        raise UsageError("expected --candidates or --list, found both")
    if arguments.list:
        try:
            lines = Path(arguments.list).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--list {arguments.list}: {error}") from None
        found = [line.partition("#")[0].strip() for line in lines]
    else:
        found = (arguments.candidates or "").split(",")
    found = [each.strip() for each in found if each.strip()]
    if not found and axis(arguments) is not None:
        return [HERE]
    if not found:
        raise UsageError(
            "--runtime local: expected --candidates A,B,... or --list FILE, from good to bad"
        )
    twice = sorted({each for each in found if found.count(each) > 1})
    if twice:
        raise UsageError(f"--runtime local: these stand in the list twice: {', '.join(twice)}")
    return found


def _named(listed: list[str], good: str, bad: str) -> window.Space:
    for end in (good, bad):
        if end not in listed:
            raise window.no_such("candidate", end, listed)
    names, notes = window.cut(listed, good, bad)
    made = (Candidate(f"local:{each}", each, n) for n, each in enumerate(names))
    return window.Space(tuple(made), notes=notes)


def _pin(text: str) -> list[str]:
    path, _, repository = text.partition("=")
    if not path or not repository or os.path.isabs(path) or ".." in Path(path).parts:
        raise UsageError(
            f"--pin-file: expected PATH=REPO (a file in the checkout, a repository), found {text!r}"
        )
    is_url = re.match(r"[a-z][a-z+]*://|[^/]+@[^/]+:", repository)
    return [os.path.normpath(path), repository if is_url else _local(repository)]


def _local(repository: str) -> str:
    from stackbisect.spaces.commits import Repository

    return Repository(repository, "--pin-file").path


def _refuse(arguments: argparse.Namespace, runtime: str, others: tuple[str, ...]) -> None:
    for each in others:
        if getattr(arguments, each):
            raise UsageError(f"--{each.replace('_', '-')} does not go with --runtime {runtime}")
