"""What this machine can run, and how often repeated checks repeat."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import pytest

REQUIRE_SERVICES = "PINNER_REQUIRE_SERVICES"
SOAK = "PINNER_SOAK"
Test = TypeVar("Test", bound=Callable[..., Any])
CUBLASLT = "PINNER_TEST_CUBLASLT"
"""Names the real libcublasLt.so.13, for the tests that hold a stand-in to it."""
CUDART = "PINNER_TEST_CUDART"
"""Names the real libcudart.so.13, for the same."""


def soak() -> bool:
    """Is this the long form (`make soak`)?"""
    return os.environ.get(SOAK, "") not in ("", "0")


def long_form(test: Test) -> Test:
    """A test that only `make soak` runs."""
    skipped: Test = pytest.mark.skipif(not soak(), reason="the long form: make soak")(test)
    marked: Test = pytest.mark.soak(skipped)
    return marked


def fresh_processes() -> int:
    """How many fresh processes a repeated check starts."""
    return 20 if soak() else 3


def forks() -> int:
    """How many forks of one process that has imported everything and decided nothing."""
    return 20


def services_required() -> bool:
    """Must every service be here? A skip is a fault where all of them were installed."""
    return os.environ.get(REQUIRE_SERVICES, "") not in ("", "0")


def require(available: object, reason: str) -> None:
    """Go on when `available`; otherwise skip with `reason`, or fail where services are required."""
    if not available:
        _missing(reason)


def require_command(name: str, package: str | None = None) -> str:
    """The path of a program, or a skip that names the package that brings it."""
    path = shutil.which(name)
    if path is None:
        _missing(f"needs the program {name}" + (f" (package {package})" if package else ""))
    return path


def other_python(version: str) -> str:
    """The path of another interpreter, such as "3.8"; a skip where the machine has none.

    Never a failure: unlike a service, an old Python cannot be installed everywhere.
    """
    found = _interpreter(version)
    if found is None:
        pytest.skip(f"needs Python {version} as python{version}")
    return found


def find_python(version: str) -> str | None:
    """The path of another interpreter, such as "3.8", if there is one."""
    return _interpreter(version)


@functools.cache
def _interpreter(version: str) -> str | None:
    candidates = [shutil.which(f"python{version}"), *_pyenv_interpreters(version)]
    for path in candidates:
        if path and _reports(path) == version:
            return path
    return None


def _pyenv_interpreters(version: str) -> list[str]:
    root = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    versions = os.path.join(root, "versions")
    if not os.path.isdir(versions):
        return []
    names = sorted(n for n in os.listdir(versions) if n.startswith(version + "."))
    return [os.path.join(versions, n, "bin", "python") for n in names]


def _reports(path: str) -> str | None:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([path, "-c", code], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@functools.cache
def has_gpu() -> bool:
    """Does torch see a CUDA device? Asked only for a collected `gpu` test: torch is slow."""
    if not os.path.exists("/dev/nvidiactl") and not os.path.exists("/dev/dxg"):
        return False
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


@functools.cache
def has_avx2() -> bool:
    """Has the CPU AVX2? Where it has, torch and OpenBLAS have kernels of two kinds to compare."""
    return "avx2" in Path("/proc/cpuinfo").read_text()


def _missing(reason: str) -> NoReturn:
    if services_required():
        pytest.fail(f"{reason}, and {REQUIRE_SERVICES} is set", pytrace=False)
    pytest.skip(reason)
