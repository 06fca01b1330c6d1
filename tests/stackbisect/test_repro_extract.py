"""From two stacks to a folder: what is written, and what is not written where it is no repro."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from stackbisect.errors import UsageError
from stackbisect.repro import extract as extracting
from stackbisect.repro import form, prove
from stackbisect.repro.extract import Asked, NoCase, Smaller, extract
from stackbisect.repro.stacks import PythonStack, Ran, Stack, Watched
from tests.stackbisect.test_repro_locate import MM, OTHER_MM, Lines, Written, always, event

SCRIPT = """
import hashlib
import os
import struct

N = {n}


class Array:
    def __init__(self, values):
        self.dtype = type("float32", (), {{"name": "float32"}})
        self.shape = [len(values)]
        self.values = values

    def tobytes(self):
        return struct.pack("<%df" % len(self.values), *self.values)


def outputs():
    last = {last}
    return {{"out": Array([1.0] * (N - 1) + [1.0 + last])}}


if __name__ == "__main__":
    for name, value in outputs().items():
        print("digest", name, "sha256:" + hashlib.sha256(value.tobytes()).hexdigest())
"""
APART = 'os.environ["WHICH"] == "bad"'
GOOD, BAD = always(MM), always(OTHER_MM)
RESTLESS = "int.from_bytes(os.urandom(2), 'big')"


@dataclass(frozen=True)
class Call:
    """A captured call of so many elements."""

    elements: int = 9
    last: str = APART
    notes: Sequence[str] = ("It was found by hand.",)
    kind: str = "aten"
    operation: str = "aten.mm.default"
    needs: Sequence[str] = ("numpy", "no-such-distribution")
    gpu: bool = False

    def files(self) -> Mapping[str, bytes]:
        script = SCRIPT.format(n=self.elements, last=self.last)
        return {form.SCRIPT: script.encode(), "inputs/a.bin": bytes(self.elements)}


@dataclass(frozen=True)
class Here(PythonStack):
    """An interpreter of this machine, whose traces of the user's command are given."""

    lines: Lines = field(default=always())

    def watch(
        self, argv: Sequence[str], place: Path, trace: Mapping[str, Any], **_: Any
    ) -> Watched:
        number = int(place.name.rpartition("-")[2])
        return Written(self.name, lambda level, _: self.lines(level, number)).watch(
            argv, place, trace
        )


def stacks(folder: Path, good: Lines = GOOD, bad: Lines = BAD) -> list[Here]:
    python = Path(sys.executable)
    return [
        Here(name, python, os.environ, folder, {"WHICH": name}, lines)
        for name, lines in (("good", good), ("bad", bad))
    ]


def asked(folder: Path, call: Call | NoCase, **more: Any) -> Asked:
    def capture(stack: Stack, *_: Any, **__: Any) -> Call | NoCase:
        assert stack.name == "good"
        return call

    plain = Asked(("python", "train.py"), folder / "found", capture, None, times=2)
    return replace(plain, **more)


def halving(interrupted_at: int = 0) -> Callable[..., Smaller]:
    """A shrinker: half as many elements, as long as there are some."""

    def shrink(
        case: Call, good: Stack, bad: Stack, *, kept: Callable[[Smaller], None], say: Any
    ) -> Smaller:
        now = Smaller(case, 0, 0)
        while now.case.elements > 1:
            smaller = replace(now.case, elements=now.case.elements // 2)  # type: ignore[type-var]
            now = Smaller(smaller, now.steps + 1, now.tries + 3)
            kept(now)
            if now.steps == interrupted_at:
                raise KeyboardInterrupt
        return now

    return shrink


def quiet(line: str) -> None:
    """Says nothing."""


def test_the_folder_says_what_was_found_and_shows_it(tmp_path: Path) -> None:
    want = asked(tmp_path, Call(), shrink=halving(), diagnose=("stackbisect", "report", "x"))
    outcome = extract(*stacks(tmp_path), want, quiet)
    out = tmp_path / "found"
    assert (outcome.exit, outcome.out) == (extracting.EXTRACTED, out)
    files = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert files == {"repro.py", "repro.toml", "README.md", "inputs/a.bin"}
    found = form.read(out)
    assert found == outcome.form
    title = "aten.mm.default gives other bits with WHICH=bad than with WHICH=good"
    assert found.finding.title == title
    assert found.finding.direction == "forward"
    assert found.shrink == form.Shrunk(3, 9, 1)
    assert found.difference is not None
    assert found.difference.hex == ("0x3f800000", "0x40000000")
    assert (found.difference.elements, found.difference.ulp) == (1, 1 << 23)
    good, bad = found.stacks
    assert good.environment == {"WHICH": "good"}
    assert good.versions["python"].count(".") == 2
    assert "no-such-distribution" not in good.versions
    assert good.digests != bad.digests
    page = (out / form.TEXT).read_text()
    assert "WHICH=bad python repro.py" in page
    assert "\nIt was found by hand.\n" in page
    assert f"digest out {bad.digests['out']}" in page
    assert "0x3f800000 and 0x40000000" in page
    assert sorted(path.name for path in tmp_path.iterdir()) == ["found"]
    assert outcome.to_json()["digests"]["bad"] == dict(bad.digests)


def test_what_was_written_can_be_proved_again(tmp_path: Path) -> None:
    both = stacks(tmp_path)
    out = tmp_path / "found"
    extract(*both, asked(tmp_path, Call()), quiet)
    made = form.read(out)
    expected = {each.name: each.digests for each in made.stacks}
    proof = prove.prove(prove.files(out), *both, quiet, command=made.run.command, times=1)
    assert proof == prove.Proof(expected["good"], expected["bad"], 1)
    other = dict(expected, bad=expected["good"])
    refused = prove.prove(prove.files(out), *both, quiet, times=1, expected=other)
    assert isinstance(refused, prove.NoProof)
    assert "the bad stack gave other bits than repro.toml says for out" in refused.text


def test_an_interrupted_shrink_keeps_the_best_so_far(tmp_path: Path) -> None:
    outcome = extract(*stacks(tmp_path), asked(tmp_path, Call(), shrink=halving(2)), quiet)
    assert outcome.form is not None
    assert outcome.form.shrink == form.Shrunk(2, 6, 2)


def test_where_fresh_processes_do_not_show_the_smallest_one_a_larger_one_is_kept(
    tmp_path: Path,
) -> None:
    def shrink(case: Call, *stacks: Stack, kept: Callable[[Smaller], None], say: Any) -> Smaller:
        for steps, elements in enumerate((7, 5, 3, 1), start=1):
            last = APART if elements > 3 else "False"
            kept(Smaller(replace(case, elements=elements, last=last), steps, steps))  # type: ignore[type-var]
        return Smaller(replace(case, elements=1, last="False"), 4, 9)  # type: ignore[type-var]

    outcome = extract(*stacks(tmp_path), asked(tmp_path, Call(), shrink=shrink), quiet)
    assert outcome.form is not None, outcome.text
    assert outcome.form.shrink == form.Shrunk(2, 2, 5)


@dataclass(frozen=True)
class Wide(Call):
    """Its output has a dtype whose elements are not compared one by one."""

    def files(self) -> Mapping[str, bytes]:
        return {n: b.replace(b'"float32"', b'"float128"') for n, b in super().files().items()}


def test_a_dtype_that_is_not_compared_element_by_element_is_a_repro_all_the_same(
    tmp_path: Path,
) -> None:
    said: list[str] = []
    outcome = extract(*stacks(tmp_path), asked(tmp_path, Wide()), said.append)
    assert outcome.exit == extracting.EXTRACTED
    assert outcome.form is not None
    assert outcome.form.difference is None
    assert "found 'float128'" in said[-1]
    assert form.read(tmp_path / "found") == outcome.form


@pytest.mark.parametrize(
    ("printed", "table"),
    [
        ('a line of sitecustomize\n{"torch": "2"}\n', {"torch": "2"}),
        ("no JSON\n", {}),
        ('["torch"]\n', {}),
        ("", {}),
    ],
)
def test_what_a_stack_says_of_itself_is_in_the_last_line(
    printed: str, table: dict[str, str]
) -> None:
    assert Ran(0, printed, printed).table == table
    assert Ran(1, printed, printed).table == {}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (Call(last="False"), "the call alone is no repro: both stacks gave the same bits"),
        (Call(last=RESTLESS), "the good stack does not repeat itself: run 2 printed other bits"),
        (Call(last="oops"), "NameError: name 'oops' is not defined"),
        (NoCase("its arguments hold a socket"), "its arguments hold a socket"),
    ],
)
def test_what_does_not_tell_the_stacks_apart_is_not_handed_over(
    call: Call | NoCase, said: str, tmp_path: Path
) -> None:
    outcome = extract(*stacks(tmp_path), asked(tmp_path, call), quiet)
    assert outcome.exit == extracting.NO_REPRO
    assert said in outcome.text
    assert "aten.mm.default" in outcome.text
    assert list(tmp_path.iterdir()) == []


def test_why_there_is_nothing_to_capture_is_an_exit_code(tmp_path: Path) -> None:
    def restless(level: str, number: int) -> list[dict[str, Any]]:
        return [event("op", "aten.sum.default", ["7"], [str(80 + number)]), MM]

    calm = event("op", "aten.sum.default", ["7"], ["81"])
    view = [always(event("op", "aten.view.default", ["5"], [out])) for out in ("3", "9")]
    cases: list[tuple[tuple[Lines, Lines], int]] = [
        ((always(MM), always(MM)), extracting.NOT_REPRODUCED),
        ((restless, always(calm, OTHER_MM)), extracting.UNTESTABLE),
        ((view[0], view[1]), extracting.NO_REPRO),
    ]
    for lines, code in cases:
        outcome = extract(*stacks(tmp_path, *lines), asked(tmp_path, NoCase("never")), quiet)
        assert (outcome.exit, outcome.site) == (code, None)
    assert list(tmp_path.iterdir()) == []


def test_a_place_where_no_folder_can_be_made_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    made = replace(asked(tmp_path, Call()), out=tmp_path / "file" / "found")
    with pytest.raises(UsageError, match="where a folder can be made"):
        extract(*stacks(tmp_path), made, quiet)


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "found").mkdir()
    with pytest.raises(UsageError, match="not there yet"):
        extract(*stacks(tmp_path), asked(tmp_path, Call()), quiet)
