"""From a program to a folder with one call, where CPU kernels are what two stacks differ in.

`ATEN_CPU_CAPABILITY` makes the stacks: some operations round otherwise in longer vectors.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from stackbisect.repro import capture, extract, form
from stackbisect.repro.extract import Asked, NoCase, Outcome
from stackbisect.repro.locate import Site
from stackbisect.repro.stacks import PythonStack
from tests import lanes
from tests.session_rig import REPO
from tests.stackbisect.forked import ForkedStack, forked

pytest.importorskip("torch")

# Two operations of a library, one of which remembers what it was given.
LIBRARY = """
import torch

_seen = []


@torch.library.custom_op("smalllib::squash", mutates_args=())
def squash(x: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(x)


@torch.library.custom_op("smalllib::remember", mutates_args=())
def remember(x: torch.Tensor) -> torch.Tensor:
    _seen.append(torch.sigmoid(x))
    return torch.zeros(3)


@torch.library.custom_op("smalllib::recall", mutates_args=())
def recall(x: torch.Tensor) -> torch.Tensor:
    return x + sum(_seen)
"""
METADATA = "Metadata-Version: 2.1\nName: small-lib\nVersion: 1.4\n"

START = """
import torch

x = (torch.arange(1200) % 331 - 160).reshape(40, 30).float() / 32
"""

TWENTY = (
    START
    + """
w = (torch.arange(90) % 7 - 3).reshape(30, 3).float()
b = torch.ones(3)
h = torch.relu(x @ w + b)                               # sums of small integers: exact everywhere
h = torch.clamp(h, max=4.0) * 0.5 - 1.0
h = torch.cat([h, -h], dim=1)[:, ::2].contiguous()
h = torch.maximum(h, h.roll(1, 0)).abs().neg()
h = torch.where(h > -0.25, h, h * 2).flip(0)
g = torch.sigmoid(h)                                    # the one that rounds otherwise
g = (g * 2 + 1).square().sum(1).sqrt()
print(g.mean())
"""
)

BACKWARD = (
    START
    + """
x.requires_grad_(True)
torch.tanh(x * 0.3).sum().backward()
print(x.grad.sum())
"""
)

UNSTABLE = (
    START
    + """
import os
print((x + int.from_bytes(os.urandom(4), "big") / 2**32).sum())
"""
)

OF_THE_SCRIPT = (
    START
    + """
@torch.library.custom_op("mine::squash", mutates_args=())
def squash(x: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(x)

print(squash(x).sum())
"""
)

OF_A_LIBRARY = START + "import smalllib\nprint(smalllib.squash(x[:, 1:]).sum())\n"

REMEMBERED = START + "import smalllib\nsmalllib.remember(x)\nprint(smalllib.recall(x + 1).sum())\n"

REMEMBERED_LONG_AGO = (
    START
    + """
import smalllib
smalllib.remember(x)
for _ in range(20):
    x = x * 1
print(smalllib.recall(x).sum())
"""
)

SET_IN_ONE = (
    START
    + """
import os
torch.set_flush_denormal(os.environ["ATEN_CPU_CAPABILITY"] == "avx2")
print((torch.full((8,), 2.0**-140) * 1.5).sum())
"""
)

CORRUPTED = (
    """
from pinner.inside.evidence.trace import capture

copy = capture._copy


def corrupted(tensor, start, end):
    data = bytearray(copy(tensor, start, end))
    if len(data) > 64:
        data[4 * 3 + 2] ^= 1
    return bytes(data)


capture._copy = corrupted
"""
    + BACKWARD
)


@dataclass(frozen=True)
class Rig:
    """Both stacks, and where scripts and folders go."""

    good: ForkedStack
    bad: ForkedStack
    folder: Path

    def extract(self, name: str, code: str) -> Outcome:
        """What comes of a script; a folder of its name, where one is written."""
        script = self.folder / f"{name}.py"
        script.write_text(code)
        said: list[str] = []
        asked = Asked(
            ("python", str(script)), self.folder / name, capture.capture, shrink=None, times=2
        )
        return extract.extract(self.good, self.bad, asked, said.append)


def environment(*more: Path) -> dict[str, str]:
    """This machine's, with folders for Python to look in."""
    kept = {name: value for name, value in os.environ.items() if name != "ATEN_CPU_CAPABILITY"}
    return {**kept, "PYTHONPATH": os.pathsep.join(map(str, more)), "OMP_NUM_THREADS": "2"}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Both stacks, with a small library installed, by forks of two processes."""
    if not lanes.has_avx2():
        pytest.skip("needs a CPU with AVX2")
    folder = tmp_path_factory.mktemp("capture")
    library = folder / "site"
    (library / "small_lib-1.4.dist-info").mkdir(parents=True)
    (library / "small_lib-1.4.dist-info" / "METADATA").write_text(METADATA)
    (library / "small_lib-1.4.dist-info" / "top_level.txt").write_text("smalllib\n")
    (library / "smalllib.py").write_text(LIBRARY)
    environ = environment(REPO, library)
    with ExitStack() as opened:
        stacks = [
            opened.enter_context(
                forked(
                    PythonStack(
                        name,
                        Path(sys.executable),
                        environ,
                        folder,
                        {"ATEN_CPU_CAPABILITY": capability},
                    )
                )
            )
            for name, capability in (("good", "default"), ("bad", "avx2"))
        ]
        yield Rig(*stacks, folder)


def clean(folder: Path, capability: str, elsewhere: Path) -> subprocess.Popen[str]:
    """A repro in a process that has nothing of ours: no PYTHONPATH, isolated, in another folder."""
    code = (
        "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__'); "
        "assert not {'pinner', 'stackbisect', 'smalllib'} & set(sys.modules)"
    )
    return subprocess.Popen(
        [sys.executable, "-I", "-c", code, str(folder / form.SCRIPT)],
        env={"PATH": os.defpath, "ATEN_CPU_CAPABILITY": capability},
        cwd=elsewhere,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_twenty_operations_become_one_call_that_runs_where_nothing_of_ours_is(
    rig: Rig, tmp_path: Path
) -> None:
    outcome = rig.extract("twenty", TWENTY)
    assert outcome.exit == extract.EXTRACTED, outcome.text
    found = form.read(rig.folder / "twenty")
    assert found.finding.kind == "aten"
    assert found.finding.operation == "aten.sigmoid.default"
    assert found.finding.direction == "forward"
    assert found.run.needs == ("torch",)
    assert found.difference is not None
    text = (rig.folder / "twenty" / form.SCRIPT).read_text()
    assert text.count("torch.ops.") == 1
    runs = {
        name: clean(rig.folder / "twenty", capability, tmp_path)
        for name, capability in (("good", "default"), ("bad", "avx2"))
    }
    for name, run in runs.items():
        printed, _ = run.communicate()
        assert run.returncode == 0
        assert form.printed(printed) == found.stack(name).digests


def test_what_differs_in_the_backward_pass_alone(rig: Rig) -> None:
    outcome = rig.extract("backward", BACKWARD)
    assert outcome.exit == extract.EXTRACTED, outcome.text
    found = form.read(rig.folder / "backward").finding
    assert (found.operation, found.direction) == ("aten.tanh_backward.default", "backward")


def test_a_command_that_does_not_repeat_itself_is_refused_with_the_reason(rig: Rig) -> None:
    outcome = rig.extract("unstable", UNSTABLE)
    assert outcome.exit == extract.UNTESTABLE
    assert "does not repeat itself" in outcome.text
    assert not (rig.folder / "unstable").exists()


def test_an_operation_of_an_installed_library_needs_it(rig: Rig) -> None:
    outcome = rig.extract("library", OF_A_LIBRARY)
    assert outcome.exit == extract.EXTRACTED, outcome.text
    found = form.read(rig.folder / "library")
    assert (found.finding.kind, found.finding.operation) == ("custom", "smalllib.squash.default")
    assert found.run.needs == ("torch", "small-lib")
    assert found.stack("bad").versions["small-lib"] == "1.4"
    assert "\nimport smalllib  #" in (rig.folder / "library" / form.SCRIPT).read_text()


def test_an_operation_of_the_commands_own_is_refused_with_the_reason(rig: Rig) -> None:
    outcome = rig.extract("own", OF_THE_SCRIPT)
    assert outcome.exit == extract.NO_REPRO
    assert "mine.squash.default is registered by the command's own script" in outcome.text


def test_a_call_that_needs_those_before_it_has_them(rig: Rig) -> None:
    outcome = rig.extract("remembered", REMEMBERED)
    assert outcome.exit == extract.EXTRACTED, outcome.text
    assert form.read(rig.folder / "remembered").finding.operation == "smalllib.recall.default"
    text = (rig.folder / "remembered" / form.SCRIPT).read_text()
    called = re.findall(r"torch\.ops\.(\S+)\(", text)
    assert called == ["smalllib.remember.default", "aten.add.Tensor", "smalllib.recall.default"]
    assert "calls before it" in (rig.folder / "remembered" / form.TEXT).read_text()


@pytest.mark.parametrize("plant", ["history", "corrupted"])
def test_a_call_that_alone_gives_other_bits_than_in_the_command_is_refused(
    plant: str, rig: Rig
) -> None:
    outcome = rig.extract(plant, {"history": REMEMBERED_LONG_AGO, "corrupted": CORRUPTED}[plant])
    assert outcome.exit == extract.NO_REPRO
    assert "the call alone gives other bits for out than inside of the command" in outcome.text
    assert not (rig.folder / plant).exists()


def test_what_the_command_set_in_one_stack_alone_is_said(rig: Rig) -> None:
    outcome = rig.extract("set", SET_IN_ONE)
    assert outcome.exit == extract.NO_REPRO
    assert "the good and in the bad stack: flush_denormal as torch has it and True" in outcome.text


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("inductor:cpp_fused_add_0", "was generated by torch.compile"),
        ("compiled region", "differs as a whole"),
    ],
)
def test_what_is_no_call_says_what_it_is(name: str, said: str) -> None:
    site = Site("kernel", name, 0, "layers.3.attention", "f", 2, None, "kernels", "first in step 2")
    found = capture.never(site)
    assert isinstance(found, NoCase)
    assert said in found.text
    assert "TORCHDYNAMO_DISABLE=1" in found.text


@pytest.mark.skipif(not lanes.has_avx2(), reason="needs a CPU with AVX2")
@lanes.long_form
def test_the_command_extracts_and_shrinks_in_processes_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TWENTY)
    beside = Path(sys.executable).parent
    done = subprocess.run(
        [
            *(sys.executable, "-m", "stackbisect", "extract", "-o", "found", "--budget", "200"),
            *("--env-good", "ATEN_CPU_CAPABILITY=default", "--env-bad", "ATEN_CPU_CAPABILITY=avx2"),
            *("--", "python", "train.py"),
        ],
        env={**environment(REPO, REPO / "bisect"), "PATH": f"{beside}{os.pathsep}{os.defpath}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == extract.EXTRACTED, done.stdout + done.stderr
    found = form.read(tmp_path / "found")
    assert found.finding.operation == "aten.sigmoid.default"
    assert found.shrink is not None
    assert found.shrink.elements <= 64
    printed, _ = clean(tmp_path / "found", "avx2", tmp_path).communicate()
    assert form.printed(printed) == found.stack("bad").digests
