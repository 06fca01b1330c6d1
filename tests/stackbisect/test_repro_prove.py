"""A folder is a repro where both stacks keep to bits of their own; else the reason is said."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from stackbisect.errors import UsageError
from stackbisect.repro import differing, form
from stackbisect.repro import prove as proving
from stackbisect.repro.prove import NoProof, Proof, prove
from stackbisect.repro.stacks import PythonStack, Ran, Watched

A, B, C = (letter * 64 for letter in "abc")


@dataclass
class Printing:
    """A stack that prints, in turn, digests of these; an int is an exit code instead."""

    name: str
    turns: Sequence[Mapping[str, str] | int]
    variables: Mapping[str, str] = field(default_factory=dict)
    runs: int = 0

    def run(self, files: Mapping[str, bytes], argv: Sequence[str], **_: Any) -> Ran:
        now = self.turns[min(self.runs, len(self.turns) - 1)]
        self.runs += 1
        if isinstance(now, int):
            return Ran(now, "", "Traceback\nImportError: no module named torch\n")
        text = "".join(f"digest {name} sha256:{digest}\n" for name, digest in now.items())
        return Ran(0, text, text)

    def watch(self, *_: Any, **__: Any) -> Watched:
        raise AssertionError("the user's command has no part in a proof")


def proved(good: Sequence[Any], bad: Sequence[Any], **more: Any) -> Proof | NoProof:
    stacks = Printing("good", good), Printing("bad", bad)
    return prove({form.SCRIPT: b""}, *stacks, lambda line: None, **more)


def test_bits_of_their_own_in_every_run() -> None:
    found = proved([{"out": A}], [{"out": B}], times=4)
    assert found == Proof({"out": "sha256:" + A}, {"out": "sha256:" + B}, 4)


@pytest.mark.parametrize(
    ("good", "bad", "reason", "said"),
    [
        ([{"out": A}], [{"out": A}], proving.EQUAL, "what ran before it"),
        ([{"out": A}, {"out": A}, {"out": C}], [{"out": B}], proving.UNSTABLE, "run 3 printed"),
        ([{"out": A}], [{"out": B}, {"out": C}], proving.UNSTABLE, "the bad stack does not repeat"),
        ([{"out": A}], [{"loss": B}], proving.FAILS, "print other outputs"),
        ([{"out": A}], [1], proving.FAILS, "ImportError: no module named torch"),
        ([{}], [{"out": B}], proving.SILENT, "in the good stack it printed no digest"),
    ],
)
def test_why_a_folder_is_no_repro(
    good: Sequence[Any], bad: Sequence[Any], reason: str, said: str
) -> None:
    found = proved(good, bad)
    assert isinstance(found, NoProof)
    assert found.reason == reason
    assert said in found.text


def test_bits_other_than_the_table_has_are_no_proof() -> None:
    expected = {"good": {"out": "sha256:" + A}, "bad": {"out": "sha256:" + C}}
    found = proved([{"out": A}], [{"out": B}], expected=expected)
    assert isinstance(found, NoProof)
    assert found.reason == proving.OTHER


# -- in real processes -----------------------------------------------------------------------------

SCRIPT = b"""
import hashlib
import os

import numpy


def outputs():
    value = numpy.linspace(1, 2, 12, dtype="float32").reshape(3, 4)
    if os.environ["WHICH"] == "b":
        value[1, 2] = numpy.nextafter(value[1, 2], numpy.float32(9))
        value[2, 0] += 1
    return {"same": numpy.arange(3), "out": value}


if __name__ == "__main__":
    assert "PINNER_SESSION" not in os.environ
    for name, value in outputs().items():
        print("digest", name, "sha256:" + hashlib.sha256(value.tobytes()).hexdigest())
"""


def here(name: str, variables: Mapping[str, str], folder: Path) -> PythonStack:
    return PythonStack(name, Path(sys.executable), os.environ, folder, variables)


def test_two_environments_of_one_interpreter(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    stacks = [here(name, {"WHICH": name[0]}, tmp_path) for name in ("good", "bad")]
    content = {form.SCRIPT: SCRIPT}
    found = prove(content, *stacks, lambda line: None, times=2)
    assert isinstance(found, Proof)
    assert found.good["same"] == found.bad["same"]
    assert found.good["out"] != found.bad["out"]
    apart = differing.difference(*(differing.outputs(content, each) for each in stacks))
    assert apart is not None
    assert (apart.output, apart.elements, apart.first_index, apart.ulp) == ("out", 2, (1, 2), 1)
    assert int(apart.hex[1], 16) - int(apart.hex[0], 16) == 1


def test_files_go_in_and_come_back_and_nothing_else_is_left(tmp_path: Path) -> None:
    stack = here("good", {"X": "1"}, tmp_path)
    code = b"import os, sys; print(os.environ['X'], os.environ['Y'], open('in/a').read())\n"
    code += b"open('back', 'w').write('b'); open('in/a', 'a').write('!'); sys.exit(3)\n"
    files = {"main.py": code, "in/a": b"hello", "in/kept": b"k"}
    ran = stack.run(files, ["python", "main.py"], environ={"Y": "2"})
    assert (ran.code, ran.stdout) == (3, "1 2 hello\n")
    assert ran.files == {"back": b"b", "in/a": b"hello!"}
    assert "ended with 3" in ran.failure
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="below the working folder"):
        stack.run({"../a": b""}, ["python", "-c", ""])


def test_a_command_that_does_not_end_is_said_to(tmp_path: Path) -> None:
    stack = here("good", {}, tmp_path)
    ran = stack.run({}, ["python", "-c", "import time; time.sleep(600)"], time_limit=0.5)
    assert (ran.code, ran.failure) == (None, "it did not end within 0.5 s")
