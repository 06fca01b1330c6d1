"""A lock forces every config it can name, without a benchmark, and refuses what it cannot."""

from __future__ import annotations

import gc
import sys

import pytest
import torch

from pinner.inside.faults import InvalidPin, MissedPin
from tests import triton_rig as rig
from tests.fakes import timers

X = rig.numbers()
OLD_TRITON = rig.VERSION < (3, 8)


def never(kernel_call, quantiles):
    raise AssertionError("a forced decision was benchmarked")


def run(kernel, *args, out=None, **kwargs):
    out = torch.zeros(4) if out is None else out
    kernel[(1,)](X, out, *args, **kwargs)
    return rig.bits(out)


def recorded(*calls):
    """Pins of one observed run. calls: functions of the kernels' module."""
    with rig.observing() as observed:
        module = rig.fresh_kernels()
        rig.use_benchmark(module, timers.shuffled(3))
        for call in calls:
            call(module)
        return rig.pins_of(observed.lines)


def total_of(module):
    return run(module.total, 4096)


def locked_to(pins, block, kernel="total"):
    (entry,) = pins["tests.workloads.kernels:" + kernel]["entries"]
    entry["config"] = dict(entry["config"], BLOCK=block)
    return pins


def test_every_alternative_can_be_forced_and_nothing_is_benchmarked():
    direct = {}
    plain = rig.fresh_kernels()
    for block in plain.BLOCKS:
        out = torch.zeros(4)
        plain.total.fn[(1,)](X, out, 4096, BLOCK=block, num_warps=4, num_stages=3)
        direct[block] = rig.bits(out)
    assert len(set(direct.values())) > 1, "the configs of this kernel must differ in bits"
    pins = recorded(total_of)
    for block in plain.BLOCKS:
        with rig.enforcing(locked_to(pins, block)) as rigged:
            module = rig.fresh_kernels()
            rig.use_benchmark(module, never)
            assert total_of(module) == direct[block]
            assert total_of(module) == direct[block]
            (choice,) = rigged.choices()
            assert (choice["how"], choice["config"]["BLOCK"]) == ("forced", block)


@pytest.mark.parametrize("seed", range(5))
def test_adverse_timings_never_move_a_forced_choice(seed):
    pins = recorded(total_of)
    (entry,) = pins["tests.workloads.kernels:total"]["entries"]
    for benchmark in (timers.shuffled(seed), timers.inverted(), timers.near_tie(seed)):
        with rig.enforcing(pins) as rigged:
            module = rig.fresh_kernels()
            counted = timers.Counted(benchmark)
            rig.use_benchmark(module, counted)
            total_of(module)
            assert counted.calls == 0
            assert rigged.choices()[0]["config"] == entry["config"]


def test_a_near_tie_moves_the_winner_of_recordings_but_not_of_enforced_runs():
    winners = set()
    for seed in range(20):
        with rig.observing() as observed:
            module = rig.fresh_kernels()
            rig.use_benchmark(module, timers.near_tie(seed))
            total_of(module)
            winners.add(observed.choices()[0]["config"]["BLOCK"])
        if len(winners) > 1:
            break
    assert len(winners) > 1
    pins = recorded(total_of)
    digests = set()
    for seed in range(20):
        with rig.enforcing(pins):
            module = rig.fresh_kernels()
            rig.use_benchmark(module, timers.near_tie(seed))
            digests.add(total_of(module))
    assert len(digests) == 1


def events_of(call):
    """The `sys.setprofile` events of a call: what runs, in order."""
    events = []

    def note(frame, event, argument):
        name = getattr(argument, "__qualname__", "") if event.startswith("c_") else ""
        events.append(
            (event, frame.f_code.co_filename, frame.f_code.co_qualname, name)
            if hasattr(frame.f_code, "co_qualname")
            else (event, frame.f_code.co_filename, frame.f_code.co_name, name)
        )

    gc.disable()  # callbacks of the collector come when they like
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
        gc.enable()
    return events


@pytest.mark.parametrize("name", ["total", "several_keys", "only_one", "pruned_to_one", "any_key"])
def test_a_decided_call_runs_the_same_frames_as_without_pinner(name):
    arguments = {
        "total": (1024,),
        "several_keys": (64, 1),
        "only_one": (1024,),
        "pruned_to_one": (1024,),
        "any_key": (64, True),
    }[name]

    def decided_events(module):
        kernel = getattr(module, name)
        out = torch.zeros(4)
        for _ in range(2):
            kernel[(1,)](X, out, *arguments)
        return events_of(lambda: kernel[(1,)](X, out, *arguments))

    plain = rig.fresh_kernels()
    rig.use_benchmark(plain, timers.shuffled(3))
    expected = decided_events(plain)
    pins = recorded(lambda module: run(getattr(module, name), *arguments))
    with rig.observing():
        module = rig.fresh_kernels()
        rig.use_benchmark(module, timers.shuffled(3))
        assert decided_events(module) == expected
    with rig.enforcing(pins):
        module = rig.fresh_kernels()
        assert decided_events(module) == expected


def test_a_config_that_is_gone_is_refused_and_never_launched():
    pins = locked_to(recorded(total_of), 512)
    with rig.enforcing(pins) as rigged:
        module = rig.fresh_kernels()
        out = torch.zeros(4)
        with pytest.raises(InvalidPin) as refused:
            module.total[(1,)](X, out, 4096)
        assert rig.bits(out) == rig.bits(torch.zeros(4))
        assert "not among the 5 that the tuner offers" in str(refused.value)
        (problem,) = rigged.of("problem", kind="invalid")
        assert len(problem["candidates"]) == 5
        assert problem["config"]["BLOCK"] == 512
        assert problem["nearest"]["BLOCK"] in rig.fresh_kernels().BLOCKS


def test_what_cannot_be_forced_is_found_when_the_module_is_imported():
    pins = locked_to(recorded(total_of), 512)
    with rig.enforcing(pins) as rigged:
        rig.fresh_kernels()
        with pytest.raises(InvalidPin, match="total"):
            rigged.chooser.check_module("tests.workloads.kernels")


def test_changed_source_is_refused_when_the_module_is_imported(tmp_path):
    pins = recorded(total_of)
    text = rig.KERNELS.read_text(encoding="utf-8")
    changed = tmp_path / "kernels.py"
    changed.write_text(text.replace("other=0.0", "other=1.0"), encoding="utf-8")
    with rig.enforcing(pins) as rigged:
        rig.fresh_kernels(changed)
        with pytest.raises(InvalidPin, match="source has changed"):
            rigged.chooser.check_module("tests.workloads.kernels")


def test_lines_and_comments_do_not_break_a_pin(tmp_path):
    pins = recorded(total_of)
    text = rig.KERNELS.read_text(encoding="utf-8")
    moved = tmp_path / "kernels.py"
    moved.write_text(
        "# a comment\n\n\n"
        + text.replace("    accumulator = 0.0\n", "    # here\n    accumulator = 0.0\n"),
        encoding="utf-8",
    )
    with rig.enforcing(pins) as rigged:
        module = rig.fresh_kernels(moved)
        rig.use_benchmark(module, never)
        rigged.chooser.check_module("tests.workloads.kernels")
        total_of(module)
        assert rigged.choices()[0]["how"] == "forced"


def test_one_more_config_is_still_pinned_with_a_note():
    pins = recorded(total_of)
    with rig.enforcing(pins) as rigged:
        module = rig.fresh_kernels()
        module.total.configs = module.total.configs + module.configs((512,))
        rig.use_benchmark(module, never)
        total_of(module)
        (choice,) = rigged.choices()
        assert choice["notes"] == ["the candidate set grew from 5 to 6; still pinned"]


def test_the_live_object_is_used_with_its_hook():
    log = []
    pins = recorded(total_of)
    (entry,) = pins["tests.workloads.kernels:total"]["entries"]
    with rig.enforcing(pins):
        module = rig.fresh_kernels()
        for config in module.total.configs:
            config.pre_hook = module.hook_named(config.kwargs["BLOCK"], log)
        total_of(module)
    assert log == [entry["config"]["BLOCK"]]


@pytest.mark.parametrize("name", ["resets", "accumulates"])
def test_the_first_forced_call_equals_every_later_one(name):
    pins = recorded(lambda module: run(getattr(module, name), 4096))
    with rig.enforcing(pins) as rigged:
        module = rig.fresh_kernels()
        rig.use_benchmark(module, never)
        results = [run(getattr(module, name), 4096, out=torch.full((4,), 5.0)) for _ in range(3)]
        assert len(set(results)) == 1
        notes = rigged.choices()[0].get("notes", [])
        assert any("'out_ptr'" in note for note in notes) == (name == "resets")


@pytest.mark.skipif(not OLD_TRITON, reason="Triton 3.8 and later skip it themselves")
def test_old_tritons_neither_bench_nor_reset_a_forced_call():
    pins = recorded(lambda module: run(module.resets, 4096))
    with rig.enforcing(pins):
        module = rig.fresh_kernels()
        rig.use_benchmark(module, never)
        out = torch.full((4,), 5.0)
        hook = module.resets.pre_hook
        module.resets[(1,)](X, out, 4096)
        assert float(out[0]) != float(X.sum())
        assert module.resets.pre_hook is hook


def test_recorded_with_one_call_order_enforced_with_another():
    def calls(module):
        return [
            lambda: run(module.omitted, n=128),
            lambda: run(module.omitted, m=128),
            lambda: run(module.any_key, 4096, True),
            lambda: run(module.any_key, 4096, 1),
            lambda: run(module.total, 1000),
        ]

    with rig.observing() as observed:
        module = rig.fresh_kernels()
        rig.use_benchmark(module, timers.shuffled(11))
        for call in calls(module):
            call()
        pins = rig.pins_of(observed.lines)
        results = [call() for call in calls(module)]
    with rig.enforcing(pins) as rigged:
        module = rig.fresh_kernels()
        rig.use_benchmark(module, never)
        again = [call() for call in reversed(calls(module))]
        assert again[::-1] == results
        assert {c["how"] for c in rigged.choices()} == {"forced"}


def test_colliding_keys_locked_to_different_configs_stay_apart_in_any_order():
    pins = recorded(
        lambda module: run(module.omitted, n=128), lambda module: run(module.omitted, m=128)
    )
    first, second = pins["tests.workloads.kernels:omitted"]["entries"]
    first["config"] = dict(first["config"], BLOCK=16)
    second["config"] = dict(second["config"], BLOCK=256)
    with rig.enforcing(pins) as rigged:
        module = rig.fresh_kernels()
        rig.use_benchmark(module, never)
        results = [run(module.omitted, **kw) for kw in ({"n": 128}, {"m": 128}) * 3]
        assert [c["config"]["BLOCK"] for c in rigged.choices()] == [16, 256]
    assert len(set(results)) == 2


@pytest.mark.parametrize("on_miss", ["fallback", "error", "tune"])
def test_a_key_that_is_not_in_the_lock(on_miss):
    pins = locked_to(recorded(total_of), 128)
    pins["tests.workloads.kernels:total"]["fallback"] = [
        {"BLOCK": 128, "num_warps": 4, "num_stages": 3}
    ]
    with rig.enforcing(pins, on_miss) as rigged:
        module = rig.fresh_kernels()
        counted = timers.Counted(timers.shuffled(0))
        rig.use_benchmark(module, counted)
        if on_miss == "error":
            with pytest.raises(MissedPin, match="on-miss"):
                run(module.total, 1000)
            assert rigged.choices() == []
            assert len(rigged.of("problem", kind="missed")) == 1
            return
        run(module.total, 1000)
        (choice,) = rigged.choices()
        if on_miss == "fallback":
            assert (choice["how"], choice["config"]["BLOCK"]) == ("fallback", 128)
            assert counted.calls == 0
        else:
            assert choice["how"] == "missed"
            assert counted.calls == 5


def test_a_kernel_left_with_one_config_that_is_not_the_locked_one_is_refused():
    pins = locked_to(recorded(total_of), 32)
    with rig.enforcing(pins):
        module = rig.fresh_kernels()
        kernel = module.autotuned_again(module.total, (16,))
        with pytest.raises(InvalidPin):
            run(kernel, 4096)


def test_a_subclass_that_prunes_in_its_own_way_is_asked_once():
    from triton.runtime import autotuner

    class Own(autotuner.Autotuner):
        def prune_configs(self, kwargs):
            return list(reversed(super().prune_configs(kwargs)))

    def make(module):
        total = module.total
        return Own(total.fn, total.arg_names, total.configs, ["n"], None, None, do_bench=never)

    pins = recorded(total_of)
    (entry,) = pins["tests.workloads.kernels:total"]["entries"]
    with rig.enforcing(pins) as rigged:
        kernel = make(rig.fresh_kernels())
        run(kernel, 4096)
        (choice,) = rigged.choices()
        assert choice["config"] == entry["config"]


def own_kind(module):
    """An autotuner that decides by a `run` of its own, as FlagGems' does."""
    from triton.runtime import autotuner

    class Own(autotuner.Autotuner):
        def run(self, *args, **kwargs):
            self.nargs = dict(zip(self.arg_names, args, strict=False))
            config = self.prune_configs(kwargs)[-1]
            return self.fn.run(*args, **kwargs, **config.all_kwargs())

    total = module.total
    return Own(total.fn, total.arg_names, total.configs, ["n"], None, None, do_bench=never)


def test_a_tuner_that_runs_in_its_own_way_is_named_and_left_alone():
    pins = recorded(total_of)
    with rig.observing() as observed:
        unpinned = run(own_kind(rig.fresh_kernels()), 4096)
        (problem,) = observed.of("problem", kind="elsewhere")
        assert "Own, which is derived from Triton's autotuner" in problem["text"]
    with rig.enforcing(pins) as rigged:
        assert run(own_kind(rig.fresh_kernels()), 4096) == unpinned
        assert rigged.choices() == []
        assert len(rigged.of("problem", kind="elsewhere")) == 1


def test_a_tuner_that_another_room_holds_is_not_named(monkeypatch):
    from pinner.inside.choosers import own_tuners

    monkeypatch.setattr(own_tuners, "_held", {__name__.partition(".")[0]})
    with rig.observing() as observed:
        run(own_kind(rig.fresh_kernels()), 4096)
        assert observed.lines == []


def test_a_benchmark_that_somebody_calls_by_hand_still_measures():
    pins = recorded(total_of)
    with rig.enforcing(pins):
        module = rig.fresh_kernels()
        total_of(module)
        rig.use_benchmark(module, lambda call, quantiles: [7.0, 7.0, 7.0])
        module.total.nargs = {}
        config = module.total.configs[0]
        assert module.total._bench(X, torch.zeros(4), 4096, config=config, grid=(1,))[0] == 7.0


def test_the_interpreter_gets_a_wall_clock_where_there_is_no_device():
    with rig.observing() as observed:
        module = rig.fresh_kernels()
        run(module.total, 256)
        (choice,) = observed.choices()
        assert choice["how"] == "tuned"
        assert all(figure > 0 for _, figure in choice["timings"])
