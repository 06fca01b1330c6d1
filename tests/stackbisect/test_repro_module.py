"""From a program to a folder with one call of a module, where no operation is seen that differs.

A package in two versions is what the stacks differ in: its modules compute by numpy, in memory that
tensors share, and the second version adds from the other end.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from stackbisect.repro import calls, capture, extract, form, shrink
from stackbisect.repro.calls import Program, Ref, Step
from stackbisect.repro.commands import Budget
from stackbisect.repro.extract import Asked, Outcome
from stackbisect.repro.module_case import Module
from stackbisect.repro.stacks import PythonStack
from tests.session_rig import REPO
from tests.stackbisect.forked import ForkedStack, forked

pytest.importorskip("torch")
pytest.importorskip("numpy")

LIBRARY = """
import numpy
import torch

seen = []


class RowSums(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.arange(1, width + 1) / 16)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x, *, shift=0.0):
        self.calls += 1
        sums = torch.zeros(len(x))
        scaled = (x * self.scale[: x.shape[1]]).numpy() + shift   # fails where autograd records
        sums.numpy()[:] = numpy.add.accumulate(scaled[:, ::STEP], axis=1)[:, -1]
        return sums


class Several(RowSums):
    def forward(self, x):
        noise = torch.rand(len(x))
        x[0] = 1.0
        return super().forward(x), {"noise": [noise, 7], "more": None}


class Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        added = numpy.add.accumulate(gradient.numpy()[:, ::STEP], axis=1)[:, -1:]
        return torch.from_numpy(added.copy()).expand_as(gradient)


class Back(torch.nn.Module):
    def forward(self, x):
        return Summed.apply(x), 3


class Remembers(RowSums):
    def forward(self, x):
        seen.append(super().forward(x))
        return sum(seen)
"""
METADATA = "Metadata-Version: 2.1\nName: row-sums\nVersion: {version}\n"

START = """
import torch
import rowsums

x = (torch.arange(1200) % 331 - 160).reshape(40, 30).float() / 7
torch.manual_seed(11)


def run(module, **more):
    with torch.no_grad():
        print(torch.nn.Sequential(torch.nn.Identity(), module)(x, **more))


"""
ONE = START + "run(rowsums.RowSums(30))\n"
SEVERAL = START + "torch.rand(3)\nrun(rowsums.Several(30))\n"
REMEMBERED = (
    START
    + """
rowsums.seen.append(torch.ones(40))
run(rowsums.Remembers(30))
"""
)
BACK = (
    START
    + """
module = rowsums.Back()
x.requires_grad_(True)
y, _ = module(x * 2)
for weights in (torch.ones(40, 30), x.detach(), x.detach() + 1):    # sums of ones are exact
    (y * weights).sum().backward(retain_graph=True)
print(x.grad.sum())
"""
)
OF_THE_SCRIPT = (
    START
    + """
class Own(rowsums.RowSums):
    pass

run(Own(30))
"""
)
NOT_PICKLED = START + "module = rowsums.RowSums(30)\nmodule.act = lambda x: x\nrun(module)\n"
CORRUPTED = (
    """
from pinner.inside.evidence.trace import capture_modules

pickled = capture_modules.pickled


def corrupted(torch, module):
    import copy

    other = copy.deepcopy(module)
    other.scale.data[3] += 1 / 16
    return pickled(torch, other)


capture_modules.pickled = corrupted
"""
    + ONE
)


@dataclass(frozen=True)
class Rig:
    """Both stacks, the folders of their versions, and where scripts and repros go."""

    good: ForkedStack
    bad: ForkedStack
    sites: dict[str, Path]
    folder: Path

    def extract(self, name: str, code: str, tries: int = 0) -> Outcome:
        """What comes of a script; a folder of its name, where one is written."""
        script = self.folder / f"{name}.py"
        script.write_text(code)
        said: list[str] = []
        asked = Asked(
            ("python", str(script)),
            self.folder / name,
            capture.capture,
            shrink=shrink.within(Budget(tries, None)) if tries else None,
            times=2,
        )
        return extract.extract(self.good, self.bad, asked, said.append)


def installed(site: Path, version: str, step: int) -> Path:
    """A folder with a version of the package, as an installer leaves it."""
    about = site / f"row_sums-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(METADATA.format(version=version))
    (about / "top_level.txt").write_text("rowsums\n")
    (site / "rowsums.py").write_text(f"STEP = {step}\n{LIBRARY}")
    return site


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Both stacks, each with its version of the package, by forks of two processes."""
    folder = tmp_path_factory.mktemp("module")
    sites = {
        "good": installed(folder / "site-1", "1.0", 1),
        "bad": installed(folder / "site-2", "2.0", -1),
    }
    with ExitStack() as opened:
        stacks = []
        for name, site in sites.items():
            path = os.pathsep.join(map(str, (REPO, site)))
            environ = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "2"}
            stack = PythonStack(name, Path(sys.executable), environ, folder, {})
            stacks.append(opened.enter_context(forked(stack)))
        yield Rig(*stacks, sites, folder)


def clean(folder: Path, site: Path, elsewhere: Path) -> subprocess.Popen[str]:
    """A repro in a process that has the package, and nothing else of this test."""
    code = (
        "import runpy, sys; sys.path.append(sys.argv[2]); "
        "runpy.run_path(sys.argv[1], run_name='__main__'); "
        "assert 'rowsums' in sys.modules; "
        "assert not {'pinner', 'stackbisect'} & set(sys.modules)"
    )
    return subprocess.Popen(
        [sys.executable, "-I", "-c", code, str(folder / form.SCRIPT), str(site)],
        env={"PATH": os.defpath},
        cwd=elsewhere,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_module_becomes_a_small_call_that_runs_where_its_package_alone_is(
    rig: Rig, tmp_path: Path
) -> None:
    outcome = rig.extract("one", ONE, tries=8)
    assert outcome.exit == extract.EXTRACTED, outcome.text
    found = form.read(rig.folder / "one")
    assert (found.finding.kind, found.finding.operation) == ("module", "rowsums.RowSums")
    assert found.finding.direction == "forward"
    assert found.run.needs == ("torch", "row-sums")
    assert [each.versions["row-sums"] for each in found.stacks] == ["1.0", "2.0"]
    assert found.shrink is not None
    assert found.shrink.elements <= 120
    text = (rig.folder / "one" / form.TEXT).read_text()
    assert "No single operation is to blame that the dispatcher sees" in text
    assert "it is a pickle" in text
    runs = {name: clean(rig.folder / "one", site, tmp_path) for name, site in rig.sites.items()}
    for name, run in runs.items():
        printed, _ = run.communicate()
        assert run.returncode == 0
        assert form.printed(printed) == found.stack(name).digests


def test_all_that_a_module_gives_draws_and_writes_over_is_there(rig: Rig) -> None:
    outcome = rig.extract("several", SEVERAL)
    assert outcome.exit == extract.EXTRACTED, outcome.text
    found = form.read(rig.folder / "several")
    assert list(found.stack("good").digests) == ["out0", "out1_noise0", "x"]
    apart = {
        name
        for name, digest in found.stack("good").digests.items()
        if found.stack("bad").digests[name] != digest
    }
    assert apart == {"out0"}
    assert "torch.set_rng_state(" in (rig.folder / "several" / form.SCRIPT).read_text()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (OF_THE_SCRIPT, "it needs __main__.Own of the command's own script"),
        (NOT_PICKLED, "the module cannot be pickled"),
        (REMEMBERED, "alone gives other bits for out than inside of the command"),
        (CORRUPTED, "alone gives other bits for out than inside of the command"),
    ],
    ids=["own", "pickle", "history", "corrupted"],
)
def test_a_module_that_cannot_stand_alone_is_refused_with_the_reason(
    code: str, said: str, rig: Rig, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.id
    outcome = rig.extract(name, code)
    assert outcome.exit == extract.NO_REPRO
    assert said in outcome.text
    assert not (rig.folder / name).exists()


def test_the_way_back_of_a_module(rig: Rig) -> None:
    outcome = rig.extract("back", BACK)
    assert outcome.exit == extract.EXTRACTED, outcome.text
    found = form.read(rig.folder / "back")
    assert (found.finding.operation, found.finding.direction) == ("rowsums.Back", "backward")
    assert outcome.site is not None
    assert outcome.site.nth == 1
    assert list(found.stack("good").digests) == ["grad_of_x"]
    text = (rig.folder / "back" / form.SCRIPT).read_text()
    assert "grad_of_x, = torch.autograd.grad((out0,), (x,), (grad_out0,))" in text


@pytest.mark.parametrize(
    ("module", "line"),
    [
        (Module(b"", grad=False), "    with torch.no_grad():"),
        (Module(b"", grad=False, inference=True), "    with torch.inference_mode():"),
        (
            Module(b"", autocast={"cpu": "torch.bfloat16"}),
            '    with torch.autocast("cpu", dtype=torch.bfloat16):',
        ),
        (Module(b""), "    out = module(x)"),
    ],
    ids=["no_grad", "inference", "autocast", "plain"],
)
def test_a_module_is_called_as_it_was(module: Module, line: str) -> None:
    x = calls.array("float32", (2,), bytes(8))
    step = Step("a.B", (Ref("x"),))
    program = Program("module", "a.B", {"x": x}, (step,), ("out",), kernel=module)
    assert line in program.files()[form.SCRIPT].decode().split("\n")
