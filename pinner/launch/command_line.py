"""Reads a command line for what would keep pinner out of its Python processes. Pure."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_PYTHON = re.compile(r"^(python|pypy)(\d+(\.\d+)*t?)?(-dbg|d)?$")
_WITH_VALUE = ("--check-hash-based-pycs",)
# Programs that start the program named further on in their arguments.
_WRAPPERS = (
    *("chrt", "env", "ionice", "mpiexec", "mpirun", "nice", "nohup", "numactl", "setsid", "srun"),
    *("stdbuf", "strace", "sudo", "taskset", "time", "timeout"),
)
_ACROSS_HOSTS = ("mpiexec", "mpirun", "srun")
_SHELLS = ("sh", "bash", "dash", "ksh", "zsh")
_CONTAINERS = ("docker", "podman", "nerdctl", "apptainer", "singularity", "enroot")
_ELSEWHERE = ("ssh", "kubectl", "sbatch", "ray", "flux", "pdsh")


@dataclass(frozen=True)
class Obstacle:
    """Something in a command that stops the injection.

    certain: no process of this command can take part; otherwise it may be meant and harmless.
    """

    text: str
    certain: bool


def is_python(executable: str) -> bool:
    """Whether a path or name is a Python interpreter's."""
    return bool(_PYTHON.match(os.path.basename(executable)))


def isolating_flag(argv: Sequence[str]) -> str | None:
    """The option of a Python command line that keeps `sitecustomize` or PYTHONPATH out, or None.

    argv[0] is the interpreter. `-I` isolates, `-E` ignores the environment, `-S` skips site.
    """
    words = iter(argv[1:])
    for word in words:
        if word == "-" or not word.startswith("-"):
            return None  # a script: what follows is its own
        if word.startswith("--"):
            if word in _WITH_VALUE:
                next(words, None)
            continue
        for place, letter in enumerate(word[1:], start=1):
            if letter in "IES":
                return f"-{letter}"
            if letter in "cm":
                return None
            if letter in "WX":
                if place == len(word) - 1:
                    next(words, None)
                break
    return None


def obstacles(argv: Sequence[str]) -> tuple[Obstacle, ...]:
    """What in this command would start processes that pinner cannot reach."""
    found: list[Obstacle] = []
    for index, word in enumerate(argv):
        obstacle = _obstacle(argv[index:], certain=index == 0)
        if obstacle is not None:
            found.append(obstacle)
        if is_python(word) or os.path.basename(argv[0]) not in _WRAPPERS:
            break  # what follows belongs to the program
    return tuple(found)


def needs_shared_folder(argv: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """A hint where the command will start processes on other hosts, which share no /tmp."""
    nodes = environ.get("SLURM_JOB_NUM_NODES", "1")
    if os.path.basename(argv[0]) not in _ACROSS_HOSTS or nodes in ("", "1"):
        return None
    return f"this job has {nodes} nodes: give --dir a folder that all of them see"


def script_of(argv: Sequence[str]) -> tuple[str, str] | None:
    """The shell script that a command runs: ("text", …) of `sh -c`, or ("file", path)."""
    if not argv or os.path.basename(argv[0]) not in _SHELLS:
        return ("file", argv[0]) if argv and argv[0].endswith(".sh") else None
    for place, word in enumerate(argv[1:], start=1):
        if re.match(r"-[a-z]*c$", word):
            return ("text", argv[place + 1]) if place + 1 < len(argv) else None
        if not word.startswith("-"):
            return ("file", word)
    return None


def obstacles_in_script(text: str) -> tuple[Obstacle, ...]:
    """Lines of a shell script that look as if they kept pinner out; none of it is certain."""
    found: dict[str, None] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        for obstacle in _in_line(line):
            found.setdefault(f"line {number} ({line.strip()[:80]}): {obstacle}")
    return tuple(Obstacle(text, certain=False) for text in found)


def _in_line(line: str) -> list[str]:
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        words = line.split()
    found = []
    for place, word in enumerate(words):
        name, _, value = word.partition("=")
        if name == "PYTHONPATH" and "=" in word and "PYTHONPATH" not in value:
            found.append("PYTHONPATH is overwritten: keep what it holds, PYTHONPATH=…:$PYTHONPATH")
        obstacle = _obstacle(words[place:], certain=False)
        if obstacle is not None:
            found.append(obstacle.text)
    return found


def _obstacle(argv: Sequence[str], certain: bool) -> Obstacle | None:
    name = os.path.basename(argv[0])
    if is_python(name):
        flag = isolating_flag(argv)
        if flag is None:
            return None
        return Obstacle(
            f"{name} {flag} ignores PYTHONPATH or sitecustomize: run it without {flag}", certain
        )
    if name == "env" and _clears_environment(argv):
        return Obstacle("env -i clears the environment: put it in front of pinner instead", certain)
    if name == "sudo":
        return Obstacle("sudo resets the environment: run pinner itself under sudo", False)
    if name == "srun" and _exports_nothing(argv):
        return Obstacle("srun --export keeps the environment back: use --export=ALL", False)
    if name in _CONTAINERS and len(argv) > 1:
        return Obstacle(
            f"{name} starts processes without this environment: run pinner inside the container, "
            "or give it the variables of `pinner env`",
            False,
        )
    if name in _ELSEWHERE and len(argv) > 1:
        return Obstacle(
            f"{name} starts processes elsewhere: give them the variables of `pinner env`", False
        )
    return None


def _clears_environment(argv: Sequence[str]) -> bool:
    for argument in argv[1:]:
        if argument in ("-", "--ignore-environment"):
            return True
        if re.match(r"-[0v]*i", argument):
            return True
        if not argument.startswith("-"):
            return False
    return False


def _exports_nothing(argv: Sequence[str]) -> bool:
    for index, argument in enumerate(argv[1:], start=1):
        value = None
        if argument.startswith("--export="):
            value = argument.partition("=")[2]
        elif argument == "--export" and index + 1 < len(argv):
            value = argv[index + 1]
        if value is not None:
            return "ALL" not in value.upper().split(",")
    return False
