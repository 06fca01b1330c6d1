"""Looks at the command's processes through /proc for Python that runs without pinner.

What counts is what a process has loaded. One that maps torch's or Triton's library and writes no
ledger decides things that nobody records or pins: pins are broken. A Python process without pinner
that never loads either (a system tool written in Python, say) can decide nothing and is only named.

A ledger speaks for one program, not for all that its process becomes by exec: it belongs to the
program that holds it open, or that ran under its process id, in the right environment, when it
appeared.

Looking happens a few times a second and never stops a process. What lives shorter than that can be
missed; a command that is nothing but such processes is caught by having no ledger at all.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pinner.inside import start
from pinner.launch import command_line
from pinner.launch.session_dir import SESSION

_LIBRARIES = re.compile(rb"/(lib(?:torch|triton)[\w.+-]*\.so[\w.]*)")
# HOST-PID-NONCE.jsonl, as inside/ledger.py names them.
_LEDGER_NAME = re.compile(r"(.+)-(\d+)-[0-9a-zA-Z]+\.jsonl$")

# A process that imports torch opens its ledger first. One that has torch loaded for this long
# without a ledger, though its environment is right, was started in a way nobody foresaw.
LEDGER_GRACE_S = 5.0
# Programs of torch's own that load its library and compute nothing.
_HELPERS = ("torch_shm_manager",)
# The same for programs that Python runs: they open a ledger where they decide something.
_WORKERS = start.WORKERS
# Looking may take this share of one CPU.
_SHARE = 0.05


# A process's id and start time, and what a fork shares and an exec does not (`_Status.image`).
_Place = tuple[int, str, tuple[str, ...]]


@dataclass(frozen=True)
class Unpinned:
    """A process that ran without pinner.

    loaded: the library of torch or Triton it had loaded; "" for Python that had neither.
    """

    pid: int
    command: str
    cause: str
    loaded: str

    @property
    def text(self) -> str:
        """One line for people."""
        what = f"with {self.loaded}" if self.loaded else "without torch or triton"
        return f"process {self.pid} ({what}) ran unpinned: {self.cause}: {self.command}"

    def to_json(self) -> dict[str, str | int]:
        """The finding as plain JSON values."""
        return {
            "pid": self.pid,
            "command": self.command,
            "cause": self.cause,
            "loaded": self.loaded,
        }


@dataclass(frozen=True)
class _Status:
    """One line of /proc: parent, start time, and what a fork shares and an exec does not.

    image: where code and stack begin (the stack's place is drawn at random at every exec); empty
    where that is not ours to read.
    """

    parent: int
    started: str
    image: tuple[str, ...]


@dataclass
class _Seen:
    """What is known of one program in one process.

    own_pid: its process id as it sees it itself, which its ledger bears. pinned: it has a ledger.
    """

    own_pid: int
    argv: list[str]
    python: bool
    cause: str
    pinned: bool = False
    loaded: str = ""
    loaded_since: float | None = None
    loaded_until: float = 0.0


@dataclass
class Watch:
    """Follows a process and its descendants; `look` from time to time, `findings` at the end.

    session, inject: what PINNER_SESSION and PYTHONPATH of a process under pinner hold.
    ledger: the folder of ledgers. proc: where /proc is. clock, spent: seconds, and those of CPU.
    reaper: a process that is given the orphans of the family; 0 for none. strangers: children of
    its own, of before the root was started.
    """

    root: int
    session: str
    inject: str
    ledger: Path
    host: str = field(default_factory=lambda: os.uname().nodename)
    proc: Path = Path("/proc")
    clock: Callable[[], float] = time.monotonic
    spent: Callable[[], float] = time.thread_time
    reaper: int = 0
    strangers: frozenset[int] = frozenset()
    _seen: dict[_Place, _Seen] = field(default_factory=dict)
    _family: dict[int, _Status] = field(default_factory=dict)
    _foreign: set[int] = field(default_factory=set)
    _claimed: set[str] = field(default_factory=set)
    _rest_until: float = 0.0

    def look(self, *, rested: bool = False) -> None:
        """One look; skipped where the last one was so slow that it would be felt.

        rested: look all the same.
        """
        begun, spent = self.clock(), self.spent()
        if begun < self._rest_until and not rested:
            return
        names = frozenset(_names(self.ledger))  # first: one that appears later is claimed later
        programs = self._programs()
        self._claim(names, programs.values())
        pinned = {image for (_, _, image), seen in self._seen.items() if seen.pinned and image}
        for (pid, _, image), seen in programs.items():
            if not seen.pinned and image not in pinned:
                self._look_at(pid, seen, begun, names)
        self._rest_until = begun + (self.spent() - spent) / _SHARE

    def descendants(self) -> tuple[int, ...]:
        """The process ids below the root that live now."""
        return tuple(pid for pid in self._relatives() if pid != self.root)

    def living(self) -> tuple[int, ...]:
        """Every process of the command that lives now, wherever it belongs by now."""
        family = (
            pid for pid in self._relatives() if _read(self.proc / str(pid) / "cmdline")
        )  # a zombie has none
        return tuple(sorted({*family, *self.members()}))

    def members(self) -> tuple[int, ...]:
        """Every process that lives now and was started in this session, orphans too."""
        wanted = f"{SESSION}={self.session}".encode()
        listed = (int(name) for name in _names(self.proc) if name.isdigit())
        return tuple(
            pid
            for pid in listed
            if wanted in (_read(self.proc / str(pid) / "environ") or b"").split(b"\0")
        )

    def reported(self) -> int:
        """How many processes have a ledger by now."""
        return sum(1 for name in _names(self.ledger) if _LEDGER_NAME.match(name))

    def findings(self) -> tuple[Unpinned, ...]:
        """The processes that ran without pinner, those with torch or Triton first."""
        late = self._pids_of(set(_names(self.ledger)) - self._claimed)
        places = self._seen.items()
        pinned = {place for place, seen in places if seen.pinned or _is_heir(seen, late)}
        images = {image for _, _, image in pinned if image}
        found = []
        for place, seen in places:
            if place in pinned or place[2] in images:
                continue  # or forked from one that takes part: the chooser's hooks are in it
            cause = seen.cause or _unforeseen(seen)
            if cause and (seen.loaded or seen.python):
                found.append(Unpinned(place[0], _one_line(seen.argv), cause, seen.loaded))
        return tuple(sorted(found, key=lambda item: (not item.loaded, item.pid)))

    def _pids_of(self, names: Iterable[str]) -> set[int]:
        """The process ids of this host that have one of these ledgers."""
        here = "".join(c if c.isalnum() or c in "._" else "_" for c in self.host)
        matches = (_LEDGER_NAME.match(name) for name in names)
        return {int(match.group(2)) for match in matches if match and match.group(1) == here}

    def _claim(self, names: frozenset[str], living: Collection[_Seen]) -> None:
        """Gives each new ledger to the program that runs under its process id now.

        One that lives in an environment which keeps pinner out has taken the process over.
        """
        for name in names - self._claimed:
            heirs = [seen for seen in living if _is_heir(seen, self._pids_of([name]))]
            for seen in heirs:
                seen.pinned = True
            if heirs:
                self._claimed.add(name)

    def _programs(self) -> dict[_Place, _Seen]:
        """What runs in each process of the family, where that can be told already."""
        found = {}
        for pid, status in self._relatives().items():
            place = (pid, status.started, status.image)
            seen = self._seen.get(place) or self._first_look(pid)
            if seen is not None:
                self._seen[place] = found[place] = seen
        return found

    def _relatives(self) -> dict[int, _Status]:
        """The root and its descendants.

        A process stays in the family when its parent ends, and belongs to it where it was orphaned
        before the first look. Strangers are looked at once, so that a machine with thousands of
        processes costs little more than listing them.
        """
        listed = {int(name) for name in _names(self.proc) if name.isdigit()}
        self._foreign &= listed
        found = {pid: _status(self.proc, pid) for pid in listed - self._foreign}
        alive = {pid: status for pid, status in found.items() if status is not None}
        known = {
            pid
            for pid, status in alive.items()
            if pid == self.root
            or (pid in self._family and self._family[pid].started == status.started)
            or (status.parent == self.reaper != 0 and pid not in self.strangers)
        }
        lines = {pid: _line(pid, known, alive) for pid in alive}
        self._family = {pid: status for pid, status in alive.items() if lines[pid] in known}
        strange = self._foreign | {0}
        self._foreign |= {pid for pid, oldest in lines.items() if oldest in strange}
        return self._family

    def _look_at(self, pid: int, seen: _Seen, moment: float, names: frozenset[str]) -> None:
        seen.loaded = seen.loaded or self._loaded(pid)
        if seen.loaded:
            seen.loaded_since = moment if seen.loaded_since is None else seen.loaded_since
            seen.loaded_until = moment
        if seen.loaded or (seen.python and seen.cause):
            seen.pinned = not names.isdisjoint(_open_files(self.proc, pid))

    def _first_look(self, pid: int) -> _Seen | None:
        argv = _words(self.proc / str(pid) / "cmdline")
        if not argv:
            return None  # gone, or on its way out
        executable = _link(self.proc / str(pid) / "exe") or argv[0]
        python = command_line.is_python(executable)
        cause = self._cause(pid, argv if python else [])
        return _Seen(_own_pid(self.proc, pid), argv, python, cause)

    def _cause(self, pid: int, python_argv: list[str]) -> str:
        """Why the injection cannot work in this process, or ""."""
        flag = command_line.isolating_flag(python_argv)
        if flag:
            return f"python {flag} keeps pinner out"
        environ = _environ(self.proc, pid)
        if environ is None:
            return ""  # another user's process, or one that hides: nothing can be said
        if environ.get(SESSION) is None:
            return f"its environment was cleared ({SESSION} is not set)"
        if environ[SESSION] != self.session:
            return f"it belongs to another run ({SESSION}={environ[SESSION]})"
        if self.inject not in environ.get("PYTHONPATH", "").split(os.pathsep):
            return "PYTHONPATH was overwritten"
        return ""

    def _loaded(self, pid: int) -> str:
        match = _LIBRARIES.search(_read(self.proc / str(pid) / "maps") or b"")
        return match.group(1).decode("ascii", "replace") if match else ""


def _unforeseen(seen: _Seen) -> str:
    if seen.loaded_since is None or seen.loaded_until - seen.loaded_since < LEDGER_GRACE_S:
        return ""
    if os.path.basename(seen.argv[0]) in _HELPERS:
        return ""
    if seen.python and any(word.endswith(_WORKERS) for word in seen.argv[1:]):
        return ""
    return "its environment is right, but it has no ledger"


def _is_heir(seen: _Seen, pids: Collection[int]) -> bool:
    return not seen.cause and seen.own_pid in pids


def _line(pid: int, known: Collection[int], alive: Mapping[int, _Status]) -> int:
    """The first known ancestor of a process, itself included; else the first that is not alive.

    That is one of another family or, where it ended while all were read, nobody.
    """
    for _ in range(len(alive)):
        if pid in known or pid not in alive:
            break
        pid = alive[pid].parent
    return pid


def _own_pid(proc: Path, pid: int) -> int:
    """A process's id as `os.getpid` tells it there: a container may count from 1."""
    text = (_read(proc / str(pid) / "status") or b"").decode("ascii", "replace")
    match = re.search(r"^NSpid:.*\s(\d+)$", text, re.MULTILINE)
    return int(match.group(1)) if match else pid


def _open_files(proc: Path, pid: int) -> Iterator[str]:
    """The names of the files a process holds open. An exec closes its ledger."""
    folder = proc / str(pid) / "fd"
    return (os.path.basename(_link(folder / name) or "") for name in _names(folder))


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _status(proc: Path, pid: int) -> _Status | None:
    """None where the process is gone."""
    text = (_read(proc / str(pid) / "stat") or b"").decode("ascii", "replace")
    fields = text.rpartition(")")[2].split()  # from the third on: the second may hold anything
    if len(fields) < 26:
        return None
    readable = fields[25] != "0"
    return _Status(int(fields[1]), fields[19], (fields[23], fields[25]) if readable else ())


def _words(path: Path) -> list[str]:
    data = _read(path) or b""
    return [word.decode("utf-8", "replace") for word in data.split(b"\0") if word]


def _environ(proc: Path, pid: int) -> dict[str, str] | None:
    """The environment a process was started with; None where it cannot be read."""
    data = _read(proc / str(pid) / "environ")
    if data is None:
        return None
    pairs = (word.decode("utf-8", "replace").partition("=") for word in data.split(b"\0") if word)
    return {name: value for name, _, value in pairs}


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _link(path: Path) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None


def _one_line(argv: list[str]) -> str:
    text = " ".join(argv)
    return text if len(text) <= 200 else text[:197] + "..."
