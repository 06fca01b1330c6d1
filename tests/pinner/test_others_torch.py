"""What torch itself chooses among: cuDNN's flags, attention's backends, NCCL, TunableOp."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.others_rig import Run, locked, run_each

NCCL = """
import os, socket
os.environ.update(ours)
import torch.distributed as dist
try:
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
except RuntimeError as error:
    note(str(error))
note({name: os.environ.get(name) for name in ("NCCL_ALGO", "NCCL_PROTO")})
"""
STEP = """
parameter = torch.nn.Parameter(torch.ones(2))
parameter.grad = torch.ones(2)
optimizer = torch.optim.SGD([parameter], lr=1)
for _ in range(2): optimizer.step()
"""
# What a process with cuDNN has mapped, for a machine that has none.
MAPPED = """
from pinner.inside.choosers.others import looks
real = looks.mapped_names
looks.mapped_names = lambda: real() | {"libcudnn_engines_precompiled.so.9"}
"""
PROGRAMS = {
    "idle": """
import torch
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.nn.functional.relu(torch.ones(1))
torch.nn.functional.conv2d(torch.ones(1, 1, 4, 4), torch.ones(1, 1, 2, 2))
torch.overrides.get_testing_overrides()
""",
    "nccl": NCCL,
    "nccl tuned": """
import types
config = types.SimpleNamespace(min_ctas=4, max_ctas=-2**31, net_name="socket")
"""
    + NCCL.replace("rank=0", "rank=0, pg_options=types.SimpleNamespace(config=config)").replace(
        "(ours)", "(ours, NCCL_TUNER_PLUGIN='/opt/site/libnccl-tuner-site.so', NCCL_TOPO_FILE=topo)"
    ),
    "cudnn": MAPPED + "import torch\ntorch.backends.cudnn.deterministic = True\n" + STEP,
    "cudnn times": MAPPED + "import torch\ntorch.backends.cudnn.benchmark = True\n",
    "sdpa": """
import torch, sys
import torch.nn.functional as F
before = sys.modules["torch.nn.functional"].__dict__["scaled_dot_product_attention"]
note(F.scaled_dot_product_attention is before)
note("_watched" in vars(type(F)) and "scaled_dot_product_attention" in vars(type(F))["_watched"])
""",
    "fork": """
import os, sys, torch
torch.nn.functional.scaled_dot_product_attention
os.environ["PYTORCH_TUNABLEOP_ENABLED"] = "1"
before = os.listdir("ledger")
if not os.fork():
    sys.exit()
os.wait()
note(os.listdir("ledger") == before)
""",
    "sdpa by a layer": """
import torch
torch.nn.MultiheadAttention(4, 2)(*[torch.ones(3, 4)] * 3)
""",
    "sdpa compiled": """
import torch
from torch._dynamo.testing import CompileCounter
import torch.nn.functional as F
def attend(x): return F.scaled_dot_product_attention(x, x, x)
x, counter, earlier = torch.ones(1, 2, 3, 4), CompileCounter(), CompileCounter()
simple = torch.compile(lambda x: F.relu(x) + 1, backend=earlier)
simple(x)
compiled = torch.compile(attend, backend=counter, fullgraph=True)
note([torch.equal(compiled(x), torch._C._nn.scaled_dot_product_attention(x, x, x)) for _ in "ab"])
simple(x)
note([counter.frame_count, earlier.frame_count])
""",
    "sdpa switched": """
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], set_priority=True):
    torch.nn.functional.scaled_dot_product_attention(*[torch.ones(1, 2, 3, 4)] * 3)
""",
    "sdpa chosen": """
import torch
torch.backends.cuda.enable_flash_sdp(False)
torch.nn.functional.scaled_dot_product_attention(*[torch.ones(1, 2, 3, 4)] * 3)
""",
    "tunableop": """
import os
os.environ["PYTORCH_TUNABLEOP_ENABLED"] = "1"
""",
    "tunableop reads": """
import os
os.environ.update(PYTORCH_TUNABLEOP_ENABLED="1", PYTORCH_TUNABLEOP_TUNING="0")
""",
    "pickled": """
import pickle, torch, torch.nn.functional as F
note(pickle.loads(pickle.dumps(F)) is F)
F.scaled_dot_product_attention = lambda *args: "mine"
note([F.scaled_dot_product_attention(), isinstance(F, type(pickle)), hasattr(F, "nothing")])
del F.scaled_dot_product_attention
note(hasattr(F, "scaled_dot_product_attention"))
""",
}
NAMES = {"backend": "nccl", "ours": {"NCCL_ALGO": "Ring", "NCCL_MIN_NCHANNELS": "4"}}
SDPA = {
    "backends": (["flash", "mem_efficient", "math", "cudnn"], "forced"),
    "reduced_math": (False, "recorded"),
}


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Run]:
    folder = tmp_path_factory.mktemp("observed")
    (folder / "nccl.conf").write_text("# of the site\nNCCL_ALGO=Tree\nNCCL_PROTO=Simple\n")
    names = {**NAMES, "topo": str(folder / "nccl.conf")}
    return run_each(
        folder / "session", PROGRAMS, names=names, NCCL_CONF_FILE=str(folder / "nccl.conf")
    )


def test_a_run_that_uses_none_of_it_has_no_row(observed: Mapping[str, Run]) -> None:
    assert observed["idle"].rows() == {}


def test_nccl_tells_what_it_will_read_from_variables_and_its_file(
    observed: Mapping[str, Run],
) -> None:
    assert observed["nccl"].rows() == {
        "NCCL_ALGO": ("Ring", "forced"),  # the variable goes before the file
        "NCCL_PROTO": ("Simple", "forced"),
        "NCCL_MIN_NCHANNELS": ("4", "forced"),
    }


def test_a_tuner_of_nccls_is_a_hole_and_no_row_holds_a_path(observed: Mapping[str, Run]) -> None:
    rows = observed["nccl tuned"].rows()
    assert rows["NCCL_TUNER_PLUGIN"] == ("libnccl-tuner-site.so", "no")
    assert rows["config.min_ctas"] == (4, "recorded")
    assert {name for name in rows if name.startswith("config.")} == {"config.min_ctas"}
    digest, held = rows["NCCL_TOPO_FILE"]
    assert (digest[:7], held) == ("sha256:", "recorded")
    assert "/" not in str([value for value, _ in rows.values()])


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (
            "cudnn",
            {
                "benchmark": (False, "forced"),
                "deterministic": (True, "forced"),
                "tf32": ("tf32", "recorded"),
            },
        ),
        (
            "cudnn times",
            {
                "benchmark": (True, "no"),
                "deterministic": (False, "no"),
                "tf32": ("tf32", "recorded"),
            },
        ),
        (
            "tunableop",
            {
                "PYTORCH_TUNABLEOP_ENABLED": ("1", "forced"),
                "PYTORCH_TUNABLEOP_TUNING": ("1", "no"),
            },
        ),
        (
            "tunableop reads",
            {
                "PYTORCH_TUNABLEOP_ENABLED": ("1", "forced"),
                "PYTORCH_TUNABLEOP_TUNING": ("0", "forced"),
            },
        ),
        ("sdpa", SDPA),
        ("sdpa by a layer", SDPA),
        ("sdpa compiled", SDPA),
        ("sdpa chosen", {**SDPA, "backends": (["mem_efficient", "math", "cudnn"], "forced")}),
    ],
)
def test_what_is_used_has_its_rows(
    observed: Mapping[str, Run], program: str, expected: dict[str, Any]
) -> None:
    assert observed[program].rows() == expected


def test_cudnns_flags_are_written_after_the_first_step(observed: Mapping[str, Run]) -> None:
    """A process that is killed later has them in its ledger."""
    kinds = [
        line["t"] if line["t"] != "evidence" else f"{line['stream']} {line['step']}"
        for line in observed["cudnn"].lines
    ]
    assert kinds.index("setting") < kinds.index("optimizer0/gradients 1")


def test_a_child_that_decides_nothing_starts_no_ledger(observed: Mapping[str, Run]) -> None:
    assert observed["fork"].notes == [True]
    assert {"backends", "PYTORCH_TUNABLEOP_ENABLED"} < set(observed["fork"].rows())


def test_a_program_that_switches_backends_as_it_runs_is_told_so(
    observed: Mapping[str, Run],
) -> None:
    assert observed["sdpa switched"].rows()["sdpa_kernel"] == (True, "recorded")


def test_the_function_of_attention_is_torchs_own_before_and_after_it_was_noticed(
    observed: Mapping[str, Run],
) -> None:
    assert observed["sdpa"].notes == [True, False]


def test_a_compiled_program_has_its_graphs_once_and_the_same_bits(
    observed: Mapping[str, Run],
) -> None:
    assert observed["sdpa compiled"].notes == [[True, True], [1, 1]]


def test_a_watched_module_can_be_pickled_and_its_functions_replaced(
    observed: Mapping[str, Run],
) -> None:
    assert observed["pickled"].notes == [True, ["mine", True, False], False]


def test_a_lock_forces_flags_backends_and_variables(
    observed: Mapping[str, Run], tmp_path: Path
) -> None:
    wanted = [
        {"chooser": "cudnn", "name": "deterministic", "value": True, "held": "forced"},
        {"chooser": "sdpa", "name": "backends", "value": ["math", "flash"], "held": "forced"},
        *locked(observed["nccl"], observed["tunableop reads"]),
    ]
    programs = {
        "cudnn": MAPPED,
        "cudnn against": MAPPED + "import torch\ntorch.backends.cudnn.deterministic = False\n",
        "sdpa": "import torch\ntorch.nn.functional.scaled_dot_product_attention\n",
        "sdpa against": PROGRAMS["sdpa chosen"],
        "nccl": NCCL.replace("os.environ.update(ours)", ""),
        "nccl against": NCCL.replace("(ours)", "(NCCL_PROTO='LL')"),
        "nccl more": NCCL.replace("(ours)", "(NCCL_NTHREADS='64')"),
        "idle": "import os\nfor name in ('NCCL_ALGO', 'NCCL_PROTO'): note(os.environ.get(name))",
        "tunableop": "import torch\n",
        "tunableop against": "import os\nos.environ['PYTORCH_TUNABLEOP_TUNING'] = '1'\n",
    }
    # NCCL_ALGO as where it was set before the recording, the others as where the program set them.
    hard = {**observed["idle"].facts(), "env:NCCL_ALGO": "Ring"}
    runs = run_each(tmp_path / "session", programs, wanted, NAMES, hard=hard)
    assert runs["cudnn"].rows()["deterministic"] == (True, "forced")
    assert runs["sdpa"].rows("sdpa")["backends"] == (["math", "flash"], "forced")
    assert runs["nccl"].rows("nccl") == observed["nccl"].rows()
    assert runs["tunableop"].rows() == observed["tunableop reads"].rows()
    assert runs["nccl"].notes[-1] == {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}
    assert runs["idle"].notes == ["Ring", None]
    assert runs["nccl more"].rows()["NCCL_NTHREADS"] == ("64", "forced")
    texts = {name: [line["text"] for line in run.problems()] for name, run in runs.items()}
    assert [name for name, found in texts.items() if found] == [
        "cudnn against",
        "sdpa against",
        "nccl against",
        "tunableop against",
    ]
    assert "deterministic = True, the program has False" in texts["cudnn against"][0]
    assert "('math', 'flash'), the program has" in texts["sdpa against"][0]
    assert "NCCL_PROTO = 'Simple', the program has 'LL'" in texts["nccl against"][0]
