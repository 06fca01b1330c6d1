"""The two stacks of a repro: what a bisection ended with, interpreters, and variables."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from stackbisect.errors import UsageError
from stackbisect.repro import sides
from stackbisect.repro.stacks import Stack
from tests.stackbisect import images
from tests.stackbisect.conftest import RepositoryFactory
from tests.stackbisect.program import in_process as run

SHOWN = b"""
import os, sys
print(os.environ.get("W"), os.environ.get("V"), os.environ.get("X"), sorted(os.listdir()))
print("PINNER_SESSION" in os.environ, "pinner.inside" in sys.modules, file=sys.stderr)
open("back", "w").write("b")
"""


def test_the_pair_of_a_finished_bisection_runs_a_folder_and_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    python = Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{python}{os.pathsep}{os.environ['PATH']}")
    good, bad = ("--env-good", "V=1", "--env-good", "W=1"), ("--env-bad", "V=2", "--env-bad", "W=2")
    command = ("sh", "-c", "echo bits $V; echo ran > $X")
    options = ("--evidence-stdout", "bits (.*)", "--env", f"X={tmp_path / 'ran'}")
    found = run(tmp_path, "run", "--name", "one", *good, *bad, *options, "--", *command)
    assert found.code == 0, found.err
    (tmp_path / "ran").unlink()
    folder = tmp_path / ".stackbisect" / "one"
    with sides.of_bisection(folder, (), os.environ, lambda line: None) as both:
        assert both.argv == command
        assert both.culprit == "variable V=1 → 2 changes the bits between env-good and env-bad"
        assert both.diagnose == ("stackbisect", "report", "one")
        # They differ in the culprit alone: the other variable is the bad end's in both.
        assert both.good.variables == {"V": "1", "W": "2"}
        assert both.bad.variables == {"V": "2", "W": "2"}
        for stack, value in ((both.good, "1"), (both.bad, "2")):
            files = {"repro.py": SHOWN, "inputs/a.bin": b"a"}
            ran = stack.run(files, ("python", "repro.py"), environ={"X": "y"})
            assert ran.failure == ""
            assert ran.stdout == f"2 {value} y ['inputs', 'repro.py']\n"
            assert "False False" in ran.output, "nothing of pinner takes part"
            assert ran.files == {"back": b"b"}
        watched = both.good.watch(both.argv, tmp_path / "watched", {"level": "ops"})
        assert (watched.code, watched.failure) == (0, "")
        assert (tmp_path / "ran").exists()
        failed = both.bad.run({}, ("sh", "-c", "echo no such file; exit 3"))
        assert failed.failure == "it ended with 3: no such file"
    assert not (folder / "extract").exists()


def test_a_bisection_without_a_pair_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ends = ("--env-good", "V=1", "--env-bad", "V=2", "--evidence-stdout", "bits (.*)")
    assert run(tmp_path, "run", "--name", "one", *ends, "--", "echo", "bits 1").code == 1
    folder = tmp_path / ".stackbisect" / "one"
    with (
        pytest.raises(UsageError, match="one found no change: not reproduced"),
        sides.of_bisection(folder, (), os.environ, lambda line: None),
    ):
        raise AssertionError("there is no pair")


def printed(stack: Stack, code: str) -> str:
    return stack.run({}, ("python", "-c", code)).stdout.strip()


def test_interpreters_are_named_by_path_or_by_their_environment(tmp_path: Path) -> None:
    place = tmp_path / "env" / "bin"
    place.mkdir(parents=True)
    (place / "python").write_text(f'#!/bin/sh\necho env\nexec {sys.executable} "$@"\n')
    (place / "python").chmod(0o755)
    both = sides.of_interpreters(sys.executable, "env", ("python", "x"), os.environ, tmp_path)
    assert printed(both.good, "print(1)") == "1"
    assert printed(both.bad, "print(1)") == "env\n1"
    assert printed(both.bad, "import os; print(os.environ['PATH'])").startswith(f"env\n{place}:")
    with pytest.raises(UsageError, match="--bad-python nowhere: expected an interpreter"):
        sides.of_interpreters(sys.executable, "nowhere", (), os.environ, tmp_path)


def test_a_variable_that_one_side_does_not_name_is_not_set_there(tmp_path: Path) -> None:
    environ = {**os.environ, "V": "0", "W": "here"}
    both = sides.of_variables(["V=1", "W"], ["W"], ("python", "x"), environ, tmp_path)
    code = "import os; print(os.environ.get('V'), os.environ.get('W'))"
    assert (printed(both.good, code), printed(both.bad, code)) == ("1 here", "None here")
    with pytest.raises(UsageError, match="found the same variables"):
        sides.of_variables(["V=1"], ["V=1"], (), environ, tmp_path)


def test_a_repro_runs_in_the_interpreter_that_the_command_names_by_a_path(tmp_path: Path) -> None:
    named = tmp_path / "env" / "bin" / "python3"
    named.parent.mkdir(parents=True)
    named.write_text(f'#!/bin/sh\nNAMED=yes exec {sys.executable} "$@"\n')
    named.chmod(0o755)
    code = "import os; print(os.environ.get('NAMED'))"
    for command, expected in (("env/bin/python3", "yes"), ("python", "None"), ("./sh", "None")):
        both = sides.of_variables(["V=1"], ["V=2"], (command, "x"), os.environ, tmp_path)
        assert (printed(both.good, code), printed(both.bad, code)) == (expected, expected)


@pytest.mark.service
@pytest.mark.xdist_group("docker")
def test_two_images_run_a_folder_and_the_command(
    tmp_path: Path, new_repository: RepositoryFactory, docker_config: Path, interrupts: None
) -> None:
    repositories = new_repository(), new_repository()
    for repository, value in zip(repositories, ("1", "2"), strict=True):
        work = images.files({"train.sh": f'echo it is {value}; test -n "$PINNER_SESSION"\n'})
        repository.push("v", images.Image([work], env={"V": value}, user="1000"))
    names = [f"{repository.reference}:v" for repository in repositories]
    asked = sides.Images(*names)
    said = ("sh", "/train.sh")
    with sides.of_images(asked, said, os.environ, tmp_path, lambda line: None) as both:
        for stack, value in ((both.good, "1"), (both.bad, "2")):
            files = {"repro.py": SHOWN, "inputs/a.bin": b"a"}
            ran = stack.run(files, ("python", "repro.py"), environ={"W": "w"})
            assert ran.failure == ""
            assert ran.stdout == f"w {value} None ['inputs', 'repro.py']\n"
            assert "False False" in ran.output
            assert ran.files == {"back": b"b"}
            watched = stack.watch(both.argv, tmp_path / stack.name, {"level": "ops"})
            assert watched.failure == ""
            assert watched.log.read_text() == f"it is {value}\n"
    wrong = sides.Images(names[0], f"{repositories[1].reference}:w")
    with (
        pytest.raises(UsageError, match=r"--bad-image: tag .* 'w' does not exist"),
        sides.of_images(wrong, said, os.environ, tmp_path, lambda line: None),
    ):
        raise AssertionError("there is no such tag")
