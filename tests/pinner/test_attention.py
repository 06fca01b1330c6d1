"""Attention: how each backend is classified, and flash-attn's functions bound or refused.

The stand-ins have the signatures of flash-attn 2.8.4 and 2.3.6 (the last before `deterministic`,
in tests/fakes/flash_attn_without); flash-attn 3 as in 2.8.4, hopper/.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pinner.inside import attention as inside
from pinner.inside import flash_binding
from pinner.inside.policy import PREFIX, rules_of_lock
from pinner.policy import attention
from pinner.policy.profiles import load
from tests.others_rig import PACKAGES, Run, run_each
from tests.session_rig import REPO

WITHOUT = PACKAGES.parent / "flash_attn_without"
RULES = [rule.as_json() for rule in load("deterministic").rules if not rule.phantom]
TAKING = "def flash_attn_func(q, k, v, *, deterministic=False): ..."

PROGRAMS = {
    "unsaid": """
import flash_attn, flash_attn_2_cuda, inspect
from flash_attn.flash_attn_interface import flash_attn_with_kvcache
flash_attn.flash_attn_func(1, 2, 3, causal=True)
flash_attn.flash_attn_varlen_func(1, 2, 3, 4, 5, 6, 7)
note([held for _, held in flash_attn_2_cuda.calls])
note(str(inspect.signature(flash_attn.flash_attn_func)))
note(flash_attn.flash_attn_func.__wrapped__.__name__)
note([hasattr(flash_attn_with_kvcache, "__wrapped__"), flash_attn_with_kvcache(1, 2, 3)])
""",
    "said": """
import flash_attn, flash_attn_2_cuda, torch
flash_attn.flash_attn_func(1, 2, 3, deterministic=True)
with torch.no_grad():
    flash_attn.flash_attn_func(1, 2, 3, deterministic=False)
note([held for _, held in flash_attn_2_cuda.calls])
""",
    "said no": """
import flash_attn, flash_attn_2_cuda
flash_attn.flash_attn_func(1, 2, 3, deterministic=False)
flash_attn.flash_attn_varlen_func(1, 2, 3, 4, 5, 6, 7, .0, None, False, (-1, -1), .0, None, False)
note([held for _, held in flash_attn_2_cuda.calls])
""",
    "version 3": """
import flash_attn_interface
flash_attn_interface.flash_attn_func(1, 2, 3)
""",
    "without": """
import sys
sys.path.insert(0, WITHOUT)
import flash_attn
note("imported")
""",
}


class TestClasses:
    def test_each_backend_has_a_class_a_reason_and_a_source(self) -> None:
        assert {each.verdict for each in attention.BACKENDS} == set(attention.VERDICTS)
        for each in attention.BACKENDS:
            assert each.reason
            assert each.source
            assert bool(each.switch) == (each.verdict == "by a switch")
        names = [each.name for each in attention.BACKENDS]
        assert len(set(names)) == len(names)

    def test_the_table_for_people_has_every_class(self) -> None:
        lines = (REPO / "docs" / "doctor.md").read_text().splitlines()
        for each in attention.BACKENDS:
            (row,) = (line for line in lines if line.startswith(f"| {each.name} | "))
            assert row.startswith(f"| {each.name} | {each.verdict}")
            assert f"| {each.reason} | {each.source} |" in row

    def test_the_backends_of_sdpa_are_those_of_torch(self) -> None:
        named = {each.name.removeprefix("SDPA ").lower() for each in attention.BACKENDS}
        assert {"math", "flash", "mem_efficient", "cudnn"} <= named

    def test_a_backend_that_takes_it_is_deterministic_by_a_switch(self) -> None:
        found = attention.flash("flash-attn 2", {"flash_attn_func": True, "flash_attn_x": False})
        assert (found.verdict, found.switch) == ("by a switch", "deterministic=True")

    def test_one_that_does_not_is_named_with_its_functions(self) -> None:
        found = attention.flash("flash-attn 3", {"flash_attn_func": False, "flash_attn_b": False})
        assert found.verdict == "not"
        assert found.reason.endswith("takes `deterministic`: flash_attn_b, flash_attn_func")

    def test_one_that_cannot_be_read_is_unknown(self) -> None:
        assert attention.flash("flash-attn 4", {}).verdict == "unknown"

    @pytest.mark.parametrize(
        ("source", "found"),
        [
            (TAKING, {"flash_attn_func": True}),
            (TAKING.replace("*, ", "*rest, "), {"flash_attn_func": True}),
            ("def flash_attn_func(q, **deterministic): ...", {"flash_attn_func": False}),
            ("class A:\n def flash_attn_func(q, deterministic): ...", {}),
            ("def _flash_attn_func(q, deterministic): ...\nflash_attn_func = 1", {}),
        ],
    )
    def test_the_functions_of_a_source(self, source: str, found: Mapping[str, bool]) -> None:
        assert inside.functions_of(source) == found

    def test_installed_ones_are_found_without_an_import(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        assert "flash-attn 2" not in inside.installed()
        monkeypatch.syspath_prepend(str(PACKAGES))
        found = inside.installed()
        assert found["flash-attn 2"] == {
            "flash_attn_func": True,
            "flash_attn_varlen_func": True,
            "flash_attn_with_kvcache": False,
        }
        assert found["flash-attn 3"] == {"flash_attn_func": True}
        monkeypatch.syspath_prepend(str(WITHOUT))
        assert set(inside.installed()["flash-attn 2"].values()) == {False}
        (tmp_path / "flash_attn_interface.py").write_text("def broken(:")
        monkeypatch.syspath_prepend(str(tmp_path))
        assert inside.installed()["flash-attn 3"] == {}


class TestWhenItIsBound:
    @pytest.mark.parametrize(
        ("rules", "value", "bound"),
        [(RULES, "1", True), (RULES, "0", False), (RULES, None, False), ([], "1", False)],
    )
    def test_where_a_rule_holds_the_variable_at_one(
        self, rules: list[dict[str, Any]], value: str | None, bound: bool
    ) -> None:
        environ = {} if value is None else {flash_binding.VARIABLE: value}
        assert flash_binding.wanted(rules, environ) is bound

    def test_under_a_lock_as_when_recording(self) -> None:
        rules = rules_of_lock({f"{PREFIX}env:{flash_binding.VARIABLE}": "1"})
        assert flash_binding.wanted(rules, {flash_binding.VARIABLE: "1"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("attention") / "session"


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[str, Run]:
    return run_each(
        folder,
        PROGRAMS,
        names={"WITHOUT": str(WITHOUT)},
        policy={"profile": "deterministic", "role": None, "rules": RULES, "told": True},
        expect_failures=["without"],
        PYTHONHASHSEED="0",
    )


class TestInProcesses:
    """All programs in forks of one process, under the profile `deterministic`."""

    @staticmethod
    def rows(run: Run) -> dict[str, Any]:
        return run.rows("flash_attention")

    @staticmethod
    def invalid(run: Run) -> set[str]:
        return {line["kernel"] for line in run.problems("invalid")}

    def test_what_is_not_said_is_true_and_the_rest_is_left_alone(
        self, runs: dict[str, Run]
    ) -> None:
        run = runs["unsaid"]
        held, signature, name, kvcache = run.notes
        assert (run.code, held, name) == (0, [True, True], "flash_attn_func")
        assert signature == (
            "(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), "
            "softcap=0.0, alibi_slopes=None, deterministic=True, return_attn_probs=False)"
        )
        assert kvcache == [False, 1]
        assert self.rows(run) == {
            "flash-attn 2 bound": (["flash_attn_func", "flash_attn_varlen_func"], "recorded"),
            "2.deterministic": (True, "recorded"),
        }
        assert self.invalid(run) == set()

    def test_what_is_said_stays_and_no_gradient_needs_no_order(self, runs: dict[str, Run]) -> None:
        run = runs["said"]
        assert (run.code, run.notes, self.invalid(run)) == (0, [[True, False]], set())

    def test_false_is_not_flipped_but_refused_by_the_profile(self, runs: dict[str, Run]) -> None:
        run = runs["said no"]
        assert (run.code, run.notes) == (0, [[False, False]])
        assert self.invalid(run) == {"flash_attn_func", "flash_attn_varlen_func"}
        assert self.rows(run)["2.deterministic"] == (False, "no")
        (text, _) = (line["text"] for line in run.problems())
        assert "deterministic=False" in text
        assert {line["chooser"] for line in run.problems()} == {"profile"}

    def test_version_3(self, runs: dict[str, Run]) -> None:
        run = runs["version 3"]
        assert (run.code, self.rows(run)["3.deterministic"]) == (0, (True, "recorded"))
        assert self.rows(run)["flash-attn 3 bound"] == (["flash_attn_func"], "recorded")

    def test_one_that_cannot_ends_the_process_and_is_named(
        self, runs: dict[str, Run], folder: Path
    ) -> None:
        run = runs["without"]
        assert (run.code, run.notes) == (96, [])
        (fault,) = (folder / "faults").iterdir()
        text = fault.read_text()
        assert "flash-attn 2 cannot be held" in text
        assert "flash_attn_func, flash_attn_varlen_func" in text
