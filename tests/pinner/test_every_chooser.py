"""One lock spans every chooser: recorded, sealed and enforced by the command line, and each kind of
break is named and counted."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from pinner.inside.choosers.cublaslt import build
from pinner.launch import session_dir
from pinner.launch.collect import collect
from pinner.lockfile.codec import read_lock, update_lock, write_lock
from pinner.lockfile.compiled import pins_text
from pinner.lockfile.errors import LockError
from pinner.lockfile.ledgers import ChoiceRecord
from pinner.lockfile.schema import Lock
from tests import locks
from tests.command_rig import Pinner, Said
from tests.fakes.cublaslt_stand_in import Rig, built

EVERY = [sys.executable, "-m", "tests.workloads.every_chooser"]


def multiplying(**more: str) -> dict[str, str]:
    """The environment in which matrices are multiplied by the stand-in."""
    fakes = built()
    return {"CUBLASLT_FAKES": str(fakes), build.PREBUILT: str(fakes / "interpose.so"), **more}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the lock of a run in which every chooser decided."""
    pinner = Pinner(tmp_path_factory.mktemp("every"))
    said = pinner("record", "--cublaslt", "on", "--", *EVERY, **multiplying(FAKE_CUBLASLT="pick=3"))
    assert said.code == 0, said.err
    return pinner.folder


@pytest.fixture
def pinner(recorded: Path, tmp_path: Path) -> Pinner:
    shutil.copytree(recorded, tmp_path / "here")
    return Pinner(tmp_path / "here")


def enforce(pinner: Pinner, *options: str, **environ: str) -> tuple[Said, dict[str, Any]]:
    words = ("enforce", "--cublaslt", "on", "--report", "report.json", *options, "--", *EVERY)
    said = pinner(*words, **multiplying(**environ))
    return said, json.loads((pinner.folder / "report.json").read_text())


def lock_of(pinner: Pinner) -> Lock:
    return read_lock(pinner.folder / "pinner.lock.toml")


def test_the_lock_has_the_choices_of_all_and_the_settings(pinner: Pinner) -> None:
    lock = lock_of(pinner)
    assert (lock.run.sealed, lock.run.complete) == (True, True)
    assert [len(part) for part in (lock.triton, lock.inductor, lock.cublaslt)] == [2, 2, 2]
    assert [entry.config["splitk"] for entry in lock.cublaslt] == [4, 4]
    assert [(each.name, each.value, each.held) for each in lock.settings] == [
        ("ring", "ring", "recorded"),
        ("tree", 1, "forced"),
    ]
    assert lock.policy["tests.deterministic"] is False


def test_every_choice_is_forced_whatever_would_be_taken(pinner: Pinner) -> None:
    said, report = enforce(pinner, "--verify", TAKES="9", FAKE_CUBLASLT="pick=1")
    assert said.code == 0, said.err
    assert (report["locked"], report["used"]) == (6, 6)
    assert {row["state"] for row in report["settings"]} == {"held"}
    closing = said.err.splitlines()[-4:]
    assert closing == [
        "pinner: triton: 2 of 2 used",
        "pinner: inductor: 2 of 2 used",
        "pinner: cublaslt: 2 of 2 used, 1 setting held",
        "pinner: tests: 3 settings held",
    ]


def test_without_the_lock_the_bits_are_others(pinner: Pinner) -> None:
    said = pinner(
        *("record", "--cublaslt", "on", "-o", "other.toml", "--", *EVERY),
        **multiplying(TAKES="2", FAKE_CUBLASLT="pick=1"),
    )
    assert said.code == 0, said.err
    streams = [
        {stream.name: stream.digest for stream in lock.evidence.streams}
        for lock in (lock_of(pinner), read_lock(pinner.folder / "other.toml"))
    ]
    assert all(streams[0][name] != streams[1][name] for name in streams[0])
    lines = pinner("diff", "pinner.lock.toml", "other.toml").out.splitlines()
    assert lines[0] == "choices that differ: 6"
    assert lines[2].startswith("    SPLITK 4 → ")
    assert "  inductor gemm:addmm: BLOCK=1 → BLOCK=2" in lines
    assert "  tests tree 1 → 2" in lines


@pytest.mark.parametrize(
    ("environ", "field", "code", "says"),
    [
        ({"FAULT": "cache"}, "invalid", 97, "inductor gemm:addmm: a compile cache decided"),
        ({"FAULT": "heuristic"}, "fallback", 0, "1 fallback"),
        ({"FAULT": "bypass"}, "unenforceable", 0, "not enforceable: cublaslt matmul: mapped"),
        ({"FAULT": "no"}, "unenforceable", 0, "not enforceable: tests benchmark: switch it off"),
        ({"RING": "other"}, "drifted", 0, "drifted: tests ring: the lock was recorded with 'ring'"),
        (
            {"SWITCH": "1"},
            "drifted",
            0,
            "the lock was recorded with tests.deterministic = false, this pinner sets true",
        ),
        ({"FAKE_CUBLASLT": "fail-check=1"}, "invalid", 97, "cuBLASLt does not take the locked"),
        ({"FAKE_CUBLASLT": "fail-matmul=2"}, "invalid", 97, "cublasLtMatmul returned"),
    ],
)
def test_each_kind_of_break_is_named_and_counted(
    pinner: Pinner, environ: dict[str, str], field: str, code: int, says: str
) -> None:
    said, report = enforce(pinner, **environ)
    assert (said.code, says in said.err) == (code, True), said.err
    assert report[field] >= 1
    if field == "drifted":
        assert enforce(pinner, "--on-miss", "error", **environ)[0].code == 97


@pytest.mark.parametrize("fault", ["bypass", "no", "late"])
def test_a_recording_with_a_hole_is_not_called_complete(tmp_path: Path, fault: str) -> None:
    """Case P11."""
    pinner = Pinner(tmp_path)
    said = pinner("record", "--cublaslt", "off", "--", *EVERY, FAULT=fault)
    assert said.code == 0, said.err
    assert (
        "not held in a validating run: " if fault == "late" else "not in the lock: "
    ) in said.err
    assert not lock_of(pinner).run.complete
    assert "note: not complete" in pinner("check", "--no-stack").out


def test_a_setting_that_changes_from_run_to_run_is_no_sealed_lock(tmp_path: Path) -> None:
    pinner = Pinner(tmp_path)
    script = f"RING=$$ exec {sys.executable} -m tests.workloads.every_chooser"
    said = pinner("record", "--cublaslt", "off", "--", "sh", "-c", script)
    assert (said.code, "1 drifted: tests ring" in said.err) == (3, True), said.err


def test_an_audit_names_what_was_timed_and_what_a_heuristic_said(tmp_path: Path) -> None:
    said = Pinner(tmp_path)("audit", "--json", "--cublaslt", "on", "--", *EVERY, **multiplying())
    assert said.code == 0, said.err
    found = said.json["audit"]
    assert {each["chooser"] for each in found["by_timing"]} == {"triton", "inductor"}
    assert [each["chooser"] for each in found["by_heuristic"]] == ["cublaslt"] * 2
    assert [each["name"] for each in found["settings"]] == ["ring", "tree"]


class TestMapFiles:
    """What the C library mapped comes to the ledger of its process."""

    def mapped(self, folder: Path) -> Rig:
        rig = Rig(folder)
        rig.calls("l = load()\nimport pinner\npinner.fingerprint('x', 1)\nshow(gemm(l))\n")
        return rig

    def test_a_map_joins_the_ledger_of_its_process(self, tmp_path: Path) -> None:
        rig = self.mapped(tmp_path / "run")
        assert len(rig.map_files()) == 1
        (ledger,) = collect(session_dir.read(rig.folder)).ledgers
        choices = [each for each in ledger.records() if isinstance(each, ChoiceRecord)]
        assert [choice.chooser for choice in choices] == ["cublaslt"]

    def test_a_map_without_a_ledger_stands_alone(self, tmp_path: Path) -> None:
        rig = self.mapped(tmp_path / "run")
        for path in (rig.folder / "ledger").iterdir():
            path.unlink()
        (ledger,) = collect(session_dir.read(rig.folder)).ledgers
        assert len(list(ledger.records())) == 1

    def test_a_map_that_was_cut_is_named(self, tmp_path: Path) -> None:
        rig = self.mapped(tmp_path / "run")
        (path,) = rig.map_files()
        path.write_bytes(path.read_bytes()[:5000])
        said = Pinner(tmp_path)("merge", str(rig.folder))
        assert (said.code, f"{path}" in said.err) == (65, True)


class TestPinsForC:
    """The table that the C library maps stands beside the pins."""

    def create(self, folder: Path, lock: Lock) -> session_dir.SessionDir:
        settings = session_dir.Settings("enforce", "r", "2026-01-01T00:00:00Z")
        return session_dir.create(folder, settings, pins_text(lock, "sha256:1"))

    def test_it_is_written_where_there_is_something_to_pin(
        self, pinner: Pinner, tmp_path: Path
    ) -> None:
        made = self.create(tmp_path / "some", lock_of(pinner))
        assert (made.path / "cublaslt.pins").stat().st_size > 0
        assert made.cublaslt.is_dir()
        none = self.create(tmp_path / "none", locks.full_lock())
        assert not (none.path / "cublaslt.pins").exists()

    def test_a_problem_that_has_no_place_in_it_is_refused_before_the_start(
        self, pinner: Pinner, tmp_path: Path
    ) -> None:
        path = pinner.folder / "pinner.lock.toml"
        edited = path.read_text().replace('compute = "32F"', 'compute = "33F"')
        assert edited != path.read_text()
        path.write_text(edited)
        assert pinner("enforce", "--", *EVERY).code == 96
        said = pinner("env")
        assert said.code == 65
        assert "[[cublaslt]]: cannot be pinned: expected a number or a known word" in said.err
        with pytest.raises(LockError, match="cannot be pinned"):
            self.create(tmp_path / "s", read_lock(path))
        assert [each.name for each in tmp_path.iterdir() if "here" not in each.name] == []


def test_the_lock_can_be_changed_by_hand_in_every_section(pinner: Pinner) -> None:
    path = pinner.folder / "pinner.lock.toml"
    before = path.read_text()
    lock = update_lock(path, lambda read: read)
    write_lock(path, lock)
    assert path.read_text() == before


def test_letting_go_of_locked_choices_of_cublaslt_is_refused(pinner: Pinner) -> None:
    under = ("-l", "pinner.lock.toml", "--cublaslt", "off")
    for words, code in (
        (("enforce", *under, "--", *EVERY), 96),
        (("env", *under), 4),
        (("verify", *under, "--", *EVERY), 4),
        (("trace", "-o", "traced", *under, "--", *EVERY), 4),
    ):
        said = pinner(*words, **multiplying())
        assert said.code == code
        assert "the lock holds 2 choices of cuBLASLt" in said.err
