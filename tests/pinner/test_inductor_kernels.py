"""Kernels of Inductor's `CachingAutotuner`, compiled for sm_90 and launched nowhere.

Not run on a GPU: the classes are Inductor's, the device under them is a stand-in.
"""

from __future__ import annotations

import inspect
import random

import pytest

from pinner.inside import values
from tests import inductor_rig as rig

SEED = random.randrange(1, 2**31)
PLACES = {"reduction": 5, "user": 3}
BOTH = [(kernel, place + 1) for kernel, count in PLACES.items() for place in range(count)]

# One process runs what a fixture here runs for many tests.
pytestmark = pytest.mark.xdist_group("inductor-kernels")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")


def run(folder, scenarios):
    """Each scenario with caches of its own, unless it names a folder."""
    for name, scenario in scenarios.items():
        own = f"{scenario['mode']}_{name}".replace(" ", "_")
        scenario.setdefault("folder", str(folder / own))
    return rig.run_named(folder, scenarios, "inductor_kernels.py")


@pytest.fixture(scope="module")
def observed(folder):
    """Runs without a lock, by name."""
    print("seed", SEED)
    scenarios = {
        f"{kernel} {place}": {"kernel": kernel, "mode": "observe", "place": place}
        for kernel, place in BOTH
    }
    scenarios["elsewhere"] = {"mode": "observe", "counter": 12, "device": 3, "place": 2}
    scenarios["comment"] = {"mode": "observe", "kernel": "user", "comment": "x", "counter": 4}
    scenarios["offset"] = {"mode": "observe", "kernel": "user", "offset": 2.5}
    scenarios["search"] = {"mode": "observe", "search": True, "place": 6}
    scenarios["twice"] = {"mode": "observe", "seed": SEED, "again": True}
    scenarios["twice search"] = {"mode": "observe", "search": True, "place": 6, "again": True}
    scenarios["worker"] = {"mode": "observe", "arrives": "pickled", "place": 2}
    scenarios["foreign worker"] = {"mode": "observe", "arrives": "foreign", "place": 2}
    scenarios["disk"] = {
        "mode": "observe",
        "folder": str(folder / "observe_reduction_2"),
        "place": 4,
    }
    for n in range(4):
        scenarios[f"unpinned {n}"] = {"mode": "plain", "seed": SEED + n}
    return run(folder, scenarios)


@pytest.fixture(scope="module")
def enforced(folder, observed):
    """Runs under locks that were made of the observed ones, by name."""
    common = {"mode": "enforce", "seed": SEED}
    scenarios = {
        f"{kernel} {place}": {**common, "kernel": kernel, "pins": pins(observed, kernel, place)}
        for kernel, place in BOTH
    }
    second = pins(observed, "reduction", 2)
    search = rig.pins_of(observed["search"]["lines"])
    absent = {"XBLOCK": 2, "R0_BLOCK": 128, "num_warps": 4, "num_stages": 1}
    other = rig.with_config(second, absent)
    strange = rig.with_config(second, {"YBLOCK": 2, "num_warps": 4, "num_stages": 1})
    drifted = rig.sealed(
        {
            name: {"entries": [{**entry, "code": ["sha256:" + "0" * 64]}]}
            for name, kernel in second["inductor"].items()
            for entry in kernel["entries"]
        }
    )
    scenarios.update(
        {
            "disk": {**common, "pins": second, "folder": str(folder / "observe_reduction_4")},
            "search": {**common, "pins": search, "search": True, "again": True},
            "found by search, which is off": {**common, "kernel": "user", "pins": strange},
            "worker": {**common, "pins": second, "arrives": "pickled"},
            "foreign worker": {**common, "pins": second, "arrives": "foreign"},
            "foreign search": {**common, "pins": search, "search": True, "arrives": "foreign"},
            "scaled": {**common, "pins": other},
            "altered": {**common, "pins": strange},
            "altered user": {
                **common,
                "kernel": "user",
                "pins": rig.with_config(
                    pins(observed, "user", 1), {"BLOCK": 512, "num_warps": 4, "num_stages": 2}
                ),
            },
            "drifted": {**common, "pins": drifted},
            "miss": {**common, "pins": {}},
            "miss search": {**common, "pins": {}, "search": True},
            "error": {**common, "pins": {}, "on_miss": "error"},
            "tune": {**common, "pins": {}, "on_miss": "tune"},
        }
    )
    return run(folder, scenarios)


def pins(observed, kernel, place):
    return rig.pins_of(observed[f"{kernel} {place}"]["lines"])


def choice_of(result):
    (choice,) = rig.of(result, "choice")
    return choice


@pytest.mark.parametrize(("kernel", "place"), BOTH)
def test_records_what_was_settled_on(observed, kernel, place):
    result = observed[f"{kernel} {place}"]
    choice = choice_of(result)
    name = {"reduction": "triton:triton_red_fused_sum", "user": "user_triton:shifted"}[kernel]
    assert choice["kernel"] == name
    assert choice["how"] == "tuned"
    assert choice["alternatives"] == PLACES[kernel] == result["benchmarks"]
    assert [choice["config"]] == result["launched"]
    assert values.canonical(choice["timings"][place - 1][0]) == values.canonical(choice["config"])
    (code,) = rig.of(result, "code")
    assert code["code"].startswith("sha256:")
    assert code["options"]["arch"] == "sm90"


def test_every_place_is_another_config(observed):
    for kernel, count in PLACES.items():
        configs = {
            values.canonical(observed[f"{kernel} {place + 1}"]["launched"][0])
            for place in range(count)
        }
        assert len(configs) == count


def test_random_timings_flip_an_unpinned_run(observed):
    configs = [observed[f"unpinned {n}"]["launched"][0] for n in range(4)]
    assert all(observed[f"unpinned {n}"]["benchmarks"] == 5 for n in range(4))
    assert len(set(map(values.canonical, configs))) > 1


@pytest.mark.parametrize(("kernel", "place"), BOTH)
def test_every_config_can_be_forced_and_nothing_is_timed(observed, enforced, kernel, place):
    before, result = observed[f"{kernel} {place}"], enforced[f"{kernel} {place}"]
    assert result["error"] == ""
    assert result["launched"] == before["launched"]
    assert result["benchmarks"] == 0
    assert choice_of(result)["how"] == "forced"
    assert rig.of(result, "code") == rig.of(before, "code")
    assert rig.of(result, "problem") == []


def test_the_identity_does_not_know_counter_device_or_folder(observed):
    here, elsewhere = choice_of(observed["reduction 2"]), choice_of(observed["elsewhere"])
    assert elsewhere == here
    assert rig.of(observed["elsewhere"], "code") == rig.of(observed["reduction 2"], "code")


def test_the_source_is_what_the_kernel_computes(observed):
    source = choice_of(observed["user 1"])["source"]
    assert choice_of(observed["comment"])["source"] == source
    assert choice_of(observed["offset"])["source"] != source  # a constant of a function it calls


def test_what_coordinate_descent_found_is_recorded_and_forced(observed, enforced):
    found = observed["search"]
    choice = choice_of(found)
    listed = {values.canonical(observed[f"reduction {n + 1}"]["launched"][0]) for n in range(5)}
    assert values.canonical(choice["config"]) not in listed
    assert [choice["config"]] == found["launched"]
    (code,) = rig.of(found, "code")
    assert code["config"] == choice["config"]
    result = enforced["search"]
    assert result["launched"] == found["launched"] * 2  # an equal kernel does not search either
    assert result["benchmarks"] == 0
    assert choice_of(result)["how"] == "forced"
    assert rig.of(result, "code") == [code]


def test_equal_kernels_of_one_process_run_alike(observed):
    for name in ("twice", "twice search"):
        result = observed[name]
        assert len(result["launched"]) == 2
        assert result["launched"][0] == result["launched"][1]
        assert len(rig.of(result, "choice")) == 1


def test_a_best_config_on_the_disk_is_named_and_never_overrides_a_lock(observed, enforced):
    disk = choice_of(observed["disk"])
    assert disk["how"] == "disk"
    assert disk["alternatives"] == 5
    assert observed["disk"]["launched"] == observed["reduction 2"]["launched"]
    assert enforced["disk"]["launched"] == observed["reduction 2"]["launched"]
    assert choice_of(enforced["disk"])["how"] == "forced"


@pytest.mark.parametrize("name", ["worker", "foreign worker"])
def test_kernels_that_a_worker_made_are_recorded_and_forced(observed, enforced, name):
    assert choice_of(observed[name])["config"] == choice_of(observed["reduction 2"])["config"]
    assert observed[name]["compiled"] == 5
    result = enforced[name]
    assert result["launched"] == observed["reduction 2"]["launched"]
    assert result["benchmarks"] == 0
    assert choice_of(result)["how"] == "forced"
    assert result["compiled"] == {"worker": 1, "foreign worker": 5}[name]


def test_a_config_that_no_worker_compiled_is_compiled_here(observed, enforced):
    result = enforced["foreign search"]
    assert result["launched"] == observed["search"]["launched"]
    assert result["benchmarks"] == 0


def test_a_config_that_was_scaled_by_registers_can_be_forced(enforced):
    """A reduction's list is open: Inductor halves RBLOCK where registers run short."""
    result = enforced["scaled"]
    assert result["error"] == ""
    assert result["launched"] == [{"XBLOCK": 2, "R0_BLOCK": 128, "num_warps": 4, "num_stages": 1}]


@pytest.mark.parametrize(("name", "offered"), [("altered", 5), ("altered user", 3)])
def test_a_config_that_is_not_offered_is_invalid(enforced, name, offered):
    result = enforced[name]
    assert result["launched"] == []
    assert "InvalidPin" in result["error"]
    (problem,) = rig.of(result, "problem")
    assert problem["kind"] == "invalid"
    assert len(problem["candidates"]) == offered
    assert problem["nearest"] in problem["candidates"]


def test_other_machine_code_is_drift(enforced):
    (problem,) = rig.of(enforced["drifted"], "problem")
    assert problem["kind"] == "drift"
    assert problem["text"] == "the same config, other code"


def test_a_miss_runs_the_first_config_in_serialised_order(observed, enforced):
    configs = [observed[f"reduction {n + 1}"]["launched"][0] for n in range(5)]
    first = min(configs, key=values.canonical)
    for name in ("miss", "miss search"):
        result = enforced[name]
        assert result["launched"] == [first]
        assert result["benchmarks"] == 0
        assert choice_of(result)["how"] == "fallback"


def test_a_miss_is_an_error_or_timed_where_asked(enforced):
    assert "MissedPin" in enforced["error"]["error"]
    (problem,) = rig.of(enforced["error"], "problem")
    assert problem["kind"] == "missed"
    assert choice_of(enforced["tune"])["how"] == "missed"
    assert enforced["tune"]["benchmarks"] == 5


def test_the_stand_in_has_what_the_real_device_interface_has():
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor.runtime.benchmarking import benchmarker

    from tests.fakes import inductor_gpu

    for name, method in vars(inductor_gpu.NoopInterface).items():
        on_the_class = getattr(CudaInterface, name, None)
        if name.startswith("_") or on_the_class is None:  # a CPU build lacks streams
            continue
        if not inspect.isbuiltin(on_the_class):  # a CUDA build has some that tell no signature
            real = inspect.signature(on_the_class)
            assert len(inspect.signature(method).parameters) - 1 == len(real.parameters), name
    assert "fn" in inspect.signature(benchmarker.benchmark).parameters
