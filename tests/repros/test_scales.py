"""Scales that are rebuilt on resume: found, told block by block, and gone once they are saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from stackbisect.repro import form
from tests.command_rig import Pinner, Said
from tests.repro_rig import REPROS, copied, module, shown, words

NAME = "scales"
RANK = "pinner: rank 0: "
FORM = form.read(REPROS / NAME)


@pytest.fixture(scope="module")
def repro() -> Any:
    return module(NAME)


class TestTheQuantiser:
    """What its numbers mean, by arithmetic in Python."""

    def test_every_e2m1_value_and_each_tie_between_two(self, repro: Any) -> None:
        even = {0.25: 0.0, 0.75: 1.0, 1.25: 1.0, 1.75: 2.0, 2.5: 2.0, 3.5: 4.0, 5.0: 4.0}
        known = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
        block = torch.tensor([known + [-each for each in known], [*even, 6.0] * 2])
        values, scales, tensor_scale = repro.nvfp4(block * 448)
        assert (scales.float() * tensor_scale).tolist() == [448.0, 448.0]
        back = repro.from_nvfp4(values, scales, tensor_scale) / 448
        assert back.tolist() == [block[0].tolist(), [*even.values(), 6.0] * 2]

    def test_mxfp8_scales_are_the_power_of_two_that_e4m3_reaches_from(self, repro: Any) -> None:
        largest = [1.0, 1.99, 2.0, 0.75, 448.0]
        block = torch.zeros(len(largest), 32)
        block[:, 5] = torch.tensor(largest)
        values, scales = repro.mxfp8(block)
        assert (scales.int() - 127).tolist() == [-8, -8, -7, -9, 0]
        back = torch.ldexp(values.float(), scales[:, None].int() - 127)[:, 5]
        assert back.tolist() == [1.0, 1.75, 2.0, 0.75, 448.0]  # 1.99 is beyond 448 / 256

    def test_a_block_of_zeros_is_one(self, repro: Any) -> None:
        weight = torch.zeros(2, 32)
        weight[0, 0] = 1
        values, scales, tensor_scale = repro.nvfp4(weight)
        assert repro.from_nvfp4(values, scales, tensor_scale).view(2, 32).equal(weight)


@pytest.mark.parametrize("stack", [each.name for each in FORM.stacks])
def test_the_digests_of_each_stack_are_those_of_every_machine(
    repro: Any, stack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = FORM.stack(stack)
    for variable, value in table.environment.items():
        monkeypatch.setenv(variable, value)
    found = {name: repro.digest(tensor) for name, tensor in repro.outputs().items()}
    assert found == table.digests


def test_the_fix_gives_the_good_stacks_digests_and_the_difference_is_as_told(
    repro: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert FORM.stack("fixed").digests == FORM.stack("good").digests
    told = FORM.difference
    assert told is not None
    bits = []
    for stack in ("good", "bad"):
        monkeypatch.setenv("SCALES", FORM.stack(stack).environment["SCALES"])
        bits.append(repro.outputs()[told.output].view(torch.uint8))
    (places,) = torch.nonzero(bits[0] != bits[1], as_tuple=True)
    assert (told.elements, told.first_index) == (len(places), (int(places[0]),))
    assert told.hex == tuple(f"0x{int(each[places[0]]):02x}" for each in bits)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Said]:
    """A copy of the folder in which the diagnosing command has run, and what that said."""
    folder = copied(NAME, tmp_path_factory.mktemp("scales"))
    first, *rest = words(FORM.diagnose)
    return folder, Pinner(folder)(first, "--json", "--dir", "runs", *rest)


class TestDiagnosis:
    def test_the_scales_are_named_with_the_first_step(self, runs: tuple[Path, Said]) -> None:
        _, said = runs
        assert said.code == 1, said.err
        lacks = {lack["name"]: lack["leaves"] for lack in said.json["lacks"]}
        assert lacks == {
            "buffers of Quantised 0": ["packed"],
            "scales of Quantised 0": ["block_scales", "tensor_scale"],
        }
        assert {each["step"] for each in said.json["differences"]} == {2}
        lines = [line for line in said.err.splitlines() if line.startswith(RANK)]
        assert shown(NAME, RANK) == lines

    def test_compare_names_the_first_block_with_another_scale(
        self, repro: Any, runs: tuple[Path, Said]
    ) -> None:
        folder, _ = runs
        saved = torch.load(next((folder / "runs").glob("histories/killed/checkpoint.pt")))
        scales = [repro.nvfp4(each)[1] for each in (saved["master"], saved["layer"]["weight"])]
        bits = [each.view(torch.uint8) for each in scales]
        (places,) = torch.nonzero(bits[0] != bits[1], as_tuple=True)
        said = Pinner(folder)("compare", "runs/whole", "runs/restored")
        assert said.code == 1, said.err
        (line,) = [line for line in said.out.splitlines() if "'block scales'" in line]
        assert "step 2: nh128:" in line
        assert f"(first differing row {int(places[0])} of 1,024; {len(places)} differ" in line


def test_the_fix_resumes_bit_for_bit(tmp_path: Path) -> None:
    assert FORM.fix is not None
    said = Pinner(copied(NAME, tmp_path))(*words(FORM.fix.command))
    assert said.code == 0, said.err
    assert "resumed from checkpoint 1 bit for bit" in said.last
