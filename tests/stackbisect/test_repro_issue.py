"""A report ready to paste: what its readers need is there, and nothing of who found it or where."""

from __future__ import annotations

import argparse
import ast
import json
import os
import socket
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stackbisect import cli, progress
from stackbisect.errors import UsageError
from stackbisect.repro import commands, form, issue, personal
from stackbisect.repro.commands import Parts
from stackbisect.repro.extract import EXTRACTED, NO_REPRO, Outcome
from stackbisect.repro.form import Difference, Finding, Fix, Form, Run, Shrunk, StackTable
from stackbisect.repro.personal import Personal

GOOD, BAD = "sha256:" + "a" * 64, "sha256:" + "b" * 64
FOUND = Form(
    finding=Finding(
        "aten.exp.default gives other bits with torch 2.13.0 than with torch 2.12.0",
        "aten",
        "aten.exp.default",
        "the same call with the same inputs gives other bits",
        "forward",
    ),
    run=Run(needs=("torch",)),
    stacks=(
        StackTable("good", {"torch": "2.12.0"}, {"ATEN_CPU_CAPABILITY": "avx2"}, {"out": GOOD}),
        StackTable("bad", {"torch": "2.13.0", "sleef": "3.8"}, {}, {"out": BAD}),
    ),
    difference=Difference(3, (0, 7), ("0x3f800000", "0x3f800001"), 1, "out"),
    diagnose=("stackbisect", "report", "night"),
    shrink=Shrunk(4, 31, 8),
    machine={"cpu": "EPYC 9654", "gpu": "H200, 580.1", "system": "Linux 6.8"},
)
SCRIPT = b'''"""exp differs."""

import torch


def outputs():
    x = torch.tensor([0.5])
    return {"out": torch.ops.aten.exp.default(x)}
'''
HOME = "/" + "home/jsmith"  # no file names one in a piece
NAMES = Personal(("jsmith", "Jane Smith"), ("gpu-17.cluster.example",), {HOME: "~"})


def report(found: Form = FOUND, script: bytes = SCRIPT, names: Personal = NAMES) -> str:
    files = {form.SCRIPT: script, form.TABLE: b"", form.TEXT: b""}
    return issue.report(found, files, names)


def test_what_a_maintainer_needs_is_there() -> None:
    text = report()
    assert text.startswith(f"# {FOUND.finding.title}\n")
    assert f"```python\n{SCRIPT.decode()}```" in text
    assert "ATEN_CPU_CAPABILITY=avx2 python repro.py    # good\npython repro.py    # bad" in text
    assert f"digest out {GOOD}" in text
    assert f"digest out {BAD}" in text
    assert "3 elements differ, first at [0, 7]: 0x3f800000 and 0x3f800001, 1 ulp apart" in text
    assert "| torch | 2.12.0 | 2.13.0 |" in text
    assert "| sleef | – | 3.8 |" in text
    assert "- cpu: EPYC 9654\n- gpu: H200, 580.1" in text
    assert "in 4 steps (31 tries), to 8 elements" in text
    assert "`stackbisect report night`" in text
    assert text.count("```") % 2 == 0


def test_what_is_large_is_attached() -> None:
    long = b"x = 1\n" * 400
    files = {form.SCRIPT: long, "inputs.bin": bytes(5000)}
    text = issue.report(FOUND, files, NAMES)
    assert "`repro.py` is attached (2400 characters)" in text
    assert "`inputs.bin`, attached (5000 bytes)" in text
    assert "x = 1" not in text


def test_a_fence_in_the_program_does_not_end_the_block() -> None:
    text = report(script=b'"""\n```\n"""\n')
    assert '````python\n"""\n```\n"""\n````' in text


PLANTED = [
    (f"{HOME}/models/llama/train.py", "~/models"),
    ("jsmith", "user"),
    ("JSmith", "user"),
    ("gpu-17.cluster.example", "host"),
    ("gpu-17", "host"),
    ("/scratch/team-red/jsmith/run.sh", "…/run.sh"),
    ("/mnt/vol3/secret-project", "…/secret-project"),
    ("jane@corp.example.com", "user@host"),
    ("https://jsmith:pa55@git.corp.example/x", "https://host/x"),
    ("registry.corp.example:5000/ml/train:3", "host/ml/train:3"),
    ("Jane Smith", "user"),
    ("C:\\Users\\jsmith\\x", "~\\x"),
]


@pytest.mark.parametrize(("planted", "kept"), PLANTED)
def test_what_is_personal_is_gone(planted: str, kept: str) -> None:
    """Wherever it stands in the folder."""
    cause = f"since the update ({planted}) the bits are others"
    stacks = (
        replace(FOUND.stacks[0], environment={"LD_LIBRARY_PATH": planted}),
        replace(FOUND.stacks[1], versions={"torch": planted}),
    )
    finding = replace(FOUND.finding, cause=cause)
    found = replace(FOUND, finding=finding, stacks=stacks, diagnose=("stackbisect", planted))
    quoted = planted.replace("\\", "\\\\")
    script = f'"""From {quoted}."""\n# {quoted}\nx = "{quoted}"\n'.encode()
    text = report(found, script)
    assert planted.lower() not in text.lower()
    for word in ("jsmith", "gpu-17", "jane", "corp", "pa55", "team-red", "vol3"):
        assert word not in text.lower()
    if not kept.startswith("~"):
        assert text.count(kept) >= 4


@pytest.mark.parametrize(
    "text",
    [
        "aten._softmax.default gives other bits with ATEN_CPU_CAPABILITY=default",
        "nvcr.io/nvidia/pytorch:25.01-py3 and https://github.com/pytorch/pytorch/issues/1",
        "/usr/lib/x86_64-linux-gnu/libcublas.so.13, /opt/conda/lib/libmkl.so, /dev/nvidia0",
        "libcublas 12.4.5.8, 1/2 and a/b; torch.ops.aten.mm.default/out",
        "out: 1 element differs, first at [0, 0]: 0x0efc4226 and 0x0efc4227, 1 ulp apart",
        "the root cause is in the default user library of this host",
    ],
)
def test_what_says_which_library_stays(text: str) -> None:
    common = Personal(("root", "user", "x", "torch"), ("localhost",), {})
    assert personal.prose(text, common) == text


def test_a_program_stays_the_same_program() -> None:
    """A short name is a variable; a division is no path; a product is no address."""
    code = (
        "def jsmith_kernel(a, b):\n"
        "    c = a /b/ 2\n"
        f"    return (a@b.T) / x  # as jsmith had it in {HOME}/k.py\n"
        "print(f'{1/2}/{3/4}', jsmith_kernel)\n"
    )
    made = personal.code(code, Personal(("jsmith", "x"), (), {}))
    assert "jsmith" not in made
    assert "c = a /b/ 2" in made
    assert "(a@b.T) / x" in made
    assert made.count("user_kernel") == 2
    ast.parse(made)


def test_a_character_that_ends_no_line_of_a_program_moves_nothing() -> None:
    """A form feed, and a separator of lines inside of a string."""
    text = f"x = 1\n\fy = 'a\u2028b'\nz = '{HOME}/deep/k.py'\n"
    made = personal.code(text, Personal((), (), {}))
    assert made == text.replace(f"{HOME}/deep", "~/deep").replace("~/deep/k.py", "…/k.py")


def test_a_folder_of_the_catalogue_is_not_said_to_be_what_it_is_not() -> None:
    """Its digests are of no machine, and no search found it."""
    stacks = tuple(replace(each, digests={}) for each in FOUND.stacks)
    fix = Fix(("sh", "fix.sh"), "The sum is made in one order.")
    made = replace(FOUND, stacks=stacks, fix=fix, shrink=None)
    text = report(made)
    assert "repeats its own bits" not in text
    assert "was traced in both stacks" not in text
    assert "compare what they print" in text
    assert "What it prints" not in text
    assert "The sum is made in one order." in text
    assert "repeats its own bits" in report()
    assert "was traced in both stacks" in report()


def test_secrets_among_the_variables() -> None:
    given = {"HF_TOKEN": "hf_abc", "MY_API_KEY": "k", "DB_PASSWORD": "p", "OMP_NUM_THREADS": "8"}
    found = personal.variables(given, NAMES)
    assert found.pop("OMP_NUM_THREADS") == "8"
    assert set(found.values()) == {personal.GONE}


names_of_people = st.text("abcdefghijklmnopqrstuvwxyz", min_size=5, max_size=12).filter(
    lambda word: word not in personal._COMMON
)


@given(
    names_of_people, names_of_people, st.lists(names_of_people, min_size=1, max_size=4), st.data()
)
@settings(max_examples=60, deadline=None)
def test_planted_names_are_never_in_the_report(
    user: str, host: str, folders: list[str], data: st.DataObject
) -> None:
    base = report(names=Personal((), (), {}))
    for name in (user, host, *folders):
        if name in base.lower():
            return  # a word of the report itself
    root = "/" + data.draw(st.sampled_from(["home", "Users", "scratch", "data", "root"])) + "/"
    path = root + user + "/" + "/".join(folders) + "/last.py"
    texts = st.sampled_from(
        [user, host, f"{host}.example.org", path, f"ssh {user}@{host}", f"{path}:3"]
    )
    stacks = tuple(
        replace(each, environment={"A": data.draw(texts)}, versions={"torch": data.draw(texts)})
        for each in FOUND.stacks
    )
    finding = replace(FOUND.finding, title=data.draw(texts), cause=data.draw(texts))
    found = replace(FOUND, finding=finding, stacks=stacks, machine={"cpu": data.draw(texts)})
    script = f"# {data.draw(texts)}\nx = '{data.draw(texts)}'\n".encode()
    text = report(found, script, Personal((user,), (f"{host}.example.org",), {})).lower()
    for name in (user, host):
        assert name not in text
    for name in folders:
        assert name not in text or name in "last.py"


# -- the command -----------------------------------------------------------------------------------


def run(folder: Path, *given_words: str) -> tuple[int, str]:
    parser = argparse.ArgumentParser()
    rooms = parser.add_subparsers()
    add = lambda name, function, about: cli._command(rooms, name, function, about)
    refused = lambda *_, **__: pytest.fail("nothing is to be captured")
    commands.register(add, Parts(refused, refused), lambda: pytest.fail("nothing runs"))
    own, command = cli._split(given_words)
    arguments = parser.parse_args(["extract", *own])
    arguments.command = command
    out, err = StringIO(), StringIO()
    world = cli.World(os.environ, folder, out.write, err.write, progress.Plain(err))
    return arguments.function(arguments, world), out.getvalue()


def test_the_report_of_a_folder_written_before(tmp_path: Path) -> None:
    folder = tmp_path / "repro-night"
    folder.mkdir()
    host = socket.gethostname()
    script = SCRIPT + f"# {tmp_path}/x on {host}\n".encode()
    form.write(folder, FOUND)
    (folder / form.SCRIPT).write_bytes(script)
    code, text = run(tmp_path, "--issue", "repro-night")
    assert code == 0
    assert text.startswith(f"# {FOUND.finding.title}\n")
    assert str(tmp_path) not in text
    assert "torch.ops.aten.exp.default(x)" in text
    code, in_json = run(tmp_path, "--issue", "--json", "repro-night")
    assert (code, json.loads(in_json)) == (0, {"issue": text})


def test_a_damaged_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / "repro.toml").write_text("version = 2\n")
    with pytest.raises(UsageError, match="version: expected 1"):
        run(tmp_path, "--issue", ".")


@pytest.mark.parametrize("as_json", [False, True])
def test_the_report_of_what_was_just_found_is_alone_on_standard_output(
    as_json: bool, tmp_path: Path
) -> None:
    form.write(tmp_path, FOUND)
    (tmp_path / form.SCRIPT).write_bytes(SCRIPT)
    out, err = StringIO(), StringIO()
    world = cli.World(os.environ, tmp_path, out.write, err.write, progress.Plain(err))
    outcome = Outcome(EXTRACTED, "found it\n  and so on\n", None, FOUND, tmp_path)
    asked = argparse.Namespace(issue=True, json=as_json)
    assert commands._print(outcome, asked, world) == EXTRACTED
    report_alone = issue.report(FOUND, {form.SCRIPT: SCRIPT}, personal.here({}, str(tmp_path)))
    if as_json:
        assert json.loads(out.getvalue())["issue"] == report_alone
        return
    assert out.getvalue() == report_alone
    assert "found it" in err.getvalue()


def test_what_is_no_repro_has_no_report(tmp_path: Path) -> None:
    out, err = StringIO(), StringIO()
    world = cli.World(os.environ, tmp_path, out.write, err.write, progress.Plain(err))
    outcome = Outcome(NO_REPRO, "both stacks gave the same bits")
    assert commands._print(outcome, argparse.Namespace(issue=True, json=False), world) == NO_REPRO
    assert out.getvalue() == "both stacks gave the same bits\n"
