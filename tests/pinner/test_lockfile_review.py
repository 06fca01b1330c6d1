"""A lock in `git diff`: the changed line says which kernel and key; what counts is all there."""

from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from pinner.lockfile.codec import dumps
from pinner.lockfile.diff import diff_locks
from pinner.lockfile.review import review_text
from pinner.lockfile.schema import Lock
from tests import locks
from tests.command_rig import REPO

LOCK = locks.every_chooser()


def variants() -> list[Lock]:
    """The lock with one thing changed that can change bits, each kind once."""
    first, *rest = LOCK.triton
    changed = [
        {"config": {**first.config, "num_warps": 8}},
        {"source": locks.digest("other")},
        {"code": (locks.digest("aa"), locks.digest("other"))},
        {"options": {"enable_fp_fusion": False}},
        {"heuristics": {"EVEN": True}},
        {"key": {**first.key, "N": 33}},
    ]
    problem, *problems = LOCK.cublaslt
    blob = replace(problem, config={**problem.config, "blob": "cd" * 64})
    return [
        *(replace(LOCK, triton=(replace(first, **each), *rest)) for each in changed),
        replace(LOCK, triton=tuple(rest)),
        replace(LOCK, fallbacks=()),
        replace(LOCK, cublaslt=(blob, *problems)),
        replace(LOCK, settings=(replace(LOCK.settings[0], value="Tree"), *LOCK.settings[1:])),
        replace(LOCK, settings=(replace(LOCK.settings[0], held="no"), *LOCK.settings[1:])),
        replace(LOCK, policy={"profile": "another"}),
        replace(LOCK, stack=replace(LOCK.stack, hard={**LOCK.stack.hard, "torch": "2.14"})),
    ]


def test_whatever_can_change_bits_changes_the_text() -> None:
    texts = [review_text(LOCK)]
    for each in variants():
        assert diff_locks(LOCK, each).can_change_bits
        texts.append(review_text(each))
    assert len(set(texts)) == len(texts)


def test_the_order_of_entries_in_memory_does_not_matter() -> None:
    turned = replace(LOCK, triton=LOCK.triton[::-1], inductor=LOCK.inductor[::-1])
    assert review_text(turned) == review_text(LOCK)


def git(folder: Path, *words: str) -> str:
    own = ["git", "-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    done = subprocess.run([*own, *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_git_prints_a_changed_choice_as_one_line(tmp_path: Path) -> None:
    path = tmp_path / "pinner.lock.toml"
    command = ["env", f"PYTHONPATH={REPO}", sys.executable, "-m", "pinner", "show", "--textconv"]
    git(tmp_path, "init", "-q")
    git(tmp_path, "config", "diff.pinner.textconv", shlex.join(command))
    (tmp_path / ".gitattributes").write_text("pinner.lock.toml diff=pinner\n")
    path.write_text(dumps(LOCK))
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "lock")
    first, *rest = LOCK.triton
    other = replace(first, config={**first.config, "num_warps": 8})
    path.write_text(dumps(replace(LOCK, triton=(other, *rest))))
    lines = git(tmp_path, "diff", "-U0").splitlines()
    changed = [line for line in lines if line[0] in "+-" and not line.startswith(("+++", "---"))]
    old, new = changed
    assert old.startswith(f"-{first.kernel}  N=32")
    assert new == "+" + old[1:].replace("num_warps=4", "num_warps=8")

    path.write_text("<<<<<<< ours\nversion = 1\n")
    conflicted = git(tmp_path, "diff")
    assert "+not a lock: " in conflicted
    assert "+<<<<<<< ours" in conflicted
