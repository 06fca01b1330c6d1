"""Finds and runs the system's C compiler, for libraries of ours that are built on first use."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # importing `typing` would double the cost of starting
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Sequence

NAMES = ("cc", "gcc", "clang")
CACHE = "PINNER_CACHE_DIR"


def wanted(environ: Mapping[str, str]) -> List[str]:
    """Return the words of $CC, none where it is not set. Raises ValueError for an open quote."""
    import shlex

    return shlex.split(environ.get("CC", ""))


def program(words: Sequence[str], environ: Mapping[str, str]) -> Optional[List[str]]:
    """Return the command with its program's full path; None where there is no such program."""
    import shutil

    found = shutil.which(words[0], path=environ.get("PATH")) if words else None
    return None if found is None else [found, *words[1:]]


def identity(compiler: Sequence[str]) -> str:
    """Return what tells one compiler from its next version, without starting it."""
    path = os.path.realpath(compiler[0])  # of ccache, where several compilers are links to it
    status = os.stat(path)
    return "\n".join([*compiler, path, str(status.st_size), str(status.st_mtime_ns)])


def user_cache(environ: Mapping[str, str]) -> str:
    """Return the user's folder for what pinner builds, where PINNER_CACHE_DIR names no other."""
    home = environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(home, "pinner")


def run(command: Sequence[str], **options: Any) -> Any:
    """Run the compiler; returns the completed process, whose output is the compiler's. options:
    of `subprocess.run`."""
    import subprocess

    return subprocess.run(
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        env=_environment(),
        **options,
    )


def _environment() -> Dict[str, str]:
    """The compiler may be a script of Python's: it is no process of the session, and gets no
    preloaded library."""
    apart = ("PINNER_SESSION", "PINNER_MODE", "LD_PRELOAD")
    return {name: value for name, value in os.environ.items() if name not in apart}
