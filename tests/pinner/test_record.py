"""`pinner record` on real processes: what gets a sealed lock, and what is refused, by name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pinner.launch import session_dir
from pinner.launch.collect import collect
from pinner.lockfile.codec import read_lock
from tests.command_rig import READY, REPO, WORKLOADS, Pinner, python

PLAIN = python("plain.py")
DECIDING = python("deciding.py")
TRAINING = python("training.py")


@pytest.fixture
def pinner(tmp_path: Path) -> Pinner:
    return Pinner(tmp_path)


class TestWhatIsSealed:
    def test_a_deterministic_run(self, pinner: Pinner) -> None:
        said = pinner("record", "--", *DECIDING)
        assert said.code == 0, said.err
        lock = read_lock(pinner.path("pinner.lock.toml"))
        assert (lock.run.sealed, lock.run.runs, lock.run.complete) == (True, 2, True)
        assert lock.run.command == tuple(DECIDING)
        assert [entry.config["BLOCK"] for entry in lock.triton] == [32, 32]
        assert [(s.name, s.rank, s.steps) for s in lock.evidence.streams] == [("out", 0, 6)]
        assert said.last.startswith("sealed pinner.lock.toml: 2 choices, 2 validating runs")

    def test_a_module(self, pinner: Pinner) -> None:
        argv = [sys.executable, "-m", "deciding"]
        assert pinner("record", "--", *argv, PYTHONPATH=f"{WORKLOADS}:{REPO}").code == 0
        assert len(read_lock(pinner.path("pinner.lock.toml")).triton) == 2

    def test_nothing_is_left_behind(self, pinner: Pinner) -> None:
        temporary = pinner.path("tmp")
        temporary.mkdir()
        assert pinner("record", "--", *PLAIN, TMPDIR=str(temporary)).code == 0
        assert list(temporary.iterdir()) == []
        assert [p.name for p in pinner.folder.iterdir() if p != temporary] == ["pinner.lock.toml"]

    def test_the_ledgers_stay_where_they_are_wanted(self, pinner: Pinner) -> None:
        assert pinner("record", "--dir", "kept", "--runs", "3", "--", *PLAIN).code == 0
        names = ["observe", "validate-1", "validate-2", "validate-3"]
        assert sorted(p.name for p in pinner.path("kept").iterdir()) == names

    def test_json_is_one_object_and_the_rest_goes_to_standard_error(self, pinner: Pinner) -> None:
        said = pinner("record", "--json", "-o", "x.toml", "--", *PLAIN)
        assert said.json["status"] == "sealed"
        assert (said.json["exit"], said.json["lock"]) == (0, "x.toml")
        assert [run["code"] for run in said.json["runs"]] == [0, 0, 0]
        assert said.json["evidence"]["streams"] == {"value": {"0": 3}}
        assert said.err.count("step 2 value") == 3

    def test_validating_runs_have_empty_compile_caches_and_the_observed_one_has_the_users(
        self, pinner: Pinner
    ) -> None:
        code = (
            "import os, pinner\n"
            "for step in range(2): pinner.fingerprint('s', step)\n"
            "names = ('TRITON_CACHE_DIR', 'TORCHINDUCTOR_CACHE_DIR')\n"
            "print(*(os.environ.get(n, '') for n in names))\n"
        )
        said = pinner("record", "--", sys.executable, "-c", code, TRITON_CACHE_DIR="/users/own")
        observed, *validating = (line.split() for line in said.out.splitlines())
        assert observed == ["/users/own"]
        folders = {folder for line in validating for folder in line}
        assert len(folders) == 4
        assert not any(os.path.exists(folder) for folder in folders)


class TestEvidence:
    def test_runs_that_differ_are_refused_with_stream_step_and_digests(
        self, pinner: Pinner
    ) -> None:
        said = pinner("record", "--json", "--", *PLAIN, FAULT="noise")
        assert (said.code, said.json["status"]) == (1, "differs")
        difference = said.json["difference"]
        assert (difference["stream"], difference["rank"], difference["step"]) == ("value", 0, 0)
        assert difference["first"] != difference["second"]
        assert difference["first"] in said.json["text"]
        assert difference["runs"] == ["validate-1", "validate-2"]
        assert not read_lock(pinner.path("pinner.lock.toml")).run.sealed

    def test_the_racy_kernel_and_its_config_are_named(self, pinner: Pinner) -> None:
        """P10: a kernel that is not deterministic by itself."""
        said = pinner("record", "--", *DECIDING, FAULT="racy")
        assert said.code == 1
        assert "stream 'out', rank 0, step 0" in said.text
        assert "not deterministic by itself: tests.deciding:kernel config BLOCK=32" in said.text
        assert "'x_ptr'" in said.text

    def test_where_no_single_kernel_differs_that_is_said(self, pinner: Pinner) -> None:
        said = pinner("record", "--", *PLAIN, FAULT="noise")
        assert "no kernel that was launched twice" in said.text

    def test_no_evidence_is_refused_with_the_ways_to_give_some(self, pinner: Pinner) -> None:
        code = "from pinner.inside import ledger; ledger.open_now()"
        said = pinner("record", "--", sys.executable, "-c", code)
        assert said.code == 2
        for way in ("pinner.fingerprint", "--tap", "--evidence-file", "--evidence-stdout"):
            assert way in said.text
        assert said.err.count("validate") == 0, "nothing more is run for nothing"

    def test_a_stream_that_never_changes_is_refused_by_name(self, pinner: Pinner) -> None:
        said = pinner("record", "--json", "--", *PLAIN, FAULT="constant")
        assert (said.code, said.json["status"]) == (2, "worthless-evidence")
        assert "'value' never changed" in said.json["text"]

    def test_one_that_never_changes_beside_others_is_left_out_and_named(
        self, pinner: Pinner
    ) -> None:
        code = (
            "import pinner\n"
            "for step in range(3):\n"
            "    pinner.fingerprint('a', step)\n"
            "    pinner.fingerprint('b', 1)\n"
        )
        said = pinner("record", "--json", "--", sys.executable, "-c", code)
        assert said.code == 0
        assert said.json["evidence"]["worthless"] == ["b"]
        assert "note: stream 'b' never changes" in said.err
        lock = read_lock(pinner.path("pinner.lock.toml"))
        assert [stream.name for stream in lock.evidence.streams] == ["a"]

    def test_a_stream_that_only_some_runs_have_is_a_difference(self, pinner: Pinner) -> None:
        code = (
            "import os, pinner\n"
            "for s in range(3): pinner.fingerprint('a', s)\n"
            "if os.environ['PINNER_SESSION'].endswith('validate-2'):\n"
            "    pinner.fingerprint('late', 0)\n"
        )
        said = pinner("record", "--", sys.executable, "-c", code)
        assert said.code == 1
        assert "stream 'late': missing in validate-1, present in validate-2" in said.text

    def test_a_difference_to_the_observed_run_is_a_note(self, pinner: Pinner) -> None:
        """Tuning trials can change what the observed run computes."""
        code = (
            "import os, pinner\n"
            "observed = os.environ['PINNER_MODE'] == 'observe'\n"
            "for s in range(3): pinner.fingerprint('a', s + observed)\n"
        )
        said = pinner("record", "--json", "--", sys.executable, "-c", code)
        assert said.code == 0
        (note,) = said.json["notes"]
        assert "stream 'a', rank 0, step 0" in note


class TestFilesAndOutput:
    WRITES = (
        "import os\nfrom pinner.inside import ledger\nledger.open_now()\n"
        "open('out.bin', 'wb').write(os.environ.get('BYTES', 'same').encode())\n"
    )

    def test_a_file_is_evidence(self, pinner: Pinner) -> None:
        said = pinner("record", "--evidence-file", "*.bin", "--", sys.executable, "-c", self.WRITES)
        assert said.code == 0, said.err
        lock = read_lock(pinner.path("pinner.lock.toml"))
        assert [s.name for s in lock.evidence.streams] == ["file:out.bin"]

    def test_a_file_that_changes_from_run_to_run_is_a_difference(self, pinner: Pinner) -> None:
        code = self.WRITES.replace("os.environ.get('BYTES', 'same').encode()", "os.urandom(8)")
        said = pinner("record", "--evidence-file", "out.*", "--", sys.executable, "-c", code)
        assert said.code == 1
        assert "stream 'file:out.bin'" in said.text

    def test_a_file_left_over_from_before_is_none(self, pinner: Pinner) -> None:
        pinner.path("old.bin").write_bytes(b"left over")
        code = "from pinner.inside import ledger; ledger.open_now()"
        said = pinner("record", "--evidence-file", "*.bin", "--", sys.executable, "-c", code)
        assert said.code == 2
        assert "*.bin: 1 there, none was written by this run" in said.text

    def test_a_file_that_is_not_there_is_named(self, pinner: Pinner) -> None:
        said = pinner("record", "--evidence-file", "no/*.pt", "--", *PLAIN)
        assert (said.code, "no/*.pt: no such file" in said.text) == (2, True)

    def test_a_program_that_decides_nothing_takes_no_part(self, pinner: Pinner) -> None:
        """Its output could be compared, but there is nothing to pin and nobody to pin it in."""
        argv = ["--evidence-stdout", r"value (\S+)", "--", *PLAIN]
        said = pinner("record", *argv, FAULT="nothing")
        assert (said.code, "no process took part" in said.text) == (2, True)

    def test_lines_of_output_are_evidence_and_pass_through(self, pinner: Pinner) -> None:
        said = pinner("record", "--evidence-stdout", r"value (\S+)", "--", *PLAIN)
        assert said.code == 0, said.err
        assert said.out.splitlines()[:2] == ["step 0 value 6.0", "step 1 value 10.0"]
        lock = read_lock(pinner.path("pinner.lock.toml"))
        names = [(s.name, s.steps) for s in lock.evidence.streams]
        assert names == [(r"stdout:value (\S+)", 3), ("value", 3)]

    def test_an_expression_that_matches_nothing_is_named(self, pinner: Pinner) -> None:
        said = pinner("record", "--evidence-stdout", "perplexity", "--", *PLAIN)
        assert (said.code, "nothing matched 'perplexity'" in said.text) == (2, True)


class TestWhatBreaks:
    def test_a_command_that_fails_is_told_with_its_code(self, pinner: Pinner) -> None:
        said = pinner("record", "--json", "--", *PLAIN, FAULT="exit:3")
        assert (said.code, said.json["status"]) == (5, "command-failed")
        assert said.json["runs"][0]["code"] == 3
        assert not pinner.path("pinner.lock.toml").exists()

    def test_a_command_that_is_not_there(self, pinner: Pinner) -> None:
        said = pinner("record", "--", "no-such-program")
        assert (said.code, "no-such-program" in said.text) == (5, True)

    def test_an_interrupted_recording_ends_at_once(self, pinner: Pinner) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "pinner", "record", "--", sys.executable, "-c", READY],
            cwd=pinner.folder,
            env=pinner.environ(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=20)
        assert process.returncode == 128 + signal.SIGTERM
        assert "interrupted by SIGTERM" in err
        assert "validate" not in err

    def test_a_miss_while_validating_is_a_broken_pin(self, pinner: Pinner) -> None:
        code = (
            "import os, runpy\n"
            "sizes = '64' if os.environ['PINNER_MODE'] == 'observe' else '64,512'\n"
            "os.environ['SIZES'] = sizes\n"
            f"runpy.run_path({str(WORKLOADS / 'deciding.py')!r}, run_name='__main__')\n"
        )
        said = pinner("record", "--json", "--", sys.executable, "-c", code)
        assert (said.code, said.json["status"]) == (3, "broken-pins")
        assert "missed: tests.deciding:kernel n=512" in said.json["text"]
        assert read_lock(pinner.path("pinner.lock.toml")).run.sealed is False

    @pytest.mark.parametrize("fault", ["invalid", "drift"])
    def test_other_broken_pins(self, pinner: Pinner, fault: str) -> None:
        code = (
            "import os, runpy\n"
            f"os.environ['FAULT'] = '' if os.environ['PINNER_MODE'] == 'observe' else {fault!r}\n"
            f"runpy.run_path({str(WORKLOADS / 'deciding.py')!r}, run_name='__main__')\n"
        )
        said = pinner("record", "--", sys.executable, "-c", code)
        assert said.code == 3
        assert f"{fault}: tests.deciding:kernel" in said.text

    def test_a_choice_that_cannot_be_a_pin_leaves_the_lock_incomplete(self, pinner: Pinner) -> None:
        """P11: a lock with holes is not called complete."""
        said = pinner("record", "--", *DECIDING, FAULT="elsewhere")
        assert said.code == 0
        assert "not in the lock: elsewhere: tests.deciding:kernel" in said.err
        assert "incomplete" in said.text
        lock = read_lock(pinner.path("pinner.lock.toml"))
        assert (lock.run.sealed, lock.run.complete) == (True, False)

    def test_a_command_that_keeps_pinner_out_is_named(self, pinner: Pinner) -> None:
        said = pinner("record", "--", sys.executable, "-I", str(WORKLOADS / "plain.py"))
        assert said.code == 64
        assert "-I ignores PYTHONPATH" in said.text


class TestDrafts:
    def test_a_sealed_lock_is_never_replaced_by_a_draft(self, pinner: Pinner) -> None:
        assert pinner("record", "--", *DECIDING).code == 0
        before = pinner.path("pinner.lock.toml").read_bytes()
        said = pinner("record", "--", *DECIDING, FAULT="racy")
        assert said.code == 1
        assert said.lines[-2] == "the draft is in pinner.lock.toml.draft"
        assert pinner.path("pinner.lock.toml").read_bytes() == before
        assert not read_lock(pinner.path("pinner.lock.toml.draft")).run.sealed

    def test_a_draft_is_replaced(self, pinner: Pinner) -> None:
        assert pinner("record", "--", *DECIDING, FAULT="racy").code == 1
        assert pinner("record", "--", *DECIDING, FAULT="racy", TAKES="32").code == 1
        assert not pinner.path("pinner.lock.toml.draft").exists()

    def test_a_file_that_is_no_lock_is_not_overwritten_by_a_draft(self, pinner: Pinner) -> None:
        pinner.path("notes.txt").write_text("mine")
        said = pinner("record", "-o", "notes.txt", "--", *DECIDING, FAULT="racy")
        assert said.code == 1
        assert pinner.path("notes.txt").read_text() == "mine"


RANKS = """
import os, subprocess, sys
codes = []
for rank in range(2):
    environ = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", **RANK_ENVIRON[rank]}
    codes.append(subprocess.Popen([sys.executable, *sys.argv[1:]], env=environ))
sys.exit(max(process.wait() for process in codes))
"""


def two_ranks(
    first: dict[str, str] | None = None, second: dict[str, str] | None = None
) -> list[str]:
    """deciding.py as two ranks, each with variables of its own."""
    code = RANKS.replace("RANK_ENVIRON", repr([first or {}, second or {}]))
    return [sys.executable, "-c", code, str(WORKLOADS / "deciding.py")]


# Each rank's own winner is slow on the other one.
FIRST = {"TAKES": "16", "TIMES": "16=0.1,32=0.15,64=0.9"}
SECOND = {"TAKES": "64", "TIMES": "16=0.8,32=0.15,64=0.1"}


class TestSeveralRanks:
    def test_conflicts_are_listed_and_settled_by_the_worst_time(self, pinner: Pinner) -> None:
        """P2, small."""
        said = pinner("record", "--json", "--", *two_ranks(FIRST, SECOND))
        assert said.code == 0, said.err
        lock = read_lock(pinner.path("pinner.lock.toml"))
        assert [entry.config["BLOCK"] for entry in lock.triton] == [32, 32]
        assert (lock.run.conflicts, lock.run.world_size) == (2, 2)
        assert len(said.json["conflicts"]) == 2
        assert "rank 0" in said.err
        assert "rank 1" in said.err

    def test_rank0_decides_where_that_is_wanted(self, pinner: Pinner) -> None:
        ranks = two_ranks(FIRST, SECOND)
        assert pinner("record", "--on-conflict", "rank0", "--", *ranks).code == 0
        lock = read_lock(pinner.path("pinner.lock.toml"))
        assert [entry.config["BLOCK"] for entry in lock.triton] == [16, 16]

    def test_a_conflict_can_be_refused(self, pinner: Pinner) -> None:
        ranks = two_ranks(FIRST, SECOND)
        said = pinner("record", "--on-conflict", "fail", "--", *ranks)
        assert said.code == 4
        assert "2 keys" in said.err
        assert not pinner.path("pinner.lock.toml").exists()

    def test_a_rank_that_never_reports_is_named(self, pinner: Pinner) -> None:
        code = (
            "import os\n"
            "if os.environ['RANK'] == '0':\n"
            "    import pinner\n"
            "    for step in range(3): pinner.fingerprint('a', step)\n"
        )
        argv = [sys.executable, "-c", RANKS.replace("RANK_ENVIRON", "[{}, {}]"), "-c", code]
        said = pinner("record", "--json", "--", *argv)
        assert (said.code, said.json["status"]) == (3, "incomplete")
        assert "rank 1 never reported (WORLD_SIZE was 2;" in said.json["text"]

    def test_a_rank_that_dies_after_its_decision_still_contributes_it(self, pinner: Pinner) -> None:
        said = pinner("record", "--", *two_ranks({}, {"SIZES": "64,256"}), DIES="1")
        assert said.code == 0, said.err
        lock = read_lock(pinner.path("pinner.lock.toml"))
        assert [entry.key["n"] for entry in lock.triton] == [128, 256, 64]

    def test_the_user_may_know_better_how_many_take_part(self, pinner: Pinner) -> None:
        said = pinner("record", "--expect", "3", "--", *two_ranks())
        assert (said.code, "3 ranks were expected, 2 took part" in said.text) == (3, True)
        said = pinner("record", "--expect", "2", "--", *PLAIN)
        assert (said.code, "2 processes were expected, 1 took part" in said.text) == (3, True)


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
STREAMS = {"loss", "optimizer0/gradients", "optimizer0/parameters"}


class TestTraining:
    """torch on the CPU; the optimizer leaves evidence by itself."""

    @pytest.mark.parametrize(
        ("argv", "environ", "ranks"),
        [
            (["sh", "-c", f"exec {sys.executable} {WORKLOADS}/training.py"], {}, {0}),
            (TRAINING, {"START": "spawn"}, {0, 1}),
            (TRAINING, {"START": "fork"}, {0, 1}),
        ],
        ids=["shell", "spawn", "fork"],
    )
    def test_every_way_to_start_leaves_evidence(
        self, pinner: Pinner, argv: list[str], environ: dict[str, str], ranks: set[int]
    ) -> None:
        said = pinner("record", "--phase", "observe", "--dir", "shared", "--", *argv, **environ)
        assert said.code == 0, said.err
        run = collect(session_dir.read(pinner.path("shared") / "observe"))
        found = run.evidence().streams
        assert {stream: set(by_rank) for stream, by_rank in found.items()} == dict.fromkeys(
            STREAMS, ranks
        )

    def test_torchrun_is_recorded_and_a_flipped_bit_is_caught_by_every_stream(
        self, pinner: Pinner
    ) -> None:
        """In a rank of two; gradients, parameters and fingerprints each see it by themselves."""
        argv = [*TORCHRUN, str(WORKLOADS / "training.py")]
        said = pinner("record", "--json", "--", *argv)
        assert said.code == 0, said.err
        streams = said.json["evidence"]["streams"]
        assert streams == {stream: {"0": 3, "1": 3} for stream in STREAMS}
        lock = read_lock(pinner.path("pinner.lock.toml"))
        assert (lock.run.world_size, lock.evidence.steps) == (2, 3)

        said = pinner("enforce", "--verify", "--json", "--", *argv, FLIP="weight:1")
        assert said.code == 1
        differences = said.json["verify"]["differences"]
        assert {(d["stream"], d["rank"], d["step"]) for d in differences} >= {
            (stream, 0, 1) for stream in STREAMS
        }
        assert any(line.startswith("bits differ: stream ") for line in said.lines)


class TestTapsThatGiveNothing:
    """A metric that was asked for and never seen is no evidence, and not to be sealed without."""

    @pytest.fixture
    def own(self, tmp_path: Path) -> Pinner:
        pinner = Pinner(tmp_path)
        pinner.path("metric.py").write_text("def loss(value):\n    return value\n")
        pinner.path("runs.py").write_text(
            "import os, pinner\n"
            "for s in range(3): pinner.fingerprint('own', s * 1.5)\n"
            "if os.environ.get('IMPORTS', '1') == '1': import metric\n"
            "if os.environ.get('CALLS', '1') == '1': metric.loss(2.5); metric.loss(1.5)\n"
        )
        return pinner

    def recorded(self, own: Pinner, tap: str = "", **environ: str) -> tuple[int, str]:
        fields = {"module": "'metric'", "function": "'loss'", "stream": "'lm'"}
        fields.update(line.split(" = ", 1) for line in tap.splitlines())
        lines = [f"{name} = {value}\n" for name, value in fields.items()]
        own.path("own.toml").write_text("[[tap]]\n" + "".join(lines))
        path = f"{own.folder}:{own.environ()['PYTHONPATH']}"
        words = ["record", "--tap", "own.toml", "--", sys.executable, "runs.py"]
        said = own(*words, PYTHONPATH=path, **environ)
        return said.code, said.text

    def test_one_that_gives_a_value_is_evidence(self, own: Pinner) -> None:
        code, said = self.recorded(own)
        assert (code, "the same bits in 2 streams" in said) == (0, True), said

    @pytest.mark.parametrize(
        ("tap", "environ", "cause"),
        [
            ("function = 'losses'", {}, "expected a function losses in metric, found none"),
            (
                "value = { argument = 'x' }",
                {},
                "expected an argument 'x' of metric:loss, found (value)",
            ),
            ("", {"IMPORTS": "0", "CALLS": "0"}, "module metric was never imported, or its loss"),
            ("", {"CALLS": "0"}, "module metric was never imported, or its loss never called"),
            ("index = 3", {}, "metric:loss gave no value at index 3"),
        ],
    )
    def test_one_that_gives_none_is_refused_with_its_cause(
        self, own: Pinner, tap: str, environ: dict[str, str], cause: str
    ) -> None:
        code, said = self.recorded(own, tap, **environ)
        assert code == 2, said
        assert f"metric tap 'lm' gave no value: {cause}" in said
        assert not own.path("pinner.lock.toml").exists()


def test_the_ledgers_are_named_after_the_cause_and_the_cause_once(tmp_path: Path) -> None:
    pinner = Pinner(tmp_path)
    said = pinner("record", "--", "false")
    cause, place = said.lines[-2:]
    assert cause == "the command ended with 1"
    assert place.startswith("the ledgers of the runs are in ")
    tears = "import os; open(os.environ['PINNER_SESSION'] + '/session.json', 'w').write('{')\n"
    tears += f"os.execv({sys.executable!r}, [{sys.executable!r}, '-c', '0'])\n"
    said = pinner("record", "--json", "--", sys.executable, "-c", tears)
    assert said.text.count("is torn") == 1
    assert "is torn" in said.json["text"]
    assert said.lines[-2] == "a process refused to start, for the cause it gave"
