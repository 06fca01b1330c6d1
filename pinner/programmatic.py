"""`pinner.enforce(lockfile)`: for programs that start themselves, without `pinner enforce`."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pinner.inside import activate, ledger
from pinner.inside.faults import PinnerError, say

if TYPE_CHECKING:
    from pinner.launch.session_dir import CublasLt, OnMiss, SessionDir
    from pinner.lockfile.schema import Lock

# Pins were broken: the exit code of `pinner enforce`, too.
BROKEN = 97


def enforce(
    lockfile: str | os.PathLike[str],
    *,
    on_miss: OnMiss = "fallback",
    allow: Sequence[str] = (),
    allow_draft: bool = False,
    cublaslt: CublasLt = "auto",
) -> None:
    """Enforce a lock in this process and in all that it starts. Call it before `import torch`.

    lockfile: path of the `pinner.lock.toml`
    on_miss: what becomes of a key that is not locked: "fallback" (by rule), "error", "tune"
    allow: names of hard stack facts that may differ
    allow_draft: whether a lock that no run has validated is taken
    cublaslt: whether a library is put in front of cuBLASLt: "auto" (where torch is built for CUDA
        and the lock was made with it), "on" (at once, also for a program that uses cuBLASLt
        without torch) or "off", which is refused where the lock holds choices of cuBLASLt

    Where pinner started this process with the same lock, or is recording, nothing happens. Raises
    PinnerError where the lock cannot be read or is a draft, where torch or triton is imported
    already, and where another lock is enforced. At exit one line on stderr says what became of
    each locked choice.

    Where pins were broken in this process or in one that it started (a locked choice could not be
    forced; under on_miss="error" also one that was missed or drifted), the program ends with 97, as
    `pinner enforce` does, after all of its exit callbacks. An uncaught exception keeps its 1. The
    code of `sys.exit` cannot be known at that point, so 97 takes the place of any, except in a
    child of multiprocessing. A program that is killed or ends by `os._exit` says nothing. Unlike
    `pinner enforce` this watches no processes: a child that runs without pinner (`python -I`, a
    cleared environment) is not noticed.
    """
    from pinner.launch.enforce import LockRefused, check_watched, load
    from pinner.policy import apply

    if cublaslt not in ("auto", "on", "off"):
        raise PinnerError(f'expected "auto", "on" or "off" for cublaslt, found {cublaslt!r}')
    try:
        lock, digest = load(Path(lockfile), allow_draft=allow_draft, allow=allow)
        check_watched(lock, cublaslt)
    except LockRefused as error:
        raise PinnerError(str(error)) from None
    if activate.is_enforced_already(digest):
        return
    activate.refuse_if_too_late()
    found = [*apply.differing(lock.policy, os.environ, allow), *apply.late(lock.policy, os.environ)]
    if found:
        raise PinnerError("; ".join(found))
    folder = Path(tempfile.mkdtemp(prefix="pinner-enforce-"))
    wanted = _Wanted(on_miss, tuple(allow), cublaslt)
    session = _session(folder, lock, digest, wanted)
    activate.begin(str(session.path))
    owner = os.getpid()

    def close() -> None:
        if os.getpid() == owner:
            _close(folder, session, lock, on_miss)

    if _is_multiprocessing_child():
        from multiprocessing import util

        util.Finalize(
            None, close, exitpriority=-1001
        )  # it runs no exit callbacks; after the ledger
    else:
        ledger.at_exit(close)


class _Wanted(NamedTuple):
    """What the program asked for, beside the lock."""

    on_miss: OnMiss
    allow: tuple[str, ...]
    cublaslt: CublasLt


def _session(folder: Path, lock: Lock, digest: str, wanted: _Wanted) -> SessionDir:
    from pinner.launch import session_dir
    from pinner.lockfile.compiled import pins_text

    settings = session_dir.Settings(
        mode="enforce",
        run="enforce",
        created=session_dir.now(),
        on_miss=wanted.on_miss,
        evidence=False,
        allow=wanted.allow,
        cublaslt=wanted.cublaslt,
        hidden_pythonpath=session_dir.hidden_pythonpath(os.environ),
    )
    return session_dir.create(folder / "enforce", settings, pins_text(lock, digest))


def _close(folder: Path, session: SessionDir, lock: Lock, on_miss: OnMiss) -> None:
    """Say what became of the lock, remove the session's folder, and see to the exit code."""
    from pinner.launch.collect import collect
    from pinner.launch.coverage import cover
    from pinner.lockfile.errors import LedgerError

    try:
        coverage = cover(lock, collect(session).ledgers)
    except (LedgerError, OSError) as error:
        broken = [f"what the processes did cannot be read: {error}"]
        closing = []
    else:
        broken = [coverage.broken_text(name) for name in coverage.broken(on_miss)]
        closing = [*(f"note: {text}" for text in coverage.notes), *coverage.closing()]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    _flush()
    say(*(f"broken pins: {text}" for text in broken), *closing)
    if broken and not _fails_already():
        _end_with(BROKEN)


def _fails_already() -> bool:
    """Whether an exception ends this process, with a code that is not 0 in any case.

    `sys.last_traceback` alone does not tell: whoever prints an exception and goes on may set it.
    One that ended the program has left the outermost frame of the main module.
    """
    error = sys.exc_info()[1]  # multiprocessing runs finalizers while one is on its way
    if error is not None:
        return not isinstance(error, SystemExit) or error.code not in (None, 0)
    traceback = getattr(sys, "last_traceback", None)
    if traceback is None or sys.flags.interactive or hasattr(sys, "ps1"):
        return False
    frame = traceback.tb_frame
    if frame.f_code.co_name == "_run_module_as_main":  # python -m
        return True
    program = frame.f_globals is vars(sys.modules["__main__"])
    return program and frame.f_code.co_filename != "<console>"  # what code.interact runs


class _Last:
    """Ends the process when the interpreter lets go of it, which is after all exit callbacks."""

    def __init__(self, code: int) -> None:
        self._code = code

    def __del__(self, end: Callable[[int], object] = os._exit) -> None:
        end(self._code)  # bound above: the module may be empty by now


def _end_with(code: int) -> None:
    """Makes `code` the exit code of this process, which is ending.

    An exit callback that ended it at once would take their turn from those that were registered
    before `enforce` was called.
    """
    if _is_multiprocessing_child():
        os._exit(code)  # its finalizers have run, and nothing else ever would
    # CPython clears the dictionary of `sys` itself, whoever else may still refer to a module.
    sys._pinner_last = _Last(code)  # type: ignore[attr-defined]


def _is_multiprocessing_child() -> bool:
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
