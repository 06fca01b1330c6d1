"""Traces on a real device: streams, autograd's threads, graphs, late digests, real launches."""

from __future__ import annotations

import os

import pytest

from tests.trace_rig import Program, digests

pytestmark = pytest.mark.gpu

TRAIN = """
import torch, pinner
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64)).cuda()
run = torch.compile(net) if COMPILE else net
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
side = torch.cuda.Stream()
for step in range(3):
    x = torch.randn(32, 64).pin_memory().cuda(non_blocking=True)
    loss = run(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        doubled = x * 2
    torch.cuda.current_stream().wait_stream(side)
    host = torch.empty(32, 64, pin_memory=True)
    host.copy_(doubled, non_blocking=True)
    torch.cuda.synchronize()
    host.sum()
    pinner.fingerprint("loss", loss)
"""

GRAPH = """
import torch, pinner
x = torch.zeros(8, device="cuda")
y = x + 1
stream = torch.cuda.Stream()
stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(stream):
    y = x + 1
torch.cuda.current_stream().wait_stream(stream)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 3 + 1
for step in range(3):
    x.fill_(float(step))
    graph.replay()
    pinner.fingerprint("y", y)
"""


@pytest.fixture(autouse=True)
def _compiled_kernels(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    os.environ.pop("TRITON_INTERPRET", None)


def train(folder, level, compiled=False, **fields):
    return Program(folder, level, **fields).run(f"COMPILE = {compiled}\n{TRAIN}")


def test_eager_training_is_traced_without_other_bits(tmp_path):
    plain = train(tmp_path / "plain", None)
    now = train(tmp_path / "now", "ops")
    late = train(tmp_path / "late", "ops", defer=True)
    assert plain.evidence == now.evidence == late.evidence
    assert [e["out"] for e in now.events()] == [e["out"] for e in late.events()]
    backward = [e for e in now.events("op") if e["p"] == "b" and e["n"].startswith("aten.mm")]
    assert {e.get("m") for e in backward} == {"0", "2"}
    assert {e["x"]["thread"] for e in backward if "x" in e} == {"autograd"}
    sums = [e for e in now.events("op") if e["n"].startswith("aten.sum") and e["p"] == "f"]
    assert all(digest for e in sums for _, digest in digests(e, "in"))


def test_compiled_training_is_traced_by_its_kernels(tmp_path):
    plain = train(tmp_path / "plain", None, True)
    deep = train(tmp_path / "deep", "kernels", True)
    assert deep.evidence == plain.evidence
    names = {e["n"].split("_")[0] for e in deep.events("kernel")}
    assert "compiled region" in names
    assert "inductor:triton" in names


def test_nothing_is_read_while_a_graph_is_captured(tmp_path):
    plain = Program(tmp_path / "plain", None).run(GRAPH)
    traced = Program(tmp_path / "traced", "ops").run(GRAPH)
    assert traced.evidence == plain.evidence
    captured = [e for e in traced.events("op") if e.get("x", {}).get("capture")]
    assert {e["n"] for e in captured} == {"aten.mul.Tensor", "aten.add.Tensor"}
    assert all(digest is None for e in captured for _, digest in digests(e, "out"))
