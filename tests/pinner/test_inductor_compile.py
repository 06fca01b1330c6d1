"""Around Inductor's choices: compile caches, timed switches, padding, backward graphs."""

from __future__ import annotations

import pytest

from tests import inductor_rig as rig

CPP = {"backend": "cpp", "template": "cpp_CppMicroGemmFP32Vec"}

# One process runs what a fixture here runs for many tests.
pytestmark = pytest.mark.xdist_group("inductor-compile")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("compile")


@pytest.fixture(scope="module")
def observed(folder):
    """Runs without a lock, by name, in this order: a cache passes from one to the next."""
    shared = {"work": "bmm", "mode": "observe", "cache": str(folder / "shared")}
    switched = {
        "options": {"benchmark_combo_kernel": True, "triton.multi_kernel": 1},
        "compile_options": {"benchmark_fusion": True},
        "job_id": "a job",
        "tag": "mine",
    }
    scenarios = {
        "plain": {**shared, "mode": "plain", "timer": "generated"},
        "first": {**shared, "timer": "extern", "run": "one"},
        "second rank": {**shared, "timer": "generated", "run": "one"},
        "other run": {**shared, "timer": "generated", "run": "two"},
        "generated": {"work": "bmm", "mode": "observe", "timer": "generated"},
        "extern": {"work": "bmm", "mode": "observe", "timer": "extern"},
        "switched": {"work": "bmm", "mode": "observe", "timer": "generated", **switched},
        "trained": {
            "work": "trained",
            "mode": "observe",
            "timer": "generated",
            "deterministic": True,
        },
    }
    for name, wins in (("padded", True), ("as it is", False), ("padding again", False)):
        cache = str(folder / ("pads" if name != "as it is" else "no_pads"))
        scenarios[name] = {"work": "padded", "mode": "observe", "padding": wins, "cache": cache}
    return rig.run_named(folder, scenarios)


@pytest.fixture(scope="module")
def enforced(folder, observed):
    """Runs under locks, by name, in this order: a cache passes from one to the next."""
    cpp, extern = (rig.pins_of(observed[name]["lines"]) for name in ("generated", "extern"))
    shared = {"work": "bmm", "mode": "enforce", "timer": "generated", "cache": folder / "warm"}
    shared["cache"] = str(shared["cache"])
    forged = {**extern, "inductor_digest": cpp["inductor_digest"]}
    foreign = observed_tag(cpp)
    other = str(folder / "foreign")
    pads = {name: rig.pins_of(observed[name]["lines"]) for name in ("padded", "as it is")}
    common = {"work": "padded", "mode": "enforce", "cache": str(folder / "pads")}
    scenarios = {
        "cold": {**shared, "pins": cpp},
        "warm": {**shared, "pins": cpp},
        "warm, other lock": {**shared, "pins": extern},
        "warm, forged": {**shared, "pins": forged},
        "missed": {**shared, "pins": rig.sealed({})},
        "missed again": {**shared, "pins": rig.sealed({})},
        "missed, an error": {**shared, "pins": rig.sealed({}), "on_miss": "error"},
        "fill": {**shared, "mode": "plain", "cache": other, "tag": foreign},
        "filled without pinner": {**shared, "cache": other, "pins": cpp},
        "switched": {
            **shared,
            "pins": cpp,
            "cache": None,
            "options": {"triton.multi_kernel": 1},
            "compile_options": {"benchmark_fusion": True},
        },
        "padded": {**common, "pins": pads["padded"], "padding": False},
        "as it is": {**common, "pins": pads["as it is"], "padding": True},
        "padding missed": {**common, "pins": rig.sealed({}), "padding": True},
    }
    return rig.run_named(folder, scenarios)


def observed_tag(pins):
    """The tag of a session that enforces these pins, asked of the code itself."""
    from types import SimpleNamespace

    from pinner.inside.choosers.inductor import caches

    active = SimpleNamespace(mode="enforce", enforcing=True, on_miss="fallback")
    return caches.tag_of(active, pins["inductor_digest"])


def choice_of(result):
    (choice,) = rig.of(result, "choice")
    return choice


def test_a_cache_of_another_run_makes_no_decision_for_an_observed_one(observed):
    """What Inductor timed in an earlier run counts on: it keeps these figures on the disk."""
    assert observed["plain"]["digest"] == observed["generated"]["digest"]
    for name in ("first", "other run"):
        choice = choice_of(observed[name])
        assert choice["how"] == "disk"
        assert choice["config"] == CPP
        assert len(choice["timings"]) == 2
        assert observed[name]["cache_hits"] == 0


def test_processes_of_one_observed_run_share_their_graphs(observed):
    choice = choice_of(observed["second rank"])
    assert choice["how"] == "cached"
    assert choice["config"] == CPP
    assert observed["second rank"]["cache_hits"] == 1
    assert choice["key"] == choice_of(observed["first"])["key"]
    assert observed["second rank"]["digest"] == observed["first"]["digest"]


def test_a_warm_cache_is_counted_and_cannot_bypass_the_lock(observed, enforced):
    cold, warm, other = (enforced[name] for name in ("cold", "warm", "warm, other lock"))
    assert choice_of(cold)["how"] == "forced"
    assert cold["cache_hits"] == 0
    assert choice_of(warm)["how"] == "cached"
    assert warm["cache_hits"] == 1
    same = ("kernel", "source", "key", "config", "alternatives")
    assert [choice_of(warm)[name] for name in same] == [choice_of(cold)[name] for name in same]
    assert warm["digest"] == cold["digest"] == observed["generated"]["digest"]
    assert choice_of(other)["how"] == "forced"
    assert other["digest"] == observed["extern"]["digest"]


def test_a_cached_choice_that_is_not_the_locks_is_named(enforced):
    (problem,) = rig.of(enforced["warm, forged"], "problem")
    assert problem["kind"] == "bypass"
    assert problem["config"] == CPP
    assert rig.of(enforced["warm, forged"], "choice") == []


def test_a_warm_miss_is_a_fallback_again_and_still_an_error_where_asked(enforced):
    """The graph's key holds the lock: by its rule the cached decision was made."""
    assert choice_of(enforced["missed"])["how"] == "fallback"
    assert enforced["missed again"]["cache_hits"] == 1
    assert choice_of(enforced["missed again"])["how"] == "fallback"
    assert "MissedPin" in enforced["missed, an error"]["error"]


def test_a_graph_that_was_cached_without_pinner_is_named(enforced):
    result = enforced["filled without pinner"]
    assert result["cache_hits"] == 1
    (problem,) = rig.of(result, "problem")
    assert problem["kind"] == "elsewhere"
    assert "filled without pinner" in problem["text"]


def test_the_users_own_tag_stays(observed):
    users, _, own = observed["switched"]["tag"].partition("+")
    assert users == "mine"
    assert own.startswith("pinner-")


def test_switches_that_time_are_off_in_both_phases_and_said(observed, enforced):
    settings = {line["name"]: line for line in rig.of(observed["switched"], "setting")}
    assert {name: line["value"] for name, line in settings.items()} == {
        "benchmark_combo_kernel": False,
        "benchmark_fusion": False,
        "dynamo.pgo": False,
        "triton.multi_kernel": 0,
    }
    assert {line["held"] for line in settings.values()} == {"set"}
    assert "(was True)" in settings["benchmark_fusion"]["text"]
    again = {line["name"]: line for line in rig.of(enforced["switched"], "setting")}
    assert sorted(again) == ["benchmark_fusion", "triton.multi_kernel"]
    for name, line in again.items():
        assert line == settings[name]


def test_nothing_is_said_about_switches_that_were_off(observed):
    assert rig.of(observed["generated"], "setting") == []


def test_backward_graphs_decide_in_deterministic_mode_too(observed):
    choices = rig.of(observed["trained"], "choice")
    assert [choice["config"] for choice in choices] == [CPP, CPP]
    assert len({str(choice["key"]) for choice in choices}) == 2


def test_padding_is_recorded_and_forced_without_timing(observed, enforced):
    for name, pad in (("padded", True), ("as it is", False)):
        choice = choice_of(observed[name])
        assert choice["kernel"] == "pad_mm:mm"
        assert choice["how"] == "tuned"
        assert choice["config"] == {"pad": pad}
        assert choice["key"]["mat1_size"] == [33, 257]
        forced = enforced[name]
        assert forced["benchmarks"] == 0
        assert choice_of(forced)["how"] == "forced"
        assert forced["kernels"] == observed[name]["kernels"]
    assert observed["padded"]["kernels"] > observed["as it is"]["kernels"]


def test_padding_that_a_cache_of_timings_decided_is_said_so(observed):
    assert choice_of(observed["padding again"])["how"] == "cached"


def test_padding_that_no_lock_knows_is_left_out(observed, enforced):
    result = enforced["padding missed"]
    assert choice_of(result)["how"] == "fallback"
    assert choice_of(result)["config"] == {"pad": False}
    assert result["kernels"] == observed["as it is"]["kernels"]
