"""`pinner trace`: whether a trace counts, and what it finds in a planted fault."""

from __future__ import annotations

import json
import random
import secrets
import sys
from pathlib import Path
from typing import Any

import pytest

from pinner.compare.evidence import Difference, Emitter, gather
from pinner.compare.locked import Verification
from pinner.launch import tracing
from tests.command_rig import Pinner, python
from tests.trace_rig import digests, events_of, first_difference, read_logs
from tests.workloads import moe_sites

SEED = secrets.randbits(32)


@pytest.fixture(name="pinner")
def _pinner(tmp_path: Path) -> Pinner:
    folder = tmp_path / "work"
    folder.mkdir()
    return Pinner(folder)


def said_of(folder: Path) -> dict[str, Any]:
    """What trace.json says."""
    found = json.loads((folder / "trace.json").read_text())
    assert isinstance(found, dict)
    return found


def seeded(log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events without the states of generators: nobody seeds NumPy's, where torch imports it."""
    return [event for event in events_of(log) if event["e"] != "random"]


def test_a_trace_that_changed_nothing_is_valid_and_shows_where_a_bit_was_flipped(
    pinner: Pinner,
) -> None:
    draw = random.Random(SEED)
    site, step = draw.choice(moe_sites.LINEAR), draw.randrange(3)
    print(f"seed {SEED}: {site} in step {step}")
    command = python("moe_train.py", "--steps", "3")
    good = pinner("trace", "-o", "good", "--", *command)
    assert good.code == 0, good.err
    assert "valid trace: the untraced run left the same bits in 4 streams" in good.last
    told = said_of(pinner.path("good"))
    assert told["valid"] is True
    assert told["command"] == command
    assert told["world"] == 1

    planted = f"bitflip:0:{step}:{site}"
    bad = pinner("trace", "-o", "bad", "--no-check", "--", *command, PLANT=planted)
    assert bad.code == 0, bad.err
    assert said_of(pinner.path("bad"))["valid"] is None
    (left,) = read_logs(pinner.path("good")).values()
    (right,) = read_logs(pinner.path("bad")).values()
    found = first_difference(seeded(left), seeded(right))
    assert found is not None
    assert (found["n"], found["m"], found["s"]) == ("moe.linear.default", site, step)
    twin = next(event for event in events_of(left) if event["q"] == found["q"])
    assert digests(twin, "in") == digests(found, "in")


def test_a_trace_that_changed_the_bits_is_not_valid(pinner: Pinner) -> None:
    """A program that computes something else when its operations are looked at."""
    pinner.path("observed.py").write_text(
        "import torch, pinner\n"
        "for step in range(3):\n"
        "    seen = torch._C._len_torch_dispatch_stack()\n"
        "    pinner.fingerprint('value', torch.full((2,), float(step + seen)))\n"
    )
    said = pinner("trace", "-o", "out", "--json", "--", *python(str(pinner.path("observed.py"))))
    assert said.code == 1, said.err
    assert said.json["valid"] is False
    assert "stream 'value', rank 0, step 0" in said.json["why"]
    assert said_of(pinner.path("out"))["valid"] is False


def test_a_command_that_fails_leaves_no_valid_trace(pinner: Pinner) -> None:
    said = pinner("trace", "-o", "out", "--", *python("plain.py"), FAULT="exit:3")
    assert said.code == 5
    assert said_of(pinner.path("out"))["valid"] is None
    assert said_of(pinner.path("out"))["code"] == 3
    said = pinner("compare", "out", "out")
    assert said.code == 2
    assert "nothing was traced there (the untraced run cannot be used: the command" in said.out


def test_a_program_without_torch_and_numpy_has_nothing_to_trace(pinner: Pinner) -> None:
    code = "import pinner; pinner.fingerprint('value', 1)"
    said = pinner("trace", "-o", "out", "--", sys.executable, "-c", code)
    assert said.code == 2
    assert "no process imported either" in said.last


def test_under_a_lock_its_evidence_stands_for_the_untraced_run(pinner: Pinner) -> None:
    assert pinner("record", "-o", "lock.toml", "--", *python("plain.py")).code == 0
    same = pinner("trace", "-o", "same", "-l", "lock.toml", "--", *python("plain.py"))
    assert same.code == 0
    assert not pinner.path("same/runs/untraced").exists()
    other = pinner(
        *("trace", "-o", "other", "-l", "lock.toml", "--"), *python("plain.py"), FAULT="noise"
    )
    assert other.code == 1
    assert "other bits than the lock has" in other.last
    refused = pinner("trace", "-o", "none", "-l", "absent.toml", "--", *python("plain.py"))
    assert refused.code == 4
    assert not pinner.path("none").exists()


def test_a_folder_that_holds_something_is_left_alone(pinner: Pinner) -> None:
    pinner.path("out").mkdir()
    pinner.path("out/mine").write_text("mine")
    said = pinner("trace", "-o", "out", "--", *python("plain.py"))
    assert said.code == 64
    assert "expected an empty folder for the trace" in said.last
    assert [path.name for path in pinner.path("out").iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--from-step", "5", "--to-step", "2"], "no step lies from 5 to 2"),
        (["--level", "steps", "--modules", "a"], "--level steps holds no modules"),
    ],
)
def test_a_window_that_holds_nothing_is_refused(
    pinner: Pinner, words: list[str], text: str
) -> None:
    said = pinner("trace", "-o", "out", *words, "--", *python("plain.py"))
    assert said.code == 64
    assert text in said.last
    assert not pinner.path("out").exists()


def test_modules_that_match_nothing_are_said(pinner: Pinner) -> None:
    pinner.path("net.py").write_text(
        "import torch, pinner\n"
        "net = torch.nn.Sequential(torch.nn.Linear(2, 2))\n"
        "for step in range(2): pinner.fingerprint('y', net(torch.ones(1, 2)) * step)\n"
    )
    command = python(str(pinner.path("net.py")))
    for pattern, warned in (("^1$", True), ("^0$", False)):
        options = ("-o", f"out{pattern}", "--no-check", "--modules", pattern)
        said = pinner("trace", *options, "--", *command)
        assert said.code == 0, said.err
        assert ("no module of the window matched" in said.text) is warned


def run_of(*digests: str) -> Any:
    lines = tuple(("loss", step, digest) for step, digest in enumerate(digests))
    return gather([Emitter(0, lines)])


class TestJudging:
    def test_the_same_bits_make_it_valid(self) -> None:
        found = tracing.against_run(run_of("a", "b"), run_of("a", "b"))
        assert (found.valid, found.compared) == (True, 1)

    def test_other_bits_make_it_invalid_and_both_causes_are_named(self) -> None:
        found = tracing.against_run(run_of("a", "b"), run_of("a", "c"))
        assert found.valid is False
        assert "either looking changed them or the command does not repeat itself" in found.why
        assert "step 1" in found.why

    def test_a_lock_without_a_step_in_common_leaves_it_open(self) -> None:
        found = tracing.against_lock(Verification((), {}, ("stream 'a'",), 3))
        assert found.valid is None

    def test_a_lock_with_other_bits_makes_it_invalid(self) -> None:
        difference = Difference("loss", 0, 2, "a", "b")
        found = tracing.against_lock(Verification((difference,), {("loss", 0): 3}, (), 3))
        assert found.valid is False
        assert "step 2" in found.why

    def test_a_lock_with_the_same_bits_makes_it_valid(self) -> None:
        found = tracing.against_lock(Verification((), {("loss", 0): 3}, (), 3))
        assert found.valid is True
