"""A choice's key: by argument name, whatever the call style, and exact about types."""

from __future__ import annotations

import pytest
import torch

from tests import triton_rig as rig
from tests.fakes import timers

X = rig.numbers()


def one_call(kernel, *args, **kwargs):
    out = torch.zeros(8)
    kernel[(1,)](
        *[out if a == "out" else a for a in args],
        **{k: out if v == "out" else v for k, v in kwargs.items()},
    )
    return out


@pytest.fixture
def kernels():
    with rig.observing() as observed:
        module = rig.fresh_kernels()
        rig.use_benchmark(module, timers.shuffled(1))
        module.rig = observed
        yield module


def test_names_its_arguments_and_dtypes(kernels):
    one_call(kernels.total, X, "out", 4096)
    (choice,) = kernels.rig.choices()
    assert choice["kernel"] == "tests.workloads.kernels:total"
    assert choice["key"] == {"n": 4096, "x_ptr:dtype": "float32", "out_ptr:dtype": "float32"}
    assert choice["alternatives"] == 5
    assert choice["how"] == "tuned"
    assert len(choice["timings"]) == 5


def test_does_not_depend_on_call_style(kernels):
    one_call(kernels.several_keys, X, "out", 512, 8)
    one_call(kernels.several_keys, X, "out", n=512, rows=8)
    one_call(kernels.several_keys, rows=8, n=512, out_ptr="out", x_ptr=X)
    assert len({str(sorted(c["key"].items())) for c in kernels.rig.choices()}) == 1
    assert len({str(c["config"]) for c in kernels.rig.choices()}) == 1


def test_binds_defaults_so_that_colliding_library_keys_are_decided_each(kernels):
    one_call(kernels.omitted, X, "out", n=128)
    one_call(kernels.omitted, X, "out", m=128)  # Triton's key is (128, …) again
    keys = [c["key"] for c in kernels.rig.choices()]
    assert [(k["n"], k["m"]) for k in keys] == [(128, 64), (64, 128)]


def test_an_omitted_argument_keeps_asking_but_is_tuned_once(kernels):
    counted = timers.Counted(timers.shuffled(1))
    rig.use_benchmark(kernels, counted)
    for _ in range(3):
        one_call(kernels.omitted, X, "out", n=128)
    assert counted.calls == 5
    assert len(kernels.rig.choices()) == 1


@pytest.mark.parametrize(
    "flavours",
    [
        (True, 1, 1.0),
        (1.0, 1, True),
        (0, False, 0.0),
        (64, 64.0),
        (64.0, 64),
        (None, "none", (None,)),
        ((1, 2), (1, 2.0)),
        (torch.float16, torch.float32, "torch.float16"),
        (0.5, -0.0, 0.0),
        (float("nan"),),
        (float("inf"), -float("inf")),
    ],
    ids=str,
)
def test_kinds_of_values_stay_apart(kernels, flavours):
    counted = timers.Counted(timers.shuffled(1))
    rig.use_benchmark(kernels, counted)
    for _ in range(2):
        for flavour in flavours:
            one_call(kernels.any_key, X, "out", 4096, flavour)
    assert len(kernels.rig.choices()) == len(flavours)
    assert counted.calls == 5 * len(flavours)


@pytest.mark.parametrize(
    "value", [torch.zeros(3), len, object()], ids=["tensor", "function", "object"]
)
def test_refuses_what_cannot_be_a_key_by_name(kernels, value):
    one_call(kernels.any_key, X, "out", 4096, value)
    assert kernels.rig.choices() == []
    (problem,) = kernels.rig.of("problem", kind="refused")
    assert "flavour" in problem["text"]
    assert type(value).__name__ in problem["text"] or "Tensor" in problem["text"]


def test_warmup_records_nothing(kernels):
    if not hasattr(kernels.total.fn, "warmup"):
        pytest.skip("Triton 3.4's interpreter has no warmup")
    kernels.total.warmup(X, torch.zeros(1), 4096, grid=(1,))
    assert kernels.rig.lines == []
    one_call(kernels.total, X, "out", 4096)
    assert len(kernels.rig.choices()) == 1


def test_one_config_and_pruned_to_one_are_recorded(kernels):
    for _ in range(2):
        one_call(kernels.only_one, X, "out", 4096)
        one_call(kernels.pruned_to_one, X, "out", 4096)
    only, pruned = kernels.rig.choices()
    assert (only["how"], only["alternatives"], only["config"]["BLOCK"]) == ("only", 1, 64)
    assert (pruned["how"], pruned["alternatives"], pruned["config"]["BLOCK"]) == ("only", 1, 256)


def test_a_winner_whose_time_is_infinite_is_refused(kernels):
    rig.use_benchmark(kernels, lambda call, quantiles: [float("inf")] * 3)
    one_call(kernels.total, X, "out", 4096)
    assert kernels.rig.choices() == []
    (problem,) = kernels.rig.of("problem", kind="refused")
    assert "every candidate failed" in problem["text"]


def test_values_of_heuristics_are_observed(kernels):
    one_call(kernels.with_heuristic, X, "out", 4096)
    (choice,) = kernels.rig.choices()
    assert choice["heuristics"] == {"SCALED": True}
    assert choice["key"]["SCALED"] is True


def test_a_decision_made_elsewhere_is_swept(kernels):
    one_call(kernels.total, X, "out", 4096)
    kernels.total.cache[(512, "torch.float32", "torch.float32")] = kernels.total.configs[2]
    kernels.rig.chooser.sweep()
    kernels.rig.chooser.sweep()
    (problem,) = kernels.rig.of("problem", kind="elsewhere")
    assert problem["kernel"].endswith(":total")
    assert problem["config"]["BLOCK"] == 64
    assert "512" in problem["text"]


def test_anything_found_in_a_cache_is_reported(kernels):
    kernels.total.cache["by hand"] = "not a config"
    kernels.rig.chooser.sweep()
    (problem,) = kernels.rig.of("problem", kind="elsewhere")
    assert problem["config"] == {"object": "str"}


def test_reset_to_zero_is_reported_with_its_argument(kernels):
    one_call(kernels.resets, X, "out", 4096)
    (choice,) = kernels.rig.choices()
    assert any("'out_ptr'" in note and "first call" in note for note in choice["notes"])


def test_a_call_that_raised_leaves_no_trap(kernels):
    def broken(call, quantiles):
        raise RuntimeError("timer broke")

    rig.use_benchmark(kernels, broken)
    with pytest.raises(RuntimeError):
        one_call(kernels.total, X, "out", 4096)
    kernels.total.cache[(1, "x")] = kernels.total.configs[0]
    assert kernels.rig.choices() == []
    rig.use_benchmark(kernels, timers.shuffled(1))
    one_call(kernels.total, X, "out", 4096)
    assert len(kernels.rig.choices()) == 1
    assert type(kernels.total.cache) is dict
