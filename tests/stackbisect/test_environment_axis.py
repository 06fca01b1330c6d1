"""Environment variables as what is searched: which of them, from which value on, over any base."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from stackbisect import journal
from stackbisect.probe import Candidate
from stackbisect.spaces import environment, window
from stackbisect.spaces.components import derived, lock, swap
from stackbisect.spaces.environment import Axis
from tests import lanes
from tests.stackbisect import images, repositories, wheels
from tests.stackbisect.conftest import RepositoryFactory
from tests.stackbisect.program import in_process as run
from tests.stackbisect.repositories import Made

STDOUT = ("--evidence-stdout", "bits (.*)", "--")


@pytest.fixture(autouse=True)
def _there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths on the command line are those of a folder of one's own."""
    monkeypatch.chdir(tmp_path)


def variables(**ends: Sequence[str]) -> list[str]:
    """`--env-good` and `--env-bad` options."""
    return [word for end, texts in ends.items() for t in texts for word in (f"--env-{end}", t)]


def culprits(report: Mapping[str, Any]) -> list[list[tuple[str, str | None, str | None]]]:
    """Name, good and bad value of each culprit's components."""
    return [
        [(c["name"], c["good"], c["bad"]) for c in each["components"]]
        for each in report["culprits"]
    ]


def test_the_variables_that_change_the_bits_are_found_alone_and_together(tmp_path: Path) -> None:
    """One of eight; then two that only together do; set, changed and not set at one end."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    names = [f"V{n}" for n in range(8)]
    good: dict[str, str] = {name: "1" for name in names if draw.random() < 0.7}
    bad: dict[str, str] = {name: "2" for name in names if name not in good or draw.random() < 0.7}
    one, two = draw.sample(names, 2)
    texts = {
        "good": [f"{name}={value}" for name, value in good.items()],
        "bad": [f"{name}={value}" for name, value in bad.items()],
    }

    def differs(name: str) -> str:
        return f'[ "${name}" = "{bad.get(name, "")}" ]'

    def expected(*which: str) -> list[tuple[str, str | None, str | None]]:
        return [(name, good.get(name), bad.get(name)) for name in sorted(which)]

    alone = ("sh", "-c", f"{differs(one)} && echo bits b || echo bits g")
    found = run(tmp_path, "run", "--name", "one", "--json", *variables(**texts), *STDOUT, *alone)
    assert found.code == 0, found.err
    assert culprits(found.report) == [expected(one)]
    assert found.report["confirmed"]["status"] == "confirmed"
    assert found.report["difference"]["environment"] == {
        name: [good.get(name), bad.get(name)] for name in names
    }
    both = ("sh", "-c", f"{differs(one)} && {differs(two)} && echo bits b || echo bits g")
    found = run(tmp_path, "run", "--name", "two", "--json", *variables(**texts), *STDOUT, *both)
    assert found.code == 0, found.err
    assert culprits(found.report) == [expected(one, two)]


def test_an_axis_of_values_is_searched_as_versions_are(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    culprit = random.Random(seed).randrange(1, 9)
    values = ",".join(str(n) for n in range(9))
    command = ("sh", "-c", f"echo bits $(($CHUNK >= {culprit}))")
    words = ("--env-values", f"CHUNK={values}", "--depth", "search", "--jobs", "2")
    ended = run(tmp_path, "run", "--json", *words, *STDOUT, *command)
    assert ended.code == 0, ended.err
    found = ended.report
    assert (found["last_good"], found["first_bad"]) == (f"CHUNK={culprit - 1}", f"CHUNK={culprit}")
    assert found["difference"]["environment"] == {"CHUNK": [str(culprit - 1), str(culprit)]}


def test_variables_of_a_commit_reach_its_build(tmp_path: Path) -> None:
    """A flag of the compiler: another build of the same commit."""
    known = repositories.make(tmp_path / "repo", [Made("a", (), {"value": "1"})])
    git = ("--git", "repo", "--good", known["a"], "--build", "echo bits $FLAGS > built")
    texts = variables(good=["FLAGS=-O2", "SAME=x", "OTHER=1"], bad=["FLAGS=-Ofast", "SAME=x"])
    ended = run(tmp_path, "run", "--json", *git, *texts, *STDOUT, "cat", "built")
    assert ended.code == 0, ended.err
    assert culprits(ended.report) == [[("FLAGS", "-O2", "-Ofast")]]
    assert ended.report["commit"] is None


def test_variables_of_a_version_reach_its_command(tmp_path: Path) -> None:
    wheels.summing(tmp_path / "store", {"1.0": "forward"})
    package = ("--package", "summing", "--good", "1.0", "--depth", "search")
    where = f"--index-args=--no-index --find-links {tmp_path}/store"
    program = "import os, summing; print('bits', os.environ['CHUNK'] > '2', summing.__version__)"
    words = ("--env-values", "CHUNK=1,2,3", *package, where, *STDOUT, "python", "-c", program)
    ended = run(tmp_path, "run", "--json", *words)
    assert ended.code == 0, ended.err
    assert (ended.report["last_good"], ended.report["first_bad"]) == ("CHUNK=2", "CHUNK=3")
    assert len(list((tmp_path / ".stackbisect").glob("*/envs/*/bin"))) == 1


@pytest.mark.service
@pytest.mark.xdist_group("docker")
def test_variables_of_an_image_reach_its_command(
    tmp_path: Path, docker_host: str, new_repository: RepositoryFactory
) -> None:
    """One that the image sets itself is the image's own where an end does not set it."""
    repository = new_repository()
    layer = images.files({"show": "echo bits $LAYOUT"})
    repository.push("24.01", images.Image([layer], env={"LAYOUT": "image"}))
    image = ("--image", repository.reference, "--good", "24.01", "--evidence-stdout", "bits (.*)")
    texts = variables(good=["OTHER=1"], bad=["LAYOUT=ours", "OTHER=2"])
    ended = run(tmp_path, "run", "--json", *image, *texts, "--", "sh", "/show")
    assert ended.code == 0, ended.err
    assert culprits(ended.report) == [[("LAYOUT", None, "ours")]]


PRODUCT = """
import numpy
a = (numpy.arange(90_000.0) * 0.37 % 1.0).reshape(300, 300)
print("bits", float((a @ a).sum()).hex())
"""


def test_the_kernels_that_openblas_is_told_to_use_are_the_culprit(tmp_path: Path) -> None:
    """A real change of bits on this machine: what numpy's matrix product is computed with."""
    pytest.importorskip("numpy")
    program = (sys.executable, "-c", PRODUCT)
    said = {
        core: subprocess.run(
            program, env={**os.environ, "OPENBLAS_CORETYPE": core}, capture_output=True, check=True
        ).stdout
        for core in ("Prescott", "Haswell")
    }
    texts = variables(good=["OPENBLAS_CORETYPE=Prescott"], bad=["OPENBLAS_CORETYPE=Haswell"])
    ended = run(tmp_path, "run", "--json", *texts, *STDOUT, *program)
    if said["Prescott"] == said["Haswell"]:  # no x86, or a numpy with another BLAS
        assert ended.code == 1, ended.err
        return
    assert ended.code == 0, ended.err
    assert culprits(ended.report) == [[("OPENBLAS_CORETYPE", "Prescott", "Haswell")]]


SOFTMAX = """
import torch
a = torch.linspace(-3, 3, 4099).reshape(1, -1)
value = torch.nn.functional.softmax(a.exp().sin(), -1).sum() + (a * 1.7).tanh().sum()
print("bits", value.item().hex())
"""


@pytest.mark.soak
@lanes.long_form
def test_the_vector_instructions_that_torch_is_told_to_use_are_the_culprit(tmp_path: Path) -> None:
    """ATEN_CPU_CAPABILITY chooses among torch's own CPU kernels."""
    pytest.importorskip("torch")
    words = ("--env-values", "ATEN_CPU_CAPABILITY=default,avx2", "--depth", "search")
    ended = run(tmp_path, "run", "--json", *words, *STDOUT, sys.executable, "-c", SOFTMAX)
    expected = 0 if lanes.has_avx2() else 1
    assert ended.code == expected, ended.err


def test_a_bare_name_is_taken_from_here_and_never_written_down(tmp_path: Path) -> None:
    texts = variables(good=["PLAIN=1"], bad=["PASSPHRASE", "PLAIN=1"])
    command = ("sh", "-c", "echo saw $PASSPHRASE; echo bits ${#PASSPHRASE}")
    environ = {"PASSPHRASE": "very-secret-1"}
    ended = run(tmp_path, "run", "--json", *texts, *STDOUT, *command, environ=environ)
    assert ended.code == 0, ended.err
    assert culprits(ended.report) == [[("PASSPHRASE", None, "(from here)")]]
    texts_written = [
        path.read_bytes() for path in (tmp_path / ".stackbisect").rglob("*") if path.is_file()
    ]
    assert any(b"<hidden>" in text for text in texts_written)
    assert not any(b"very-secret" in text for text in texts_written)


def test_mixtures_take_values_set_them_and_leave_them_out() -> None:
    base = window.Space((Candidate("id", "24.01", 0, {"reference": "r"}),))
    axis = Axis(good=("A=1", "B=1"), bad=("A=2", "C=2", "D"))
    good, bad = environment.space(base, axis).candidates
    found = environment.inventory(good, bad)
    assert [(c.name, c.good, c.bad) for c in found.components] == [
        ("A", "1", "2"),
        ("B", "1", None),
        ("C", None, "2"),
        ("D", None, environment.FROM_HERE),
    ]
    for size in range(1, 5):
        taken = found.components[:size]
        mixed = derived(bad, [swap(good, taken)], "mixture")
        stack, values, _ = environment.resolved(Candidate.from_json(mixed.to_json()))
        assert stack.id == "id"
        before, after = {"A": "1", "B": "1"}, {"A": "2", "C": "2", "D": None}
        swapped = {each.name for each in taken}
        assert values == {
            **{name: v for name, v in after.items() if name not in swapped},
            **{name: v for name, v in before.items() if name in swapped},
        }
    locked = derived(bad, [lock("good.lock", "sha256:1")], "with a lock")
    assert environment.resolved(locked)[2] == [lock("good.lock", "sha256:1")]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--env-good", "A=1", "--env-bad", "A=1"), "expected ends that differ"),
        (("--env-good", "A=1", "--env-good", "A=2"), "expected it once, found it twice"),
        (("--env-good", "1A=1"), "expected NAME=VALUE or NAME, found '1A=1'"),
        (("--env-bad", "NOT_SET_HERE_AT_ALL"), "expected a variable that is set here"),
        (("--env-bad", "API_TOKEN=xyz"), "export API_TOKEN and write --env-bad API_TOKEN"),
        (("--env-values", "A=1"), "two or more different values"),
        (("--env-values", "A=1,1"), "two or more different values"),
        (("--env-values", "API_TOKEN=a,b"), "the values would be kept in the journal"),
        (("--env-values", "A=1,2", "--env-good", "B=1"), "does not go with --env-good"),
        (("--env-values", "A=1,2", "--candidates", "x,y", "--bad", "y"), "found 2"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, words: Sequence[str], expected: str) -> None:
    ended = run(tmp_path, "run", "--json", *words, *STDOUT, "true")
    assert ended.code == 64, ended.out
    assert expected in ended.report["reason"]
    assert "xyz" not in ended.out + ended.err
    assert journal.names(tmp_path / ".stackbisect") == []
