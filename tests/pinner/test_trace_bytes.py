"""Kept bytes of a trace: each tensor once, within a limit, and what a comparison makes of them."""

from __future__ import annotations

import json
import os
import random
import threading
from pathlib import Path

import pytest
import torch

from pinner.compare.tensor_bytes import read_header
from pinner.compare.trace_report import Report
from pinner.compare.traces import compare_traces
from pinner.inside.evidence.digest import digest_many
from pinner.inside.evidence.trace.keeping import FULL, Keeping, file_name
from tests.command_rig import Pinner, python
from tests.trace_rig import recording

PLENTY = 1 << 30


@pytest.fixture
def chance() -> random.Random:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    return random.Random(seed)


def traced(folder: Path, bit: tuple[int, int] | None = None, keep: int | None = PLENTY) -> Path:
    """A trace of two operations. bit: an element of the first result, and which bit of it flips."""
    x = torch.arange(12, dtype=torch.float32).reshape(3, 4) + 1
    with recording(folder, keep=keep):
        y = x * 1.5
        if bit is not None:
            element, number = bit
            y.view(torch.int32).flatten().numpy()[element] ^= 1 << number
        y + y
        y + y
    return folder


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("rank-none/bytes/*.safetensors"))


def compared(a: Path, b: Path) -> Report:
    return compare_traces(a, b, jobs=1)


class TestWhatIsKept:
    def test_each_tensor_once_under_its_digest(self, tmp_path: Path) -> None:
        folder = traced(tmp_path / "a")
        (log,) = folder.glob("rank-none/*.jsonl")
        events = [json.loads(line) for line in log.read_text().splitlines() if '"e":' in line]
        digests = {row[1] for event in events for row in (*event["in"], *event["out"])}
        assert {path.name for path in files(folder)} == {file_name(each) for each in digests}
        assert len(digests) == 3

    def test_nothing_where_it_was_not_asked_for(self, tmp_path: Path) -> None:
        folder = traced(tmp_path / "a", keep=None)
        assert not (folder / "rank-none" / "bytes").exists()

    def test_only_what_the_window_holds(self, tmp_path: Path) -> None:
        with recording(tmp_path, keep=PLENTY, **{"from": 1, "to": 1}) as found:
            torch.ones(3) + 1
            found.recorder.next_step()
            torch.ones(5) + 1
            found.recorder.next_step()
            torch.ones(7) + 1
        shapes = {read_header(path).tensors["value"].shape for path in files(tmp_path)}
        assert shapes == {(5,)}

    def test_no_more_than_the_limit_and_that_is_said_once(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        folder = traced(tmp_path / "a", keep=2 * 4096)
        assert len(files(folder)) == 2
        assert (folder / "rank-none" / "bytes" / FULL).read_text() == (
            "the limit of 8192 bytes is reached\n"
        )
        assert capfd.readouterr().err == (
            "pinner: WARNING: no more tensors of this rank are kept: "
            "the limit of 8192 bytes is reached\n"
        )

    def test_a_folder_that_cannot_be_made_does_not_end_the_run(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        (tmp_path / "rank-none").mkdir()
        (tmp_path / "rank-none" / "bytes").write_text("in the way")
        traced(tmp_path)
        assert (
            "no more tensors of this rank are kept: the bytes cannot be written: File exists"
            in (capfd.readouterr().err)
        )
        assert len(list(tmp_path.glob("rank-none/*.jsonl"))) == 1
        assert list((tmp_path / "elsewhere").iterdir()) == []

    def test_threads_and_forked_processes_keep_whole_files(self, tmp_path: Path) -> None:
        keeping = Keeping(str(tmp_path), PLENTY)
        many = [torch.full((1000,), float(number)) for number in range(40)]
        texts = digest_many(many)

        def work() -> None:
            keeping.take(many, texts)

        pid = os.fork()
        if pid == 0:
            keeping.forget()
            work()
            os._exit(0)
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert os.waitpid(pid, 0)[1] == 0
        kept = tmp_path / "rank-none" / "bytes"
        assert {path.name for path in kept.iterdir()} == {file_name(text) for text in texts}
        for path in kept.iterdir():
            assert read_header(path).tensors["value"].shape == (1000,)

    def test_what_another_process_of_the_rank_kept_counts(self, tmp_path: Path) -> None:
        kept = tmp_path / "rank-none" / "bytes"
        kept.mkdir(parents=True)
        (kept / "sha256-0.safetensors").write_bytes(b"\0" * 5000)
        traced(tmp_path, keep=3 * 4096)
        assert len(files(tmp_path)) == 2


class TestFigures:
    def test_a_flipped_low_bit_is_one_element_and_one_ulp(
        self, tmp_path: Path, chance: random.Random
    ) -> None:
        element = chance.randrange(12)
        a, b = traced(tmp_path / "a"), traced(tmp_path / "b", (element, 0))
        report = compared(a, b)
        (figures, *_) = report.to_json()["bytes"]
        (found,) = figures["differences"]
        assert (found["differing"], found["elements"], found["ulp"]) == (1, 12, 1)
        assert (found["first"], found["index"]) == (element, [element // 4, element % 4])
        value = torch.tensor((element + 1) * 1.5).view(torch.int32).item()
        assert found["hex"] == [f"0x{value:08x}", f"0x{value ^ 1:08x}"]
        assert (
            f"bytes: input 0: 1 of 12 float32 elements differ, first at {found['index']}: "
            f"{found['hex'][0]} and {found['hex'][1]}, 1 ulp apart"
        ) in report.text()

    def test_any_other_bit(self, tmp_path: Path, chance: random.Random) -> None:
        bit = chance.randrange(1, 23)
        report = compared(traced(tmp_path / "a"), traced(tmp_path / "b", (3, bit)))
        assert report.figures[0].differences[0].ulp == 1 << bit

    def test_without_kept_bytes_nothing_is_said_of_them(self, tmp_path: Path) -> None:
        sides = [traced(tmp_path / "a", keep=None), traced(tmp_path / "b", (0, 0), keep=None)]
        report = compared(*sides)
        assert (report.exit, report.figures, report.to_json()["bytes"]) == (1, (), [])

    def test_one_side_without_them_is_said(self, tmp_path: Path) -> None:
        report = compared(traced(tmp_path / "a"), traced(tmp_path / "b", (0, 0), keep=None))
        assert "bytes: input 0: not kept in B (it was traced without --keep-bytes)" in report.text()

    def test_a_limit_that_was_reached_is_said(self, tmp_path: Path) -> None:
        report = compared(traced(tmp_path / "a"), traced(tmp_path / "b", (0, 0), keep=4096))
        assert (
            "not kept in B (the limit of 4096 bytes is reached: narrow the window)"
        ) in report.text()

    def test_streams_have_digests_only_and_that_is_said(self, tmp_path: Path) -> None:
        sides = [traced(tmp_path / "a"), traced(tmp_path / "b")]
        for folder, digest in zip(sides, ("nh128:1", "nh128:2"), strict=True):
            (log,) = folder.glob("rank-none/*.jsonl")
            head = log.read_text().splitlines()[0]
            line = {"e": "step", "n": "loss", "s": 0, "out": [["0", digest, "float", []]]}
            log.write_text(f"{head}\n{json.dumps(line)}\n")
        text = compared(*sides).text()
        assert "bytes: loss: values of streams are not kept, only their digests" in text

    def test_a_file_that_was_cut_is_said(self, tmp_path: Path) -> None:
        a, b = traced(tmp_path / "a"), traced(tmp_path / "b", (0, 0))
        for path in files(b):
            path.write_bytes(path.read_bytes()[:-4])
        report = compared(a, b)
        assert report.exit == 1
        assert "is cut off: the file has" in report.text()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["trace", "-o", "x", "--keep-limit", "1G"], "--keep-limit belongs to --keep-bytes"),
        (["trace", "-o", "x", "--keep-bytes", "--keep-limit", "much"], "such as 500M or 2G"),
        (["trace", "-o", "x", "--keep-bytes", "--defer"], "leave --defer out"),
        (["verify", "--keep-bytes", "--resume"], "belongs to the traces that follow"),
        (["verify", "--keep-bytes", "--no-trace"], "belongs to the traces that follow"),
    ],
)
def test_options_that_mean_nothing_are_refused(tmp_path: Path, words: list[str], text: str) -> None:
    said = Pinner(tmp_path)(*words, "--", *python("plain.py"))
    assert said.code == 64
    assert text in said.err
    assert not (tmp_path / "x").exists()
