"""The folder of a repro: what is written is read back, and what is wrong with it is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from stackbisect.repro import form
from stackbisect.repro.form import (
    Difference,
    Finding,
    Fix,
    Form,
    FormError,
    Run,
    Shrunk,
    StackTable,
)

GOOD, BAD = "sha256:" + "a" * 64, "sha256:" + "b" * 64

WHOLE = Form(
    finding=Finding("exp differs", "aten", "aten.exp.default", "another kernel", "forward"),
    run=Run(needs=("torch",)),
    stacks=(
        StackTable("good", {"torch": "2.12.0"}, {"ATEN_CPU_CAPABILITY": "avx2"}, {"out": GOOD}),
        StackTable("bad", {"torch": "2.13.0"}, {}, {"out": BAD}),
    ),
    difference=Difference(3, (0, 7), ("0x3f800000", "0x3f800001"), 1, "out"),
    diagnose=("stackbisect", "run"),
    fix=Fix(("python", "fixed.py"), "the old kernel"),
    shrink=Shrunk(4, 31, 8),
    machine={"cpu": "EPYC 9654", "gpu": "H200"},
)
SMALL = Form(
    finding=Finding("a race", "program", "", "atomics"),
    run=Run(("python", "repro.py", "--all"), gpu=True, processes=4),
    stacks=(StackTable("good"),),
)


@pytest.mark.parametrize("whole", [WHOLE, SMALL], ids=["whole", "small"])
def test_what_is_written_is_read_back(whole: Form, tmp_path: Path) -> None:
    form.write(tmp_path, whole)
    assert form.read(tmp_path) == whole


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("version = 1", "version = 2", "version: expected 1, found 2"),
        ('kind = "aten"', 'kind = "Aten"', "[finding] kind: expected one of 'aten', "),
        ('title = "exp differs"\n', "", "[finding] title: expected a string with something in it"),
        ("gpu = false", "gpu = 0", "[run] gpu: expected true or false, found 0"),
        ("processes = 1", "processes = 0", "[run] processes: expected an integer of at least 1"),
        ("gpu = false", "gpu = false\nGPU = true", "[run]: expected no other fields than"),
        ("[shrink]", "[shrunk]", "the file: expected no other fields than"),
        ('name = "bad"', 'name = "good"', "[[stack]] name: expected each once, found 'good' twice"),
        (BAD, "sha256:bb", "[[stack]] 2 digests.out: expected sha256:… with 64 digits"),
        (f'out = "{BAD}"', f'loss = "{BAD}"', "digests: expected the outputs of 'good' (out)"),
        (BAD, GOOD, "[difference]: expected other digests in 'bad' than in 'good'"),
        ("0x3f800001", "0x3f800000", "[difference] hex: expected two different values"),
        ("elements = 3", "elements = 3.0", "[difference] elements: expected an integer"),
        ('"2.12.0"', "2.12", "[[stack]] 1 versions: expected a table of strings"),
        ("[finding]", "[finding", "expected TOML, found:"),
    ],
)
def test_a_mistake_names_its_field(old: str, new: str, said: str, tmp_path: Path) -> None:
    form.write(tmp_path, WHOLE)
    path = tmp_path / form.TABLE
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(FormError) as found:
        form.read(tmp_path)
    assert said in str(found.value)
    assert str(path) in str(found.value)


def test_what_could_not_be_read_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(FormError, match="expected a string"):
        form.write(tmp_path, Form(Finding("", "aten", "", "x"), Run(), SMALL.stacks))
    assert not (tmp_path / form.TABLE).exists()
    with pytest.raises(FormError, match=r"repro.toml: cannot read it"):
        form.read(tmp_path)


def test_the_printed_digests() -> None:
    text = f"warming up\ndigest out {GOOD}\ndigest loss {BAD}\n"
    assert form.printed(text) == {"out": GOOD, "loss": BAD}
    with pytest.raises(FormError, match="two for 'out'"):
        form.printed(f"digest out {GOOD}\ndigest out {GOOD}\n")
    with pytest.raises(FormError, match="expected `digest NAME"):
        form.printed("digest out sha256:12\n")
