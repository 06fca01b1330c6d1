"""Whole runs over the stand-in of cuBLASLt: recorded, enforced, and each kind of break named."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinner.inside.choosers.cublaslt import build
from pinner.lockfile.codec import read_lock
from tests.command_rig import Pinner, Said, python
from tests.fakes.cublaslt_stand_in import HERE, built

STEPS = python("cublaslt_steps.py")


class Runs:
    """The `pinner` command in a folder, on the workload of three steps."""

    def __init__(self, folder: Path) -> None:
        self.pinner = Pinner(folder)

    def __call__(self, *words: str, behaviour: str = "random", extra: str = "") -> Said:
        environ = {
            "CUBLASLT_FAKES": str(built()),
            "CUBLASLT_CALLS": str(HERE),
            "CUBLASLT_EXTRA": extra,
            "FAKE_CUBLASLT": behaviour,
            build.PREBUILT: str(built() / "interpose.so"),
        }
        return self.pinner(*words, "--cublaslt", "on", "--", *STEPS, **environ)


@pytest.fixture(name="runs")
def _runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


@pytest.fixture(name="sealed", scope="module")
def _sealed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The text of a lock that was recorded under a stand-in which picks at random."""
    folder = tmp_path_factory.mktemp("sealed")
    said = Runs(folder)("record")
    assert said.code == 0, said.err
    return (folder / "pinner.lock.toml").read_text()


@pytest.fixture(name="locked")
def _locked(runs: Runs, sealed: str) -> Runs:
    runs.pinner.path("pinner.lock.toml").write_text(sealed)
    return runs


def report(
    runs: Runs, behaviour: str = "random", extra: str = "", *words: str
) -> tuple[Said, dict]:
    import json

    said = runs("enforce", "--report", "r.json", *words, behaviour=behaviour, extra=extra)
    path = runs.pinner.path("r.json")
    return said, json.loads(path.read_text()) if path.exists() else {}


class TestRecord:
    def test_a_run_that_picks_at_random_is_sealed(self, sealed: str, runs: Runs) -> None:
        runs.pinner.path("pinner.lock.toml").write_text(sealed)
        lock = read_lock(runs.pinner.path("pinner.lock.toml"))
        assert (lock.run.sealed, lock.run.complete) == (True, True)
        assert [entry.key["c_rows"] for entry in lock.cublaslt] == [4, 8]
        assert lock.policy["cublaslt.interposer"] == "on"

    @pytest.mark.parametrize("extra", ["implicit", "legacy"])
    def test_a_lock_with_a_hole_is_not_complete(self, runs: Runs, extra: str) -> None:
        """P11: what never came through the chooser is said."""
        said = runs("record", extra=extra)
        assert said.code == 0, said.err
        assert not read_lock(runs.pinner.path("pinner.lock.toml")).run.complete


class TestEnforce:
    def test_all_are_used(self, locked: Runs) -> None:
        said, found = report(locked, "random", "", "--verify")
        assert said.code == 0, said.err
        assert (found["locked"], found["used"], found["invalid"]) == (2, 2, 0)
        assert "cublaslt: 2 of 2 used" in said.text

    def test_a_refused_algorithm_is_broken(self, locked: Runs) -> None:
        """P12: never a silent fallback, though the command itself ends well."""
        said, found = report(locked, "random,fail-matmul=1")
        assert (said.code, found["invalid"]) == (97, 1)
        assert "cublasLtMatmul returned CUBLAS_STATUS_EXECUTION_FAILED" in said.text

    def test_an_algorithm_that_the_check_refuses_is_broken(self, locked: Runs) -> None:
        said, found = report(locked, "random,fail-check=2")
        assert (said.code, found["invalid"]) == (97, 1)

    def test_results_in_another_order_are_the_same(self, locked: Runs) -> None:
        """P13."""
        said, found = report(locked, "random,shuffle", "", "--verify")
        assert (said.code, found["used"]) == (0, 2)

    def test_a_miss_falls_back_and_is_counted(self, locked: Runs) -> None:
        said, found = report(locked, extra="size")
        assert (said.code, found["fallback"], found["used"]) == (0, 1, 2)

    def test_a_miss_is_an_error_when_strict(self, locked: Runs) -> None:
        said, found = report(locked, "random", "size", "--on-miss", "error")
        assert (said.code, found["missed"]) == (97, 1)

    def test_a_legacy_call_is_named_as_not_enforceable(self, locked: Runs) -> None:
        said, found = report(locked, extra="legacy")
        assert (said.code, found["unenforceable"]) == (0, 1)
        assert "cublasSgemm_v2 was called 1 times" in said.text


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("cublaslt = 130200", f"cublaslt = {1 << 66}", f"the version {1 << 66} in `cublaslt`"),
        ("cublaslt = 130200", "cublaslt = -1", "the version -1 in `cublaslt`"),
        (" c_rows = 4", f" c_rows = {1 << 64}", "a known word for c_rows"),
        ("{ a_cols", "{ surplus = 3, a_cols", "the field surplus"),
    ],
)
def test_a_problem_edited_by_hand_is_refused_by_check_and_enforce_alike(
    locked: Runs, sealed: str, old: str, new: str, says: str
) -> None:
    """Nothing is cut to what a word of the C library holds."""
    assert old in sealed
    path = locked.pinner.path("pinner.lock.toml")
    path.write_text(sealed.replace(old, new, 1))
    for words, code in (("check", path), 65), (("enforce", "--", *STEPS), 96):
        said = locked.pinner(*words)
        assert said.code == code, said.err
        assert says in said.err
        assert "the problem with a_cols=64" in said.err or new in said.err
