"""What cuBLASLt answers is recorded and forced, call by call, under a stand-in that misbehaves."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from pinner.inside.choosers.cublaslt import fields, table
from tests.fakes.cublaslt_stand_in import Rig, entries
from tests.session_rig import Line

ONE = "l = load()\nshow(gemm(l))\n"
THREE = "l = load()\nfor m in (3, 5, 8): show(gemm(l, m=m))\n"
SEVERAL = "l = load()\nshow(gemm(l, requested=8, use=SMALLEST_ID))\n"
NOT_SUPPORTED, EXECUTION_FAILED = 15, 13
ALTERNATIVES = 6


def recorded(folder: Path, code: str = ONE, behaviour: str = "") -> tuple[list[Line], list[Any]]:
    """The choices of one observed run of `code`, and what it showed."""
    rig = Rig(folder)
    shown = rig.calls(code, behaviour)
    return rig.choices(), shown


def enforcing(folder: Path, choices: list[Line], **settings: Any) -> Rig:
    """A session that enforces these choices."""
    rig = Rig(folder, **settings)
    rig.enforce_choices(choices)
    return rig


def hows(rig: Rig) -> list[str]:
    return [line["how"] for line in rig.choices()]


class TestRecording:
    def test_a_question_and_its_answer_are_one_choice(self, tmp_path: Path) -> None:
        (choice,), ((shown,),) = recorded(tmp_path, behaviour="pick=3")
        assert choice["config"]["blob"] == shown["algo"]
        assert choice["how"] == "heuristic"
        assert {name: choice["config"][name] for name in ("id", "splitk", "stages")} == {
            "id": 63,
            "splitk": 4,
            "stages": 35,
        }

    def matrix(self, name: str, rows: int, cols: int) -> dict[str, Any]:
        sizes = {"type": "R_32F", "rows": rows, "cols": cols, "ld": rows}
        return {f"{name}_{field}": value for field, value in sizes.items()}

    def test_the_key_holds_what_was_asked(self, tmp_path: Path) -> None:
        code = "l = load()\ngemm(l, m=3, n=5, k=7, transa=1, align=16, bias=0x1230, workspace=777)"
        (choice,), _ = recorded(tmp_path, code)
        assert choice["key"] == {
            "cublaslt": 130200,
            "compute": "32F",
            "scale": "R_32F",
            "transa": "T",
            "transb": "N",
            **self.matrix("a", 7, 3),
            **self.matrix("b", 7, 5),
            **self.matrix("c", 3, 5),
            "bias_align": 16,
            "workspace": 777,
            **{f"{matrix}_align": 16 for matrix in "abcd"},
        }

    @pytest.mark.parametrize(
        "other", ["m=9", "workspace=4096", "align=16", "bias=0x10", "transa=1", "k=65"]
    )
    def test_another_question_is_another_choice(self, tmp_path: Path, other: str) -> None:
        choices, _ = recorded(tmp_path, f"l = load()\ngemm(l)\ngemm(l, {other})\ngemm(l)")
        assert len({str(line["key"]) for line in choices}) == 2 == len(choices)

    def test_a_pick_that_changes_within_a_process_is_seen(self, tmp_path: Path) -> None:
        code = "import os\nl = load()\ngemm(l)\nsetenv(b'FAKE_CUBLASLT', b'pick=2')\ngemm(l)"
        code = "import ctypes\nsetenv = lambda a, b: ctypes.CDLL(None).setenv(a, b, 1)\n" + code
        choices, _ = recorded(tmp_path, code)
        assert [line["config"]["id"] for line in choices] == [60, 62]

    def test_of_several_answers_the_used_one_is_the_choice(self, tmp_path: Path) -> None:
        (choice,), ((shown,),) = recorded(tmp_path, SEVERAL, "pick=4")
        assert shown["returned"] == ALTERNATIVES == choice["alternatives"]
        assert (choice["config"]["id"], choice["config"]["blob"]) == (60, shown["algo"])
        assert choice["config"]["workspace"] == 0, "what it needs, not what it was given"

    def test_answers_that_nobody_used_are_no_choice(self, tmp_path: Path) -> None:
        rig = Rig(tmp_path)
        rig.calls("gemm(load(), requested=8, use=ASK_ONLY)")
        assert rig.choices() == []
        assert rig.problems() == {"note": ["6 algorithms were asked for and none of them was used"]}

    def test_a_library_that_knows_no_algorithm_is_named(self, tmp_path: Path) -> None:
        rig = Rig(tmp_path)
        rig.calls(ONE, "none")
        (text,) = rig.problems()["refused"]
        assert "CUBLAS_STATUS_NOT_SUPPORTED" in text

    def test_nothing_changes_for_the_program(self, tmp_path: Path) -> None:
        observed = Rig(tmp_path / "observed").calls(THREE, "pick=2")
        alone = Rig(tmp_path / "alone", cublaslt="off").calls(THREE, "pick=2")
        assert observed == alone


class TestEnforcing:
    def test_a_run_that_picks_at_random_gives_one_digest(self, tmp_path: Path) -> None:
        choices, shown = recorded(tmp_path / "record", THREE, "random")
        for number in range(3):
            rig = enforcing(tmp_path / str(number), choices)
            assert rig.calls(THREE, "random") == shown
            assert hows(rig) == ["forced"] * 3
            assert rig.problems() == {}

    def test_forced_lines_carry_the_locked_key_and_config(self, tmp_path: Path) -> None:
        choices, _ = recorded(tmp_path / "record", SEVERAL, "pick=5")
        rig = enforcing(tmp_path / "enforce", choices)
        rig.calls(SEVERAL)
        (forced,) = rig.choices()
        assert [forced[name] for name in ("key", "config")] == [
            choices[0][name] for name in ("key", "config")
        ]

    def test_every_alternative_can_be_forced(self, tmp_path: Path) -> None:
        (choice,), _ = recorded(tmp_path / "record")
        found = {}
        for number in range(ALTERNATIVES):
            (other,), ((wanted,),) = recorded(tmp_path / f"r{number}", behaviour=f"pick={number}")
            rig = enforcing(tmp_path / str(number), [{**choice, "config": other["config"]}])
            ((shown,),) = rig.calls(ONE)
            assert (shown["algo"], shown["bits"]) == (wanted["algo"], wanted["bits"])
            found[shown["algo"]] = shown["bits"]
        assert len(found) == ALTERNATIVES
        assert len(set(found.values())) > 1, "the alternatives must differ in bits"

    @pytest.mark.parametrize("turn", range(3))
    def test_the_order_of_results_does_not_matter(self, tmp_path: Path, turn: int) -> None:
        """P13: results come back in another order in each process."""
        code = SEVERAL.replace("SMALLEST_ID", "FIRST")
        choices, shown = recorded(tmp_path / "record", code, "shuffle,random")
        rig = enforcing(tmp_path / "enforce", choices)
        assert [one["algo"] for (one,) in rig.calls(code, "shuffle,random")] == [
            one["algo"] for (one,) in shown
        ]
        assert rig.calls(code)[0][0]["returned"] == 1

    def test_the_library_is_not_asked(self, tmp_path: Path) -> None:
        choices, _ = recorded(tmp_path / "record")
        count = "import ctypes\nprint([ctypes.CDLL(f).fake_cublaslt_calls(0) for f in [F]])"
        code = ONE.replace("show(gemm(l))", "for _ in range(5): gemm(l)\n")
        code += count.replace("F]", "os.environ['CUBLASLT_FAKES'] + '/libcublasLt.so.13']")
        assert enforcing(tmp_path / "enforce", choices).calls(code) == [[0]]

    def test_a_bias_of_another_alignment_is_another_question(self, tmp_path: Path) -> None:
        choices, _ = recorded(tmp_path / "r", "gemm(load(), bias=0x1000)")
        rig = enforcing(tmp_path / "e", choices)
        rig.calls("l = load()\ngemm(l, bias=0x2000)\ngemm(l, bias=0x2010)")
        assert hows(rig) == ["forced", "fallback"]


class TestMisses:
    def test_fallback_lets_the_library_answer_and_says_so(self, tmp_path: Path) -> None:
        choices, _ = recorded(tmp_path / "record")
        rig = enforcing(tmp_path / "enforce", choices)
        (_, (other,)) = rig.calls(ONE + "show(gemm(l, m=9))", "pick=2")
        assert (other["ask"], other["matmul"]) == (0, 0)
        assert sorted(hows(rig)) == ["fallback", "forced"]
        assert rig.problems() == {}

    def test_fallback_of_several_answers_is_the_used_one(self, tmp_path: Path) -> None:
        rig = enforcing(tmp_path, [])
        ((shown,),) = rig.calls(SEVERAL, "pick=3")
        (choice,) = rig.choices()
        assert (choice["how"], choice["config"]["blob"]) == ("fallback", shown["algo"])

    def test_error_refuses_and_counts(self, tmp_path: Path) -> None:
        choices, _ = recorded(tmp_path / "record")
        rig = enforcing(tmp_path / "enforce", choices, on_miss="error")
        (first, second, third) = rig.calls(ONE + "for _ in 'ab': show(gemm(l, m=9))")
        assert first[0]["matmul"] == 0
        for (shown,) in (second, third):
            assert (shown["ask"], shown["returned"], shown["matmul"]) == (NOT_SUPPORTED, 0, -1)
        assert rig.problems() == {"missed": ["not in the lock, asked for 2 times and refused"]}


class TestInvalid:
    def broken(self, folder: Path, behaviour: str, **edit: Any) -> tuple[Rig, Any]:
        choices, _ = recorded(folder / "record", behaviour="pick=2")
        choices[0]["config"].update(edit)
        rig = enforcing(folder / "enforce", choices)
        ((shown,),) = rig.calls(ONE, behaviour)
        return rig, shown

    def test_refused_by_algo_check(self, tmp_path: Path) -> None:
        rig, shown = self.broken(tmp_path, "fail-check=1")
        assert (shown["ask"], shown["matmul"]) == (NOT_SUPPORTED, -1)
        (line,) = rig.mapped("problem")
        assert line["kind"] == "invalid"
        assert "AlgoCheck returned CUBLAS_STATUS_NOT_SUPPORTED" in line["text"]
        assert line["config"]["splitk"] == 3

    def test_refused_once_by_matmul_is_never_a_silent_fallback(self, tmp_path: Path) -> None:
        """P12: PyTorch goes on with cuBLAS after such an error."""
        rig, shown = self.broken(tmp_path, "fail-matmul=1")
        assert (shown["ask"], shown["matmul"]) == (0, EXECUTION_FAILED)
        (text,) = rig.problems()["invalid"]
        assert "cublasLtMatmul returned CUBLAS_STATUS_EXECUTION_FAILED" in text
        assert rig.mapped("problem")[0]["key"] == rig.choices()[0]["key"]

    def test_more_workspace_than_offered(self, tmp_path: Path) -> None:
        rig, shown = self.broken(tmp_path, "greedy")
        assert shown["ask"] == NOT_SUPPORTED
        assert "more workspace than the 1048576 bytes" in rig.problems()["invalid"][0]

    def test_a_damaged_blob(self, tmp_path: Path) -> None:
        rig, shown = self.broken(tmp_path, "", blob="ff" * 64)
        assert shown["ask"] == NOT_SUPPORTED
        assert "CUBLAS_STATUS_INVALID_VALUE" in rig.problems()["invalid"][0]

    def test_a_field_that_was_edited_beside_its_blob(self, tmp_path: Path) -> None:
        """The blob is what is forced: an edit that changes nothing may not look as if it did."""
        choices, _ = recorded(tmp_path / "record")
        choices[0]["config"]["splitk"] += 1
        rig = enforcing(tmp_path / "enforce", choices)
        ((shown,),) = rig.calls(ONE)
        assert shown["ask"] == NOT_SUPPORTED
        assert "are not those of the blob" in rig.problems()["invalid"][0]

    def test_a_matmul_that_fails_while_recording(self, tmp_path: Path) -> None:
        rig = Rig(tmp_path)
        rig.calls(ONE, "fail-matmul=1")
        assert "EXECUTION_FAILED" in rig.problems()["invalid"][0]

    @pytest.mark.parametrize("allow", [[], ["gpu"], ["gpu*"]])
    def test_another_gpu(self, tmp_path: Path, allow: list[str]) -> None:
        choices, _ = recorded(tmp_path / "record")
        choices[0]["key"]["gpu"] = "NVIDIA H200 9.0 132 SMs"
        rig = enforcing(tmp_path / "enforce", choices, allow=allow)
        rig.calls(
            "import pinner.inside.choosers.cublaslt.chooser as c\n"
            "c._chooser.library.pinner_cublaslt_device(b'NVIDIA A100 8.0 108 SMs')\n" + ONE
        )
        said = rig.problems().get("invalid", [""])[0]
        assert ("another GPU, NVIDIA A100 8.0 108 SMs is here" in said) == (not allow)
        assert hows(rig) == (["forced"] if allow else [])


class TestVersions:
    OLDER = "import os\nctypes.CDLL(os.environ['CUBLASLT_FAKES'] + '/older/libcublasLt.so.13')\n"

    def older(self, folder: Path) -> list[Line]:
        """Choices recorded with 13.1.0, where 13.2.0 runs."""
        rig = Rig(folder)
        rig.calls(self.OLDER + ONE, "pick=3")
        return rig.choices()

    def test_another_version_is_invalid(self, tmp_path: Path) -> None:
        choices = self.older(tmp_path / "record")
        assert choices[0]["key"]["cublaslt"] == 130100
        rig = enforcing(tmp_path / "enforce", choices)
        rig.calls(ONE)
        assert "--allow loaded:cublaslt" in rig.problems()["invalid"][0]

    @pytest.mark.parametrize("allowed", ["loaded:cublaslt", "loaded:*"])
    def test_an_algorithm_is_rebuilt_from_its_fields_when_allowed(
        self, tmp_path: Path, allowed: str
    ) -> None:
        choices = self.older(tmp_path / "record")
        _, wanted = recorded(tmp_path / "new", behaviour="pick=3")
        rig = enforcing(tmp_path / "enforce", choices, allow=[allowed])
        assert rig.calls(ONE) == wanted
        (forced,) = rig.choices()
        assert forced["key"] == choices[0]["key"], "coverage finds the locked entry by its key"
        assert forced["notes"] == [
            "built from its fields: the lock is of another version of cuBLASLt"
        ]

    def test_fields_that_the_other_version_does_not_take(self, tmp_path: Path) -> None:
        choices = self.older(tmp_path / "record")
        choices[0]["config"]["id"] = 99
        rig = enforcing(tmp_path / "enforce", choices, allow=["loaded:cublaslt"])
        rig.calls(ONE)
        assert "cannot be built from its fields" in rig.problems()["invalid"][0]

    def test_two_majors_in_one_process_have_a_table_each(self, tmp_path: Path) -> None:
        code = "a, b = load(), load('consumer12')\nshow(gemm(a))\nshow(gemm(b))\n"
        choices, shown = recorded(tmp_path / "record", code, "random")
        assert [line["key"]["cublaslt"] for line in choices] == [130200, 120805]
        rig = enforcing(tmp_path / "enforce", choices)
        assert rig.calls(code, "random") == shown
        assert hows(rig) == ["forced", "forced"]
        assert rig.problems() == {}

    def test_a_lock_of_one_major_does_not_answer_for_the_other(self, tmp_path: Path) -> None:
        choices, _ = recorded(tmp_path / "record", "gemm(load('consumer12'))")
        rig = enforcing(tmp_path / "enforce", choices)
        rig.calls(ONE)
        assert hows(rig) == ["fallback"]


class TestMatmuls:
    def test_another_algorithm_for_a_locked_problem_is_a_bypass(self, tmp_path: Path) -> None:
        choices, _ = recorded(tmp_path / "record")
        _, ((other,),) = recorded(tmp_path / "other", behaviour="pick=2")
        rig = enforcing(tmp_path / "enforce", choices)
        rig.calls(ONE + f"for _ in 'ab': gemm(l, use=GIVEN, given={other['algo']!r})")
        (line,) = rig.mapped("problem")
        assert line["kind"] == "bypass"
        assert line["text"].startswith("2 matmuls of a locked problem, called by libconsumer.so")
        assert line["config"]["splitk"] == 3

    def test_the_forced_algorithm_kept_by_the_caller_is_no_bypass(self, tmp_path: Path) -> None:
        choices, ((shown,),) = recorded(tmp_path / "record")
        rig = enforcing(tmp_path / "enforce", choices)
        again = f"gemm(l, m=9)\ngemm(l, use=GIVEN, given={shown['algo']!r})"
        rig.calls(ONE + again)
        assert rig.problems() == {}

    def test_an_answer_for_another_preference_is_a_fallback(self, tmp_path: Path) -> None:
        choices, _ = recorded(tmp_path / "record")
        rig = enforcing(tmp_path / "enforce", choices)
        rig.calls(ONE + "gemm(l, workspace=0)", "pick=2")
        assert sorted(hows(rig)) == ["fallback", "forced"]
        assert rig.problems() == {}

    @pytest.mark.parametrize("mode", ["observe", "enforce"])
    def test_no_algorithm_cannot_be_held(self, tmp_path: Path, mode: str) -> None:
        rig = Rig(tmp_path) if mode == "observe" else enforcing(tmp_path, [])
        rig.calls("gemm(load(), use=NULL)")
        (text,) = rig.problems()["elsewhere"]
        assert "1 matmuls, called by libconsumer.so, named no algorithm" in text

    def test_an_algorithm_of_the_callers_own_is_named(self, tmp_path: Path) -> None:
        rig = Rig(tmp_path)
        rig.calls("gemm(load(), use=OWN, own_id=61)")
        assert rig.choices() == []
        (line,) = rig.mapped("problem")
        assert (line["kind"], line["config"]["id"]) == ("elsewhere", 61)
        assert "workspace" not in line["key"], "nobody asked with a preference"

    @pytest.mark.parametrize("mode", ["observe", "enforce"])
    def test_asking_about_two_columns_for_one(self, tmp_path: Path, mode: str) -> None:
        """On Blackwell PyTorch asks about n = 2 where the product has n = 1."""
        code = "l = load()\nshow(gemm(l, n=1, lie=1))"
        choices, shown = recorded(tmp_path / "record", code, "random")
        assert choices[0]["key"]["c_cols"] == 2
        rig = Rig(tmp_path / "again")
        if mode == "enforce":
            rig.enforce_choices(choices)
            assert rig.calls(code, "random") == shown
        else:
            rig.calls(code)
        assert rig.problems() == {}

    def test_an_error_of_the_question_reaches_the_program(self, tmp_path: Path) -> None:
        ((shown,),) = Rig(tmp_path).calls(ONE, "fail-ask=1")
        assert shown["ask"] == EXECUTION_FAILED


class TestRoom:
    CODE = "l = load()\nfor m in range(1, 41): gemm(l, m=m)"

    def test_a_full_file_says_what_it_lost(self, tmp_path: Path) -> None:
        rig = Rig(tmp_path)
        rig.calls(self.CODE, PINNER_CUBLASLT_RECORDS="16")
        assert len(rig.choices()) == 16
        (text,) = rig.problems()["bypass"]  # 24 questions, and their matmuls
        assert text.startswith("48 times a decision found no room (16 problems fit)")

    def test_a_room_that_is_no_number_is_refused(self, tmp_path: Path) -> None:
        done = Rig(tmp_path).program(self.CODE, PINNER_CUBLASLT_RECORDS="many")
        assert done.returncode == 96
        assert "found 'many'" in done.stderr


def test_ten_random_problems_survive_the_lock(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    calls = [
        f"show(gemm(l, m={draw.randrange(1, 40)}, n={draw.randrange(1, 40)}, "
        f"k={draw.randrange(1, 40)}, transa={draw.randrange(2)}, align={1 << draw.randrange(9)}, "
        f"bias={draw.randrange(1 << 40)}, workspace={draw.randrange(1 << 15)}, "
        f"requested={draw.randrange(1, 9)}))"
        for _ in range(10)
    ]
    code = "l = load()\n" + "\n".join(calls)
    choices, shown = recorded(tmp_path / "record", code, "random,shuffle")
    for entry in entries(choices):
        words = fields.words(entry["problem"])
        assert fields.problem(words, entry["problem"]["cublaslt"], "") == entry["problem"]
        assert table.build([entry])
    rig = enforcing(tmp_path / "enforce", choices)
    same = [[{**one, "returned": 1} for one in row] for row in shown]
    assert rig.calls(code, "random,shuffle") == same
