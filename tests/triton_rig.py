"""Puts a `Chooser` under Triton's autotuner in the test's own process, and takes it out again."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

if "triton" not in sys.modules:  # it is decided for good when triton is imported
    os.environ.setdefault("TRITON_INTERPRET", "1")

import torch
import triton
import triton.compiler
from triton.runtime import autotuner

from pinner.inside import values
from pinner.inside.choosers.triton import hooks, versions
from pinner.inside.choosers.triton.chooser import Chooser, Policy

VERSION = versions.version_of(triton.__version__)
KERNELS = Path(__file__).parent / "workloads" / "kernels.py"
_PATCHED = ("__init__", "prune_configs", "warmup", "_bench", "check_disk_cache", "run")


class Rig:
    """One chooser in place, and the ledger lines it wrote."""

    def __init__(self, chooser: Chooser, lines: list[dict[str, Any]]) -> None:
        self.chooser = chooser
        self.lines = lines

    def of(self, line_kind: str, **fields: Any) -> list[dict[str, Any]]:
        """The lines of a kind whose fields have these values."""
        return [
            line
            for line in self.lines
            if line["t"] == line_kind and all(line.get(k) == v for k, v in fields.items())
        ]

    def choices(self, kernel: str = "") -> list[dict[str, Any]]:
        """The choices of the kernel of this name, or all."""
        return [line for line in self.of("choice") if line["kernel"].endswith(kernel)]


@contextlib.contextmanager
def observing() -> Iterator[Rig]:
    """A chooser that only watches."""
    with _patched(Policy(False, "fallback", lambda name: None, VERSION)) as rig:
        yield rig


@contextlib.contextmanager
def enforcing(pins: dict[str, Any], on_miss: str = "fallback") -> Iterator[Rig]:
    """A chooser under a lock. pins: as `pins_of` makes them."""
    with _patched(Policy(True, on_miss, pins.get, VERSION)) as rig:
        yield rig


@contextlib.contextmanager
def unpatched() -> Iterator[None]:
    """Triton as it is without a chooser, for a while."""
    patched = _methods()
    _put_back(_ORIGINAL)
    try:
        yield
    finally:
        _put_back(patched)


@contextlib.contextmanager
def _patched(policy: Policy) -> Iterator[Rig]:
    lines: list[dict[str, Any]] = []
    chooser = Chooser(policy, lines.append)
    before = _methods()
    hooks.patch(autotuner, chooser)
    hooks.patch_compile(triton.compiler, chooser)
    try:
        yield Rig(chooser, lines)
    finally:
        _put_back(before)


def _methods() -> list[tuple[Any, str, Any]]:
    found = [
        (kind, name, vars(kind)[name])
        for kind in (autotuner.Autotuner, autotuner.Heuristics)
        for name in _PATCHED
        if name in vars(kind)
    ]
    return [*found, (triton.compiler, "compile", triton.compiler.compile)]


def _put_back(methods: list[tuple[Any, str, Any]]) -> None:
    for owner, name, original in methods:
        setattr(owner, name, original)


_ORIGINAL = _methods()


def pins_of(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """The compiled pins that lock what these ledger lines chose."""
    pins: dict[str, Any] = {}
    for line in lines:
        if line["t"] == "choice":
            kernel = pins.setdefault(line["kernel"], {"entries": [], "fallback": []})
            kernel["entries"].append(
                {
                    "source": line["source"],
                    "key": values.canonical(line["key"]),
                    "config": line["config"],
                    "alternatives": line["alternatives"],
                    "code": [],
                    "specs": [],
                    "options": {},
                    "heuristics": line.get("heuristics", {}),
                    "share": values.share_class(line["key"]),
                }
            )
            kernel["fallback"].append(line["config"])
    for line in lines:
        if line["t"] == "code":
            for entry in pins.get(line["kernel"], {"entries": []})["entries"]:
                if entry["config"] == line["config"] and line["spec"] not in entry["specs"]:
                    entry["specs"].append(line["spec"])
                    entry["code"].append(line["code"])
                    entry["options"].update(line["options"])
    return pins


def fresh_kernels(path: Path = KERNELS, name: str = "tests.workloads.kernels") -> ModuleType:
    """The kernels as a process that has decided nothing has them."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def numbers(n: int = 4096, seed: int = 7) -> torch.Tensor:
    """`n` float32 of mixed size, whose sum depends on the order of addition."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, generator=generator) * torch.exp(4 * torch.randn(n, generator=generator))


def bits(tensor: torch.Tensor) -> bytes:
    """The bytes of a tensor."""
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist())


def use_benchmark(module: ModuleType, benchmark: Any) -> None:
    """Give every autotuner of a module this benchmark."""
    for value in vars(module).values():
        tuner = value.fn if isinstance(value, autotuner.Heuristics) else value
        if isinstance(tuner, autotuner.Autotuner):
            tuner.__dict__.pop("do_bench", None)
            tuner._do_bench = benchmark
