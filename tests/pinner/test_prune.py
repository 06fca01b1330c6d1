"""`pinner prune` on real processes: what no run used goes, the rest stays, it is sealed anew."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from pinner.lockfile.codec import dumps, read_lock
from pinner.lockfile.prune import without
from tests.command_rig import Pinner, Said, python
from tests.locks import every_chooser

LOCK = "pinner.lock.toml"
DECIDING = python("deciding.py")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a sealed lock of four keys of one kernel."""
    pinner = Pinner(tmp_path_factory.mktemp("recorded"))
    assert pinner("record", "--", *DECIDING, SIZES="32,64,128,256").code == 0
    return pinner.folder


@pytest.fixture
def pinner(recorded: Path, tmp_path: Path) -> Pinner:
    shutil.copytree(recorded, tmp_path, dirs_exist_ok=True)
    return Pinner(tmp_path)


def sizes(pinner: Pinner, name: str = LOCK) -> set[object]:
    return {entry.key["n"] for entry in read_lock(pinner.path(name)).triton}


def tables(text: str) -> list[str]:
    """The entries, fallbacks and settings of a lock as they stand in the file."""
    kinds = ("[[triton", "[[inductor", "[[cublaslt", "[[setting")
    return [part.strip() for part in text.split("\n\n") if part.startswith(kinds)]


def refused(pinner: Pinner, said: Said, before: bytes) -> str:
    """The reason of a command that must have written nothing."""
    assert said.code != 0
    assert [path.name for path in pinner.folder.iterdir() if "lock" in path.name] == [LOCK]
    assert pinner.path(LOCK).read_bytes() == before
    return said.text


def test_what_is_not_used_goes_by_name_and_the_rest_stays_byte_for_byte(pinner: Pinner) -> None:
    before = pinner.path(LOCK).read_text()
    dry = pinner("prune", "--dry-run", "--", *DECIDING, SIZES="64,256")
    assert (dry.code, dry.last) == (0, "2 choices would go; nothing was written")
    assert pinner.path(LOCK).read_text() == before

    said = pinner("prune", "--json", "--", *DECIDING, SIZES="32,64,128")
    assert said.code == 0, said.err
    assert [each["key"]["n"] for each in said.json["removed"]] == [256]
    assert said.json["other_bits"] is None
    named = "unused: tests.deciding:kernel  n=256 x:dtype='float32' → BLOCK=32 num_warps=4"
    assert named in said.err
    lock = read_lock(pinner.path(LOCK))
    assert (lock.run.sealed, lock.run.runs, lock.run.complete) == (True, 2, True)
    assert lock.evidence.steps == 9, "evidence of the runs that sealed it"
    after = tables(pinner.path(LOCK).read_text())
    assert after == [table for table in tables(before) if "n = 256" not in table]
    again = pinner.path(LOCK).read_bytes()
    said = pinner("prune", "--", *DECIDING, SIZES="32,64,128")
    assert (said.code, said.last) == (0, f"{LOCK}: every choice was used")
    assert pinner.path(LOCK).read_bytes() == again


def test_several_runs_keep_what_any_of_them_used(pinner: Pinner) -> None:
    """A program that computes something else by now: its bits are another evidence, and told."""
    for name, used in (("a", "32"), ("b", "64")):
        assert pinner("enforce", "--dir", name, "--", *DECIDING, SIZES=used).code == 0
    before = pinner.path(LOCK).read_bytes()

    said = pinner("prune", "--session", "a", "--session", "b/enforce")
    assert said.code == 0, said.err
    assert "the draft is in pinner.lock.toml.draft: no run has validated it" in said.text
    assert pinner.path(LOCK).read_bytes() == before, "no draft in the place of a sealed lock"
    draft = read_lock(pinner.path(f"{LOCK}.draft"))
    assert (draft.run.sealed, draft.evidence.streams) == (False, ())
    assert {entry.key["n"] for entry in draft.triton} == {32, 64}

    said = pinner("prune", "--session", "a", "--", *DECIDING, SIZES="128")
    assert said.code == 0, said.err
    assert "note: under the lock as it is, this run left other bits" in said.text
    assert sizes(pinner) == {32, 128}
    assert read_lock(pinner.path(LOCK)).run.sealed

    said = pinner("prune", "--session", "b")
    assert (said.code, "did not run under this lock as it is now" in said.text) == (4, True)
    said = pinner("prune", "-l", f"{LOCK}.draft", "--", *DECIDING, SIZES="32,64")
    assert said.code == 0, "a draft is sealed though nothing goes"
    assert read_lock(pinner.path(f"{LOCK}.draft")).run.sealed


@pytest.mark.parametrize(
    ("environ", "code", "reason"),
    [
        ({"SIZES": "64,512"}, 3, "missed: tests.deciding:kernel n=512"),
        ({"SIZES": "64", "FAULT": "invalid"}, 3, "invalid: tests.deciding:kernel"),
        ({"SIZES": "64", "NOISE": "1"}, 1, "two runs under the same choices left different bits"),
        ({"SIZES": "64", "FAILS": "1"}, 5, "the command ended with 7"),
    ],
)
def test_runs_that_show_too_little_remove_nothing(
    pinner: Pinner, environ: dict[str, str], code: int, reason: str
) -> None:
    program = (
        "import os, runpy, pinner\n"
        f"try: runpy.run_path({DECIDING[1]!r}, run_name='__main__')\n"
        "except SystemExit as end:\n"
        "    if end.code: raise\n"
        "if 'NOISE' in os.environ: pinner.fingerprint('out', os.urandom(8))\n"
        "if 'FAILS' in os.environ: raise SystemExit(7)\n"
    )
    before = pinner.path(LOCK).read_bytes()
    said = pinner("prune", "--", DECIDING[0], "-c", program, **environ)
    assert said.code == code
    assert reason in refused(pinner, said, before)
    assert "the lock is as it was" in said.text


def test_a_command_line_that_says_nothing_is_refused(pinner: Pinner) -> None:
    said = pinner("prune")
    assert (said.code, "expected a command after `--`" in said.text) == (64, True)


def test_any_entries_can_go_and_the_text_of_the_rest_stays() -> None:
    """Entries of every chooser, drawn at random; a kernel's fallback goes with its last entry."""
    seed = random.randrange(2**32)
    print("seed", seed)
    draw = random.Random(seed)
    for _ in range(30):
        lock = every_chooser()
        gone = [each for each in lock.entries if draw.random() < 0.5]
        left = without(lock, {each.identity for each in gone})
        assert left.entries == tuple(each for each in lock.entries if each not in gone)
        assert (left.stack, left.policy, left.settings) == (lock.stack, lock.policy, lock.settings)
        kernels = {each.kernel for each in left.triton}
        assert left.fallbacks == tuple(each for each in lock.fallbacks if each.kernel in kernels)
        assert not left.run.sealed
        before = tables(dumps(lock))
        assert all(table in before for table in tables(dumps(left)))
