"""The parts of the room for other choosers that need no process: readings, keys, other versions."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pinner.inside.choosers.others import (
    cudnn,
    cute_dsl,
    first_use,
    flash_attention,
    flashinfer,
    helion,
    nccl,
    registry,
    sdpa,
    settings,
    transformer_engine,
)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, ...]]]:
    """What would be written: settings as (name, value, held), problems as (kind, name)."""
    lines: list[tuple[Any, ...]] = []

    def write(line: dict[str, Any], sync: bool = False) -> None:
        if line["t"] == "setting":
            lines.append((line["name"], line["value"], line["held"]))
        else:
            lines.append((line["kind"], line["kernel"]))

    monkeypatch.setattr(settings.ledger, "write", write)
    settings._written.clear()
    yield lines
    settings._written.clear()


def test_nccl_reads_a_variable_then_its_own_file_then_the_systems() -> None:
    files = ["#NCCL_BUFFSIZE=1\nNCCL_ALGO=Tree\nnothing\n", "NCCL_ALGO=Ring\nNCCL_PROTO=LL=1\n"]
    found = nccl.in_force({"NCCL_NTHREADS": "64", "OTHER": "x"}, files)
    assert found == {"NCCL_NTHREADS": "64", "NCCL_ALGO": "Tree", "NCCL_PROTO": "LL=1"}
    assert nccl.in_force({"NCCL_ALGO": "NVLS"}, files)["NCCL_ALGO"] == "NVLS"


def test_a_plugin_and_cudnns_engines_are_known_by_the_files_that_are_mapped() -> None:
    names = ["libnccl.so.2", "libnccl-ofi-tuner.so", "libnccl-net.so", "libcudnn.so.9"]
    assert nccl.tuners_among(names) == ["libnccl-ofi-tuner.so"]
    assert not cudnn.engines_among(names)
    assert cudnn.engines_among([*names, "libcudnn_engines_precompiled.so.9.10"])
    assert cudnn.engines_among(["libcudnn_cnn_infer.so.8"])


@pytest.mark.parametrize(
    ("strict", "warns", "backends", "expected"),
    [
        (True, False, ["flash", "math"], [("deterministic", True, "recorded")]),
        (True, True, ["flash", "math"], [("deterministic", False, "no")]),
        (False, False, ["flash"], [("deterministic", False, "no")]),
        (False, False, ["math"], []),
    ],
)
def test_attention_on_a_gpu_is_a_hole_unless_its_backward_adds_in_one_order(
    said: list[tuple[Any, ...]],
    strict: bool,
    warns: bool,
    backends: list[str],
    expected: list[Any],
) -> None:
    numbers = {"math": 0, "flash": 1}
    asked = {f"{name}_sdp_enabled": (lambda name=name: name in backends) for name in numbers}
    torch = SimpleNamespace(
        _C=SimpleNamespace(_get_sdp_priority_order=lambda: [1, 0, 4]),
        backends=SimpleNamespace(cuda=SimpleNamespace(**asked)),
        cuda=SimpleNamespace(is_initialized=lambda: True),
        are_deterministic_algorithms_enabled=lambda: strict,
        is_deterministic_algorithms_warn_only_enabled=lambda: warns,
    )
    sdpa.report(torch)
    assert said == [("backends", backends, "forced"), *expected]


@pytest.mark.parametrize("held", [True, False])
def test_the_flag_of_a_compiled_function_is_its_last_bool(held: bool) -> None:
    """`len` has a signature without the name, `dict` has none: both are read by place."""
    for function in (len, dict):
        read = flash_attention.reader_of(function)
        assert read((1, not held, -1, 0.0, held, None, 7), {}) is held
        assert read((1, not held), {"deterministic": held}) is held


def test_the_flag_of_a_python_function_is_found_by_name() -> None:
    def backward(q: int, causal: bool, deterministic: bool = False, last: bool = True) -> None: ...

    read = flash_attention.reader_of(backward)
    assert read((1, False, True), {}) is True
    assert read((1, True), {}) is False


def test_a_flash_attn_without_the_parameter_is_a_hole(said: list[tuple[Any, ...]]) -> None:
    old = SimpleNamespace(
        flash_attn_cuda=SimpleNamespace(bwd=lambda *args: args), flash_attn_func=lambda q, k, v: q
    )
    flash_attention.install("2", old)  # type: ignore[arg-type]
    assert old.flash_attn_cuda.bwd(1, True) == (1, True)
    assert said == [("2.deterministic", False, "no")]


def test_a_flash_attn_of_another_layout_is_named(said: list[tuple[Any, ...]]) -> None:
    flash_attention.install("2", ModuleType("flash_attn.flash_attn_interface"))
    assert said == [("bypass", "flash-attn 2")]


def test_the_tuner_of_flashinfer_is_hooked_once_where_it_is_defined() -> None:
    defined = ModuleType("flashinfer.autotuner")  # one file, before it was a package
    passed_on = ModuleType("flashinfer.autotuner")
    tuner = type(
        "AutoTuner",
        (),
        {"load_configs": len, "_profile_single_kernel": len, "__module__": "flashinfer.autotuner"},
    )
    before = tuner.__init__
    flashinfer.install(passed_on)
    defined.AutoTuner = tuner  # type: ignore[attr-defined]
    flashinfer.install(defined)
    assert tuner.__init__ is not before
    hooked = tuner.__init__
    elsewhere = ModuleType("flashinfer.autotuner.other")
    elsewhere.AutoTuner = tuner  # type: ignore[attr-defined]
    flashinfer.install(elsewhere)
    assert tuner.__init__ is hooked


def test_a_look_up_of_flashinfers_tuner_runs_the_dictionarys_own_code() -> None:
    for table in (flashinfer._Picks, flashinfer._Locked, flashinfer._FirstHits):
        for name in ("__contains__", "__getitem__", "get", "__iter__"):
            assert not any(name in vars(kind) for kind in table.__mro__[:1])


def test_what_was_loaded_never_hides_a_locked_tactic(said: list[tuple[Any, ...]]) -> None:
    table = flashinfer._Locked({}, {"('op', 'R', (), ())": ("R", (1, 2))})
    table["('op', 'R', (), ())"] = ("R", 9)
    table["other"] = ("R", 9)
    table.clear()
    assert dict(table) == {"('op', 'R', (), ())": ("R", (1, 2))}
    hits = flashinfer._FirstHits(table.wanted)
    hits.add(("op", "Another"))
    hits.add(("op", "R"))
    assert said == [("('op', 'R', (), ())", ["R", [1, 2]], "forced")]


def test_a_key_of_helions_is_the_same_text_in_every_process() -> None:
    words = ["a", "b", "c", "d"]
    texts = set()
    for _ in range(20):
        random.shuffle(words)
        texts.add(helion.text_of((frozenset(words), object(), 1, [True])))
    assert texts == {"({'a','b','c','d'},<object object>,1,(True))"}
    assert helion.text_of((1,)) != helion.text_of((True,)) != helion.text_of((1.0,))


def test_a_choice_of_cute_dsl_is_named_by_what_it_is_made_for() -> None:
    def product() -> None: ...

    def named(shape: tuple[int, ...], tiles: list[int]) -> str:
        tensor = SimpleNamespace(shape=shape, dtype="float16")
        return cute_dsl.name_of(
            product, {"tile": tiles}, SimpleNamespace(args=(tensor,), kwargs={})
        )

    assert named((64, 64), [1, 2]) == named((64, 64), [1, 2])
    assert len({named((64, 64), [1, 2]), named((64, 32), [1, 2]), named((64, 64), [1, 3])}) == 3


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ((True, "2.8.4", False, None, False, []), ["flash", "2.8.4"]),
        ((False, None, True, 1, False, []), ["fused", "1"]),
        ((False, None, False, None, True, []), ["unfused"]),
        ((False, None, False, None, False, []), ["none"]),
        ((True, False, None, False, []), ["flash", ""]),
        ((False, True, 2, False, []), ["fused", "2"]),
    ],
)
def test_transformer_engines_answer_is_read_in_both_its_forms(
    answer: tuple[Any, ...], expected: list[str]
) -> None:
    assert transformer_engine.backend_of(answer) == expected


def test_each_name_is_noticed_once_and_the_module_gets_its_class_back() -> None:
    module = ModuleType("watched")
    module.one, module.two, module.other = 1, 2, 3  # type: ignore[attr-defined]
    seen: list[tuple[str, str]] = []
    wanted = {"here": False}

    def look(name: str, by: str) -> bool:
        seen.append((name, by))
        return wanted["here"]

    first_use.watch(module, ["one", "two", "missing"], look)
    assert (module.other, module.one, type(module) is ModuleType) == (3, 1, False)
    wanted["here"] = True
    assert (module.one, module.one, module.two, module.two) == (1, 1, 2, 2)
    assert [name for name, _ in seen] == ["one", "one", "two"]
    assert {by for _, by in seen} == {__name__}
    assert type(module) is ModuleType


def test_two_watches_of_one_module_end_each_for_itself() -> None:
    module = ModuleType("watched")
    module.one, module.two = 1, 2  # type: ignore[attr-defined]
    seen: list[str] = []
    for name in random.sample(["one", "two"], 2):
        first_use.watch(module, [name], lambda found, by: seen.append(found) is None)
    order = random.sample(["one", "two"], 2)
    for name in order * 2:
        getattr(module, name)
    assert seen == order
    assert type(module) is ModuleType


def test_a_setting_is_written_again_only_when_it_changed(said: list[tuple[Any, ...]]) -> None:
    for value in (1, 1, True, True, 1):
        settings.report("x", "y", value, "recorded")
    assert said == [("y", 1, "recorded"), ("y", True, "recorded"), ("y", 1, "recorded")]


def test_a_value_without_a_text_is_a_hole_and_not_a_fault(said: list[tuple[Any, ...]]) -> None:
    settings.report("x", "y", object(), "forced")
    assert said == [("y", "object", "no")]


def test_every_hook_names_a_function_of_this_room() -> None:
    for _module, file, function, _given in registry.HOOKS:
        assert callable(getattr(registry._file(file), function))
