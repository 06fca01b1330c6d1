"""Standards of recipes: strict files, each way in which a series is not as it was, the command."""

from __future__ import annotations

import math
import re
import struct
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinner.inside.evidence.digest import digest
from pinner.inside.evidence.number import bits_of_number
from pinner.launch import standards
from pinner.launch.one_run import Job
from pinner.launch.standards import CI_VARIABLES
from pinner.launch.verify_run import Asked
from pinner.lockfile.errors import LockError
from pinner.standards import form, points
from pinner.standards.form import Place, Standard, Tolerance
from pinner.standards.judge import judge, not_finite
from tests.command_rig import Pinner, Said, python

LOSS, NORM = Place("loss", 0), Place("norm", 0)
DIGEST = "nh128:" + "0123456789abcdef" * 2


def _float(value: float, dtype: str = "float") -> str:
    return f"{dtype} {value.hex()}"


def _series(*values: float, first: int = 0) -> form.Points:
    return tuple((first + step, _float(value)) for step, value in enumerate(values))


STANDARD = Standard(
    name="tiny",
    created="2026-01-31T12:00:00+00:00",
    command=("python", "train.py"),
    runs=2,
    series={LOSS: _series(4.0, 2.0, 1.0, 0.5), NORM: ((0, DIGEST), (1, DIGEST[:-1] + "0"))},
    hard={"torch": "2.13.0"},
    streams="loss|norm",
    lock="sha256:" + "0" * 64,
    tolerances=(Tolerance("loss", 0.125, "sums by atomics in the vendor's kernel"),),
)
EXACT = replace(STANDARD, tolerances=())


class TestPoints:
    def test_keep_the_bits_of_tensors_and_numbers(self) -> None:
        torch = pytest.importorskip("torch")
        values = {
            "float 0x1.999999999999ap-4": 0.1,
            "float -0x0.0p+0": -0.0,
            "int -7": -7,
            "float32 0x1.99999a0000000p-4": torch.tensor(0.1),
            "float32 nan:7fc00001": torch.tensor(0x7FC00001, dtype=torch.int32).view(torch.float32),
            "bfloat16 0x1.9a00000000000p-4": torch.tensor(0.1, dtype=torch.bfloat16),
            "float16 inf": torch.tensor(1e9, dtype=torch.float16),
            "float64 0x0.0000000000001p-1022": torch.tensor(5e-324, dtype=torch.float64),
        }
        for text, value in values.items():
            number = {"number": bits_of_number(value), "dtype": digest(value)[1]["dtype"]}
            assert points.point(DIGEST, number) == text
            assert points.is_point(text)

    @pytest.mark.parametrize("value", [True, None, "0x1", (1.0,)])
    def test_of_other_values_are_digests(self, value: object) -> None:
        assert bits_of_number(value) is None
        assert points.point(DIGEST, None) == DIGEST

    @settings(max_examples=200, deadline=None)
    @given(st.floats(width=64), st.floats(width=32))
    def test_no_two_bit_patterns_share_one(self, double: float, single: float) -> None:
        for dtype, code, value in (("float", ">d", double), ("float32", ">f", single)):
            bits = struct.pack(code, value)
            flipped = bytes([bits[0] ^ 128, *bits[1:-1], bits[-1]])
            texts = {
                points.point(DIGEST, {"dtype": dtype, "number": each.hex()})
                for each in (bits, flipped)
            }
            assert len(texts) == 2
            assert all(points.is_point(text) for text in texts)


class TestFile:
    def test_is_read_as_it_was_written(self, tmp_path: Path) -> None:
        path = form.path_of(tmp_path, "tiny")
        path.write_text(form.dumps(STANDARD), encoding="utf-8")
        assert form.read(path) == STANDARD

    @pytest.mark.parametrize(
        ("old", "new", "said"),
        [
            ("version = 1", "version = 2", "version: expected 1, found 2"),
            ("version = 1", "version = true", "version: expected 1, found True"),
            ('name = "tiny"', 'name = "other"', "name: expected 'tiny'"),
            ('name = "tiny"', 'nmae = "tiny"', "nmae: is no field of a standard"),
            ("runs = 2\n", "", "[recorded]: runs: is missing"),
            ("runs = 2", "runs = 1", "runs: expected a number of at least 2, found 1"),
            ("sha256:0", "sha256:g", "[recorded]: lock: expected sha256"),
            ("loss|norm", "loss|(", "streams: no regular expression"),
            ("0x1.0000000000000p+2", "4.0", '"STEP DTYPE HEX"'),
            ("0x1.0000000000000p+2", "nan", '"STEP DTYPE HEX"'),
            ("0x1.0000000000000p+2", "inf", "expected finite numbers"),
            ("0 float 0x1.0", "2 float 0x1.0", "step 1 follows step 2"),
            ("rank = 0", "rank = -1", "rank: expected a number of at least 0"),
            ('stream = "norm"', 'stream = "loss"', "stands there twice"),
            ("points = 6", "points = 7", "[end]: points: expected 7, found 6 in the file"),
            ("series = 2", "series = 3", "[end]: series: expected 3, found 2 in the file"),
            ("[end]", "[ned]", "ned: is no field of a standard"),
            ("vendor's", '"', "is not TOML"),
            ('reason = "sums by atomics in the vendor\'s kernel"\n', "", "reason: is missing"),
            ('"sums by atomics in the vendor\'s kernel"', '" "', "reason: expected a text"),
            ("0x1.0000000000000p-3", "0", "absolute: expected a positive distance"),
            ("0x1.0000000000000p-3", "nan", "absolute: expected a positive distance"),
        ],
    )
    def test_that_is_not_right_is_refused_with_the_place(
        self, tmp_path: Path, old: str, new: str, said: str
    ) -> None:
        text = form.dumps(STANDARD)
        assert old in text
        path = form.path_of(tmp_path, "tiny")
        path.write_text(text.replace(old, new, 1), encoding="utf-8")
        with pytest.raises(LockError, match=re.escape(said)) as caught:
            form.read(path)
        assert str(caught.value).startswith(str(path))

    @pytest.mark.parametrize(
        ("stream", "said"), [("norm", "has digests"), ("loose", "expected one with a series")]
    )
    def test_registers_a_tolerance_for_numbers_alone(
        self, tmp_path: Path, stream: str, said: str
    ) -> None:
        wrong = replace(STANDARD, tolerances=(Tolerance(stream, 1.0, "why"),))
        path = form.path_of(tmp_path, "tiny")
        path.write_text(form.dumps(wrong), encoding="utf-8")
        with pytest.raises(LockError, match=said):
            form.read(path)

    def test_that_is_cut_anywhere_is_refused(self, tmp_path: Path) -> None:
        lines = form.dumps(STANDARD).splitlines(keepends=True)
        path = form.path_of(tmp_path, "tiny")
        for end in range(len(lines)):
            path.write_text("".join(lines[:end]), encoding="utf-8")
            with pytest.raises(LockError):
                form.read(path)


class TestJudge:
    def test_equal_bits_hold(self) -> None:
        found = judge(EXACT, EXACT.series)
        assert (found.findings, found.tolerated, found.compared) == ((), (), 6)

    @pytest.mark.parametrize(
        ("loss", "what", "step", "said"),
        [
            (_series(4.0, 2.0, 1.0 + 2**-52, 0.5), "value", 2, "2.220446049250313e-16 apart"),
            (_series(4.0, 2.0, 1.0), "truncated", 3, "3 of 4 points: none at step 3"),
            (_series(4.0, 2.0, 1.0, 0.5, 0.5), "longer", 4, "5 points for 4"),
            (_series(4.0, math.inf, 1.0, 0.5), "not-a-number", 1, "no finite number"),
            (_series(4.0, 2.0, 1.0, 0.5, first=1), "steps", 0, "expected step 0, found step 1"),
            (None, "missing", None, "missing, the standard has 4 points"),
            (
                (*_series(4.0, 2.0, 1.0), (3, "float nan:7ff8000000000000")),
                "not-a-number",
                3,
                "nan:7ff8000000000000: no finite number",
            ),
            ((*_series(4.0, 2.0, 1.0), (3, _float(0.5, "float32"))), "kind", 3, "another dtype"),
            ((*_series(4.0, 2.0, 1.0), (3, DIGEST)), "kind", 3, "another dtype or kind of value"),
        ],
    )
    def test_each_way_to_differ_is_told(
        self, loss: form.Points | None, what: str, step: int | None, said: str
    ) -> None:
        series = {NORM: EXACT.series[NORM], **({} if loss is None else {LOSS: loss})}
        (finding,) = judge(EXACT, series).findings
        assert (finding.place, finding.what, finding.step) == (LOSS, what, step)
        assert said in finding.text

    def test_any_flipped_point_is_found(self) -> None:
        for place, expected in EXACT.series.items():
            for at, (step, text) in enumerate(expected):
                other = text[:-1] + ("1" if text[-1] != "1" else "3")
                changed = (*expected[:at], (step, other), *expected[at + 1 :])
                (finding,) = judge(EXACT, {**EXACT.series, place: changed}).findings
                assert (finding.place, finding.step) == (place, step)

    def test_minus_zero_is_not_zero(self) -> None:
        standard = replace(EXACT, series={LOSS: _series(1.0, 0.0)})
        assert judge(standard, {LOSS: _series(1.0, -0.0)}).findings[0].what == "value"

    def test_a_series_that_is_new_is_told_unless_it_never_changes(self) -> None:
        more = {**EXACT.series, Place("new", 0): _series(1.0, 2.0)}
        assert [each.what for each in judge(EXACT, more).findings] == ["extra"]
        constant = {**EXACT.series, Place("new", 0): _series(1.0, 1.0)}
        assert not judge(EXACT, constant).findings

    def test_says_the_largest_distance_of_all_ranks_that_was_tolerated(self) -> None:
        other = Place("loss", 1)
        standard = replace(STANDARD, series={LOSS: _series(4.0), other: _series(4.0)})
        near = {LOSS: _series(4.125), other: _series(4.0625)}
        (said,) = judge(standard, near).tolerated
        assert said.startswith("stream 'loss': up to 0.125 apart")

    def test_a_tolerance_holds_for_its_stream_up_to_its_distance(self) -> None:
        near = {**STANDARD.series, LOSS: _series(4.0, 2.125, 1.0, 0.5)}
        found = judge(STANDARD, near)
        assert not found.findings
        assert "sums by atomics" in found.tolerated[0]
        far = {**STANDARD.series, LOSS: _series(4.0, 2.126, 1.0, 0.5)}
        assert "the registered tolerance is 0.125" in judge(STANDARD, far).findings[0].text
        for value in (math.nan, math.inf):
            text = "float nan:7ff8000000000000" if math.isnan(value) else "float inf"
            broken = (*_series(4.0), (1, text), *_series(1.0, 0.5, first=2))
            (finding,) = judge(STANDARD, {**STANDARD.series, LOSS: broken}).findings
            assert finding.what == "not-a-number"

    def test_digests_of_two_algorithms_are_not_compared(self) -> None:
        other = {**EXACT.series, NORM: ((0, "sha256:" + "0" * 64), (1, "sha256:" + "1" * 64))}
        assert "sha256" in judge(EXACT, other).incomparable

    def test_processes_without_a_rank_are_paired_by_contents(self) -> None:
        first, second = _series(1.0, 2.0), _series(3.0, 4.0)
        standard = replace(
            EXACT, series={Place("x", 0, False): first, Place("x", 1, False): second}
        )
        assert not judge(
            standard, {Place("x", 1, False): first, Place("x", 0, False): second}
        ).findings
        (finding,) = judge(
            standard, {Place("x", 0, False): second, Place("x", 1, False): _series(1.0, 2.5)}
        ).findings
        assert (finding.place.number, finding.step) == (0, 1)

    def test_a_number_that_is_not_finite_is_named(self) -> None:
        assert not_finite(EXACT.series) == ""
        assert (
            not_finite({LOSS: _series(1.0, math.inf)}) == "stream 'loss', rank 0, step 1: float inf"
        )


class Recipes(Pinner):
    """The command, outside of any CI."""

    def environ(self, **more: str) -> dict[str, str]:
        found = super().environ()
        return {**{n: v for n, v in found.items() if n not in CI_VARIABLES}, **more}

    def standards(self, action: str, *options: str, code: str = "", **environ: str) -> Said:
        command = [sys.executable, "-c", code] if code else python("verify_plain.py")
        return self("standards", action, "tiny", *options, "--", *command, **environ)


@pytest.fixture(name="recipes")
def _recipes(tmp_path: Path) -> Recipes:
    folder = tmp_path / "work"
    folder.mkdir()
    return Recipes(folder)


class TestCommand:
    def test_records_and_tells_what_changed(self, recipes: Recipes) -> None:
        said = recipes.standards("record")
        assert said.code == 0, said.err
        path = recipes.path("standards/tiny.toml")
        text = path.read_text(encoding="utf-8")
        assert '"3 float 0x1.4400000112e0cp+2",' in text

        said = recipes.standards("compare", "--json")
        assert (said.code, said.json["status"], said.json["points"]) == (0, "equal", 6)

        said = recipes.standards("compare", "--json", FLIP="4")
        assert (said.code, said.json["status"]) == (1, "differs")
        (finding,) = said.json["findings"]
        assert (finding["stream"], finding["what"], finding["step"]) == ("value", "value", 4)

        near = text.replace("0x1.6c8000028cd5cp+3", "0x1.6c8000028cd5bp+3")
        tolerance = '[[tolerance]]\nstream = "value"\nabsolute = "1e-12"\nreason = "atomics"\n\n'
        other = near.replace("[stack.hard]\n", '[stack.hard]\nimagined = "1.0"\n')
        path.write_text(other.replace("[end]", tolerance + "[end]"), encoding="utf-8")
        said = recipes.standards("compare", "--json")
        assert (said.code, said.json["status"]) == (0, "equal")
        assert "within the registered 1e-12: atomics" in said.json["tolerated"][0]
        assert said.json["changed"] == {"imagined": ["1.0", "(not there)"]}

        path.write_text(near, encoding="utf-8")
        said = recipes.standards("compare")
        assert said.code == 1
        assert "stream 'value', process 0, step 5" in said.text

        path.write_text(near.replace("[end]", "[ned]"), encoding="utf-8")
        assert recipes.standards("compare").code == 65

    def test_without_a_standard_is_inactive_and_runs_nothing(self, recipes: Recipes) -> None:
        said = recipes.standards("compare", "--json", code="open('ran', 'w')")
        assert (said.code, said.json["status"]) == (2, "inactive")
        assert not recipes.path("ran").exists()

    def test_recorded_under_a_lock_asks_for_one(self, recipes: Recipes) -> None:
        path = recipes.path("standards/tiny.toml")
        path.parent.mkdir()
        path.write_text(form.dumps(STANDARD), encoding="utf-8")
        said = recipes.standards("compare", "--json", code="open('ran', 'w')")
        assert (said.code, said.json["status"]) == (2, "no-lock")
        assert not recipes.path("ran").exists()

    def test_is_never_recorded_in_ci(self, recipes: Recipes) -> None:
        said = recipes.standards("record", "--replace", code="open('ran', 'w')", CI="true")
        assert said.code == 64
        assert "never in CI: CI is 'true'" in said.text
        assert [path.name for path in recipes.folder.iterdir()] == []
        options = standards.Options(Asked(Job(("false",))), "tiny", recipes.folder, replaces=True)
        for name in CI_VARIABLES:
            found = standards.record(options, {name: "1"}, lambda _: None)
            assert (found.exit, found.status) == (64, "refused")

    def test_is_not_replaced_unasked_and_keeps_its_tolerances(self, recipes: Recipes) -> None:
        path = recipes.path("standards/tiny.toml")
        path.parent.mkdir()
        old = replace(
            EXACT,
            series={Place("value", 0, False): _series(1.0, 2.0)},
            tolerances=(Tolerance("value", 0.5, "why"),),
        )
        path.write_text(form.dumps(old), encoding="utf-8")
        said = recipes.standards("record")
        assert said.code == 64
        assert "--replace" in said.text
        assert form.read(path) == old
        assert recipes.standards("record", "--replace").code == 0
        assert form.read(path).tolerances == old.tolerances
        assert len(form.read(path).series[Place("value", 0, False)]) == 6

    @pytest.mark.parametrize(
        ("code", "status"),
        [
            (1, "differs"),
            (2, "not-finite"),
            (5, "command-failed"),
        ],
    )
    def test_is_not_recorded_from_runs_that_show_nothing(
        self, recipes: Recipes, code: int, status: str
    ) -> None:
        broken = "import pinner; [pinner.fingerprint('x', v) for v in (1.0, float('nan'))]"
        said = {
            "differs": lambda: recipes.standards("record", "--json", FLIP="2"),
            "not-finite": lambda: recipes.standards("record", "--json", code=broken),
            "command-failed": lambda: recipes.standards("record", "--json", EXIT="3"),
        }[status]()
        assert (said.code, said.json["status"]) == (code, status)
        assert not recipes.path("standards/tiny.toml").exists()
