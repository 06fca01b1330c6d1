"""Many tries in one process start: each is alone, evaluated again, and differs in one way."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from stackbisect.repro import prove, shrink, tries, try_many
from stackbisect.repro.calls import Program, Ref, Step, array
from stackbisect.repro.commands import Budget
from stackbisect.repro.extract import Smaller
from stackbisect.repro.fills import pack
from stackbisect.repro.kernel_text import Text
from stackbisect.repro.stacks import PythonStack, Ran
from stackbisect.repro.tries import BITS, NUMBERS, PLACES, SHAPE, Failed, Judge, Look
from stackbisect.repro.triton_case import LAUNCH, Kernel
from tests import lanes
from tests.stackbisect.forked import forked

# An array of any library, as far as it is looked at.
SCRIPT = """
import os

if os.environ["WHICH"] == "bad":
    where = 1
else:
    where = 0


class Array:
    dtype = type("float32", (), {{"name": "float32"}})
    shape = (4,)

    def __init__(self, data):
        self.data = bytes(data)

    def tobytes(self):
        return self.data


def outputs():
    {line}
    return {{"out": Array(data)}}
"""
DIFFERS = "data = [7, 7, 7, where]"
FRESH_MEMORY = """import ctypes
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    data = [*ctypes.string_at(libc.malloc(4000) + 2000, 3), where]"""


def case(line: str, times: int = 2) -> list[Mapping[str, bytes]]:
    """The evaluations of a case."""
    return [{"repro.py": SCRIPT.format(line=line).encode(), "x.bin": b"x"}] * times


@dataclass(frozen=True)
class Noting(PythonStack):
    """A stack that keeps what was run in it."""

    ran: list[Ran] = field(default_factory=list)

    def run(self, *given: Any, **named: Any) -> Ran:
        self.ran.append(super().run(*given, **named))
        return self.ran[-1]


@pytest.fixture
def stacks(tmp_path: Path) -> list[Noting]:
    python = Path(sys.executable)
    return [Noting(name, python, os.environ, tmp_path, {"WHICH": name}) for name in ("good", "bad")]


def test_a_try_that_fails_is_alone(stacks: list[Noting]) -> None:
    """What crashes, hangs, ends the process, eats the memory or does not repeat itself."""
    cases = {
        "differs": DIFFERS,
        "crashes": "os.kill(os.getpid(), 11)",
        "the same": "data = [1, 2, 3, 4]",
        "raises": "raise RuntimeError('no such kernel')",
        "hangs": "import time; time.sleep(600)",
        "restless": "data = os.urandom(4)",
        "ends": "raise SystemExit(0)",
        "leaves": "os._exit(0)",
        "greedy": "data = [7, 7, len(bytearray(300 << 20)) % 7, where]",
        "modest": "data = [7, 7, len(bytearray(30 << 20)) % 7, where]",
        "talks": "print('digest'); os.write(1, b'x' * 99999); data = [7, 7, 7, where]",
        "unwritten": FRESH_MEMORY,
        "starts others": f"import subprocess; subprocess.Popen(['sleep', '60']); {DIFFERS}",
        "fails in one": "data = [1 // (1 - where), 0, 0, where]",
        "last": DIFFERS,
    }
    judge = Judge(*stacks, memory=100 << 20)
    judge.limit_s = 3.0
    found = dict(zip(cases, judge.findings([case(line) for line in cases.values()]), strict=True))
    held = {name for name, finding in found.items() if finding is not None}
    assert held == {"differs", "modest", "talks", "starts others", "last"}
    looks = tries.looks(stacks[0].ran[0], len(cases))
    said = {n: look.why for n, look in zip(cases, looks, strict=True) if isinstance(look, Failed)}
    assert said == {
        "crashes": "signal 11 ended it",
        "raises": "RuntimeError: no such kernel",
        "hangs": "it did not end within 3 s",
        "restless": "it does not repeat itself",
        "ends": "SystemExit: 0",
        "leaves": "it ended with 0",
        "greedy": "MemoryError: ",
        "unwritten": "it does not repeat itself",
    }


def test_on_a_gpu_one_process_goes_on_until_one_fails(stacks: list[Noting]) -> None:
    """What follows a failed try is evaluated in a new process."""
    where = "data = [os.getpid() % 256, os.getpid() // 256 % 256, 0, 0]"
    lines = [where, where, "os.kill(os.getpid(), 9)", where, "raise ValueError('x')", where]
    judge = Judge(*stacks, gpu=True)
    files = judge._files([case(line) for line in lines])
    ran = stacks[0].run(files, ("python", "try_many.py"))
    looks = tries.looks(ran, len(lines))
    processes = [look.raw for look in looks if isinstance(look, Look)]
    assert processes[0] == processes[1]
    assert len(set(processes)) == 3
    assert [isinstance(look, Failed) for look in looks] == [0, 0, 1, 0, 1, 0]


def test_the_first_case_sets_how_long_the_others_may_take(
    stacks: list[Noting], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(try_many, "HANGS_S", 1.0)
    short = Path(try_many.__file__).read_text().replace("HANGS_S = 10.0", "HANGS_S = 1.0")
    (tmp_path / "shorter.py").write_text(short)
    monkeypatch.setattr(try_many, "__file__", str(tmp_path / "shorter.py"))
    judge = Judge(*stacks)
    slow = f"import time; time.sleep(0.25); {DIFFERS}"
    found = judge.findings([case(slow), case("import time; time.sleep(600)"), case(DIFFERS)])
    assert found == [NUMBERS, None, NUMBERS]
    assert judge.limit_s is not None
    assert judge.limit_s >= 2


def test_what_was_not_come_to_failed(stacks: list[Noting]) -> None:
    """The time of the batch is over: what was written until then counts."""
    lines = [DIFFERS, DIFFERS, "import time; time.sleep(600)", DIFFERS]
    judge = Judge(*stacks)
    assert judge.findings([case(line) for line in lines], 2.0) == [None] * 4
    text = b'{"looks": [{"form": [], "raw": "a", "plain": "b", "places": "c"}]}\n{"loo'
    ran = Ran(None, "", "", {try_many.RESULTS: text}, "it did not end within 4 s")
    assert tries.looks(ran, 2) == [
        Look("[]", "a", "b", "c"),
        Failed("it did not end within 4 s"),
    ]


def test_the_first_case_says_why_it_is_none(stacks: list[Noting]) -> None:
    for line, why in (
        ("data = [1, 2, 3, 4]", "both stacks gave the same bits"),
        ("data = [1 // (1 - where), 0, 0, where]", "in the bad stack: ZeroDivisionError: "),
        ("data = os.urandom(4)", "in the good stack: it does not repeat itself"),
    ):
        judge = Judge(*stacks)
        assert judge.findings([case(line)]) == [None]
        assert judge.refused.startswith(why)


def test_stacks_of_an_old_python(tmp_path: Path) -> None:
    python = Path(lanes.other_python("3.8"))
    old = [PythonStack(n, python, os.environ, tmp_path, {"WHICH": n}) for n in ("good", "bad")]
    assert Judge(*old).findings([case(DIFFERS), case("os.abort()")]) == [NUMBERS, None]


def test_how_two_stacks_differ() -> None:
    look = Look("f", "r", "p", "x")
    assert tries.finding(look, look) is None
    assert tries.finding(look, Failed("")) is None
    assert tries.finding(look, Look("f", "R", "P", "x")) == NUMBERS
    assert tries.finding(look, Look("f", "R", "p", "x")) == BITS
    assert tries.finding(look, Look("f", "R", "P", "X")) == PLACES
    assert tries.finding(look, Look("F", "R", "P", "X")) == SHAPE


@pytest.mark.parametrize("library", ["torch", "numpy"])
@pytest.mark.parametrize(
    ("one", "other", "how"),
    [
        ([1.0, 2.0], [1.0, 2.5], NUMBERS),
        ([0.0, 2.0], [-0.0, 2.0], BITS),
        ([float("nan"), 2.0], [-float("nan"), 2.0], BITS),
        ([float("nan"), 2.0], [3.0, 2.0], PLACES),
        ([float("nan"), 2.0], [float("nan"), 3.0], NUMBERS),
        ([float("inf"), 2.0], [-float("inf"), 2.0], BITS),
        ([1 + 2j, 0j], [1 + 3j, 0j], NUMBERS),
        ([1, 2], [1, 3], NUMBERS),
    ],
)
def test_what_an_output_looks_like(
    library: str, one: list[Any], other: list[Any], how: str
) -> None:
    module = pytest.importorskip(library)
    make = module.tensor if library == "torch" else module.array
    looks = []
    for values in (one, other):
        found = try_many.look_at({"out": make(values)})
        looks.append(Look(str(found["form"]), found["raw"], found["plain"], found["places"]))
    assert tries.finding(*looks) == how


def test_what_torch_computes_late_looks_like_its_numbers() -> None:
    torch = pytest.importorskip("torch")
    z = torch.tensor([1 + 2j, 3 - 4j])
    for late in (z.conj(), z.conj().imag):
        assert late.is_conj() or late.is_neg()
        now = late.resolve_conj().resolve_neg().contiguous()
        assert try_many.look_at({"out": late}) == try_many.look_at({"out": now})


# -- the real thing --------------------------------------------------------------------------------


@pytest.mark.skipif(not lanes.has_avx2(), reason="needs a CPU with AVX2")
def test_softmax_between_two_vector_units_becomes_a_few_elements(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    rows, columns = draw.randint(16, 40), draw.randint(65, 130)
    numbers = [draw.gauss(0, 1) for _ in range(rows * columns)]
    operation = "aten._softmax.default"
    whole = Program(
        kind="aten",
        operation=operation,
        inputs={"x": array("float32", (rows, columns), pack("float32", numbers))},
        steps=(Step(operation, (Ref("x"), 1, False)),),
        outputs=("out",),
        settings={"threads": 1},
    )
    kept: list[Smaller] = []
    with ExitStack() as open_servers:
        good, bad = (
            open_servers.enter_context(forked(each))
            for each in here(tmp_path, "ATEN_CPU_CAPABILITY", "avx2", "default")
        )
        shrinking = shrink.Shrinker(Budget(tries=80), width=40)
        found = shrinking(whole, good, bad, kept=kept.append, say=print)
        proof = prove.prove(found.case.files(), good, bad, print, times=1)
    assert found.tries <= 80
    assert kept[-1].case == found.case
    assert isinstance(found.case, Program)
    assert [step.target for step in found.case.steps] == [operation]
    assert found.case.elements <= 64
    assert isinstance(proof, prove.Proof)


MIX = """
import triton
import triton.language as tl


@triton.jit
def mix(x, bias):
    return tl.exp({})
"""
KERNEL = """
@triton.jit
def kernel(x, y, n, row, bias, BLOCK: tl.constexpr):
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = tl.program_id(0) * row + at
    tl.store(y + here, mix(tl.load(x + here, at < n), bias), at < n)
"""


def test_a_launch_under_the_interpreter_becomes_one_program(tmp_path: Path) -> None:
    """A kernel whose helper changed between two versions of a small package.

    One that reads what lies before its array is no finding at all, though the bits differ too.
    """
    pytest.importorskip("triton")
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for name, text in (("good", "x + bias * 0.1"), ("bad", "x + bias * 0.1000001")):
        (tmp_path / name / "smallmix").mkdir(parents=True)
        (tmp_path / name / "smallmix" / "__init__.py").write_text(MIX.format(text))
    whole = launch(draw)
    text = whole.kernel.text
    past = replace(text, body=text.body.replace("tl.load(x + here", "tl.load(x + here - 3"))
    dishonest = replace(whole, kernel=replace(whole.kernel, text=past))
    paths = (str(tmp_path / name) for name in ("good", "bad"))
    budget, width = (Budget(tries=400), 64) if lanes.soak() else (Budget(tries=24), 12)
    said: list[str] = []
    with ExitStack() as open_servers:
        good, bad = (
            open_servers.enter_context(forked(each))
            for each in here(tmp_path, "PYTHONPATH", *paths)
        )
        shrinking = shrink.Shrinker(budget, width)
        found = shrinking(whole, good, bad, kept=lambda _: None, say=print)
        proof = prove.prove(found.case.files(), good, bad, print, times=1)
        shrinking = shrink.Shrinker(Budget(tries=1))
        left = shrinking(dishonest, good, bad, kept=lambda _: None, say=said.append)
    assert isinstance(found.case, Program)
    assert found.case.kernel.grid == (1, 1, 1)
    assert found.case.elements <= (8 if lanes.soak() else whole.elements)
    assert isinstance(proof, prove.Proof)
    assert left.case == dishonest
    assert "it does not repeat itself" in said[-1]


def launch(draw: random.Random) -> Program:
    """Of KERNEL, over several rows, in blocks that do not fit them."""
    rows, columns, block = draw.randint(2, 3), draw.randint(17, 32), 16
    numbers = pack("float32", [draw.gauss(0, 1) for _ in range(rows * columns)])
    arguments = {"n": columns, "row": columns, "bias": 0.7, "BLOCK": block}
    return Program(
        kind="triton",
        operation="kernel",
        inputs={
            "x": array("float32", (rows, columns), numbers),
            "y": array("float32", (rows, columns), bytes(len(numbers))),
        },
        steps=(Step(LAUNCH, (), {"x": Ref("x"), "y": Ref("y"), **arguments}, results=()),),
        outputs=("y",),
        needs=("torch", "triton", "numpy"),
        kernel=Kernel(
            text=Text(("from smallmix import mix",), KERNEL.strip(), "kernel"),
            grid=(rows, -(-columns // block), 1),
            options={"num_warps": 4},
            constexprs=("BLOCK",),
            interpreted=True,
            environ={},
        ),
    )


def here(folder: Path, variable: str, good: str, bad: str) -> list[PythonStack]:
    """This interpreter, with a variable that makes two stacks of it."""
    python = Path(sys.executable)
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return [
        PythonStack(name, python, environ, folder, {variable: value})
        for name, value in (("good", good), ("bad", bad))
    ]
