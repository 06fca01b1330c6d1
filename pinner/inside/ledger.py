"""What this process saw, as append-only JSON lines in a file of its own.

Each line is one `write` to a file opened with O_APPEND, made at the moment of the decision it
tells of: a process that is killed, or that ends with `os._exit`, has lost nothing. A child that
was forked opens its own file.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time

from . import VERSION, faults, imports, session

TYPE_CHECKING = False  # importing `typing` would double the cost of starting
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Callable, Dict, List, Optional, Tuple

_LAYOUTS = (
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("ompi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("pmi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
)
"""Where a process is told its rank. Slurm's world is the step's: a batch script is no rank."""


class _File:
    """The open ledger of one process."""

    __slots__ = ("fd", "identity", "path", "pid")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self.fd = fd
        self.pid = os.getpid()
        self.identity = _identity(fd)


_lock = threading.RLock()
_file: Optional[_File] = None
_at_first_line: List[Callable[[], object]] = []
_exit_callbacks: List[Callable[[], object]] = []
_followers: List[Callable[[Dict[str, Any]], object]] = []
_exit_pid: Optional[int] = None
_prepared = False


def prepare() -> None:
    """Check that the session's ledger folder takes files, and follow forks from here on.

    Raises StartFault where the folder is missing or read-only: decisions would be lost.
    """
    global _prepared
    _check_folder()
    if _prepared:
        return
    _prepared = True
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork
    )
    atexit.register(_run_exit)
    imports.after("multiprocessing.util", _follow_multiprocessing)


def write(line: Dict[str, Any], sync: bool = False) -> None:
    """Append `line`; with `sync` it is on the disk when this returns. No session: nothing.

    The first line of a process is preceded by who it is, and by its stack facts.
    Ends the process where the line cannot be written.
    """
    active = session.current()
    if active is None:
        return
    with _lock:
        if _opened() is None:
            _open(active)
            _run_at_first_line()
        _append(line, sync)
    for callback in _followers:
        callback(line)


def follow(callback: Callable[[Dict[str, Any]], object]) -> None:
    """Call `callback(line)` after each line that was written in this process."""
    _followers.append(callback)


def open_now() -> None:
    """Open this process's ledger, if a session is active, so that it counts as taking part."""
    active = session.current()
    if active is None:
        return
    with _lock:
        if _opened() is None:
            _open(active)


def is_open() -> bool:
    """True once this process, not a parent it was forked from, has a ledger."""
    return _opened() is not None


def at_first_line(callback: Callable[[], object]) -> None:
    """Call `callback()` in each process before the first line that something else writes.

    Where the ledger was opened by `open_now`, whoever opened it writes what belongs there.
    """
    _at_first_line.append(callback)


def at_exit(callback: Callable[[], object]) -> None:
    """Call `callback()` once at the normal end of this process and of every child forked from it.

    Children of `multiprocessing` end with `os._exit` and never run `atexit`; there the callback
    runs with multiprocessing's own finalizers, after all of theirs. Callbacks run last to first;
    an exception in one ends the process as a fault.
    """
    _exit_callbacks.append(callback)


def now() -> str:
    """Return the time in UTC, ISO 8601 with milliseconds."""
    stamp = time.time()
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(stamp))
    return "%s.%03dZ" % (whole, int(stamp * 1000) % 1000)


def layout() -> Dict[str, Any]:
    """Return {"rank", "world", "local_rank", "rank_from"} as the launcher of this process says."""
    for source, rank, world, local in _LAYOUTS:
        found = [_int(name) for name in (rank, world, local)]
        if found[0] is not None and found[1] is not None:
            return dict(zip(("rank", "world", "local_rank"), found), rank_from=source)
    return {"rank": None, "world": None, "local_rank": None, "rank_from": None}


def _int(name: str) -> Optional[int]:
    try:
        return int(os.environ.get(name, ""))
    except ValueError:
        return None


def _check_folder() -> None:
    active = session.current()
    if active is None:
        return
    folder = active.ledger_folder
    if not os.path.isdir(folder):
        raise faults.StartFault("expected the ledger folder %s, found none" % folder)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise faults.StartFault(
            "cannot write what this process decides: the ledger folder %s is not writable (%s)"
            % (folder, _why_not(folder))
        )


def _why_not(folder: str) -> str:
    """Return the system's own words for why no file can be made in `folder`."""
    path = os.path.join(folder, ".probe-%d-%s" % (os.getpid(), os.urandom(4).hex()))
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as error:
        return error.strerror or str(error)
    os.unlink(path)
    return "access denied"


def _opened() -> Optional[_File]:
    if _file is not None and _file.pid == os.getpid():
        return _file
    return None


def _open(active: session.Session) -> None:
    global _file
    name = "%s-%d-%s.jsonl" % (plain_host(), os.getpid(), os.urandom(6).hex())
    path = os.path.join(active.ledger_folder, name)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)
    except OSError as error:
        faults.die("cannot open the ledger %s: %s" % (path, error.strerror))
    _file = _File(path, fd)
    _append(identity(active), False)


def identity(active: session.Session) -> Dict[str, Any]:
    """Return the line that says which process this is, the first of every ledger."""
    line = {
        "t": "process",
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "host": os.uname().nodename,
        "argv": _command_line(),
        "executable": sys.executable,
        "python": "%d.%d.%d" % sys.version_info[:3],
        "mode": active.mode,
        "run": active.run,
        "time": now(),
        "inside": VERSION,
    }
    line.update(layout())
    return line


def _command_line() -> List[str]:
    """Return sys.argv; a module by its name, which `sys.argv` lacks until its package was imported.

    `python -m torch.distributed.run` imports torch, and so opens its ledger, before that.
    """
    argv = list(getattr(sys, "argv", []))
    original: List[str] = getattr(sys, "orig_argv", [])  # Python 3.10
    if argv[:1] != ["-m"] or "-m" not in original:
        return argv
    return original[original.index("-m") + 1 :][:1] + argv[1:]


def plain_host() -> str:
    """Return the name of this host as it can stand in file names."""
    return "".join(c if c.isalnum() or c in "._" else "_" for c in os.uname().nodename) or "host"


def _run_at_first_line() -> None:
    for callback in list(_at_first_line):
        callback()


def _append(line: Dict[str, Any], sync: bool) -> None:
    import json

    file = _opened()
    if file is None:
        return
    data = (json.dumps(line, separators=(",", ":")) + "\n").encode("ascii")
    try:
        _reopen_if_taken(file)
        written = os.write(file.fd, data)
        while written < len(data):  # a full disk takes a part, and the next write says so
            written += os.write(file.fd, data[written:])
        if sync:
            os.fsync(file.fd)
    except OSError as error:
        faults.die("cannot write the ledger %s: %s" % (file.path, error.strerror))


def _reopen_if_taken(file: _File) -> None:
    """Open the file again where the program closed our descriptor, or it means another file now.

    Programs that become daemons close every descriptor they did not open themselves.
    """
    if _identity(file.fd) != file.identity:
        file.fd = os.open(file.path, os.O_WRONLY | os.O_APPEND)


def _identity(fd: int) -> Optional[Tuple[int, int]]:
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return (status.st_dev, status.st_ino)


def _before_fork() -> None:
    """Wait for a thread that is writing.

    Its first line imports modules, and a child that is forked meanwhile waits for their import
    locks for ever: the thread that holds them is not there.
    """
    _lock.acquire()


def _after_fork_in_parent() -> None:
    _lock.release()


def _after_fork() -> None:
    global _lock, _file
    _lock = threading.RLock()  # the copy of a lock that the parent's thread holds
    if _file is not None and _identity(_file.fd) == _file.identity:
        os.close(_file.fd)
    _file = None


def _follow_multiprocessing(util: ModuleType) -> None:
    """Run what is due at exit in multiprocessing's children, however they were made.

    Each child, also one of `spawn`, begins by clearing its finalizers and running what
    `register_after_fork` was given, and ends by running its finalizers.
    """

    def finalize(_: object) -> None:
        util.Finalize(None, _run_exit, exitpriority=-1000)

    util.register_after_fork(_run_exit, finalize)


def _run_exit() -> None:
    global _exit_pid
    if _exit_pid == os.getpid():
        return
    _exit_pid = os.getpid()
    try:
        for callback in reversed(list(_exit_callbacks)):
            callback()
    except Exception as error:
        faults.die("cannot finish what this process decided: %s" % faults.describe(error))
    if is_open():
        write({"t": "end", "time": now()})
