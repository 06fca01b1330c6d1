"""Reads what was asked for about Slurm: that probes are jobs, and sbatch's arguments."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from typing import Any

from stackbisect.errors import UsageError

# What the program says itself, or knows a job by.
_OURS = {
    "--array": "-a",
    "--chdir": "-D",
    "--comment": "",
    "--error": "-e",
    "--job-name": "-J",
    "--open-mode": "",
    "--output": "-o",
    "--parsable": "",
    "--test-only": "",
    "--wait": "-W",
    "--wrap": "",
}


# Their values are options of other programs.
_OTHERS_OPTIONS = ("--index-args", "--sbatch-args")


def joined(words: Sequence[str]) -> list[str]:
    """`--sbatch-args -n2` as one word: argparse would take the second for an option of ours."""
    found: list[str] = []
    for word in words:
        if found and found[-1] in _OTHERS_OPTIONS:
            found[-1] += f"={word}"
        else:
            found.append(word)
    return found


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    group = parser.add_argument_group("Slurm (--runtime slurm: each probe is a job)")
    group.add_argument(
        "--sbatch-args",
        metavar="ARGS",
        default="",
        help='passed on to sbatch: "--partition=x --nodes=2 --gpus-per-node=8"',
    )


def setup(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the journal keeps of it; {} without Slurm. Raises UsageError.

    What runs in the jobs is asked for by the other options, as without Slurm; these find no
    --runtime then.
    """
    given = shlex.split(arguments.sbatch_args)
    if arguments.runtime == "slurm":
        arguments.runtime, arguments.in_slurm = None, True
    if not getattr(arguments, "in_slurm", False):
        if given:
            raise UsageError("--sbatch-args is for --runtime slurm")
        return {}
    _check(given)
    return {"slurm": {"arguments": given}}


def _check(given: list[str]) -> None:
    for word in given:
        if word.partition("=")[0] == "--clusters" or word[:2] == "-M":
            raise UsageError(
                f"--sbatch-args: {word}: set SLURM_CLUSTERS instead, which all of Slurm's programs "
                "heed; sbatch alone would put jobs where nobody sees them"
            )
        for long, short in _OURS.items():
            # "-Jname" is one word; "-D" must not be taken for the beginning of "--dependency".
            if word.partition("=")[0] == long or (short and word[:2] == short):
                raise UsageError(
                    f"--sbatch-args: {word} is for stackbisect to say; leave it out (the output "
                    "of a job: stackbisect log NAME PROBE)"
                )
