"""Repros of numpy and scipy: one call, captured in a stack without torch, shown in both."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from pinner.inside.evidence import digest
from pinner.inside.evidence.trace import array_facts
from pinner.inside.evidence.trace.capture_arrays import ArrayCall
from stackbisect.repro import capture, captured, extract, form, read_arrays, sides
from stackbisect.repro.calls import Program
from stackbisect.repro.capture import Made
from stackbisect.repro.commands import Budget
from stackbisect.repro.extract import Asked, NoCase, Outcome
from stackbisect.repro.shrink import Shrinker
from stackbisect.repro.sides import Sides
from tests import lanes, numpy_rig
from tests.stackbisect import images, services
from tests.stackbisect.conftest import RepositoryFactory

SEED = secrets.randbits(16)
GOOD, BAD = "2.1.3", "2.2.0"

# Which of these products changed with numpy depends on the processor.
PRODUCTS = """
import hashlib
import sys
import numpy

draw = numpy.random.default_rng(int(sys.argv[1]))
for number in range(12):
    kind = ("float32", "float64")[number % 2]
    rows, inner, columns = (int(n) for n in draw.integers(40, 260, 3))
    a = draw.standard_normal((rows, inner)).astype(kind)
    b = draw.standard_normal((inner, columns)).astype(kind)
    product = a @ b
    print(hashlib.sha256(product.tobytes()).hexdigest())
    print((product * 2 + 1).max())
"""


def first_apart(run: Callable[[str], Sequence[str]]) -> tuple[str, int]:
    """A seed, and the first product that has other bits in the two stacks.

    run: gives what the program prints in each of them. A skip where none of many products differs.
    """
    for seed in map(str, range(SEED, SEED + 5)):
        both = [text.split()[::2] for text in run(seed)]
        assert all(map(len, both))
        for number, (one, other) in enumerate(zip(*both, strict=True)):
            if one != other:
                print(f"seed {seed}: product {number}")
                return seed, number
    pytest.skip(f"on this processor all products from seed {SEED} on are the same")


def extracted(both: Sides, out: Path, **more: Any) -> Outcome:
    asked = Asked(both.argv, out, capture.capture, more.pop("shrink", None), times=2, **more)
    return extract.extract(both.good, both.bad, asked, print)


def clean(interpreter: Path, folder: Path, **environ: str) -> Mapping[str, str]:
    """The digests that a folder prints where nothing of ours is installed or set."""
    done = subprocess.run(
        [interpreter, "repro.py"], cwd=folder, env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return form.printed(done.stdout)


def check_folder(outcome: Outcome, operation: str) -> form.Form:
    """What every folder of a product must be."""
    assert outcome.exit == extract.EXTRACTED, outcome.text
    assert outcome.out is not None
    found = form.read(outcome.out)
    assert (found.finding.kind, found.finding.operation) == ("numpy", operation)
    assert found.run.needs == ("numpy",)
    assert found.difference is not None
    assert found.difference.elements > 0
    good, bad = found.stacks
    assert good.digests != bad.digests
    text = (outcome.out / form.SCRIPT).read_text()
    assert "pinner" not in text
    assert "stackbisect" not in text
    return found


# -- a call that is the same, and other bits by a variable -----------------------------------------


@pytest.mark.skipif(not lanes.has_avx2(), reason="needs two kernels of OpenBLAS for x86-64")
def test_the_call_inside_of_a_call_is_what_is_extracted(tmp_path: Path) -> None:
    """`tensordot` calls `dot`: that is the smaller thing to show."""
    source = PRODUCTS.replace("a @ b", "numpy.tensordot(a, b, 1)")
    (tmp_path / "work.py").write_text(source)
    names = [f"OPENBLAS_CORETYPE={name}" for name in ("Haswell", "Nehalem")]

    def run(seed: str) -> list[str]:
        words = [sys.executable, str(tmp_path / "work.py"), seed]
        return [_printed(words, dict([name.split("=")])) for name in names]

    seed, number = first_apart(run)
    argv = ("python", "work.py", seed)
    both = sides.of_variables(names[:1], names[1:], argv, os.environ, tmp_path)
    outcome = extracted(both, tmp_path / "found")
    found = check_folder(outcome, "numpy.dot")
    assert outcome.site is not None
    assert (outcome.site.kind, outcome.site.nth) == ("kernel", number)
    for stack, name in zip(found.stacks, names, strict=True):
        environ = dict([name.split("=")])
        assert clean(Path(sys.executable), tmp_path / "found", **environ) == stack.digests


# -- the real change of numpy ----------------------------------------------------------------------


def _printed(words: Sequence[str | Path], more: Mapping[str, str] | None = None) -> str:
    return subprocess.check_output(words, env={**os.environ, **(more or {})}, text=True)


def environments(folder: Path) -> list[Path]:
    return [numpy_rig.environment(folder / v, [f"numpy=={v}"]) for v in (GOOD, BAD)]


@pytest.mark.service
def test_the_real_change_of_matmul_in_two_environments(tmp_path: Path) -> None:
    pythons = environments(tmp_path)
    (tmp_path / "work.py").write_text(PRODUCTS)
    work = str(tmp_path / "work.py")
    seed, number = first_apart(lambda seed: [_printed([p, work, seed]) for p in pythons])
    good, bad = map(str, pythons)
    argv = ("python", "work.py", seed)
    both = sides.of_interpreters(good, bad, argv, os.environ, tmp_path)
    shrink = Shrinker(Budget(seconds=60.0)) if lanes.soak() else None
    outcome = extracted(both, tmp_path / "found", shrink=shrink)
    found = check_folder(outcome, "numpy.matmul")
    assert outcome.site is not None
    assert (outcome.site.kind, outcome.site.nth) == ("op", number)
    assert [stack.versions["numpy"] for stack in found.stacks] == [GOOD, BAD]
    same = {n: v for n, v in os.environ.items() if n == "OPENBLAS_CORETYPE"}
    for stack, python in zip(found.stacks, pythons, strict=True):
        assert clean(python, tmp_path / "found", **same) == stack.digests
    if lanes.soak():
        assert found.shrink is not None
        assert found.shrink.steps > 0


@pytest.mark.service
@pytest.mark.xdist_group("docker")
def test_the_real_change_of_matmul_in_two_images(
    tmp_path: Path, new_repository: RepositoryFactory, docker_config: Path, interrupts: None
) -> None:
    """Which product differs is asked of the same wheels on this machine."""
    (tmp_path / "work.py").write_text(PRODUCTS)
    seed, number = first_apart(partial(_by_wheels, tmp_path / "work.py"))
    repository = new_repository()
    layer = images.files({"work.py": PRODUCTS})
    for version in (GOOD, BAD):
        repository.push(version, images.Image([layer, _numpy(version)]))
    asked = sides.Images(*(f"{repository.reference}:{version}" for version in (GOOD, BAD)))
    argv = ("python3", "/work.py", seed)
    with sides.of_images(asked, argv, os.environ, tmp_path, lambda line: None) as both:
        outcome = extracted(both, tmp_path / "found")
    found = check_folder(outcome, "numpy.matmul")
    assert outcome.site is not None
    assert outcome.site.nth == number
    assert [stack.versions["numpy"] for stack in found.stacks] == [GOOD, BAD]


def _by_wheels(work: Path, seed: str) -> list[str]:
    environ = {name: value for name, value in os.environ.items() if "OPENBLAS" not in name}
    folders = [numpy_rig.packages(sys.executable, [f"numpy=={each}"]) for each in (GOOD, BAD)]
    return [
        subprocess.check_output(
            [sys.executable, work, seed], env={**environ, "PYTHONPATH": str(each)}, text=True
        )
        for each in folders
    ]


def _numpy(version: str) -> images.Layer:
    try:
        return images.numpy(version)
    except services.ServiceMissing as error:
        lanes.require(False, str(error))
        raise


@pytest.mark.service
def test_a_call_of_scipy_is_captured_and_runs_alone(tmp_path: Path) -> None:
    """The real scipy: what the program got is what the call alone gives."""
    python = numpy_rig.environment(tmp_path / "env", ["numpy==2.1.3", "scipy==1.14.1"])
    (tmp_path / "work.py").write_text(SCIPY)
    both = sides.of_interpreters(
        str(python), str(python), ("python", "work.py"), os.environ, tmp_path
    )
    site = SimpleNamespace(
        name="scipy.linalg.cho_solve", kind="op", level="ops", to_json=lambda: SITE
    )
    case = capture.capture(
        both.good,
        both.argv,
        site,
        tmp_path / "captured",
        other=both.bad,
        time_limit=None,  # type: ignore[arg-type]
    )
    assert isinstance(case, Program), case
    assert (case.kind, case.needs, case.imports) == ("scipy", ("numpy", "scipy"), ("scipy.linalg",))
    assert case.steps[0].target == "scipy.linalg.cho_solve"


SCIPY = """
import numpy
from scipy.linalg import cho_factor, cho_solve

a = numpy.random.default_rng(1).standard_normal((5, 5))
factor = cho_factor(a @ a.T + numpy.eye(5), lower=True)
for n in range(3):
    print(cho_solve(factor, numpy.arange(5.0) + n, check_finite=False))
"""
SITE = {
    "kind": "op",
    "name": "scipy.linalg.cho_solve",
    "nth": 1,
    "module": "",
    "phase": "f",
    "step": 0,
    "rank": None,
    "random": False,
}


# -- what a call gets ------------------------------------------------------------------------------


def made(folder: Path, function: Any, *args: Any, **kwargs: Any) -> Made | NoCase:
    """The program of a call, as if a session had captured it."""
    if isinstance(function, numpy.ufunc):
        facts = array_facts.of_ufunc(function, "__call__")
    elif getattr(function, "__objclass__", None) is numpy.ndarray:
        facts = array_facts.of_method(function.__name__)
    else:
        facts = array_facts.of_function(function)
    awaited: Any = SimpleNamespace(kind="op", name=facts.name, folder=str(folder / captured.FOLDER))
    call = ArrayCall(awaited, numpy, facts)
    call.before(args, kwargs)
    call.after(function(*args, **kwargs))
    found = captured.read(folder, facts.name)
    if isinstance(found, NoCase):
        return found
    return read_arrays.program(found, None)  # type: ignore[arg-type]


def alone(folder: Path, found: Made | NoCase) -> Mapping[str, str]:
    """The digests of what the program gives, run as people would."""
    assert isinstance(found, Made), found
    folder.mkdir()
    for name, data in found.program.files().items():
        (folder / name).write_bytes(data)
    space: dict[str, Any] = {"__file__": str(folder / form.SCRIPT), "__name__": "repro"}
    exec(compile((folder / form.SCRIPT).read_text(), "repro.py", "exec"), space)
    return {name: space["digest"](value) for name, value in space["outputs"]().items()}


def normal(*shape: int) -> numpy.ndarray[Any, Any]:
    return numpy.random.default_rng(SEED).standard_normal(shape)


def shifted(array: numpy.ndarray[Any, Any], by: int) -> numpy.ndarray[Any, Any]:
    """The same, `by` bytes after an address that 64 divides."""
    room = numpy.zeros(array.nbytes + 128, dtype="u1")
    start = -room.ctypes.data % 64 + by
    found = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


def overlapping() -> Sequence[Any]:
    base = normal(40)
    return base[:30], base[10:]


def two_dtypes() -> Sequence[Any]:
    base = normal(16)
    return base, base.view("f4")[::2]


CALLS: Mapping[str, Callable[[], tuple[Any, Sequence[Any], Mapping[str, Any]]]] = {
    "large": lambda: (numpy.matmul, (normal(20, 30), normal(30, 8)), {}),
    "transposed": lambda: (numpy.matmul, (normal(30, 20).T, normal(30, 8)), {}),
    "backward": lambda: (numpy.add, (normal(9, 12)[::-1, ::3], 0.1), {}),
    "repeated": lambda: (numpy.add, (numpy.broadcast_to(normal(80), (3, 80)), 1), {}),
    "overlapping": lambda: (numpy.multiply, overlapping(), {}),
    "two dtypes": lambda: (numpy.add, two_dtypes(), {}),
    "unaligned": lambda: (numpy.sin, (shifted(normal(100), 8),), {}),
    "at an odd address": lambda: (numpy.add, (shifted(normal(100), 3), 1j), {}),
    "scalars": lambda: (numpy.add, (numpy.float32(0.1), numpy.int8(3)), {"dtype": "f8"}),
    "no axes": lambda: (numpy.exp, (numpy.array(0.25, "f2"),), {}),
    "empty": lambda: (numpy.add, (normal(0, 3), 1.0), {}),
    "complex": lambda: (numpy.multiply, (normal(70) + 1j, normal(70)), {}),
    "half": lambda: (numpy.add, (normal(70).astype("f2"), numpy.float16(1)), {}),
    "several results": lambda: (numpy.divmod, (normal(70), 0.3), {}),
    "named results": lambda: (numpy.linalg.qr, (normal(6, 5),), {"mode": "reduced"}),
    "written over": lambda: (numpy.copyto, (normal(70), normal(70)), {"where": normal(70) > 0}),
    "sorted in place": lambda: (numpy.ndarray.sort, (normal(70),), {}),
    "into an array": lambda: (numpy.add, (normal(70), 1), {"out": normal(70)}),
    "a list": lambda: (numpy.concatenate, ([normal(70), normal(3)],), {"axis": 0}),
    "names": lambda: (numpy.sum, (normal(7, 9),), {"axis": (0, 1), "dtype": numpy.float32}),
    "a dtype": lambda: (numpy.ndarray.astype, (normal(70), numpy.dtype("f4")), {}),
    "no number": lambda: (numpy.add, (numpy.array([numpy.nan, -0.0, numpy.inf]), 1), {}),
    "a seed's": lambda: (numpy.cumsum, (numpy.arange(100.0),), {}),
    "bools": lambda: (numpy.logical_not, (normal(100) > 0,), {}),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_alone_gives_what_it_gave(name: str, tmp_path: Path) -> None:
    print(f"seed {SEED}")
    function, args, kwargs = CALLS[name]()
    found = made(tmp_path, function, *args, **kwargs)
    assert isinstance(found, Made), found
    assert found.expected
    assert alone(tmp_path / "alone", found) == found.expected


def test_digests_are_those_of_every_repro(tmp_path: Path) -> None:
    a = normal(3, 4)
    found = made(tmp_path, numpy.negative, a)
    assert isinstance(found, Made)
    assert found.expected == {"out": digest.digest(-a, digest.SHA256)[0]}


def test_layouts_are_kept(tmp_path: Path) -> None:
    first, second = overlapping()
    found = made(tmp_path, numpy.multiply, first, shifted(second, 8)[::-1])
    assert isinstance(found, Made)
    one, other = found.program.inputs.values()
    assert (one.strides, one.alignment) == ((1,), 64)
    assert (other.strides, other.offset) == ((-1,), 29)
    shared = made(tmp_path / "shared", numpy.multiply, first, second)
    assert isinstance(shared, Made)
    one, other = shared.program.inputs.values()
    assert (one.alias, other.alias, other.offset) == ("", "x0", 10)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: (numpy.add, (numpy.array([1, 2], object), 1)), "its dtype is object"),
        (lambda: (numpy.add, (normal(3).astype(">f8"), 1)), "in the other order"),
        (lambda: (numpy.sum, (numpy.ma.masked_less(normal(3), 0),)), "it is a MaskedArray"),
    ],
)
def test_what_cannot_be_written_down_is_said(
    call: Callable[[], tuple[Any, Sequence[Any]]], why: str, tmp_path: Path
) -> None:
    function, args = call()
    found = made(tmp_path, function, *args)
    assert isinstance(found, NoCase)
    assert why in found.text
