"""Evidence can fail: one flipped bit of one weight is caught by each stream on its own."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from tests.session_rig import SessionRig

TRAIN = """
import sys, torch, pinner
plant = [int(word) for word in sys.argv[1:]]
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Linear(4, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
data = torch.randn(4, 8, 5)
for step in range(4):
    if plant and step == plant[0]:
        weights = list(model.parameters())[plant[1]].data.view(-1).view(torch.int32)
        weights[plant[2] % weights.numel()] ^= 1 << plant[3]
    loss = model(data[step]).square().mean()
    loss.backward()
    pinner.fingerprint("loss", loss)
    optimizer.step()
    optimizer.zero_grad()
"""
STREAMS = ("loss", "optimizer0/gradients", "optimizer0/parameters")


@pytest.fixture
def rig(tmp_path: Path) -> SessionRig:
    return SessionRig(tmp_path / "session")


def evidence(folder: Path, code: str, *args: str) -> dict[str, list[str]]:
    """The digests of each stream, in order; steps count from 0."""
    rig = SessionRig(folder)
    done = rig.script(code, *args)
    assert done.returncode == 0, done.stderr
    # torch.compile is told about, whatever its backend.
    assert [line for line in rig.lines("problem") if line["chooser"] != "inductor"] == []
    found: dict[str, list[str]] = {}
    for line in rig.lines("evidence"):
        stream = found.setdefault(line["stream"], [])
        assert line["step"] == len(stream)
        stream.append(line["digest"])
    return found


class TestPlantedFault:
    """A checker that has never caught a fault is untested."""

    def test_each_stream_alone_catches_one_bit_from_its_step_on(self, tmp_path: Path) -> None:
        """High bits of the mantissa: a low one can vanish in the rounding of the loss."""
        plant = [
            secrets.randbelow(4),  # step
            secrets.randbelow(4),  # parameter
            secrets.randbelow(20),  # element
            14 + secrets.randbelow(9),  # bit
        ]
        print("planted: step, parameter, element, bit =", plant)
        clean = evidence(tmp_path / "clean", TRAIN)
        faulty = evidence(tmp_path / "faulty", TRAIN, *map(str, plant))
        assert set(clean) == set(faulty) == set(STREAMS)
        for stream in STREAMS:
            differs = [a != b for a, b in zip(clean[stream], faulty[stream], strict=True)]
            assert differs == [step >= plant[0] for step in range(4)], (stream, plant)

    def test_the_lowest_bit_of_any_weight_is_in_the_parameters(self, tmp_path: Path) -> None:
        plant = [3, secrets.randbelow(4), secrets.randbelow(20), 0]
        print("planted: step, parameter, element, bit =", plant)
        code = TRAIN.replace("lr=0.01", "lr=0.0, weight_decay=0.0")
        clean = evidence(tmp_path / "clean", code)
        faulty = evidence(tmp_path / "faulty", code, *map(str, plant))
        stream = "optimizer0/parameters"
        assert clean[stream][:3] == faulty[stream][:3]
        assert clean[stream][3] != faulty[stream][3], plant

    def test_without_a_fault_two_runs_agree(self, tmp_path: Path) -> None:
        assert evidence(tmp_path / "a", TRAIN) == evidence(tmp_path / "b", TRAIN)


def test_the_program_computes_the_same_with_evidence_and_without(tmp_path: Path) -> None:
    code = TRAIN + "print([p.sum().item().hex() for p in model.parameters()], torch.rand(1).item())"
    outputs = []
    for wanted in (True, False):
        rig = SessionRig(tmp_path / str(wanted), evidence=wanted)
        outputs.append(rig.script(code).stdout)
        assert bool(rig.lines("evidence")) is wanted
    assert outputs[0] == outputs[1]


class TestFingerprint:
    def lines(self, rig: SessionRig, code: str) -> list[tuple[str, int]]:
        done = rig.script("import pinner\n" + code)
        assert done.returncode == 0, done.stderr
        return [(line["stream"], line["step"]) for line in rig.lines("evidence")]

    def test_a_step_is_the_number_of_the_call_or_what_is_given(self, rig: SessionRig) -> None:
        code = (
            "for i in range(2): pinner.fingerprint('a', i); pinner.fingerprint('b', i)\n"
            "pinner.fingerprint('c', 1.0, step=500)\n"
            "pinner.fingerprint('a', 9)\n"
        )
        assert self.lines(rig, code) == [
            ("a", 0),
            ("b", 0),
            ("a", 1),
            ("b", 1),
            ("c", 500),
            ("a", 2),
        ]

    def test_a_forked_child_counts_its_own(self, rig: SessionRig) -> None:
        code = (
            "import os\n"
            "pinner.fingerprint('a', 1)\n"
            "if os.fork() == 0: pinner.fingerprint('a', 1); os._exit(0)\n"
            "os.wait(); pinner.fingerprint('a', 1)\n"
        )
        assert sorted(self.lines(rig, code)) == [("a", 0), ("a", 0), ("a", 1)]

    def test_what_it_is_stands_beside_the_digest(self, rig: SessionRig) -> None:
        self.lines(rig, "import numpy; pinner.fingerprint('a', numpy.zeros((2, 3), 'float16'))")
        [line] = rig.lines("evidence")
        assert line["what"] == {"dtype": "float16", "shape": [2, 3]}

    def test_a_value_without_bytes_is_said_once_and_leaves_a_hole(self, rig: SessionRig) -> None:
        """The run goes on; a missing step is seen when runs are compared."""
        code = (
            "for value in (1, object(), object(), 2): pinner.fingerprint('a', value)\nprint('ran')"
        )
        done = rig.script("import pinner\n" + code)
        assert (done.returncode, done.stdout) == (0, "ran\n")
        assert [line["step"] for line in rig.lines("evidence")] == [0, 3]
        [problem] = rig.lines("problem")
        assert (problem["chooser"], problem["kernel"]) == ("evidence", "a")
        [said] = done.stderr.splitlines()
        assert said == "pinner: no evidence from a: " + problem["text"]
        assert "builtins.object" in said

    def test_without_a_session_it_does_nothing(self, tmp_path: Path) -> None:
        from pinner.inside import api

        api.fingerprint("a", object())

    def test_it_breaks_a_compiled_graph_and_is_not_traced(self, rig: SessionRig) -> None:
        code = (
            "import torch\n"
            "def work(x):\n    y = x * 2\n    pinner.fingerprint('y', y)\n    return y + 1\n"
            "compiled = torch.compile(work, backend='eager')\n"
            "for i in range(2): compiled(torch.ones(3))\n"
        )
        assert self.lines(rig, code) == [("y", 0), ("y", 1)]
        first, second = rig.lines("evidence")
        assert first["digest"] == second["digest"]
        assert first["what"] == {"dtype": "float32", "shape": [3]}
        assert rig.lines("problem") == []


class TestOptimizers:
    SETUP = """
import torch
def model(seed):
    torch.manual_seed(seed)
    return torch.nn.Linear(3, 2)
def train(model, optimizer, steps=1):
    for _ in range(steps):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""

    def of(self, folder: Path, code: str) -> dict[str, list[str]]:
        return evidence(folder, self.SETUP + code)

    def test_they_are_numbered_by_their_first_step(self, tmp_path: Path) -> None:
        code = (
            "first, second = model(1), model(2)\n"
            "unused, late, early = (torch.optim.SGD(m.parameters(), lr=1.0)"
            " for m in (first, first, second))\n"
            "train(second, early, 2); train(first, late)\n"
        )
        found = self.of(tmp_path / "s", code)
        assert {name: len(digests) for name, digests in found.items()} == {
            "optimizer0/gradients": 2,
            "optimizer0/parameters": 2,
            "optimizer1/gradients": 1,
            "optimizer1/parameters": 1,
        }

    @pytest.mark.parametrize(
        "optimizer",
        [
            "torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)",
            "torch.optim.AdamW(m.parameters(), foreach=True)",
            "torch.optim.AdamW(m.parameters(), fused=True)",
            "torch.optim.Adagrad(m.parameters())",
        ],
    )
    def test_of_every_kind(self, tmp_path: Path, optimizer: str) -> None:
        found = self.of(tmp_path / "s", f"m = model(1)\ntrain(m, {optimizer}, 3)\n")
        for digests in found.values():
            assert len(digests) == 3
        assert len(set(found["optimizer0/parameters"])) == 3

    def test_a_missing_gradient_counts(self, tmp_path: Path) -> None:
        code = (
            "m = model(1)\nfor p in m.parameters(): p.grad = torch.zeros_like(p)\n"
            "{}\ntorch.optim.SGD(m.parameters(), lr=0.0).step()\n"
        )
        plain = self.of(tmp_path / "a", code.format(""))
        missing = self.of(tmp_path / "b", code.format("m.bias.grad = None"))
        assert plain["optimizer0/gradients"] != missing["optimizer0/gradients"]
        assert plain["optimizer0/parameters"] == missing["optimizer0/parameters"]

    def test_sparse_gradients(self, tmp_path: Path) -> None:
        code = (
            "m = torch.nn.Embedding(10, 3, sparse=True)\n"
            "o = torch.optim.SparseAdam(m.parameters())\n"
            "m(torch.tensor([1, 4])).sum().backward(); o.step()\n"
        )
        assert set(self.of(tmp_path / "s", code)) == {
            "optimizer0/gradients",
            "optimizer0/parameters",
        }

    def test_a_step_the_gradient_scaler_skips_is_no_step(self, tmp_path: Path) -> None:
        code = (
            "m = model(1); o = torch.optim.SGD(m.parameters(), lr=1.0)\n"
            "scaler = torch.amp.GradScaler('cpu')\n"
            "for factor in (1.0, float('inf'), 1.0):\n"
            "    scaler.scale(m(torch.ones(1, 3) * factor).sum()).backward()\n"
            "    scaler.step(o); scaler.update(); o.zero_grad()\n"
        )
        found = self.of(tmp_path / "s", code)
        assert [len(digests) for digests in found.values()] == [2, 2]

    def test_a_compiled_step(self, tmp_path: Path) -> None:
        code = (
            "m = model(1); o = torch.optim.SGD(m.parameters(), lr=1.0)\n"
            "step = torch.compile(o.step, backend='eager')\n"
            "for _ in range(2): m(torch.ones(1, 3)).sum().backward(); step(); o.zero_grad()\n"
        )
        eager = self.of(
            tmp_path / "a", code.replace("torch.compile(o.step, backend='eager')", "o.step")
        )
        compiled = self.of(tmp_path / "b", code)
        assert compiled == eager

    def test_what_has_no_bytes_is_said_with_its_place(self, rig: SessionRig) -> None:
        code = "m = model(1).to('meta')\ntorch.optim.SGD(m.parameters(), lr=1.0).step()\n"
        done = rig.script(self.SETUP + code)
        assert done.returncode == 0, done.stderr
        assert [line["kernel"] for line in rig.lines("problem")] == ["optimizer0/parameters"]
        assert "parameter 0: a tensor on the meta device" in done.stderr

    def test_an_optimizer_that_is_gone_leaves_its_number_taken(self, tmp_path: Path) -> None:
        code = (
            "import gc\nm = model(1)\n"
            "for _ in range(2): train(m, torch.optim.SGD(m.parameters(), lr=1.0)); gc.collect()\n"
        )
        found = self.of(tmp_path / "s", code)
        assert {name.partition("/")[0] for name in found} == {"optimizer0", "optimizer1"}


def test_the_hooks_do_not_change_an_optimizer(rig: SessionRig) -> None:
    """Its state, its checkpoints and its copies are what they would be."""
    code = """
import copy, io, pickle, torch
m = torch.nn.Linear(3, 2)
o = torch.optim.AdamW(m.parameters())
before = sorted(vars(o))
m(torch.ones(1, 3)).sum().backward(); o.step()
assert sorted(vars(o)) == before, sorted(vars(o))
torch.save(o.state_dict(), io.BytesIO())
copy.deepcopy(o).step()
print("ran")
"""
    done = rig.script(code)
    assert done.stdout == "ran\n", done.stderr
