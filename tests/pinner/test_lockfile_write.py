"""Case P4: writers at once, one of them killed: no entry is lost, no reader sees a torn lock."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from pinner import durable
from pinner.lockfile.codec import read_lock, update_lock, write_lock
from pinner.lockfile.errors import LockError
from pinner.lockfile.schema import Lock
from tests import locks

REPO = Path(__file__).resolve().parents[2]

# Adds entries of its own until told to stop; says each once it is in the file.
WRITER = """
import sys
from dataclasses import replace
from pinner.lockfile.codec import update_lock
from tests import locks

path, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for size in range(first, first + count):
    update_lock(path, lambda lock: replace(lock, triton=(*lock.triton, locks.entry(size))))
    print(size, flush=True)
"""

# Runs out of room in the middle of the temporary file, or dies at a named call.
KILLED = """
import os, resource, signal, sys
from pinner import durable
from pinner.lockfile.codec import write_lock
from tests import locks

path, where = sys.argv[1], sys.argv[2]

def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)

if where == "half the file":
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
else:
    setattr(os, where, die)
with durable.one_writer(path):
    write_lock(path, locks.full_lock(range(50)))
"""


def _start(code: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=REPO,
        env={**os.environ, "PYTHONPATH": str(REPO)},
        stdout=subprocess.PIPE,
        text=True,
    )


def _sizes(lock: Lock) -> set[object]:
    return {entry.key["N"] for entry in lock.triton}


def _said(process: subprocess.Popen[str]) -> set[int]:
    assert process.stdout is not None
    return {int(line) for line in process.stdout if line.endswith("\n")}


def test_two_writers_at_once_and_one_killed_in_the_middle_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "pinner.lock.toml"
    write_lock(path, locks.lock(locks.entry(1)))
    steady = _start(WRITER, path, 1000, 40)
    doomed = _start(WRITER, path, 2000, 10_000)
    assert doomed.stdout is not None
    seen = {int(doomed.stdout.readline()) for _ in range(5)}
    doomed.send_signal(signal.SIGKILL)
    while steady.poll() is None:
        read_lock(path)  # raises where it sees less than a whole lock
    seen |= _said(doomed) | _said(steady)
    assert steady.returncode == 0
    assert len(seen) >= 45
    assert seen <= _sizes(read_lock(path))
    assert 1 in _sizes(read_lock(path))
    doomed.wait()


@pytest.mark.parametrize("where", ["half the file", "fsync", "replace"])
def test_a_writer_killed_at_any_stage_leaves_the_old_lock_and_blocks_nobody(
    tmp_path: Path, where: str
) -> None:
    path = tmp_path / "pinner.lock.toml"
    write_lock(path, locks.lock(locks.entry(1)))
    before = path.read_bytes()
    killed = _start(KILLED, path, where)
    assert killed.wait() in (-signal.SIGKILL, -signal.SIGXFSZ)
    assert path.read_bytes() == before
    update_lock(path, lambda lock: locks.lock(*lock.triton, locks.entry(2)))
    assert _sizes(read_lock(path)) == {1, 2}


def test_a_full_disk_leaves_the_old_lock_and_no_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pinner.lock.toml"
    write_lock(path, locks.lock(locks.entry(1)))
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(LockError, match="cannot write the lockfile: No space left on device"):
        write_lock(path, locks.full_lock())
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_lock_that_cannot_be_read_back_replaces_nothing(tmp_path: Path) -> None:
    path = tmp_path / "pinner.lock.toml"
    write_lock(path, locks.lock(locks.entry(1)))
    with pytest.raises(LockError):
        write_lock(path, locks.lock(locks.entry(1), locks.entry(1)))
    assert _sizes(read_lock(path)) == {1}


def test_a_change_that_fails_replaces_nothing_and_lets_the_next_one_in(tmp_path: Path) -> None:
    path = tmp_path / "pinner.lock.toml"
    write_lock(path, locks.lock(locks.entry(1)))

    def fail(lock: Lock) -> Lock:
        raise KeyError("of the caller")

    with pytest.raises(KeyError):
        update_lock(path, fail)
    update_lock(path, lambda lock: locks.lock(*lock.triton, locks.entry(2)))
    assert _sizes(read_lock(path)) == {1, 2}
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_folder_that_is_not_there_is_a_lock_error(tmp_path: Path) -> None:
    with pytest.raises(LockError, match="cannot write the lockfile"):
        write_lock(tmp_path / "absent" / "pinner.lock.toml", locks.lock())
    with pytest.raises(LockError, match="cannot update the lockfile"):
        update_lock(tmp_path / "absent" / "pinner.lock.toml", lambda lock: lock)


def test_a_link_stays_a_link_and_the_mode_stays_the_mode(tmp_path: Path) -> None:
    real, link = tmp_path / "real.toml", tmp_path / "link.toml"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    durable.replace_text(link, "new — ü\n")
    assert link.is_symlink()
    assert real.read_bytes() == "new — ü\n".encode()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640


def test_a_new_file_can_be_read_by_whom_the_umask_lets(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        durable.replace_text(tmp_path / "new", "x")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
