"""Compiled pins: what the processes get of a lock, and how they know that it is whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pinner.inside import pins
from pinner.inside.values import canonical, share_class
from pinner.lockfile.codec import dumps, loads
from pinner.lockfile.compiled import compile_pins, pins_text, write_pins
from pinner.lockfile.errors import LockError
from pinner.lockfile.schema import TritonFallback
from tests import locks


def test_an_entry_has_all_a_process_needs() -> None:
    lock = locks.full_lock((64,))
    (entry,) = lock.triton
    kernel = compile_pins(lock, "sha256:1")["triton"][locks.KERNEL]
    assert kernel == {
        "entries": [
            {
                "source": locks.SOURCE,
                "key": canonical(entry.key),
                "key_names": entry.key,
                "config": entry.config,
                "alternatives": 9,
                "code": list(entry.code),
                "specs": list(entry.specs),
                "options": {"enable_fp_fusion": True},
                "heuristics": {"EVEN": False},
                "share": share_class(entry.key),
            }
        ],
        "fallback": [{"BT": 32, "num_warps": 4}, {"BT": 16, "num_warps": 4}],
    }


def test_entries_are_by_kernel_and_a_kernel_without_a_fallback_has_none() -> None:
    lock = locks.lock(locks.entry(kernel="m:a"), locks.entry(kernel="m:b"), locks.entry())
    compiled = compile_pins(lock, "sha256:1")["triton"]
    assert sorted(compiled) == sorted(["m:a", "m:b", locks.KERNEL])
    assert all(len(each["entries"]) == 1 and each["fallback"] == [] for each in compiled.values())


def test_only_hard_facts_and_the_state_of_the_lock_come_along() -> None:
    compiled = compile_pins(locks.full_lock(), "sha256:1")
    assert compiled["stack"] == {"hard": {"torch": "2.13.0", "triton": "3.9.0"}}
    assert (compiled["lock"], compiled["sealed"]) == ("sha256:1", True)


def test_the_digest_is_the_one_that_processes_check() -> None:
    body = json.loads(pins_text(locks.full_lock(), "sha256:1"))
    assert body["digest"] == pins.digest(body)


def test_a_lock_that_was_read_from_a_file_compiles_to_the_same_pins() -> None:
    lock = locks.full_lock()
    assert pins_text(loads(dumps(lock), "x"), "sha256:1") == pins_text(lock, "sha256:1")


def test_awkward_values_survive() -> None:
    key = {"a": float("nan"), "b": float("-inf"), "c": -0.0, "d": 2**4000, 'e."': "ü\u2028"}
    lock = locks.lock(
        locks.entry(key=key), fallbacks=(TritonFallback(locks.KERNEL, ({"BT": 1.0},)),)
    )
    body = json.loads(pins_text(lock, "sha256:1"))
    (entry,) = body["triton"][locks.KERNEL]["entries"]
    assert canonical(entry["key_names"]) == entry["key"] == canonical(key)
    assert body["digest"] == pins.digest(body)


def test_the_file_is_one_line_and_read_by_the_processes(tmp_path: Path) -> None:
    path = tmp_path / "pins.json"
    write_pins(path, locks.full_lock(), "sha256:1")
    assert path.read_text(encoding="ascii").count("\n") == 1
    read = pins.read(str(path))
    assert (read.lock, read.sealed, sorted(read.triton)) == ("sha256:1", True, [locks.KERNEL])


def test_pins_that_cannot_be_written_are_a_lock_error(tmp_path: Path) -> None:
    with pytest.raises(LockError, match="cannot write the pins"):
        write_pins(tmp_path / "absent" / "pins.json", locks.lock(), "sha256:1")
