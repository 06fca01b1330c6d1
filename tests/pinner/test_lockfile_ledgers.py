"""Ledgers: typed records, a torn last line is no fault, any other damage names file and line."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from pinner.lockfile.errors import LedgerError
from pinner.lockfile.ledgers import (
    ChoiceRecord,
    CodeRecord,
    EndRecord,
    EvidenceRecord,
    FactsRecord,
    ProblemRecord,
    ProcessLedger,
    Record,
    SettingRecord,
    join,
    ledger_of,
    read_folder,
    read_ledger,
)
from tests import locks

CONFIG = {"BT": 32, "num_warps": 4}
KEY = {"N": 64}
LINES: list[dict[str, Any]] = [
    locks.process_line(3),
    {"t": "facts", "facts": {"torch": "2.13.0", "sm_count": 132}},
    locks.choice_line(
        KEY,
        CONFIG,
        [(CONFIG, 0.5), ({"BT": 16}, "inf")],
        heuristics={"EVEN": True},
        notes=["a note"],
        lib="(64,)",
    ),
    {
        "t": "problem",
        "kind": "invalid",
        "chooser": "triton",
        "kernel": locks.KERNEL,
        "key": KEY,
        "text": "not live",
        "candidates": [CONFIG],
    },
    locks.code_line(CONFIG, "0" * 16, "sha256:ab", options={"enable_fp_fusion": True}),
    {"t": "evidence", "stream": "loss", "step": 1, "digest": "sha256:1", "what": {"shape": []}},
    locks.setting_line(value={"none": True}),
    {"t": "end", "time": "2026-01-02T03:04:05Z"},
]


def _read(path: Path) -> ProcessLedger:
    ledger = read_ledger(path)
    assert ledger is not None
    return ledger


def _records(path: Path) -> list[Record]:
    return list(_read(path).records())


def test_each_kind_of_line_is_a_record(tmp_path: Path) -> None:
    path = locks.write_ledger(tmp_path, "a", LINES)
    ledger = _read(path)
    assert (ledger.process.name, ledger.process.world) == ("rank 3", 8)
    facts, choice, problem, code, evidence, setting, end = ledger.records()
    assert facts == FactsRecord({"torch": "2.13.0", "sm_count": 132})
    assert choice == ChoiceRecord(
        chooser="triton",
        kernel=locks.KERNEL,
        source=locks.SOURCE,
        key=KEY,
        config=CONFIG,
        alternatives=2,
        how="tuned",
        timings=((CONFIG, 0.5), ({"BT": 16}, float("inf"))),
        heuristics={"EVEN": True},
        notes=("a note",),
    )
    assert problem == ProblemRecord("invalid", "not live", "triton", locks.KERNEL, KEY, LINES[3])
    assert code == CodeRecord(
        chooser="triton",
        kernel=locks.KERNEL,
        source=None,
        key=None,
        config=CONFIG,
        spec="0" * 16,
        code="sha256:ab",
        options={"enable_fp_fusion": True},
    )
    assert evidence == EvidenceRecord("loss", 1, "sha256:1", {"shape": []})
    assert setting == SettingRecord("nccl", "NCCL_ALGO", {"none": True}, "recorded", "why")
    assert end == EndRecord("2026-01-02T03:04:05Z")


def test_records_and_lines_can_be_gone_through_again(tmp_path: Path) -> None:
    ledger = _read(locks.write_ledger(tmp_path, "a", LINES))
    assert list(ledger.records()) == list(ledger.records())
    assert list(ledger.lines()) == LINES[1:]


def test_what_a_process_left_in_another_file_follows_its_ledger() -> None:
    begun = [locks.process_line(rank, time=f"2026-01-02T03:04:0{rank}Z") for rank in (0, 1)]
    main = [ledger_of([line, locks.choice_line(KEY, CONFIG)]) for line in begun]
    mapped = ledger_of([{**begun[1], "time": ""}, locks.choice_line({"N": 1}, CONFIG)])
    alone = ledger_of([locks.process_line(2), locks.choice_line({"N": 2}, CONFIG)])
    joined = join([each for each in main if each], [each for each in (alone, mapped) if each])
    sizes = [
        [record.key["N"] for record in ledger.records() if isinstance(record, ChoiceRecord)]
        for ledger in joined
    ]
    assert sizes == [[64], [64, 1], [2]]
    assert [line["key"]["N"] for line in joined[1].lines()] == [64, 1]


def test_of_two_programs_of_one_process_the_later_one_left_the_file() -> None:
    """A program that replaced itself by another (exec) has the id of the first."""
    times = ("03:00", "04:00", "05:00")
    programs = [ledger_of([locks.process_line(0, time=f"2026-01-02T{each}")]) for each in times]
    mapped = ledger_of([locks.process_line(0, time="2026-01-02T04:30"), *LINES[-1:]])
    joined = join([each for each in programs if each], [mapped] if mapped else [])
    assert [len(each.joined) for each in joined] == [0, 1, 0]


def test_a_process_without_a_rank_goes_by_its_id() -> None:
    ledger = ledger_of([locks.process_line(None)])
    assert ledger is not None
    assert ledger.process.name == "pid 100 on node-a"


def test_a_ledger_cut_at_any_byte_has_the_lines_that_were_whole(tmp_path: Path) -> None:
    whole = locks.write_ledger(tmp_path, "a", LINES).read_bytes()
    cut = tmp_path / "cut.jsonl"
    ends = [offset for offset, byte in enumerate(whole) if byte == ord("\n")]
    for offset in range(len(whole) + 1):
        cut.write_bytes(whole[:offset])
        complete = sum(end <= offset for end in ends)  # its newline is not needed
        ledger = read_ledger(cut)
        found = [] if ledger is None else [LINES[0], *ledger.lines()]
        assert found == LINES[:complete]


def test_what_a_power_cut_leaves_at_the_end_is_no_line(tmp_path: Path) -> None:
    path = locks.write_ledger(tmp_path, "a", LINES)
    with path.open("ab") as file:
        file.write(b"\0" * 512)
    assert len(_records(path)) == len(LINES) - 1


@pytest.mark.parametrize("damage", ['{"t":"choi', "", "[1]", "\0\0", "é", '{"t": 01}', "[" * 9999])
def test_a_damaged_line_in_the_middle_names_file_and_line(tmp_path: Path, damage: str) -> None:
    path = locks.write_ledger(tmp_path, "a", LINES)
    lines = path.read_text().split("\n")
    lines[2] = damage
    path.write_bytes("\n".join(lines).encode("latin-1"))
    ledger = _read(path)
    with pytest.raises(LedgerError, match=rf"{path}:3: expected a JSON object"):
        list(ledger.records())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"key": [1]}, "choice line: key: expected an object, found an array"),
        ({"config": None}, "config: expected an object, found a NoneType"),
        ({"alternatives": "9"}, "alternatives: expected an integer, found a string"),
        ({"alternatives": True}, "alternatives: expected an integer, found a boolean"),
        ({"source": 1}, "source: expected a string"),
        ({"timings": [[CONFIG]]}, "timings: expected pairs"),
        ({"timings": [[CONFIG, "fast"]]}, "timings: expected pairs"),
        ({"timings": {}}, "timings: expected an array"),
        ({"t": "choise"}, "t: expected one of facts, choice"),
        ({"t": None}, "t: expected a string"),
    ],
)
def test_a_line_with_wrong_fields_names_file_line_and_field(
    tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    path = locks.write_ledger(tmp_path, "a", [LINES[0], {**LINES[2], **change}])
    with pytest.raises(LedgerError, match=says) as caught:
        _records(path)
    assert str(caught.value).startswith(f"{path}:2: ")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"held": "maybe"}, "held: expected one of set, forced, recorded, no, found a string"),
        ({"held": None}, "held: expected a string"),
        ({"name": 1}, "setting line: name: expected a string"),
    ],
)
def test_a_setting_with_wrong_fields_is_refused_too(change: dict[str, Any], says: str) -> None:
    ledger = ledger_of([LINES[0], {**locks.setting_line(), **change}], "file")
    assert ledger is not None
    with pytest.raises(LedgerError, match=says):
        list(ledger.records())


def test_a_setting_without_a_value_says_so() -> None:
    line = locks.setting_line()
    del line["value"]
    ledger = ledger_of([LINES[0], line], "file")
    assert ledger is not None
    with pytest.raises(LedgerError, match="file:2: setting line: value: expected a value"):
        list(ledger.records())


def test_a_ledger_must_begin_with_its_process(tmp_path: Path) -> None:
    path = locks.write_ledger(tmp_path, "a", LINES[1:])
    with pytest.raises(LedgerError, match=r":1: .* expected the line of the process first"):
        read_ledger(path)


def test_a_folder_gives_its_ledgers_and_skips_processes_that_wrote_nothing(tmp_path: Path) -> None:
    locks.write_ledger(tmp_path, "b", [locks.process_line(1)])
    locks.write_ledger(tmp_path, "a", [locks.process_line(0)])
    (tmp_path / "empty.jsonl").write_bytes(b"")
    (tmp_path / "killed.jsonl").write_bytes(b'{"t":"proc')
    (tmp_path / "other.txt").write_text("not a ledger")
    assert [ledger.process.rank for ledger in read_folder(tmp_path)] == [0, 1]


def test_what_cannot_be_opened_is_a_ledger_error(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="cannot list ledgers"):
        list(read_folder(tmp_path / "absent"))
    with pytest.raises(LedgerError, match="cannot read ledger"):
        read_ledger(tmp_path / "absent.jsonl")


def test_a_line_is_read_when_it_is_asked_for(tmp_path: Path) -> None:
    path = locks.write_ledger(tmp_path, "a", [LINES[0], LINES[2], LINES[2]])
    path.write_text(path.read_text() + "damaged\n")
    records = _read(path).records()
    assert isinstance(next(records), ChoiceRecord)
    assert isinstance(next(records), ChoiceRecord)
    with pytest.raises(LedgerError):
        next(records)


def _peak(path: Path) -> int:
    tracemalloc.start()
    try:
        for _ in _read(path).records():
            pass
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_long_ledger_takes_no_more_memory_than_a_short_one(tmp_path: Path) -> None:
    short = locks.write_ledger(tmp_path, "short", [LINES[0], *([LINES[5]] * 100)])
    long = locks.write_ledger(tmp_path, "long", [LINES[0], *([LINES[5]] * 20_000)])
    assert long.stat().st_size > 1_000_000
    assert _peak(long) < _peak(short) + 200_000


def test_lines_are_json_and_nothing_else(tmp_path: Path) -> None:
    """NaN and infinities are what Python writes; a key may hold them."""
    line = locks.choice_line({"eps": float("nan"), "cap": float("inf")}, CONFIG)
    path = locks.write_ledger(tmp_path, "a", [LINES[0], line])
    (record,) = _records(path)
    assert isinstance(record, ChoiceRecord)
    assert json.dumps(record.key) == '{"eps": NaN, "cap": Infinity}'
