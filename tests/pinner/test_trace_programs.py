"""Traces of whole programs under injection: modules, steps, compiled regions, several processes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests import lanes
from tests.trace_rig import Event, Program, digests, events_of, label, read_log

TORCH = tuple(map(int, version("torch").split(".")[:2]))
TRAIN = """
import os, torch, pinner
from torch.utils.checkpoint import checkpoint
torch.manual_seed(0)
torch.set_num_threads(1)

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.act = torch.nn.Linear(4, 8), torch.nn.ReLU(inplace=True)
        self.down = torch.nn.Linear(8, 4)
    def forward(self, x, scale=None):
        return x + self.down(self.act(self.up(x))) * scale

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer() for _ in range(3))
        self.head = torch.nn.Linear(4, 2)
    def forward(self, x):
        scale = torch.tensor(0.5)
        x = self.layers[0](x, scale=scale)
        x = checkpoint(self.layers[1], x, scale, use_reentrant=False)
        x = checkpoint(self.layers[2], x, scale, use_reentrant=True)
        return self.head(x)

net = Net()
optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
for step in range(3):
    loss = net(torch.randn(5, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    pinner.fingerprint("loss", loss)
"""


def once(make: Callable[[Path], Program]) -> Any:
    """A program that several tests look at runs once for a test file."""

    @pytest.fixture(scope="module")
    def made(tmp_path_factory: pytest.TempPathFactory) -> Program:
        return make(tmp_path_factory.mktemp("program"))

    return made


untraced = once(lambda folder: Program(folder, None).run(TRAIN))
by_ops = once(lambda folder: Program(folder, "ops").run(TRAIN))
by_steps = once(lambda folder: Program(folder, "steps", **{"from": 1, "to": 1}).run(TRAIN))


def of(events: list[Event], kind: str, **fields: Any) -> list[Event]:
    """The events of a kind whose fields have these values."""
    return [
        event
        for event in events
        if event["e"] == kind and all(event.get(k, "") == v for k, v in fields.items())
    ]


@pytest.mark.xdist_group("trace-training")
def test_traces_leave_the_bits_of_the_untraced_run(
    untraced: Program, by_ops: Program, by_steps: Program
) -> None:
    assert untraced.evidence
    assert by_ops.evidence == untraced.evidence
    assert by_steps.evidence == untraced.evidence


@pytest.mark.xdist_group("trace-training")
class TestTheLog:
    def test_its_first_line_says_what_was_traced_and_its_last_that_it_is_whole(
        self, by_ops: Program
    ) -> None:
        first, *events, last = by_ops.lines
        assert first["t"] == "trace"
        assert first["version"] == 1
        assert first["level"] == "ops"
        assert first["rank"] is None
        assert first["window"] == {"from": None, "to": None, "modules": None}
        assert first["algorithm"]
        assert last == {"t": "end", "events": len(events)}
        (name,) = (path.parent.name for path in by_ops.trace.glob("*/*.jsonl"))
        assert name == "rank-none"

    def test_events_are_numbered_in_order_and_each_has_a_name_of_its_own(
        self, by_ops: Program
    ) -> None:
        events = by_ops.events()
        assert [event["q"] for event in events] == list(range(len(events)))
        assert len({label(event) for event in events}) == len(events)


@pytest.mark.xdist_group("trace-training")
class TestSteps:
    def test_streams_are_events_with_the_digests_of_the_evidence(self, by_ops: Program) -> None:
        seen = [(e["n"], e["s"], e["out"][0][1]) for e in by_ops.events("step")]
        assert seen == by_ops.evidence

    def test_every_parameter_has_its_gradient_and_its_optimizer_state(
        self, by_ops: Program
    ) -> None:
        events = by_ops.events()
        gradients, states = of(events, "grad", s=0), of(events, "optim", s=0)
        assert [e["x"]["parameter"] for e in gradients] == [f"0.{n}" for n in range(14)]
        assert [e["x"]["parameter"] for e in states] == [f"0.{n}" for n in range(14)]
        paths = [path for path, _ in digests(states[0], "out")]
        assert paths == ["param", "state.step", "state.exp_avg", "state.exp_avg_sq"]

    def test_random_streams_are_read_at_the_end_of_a_step(self, by_ops: Program) -> None:
        states = of(by_ops.events(), "random", n="torch.cpu")
        assert [event["s"] for event in states] == [0, 1, 2]
        assert len({event["out"][0][1] for event in states}) == 3

    def test_operations_of_a_step_have_its_number(self, by_ops: Program) -> None:
        for step in range(3):
            assert of(by_ops.events(), "op", n="aten.randn.default", s=step)

    def test_a_window_leaves_out_the_other_steps(self, by_steps: Program) -> None:
        assert {event["s"] for event in by_steps.events()} == {1}
        kinds = {event["e"] for event in by_steps.events()}
        assert kinds == {"step", "grad", "optim", "random", "recompute"}


@pytest.mark.xdist_group("trace-training")
class TestModules:
    def test_a_module_is_named_by_its_path_from_the_root(self, by_ops: Program) -> None:
        forward = of(by_ops.events(), "module", p="f", s=0)
        paths = [event.get("m", "") for event in forward]
        assert paths == [
            *("layers.0.up", "layers.0.act", "layers.0.down", "layers.0"),
            *("layers.1.up", "layers.1.act", "layers.1.down", "layers.1"),
            *("layers.2.up", "layers.2.act", "layers.2.down", "layers.2"),
            *("head", ""),
        ]
        assert [event["n"] for event in forward][-2:] == ["Linear", "Net"]

    def test_its_inputs_and_outputs_are_read_by_name_too(self, by_ops: Program) -> None:
        (layer,) = of(by_ops.events(), "module", m="layers.0", p="f", s=0)
        assert [path for path, _ in digests(layer, "in")] == ["0", "kw.scale"]
        (following,) = of(by_ops.events(), "module", m="layers.1", p="f", s=0)
        assert layer["out"][0][1] == following["in"][0][1]

    def test_operations_belong_to_the_module_that_ran_them_backward_too(
        self, by_ops: Program
    ) -> None:
        events = by_ops.events()
        assert of(events, "op", n="aten.addmm.default", m="layers.0.up", p="f", s=0)
        assert of(events, "op", n="aten.mm.default", m="layers.0.up", p="b", s=0)
        assert of(events, "op", n="aten.threshold_backward.default", m="layers.0.act", p="b", s=0)
        assert of(events, "op", p="o", s=0)

    def test_backward_goes_through_the_modules_in_reverse(self, by_ops: Program) -> None:
        backward = [
            event.get("m", "")
            for event in of(by_ops.events(), "module", p="b", s=1)
            if event["n"] == "Linear"
        ]
        assert backward[0] == "head"
        assert backward[-2:] == ["layers.0.down", "layers.0.up"]
        (down,) = of(by_ops.events(), "module", m="layers.0.down", p="b", s=1)
        assert [path for path, _ in digests(down, "in")] == ["grad_out.0"]
        assert [path for path, _ in digests(down, "out")] == ["grad_in.0"]

    def test_recomputation_is_told_from_the_first_time(self, by_ops: Program) -> None:
        events = by_ops.events()
        marks = of(events, "recompute", s=0)
        assert [event["n"] for event in marks] == ["checkpoint.reentrant", "checkpoint"]
        (again,) = of(events, "module", m="layers.1.up", p="r", s=0)
        (before,) = of(events, "module", m="layers.1.up", p="f", s=0)
        assert digests(again, "out") == digests(before, "out")
        assert of(events, "op", n="aten.addmm.default", m="layers.2.up", p="r", s=0)

    def test_a_regular_expression_keeps_the_rest_out(self, tmp_path: Path) -> None:
        program = Program(tmp_path, "modules", modules=r"layers\.0").run(TRAIN)
        events = program.events("module")
        assert {event["m"].split(".")[1] for event in events} == {"0"}
        assert program.events("step")


COMPILED = """
import os, torch, pinner
torch.manual_seed(0)
torch.set_num_threads(1)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(64, 64)
    def forward(self, x):
        return self.a(x).tanh().exp().mean()

net = Net()
run = net if os.environ.get("EAGER") else torch.compile(net)
if os.environ.get("OLD"):  # as torch before 2.10 asks, and without the mode's answer
    if hasattr(torch._dynamo.config, "inline_torch_dispatch_torch_compile"):
        torch._dynamo.config.inline_torch_dispatch_torch_compile = False
    if torch._C._len_torch_dispatch_stack():
        mode = torch._C._get_dispatch_stack_at(0)
        type(mode).ignore_compile_internals = classmethod(lambda cls: False)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
for step in range(2):
    loss = run(torch.randn(333, 64))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    pinner.fingerprint("loss", loss)
if not os.environ.get("EAGER"):
    stats = torch._dynamo.utils.counters["stats"]
    print("graphs", stats["unique_graphs"])
"""


@lanes.long_form
def test_compiled_code_runs_as_it_does_without_a_trace(tmp_path: Path) -> None:
    """Falling back to eager would leave eager's bits, which differ here from the compiled ones."""
    caches = {
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # no pool of processes that import torch
    }
    plain = Program(tmp_path / "plain", None).run(COMPILED, **caches)
    eager = Program(tmp_path / "eager", None).run(COMPILED, EAGER="1")
    deep = Program(tmp_path / "deep", "kernels").run(COMPILED, **caches)
    if TORCH < (2, 10):
        assert "compiles again at each call while operations are traced" in deep.done.stderr
        modules = Program(tmp_path / "modules", "modules").run(COMPILED, **caches)
        assert modules.evidence == plain.evidence != eager.evidence
        assert modules.done.stdout == plain.done.stdout == "graphs 1\n"
        assert of(modules.events(), "kernel", n="compiled region")
        return
    ops = Program(tmp_path / "ops", "ops").run(COMPILED, OLD="1", **caches)
    assert plain.evidence != eager.evidence
    assert deep.evidence == plain.evidence
    assert ops.evidence == plain.evidence
    assert deep.done.stdout == ops.done.stdout == plain.done.stdout == "graphs 1\n"

    for program in (deep, ops):
        regions = of(program.events(), "kernel", n="compiled region")
        assert [(e["s"], e["p"]) for e in regions] == [(0, "f"), (0, "b"), (1, "f"), (1, "b")]
        assert all(e["x"]["compiled"] and e["in"] and e["out"] for e in regions)
        assert all(row[1] for e in regions for row in (*e["in"], *e["out"]))
    inside = [e for e in ops.events() if e.get("x", {}).get("compiled")]
    assert {e["n"] for e in inside} == {"compiled region"}
    kernels = [e for e in deep.events("kernel") if e["n"].startswith("inductor:cpp_")]
    assert {e["p"] for e in kernels} == {"f", "b"}
    assert all(e["x"]["writes"] and e["x"]["region"] for e in kernels)
    # Buffers that nothing has written yet: what was left in them differs from run to run.
    fresh = [row for e in kernels for row in e["in"] if row[1] is None]
    assert fresh
    assert all(row[1] for e in kernels for row in e["out"])
    unwritten = [e for e in kernels if any(row[1] is None for row in e["in"])]
    assert all(e["x"]["uninitialised"] for e in unwritten)
    assert of(deep.events(), "op", n="aten.addmm.out")


TRANSFORMED = """
import copy, pickle, torch, warnings
from torch.fx import symbolic_trace
try:
    from torch.nn.attention.flex_attention import flex_attention
except ImportError:  # torch 2.4
    from torch.nn.functional import scaled_dot_product_attention as flex_attention
warnings.simplefilter("ignore")
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
x = torch.ones(2, 4)

@torch.compile(fullgraph=True, backend="aot_eager")
def whole(x):
    return net(x) * 2

@torch.compile(backend="aot_eager")
def broken(x):
    y = net(x)
    print("break")
    return y.sin()

print(torch.compile(net, fullgraph=True, backend="aot_eager")(x), whole(x), broken(x))
print(torch._dynamo.utils.counters["stats"], len(torch._dynamo.utils.counters["graph_break"]))
layer = torch.nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
with torch.no_grad():  # takes a way of its own only where no hook could see its parts
    print(torch.nn.TransformerEncoder(layer, 1).eval()(torch.ones(1, 3, 8)))
query = torch.randn(1, 2, 16, 8)
print(flex_attention(query, query, query).sum())
print(torch.jit.script(net)(x), torch.jit.trace(net, x)(x), torch.nn.LSTM(4, 4)(x)[0])
print(torch.export.export(net, (x,)).graph, symbolic_trace(net).code)
pickle.dumps(copy.deepcopy(net))
"""


def test_code_is_compiled_scripted_and_exported_as_without_a_trace(tmp_path: Path) -> None:
    alone = {
        "TORCHINDUCTOR_COMPILE_THREADS": "1"
    }  # torch 2.6 would start others for flex_attention
    plain = Program(tmp_path / "plain", None).run(TRANSFORMED, **alone)
    traced = Program(tmp_path / "traced", "kernels").run(TRANSFORMED, **alone)
    assert "'unique_graphs': 4" in plain.done.stdout
    assert traced.done.stdout == plain.done.stdout
    assert traced.events("op", "module")
    assert not any("_orig_mod" in event.get("m", "") for event in traced.events())


SEVERAL = """
import os, sys, threading, torch, pinner
torch.set_num_threads(1)

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, place):
        return torch.full((2,), float(place)).sqrt()

def work():
    torch.ones(2).cos()

before = torch.ones(3).sin()
thread = threading.Thread(target=work, name="worker")
thread.start(); thread.join()
for batch in torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=1):
    batch.tan()
pid = os.fork()
if not pid:
    torch.ones(3).exp()
    sys.exit(0)
os.waitpid(pid, 0)
torch.ones(3).log()
"""


several = once(lambda folder: Program(folder, "ops").run(SEVERAL))


def names(lines: list[Event]) -> set[str]:
    """The names of the operations of a log, without namespace and overload."""
    return {event["n"].split(".")[1] for event in events_of(lines)}


def logs_with(program: Program, name: str) -> list[list[Event]]:
    """The logs in which an operation stands."""
    return [lines for lines in program.logs if name in names(lines)]


@pytest.mark.xdist_group("trace-processes")
class TestSeveralProcessesAndThreads:
    def test_each_process_writes_a_log_of_its_own(self, several: Program) -> None:
        (parent,) = logs_with(several, "log")
        (child,) = logs_with(several, "exp")
        assert {"sin", "cos", "tan"} <= names(parent)
        assert names(child) == {"ones", "exp"}
        assert child[0]["pid"] != parent[0]["pid"]
        assert child[-1]["t"] == "end"
        assert [event["q"] for event in events_of(child)] == [0, 1]

    def test_workers_of_a_loader_are_traced(self, several: Program) -> None:
        (worker,) = logs_with(several, "sqrt")
        assert len([e for e in events_of(worker) if e["n"] == "aten.sqrt.default"]) == 4

    def test_threads_of_python_are_traced_and_named(self, several: Program) -> None:
        (parent,) = logs_with(several, "log")
        (event,) = [e for e in events_of(parent) if e["n"] == "aten.cos.default"]
        assert event["x"]["thread"] == "worker"


def test_the_log_of_a_killed_process_can_be_read(tmp_path: Path) -> None:
    program = Program(tmp_path, "ops")
    script = tmp_path / "program.py"
    script.write_text(
        "import torch, pinner\n"
        "step = 0\n"
        "while True:\n"
        "    torch.full((8,), float(step)).sin()\n"
        "    pinner.fingerprint('value', step)\n"
        "    step += 1\n"
        "    print(step, flush=True)\n"
    )
    running = subprocess.Popen(
        [sys.executable, str(script)],
        env=program.rig.environ(PYTHONPATH=str(Path(__file__).parents[2])),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None
    done = 0
    while done < 50:
        done = int(running.stdout.readline())
    running.send_signal(signal.SIGKILL)
    running.wait()
    (path,) = program.trace.glob("*/*.jsonl")
    lines = read_log(path)
    assert lines[0]["t"] == "trace"
    assert max(event["s"] for event in events_of(lines, "op")) >= 49
    assert not any(line.get("t") == "end" for line in lines)


COLLECTIVES = """
import torch, pinner
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
try:
    from torch.distributed.tensor import Shard, distribute_tensor
except ImportError:  # torch 2.4
    from torch.distributed._tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from tests.workloads import ranks

torch.set_num_threads(1)
ranks.join()
rank = dist.get_rank()
x = torch.full((4,), float(rank))
dist.all_reduce(x)
parts = [torch.empty(4) for _ in range(2)]
dist.all_gather(parts, x, async_op=True).wait()
if rank == 0:
    dist.send(x, 1)
    dist.isend(x + 1, 1).wait()
else:
    dist.recv(x, 0)
    dist.irecv(x, 0).wait()
(functional.all_reduce(x, "sum", dist.group.WORLD) + 1).sum()
model = DistributedDataParallel(torch.nn.Linear(4, 2))
model(torch.full((1, 4), float(rank))).sum().backward()
mesh = init_device_mesh("cpu", (2,))
sharded = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])
(sharded * 3).full_tensor()
dist.barrier()
ranks.leave(kept=True)  # by the mesh
"""


def two_ranks(folder: Path) -> Program:
    """The collectives, under torchrun with gloo."""
    script = folder / "program.py"
    script.write_text(COLLECTIVES)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    return Program(folder, "ops").python(*launcher, str(script), OMP_NUM_THREADS="1")


launched = once(two_ranks)


@pytest.mark.xdist_group("trace-ranks")
class TestRanks:
    @pytest.fixture
    def ranks(self, launched: Program) -> list[list[Event]]:
        return [
            events_of(read_log(path))
            for number in range(2)
            for path in launched.trace.glob(f"rank-{number}/*.jsonl")
        ]

    def test_each_rank_has_its_folder(self, ranks: list[list[Event]]) -> None:
        assert len(ranks) == 2

    def test_a_collective_has_what_was_given_and_what_came_out(
        self, ranks: list[list[Event]]
    ) -> None:
        given, came = [], []
        for events in ranks:
            event = next(e for e in events if (e["n"], e["i"]) == ("all_reduce", 0))
            assert event["e"] == "collective"
            assert event["x"]["group"] == [0, 1]
            given.append(digests(event, "in"))
            came.append(digests(event, "out"))
        assert given[0] != given[1]
        assert came[0] == came[1]

    def test_what_is_still_on_its_way_is_read_when_it_was_waited_for(
        self, ranks: list[list[Event]]
    ) -> None:
        for events in ranks:
            (begun,) = of(events, "collective", n="all_gather")
            assert begun["x"]["async"] is True
            assert [digest for _, digest in digests(begun, "out")] == [None, None]
            (ended,) = of(events, "collective", n="all_gather.wait")
            assert all(digest for _, digest in digests(ended, "out"))
            late = next(e for e in of(events, "collective", n="all_reduce") if e["i"] == 1)
            assert late["out"][0][1] is None
            assert of(events, "collective", n="wait_tensor")[0]["out"][0][1]

    def test_what_one_rank_sends_the_other_receives(self, ranks: list[list[Event]]) -> None:
        sender, receiver = ranks
        for sent, got in (("send", "recv"), ("isend", "irecv.wait")):
            (gone,) = of(sender, "p2p", n=sent)
            (came,) = of(receiver, "p2p", n=got)
            assert gone["in"][0][1] == came["out"][0][1]
        assert of(receiver, "p2p", n="irecv")[0]["out"][0][1] is None

    def test_reductions_of_gradients_in_cpp_are_seen(self, ranks: list[list[Event]]) -> None:
        for events in ranks:
            assert of(events, "collective", n="c10d.allreduce_.default", p="b")

    def test_a_distributed_tensor_is_seen_by_its_local_part(self, ranks: list[list[Event]]) -> None:
        for events in ranks:
            products = [e for e in of(events, "op", n="aten.mul.Tensor") if e["p"] == "f"]
            assert [4] in [e["out"][0][3] for e in products]


TRITON = """
import torch, triton, triton.language as tl

@triton.jit
def double(source, target, count, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(target + at, tl.load(source + at, at < count) * 2, at < count)

x, y = torch.arange(8.0), torch.zeros(8)
double[(1,)](x, y, 8, BLOCK=8)
double[(1,)](x, y, 8, BLOCK=8)
y.sum()
"""


def test_launches_of_triton_have_their_arguments_before_and_after(tmp_path: Path) -> None:
    program = Program(tmp_path, "kernels").run(TRITON, TRITON_INTERPRET="1")
    first, second = program.events("kernel")
    assert first["n"] == "triton:__main__:double"
    assert first["x"]["grid"] == [1]
    assert first["x"]["config"] == {"BLOCK": 8}
    assert [path for path, _ in digests(first, "in")] == ["source", "target"]
    assert first["x"]["writes"] == ["target"]
    assert second["x"]["writes"] == []
    assert digests(first, "out") == digests(second, "in")
    (total,) = of(program.events(), "op", n="aten.sum.default")
    assert total["in"][0][1] == first["out"][1][1]


def test_resuming_goes_on_with_the_number_of_the_steps(tmp_path: Path) -> None:
    program = Program(tmp_path, "steps").run(
        "import torch\n"
        "w = torch.nn.Parameter(torch.ones(2)); w.grad = torch.ones(2)\n"
        "first = torch.optim.Adam([w])\n"
        "for _ in range(3): first.step()\n"
        "second = torch.optim.Adam([w])\n"
        "second.load_state_dict(first.state_dict())\n"
        "del first\n"
        "second.step()\n"
    )
    assert [event["s"] for event in program.events("optim")] == [0, 1, 2, 3]


def test_a_program_without_an_optimizer_steps_with_its_first_stream(tmp_path: Path) -> None:
    program = Program(tmp_path, "ops").run(
        "import torch, pinner\n"
        "for n in range(3):\n"
        "    torch.full((1,), float(n))\n"
        "    pinner.fingerprint('a', n)\n"
        "    pinner.fingerprint('b', n)\n"
    )
    assert [e["s"] for e in of(program.events(), "op", n="aten.full.default")] == [0, 1, 2]


def test_a_level_that_does_not_exist_is_refused_at_the_start(tmp_path: Path) -> None:
    program = Program(tmp_path, "atoms")
    done = program.rig.script("print('ran')")
    assert done.returncode == 96
    assert "expected a level of steps, modules, ops, kernels, found 'atoms'" in done.stderr
