"""Many tries in one process start: each is alone, evaluated again, and differs in one way."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from stackbisect.repro import prove, shrink, tries, try_many
from stackbisect.repro.calls import Program, Ref, Step, array
from stackbisect.repro.commands import Budget
from stackbisect.repro.extract import Smaller
from stackbisect.repro.fills import pack
from stackbisect.repro.stacks import PythonStack, Ran
from stackbisect.repro.tries import BITS, NUMBERS, PLACES, SHAPE, Failed, Judge, Look

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


# -- the real thing --------------------------------------------------------------------------------


def avx2() -> bool:
    return "avx2" in Path("/proc/cpuinfo").read_text()


@pytest.mark.skipif(not avx2(), reason="needs a CPU with AVX2")
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
    python = Path(sys.executable)
    good, bad = (
        PythonStack(name, python, os.environ, tmp_path, {"ATEN_CPU_CAPABILITY": unit})
        for name, unit in (("good", "avx2"), ("bad", "default"))
    )
    kept: list[Smaller] = []
    said: list[str] = []
    shrinking = shrink.within(Budget(tries=80))
    found = shrinking(whole, good, bad, kept=kept.append, say=said.append)
    print("\n".join(said))
    assert found.tries <= 80
    assert kept[-1].case == found.case
    assert isinstance(found.case, Program)
    assert [step.target for step in found.case.steps] == [operation]
    assert found.case.elements <= 64
    proof = prove.prove(found.case.files(), good, bad, said.append, times=1)
    assert isinstance(proof, prove.Proof)
    assert proof.good != proof.bad
