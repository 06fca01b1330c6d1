"""Compiles a lock to pins: what the processes need of it, by kernel, as one line of JSON."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from typing import Any

from pinner.durable import replace_text
from pinner.inside.pins import VERSION, digest
from pinner.inside.values import canonical, share_class

from .errors import LockError
from .schema import BLOB, Entry, Lock, Setting


def compile_pins(lock: Lock, lock_digest: str) -> dict[str, Any]:
    """The pins of ``lock``, complete with the digest by which a process knows they are whole.

    lock_digest: ``"sha256:…"`` of the lockfile, by which reports and checkpoints name it.
    """
    inductor = _inductor(lock)
    pins: dict[str, Any] = {
        "version": VERSION,
        "lock": lock_digest,
        "sealed": lock.run.sealed,
        "stack": {"hard": dict(lock.stack.hard)},
        "triton": _by_kernel(lock),
        "inductor": inductor,
        "inductor_digest": "sha256:" + hashlib.sha256(canonical(inductor).encode()).hexdigest(),
        "cublaslt": [_problem(entry) for entry in _in_order(lock.cublaslt)],
        "settings": [
            _setting(each) for each in sorted(lock.settings, key=lambda each: each.identity)
        ],
        "policy": dict(lock.policy),
        "algorithm": lock.evidence.algorithm if lock.evidence.streams else "",
    }
    pins["digest"] = digest(pins)
    return pins


def pins_text(lock: Lock, lock_digest: str) -> str:
    """The text of the pins file."""
    return canonical(compile_pins(lock, lock_digest)) + "\n"


def write_pins(path: str | os.PathLike[str], lock: Lock, lock_digest: str) -> None:
    """Replaces the pins file as a whole. Raises `LockError` where it cannot be written."""
    try:
        replace_text(path, pins_text(lock, lock_digest))
    except OSError as error:
        reason = error.strerror or str(error)
        raise LockError(f"cannot write the pins: {reason}", source=os.fspath(path)) from error


def _by_kernel(lock: Lock) -> dict[str, Any]:
    kernels: dict[str, Any] = {}
    for entry in _in_order(lock.triton):
        kernels.setdefault(entry.kernel, {"entries": [], "fallback": []})
        kernels[entry.kernel]["entries"].append(_entry(entry))
    for fallback in lock.fallbacks:
        if fallback.kernel in kernels:
            kernels[fallback.kernel]["fallback"] = list(fallback.configs)
    return kernels


def _inductor(lock: Lock) -> dict[str, Any]:
    kernels: dict[str, Any] = {}
    for entry in _in_order(lock.inductor):
        kernels.setdefault(entry.kernel, {"entries": []})["entries"].append(_fields(entry))
    return kernels


def _in_order(entries: Iterable[Entry]) -> list[Entry]:
    return sorted(entries, key=lambda each: each.identity)


def _entry(entry: Entry) -> dict[str, Any]:
    heuristics = {"heuristics": entry.heuristics, "share": share_class(entry.key)}
    return {**_fields(entry), **heuristics}


def _fields(entry: Entry) -> dict[str, Any]:
    return {
        "source": entry.source,
        "key": entry.key_text,
        "key_names": entry.key,
        "config": entry.config,
        "alternatives": entry.alternatives,
        "code": list(entry.code),
        "specs": list(entry.specs),
        "options": entry.options,
    }


def _problem(entry: Entry) -> dict[str, Any]:
    algo = {name: value for name, value in entry.config.items() if name != BLOB}
    return {"problem": entry.key, "algo": algo, "blob": entry.config.get(BLOB, "")}


def _setting(setting: Setting) -> dict[str, Any]:
    return {
        "chooser": setting.chooser,
        "name": setting.name,
        "value": setting.value,
        "held": setting.held,
    }
