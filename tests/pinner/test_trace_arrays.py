"""numpy and scipy in a trace: what is seen, what is left alone, what a planted fault shows."""

from __future__ import annotations

import json
import random
import secrets
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest

from pinner.compare import trace_reading
from pinner.compare.traces import compare_traces
from pinner.inside.evidence import digest
from pinner.inside.evidence.trace import array_facts, c_classes
from tests import lanes, numpy_rig
from tests.command_rig import Pinner, python
from tests.trace_rig import Event, Program

SEED = secrets.randbits(32)

# Each line is one call from outside, and the name that it must have.
CALLS = [
    ("a @ b", "numpy.matmul"),
    ("a * 2 + a", "numpy.multiply numpy.add"),
    ("numpy.add.reduce(a)", "numpy.add.reduce"),
    ("numpy.add.accumulate(a)", "numpy.add.accumulate"),
    ("numpy.add.reduceat(a[0], [0, 2])", "numpy.add.reduceat"),
    ("numpy.multiply.outer(a[0], a[1])", "numpy.multiply.outer"),
    ("numpy.add.at(c, [0, 0], 1.0)", "numpy.add.at"),
    ("a.sum(axis=0)", "numpy.ndarray.sum"),
    ("a.mean()", "numpy.ndarray.mean"),
    ("a.dot(b)", "numpy.ndarray.dot"),
    ("numpy.dot(a, b)", "numpy.dot"),
    ("numpy.sum(a)", "numpy.sum"),
    ("numpy.einsum('ij,kj->ik', a, a)", "numpy.einsum"),
    ("numpy.linalg.norm(a)", "numpy.linalg.norm"),
    ("numpy.linalg.solve(b @ b.T, b)", "numpy.matmul numpy.linalg.solve"),
    ("numpy.fft.fft(a)", "numpy.fft.fft"),
    ("numpy.matmul(a, b, out=numpy.empty((3, 4)))", "numpy.matmul"),
    ("numpy.concatenate([a, a])", "numpy.concatenate"),
    ("numpy.float64(2) * a", "numpy.multiply"),
    ("dot(a, b)", "numpy.dot"),
    ("c.sort()", "numpy.ndarray.sort"),
    ("-a", "numpy.negative"),
    ("a < 0", "numpy.less"),
    ("(c + 1).resize(9)", "numpy.add"),
    ("exec('grown = c * 2; grown.resize(9)')", "numpy.multiply"),
    ("numpy.vectorize(lambda v: (a @ b)[0, 0] + v)(a[0, :1])", "numpy.matmul numpy.matmul"),
    ("numpy.apply_along_axis(lambda v: v * v, 1, a[:1])", "numpy.multiply"),
    ("numpy.sum(Other())", ""),
    ("numpy.add(Other(), 1)", ""),
    ("a.view(Own) @ b", "numpy.matmul"),
    ("a.reshape(2, 6).T[0]", ""),
    ("a[0, 0] + a[0, 1]", ""),
    ("print(a, repr(a), f'{a}')", ""),
    ("numpy.random.default_rng().random(3)", ""),
    ("numpy.result_type(a, b)", ""),
    ("refused()", ""),
    ("pickle.loads(pickle.dumps([numpy.add, numpy.sum, numpy.dot]))", ""),
]
PROGRAM = """
import pickle
import threading

import numpy
from numpy import dot


class Other:
    def __array_function__(self, *_): return 1
    def __array_ufunc__(self, *_, **__): return 1


class Own(numpy.ndarray):
    def __array_ufunc__(self, ufunc, method, *given, **more):
        return getattr(ufunc, method)(*map(numpy.asarray, given), **more)


def refused():
    try:
        numpy.matmul(a, a)
    except ValueError as error:
        assert "mismatch in its core dimension" in str(error)
    else:
        raise AssertionError("numpy refuses these")


draw = numpy.random.default_rng(7)
a, b = draw.standard_normal((3, 4)), draw.standard_normal((4, 4))
c = a[0].copy()
mark = numpy.bitwise_xor
for number, line in enumerate(CALLS):
    mark(number, 0)
    exec(line)
mark(len(CALLS), 0)
thread = threading.Thread(target=lambda: a @ b, name="worker")
thread.start()
thread.join()
numpy.add(a, 1, where=a > 0)
"""
VERSION_KNOWN = 1 << 19  # a flag of classes that says nothing but that a cache is filled
MARK = "numpy.bitwise_xor"


def traced(folder: Path, code: str = "", level: str = "ops", **environ: str) -> Program:
    lines = f"CALLS = {[line for line, _ in CALLS]!r}\n{PROGRAM}"
    return Program(folder, level).run(code or lines, **environ)


def by_call(events: list[Event]) -> list[list[Event]]:
    """The events of each line of CALLS, and of what comes after them."""
    found: list[list[Event]] = []
    for event in events:
        if event["n"] == MARK:
            found.append([])
        elif found:
            found[-1].append(event)
    return found


@pytest.fixture(scope="module", name="calls")
def _calls(tmp_path_factory: pytest.TempPathFactory) -> list[list[Event]]:
    return by_call(traced(tmp_path_factory.mktemp("arrays")).events("op"))


def names(events: list[Event]) -> str:
    """Without what `apply_along_axis` makes its result with: that differs between versions."""
    return " ".join(event["n"] for event in events if event["n"] != "numpy.zeros_like")


def test_each_call_from_outside_is_one_event(calls: list[list[Event]]) -> None:
    """Operators on plain arrays and names that were bound before us, too."""
    found = {line: names(events) for (line, _), events in zip(CALLS, calls[:-1], strict=True)}
    assert found == dict(CALLS)


def test_digests_are_those_of_the_arrays(calls: list[list[Event]]) -> None:
    draw = numpy.random.default_rng(7)
    a, b = draw.standard_normal((3, 4)), draw.standard_normal((4, 4))
    (product,) = calls[0]
    assert [row[1] for row in product["in"]] == [digest.digest(a)[0], digest.digest(b)[0]]
    assert product["out"][0][1] == digest.digest(a @ b)[0]
    assert product["out"][0][2:4] == ["float64", [3, 4]]
    assert product["p"] == "f"


def test_what_is_written_over_is_an_output_and_what_is_not_read_is_no_input(
    calls: list[list[Event]],
) -> None:
    lines = [line for line, _ in CALLS]
    (at,) = calls[lines.index("numpy.add.at(c, [0, 0], 1.0)")]
    assert [row[0] for row in at["in"]] == ["0", "1", "2"]
    assert [row[0] for row in at["out"]] == ["arg.0"]
    (into,) = calls[lines.index("numpy.matmul(a, b, out=numpy.empty((3, 4)))")]
    assert [row[0] for row in into["in"]] == ["0", "1"]


def test_threads_are_named_and_memory_that_nobody_wrote_has_no_digest(
    calls: list[list[Event]],
) -> None:
    product, _, partly = calls[-1]
    assert (product["n"], product["x"]) == ("numpy.matmul", {"thread": "worker"})
    assert partly["x"] == {"uninitialised": True}
    assert partly["out"][0][1] is None


NESTED = """
import numpy
a = numpy.arange(12.0).reshape(3, 4)
numpy.linalg.norm(a)
a.mean()
"""


def test_what_a_call_calls_itself_is_seen_one_level_deeper(tmp_path: Path) -> None:
    above = traced(tmp_path / "above", NESTED).events()
    below = traced(tmp_path / "below", NESTED, "kernels").events()
    assert names(above) == "numpy.linalg.norm numpy.ndarray.mean"
    assert all(event["x"]["nested"] for event in above)
    inner = [event["n"] for event in below if event["e"] == "kernel"]
    assert "numpy.ndarray.dot" in inner
    assert "numpy.add.reduce" in inner
    assert names([event for event in below if event["e"] == "op"]) == names(above)
    assert below[-1]["e"] == "op", "what is inside comes before what is around it"


STEPS = """
import numpy, pinner
total = numpy.zeros(3)
for step in range(3):
    total = total + numpy.ones(3) * step
    pinner.fingerprint("total", total)
    pinner.fingerprint("other", total)
"""


def test_fingerprints_end_steps_and_looking_changes_no_bits(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "steps.py").write_text(STEPS)
    pinner = Pinner(work)
    done = pinner("trace", "-o", "trace", "--", *python(str(work / "steps.py")))
    assert done.code == 0, done.err
    assert "valid trace: the untraced run left the same bits in 2 streams" in done.last
    (log,) = (work / "trace").glob("rank-none/*.jsonl")
    head, *lines = map(json.loads, log.read_text().splitlines())
    assert (head["numpy"], "torch" in head) == (numpy.__version__, False)
    seen = [line for line in lines if line.get("e") == "op"]
    assert [line["s"] for line in seen if line["n"] == "numpy.add"] == [0, 1, 2]
    fingerprints = [(line["n"], line["s"]) for line in lines if line.get("e") == "step"]
    assert fingerprints == [(name, step) for step in range(3) for name in ("total", "other")]


TORCH = """
import numpy
a = numpy.ones((3, 3)) @ numpy.ones((3, 3))
kinds = numpy.ufunc, numpy.ndarray, type(numpy.sum)
ours = [kind.__dict__[name] for kind, name in zip(kinds, ("__call__", "sum", "__call__"))]
flags = [kind.__flags__ for kind in kinds]
assert all(type(each).__name__ == "function" for each in ours), ours
import torch
now = [kind.__dict__[name] for kind, name in zip(kinds, ("__call__", "sum", "__call__"))]
assert not any(type(each).__name__ == "function" for each in now), now
assert numpy.ufunc.__flags__ & 1 << 11 and not flags[0] & 1 << 11
other = 1 << 11 | 1 << 19  # called by vector; the class's version is known
assert [k.__flags__ | other for k in kinds] == [f | other for f in flags]
torch.ones(3) * 2
print(a @ a, numpy.sum(a))
"""


def test_where_torch_comes_numpy_is_as_it_was(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    events = traced(tmp_path, TORCH).events()
    assert [event["n"] for event in events if event["e"] == "op"] == [
        "aten.ones.default",
        "aten.mul.Tensor",
    ]


ODD = """
import tempfile
import numpy as np

made = np.zeros(3, dtype=[("a", "f4"), ("b", "i8", (2,))])
np.sort(made, order="a")
np.concatenate([made, made])["a"] + 1
np.array([b"x", b"yz"]) == b"x"
np.array([1.5], ">f8") * 2
np.array([1, "a"], object) == 1
np.datetime64("2020-01-01") - np.array(["2019-01-01"], dtype="M8[D]")
mapped = np.memmap(tempfile.TemporaryFile(), shape=(4,), dtype="f8", mode="w+")
mapped += 1
np.matrix([[1, 2], [3, 4]]) * np.matrix([[1], [2]])
x = np.arange(5)
x.flags.writeable = False
np.sum([]), np.max([1, 2]), np.add.reduce([[1.5, 2], [3, 4]]), x << 1, divmod(x, 2)
np.unique(x, return_counts=True), np.histogram(x), np.gradient(x * 1.0), np.percentile(x, 30)
np.linalg.lstsq(np.eye(3), np.ones(3), rcond=None), np.linalg.eigh(np.eye(2)), np.kron(x, x)
np.ma.array([1, 2, 3], mask=[0, 1, 0]).mean(), np.ma.masked_less(x, 3).sum()
np.frompyfunc(lambda a: a, 1, 1)(x), np.polyfit(x, x * x, 2), np.pad(x, 2)
np.longdouble(1) / 3 * np.ones(3, np.longdouble)
np.testing.assert_allclose([1.0], [1.0])
a = np.ones((300, 300))
a + a + a * 2
a **= 3
a @= a
"""


def test_whatever_arrays_hold_two_traces_at_the_finest_level_agree(tmp_path: Path) -> None:
    """Memory that nobody wrote is in no digest, and nothing of the address is in an event."""
    first, second = (traced(tmp_path / name, ODD, "kernels") for name in ("first", "second"))
    report = compare_traces(first.trace, second.trace, jobs=1)
    assert report.exit == 0, report.text()
    assert report.events > 100
    assert not [event for event in first.events("op") if "_unknown" in event["n"]]


# -- planted faults --------------------------------------------------------------------------------

STAND_IN = '''
"""A stand-in for scipy: one function, which at one of its calls gives one other bit."""
import os

import numpy

__all__ = ["cholesky"]
_calls = 0


def cholesky(a, lower=False):
    global _calls
    found = numpy.linalg.cholesky(a)
    if _calls == int(os.environ.get("FLIP", "-1")):
        found.view("u8").reshape(-1)[int(os.environ["PLACE"])] ^= 1
    _calls += 1
    return found
'''
FACTORING = """
import pickle
import numpy, pinner
from scipy.linalg import cholesky
assert pickle.loads(pickle.dumps(cholesky)) is cholesky
a = numpy.eye(4) * 4 + numpy.full((4, 4), 0.25)
for step in range(3):
    for _ in range(4):
        a = cholesky(a @ a.T, lower=True) + numpy.eye(4)
    pinner.fingerprint("a", a)
"""


def planted(folder: Path, level: str = "ops", **environ: str) -> Program:
    package = folder / "scipy" / "linalg"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("__version__ = '0'\n")
    (package / "__init__.py").write_text(STAND_IN)
    path = "\n".join(("import sys", f"sys.path.insert(0, {str(folder)!r})", FACTORING))
    return traced(folder, path, level, **environ)


def test_a_flipped_bit_is_found_in_the_call_that_gave_it(tmp_path: Path) -> None:
    draw = random.Random(SEED)
    at, place = draw.randrange(12), draw.choice((0, 4, 5, 8, 9, 10, 12, 15))
    print(f"seed {SEED}: call {at}, element {place}")
    good = planted(tmp_path / "good")
    bad = planted(tmp_path / "bad", FLIP=str(at), PLACE=str(place))
    head = compare_traces(good.trace, bad.trace, jobs=1).head
    assert head is not None
    assert head.reading is not None
    assert head.reading.kind == trace_reading.ORIGIN
    event = head.event
    assert (event.name, event.step, event.nth) == ("scipy.linalg.cholesky", at // 4, at % 4)
    same = compare_traces(good.trace, planted(tmp_path / "again").trace, jobs=1)
    assert same.exit == 0, same.text()


def test_a_bit_that_changed_between_two_calls_is_no_calls_fault(tmp_path: Path) -> None:
    """Assignment to a part of an array is not seen: the next call gets another input."""
    code = "import numpy\na = numpy.ones(3) * 2\na[1] = {}\na + 1\n"
    good, bad = (traced(tmp_path / text, code.format(text)) for text in ("2.0", "2.5"))
    head = compare_traces(good.trace, bad.trace, jobs=1).head
    assert head is not None
    assert head.reading is not None
    assert head.event.name == "numpy.add"
    assert head.reading.kind == trace_reading.UNTRACED


# -- parts -----------------------------------------------------------------------------------------


def test_names_are_those_a_program_can_write() -> None:
    for function, name in (
        (numpy.linalg.norm, "numpy.linalg.norm"),
        (numpy.abs, None),
        (numpy.fft.fft, "numpy.fft.fft"),
    ):
        if isinstance(function, numpy.ufunc):
            facts = array_facts.of_ufunc(function, "__call__")
        else:
            facts = array_facts.of_function(function)
        assert eval(facts.name) is function
        assert name in (None, facts.name)
        assert facts.public
    inner: Any = sys.modules["numpy.linalg._umath_linalg"]
    assert not array_facts.of_ufunc(inner.solve, "__call__").public
    assert array_facts.is_of_program(numpy.frompyfunc(abs, 1, 1))
    assert not array_facts.is_of_program(numpy.add)


def test_a_class_in_c_is_as_before_when_its_method_is_put_back() -> None:
    kind = type(numpy.sum)
    assert c_classes.can_replace(kind)
    flags, seen = kind.__flags__, []
    before = c_classes.replace(kind, "__call__", lambda *given: seen.append(given))
    try:
        numpy.sum([1, 2])
    finally:
        c_classes.restore(kind, "__call__", before, flags)
    assert seen == [(numpy.sum, [1, 2])]
    assert kind.__flags__ | VERSION_KNOWN == flags | VERSION_KNOWN
    assert kind.__dict__["__call__"] is before
    assert numpy.sum([1, 2]) == 3
    with pytest.raises(TypeError, match="cannot set"):
        kind.__call__ = before


@pytest.mark.soak
@pytest.mark.service
@pytest.mark.parametrize(
    ("version", "wanted"),
    [("3.8", "1.24.4"), ("3.9", "2.0.2"), ("3.10", "1.26.4"), ("3.12", "2.2.6"), ("3.13", "2.3.5")],
)
def test_other_pythons_and_numpys_are_seen_alike(tmp_path: Path, version: str, wanted: str) -> None:
    if not lanes.soak():
        pytest.skip("the long form: make soak")
    interpreter = lanes.other_python(version)
    place = numpy_rig.packages(interpreter, [f"numpy=={wanted}"])
    program = Program(tmp_path)
    lines = f"import sys\nsys.path.insert(0, {str(place)!r})\n"
    lines += f"CALLS = {[line for line, _ in CALLS]!r}\n{PROGRAM}"
    script = tmp_path / "program.py"
    script.write_text(lines)
    done = program.rig.run([interpreter, str(script)])
    assert done.returncode == 0, done.stderr
    found = by_call(program.events("op"))[:-1]
    apart = {
        line: names(events)
        for (line, name), events in zip(CALLS, found, strict=True)
        if names(events) != name
    }
    assert not apart
