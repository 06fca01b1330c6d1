"""Repros of Triton launches, on real Triton under its interpreter.

What a kernel consists of is read in this process; what stacks do is seen in processes of their own.
"""

from __future__ import annotations

import builtins
import contextlib
import dis
import importlib
import itertools
import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import pytest

from pinner.inside.evidence.trace import capture_triton, kernel_source
from stackbisect.repro import (
    capture,
    extract,
    form,
    kernel_text,
    passes,
    prove,
    shrink,
    sides,
    triton_case,
)
from stackbisect.repro.calls import Program
from stackbisect.repro.commands import Budget
from stackbisect.repro.extract import NoCase
from stackbisect.repro.kernel_text import NoText, Text
from stackbisect.repro.locate import Site
from tests import lanes
from tests.command_rig import REPO, WORKLOADS

triton = pytest.importorskip("triton")
torch = pytest.importorskip("torch")

HEAD = "import triton\nimport triton.language as tl\n"
MIXING = """
SCALE = tl.constexpr(1.5)
EPS = tl.constexpr(1e-6)


@triton.jit
def _norm(x):
    return tl.sqrt(x * x + EPS)


@triton.jit
def mix(x, bias):
    \"\"\"Scales and shifts.\"\"\"
    return _norm(x) * SCALE + bias
"""
OTHER_MIX = ("_norm(x) * SCALE + bias", "bias + _norm(x) * (SCALE * 1.0000002)")


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(HEAD + dedent(text) if name.endswith(".py") else text)


def install(folder: Path, version: str, text: str, **more: str) -> Path:
    """The library smallmix as pip would have installed it in a folder."""
    files = {"smallmix/__init__.py": "from smallmix.mixing import *\n", "smallmix/mixing.py": text}
    files.update((f"smallmix/{name}.py", each) for name, each in more.items())
    write(folder, files)
    about = folder / f"smallmix-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: smallmix\nVersion: {version}\n")
    (about / "RECORD").write_text("".join(f"{name},,\n" for name in files))
    return folder


@contextlib.contextmanager
def imported(name: str, *folders: Path) -> Iterator[ModuleType]:
    """A module of these folders, which are not known any more afterwards."""
    before = set(sys.modules)
    sys.path[:0] = map(str, folders)
    importlib.invalidate_caches()
    try:
        yield importlib.import_module(name)
    finally:
        del sys.path[: len(folders)]
        for each in set(sys.modules) - before:
            if each.partition(".")[0] in ("train", "smallmix", "own", "repro"):
                del sys.modules[each]
        kernel_source.home.cache_clear()
        kernel_source._imports.cache_clear()


def closure(*folders: Path, name: str = "train.kernel") -> dict[str, Any]:
    """What a kernel consists of, as it travels."""
    module, _, attribute = name.rpartition(".")
    with imported(module, *folders) as loaded:
        found = kernel_source.closure(getattr(loaded, attribute))
    travelled: dict[str, Any] = json.loads(json.dumps(found))
    return travelled


class Two:
    """A program, and a library that is installed in two versions."""

    def __init__(self, folder: Path, program: str, good: str = MIXING, bad: str = MIXING) -> None:
        self.folder = folder
        self.own = folder / "own_code"
        write(self.own, {"train.py": program})
        self.good = install(folder / "good", "1.0", good)
        self.bad = install(folder / "bad", "1.1", bad)

    def text(self, name: str = "train.kernel") -> Text:
        both = [closure(self.own, each, name=name) for each in (self.good, self.bad)]
        return kernel_text.text(both[0], both[1])

    def result(self, side: Path, found: Text) -> list[float]:
        """What the text alone gives for 16 numbers, without the program."""
        lines = ["import torch", *found.imports, "", found.body, ""]
        name = f"repro_{next(_numbers)}"
        write(self.folder / "alone", {f"{name}.py": "\n".join(lines)})
        with imported(name, self.folder / "alone", side) as loaded:
            assert "train" not in sys.modules
            return launched(getattr(loaded, found.kernel))

    def original(self, side: Path, name: str = "train.kernel") -> list[float]:
        module, _, attribute = name.rpartition(".")
        with imported(module, self.own, side) as loaded:
            return launched(getattr(loaded, attribute))


_numbers = itertools.count()


def launched(kernel: Any) -> list[float]:
    x = torch.linspace(-2, 2, 16)
    y = torch.zeros(16)
    while hasattr(kernel.fn, "fn"):
        kernel = kernel.fn
    kernel[(1,)](x, y, B=16)
    found: list[float] = y.tolist()
    return found


def kernel(body: str, head: str = "") -> str:
    """A program with one kernel; `body` makes v of x."""
    lines = "\n".join("    " + line for line in dedent(body).strip().split("\n"))
    return (
        f"{dedent(head)}\n\n@triton.jit\ndef kernel(x_ptr, y_ptr, B: tl.constexpr):\n"
        f"    x = tl.load(x_ptr + tl.arange(0, B))\n{lines}\n"
        "    tl.store(y_ptr + tl.arange(0, B), v)\n"
    )


USER = kernel("v = mix(x, 0.5)", "from smallmix import mix")


class TestText:
    def test_what_is_the_same_in_both_stacks_is_copied(self, tmp_path: Path) -> None:
        two = Two(tmp_path, USER, bad="# Another line.\n" + MIXING.replace("Scales and", "It"))
        found = two.text()
        assert found.imports == ()
        assert found.changes == ()
        assert "def mix(x, bias)" in found.body
        assert two.result(tmp_path, found) == two.original(two.good)

    def test_what_is_not_is_imported_from_its_library(self, tmp_path: Path) -> None:
        two = Two(tmp_path, USER, bad=MIXING.replace(*OTHER_MIX))
        found = two.text()
        assert found.imports == ("from smallmix import mix",)
        assert "def mix" not in found.body
        (change,) = found.changes
        assert (change.name, change.distribution, change.versions) == (
            *("mix", "smallmix"),
            ("1.0", "1.1"),
        )
        assert "-    return _norm(x) * SCALE + bias\n+    return bias + _norm(x)" in change.diff
        good, bad = (two.result(each, found) for each in (two.good, two.bad))
        assert good == two.original(two.good)
        assert bad == two.original(two.bad)
        assert good != bad

    def test_only_the_innermost_that_changed_is_imported(self, tmp_path: Path) -> None:
        two = Two(tmp_path, USER, bad=MIXING.replace("tl.sqrt(x * x + EPS)", "tl.abs(x) + EPS"))
        found = two.text()
        assert found.imports == ("from smallmix.mixing import _norm",)
        assert "def mix" in found.body
        assert two.result(two.bad, found) == two.original(two.bad) != two.original(two.good)

    def test_a_constant_that_changed_is_imported(self, tmp_path: Path) -> None:
        two = Two(
            tmp_path,
            kernel("v = x * smallmix.mixing.SCALE", "import smallmix.mixing"),
            bad=MIXING.replace("1.5", "1.25"),
        )
        found = two.text()
        assert found.imports == ("from smallmix.mixing import SCALE",)
        assert "+SCALE = tl.constexpr(1.25)" in found.changes[0].diff
        assert two.result(two.bad, found) == two.original(two.bad) != two.original(two.good)

    def test_a_kernel_of_the_library_itself(self, tmp_path: Path) -> None:
        tuned = "@triton.autotune([triton.Config({})], key=[])\n@triton.jit\ndef kernel("
        text = kernel("v = x * 3").replace("@triton.jit\ndef kernel(", tuned)
        two = Two(tmp_path, "", good=text, bad=text.replace("x * 3", "x * 3.0000002"))
        found = two.text("smallmix.mixing.kernel")
        assert (found.imports, found.body) == (("from smallmix.mixing import kernel",), "")
        assert found.wrapped
        name = "smallmix.mixing.kernel"
        assert (
            two.result(two.bad, found)
            == two.original(two.bad, name)
            != two.original(two.good, name)
        )

    def test_a_function_that_moved_is_imported_by_the_name_that_both_have(
        self, tmp_path: Path
    ) -> None:
        two = Two(tmp_path, USER)
        place = two.bad / "smallmix"
        (place / "moved.py").write_text((place / "mixing.py").read_text().replace("1.5", "1.25"))
        (place / "__init__.py").write_text("from smallmix.moved import mix\n")
        found = two.text()
        assert found.imports == ("from smallmix import mix",)
        assert two.result(two.bad, found) == two.original(two.bad) != two.original(two.good)

    @pytest.mark.parametrize(
        ("good", "bad"),
        [("x * 2 + 1", "1 + 2 * x"), ("x + SHIFT", "x + SHIFT")],
        ids=["function", "constant"],
    )
    def test_a_change_in_the_users_own_code_is_no_repro(
        self, good: str, bad: str, tmp_path: Path
    ) -> None:
        head = "SHIFT = tl.constexpr({})\n\n\n@triton.jit\ndef twice(x):\n    return {}\n"
        sources = []
        for side, text, shift in (("a", good, 1), ("b", bad, 2)):
            write(tmp_path / side, {"own.py": head.format(shift, text)})
            write(tmp_path / side, {"train.py": kernel("v = own.twice(x)", "import own")})
            sources.append(closure(tmp_path / side))
        with pytest.raises(NoText, match=r"own\.twice.*the change is in your own code"):
            kernel_text.text(*sources)
        assert kernel_text.text(sources[0], sources[0]).changes == ()

    def test_a_library_that_is_only_linked_to_is_the_users_own(self, tmp_path: Path) -> None:
        two = Two(tmp_path, USER, bad=MIXING.replace(*OTHER_MIX))
        for side in (two.good, two.bad):
            (about,) = side.glob("*.dist-info")
            (about / "direct_url.json").write_text('{"dir_info": {"editable": true}}')
        with pytest.raises(NoText, match="in your own code"):
            two.text()


NAMES = """
from enum import IntEnum
from typing import Optional

import own
from own import EPS as SHIFT, mix as mixed
from triton.language import constexpr, exp2
from triton.language.extra import libdevice

EPS = constexpr(0.25)
NOTED: tl.constexpr = 3
PLAIN = (2.5, tl.float32)


class Mode(IntEnum):
    FAST = 2


class Unknown:
    pass


@triton.jit
def _norm(x: Unknown, mix: "tl.constexpr" = Mode.FAST) -> Optional[Unknown]:  # another one
    return x / (tl.abs(x) + EPS) * mix


def make(offset):
    @triton.jit(do_not_specialize=["x"])
    def inner(x):
        return x + offset

    return inner


added = make(tl.constexpr(0.125))
plain_power = lambda n: 2**n


def power(n):
    return 2**n
"""
BODY = """
mix = own.mix(_norm(x)) + mixed(x)  # é: a name that is one's own here, behind ½ a line
# Two lines to \u2028str.splitlines, and one to Python.
tl.static_assert(B > 1, f"B {EPS}")
if B < 2:  # what Triton's interpreter does not do
    v = exp2(libdevice.abs(added(x)))
v = SHIFT + own.deep.EPS + NOTED + PLAIN[0] + max(Mode.FAST.value, 1)
v = (v + power(3)).to(PLAIN[1])
"""

OWN = """
import own.deep

EPS = tl.constexpr(0.5)


@triton.jit
def _norm(x):
    return x + EPS


@triton.jit
def mix(x):
    return _norm(x)
"""
COMPILED = """
import own
from triton.language.extra import libdevice

EPS = tl.constexpr(0.25)


@triton.jit
def _norm(x):
    return libdevice.exp(x) / (tl.abs(x) + EPS)


def make(offset):
    @triton.jit
    def inner(x):
        return x + offset

    return inner


added = make(tl.constexpr(0.125))
"""
POWER = """
@triton.constexpr_function
def power(n):
    return 2**n
"""


class TestNames:
    def test_clashes_constants_and_aliases(self, tmp_path: Path) -> None:
        program = kernel(BODY, NAMES)
        two = Two(tmp_path, program)
        write(two.own, {"own/__init__.py": OWN, "own/deep.py": "EPS = tl.constexpr(0.75)\n"})
        found = two.text()
        assert two.result(tmp_path, found) == two.original(two.good)
        for name in ("own.", "Unknown", "Optional", "Mode", "make(", "mixed"):
            assert name not in found.body.replace("one's own", "")
        assert "NOTED: tl.constexpr = 3" in found.body
        assert "behind ½ a line" in found.body
        assert "EPS_own = tl.constexpr(0.5)" in found.body
        assert '@triton.jit(do_not_specialize=["x"])' in found.body
        assert found.imports == (
            "from triton.language import exp2",
            "from triton.language.extra import libdevice",
        )

    def test_what_the_interpreter_leaves_in_triton_is_tritons(self, tmp_path: Path) -> None:
        """After a launch that calls a function, modules get the interpreter's for `exp`."""
        two = Two(tmp_path, USER)
        two.original(two.good)
        late = kernel("v = x if B > 2 else exp(x)", "from triton.language import exp")
        write(two.own, {"own/__init__.py": "", "own/late.py": late})
        assert two.text("own.late.kernel").imports == ("from triton.language import exp",)

    def test_a_copy_compiles_to_the_same_code(self, tmp_path: Path) -> None:
        """For sm_90, without a GPU; and another constant to other code."""
        body, head = "v = own.mix(_norm(x)) + own.deep.EPS + added(x)", COMPILED
        if hasattr(triton, "constexpr_function"):  # 3.5 and later
            body, head = body + " + power(B)", head + POWER
        write(tmp_path, {"train.py": kernel(body, head), "own/__init__.py": OWN})
        write(tmp_path, {"own/deep.py": "EPS = tl.constexpr(0.75)\n"})
        environ = {name: os.environ[name] for name in os.environ if name != "TRITON_INTERPRET"}
        environ.update(
            PYTHONPATH=os.pathsep.join((str(REPO), str(REPO / "bisect"))),
            TRITON_CACHE_DIR=str(tmp_path / "cache"),
        )
        done = subprocess.run(
            [sys.executable, str(WORKLOADS / "copied_kernel.py"), str(tmp_path)],
            env=environ,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        original, copied, planted = json.loads(done.stdout)
        assert copied == original
        assert planted != original

    @pytest.mark.parametrize(
        ("head", "said"),
        [
            ("TABLE = {1: 2}", "train.kernel reads TABLE, which is builtins.dict"),
            ("class TABLE:\n    pass", "train.kernel reads TABLE, the class train.TABLE"),
            ("import torch\nTABLE = torch.ones(1)", "reads TABLE, which is torch.Tensor"),
            ("exec('def TABLE(x): return x')\n", "train.TABLE has no source that can be read"),
        ],
    )
    def test_what_cannot_be_written_down_is_named(
        self, head: str, said: str, tmp_path: Path
    ) -> None:
        write(tmp_path, {"train.py": kernel("v = x + TABLE(1)", head)})
        with pytest.raises(kernel_source.NoSource) as found:
            closure(tmp_path)
        assert said in str(found.value)


@lanes.long_form
def test_every_kernel_of_a_library_can_be_copied(tmp_path: Path) -> None:
    """fla-core: each jitted function, with all that it calls, as a module of its own."""
    fla = pytest.importorskip("fla")
    sys.path.insert(0, str(tmp_path))
    seen: set[Any] = set()
    for found in pkgutil.walk_packages(fla.__path__, "fla."):
        try:
            module = importlib.import_module(found.name)
        except Exception:  # it wants a GPU, or another library
            continue
        for value in list(vars(module).values()):
            jitted = type(value).__module__.startswith("triton.")
            if not jitted or not kernel_source.is_function(value) or value in seen:
                continue
            seen.add(value)
            text = kernel_text.text(kernel_source.closure(value), None)
            name = f"copied_{len(seen)}"
            write(tmp_path, {f"{name}.py": "\n".join(["import torch", *text.imports, text.body])})
            names = vars(importlib.import_module(name))
            for each in dis.get_instructions(names[text.kernel].fn):
                if each.opname == "LOAD_GLOBAL":
                    assert each.argval in names or hasattr(builtins, each.argval), each.argval
    assert len(seen) > 100


# -- launches --------------------------------------------------------------------------------------

TRAIN = """
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "own"))
import torch

import blocks

def ones(arguments):
    arguments["extra"].fill_(1.0)


@triton.autotune(
    [triton.Config({"B": 16}, num_warps=2, pre_hook=ones)], key=["n"]
)
@triton.heuristics({"EVEN": lambda given: given["n"] % given["B"] == 0})
@triton.jit
def kernel(x_ptr, y_ptr, extra, none_ptr, n, bias, act: tl.constexpr,
           B: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    mask = i < n
    v = tl.load(x_ptr + i) if EVEN else tl.load(x_ptr + i, mask=mask)
    if none_ptr is not None:
        v += tl.load(none_ptr)
    tl.store(y_ptr + i, act(blocks.block(v, bias)) + tl.load(extra), mask=mask)


def hook(*args, **kwargs):
    kwargs["extra"].add_(0.5)


kernel.fn.fn.add_pre_run_hook(hook)
torch.manual_seed(0)
x = torch.randn(200)[::2]
for _ in range(2):
    y = torch.empty(100)
    kernel[lambda meta: (-(-meta["n"] // meta["B"]) + 1,)](  # -100 // 16 is -6 to a device
        x, y, extra=torch.zeros(1), none_ptr=None, n=100, bias=0.5, act=blocks.act
    )
"""
BLOCKS = """
import smallmix.mixing as mixing

EPS = tl.constexpr(0.25)


@triton.jit
def _norm(x):  # not smallmix's
    return x / (tl.abs(x) + EPS)


@triton.jit
def act(x):
    return tl.maximum(x, 0.0)


@triton.jit
def block(x, bias):
    return mixing.mix(_norm(x), bias) + mixing.EPS
"""


def stacks(folder: Path, bad: str = MIXING.replace(*OTHER_MIX)) -> sides.Sides:
    """The program of above, beside two versions of the library."""
    write(folder / "run", {"train.py": TRAIN, "own/blocks.py": BLOCKS})
    both = [install(folder / n, v, t) for n, v, t in (("a", "1.0", MIXING), ("b", "1.1", bad))]
    python = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environ = {**os.environ, "TRITON_INTERPRET": "1", "PATH": python}
    environ.pop("PYTHONPATH", None)
    good_path, bad_path = ([f"PYTHONPATH={each}"] for each in both)
    return sides.of_variables(good_path, bad_path, ["python", "train.py"], environ, folder / "run")


def quiet(_: str) -> None:
    """Says nothing."""


SECOND = Site(
    kind="kernel",
    name="triton:__main__:kernel",
    nth=1,
    module="",
    phase="f",
    step=0,
    rank=None,
    level="kernels",
    text="they part",
)


class TestLaunches:
    def test_a_launch_becomes_a_program_of_its_own(self, tmp_path: Path) -> None:
        """The capture itself shows that it gives, alone, the bits of the user's program."""
        both = stacks(tmp_path)
        found = capture.capture(
            both.good, both.argv, SECOND, tmp_path / "c", other=both.bad, time_limit=None
        )
        assert isinstance(found, Program), found
        kernel = found.kernel
        assert (kernel.grid, kernel.constexprs) == ((7, 1, 1), ("act", "B", "EVEN"))
        given = found.steps[0].kwargs
        assert (given["B"], given["EVEN"], given["none_ptr"], given["bias"]) == (
            *(16, False, None),
            0.5,
        )
        assert kernel.options["num_warps"] == 2
        assert found.needs == ("torch", "triton", "numpy", "smallmix")
        assert (found.outputs, found.gpu) == (("y_ptr",), False)
        assert found.inputs["extra"].data == b"\0\0\xc0\x3f", "1.5: what both hooks left"
        script = found.files()[form.SCRIPT].decode()
        assert "from smallmix.mixing import mix\n" in script
        assert not {"pinner", "stackbisect", "blocks", "train", "heuristics"} & set(script.split())
        one_program = next(iter(passes.grid(found))).apply(found)
        assert isinstance(one_program, Program)
        assert one_program.kernel.grid == (1, 1, 1)
        proof = prove.prove(one_program.files(), both.good, both.bad, quiet, times=1)
        assert isinstance(proof, prove.Proof), proof
        (note,) = found.notes
        assert "`smallmix.mixing.mix`" in note
        assert "+    return bias + _norm(x)" in note

    @lanes.long_form
    def test_from_two_stacks_to_one_program(self, tmp_path: Path) -> None:
        both = stacks(tmp_path)
        smaller = shrink.within(Budget(tries=250))
        asked = extract.Asked(both.argv, tmp_path / "found", capture.capture, smaller, times=2)
        outcome = extract.extract(both.good, both.bad, asked, quiet)
        assert outcome.exit == extract.EXTRACTED, outcome.text
        made = form.read(tmp_path / "found")
        assert made.finding.kind == "triton"
        assert made.difference is not None
        assert made.stack("bad").versions["smallmix"] == "1.1"
        assert made.shrink is not None
        assert made.shrink.elements <= 4
        assert "kernel[(1,)](" in (tmp_path / "found" / form.SCRIPT).read_text()
        page = (tmp_path / "found" / form.TEXT).read_text()
        assert "--- smallmix 1.0\n+++ smallmix 1.1" in page


def launch(**changed: Any) -> dict[str, Any]:
    """What is written down of a launch of USER's kernel in this process."""

    def take(name: str, tensor: Any) -> int:
        return list(given).index(name)

    given = {"x_ptr": torch.ones(16), "y_ptr": torch.ones(16), "B": 16}
    with imported("train", *changed.pop("folders")) as loaded:
        grid = capture_triton.sizes(changed.pop("grid", (1,)))
        arguments = {**given, "num_warps": 4, **changed}
        found = {**capture_triton.launch(loaded.kernel, (), arguments, take), "grid": grid}
    travelled: dict[str, Any] = json.loads(json.dumps(found))
    return travelled


class TestLaunchedOtherwise:
    @pytest.mark.parametrize(
        ("changed", "said"),
        [
            ({"B": 8}, "B is 16 in the good stack, 8 in the bad"),
            ({"num_warps": 8}, "num_warps is 4 in the good stack, 8 in the bad"),
            ({"maxnreg": 32}, "maxnreg is not given in the good stack, 32 in the bad"),
            ({"grid": (3,)}, "the grid is [1, 1, 1] in the good stack, [3, 1, 1] in the bad"),
            ({"y_ptr": None}, "y_ptr is a tensor in the good stack, None in the bad"),
        ],
    )
    def test_another_choice_is_named(
        self, changed: dict[str, Any], said: str, tmp_path: Path
    ) -> None:
        two = Two(tmp_path, USER)
        folders = (two.own, two.good)
        good, bad = launch(folders=folders), launch(folders=folders, **changed)
        answer = triton_case.kernel(good, bad)
        assert isinstance(answer, NoCase)
        assert said in answer.text
        assert isinstance(triton_case.kernel(good, launch(folders=folders)), triton_case.Kernel)

    def test_an_argument_that_is_not_written_down_is_named(self, tmp_path: Path) -> None:
        two = Two(tmp_path, USER)
        with pytest.raises(kernel_source.NoSource, match=r"its argument B is a builtins\.object"):
            launch(folders=(two.own, two.good), B=object(), grid=(1,))
