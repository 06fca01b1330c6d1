"""Environment variables that hold a library's choices: forced before they are read, then told.

Most are forced right before torch is imported, as whoever starts the run sets them. Some are facts
of the stack as well. One that the program itself set while recording was not there when the stack
was told, and would be a difference: it is forced where the program would set it, later.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from ... import facts, pins
from . import settings

if TYPE_CHECKING:
    from typing import Iterable, Mapping, MutableMapping, Optional

UNSET = "not set: the library's own rule decides"


def force_early(chooser: str, names: Iterable[str], environ: MutableMapping[str, str]) -> None:
    """Set what the lock forces, but for what is no fact of its stack. Called before torch."""
    told = pins.load().stack_hard
    force(
        chooser,
        [name for name in names if name not in facts.SWITCHES or "env:" + name in told],
        environ,
    )


def force(chooser: str, names: Iterable[str], environ: MutableMapping[str, str]) -> None:
    """Set what the lock forces and nobody has set. What somebody set is never changed."""
    wanted = settings.forced(chooser)
    for name in names:
        value = wanted.get(name)
        if isinstance(value, str):
            environ.setdefault(name, value)


def report(
    chooser: str,
    names: Iterable[str],
    in_force: Mapping[str, str],
    always: Iterable[str] = (),
) -> None:
    """Write the variables that are set, or that the lock has, or that are told of always.

    in_force: what the library reads
    """
    known, wanted = settings.locked(chooser), settings.forced(chooser)
    told = set(always)
    for name in names:
        if name in in_force:
            settings.report_forced(chooser, name, in_force[name], "an environment variable")
        elif name in wanted:
            settings.report(chooser, name, None, settings.RECORDED, UNSET)
            settings.contradicted(chooser, name, wanted[name], None)
        elif name in told or name in known:
            settings.report(chooser, name, None, settings.RECORDED, UNSET)


def report_files(chooser: str, names: Iterable[str], in_force: Mapping[str, str]) -> None:
    """Write the digest of what stands in the files that variables name: a path means nothing
    elsewhere."""
    for name in names:
        if in_force.get(name):
            value = digest_of(in_force[name]) or "unreadable"
            text = "digest of the file it names; keep that file with the lock"
            settings.report(chooser, name, value, settings.RECORDED, text)


def digest_of(path: str) -> Optional[str]:
    """Return the digest of a file's content, or None where it cannot be read."""
    try:
        with open(os.path.expanduser(path), "rb") as source:
            return "sha256:" + hashlib.sha256(source.read()).hexdigest()
    except OSError:
        return None
