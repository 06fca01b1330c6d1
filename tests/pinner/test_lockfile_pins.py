"""Compiled pins: what the processes get of a lock, and how they know that it is whole."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

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


def test_an_operation_of_inductor_has_all_a_process_needs() -> None:
    operation = locks.operation(source=locks.SOURCE, options={"fast": True})
    compiled = compile_pins(locks.lock(inductor=(operation,)), "sha256:1")["inductor"]
    assert compiled == {
        "gemm:addmm": {
            "entries": [
                {
                    "source": locks.SOURCE,
                    "key": canonical(operation.key),
                    "key_names": operation.key,
                    "config": {"choice": "aten"},
                    "alternatives": 2,
                    "code": [],
                    "specs": [],
                    "options": {"fast": True},
                }
            ]
        }
    }


def test_the_digest_of_inductors_part_changes_with_it_alone() -> None:
    def digest(**parts: Any) -> str:
        made: str = compile_pins(locks.lock(locks.entry(), **parts), "sha256:1")["inductor_digest"]
        return made

    assert digest() == "sha256:" + hashlib.sha256(b"{}").hexdigest()
    assert digest() == digest(settings=(locks.setting(),), cublaslt=(locks.problem(),))
    one, other = (locks.operation(config={"choice": name}) for name in ("aten", "cpp"))
    assert len({digest(), digest(inductor=(one,)), digest(inductor=(other,))}) == 3


def test_problems_settings_and_policy_come_along(tmp_path: Path) -> None:
    lock = replace(locks.every_chooser((64,)), policy={"inductor.deterministic": False})
    path = tmp_path / "pins.json"
    write_pins(path, lock, "sha256:1")
    read = pins.read(str(path))
    (problem,) = read.cublaslt
    assert problem == {"problem": locks.problem(64).key, "algo": locks.ALGO, "blob": "ab" * 64}
    assert read.settings == [
        {"chooser": "cudnn", "name": "benchmark", "value": True, "held": "no"},
        {"chooser": "nccl", "name": "NCCL_ALGO", "value": "Ring", "held": "forced"},
        {"chooser": "nccl", "name": "NCCL_PROTO", "value": {"none": True}, "held": "recorded"},
    ]
    assert read.policy == {"inductor.deterministic": False}
    assert sorted(read.inductor) == ["gemm:addmm", "triton:triton_red_fused_0"]


def test_a_chooser_asks_for_its_own_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "pins.json"
    write_pins(path, locks.every_chooser((64,)), "sha256:1")
    monkeypatch.setattr(pins, "load", lambda: pins.read(str(path)))
    assert [each["name"] for each in pins.settings_of("nccl")] == ["NCCL_ALGO", "NCCL_PROTO"]
    assert pins.settings_of("sdpa") == []
    record = pins.inductor_kernel("gemm:addmm")
    assert record is not None
    assert len(record["entries"]) == 1
    assert pins.inductor_kernel("gemm:mm") is None


def test_pins_that_cannot_be_written_are_a_lock_error(tmp_path: Path) -> None:
    with pytest.raises(LockError, match="cannot write the pins"):
        write_pins(tmp_path / "absent" / "pins.json", locks.lock(), "sha256:1")
