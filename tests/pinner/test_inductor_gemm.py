"""Inductor's algorithm selection on the CPU: timing flips it, and never an enforced run.

A fork costs little beside the process it comes from, so that two processes run everything.
"""

from __future__ import annotations

import json
import random

import pytest

from pinner.inside import values
from tests import inductor_rig as rig
from tests import lanes

EXTERN = {"backend": "extern", "kernel": "bmm"}
CPP = {"backend": "cpp", "template": "cpp_CppMicroGemmFP32Vec"}
MKL = {"backend": "extern", "kernel": "_mkl_linear"}
OTHER = {"generated": "extern", "extern": "generated"}
WINNERS = [(work, timer) for work in ("bmm", "linear") for timer in OTHER]
SEED = random.randrange(2**31)
ENFORCED = lanes.forks() if lanes.soak() else 10


def observe(timer, seed=0, **more):
    return {"work": "bmm", "mode": "observe", "timer": timer, "seed": seed, **more}


# One process runs what a fixture here runs for many tests.
pytestmark = pytest.mark.xdist_group("inductor-gemm")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Holds the C++ that these tests compile: once."""
    return tmp_path_factory.mktemp("inductor")


@pytest.fixture(scope="module")
def observed(folder):
    """Runs without a lock, by name."""
    print("seed", SEED)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    scenarios = {f"{work} {timer}": observe(timer, work=work) for work, timer in WINNERS}
    scenarios["real"] = {"work": "bmm", "mode": "observe"}
    scenarios["twice"] = observe("shuffled", SEED, work="twice")
    scenarios["failing"] = observe("failing")
    scenarios["elsewhere"] = observe(
        "generated",
        work="both_ways",
        folder=str(elsewhere),
        environment={"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3"},
    )
    for n in range(8):
        scenarios[f"unpinned {n}"] = observe("shuffled", SEED + n, mode="plain")
        scenarios[f"tie {n}"] = observe("near_tie", SEED + n)
    scenarios["deterministic plain"] = observe("generated", deterministic=True, mode="plain")
    scenarios["deterministic"] = observe("generated", deterministic=True)
    return rig.run_named(folder, scenarios)


@pytest.fixture(scope="module")
def enforced(folder, observed):
    """Runs under locks that were made of the observed ones, by name."""
    pins = rig.pins_of(observed["bmm generated"]["lines"])
    entry = pins["inductor"]["gemm:bmm"]["entries"][0]
    missing = locked(entry, key=entry["key"].replace("[4,32,256]", "[4,48,256]"))
    altered = locked(entry, config={"backend": "cpp", "template": "cpp_CppMicroGemmAMX"})
    grown = locked(entry, alternatives=1, code=["sha256:" + "0" * 64])
    common = {"work": "bmm", "mode": "enforce", "timer": "generated"}
    scenarios = {
        f"{work} {timer}": {
            **common,
            "work": work,
            "timer": OTHER[timer],
            "pins": rig.pins_of(observed[f"{work} {timer}"]["lines"]),
        }
        for work, timer in WINNERS
    }
    tie = rig.pins_of(observed["tie 0"]["lines"])
    for n in range(ENFORCED):
        timer = ("near_tie", "shuffled")[n % 2]
        scenarios[f"tie {n}"] = {**common, "pins": tie, "timer": timer, "seed": SEED + n}
    scenarios.update(
        {
            "miss": {**common, "pins": missing},
            "error": {**common, "pins": missing, "on_miss": "error"},
            "tune": {**common, "pins": missing, "on_miss": "tune"},
            "altered": {**common, "pins": altered},
            "gone": {**common, "pins": pins, "backends": "ATEN"},
            "one left": {**common, "pins": missing, "backends": "ATEN"},
            "grown": {**common, "pins": grown},
            "deterministic": {**common, "pins": pins, "deterministic": True},
        }
    )
    return rig.run_named(folder, scenarios)


def locked(entry, **fields):
    """Pins of one entry with some fields altered."""
    return rig.sealed({"gemm:bmm": {"entries": [json.loads(json.dumps({**entry, **fields}))]}})


def texts(configs):
    return sorted(map(values.canonical, configs))


def choice_of(run):
    (choice,) = rig.of(run, "choice")
    return choice


def test_the_alternatives_differ_in_bits(observed):
    for work in ("bmm", "linear"):
        assert observed[f"{work} generated"]["digest"] != observed[f"{work} extern"]["digest"]


def test_records_operation_shapes_winner_and_timings(observed):
    choice = choice_of(observed["bmm generated"])
    assert choice["kernel"] == "gemm:bmm"
    assert choice["how"] == "tuned"
    assert choice["config"] == CPP
    assert choice["alternatives"] == 2
    assert choice["key"]["in0_size"] == [4, 32, 256]
    assert choice["key"]["in0_stride"] == [32 * 256, 256, 1]
    assert choice["key"]["device"] == "cpu"
    assert texts(config for config, _ in choice["timings"]) == texts([CPP, EXTERN])
    assert choice_of(observed["bmm extern"])["config"] == EXTERN
    assert choice_of(observed["linear generated"])["kernel"] == "gemm:packed_linear"
    assert choice_of(observed["linear generated"])["config"] == CPP
    assert choice_of(observed["linear extern"])["config"] == MKL


def test_the_real_benchmark_is_heard(observed):
    choice = choice_of(observed["real"])
    times = {values.canonical(config): ms for config, ms in choice["timings"]}
    assert len(times) == 2
    assert all(0 < ms < 1000 for ms in times.values())
    assert times[values.canonical(choice["config"])] == min(times.values())


def test_generated_code_is_named(observed):
    (code,) = rig.of(observed["bmm generated"], "code")
    assert code["code"].startswith("sha256:")
    assert code["config"] == CPP
    assert code["key"] == choice_of(observed["bmm generated"])["key"], "no entry gets another's"
    assert rig.of(observed["bmm extern"], "code") == []


def test_shuffled_timings_flip_an_unpinned_run(observed):
    runs = [observed[f"unpinned {n}"] for n in range(8)]
    assert len({run["digest"] for run in runs}) == 2
    assert all(run["benchmarks"] == 2 for run in runs)


def test_an_equal_question_is_answered_alike_in_one_process(observed):
    assert len(rig.of(observed["twice"], "choice")) == 1
    assert observed["twice"]["benchmarks"] == 2


def test_candidates_that_all_fail_are_no_pin(observed):
    assert "NoValidChoicesError" in observed["failing"]["error"]
    assert rig.of(observed["failing"], "choice") == []


def test_the_key_does_not_know_order_folder_or_rank(observed):
    here = observed["bmm generated"]
    first, second = rig.of(observed["elsewhere"], "choice")
    assert first["key"]["in0_size"] == [4, 16, 256]
    same = {name: choice_of(here)[name] for name in ("kernel", "source", "key", "config")}
    assert {name: second[name] for name in same} == same
    assert rig.of(observed["elsewhere"], "code")[1] == rig.of(here, "code")[0]


@pytest.mark.parametrize(("work", "timer"), WINNERS)
def test_every_alternative_can_be_forced_and_nothing_is_timed(observed, enforced, work, timer):
    """A forced choice has the bits of the run that it won, under timings by which it loses."""
    run = enforced[f"{work} {timer}"]
    assert run["digest"] == observed[f"{work} {timer}"]["digest"]
    assert run["benchmarks"] == 0
    assert choice_of(run)["how"] == "forced"
    assert rig.of(run, "problem") == []


def test_near_ties_flip_recordings_and_never_an_enforced_run(observed, enforced):
    """Case P3: two candidates 0.1 % apart under 2 % of noise."""
    records = [observed[f"tie {n}"] for n in range(8)]
    winners = {values.canonical(choice_of(run)["config"]) for run in records}
    assert sorted(winners) == texts([CPP, EXTERN])
    runs = [enforced[f"tie {n}"] for n in range(ENFORCED)]
    assert {run["digest"] for run in runs} == {records[0]["digest"]}
    assert sum(run["benchmarks"] for run in runs) == 0


def test_a_miss_takes_the_library_kernel_without_timing(observed, enforced):
    run = enforced["miss"]
    assert run["digest"] == observed["bmm extern"]["digest"]
    assert choice_of(run)["how"] == "fallback"
    assert choice_of(run)["config"] == EXTERN
    assert run["benchmarks"] == 0


def test_a_miss_is_an_error_where_asked(enforced):
    run = enforced["error"]
    assert "MissedPin" in run["error"]
    (problem,) = rig.of(run, "problem")
    assert problem["kind"] == "missed"
    assert problem["kernel"] == "gemm:bmm"
    assert problem["key"]["in0_size"] == [4, 32, 256]


def test_a_miss_is_timed_where_asked(enforced):
    run = enforced["tune"]
    assert choice_of(run)["how"] == "missed"
    assert choice_of(run)["config"] == CPP
    assert run["benchmarks"] == 2


@pytest.mark.parametrize(("how", "offered"), [("altered", [CPP, EXTERN]), ("gone", [EXTERN])])
def test_a_locked_choice_that_is_not_offered_is_invalid(enforced, how, offered):
    run = enforced[how]
    assert "InvalidPin" in run["error"]
    assert run["benchmarks"] == 0
    (problem,) = rig.of(run, "problem")
    assert problem["kind"] == "invalid"
    assert texts(problem["candidates"]) == texts(offered)
    assert problem["nearest"] == offered[0]
    assert f"is not among the {len(offered)} that Inductor offers" in problem["text"]


def test_other_candidates_and_other_code_are_told(enforced):
    run = enforced["grown"]
    assert choice_of(run)["notes"] == ["the candidate set grew from 1 to 2; still pinned"]
    (problem,) = rig.of(run, "problem")
    assert problem["kind"] == "drift"
    assert problem["text"] == "the same config, other code"


def test_one_candidate_is_no_decision(enforced):
    assert enforced["one left"]["lines"] == []
    assert enforced["one left"]["error"] == ""


def test_torchs_deterministic_mode_does_not_silence_it(observed, enforced):
    plain, record = observed["deterministic plain"], observed["deterministic"]
    assert plain["benchmarks"] == 0  # without pinner nothing is timed, and the slow kernel runs
    assert choice_of(record)["config"] == CPP
    assert choice_of(record)["how"] == "tuned"
    assert choice_of(enforced["deterministic"])["how"] == "forced"
    for run in (record, enforced["deterministic"]):
        assert run["digest"] == observed["bmm generated"]["digest"]
        (setting,) = rig.of(run, "setting")
        assert (setting["name"], setting["value"]) == ("deterministic", False)
        assert setting["held"] == "set"
        assert "(was True)" in setting["text"]
        assert "Re-enabled by this" in setting["text"]
        assert run["deterministic"][0]  # torch's own mode stays on
