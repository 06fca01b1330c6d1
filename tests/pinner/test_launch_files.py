"""What lies in files: sessions, ledgers and launchers' records, evidence from outside, taps."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pinner import shipped
from pinner.inside import session as inside_session
from pinner.launch import session_dir, taps
from pinner.launch.collect import collect
from pinner.launch.outside import Files, Lines
from pinner.launch.session_dir import SessionDir, SessionError, SessionTaken, Settings
from pinner.lockfile.errors import LedgerError

INJECT = str(shipped.inject_dir())


def settings(**more: Any) -> Settings:
    return Settings(**{"mode": "observe", "run": "r", "created": "2026-01-01T00:00:00Z", **more})


@pytest.fixture
def session(tmp_path: Path) -> SessionDir:
    return session_dir.create(tmp_path / "session", settings())


class TestSession:
    def test_the_processes_read_what_the_launcher_wrote(self, tmp_path: Path) -> None:
        wanted = settings(mode="enforce", on_miss="error", allow=("torch",), replay=True)
        made = session_dir.create(tmp_path / "s", wanted, pins="{}")
        found = inside_session.read(str(made.path), "enforce")
        assert (found.on_miss, found.allow, found.replay) == ("error", ["torch"], True)
        assert found.pins == str(made.pins)
        assert os.path.isdir(found.ledger_folder)
        assert session_dir.read(made.path).settings == wanted

    @pytest.mark.parametrize("asked", ["auto", "on", "off"])
    def test_the_processes_are_told_whether_cublaslt_is_watched(
        self, tmp_path: Path, asked: Any
    ) -> None:
        made = session_dir.create(tmp_path / "s", settings(cublaslt=asked))
        assert inside_session.read(str(made.path), None).cublaslt == asked
        assert session_dir.read(made.path).settings.cublaslt == asked
        assert made.cublaslt.is_dir()

    def test_a_session_of_before_watches_it_where_it_can(self, session: SessionDir) -> None:
        file = session.path / "session.json"
        fields = json.loads(file.read_text())
        del fields["cublaslt"]
        file.write_text(json.dumps(fields))
        assert inside_session.read(str(session.path), None).cublaslt == "auto"
        assert session_dir.read(session.path).settings.cublaslt == "auto"

    def test_a_folder_that_is_taken_is_refused(self, session: SessionDir) -> None:
        with pytest.raises(SessionTaken, match="found one"):
            session_dir.create(session.path, settings(run="other"))

    def test_whoever_joins_gets_the_first_ones_settings(self, session: SessionDir) -> None:
        assert session_dir.join(session.path, settings(run="late")).settings.run == "r"

    def test_a_folder_that_cannot_be_made_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(SessionError, match="--dir"):
            session_dir.create(tmp_path / "file" / "s", settings())

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 9}', '{"version": 1}'])
    def test_a_damaged_session_is_no_traceback(self, session: SessionDir, text: str) -> None:
        (session.path / "session.json").write_text(text)
        with pytest.raises(SessionError, match=r"session\.json"):
            session_dir.read(session.path)

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            (None, INJECT),
            ("", INJECT),
            ("/a:/b", f"{INJECT}:/a:/b"),
            (f"{INJECT}:/a", f"{INJECT}:/a"),
            (INJECT, INJECT),
            ("/a:", f"{INJECT}:/a:"),
        ],
    )
    def test_pythonpath_keeps_what_it_hides(
        self, session: SessionDir, before: str | None, after: str
    ) -> None:
        """An empty part would stand for the working folder; an outer pinner's is not doubled."""
        environ = {} if before is None else {"PYTHONPATH": before}
        assert session.variables(environ)["PYTHONPATH"] == after

    def test_fresh_caches_are_gone_afterwards(self) -> None:
        with session_dir.fresh_caches({"TRITON_CACHE_DIR": "/mine", "A": "1"}) as environ:
            folder = Path(environ["TRITON_CACHE_DIR"])
            folder.mkdir()
            assert environ["A"] == "1"
        assert not folder.parent.exists()


HEADER = {"t": "process", "pid": 1, "host": "h", "rank": 0, "world": 1, "argv": ["x"], "time": "1"}


def evidence(step: int, digest: str, stream: str = "s") -> dict[str, Any]:
    return {"t": "evidence", "stream": stream, "step": step, "digest": digest, "what": {}}


def write_ledger(session: SessionDir, name: str, *lines: dict[str, Any], cut: str = "") -> Path:
    path = session.ledger / f"{name}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + cut)
    return path


class TestCollecting:
    def test_a_last_line_cut_by_a_kill_is_left_out(self, session: SessionDir) -> None:
        write_ledger(session, "a", HEADER, evidence(0, "d0"), cut='{"t": "evid')
        assert collect(session).evidence().streams == {"s": {0: ((0, "d0"),)}}

    def test_a_process_cut_before_its_first_line_is_nobody(self, session: SessionDir) -> None:
        write_ledger(session, "a", cut='{"t": "proc')
        write_ledger(session, "b")
        assert collect(session).ledgers == ()

    def test_damage_elsewhere_is_an_error_with_file_and_line(self, session: SessionDir) -> None:
        path = write_ledger(session, "a", HEADER, cut='{"t": "evid\n{"t": "end"}\n')
        with pytest.raises(LedgerError, match=f"{path}:2"):
            list(collect(session).ledgers[0].records())

    def test_a_rank_that_was_started_again_follows_its_first_life(
        self, session: SessionDir
    ) -> None:
        write_ledger(session, "a", {**HEADER, "pid": 1, "time": "2"}, evidence(1, "late"))
        write_ledger(session, "b", {**HEADER, "pid": 9, "time": "1"}, evidence(0, "early"))
        assert [ledger.process.pid for ledger in collect(session).ledgers] == [9, 1]

    def test_what_launchers_saw_is_evidence(self, session: SessionDir) -> None:
        """Two hosts see one shared file; what counts is its last state, whoever saw it."""
        for name, changed, digest in (("a", 5, "half"), ("b", 9, "whole")):
            record = {"task": 0, "tasks": 1, "host": name, "code": 0}
            files = {"out.bin": [changed, digest]}
            (session.launchers / f"{name}.json").write_text(json.dumps({**record, "files": files}))
        run = collect(session)
        assert run.evidence().streams == {"file:out.bin": {0: ((0, "whole"),)}}

    def test_standard_output_belongs_to_its_task(self, session: SessionDir) -> None:
        for task in range(2):
            record = {"task": task, "tasks": 2, "host": "h", "code": 0}
            printed = [["stdout:loss", 0, f"d{task}"]]
            path = session.launchers / f"{task}.json"
            path.write_text(json.dumps({**record, "stdout": printed}))
        streams = collect(session).evidence().streams
        assert streams == {"stdout:loss": {0: ((0, "d0"),), 1: ((0, "d1"),)}}

    def test_faults_are_read_even_when_damaged(self, session: SessionDir) -> None:
        (session.faults / "a.json").write_text('{"cause": "torn pins"}')
        (session.faults / "b.json").write_text("{")
        assert [fault["cause"] for fault in collect(session).faults] == ["torn pins", "{"]


class TestFilesAsEvidence:
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)

    def test_only_what_was_written_counts(self) -> None:
        Path("old.bin").write_bytes(b"old")
        Path("again.bin").write_bytes(b"same")
        files = Files(["*.bin"])
        Path("new.bin").write_bytes(b"new")
        Path("again.bin").write_bytes(b"same")  # the same bytes, written by this run
        assert set(files.written().files) == {"new.bin", "again.bin"}

    def test_a_file_that_was_replaced_or_dated_back_counts(self) -> None:
        Path("a").write_bytes(b"x")
        stamp = os.stat("a").st_mtime_ns
        files = Files(["a"])
        Path("b").write_bytes(b"y")
        os.utime("b", ns=(stamp, stamp))
        os.replace("b", "a")
        assert set(files.written().files) == {"a"}

    def test_globs_reach_into_folders(self) -> None:
        files = Files(["runs/**/*.pt"])
        Path("runs/deep/er").mkdir(parents=True)
        Path("runs/deep/er/model.pt").write_bytes(b"m")
        assert set(files.written().files) == {"runs/deep/er/model.pt"}

    def test_digests_are_of_the_bytes(self) -> None:
        files = Files(["a", "b", "c"])
        for name, data in (("a", b"1"), ("b", b"1"), ("c", b"2")):
            Path(name).write_bytes(data)
        found = files.written().files
        assert found["a"][1] == found["b"][1] != found["c"][1]

    def test_globs_without_a_file_are_named(self) -> None:
        Path("old").write_bytes(b"")
        missing = Files(["old", "none*"]).written().missing
        assert missing == ("old: 1 there, none was written by this run", "none*: no such file")


class TestLinesAsEvidence:
    def steps(self, text: str, *pieces: bytes) -> list[tuple[int, str]]:
        lines = Lines([text])
        for piece in pieces:
            lines.feed(piece)
        return [(step, digest) for _, step, digest in lines.close()]

    def test_pieces_of_any_size_give_the_same(self) -> None:
        data = b"loss 1.5\nnoise\nloss 2.5\nloss 3"
        whole = self.steps(r"loss (\S+)", data)
        assert [step for step, _ in whole] == [0, 1, 2]
        assert self.steps(r"loss (\S+)", *(data[i : i + 1] for i in range(len(data)))) == whole

    def test_the_first_group_counts_or_all(self) -> None:
        assert self.steps(r"loss (\S+)", b"a loss 1\n") == self.steps(r"loss (\S+)", b"b loss 1\n")
        assert self.steps(r".*loss \S+", b"a loss 1\n") != self.steps(r".*loss \S+", b"b loss 1\n")

    def test_bytes_that_are_no_text_and_progress_bars_are_read(self) -> None:
        assert len(self.steps(r"step (\d+)", b"\xff step 1\rstep 2\r\xfe\nstep 3")) == 3

    def test_an_expression_without_a_match_is_named(self) -> None:
        lines = Lines(["loss", "norm"])
        lines.feed(b"loss 1\n")
        lines.close()
        assert lines.missing() == ("norm",)


class TestTaps:
    GOOD = '[[tap]]\nmodule = "m"\nfunction = "f"\nstream = "loss"\n'

    def write(self, folder: Path, text: str) -> str:
        (folder / "taps.toml").write_text(text)
        return str(folder / "taps.toml")

    def test_a_tap_is_read_and_its_reason_stays_out(self, tmp_path: Path) -> None:
        more = 'reason = "why"\nindex = 0\nkey = "lm loss"\nvalue = { argument = "x" }\n'
        (tap,) = taps.read_taps([self.write(tmp_path, self.GOOD + more)])
        assert tap == {
            "module": "m",
            "function": "f",
            "stream": "loss",
            "index": 0,
            "key": "lm loss",
            "value": {"argument": "x"},
        }

    @pytest.mark.parametrize(
        ("text", "named"),
        [
            ("", "expected one or more"),
            ("[[tap", "expected TOML"),
            ("[tap]\nmodule = 'm'\n", "expected one or more"),
            ("[[tap]]\nmodule = 'm'\n", "function: expected a string"),
            (GOOD + "colour = 1\n", "unknown field 'colour'"),
            (GOOD + "value = 'argument'\n", "value: expected"),
            (GOOD + "value = { argument = 1 }\n", "value: expected"),
            (GOOD + "index = true\n", "index: expected an integer"),
            (GOOD + "key = 1\n", "key: expected a string"),
            (GOOD + "[other]\nx = 1\n", "found other"),
        ],
    )
    def test_what_cannot_be_meant_is_named(self, tmp_path: Path, text: str, named: str) -> None:
        with pytest.raises(taps.TapError, match=named):
            taps.read_taps([self.write(tmp_path, text)])

    def test_a_file_that_is_not_there(self) -> None:
        with pytest.raises(taps.TapError, match="no-such-library"):
            taps.read_taps(["no-such-library.toml"])
