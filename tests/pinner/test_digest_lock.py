"""A lock names the algorithm of its evidence; that one is used, and two are never compared."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pinner.compare import locked
from pinner.compare.evidence import Emitter, RunEvidence, gather
from pinner.inside.evidence.algorithms import named
from pinner.inside.evidence.digest import SHA256, combine, digest, digest_many
from pinner.inside.faults import EvidenceError
from pinner.lockfile.compiled import compile_pins
from pinner.lockfile.schema import Evidence
from tests.locks import full_lock
from tests.session_rig import SessionRig


def run(algorithm: str, **streams: str) -> RunEvidence:
    """One digest, made of a letter, for each step of each stream."""
    lines = [
        (stream, step, f"{algorithm}:{letter}")
        for stream, letters in streams.items()
        for step, letter in enumerate(letters)
    ]
    return gather([Emitter(0, tuple(lines))])


def merged(*runs: RunEvidence) -> RunEvidence:
    return RunEvidence({name: ranks for each in runs for name, ranks in each.streams.items()})


class TestWhatALockKeeps:
    def test_the_algorithm_of_its_digests(self) -> None:
        assert locked.keep(run("nh128", loss="ab")).algorithm == "nh128"
        assert locked.keep(run("sha256", loss="ab")).algorithm == "sha256"

    def test_files_and_output_beside_values_do_not_count(self) -> None:
        both = merged(run("sha256", **{"file:log": "a"}), run("nh128", loss="ab"))
        assert locked.keep(both).algorithm == "nh128"

    def test_the_pins_say_it(self) -> None:
        lock = full_lock()
        for algorithm in ("sha256", "nh128"):
            evidence = replace(lock.evidence, algorithm=algorithm)
            pins = compile_pins(replace(lock, evidence=evidence), "sha256:x")
            assert pins["algorithm"] == algorithm

    def test_pins_of_a_lock_without_evidence_leave_it_open(self) -> None:
        """A draft: the validating runs make the evidence."""
        assert (
            compile_pins(replace(full_lock(), evidence=Evidence()), "sha256:x")["algorithm"] == ""
        )


class TestComparing:
    def test_an_old_lock_against_a_run_by_its_algorithm(self) -> None:
        old = locked.keep(run("sha256", loss="abc"))
        assert locked.verify(old, run("sha256", loss="abc")).differences == ()
        assert locked.verify(old, run("sha256", loss="abd")).differences

    def test_two_algorithms_are_not_compared(self) -> None:
        old = locked.keep(run("sha256", loss="abc"))
        found = locked.verify(old, run("nh128", loss="abc"))
        assert found.differences == ()
        assert found.compared == {}
        [line] = found.uncompared
        assert line == (
            "stream 'loss', rank 0: the lock has digests by sha256, this run by nh128: "
            "they cannot be compared"
        )


class TestOldLocks:
    """What SHA-256 gave when those locks were recorded, it must give for ever."""

    def plain(self, header: str, data: bytes) -> str:
        return "sha256:" + hashlib.sha256(header.encode() + b"\0" + data).hexdigest()

    def test_values(self) -> None:
        value = torch.arange(6, dtype=torch.float32).reshape(2, 3)
        data = value.numpy().tobytes()
        turned = value.t().contiguous().numpy().tobytes()
        assert digest(value, SHA256)[0] == self.plain("float32[2,3]", data)
        assert digest(value.numpy(), SHA256)[0] == self.plain("float32[2,3]", data)
        assert digest(value.t(), SHA256)[0] == self.plain("float32[3,2]", turned)
        assert digest(2.5, SHA256)[0] == self.plain("python.float[]", struct.pack("<d", 2.5))
        assert digest(True, SHA256)[0] == self.plain("python.bool[]", b"\1")
        parts = [digest(value, SHA256)[0], digest("x", SHA256)[0]]
        joined = "\n".join(parts).encode()
        assert digest([value, "x"], SHA256)[0] == self.plain("tuple[2]", joined)
        assert digest_many([value, "x"], SHA256) == parts

    def test_the_digest_of_an_optimizer_step(self) -> None:
        one = self.plain("float32[1]", b"\0\0\0\0")
        assert digest(torch.zeros(1), SHA256)[0] == one
        assert combine([one, None], SHA256) == self.plain("digests[]", f"{one}\nnone".encode())


class TestInTheProcess:
    CODE = "import torch, pinner; pinner.fingerprint('a', torch.ones(3))"

    def algorithm_of(self, rig: SessionRig) -> str:
        done = rig.script(self.CODE)
        assert done.returncode == 0, done.stderr
        [line] = rig.lines("evidence")
        return str(line["digest"]).partition(":")[0]

    def test_new_evidence_is_by_nh128(self, tmp_path: Path) -> None:
        assert self.algorithm_of(SessionRig(tmp_path / "s")) == "nh128"

    @pytest.mark.parametrize("algorithm", ["sha256", "nh128"])
    def test_under_a_lock_it_is_by_the_lock_s(self, tmp_path: Path, algorithm: str) -> None:
        rig = SessionRig(tmp_path / "s")
        rig.enforce({"algorithm": algorithm})
        assert self.algorithm_of(rig) == algorithm

    def test_a_stranger_is_refused_by_name(self) -> None:
        with pytest.raises(EvidenceError, match="'md5', and this pinner knows nh128 and sha256"):
            named("md5")
