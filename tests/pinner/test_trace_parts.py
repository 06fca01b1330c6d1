"""The parts of a trace by themselves: its log, its memory of storages, what it knows of operations,
and devices that are played by stand-ins."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from pinner.inside.evidence.trace import log as logs
from pinner.inside.evidence.trace.hashing import Hashing, collected
from pinner.inside.evidence.trace.memory import MOST_PIECES, Memory
from pinner.inside.evidence.trace.operations import Facts
from pinner.inside.evidence.trace.recorder import Recorder
from pinner.inside.evidence.trace.settings import Settings
from pinner.inside.faults import StartFault
from tests.trace_rig import digests, read_log, read_logs, recording

ATEN = torch.ops.aten


def made_by(folder: Path) -> list[dict[str, Any]]:
    """The lines of the one log in a folder."""
    (lines,) = read_logs(folder).values()
    return lines


class TestTheLog:
    def test_nothing_is_written_before_there_is_something(self, tmp_path: Path) -> None:
        log = logs.Log(str(tmp_path))
        log.flush()
        log.close()
        assert list(tmp_path.iterdir()) == []

    def test_lines_are_written_when_there_are_many(self, tmp_path: Path) -> None:
        log = logs.Log(str(tmp_path))
        for number in range(logs.MOST_LINES + 1):
            log.add(f'{{"number":{number}}}')
        assert len(made_by(tmp_path)) == logs.MOST_LINES + 1  # and the first line

    def test_lines_are_written_after_a_while(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = logs.Log(str(tmp_path))
        now = logs.time.monotonic()
        monkeypatch.setattr(logs.time, "monotonic", lambda: now + 2 * logs.LONGEST_S)
        for number in range(16):
            log.add(f'{{"number":{number}}}')
        assert made_by(tmp_path)[-1] == {"number": 15}

    def test_before_waiting_for_others_all_is_written(self, tmp_path: Path) -> None:
        log = logs.Log(str(tmp_path))
        log.add('{"number":0}')
        log.before_waiting()
        assert made_by(tmp_path)[-1] == {"number": 0}

    def test_its_folder_is_its_ranks(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RANK", "3")
        monkeypatch.setenv("WORLD_SIZE", "8")
        log = logs.Log(str(tmp_path))
        log.add("{}")
        log.close()
        first, *_, last = read_log(next(tmp_path.glob("rank-3/*.jsonl")))
        assert (first["rank"], first["world"]) == (3, 8)
        assert last == {"t": "end", "events": 1}

    def test_a_child_leaves_its_parents_lines_to_it(self, tmp_path: Path) -> None:
        log = logs.Log(str(tmp_path))
        log.add('{"who":"parent"}')
        pid = os.fork()
        if not pid:
            log.forget()
            log.add('{"who":"child"}')
            log.flush()
            os._exit(0)
        os.waitpid(pid, 0)
        log.flush()
        found = [[line["who"] for line in lines[1:]] for lines in read_logs(tmp_path).values()]
        assert sorted(found) == [["child"], ["parent"]]


class TestMemory:
    def test_memory_is_written_piece_by_piece_in_any_order(self) -> None:
        memory = Memory()
        x = torch.empty(6, 2)
        number = memory.number(x)
        memory.made_empty(x, number)
        for part in (x[4:], x[:1], x[2:4]):
            memory.written(part, number)
        assert memory.is_unwritten(x, number)
        assert memory.is_unwritten(x[:2], number)
        assert not memory.is_unwritten(x[2:6], number)
        memory.written(x[1:2], number)
        assert not memory.is_unwritten(x, number)
        assert not memory.unwritten

    def test_a_part_with_gaps_counts_for_itself_only(self) -> None:
        memory = Memory()
        x = torch.empty(4, 4)
        number = memory.number(x)
        memory.made_empty(x, number)
        memory.written(x[:, :2], number)
        assert not memory.is_unwritten(x[:, :2], number)
        assert memory.is_unwritten(x[:, 1:3], number)

    def test_parts_with_gaps_make_a_whole(self) -> None:
        """Columns, as packed projections and caches are filled."""
        memory = Memory()
        x = torch.empty(4, 4)
        number = memory.number(x)
        memory.made_empty(x, number)
        memory.written(x[:, :3], number)
        assert memory.is_unwritten(x, number)
        memory.written(x[:, 3:], number)
        assert not memory.is_unwritten(x, number)
        assert not memory.unwritten

    def test_more_parts_than_are_followed_count_for_themselves(self) -> None:
        memory = Memory()
        x = torch.empty(MOST_PIECES + 1, 2)
        number = memory.number(x)
        memory.made_empty(x, number)
        memory.written(x[:, :1], number)
        assert not memory.is_unwritten(x[:, :1], number)
        assert memory.is_unwritten(x[:, 1:], number)

    def test_what_is_covered_is_what_was_written_element_by_element(self) -> None:
        seed = random.randrange(1 << 32)
        print("seed", seed)
        draw = random.Random(seed)

        def view(x: torch.Tensor) -> torch.Tensor:
            sizes = [draw.randint(1, 4) for _ in range(draw.randint(0, 3))]
            steps = [draw.randint(0, 6) for _ in sizes]
            reach = sum((size - 1) * step for size, step in zip(sizes, steps, strict=True))
            return x.as_strided(sizes, steps, draw.randint(0, max(0, 60 - reach)))

        for _ in range(200):
            memory, x = Memory(), torch.zeros(128)
            number = memory.number(x)
            memory.made_empty(x, number)
            for _ in range(draw.randint(1, 12)):
                part = view(x)
                memory.written(part, number)
                part.fill_(1)
                asked = view(x)
                assert memory.is_unwritten(asked, number) == (not bool(asked.all()))

    def test_a_transposed_tensor_is_dense(self) -> None:
        memory = Memory()
        x = torch.empty(4, 3)
        number = memory.number(x)
        memory.made_empty(x, number)
        memory.written(x.t(), number)
        assert not memory.is_unwritten(x, number)

    def test_a_new_storage_at_an_old_address_is_another_one(self) -> None:
        memory = Memory()
        x = torch.empty(3)
        first = memory.number(x)
        memory.made_empty(x, first)
        second = memory.fresh(x, set())
        assert second != first
        assert not memory.is_unwritten(x, second)
        assert memory.fresh(x, {second}) == second

    def test_what_is_on_its_way_arrives_once(self) -> None:
        memory = Memory()
        answers = iter([False, True])
        memory.flying[7] = lambda: next(answers)
        assert memory.is_flying(7)
        assert not memory.is_flying(7)
        assert not memory.is_flying(7)


@pytest.mark.parametrize(
    ("operation", "field", "value"),
    [
        (ATEN.view.default, "view", True),
        (ATEN.t.default, "view", True),
        (ATEN.add.Tensor, "view", False),
        (ATEN.add_.Tensor, "writes", ((0, "self"),)),
        (ATEN.add_.Tensor, "view", False),
        (ATEN.add_.Tensor, "overwrites", False),
        (ATEN.copy_.default, "overwrites", True),
        (ATEN.mm.out, "writes", ((2, "out"),)),
        (ATEN.mm.out, "overwrites", True),
        (ATEN.empty.memory_format, "empty", True),
        (ATEN.empty_strided.default, "empty", True),
        (ATEN.zeros.default, "empty", False),
        (ATEN.mm.default, "pure", True),
        (ATEN.mul_.Tensor, "pure", False),
        (torch.ops.prim.device.default, "silent", True),
        (torch.ops.higher_order.cond, "silent", True),
    ],
)
def test_what_is_known_of_an_operation(operation: Any, field: str, value: Any) -> None:
    assert getattr(Facts(operation), field) == value


def test_a_copy_may_be_asked_not_to_wait_in_two_ways() -> None:
    facts = Facts(ATEN.copy_.default)
    assert facts.is_non_blocking((0, 0, True), {})
    assert facts.is_non_blocking((0, 0), {"non_blocking": True})
    assert not facts.is_non_blocking((0, 0), {})


def test_tensors_are_found_in_what_modules_take_and_return() -> None:
    x, y = torch.ones(1), torch.zeros(1)
    value = {"a": [x, 3], "b": (None, {"c": y})}
    assert [path for path, _ in collected(torch.Tensor, value)] == ["0.a.0", "0.b.1.c"]


def test_a_window_holds_its_ends() -> None:
    settings = Settings({"folder": "x", "level": "ops", "from": 2, "to": 3, "modules": "attn"})
    assert [settings.step_in_window(step) for step in range(5)] == [False, False, True, True, False]
    assert settings.scope_in_window("layers.0.attn")
    assert not settings.scope_in_window("layers.0.mlp")


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(StartFault, match="expected a level"):
        Settings({"folder": "x", "level": "everything"})


class OnDevice(torch.Tensor):
    """A tensor of the host that says it is a GPU's."""

    is_cuda = True  # type: ignore[assignment]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class TestDevices:
    """A stand-in says that it is on a GPU: what is done then, not that a GPU does it."""

    @pytest.fixture
    def recorder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
        monkeypatch.setattr(torch.cuda, "_initialized", True)
        log = logs.Log(str(tmp_path))
        return Recorder(torch, Settings({"folder": str(tmp_path)}), log, Hashing(False))

    def test_nothing_is_read_while_a_graph_is_captured(self, recorder: Recorder) -> None:
        recorder._capturing = lambda: True
        notes: dict[str, Any] = {}
        (line,) = recorder.entries(["0"], [torch.ones(2).as_subclass(OnDevice)], notes)
        assert json.loads(line)[1] is None
        assert notes["capture"] is True
        assert "CUDA graph" in notes["why"]

    def test_the_host_is_read_meanwhile(self, recorder: Recorder) -> None:
        recorder._capturing = lambda: True
        (line,) = recorder.entries(["0"], [torch.ones(2)], {})
        assert json.loads(line)[1]

    def test_no_device_is_asked_anything_while_a_graph_is_captured(
        self, recorder: Recorder
    ) -> None:
        def asked() -> bool:
            raise AssertionError("a query of an event ends the capture")

        x = torch.ones(2)
        recorder._capturing = lambda: True
        recorder.memory.flying[recorder.memory.number(x)] = asked
        notes: dict[str, Any] = {}
        (line,) = recorder.entries(["0"], [x], notes)
        assert json.loads(line)[1] is None
        assert notes == {"async": True}

    def test_a_copy_to_the_host_is_complete_when_the_device_has_come_that_far(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from pinner.inside.evidence.trace.passing import Passing

        arrived: list[bool] = []

        class Mark:
            def record(self, stream: Any) -> None:
                self.stream = stream

            def query(self) -> bool:
                return bool(arrived)

        monkeypatch.setattr(torch.cuda, "Event", Mark)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "stream")
        # Made outside: in torch 2.4 what comes out of the mode has its Python object already.
        source, target = torch.ones(2).as_subclass(OnDevice), torch.zeros(2)
        with recording(tmp_path) as found:
            arguments: Any = (target, source, True)
            passing = Passing(
                found.recorder, Facts(ATEN.copy_.default), arguments, {}, torch.Tensor
            )
            passing.before()
            passing.after(target, ("", "f"))
            target.sum()
            arrived.append(True)
            target.sum()
        first, second = found.ops("aten.sum")
        assert first["x"]["async"] is True
        assert [digest for _, digest in digests(first, "in")] == [None]
        assert second["in"][0][1]
