"""Problems and algorithms of cuBLASLt as words and numbers; the layout that C and Python share."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinner.inside.choosers.cublaslt import chooser, fields, layout, table
from pinner.inside.faults import InvalidPin
from tests.fakes.cublaslt_calls import Algo
from tests.fakes.cublaslt_stand_in import Rig

FIELDS = {"id": 66, "tile": 20, "stages": 35, "splitk": 4, "reduction": 2, "cluster": 2}
SPLIT_FOUR = {**FIELDS, "swizzle": 0, "custom": 0, "inner": 0, "workspace": 8192, "blob": "00" * 64}


def library() -> Any:
    return ctypes.CDLL(str(Rig.library()))


class TestLayout:
    def test_the_lists_are_those_of_the_library(self) -> None:
        ask = library().pinner_cublaslt_layout
        ask.restype = ctypes.c_char_p
        assert ask().decode() == layout.text()

    def test_every_size_and_offset_is_what_the_compiler_made(self) -> None:
        ask, at = library().pinner_cublaslt_place, ctypes.c_uint64()
        ask.restype = ctypes.c_char_p
        found: list[tuple[str, int]] = []
        while (name := ask(ctypes.c_size_t(len(found)), ctypes.byref(at))) is not None:
            found.append((name.decode(), at.value))
        assert found == layout.places()

    def test_the_hash_is_the_librarys(self) -> None:
        ask = library().pinner_cublaslt_layout_hash
        ask.restype = ctypes.c_uint64
        assert ask() == layout.digest()

    def test_the_structs_of_cublaslt_have_their_sizes(self) -> None:
        assert ctypes.sizeof(layout.Algo) == ctypes.sizeof(Algo) == 64
        assert ctypes.sizeof(layout.Result) == 96

    def test_no_name_is_used_twice(self) -> None:
        assert len(set(layout.KEY_NAMES)) == len(layout.KEY_NAMES)


_NUMBERS = st.lists(
    st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-1, 300),
    min_size=len(layout.KEY_NAMES),
    max_size=len(layout.KEY_NAMES),
)


class TestProblems:
    @given(_NUMBERS, st.integers(120000, 149999), st.sampled_from(["", "NVIDIA H200 9.0"]))
    def test_words_come_back_as_numbers(self, words: list[int], version: int, gpu: str) -> None:
        words[0] = version // 10000
        named = fields.problem(words, version, gpu)
        assert fields.words(named) == words
        assert fields.problem(fields.words(named), version, gpu) == named

    def test_defaults_are_left_out_and_enums_are_words(self) -> None:
        words = [layout.DEFAULTS[name] for name in layout.KEY_NAMES]
        words[0] = 13
        for name, value in (("compute", 77), ("transa", 1), ("epilogue", 4), ("a_type", 14)):
            words[layout.KEY_NAMES.index(name)] = value
        named = fields.problem(words, 130200, "")
        assert (named["compute"], named["transa"]) == ("32F_FAST_TF32", "T")
        assert (named["epilogue"], named["a_type"]) == ("BIAS", "R_16BF")
        assert not {"d_rows", "a_align", "fill", "sm_target"} & set(named)

    def test_an_unknown_field_is_named(self) -> None:
        with pytest.raises(InvalidPin, match="the field colour, taste"):
            fields.words({"cublaslt": 130200, "taste": 1, "colour": 2})

    def test_an_unknown_word_is_named(self) -> None:
        with pytest.raises(InvalidPin, match=r"known word for epilogue .* found 'SIN'"):
            fields.words({"cublaslt": 130200, "epilogue": "SIN"})

    def test_a_problem_without_a_version(self) -> None:
        with pytest.raises(InvalidPin, match="no version"):
            fields.words({})

    @pytest.mark.parametrize("blob", ["", "zz" * 64, "00" * 63, None])
    def test_a_blob_of_another_size_is_refused(self, blob: Any) -> None:
        with pytest.raises(InvalidPin, match="128 hexadecimal digits"):
            table.build([{"problem": {"cublaslt": 130200}, "algo": {}, "blob": blob}])

    def test_the_gpu_of_some_facts(self) -> None:
        facts = {"gpu": "NVIDIA H200", "gpu:capability": "9.0", "gpu:sms": 132}
        assert chooser.gpu(facts) == "NVIDIA H200 9.0 132 SMs"
        assert chooser.gpu({}) == ""


class TestDifferences:
    def test_split_k_comes_first_then_the_rest(self) -> None:
        """P14: the recorded pick has split-K 4, today's has 1."""
        today = {**SPLIT_FOUR, "splitk": 1, "reduction": 0, "tile": 18, "workspace": 0}
        assert fields.changes(SPLIT_FOUR, today) == [
            "SPLITK 4 → 1",
            "REDUCTION COMPUTE_TYPE → NONE",
            "TILE 128x128 → 128x64",
            "workspace 8192 → 0",
        ]

    def test_the_same_is_no_difference(self) -> None:
        assert fields.changes(SPLIT_FOUR, dict(SPLIT_FOUR)) == []

    def test_a_blob_alone_is_said(self) -> None:
        (text,) = fields.changes(SPLIT_FOUR, {**SPLIT_FOUR, "blob": "01" * 64})
        assert "no name" in text

    def test_a_field_that_one_of_them_lacks(self) -> None:
        older = {name: value for name, value in SPLIT_FOUR.items() if name != "cluster"}
        assert fields.changes(older, SPLIT_FOUR) == ["CLUSTER_SHAPE none → 1x1x1"]

    def test_an_algorithm_on_one_line(self) -> None:
        assert fields.readable(SPLIT_FOUR).startswith(
            "SPLITK 4, REDUCTION COMPUTE_TYPE, ALGO_ID 66, STAGES 64xAUTO, TILE 128x128, "
        )


def test_pins_that_are_torn_end_the_process(tmp_path: Path) -> None:
    recorded = Rig(tmp_path / "record")
    recorded.calls("gemm(load())")
    rig = Rig(tmp_path / "enforce")
    rig.enforce_choices(recorded.choices())
    whole = table.build([{"problem": recorded.choices()[0]["key"], "algo": {}, "blob": "00" * 64}])
    for torn in (b"", whole[:20], whole[:-1], whole + b"x", b"\1" + whole[1:]):
        (rig.folder / table.FILE).write_bytes(torn)
        done = rig.program("show('went on')")
        assert (done.returncode, done.stdout) == (96, "")
        assert "torn or of another version" in done.stderr
