"""Calls of cuBLASLt in a trace: what is written of each, and that another algorithm is named."""

from __future__ import annotations

import json
import random
import secrets
from pathlib import Path
from typing import Any

import pytest

from pinner.compare.traces import compare_traces
from tests.command_rig import WORKLOADS
from tests.fakes.cublaslt_stand_in import Rig
from tests.trace_rig import Event, events_of, read_logs

SEED = secrets.randbits(32)
SINGLE, DOUBLE, OUTSIDE, THREAD, LEGACY = range(5)


class Traces:
    """The traces of one program, by the name of their variant."""

    def __init__(self, folder: Path, variants: dict[str, tuple[int, int]]) -> None:
        trace = folder / "trace"
        asked = {"folder": str(trace), "level": "kernels"}
        rig = Rig(folder / "session", trace=asked, evidence=True)
        script = str(WORKLOADS / "cublaslt_traced.py")
        done = rig.program_file(script, VARIANTS=json.dumps(variants))
        assert done.returncode == 0, done.stderr
        self.folder = folder
        for name, pid in map(json.loads, done.stdout.splitlines()):
            (log,) = trace.glob(f"rank-*/*-{pid}-*.jsonl")
            home = folder / name / log.parent.name
            home.mkdir(parents=True)
            log.rename(home / log.name)

    def events(self, name: str, *kinds: str) -> list[Event]:
        (lines,) = read_logs(self.folder / name).values()
        return events_of(lines, *kinds)

    def compared(self, first: str, second: str) -> Any:
        return compare_traces(self.folder / first, self.folder / second, jobs=1)


@pytest.fixture(name="traces", scope="module")
def _traces(tmp_path_factory: pytest.TempPathFactory) -> Traces:
    draw = random.Random(SEED)
    picks = [draw.randrange(1, 6) for _ in range(4)]
    print(f"seed {SEED}: alternatives {picks}")
    variants = {"plain": (9, 0), "again": (9, 0)}
    variants.update((f"from{step}", (step, picks[step])) for step in (SINGLE, DOUBLE, OUTSIDE))
    return Traces(tmp_path_factory.mktemp("traces"), variants)


def kernels(traces: Traces, step: int) -> list[Event]:
    return [event for event in traces.events("plain", "kernel") if event["s"] == step]


class TestWhatIsWritten:
    def test_the_only_call_of_an_operation_has_its_digests(self, traces: Traces) -> None:
        (call,) = kernels(traces, SINGLE)
        (op,) = [e for e in traces.events("plain", "op") if e["n"].startswith("fake_gpu.multiply")][
            :1
        ]
        assert call["n"] == "cublaslt:matmul 8x4x64 R_32F"
        assert (call["in"], call["out"]) == (op["in"], op["out"])
        assert call["q"] < op["q"]
        assert call["x"]["op"] == op["n"]

    def test_problem_algorithm_and_who_chose_it_stand_in_it(self, traces: Traces) -> None:
        (call,) = kernels(traces, SINGLE)
        extra = call["x"]
        assert extra["how"] == "heuristic"
        assert (extra["problem"]["c_rows"], extra["problem"]["cublaslt"]) == (8, 130200)
        assert "workspace" not in extra["problem"]
        assert len(extra["config"]["blob"]) == 128
        assert {"id", "tile", "splitk", "reduction", "stages"} <= set(extra["config"])

    def test_of_two_calls_in_an_operation_none_has_its_digests(self, traces: Traces) -> None:
        calls = kernels(traces, DOUBLE)
        assert [call["n"].split()[1] for call in calls] == ["8x4x64", "8x5x64"]
        assert [(call["in"], call["out"]) for call in calls] == [([], [])] * 2
        assert {call["x"]["op"] for call in calls} == {"fake_gpu.multiply.default"}

    def test_a_call_outside_operations_is_told_before_what_comes_next(self, traces: Traces) -> None:
        (call,) = kernels(traces, OUTSIDE)
        assert "op" not in call["x"]
        later = [e for e in traces.events("plain") if e["q"] > call["q"]]
        assert later[0]["s"] == OUTSIDE

    def test_a_thread_tells_its_own_calls(self, traces: Traces) -> None:
        (call,) = kernels(traces, THREAD)
        assert call["x"]["thread"] == "other"
        assert call["in"]

    def test_calls_of_libcublas_are_named(self, traces: Traces) -> None:
        (call,) = kernels(traces, LEGACY)
        assert call["n"] == "cublas:cublasSgemm_v2"


class TestComparing:
    def test_equal_runs_are_equal(self, traces: Traces) -> None:
        report = traces.compared("plain", "again")
        assert report.exit == 0
        assert "cuBLASLt" not in report.text()

    def test_another_algorithm_at_equal_inputs_is_the_origin(self, traces: Traces) -> None:
        report = traces.compared("plain", "from0")
        found = report.to_json()["first"]
        assert (report.exit, found["reading"]) == (1, "origin")
        assert found["event"]["name"] == "cublaslt:matmul 8x4x64 R_32F"
        assert "by another algorithm: SPLITK" in found["words"]
        for side, name in (("A", "plain"), ("B", "from0")):
            config = traces.events(name, "kernel")[0]["x"]["config"]
            words = found["words"].split(f" in {side}")[0]
            assert f"SPLITK {config['splitk']}, " in words
            assert f"ALGO_ID {config['id']}, " in words
        assert "nothing finer can be traced" in report.text()

    def test_of_two_calls_the_other_one_is_named_beside_the_operation(self, traces: Traces) -> None:
        report = traces.compared("plain", "from1")
        assert report.to_json()["first"]["event"]["name"] == "fake_gpu.multiply.default"
        line = next(t for t in report.text().splitlines() if t.startswith("before it cuBLASLt"))
        assert "in fake_gpu.multiply.default" in line
        assert line.endswith("and 1 more")

    def test_outside_operations_the_choice_is_named_before_what_it_changed(
        self, traces: Traces
    ) -> None:
        report = traces.compared("plain", "from2")
        assert report.exit == 1
        assert "before it cuBLASLt took another algorithm: step 2" in report.text()
        assert "ALGO_ID" in report.to_json()["ranks"][0]["other_algorithms"][0]["words"]
