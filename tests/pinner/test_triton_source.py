"""The source hash of a kernel: it follows what the kernel computes and nothing else."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pinner.inside.choosers.triton.source import source_hash
from tests import lanes

ROOT = Path(__file__).parents[2]

KERNEL = '''
"""A module."""
import helpers


class constexpr:
    """Stands for tl.constexpr: recognised by its name and library."""

    __module__ = "triton.language.core"

    def __init__(self, value):
        self.value = value


class Jit:
    """Stands for a JIT function: it has the Python function in `fn`."""

    def __init__(self, fn):
        self.fn = fn


SCALE = constexpr(3)
PLAIN = 4


def _inner(x):
    return x + SCALE.value


inner = Jit(_inner)


def kernel(x, n, BLOCK: "constexpr" = 16):
    """Doc."""
    # comment
    total = inner(x) * PLAIN
    for i in range(0, n, BLOCK):
        total += helpers.twice(i) + helpers.FACTOR
    return total
'''
HELPERS = "FACTOR = 2\n\n\ndef twice(x):\n    return 2 * x\n"


def hash_of(folder: Path, text: str = KERNEL, helpers: str = HELPERS, name: str = "kernel") -> str:
    folder.mkdir(parents=True, exist_ok=True)
    for module, source in (("helpers", helpers), ("kernels_under_test", text)):
        path = folder / f"{module}.py"
        path.write_text(textwrap.dedent(source))
        spec = importlib.util.spec_from_file_location(module, path)
        sys.modules[module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[module])
    return source_hash(getattr(sys.modules["kernels_under_test"], name))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"""A module."""', '"""A module."""\n\n\n# lower\nUNUSED = 1'),
        ("    # comment\n", ""),
        ('    """Doc."""\n', ""),
        ("inner(x) * PLAIN", "inner(\n        x\n    ) * PLAIN"),
    ],
    ids=["moved", "comment", "docstring", "layout"],
)
def test_what_computes_the_same_has_the_same_hash(tmp_path, before, after):
    assert before in KERNEL
    assert hash_of(tmp_path / "a") == hash_of(tmp_path / "b", KERNEL.replace(before, after))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("total += ", "total -= "),
        ("SCALE = constexpr(3)", "SCALE = constexpr(5)"),
        ("PLAIN = 4", "PLAIN = 4.0"),
        ("return x + SCALE.value", "return x - SCALE.value"),
        ('BLOCK: "constexpr" = 16', 'BLOCK: "constexpr" = 32'),
    ],
    ids=["body", "constexpr global", "plain global", "called function", "default"],
)
def test_what_computes_something_else_has_another_hash(tmp_path, before, after):
    assert before in KERNEL
    assert hash_of(tmp_path / "a") != hash_of(tmp_path / "b", KERNEL.replace(before, after))


def test_a_constant_of_another_module_counts(tmp_path):
    other = HELPERS.replace("FACTOR = 2", "FACTOR = 3")
    assert hash_of(tmp_path / "a") != hash_of(tmp_path / "b", helpers=other)


def test_kernels_that_a_factory_makes_differ_by_what_they_close_over(tmp_path):
    factory = textwrap.dedent(
        """
        def make(factor):
            def kernel(x):
                return x * factor
            return kernel

        two, again, three = make(2), make(2), make(3)
        """
    )
    two, again, three = (hash_of(tmp_path / n, factory, name=n) for n in ("two", "again", "three"))
    assert two == again != three


def test_a_function_that_calls_itself_has_a_hash(tmp_path):
    text = KERNEL.replace("return x + SCALE.value", "return inner(x) + SCALE.value")
    assert hash_of(tmp_path, text).startswith("sha256:")


def test_a_function_without_text_is_known_by_its_code():
    def made(body: str, factor: int = 2):
        scope = {"FACTOR": factor}
        exec(f"def kernel(x):\n    return {body}", scope)
        return source_hash(scope["kernel"])

    assert made("x * FACTOR") == made("x * FACTOR")
    assert made("x * FACTOR") != made("x + FACTOR")
    assert made("x * FACTOR") != made("x * FACTOR", 3)
    assert made("x * 2") != made("x * 3")


SCRIPT = """
import sys
sys.path[:0] = [{root!r}, {folder!r}]
from pinner.inside.choosers.triton.source import source_hash
import kernels_under_test
print(source_hash(kernels_under_test.kernel))
"""


@pytest.mark.parametrize("version", ["3.8", "3.10", "3.12", "3.13"])
def test_every_python_computes_the_same_hash(tmp_path, version):
    python = lanes.find_python(version)
    if python is None:
        pytest.skip(f"needs Python {version}")
    expected = hash_of(tmp_path)
    code = SCRIPT.format(root=str(ROOT), folder=str(tmp_path))
    done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == expected
