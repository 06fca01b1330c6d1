"""`pinner enforce` on real processes: transparent where the pins hold, loud where they do not."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pinner.launch.coverage import FIELDS
from tests import lanes
from tests.command_rig import READY, WORKLOADS, Pinner, python

PLAIN = python("plain.py")
DECIDING = python("deciding.py")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a sealed lock of deciding.py, and one of plain.py."""
    pinner = Pinner(tmp_path_factory.mktemp("recorded"))
    assert pinner("record", "--", *DECIDING).code == 0
    assert pinner("record", "-o", "plain.toml", "--", *PLAIN).code == 0
    return pinner.folder


@pytest.fixture
def pinner(recorded: Path, tmp_path: Path) -> Pinner:
    shutil.copytree(recorded, tmp_path, dirs_exist_ok=True)
    return Pinner(tmp_path)


def counts(**given: int) -> dict[str, int]:
    return {**dict.fromkeys(FIELDS, 0), **given}


def report(pinner: Pinner) -> dict[str, Any]:
    value = json.loads(pinner.path("report.json").read_text())
    assert isinstance(value, dict)
    return value


class TestTransparency:
    def test_the_exit_code_is_the_commands(self, pinner: Pinner) -> None:
        argv = ["-l", "plain.toml", "--verify", "--", *PLAIN]
        assert pinner("enforce", *argv).code == 0
        assert pinner("enforce", *argv, FAULT="exit:3").code == 3

    def test_death_by_a_signal_is_128_and_its_number(self, pinner: Pinner) -> None:
        code = "import os, pinner; pinner.fingerprint('a', 1); os.kill(os.getpid(), 9)"
        assert pinner("enforce", "--", sys.executable, "-c", code).code == 128 + 9

    def test_output_is_the_commands_alone(self, pinner: Pinner) -> None:
        said = pinner("enforce", "-l", "plain.toml", "--verify", "--", *PLAIN)
        assert said.out == "".join(f"step {s} value {6.0 + 4 * s}\n" for s in range(3))
        assert all(line.startswith("pinner: ") for line in said.err.splitlines())

    def test_a_signal_ends_both(self, pinner: Pinner) -> None:
        argv = ["enforce", "--verify", "--", sys.executable, "-c", READY]
        process = subprocess.Popen(
            [sys.executable, "-m", "pinner", *argv],
            cwd=pinner.folder,
            env=pinner.environ(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        _, err = process.communicate(timeout=20)
        assert process.returncode == 128 + signal.SIGTERM
        assert "locked" in err.splitlines()[-1]

    def test_the_commands_own_pythonpath_comes_after_ours(self, pinner: Pinner) -> None:
        pinner.path("lib").mkdir()
        pinner.path("lib/own_module.py").write_text("NAME = 'found'")
        pinner.path("lib/sitecustomize.py").write_text("import sys; sys.flag = 'ran'")
        code = (
            "import os, sys, pinner, own_module\n"
            "pinner.fingerprint('a', 1)\n"
            "print(own_module.NAME, sys.flag, os.environ['PYTHONPATH'].split(':')[1])\n"
        )
        own = pinner.path("lib")
        root = Path(__file__).resolve().parents[2]
        said = pinner(
            "enforce", "--verify", "--", sys.executable, "-c", code, PYTHONPATH=f"{own}:{root}"
        )
        assert said.out == f"found ran {own}\n"

    def test_json_has_the_report_and_standard_output_for_itself(self, pinner: Pinner) -> None:
        said = pinner("enforce", "--json", "--", *DECIDING)
        assert (said.json["exit"], said.json["command_exit"]) == (0, 0)
        assert said.json["report"]["used"] == 2
        assert said.json["processes"] == 1


class TestCoverage:
    def test_all_of_the_lock_is_used(self, pinner: Pinner) -> None:
        said = pinner("enforce", "--report", "report.json", "--", *DECIDING)
        assert said.code == 0
        assert said.last == (
            "2 locked: 2 used, 0 unused, 0 cached · 0 fallback · 0 missed · 0 invalid · "
            "0 not enforceable · 0 drifted"
        )
        found = report(pinner)
        assert {name: found[name] for name in FIELDS} == counts(locked=2, used=2)
        assert set(found) == {*FIELDS, "entries", "settings"}
        (first, _) = found["entries"]["used"]
        assert first["kernel"] == "tests.deciding:kernel"
        assert first["config"] == {"BLOCK": 32, "num_warps": 4}

    def test_what_was_not_asked_for_is_unused(self, pinner: Pinner) -> None:
        said = pinner("enforce", "--report", "report.json", "--", *DECIDING, SIZES="64")
        assert said.code == 0
        assert said.last.startswith("2 locked: 1 used, 1 unused")
        (unused,) = report(pinner)["entries"]["unused"]
        assert unused["key"]["n"] == 128

    def test_a_miss_falls_back_by_rule_and_is_counted(self, pinner: Pinner) -> None:
        said = pinner("enforce", "--report", "report.json", "--", *DECIDING, SIZES="64,999")
        assert said.code == 0
        assert "1 fallback" in said.last
        (entry,) = report(pinner)["entries"]["fallback"]
        assert (entry["key"]["n"], entry["config"]["BLOCK"]) == (999, 32)

    def test_a_miss_is_an_error_where_that_is_wanted(self, pinner: Pinner) -> None:
        argv = ["enforce", "--on-miss", "error", "--report", "report.json", "--"]
        said = pinner(*argv, *DECIDING, SIZES="64,999")
        assert said.code == 1, "the command's own: it did not catch the error"
        assert report(pinner)["missed"] == 1
        catching = f"import runpy\ntry: runpy.run_path({DECIDING[1]!r}, run_name='__main__')\n"
        catching += "except SystemExit: pass\n"
        said = pinner(*argv, sys.executable, "-c", catching, SIZES="64,999")
        assert said.code == 97
        assert "broken pins: 1 missed: tests.deciding:kernel" in said.err

    def test_an_entry_that_cannot_be_forced_is_broken(self, pinner: Pinner) -> None:
        """P12: counted as invalid, exit 97; never a silent fallback."""
        said = pinner("enforce", "--report", "report.json", "--", *DECIDING, FAULT="invalid")
        assert said.code == 97
        assert "broken pins: 2 invalid: tests.deciding:kernel: the locked config" in said.err
        assert report(pinner)["invalid"] == 2

    def test_the_commands_own_failure_is_returned_over_broken_pins(self, pinner: Pinner) -> None:
        code = f"import runpy, sys\ntry: runpy.run_path({DECIDING[1]!r}, run_name='__main__')\n"
        code += "finally: sys.exit(5)\n"
        assert pinner("enforce", "--", sys.executable, "-c", code, FAULT="invalid").code == 5

    def test_drift_is_told_and_breaks_only_where_misses_are_errors(self, pinner: Pinner) -> None:
        said = pinner("enforce", "--", *DECIDING, FAULT="drift")
        assert (said.code, "1 drifted" in said.last) == (0, True)
        assert pinner("enforce", "--on-miss", "error", "--", *DECIDING, FAULT="drift").code == 97

    def test_what_is_decided_elsewhere_is_reported(self, pinner: Pinner) -> None:
        """P11: a choice that nobody could pin stands in the coverage."""
        said = pinner("enforce", "--", *DECIDING, FAULT="elsewhere")
        assert (said.code, "1 not enforceable" in said.err) == (0, True)
        assert said.last.startswith("not enforceable: tests.deciding:kernel: ")

    def test_tuning_what_is_missed_is_for_one_process(self, pinner: Pinner) -> None:
        said = pinner("enforce", "--on-miss", "tune", "--", *DECIDING, SIZES="64,999")
        assert (said.code, "1 missed" in said.last) == (0, True)
        argv = ["enforce", "--on-miss", "tune", "--", *DECIDING]
        said = pinner(*argv, RANK="0", WORLD_SIZE="2")
        assert (said.code, "one process" in said.err) == (96, True)
        code = "import os, runpy\nos.environ.update(RANK='0', WORLD_SIZE='2')\n"
        code += f"runpy.run_path({DECIDING[1]!r}, run_name='__main__')\n"
        argv = ["enforce", "--expect", "1", "--on-miss", "tune", "--", sys.executable, "-c", code]
        said = pinner(*argv)
        assert (said.code, "found a world of 2" in said.err) == (97, True)


class TestRefusedBeforeTheStart:
    def refused(self, pinner: Pinner, *words: str) -> str:
        said = pinner("enforce", *words, "--", "sh", "-c", "echo started")
        assert said.code == 96
        assert said.out == "", "the command must not have run"
        return said.last

    def test_a_lock_that_is_not_there(self, pinner: Pinner) -> None:
        assert "no.toml" in self.refused(pinner, "-l", "no.toml")

    def test_a_lock_that_is_cut(self, pinner: Pinner) -> None:
        text = pinner.path("pinner.lock.toml").read_text()
        pinner.path("cut.toml").write_text(text[: len(text) // 2])
        assert "cut.toml" in self.refused(pinner, "-l", "cut.toml")

    def test_a_draft(self, pinner: Pinner) -> None:
        text = pinner.path("pinner.lock.toml").read_text()
        pinner.path("draft.toml").write_text(text.replace("sealed = true", "sealed = false"))
        assert "--allow-draft" in self.refused(pinner, "-l", "draft.toml")
        assert pinner("enforce", "-l", "draft.toml", "--allow-draft", "--", *DECIDING).code == 0

    def test_a_slip_in_the_name_of_an_allowed_fact(self, pinner: Pinner) -> None:
        assert "numpi" in self.refused(pinner, "--allow", "numpi")


class TestWhoTakesPart:
    """Never an unpinned run that ends with 0; each cause is named."""

    def broken(self, pinner: Pinner, *argv: str, **environ: str) -> str:
        said = pinner("enforce", "--verify", "--", *argv, **environ)
        assert said.code in (96, 97), said.err
        return said.err

    def test_isolated_python_is_refused_before_it_starts(self, pinner: Pinner) -> None:
        for flag in ("-I", "-E", "-S"):
            said = pinner("enforce", "--", sys.executable, flag, *PLAIN[1:])
            assert (said.code, flag in said.err, said.out) == (96, True, "")

    def test_a_cleared_environment_is_refused_before_it_starts(self, pinner: Pinner) -> None:
        assert "env -i" in self.broken(pinner, "env", "-i", *PLAIN)

    def test_isolated_python_in_a_script(self, pinner: Pinner) -> None:
        pinner.path("run.sh").write_text(f"# starts it\n{sys.executable} -I -c 'print(1)'\n")
        err = self.broken(pinner, "sh", "run.sh")
        assert "line 2" in err
        assert "-I ignores PYTHONPATH" in err

    def test_a_script_that_overwrites_pythonpath(self, pinner: Pinner) -> None:
        err = self.broken(pinner, "sh", "-c", f"PYTHONPATH=/tmp {sys.executable} -c 'print(1)'")
        assert "PYTHONPATH is overwritten" in err

    def test_a_program_that_clears_the_environment_of_its_child(self, pinner: Pinner) -> None:
        """Seen while it runs, beside a process that does take part."""
        pinner.path("libtorch_cpu.so").write_bytes(b"x" * 4096)
        child = (
            "import mmap, time\nfile = open('libtorch_cpu.so', 'rb')\n"
            "kept = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)\ntime.sleep(1)\n"
        )
        code = (
            "import subprocess, sys, pinner\n"
            "for step in range(3): pinner.fingerprint('out', step)\n"
            f"subprocess.run([sys.executable, '-c', {child!r}], env={{'PATH': '/bin'}})\n"
        )
        err = self.broken(pinner, sys.executable, "-c", code)
        assert "with libtorch_cpu.so" in err
        assert "its environment was cleared" in err

    # Maps a file that is called like torch's library for two seconds.
    UNPINNED = (
        "import mmap, time\nfile = open('libtorch_cpu.so', 'rb')\n"
        "kept = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)\ntime.sleep(2)\n"
    )

    def test_a_daemon_without_pinner(self, pinner: Pinner) -> None:
        """Its parents end before anybody looks, and nothing in it names the run."""
        pinner.path("libtorch_cpu.so").write_bytes(b"x" * 4096)
        daemon = shlex.join(["env", "-i", sys.executable, "-I", "-c", self.UNPINNED])
        script = f"setsid -f {daemon}; {shlex.join(DECIDING)}; sleep 1"
        err = self.broken(pinner, "sh", "-c", f"sh -c {shlex.quote(script)}")
        assert "with libtorch_cpu.so" in err

    def test_a_process_that_takes_part_and_becomes_another_program(self, pinner: Pinner) -> None:
        """The ledger is that of the program before, though the process id is the same."""
        pinner.path("libtorch_cpu.so").write_bytes(b"x" * 4096)
        code = (
            "import os, runpy, sys\n"
            f"try: runpy.run_path({DECIDING[1]!r}, run_name='__main__')\n"
            "except SystemExit: pass\n"
            f"os.execve(sys.executable, [sys.executable, '-c', {self.UNPINNED!r}], {{}})\n"
        )
        err = self.broken(pinner, sys.executable, "-c", code)
        assert "its environment was cleared" in err

    def test_a_program_that_starts_itself_again(self, pinner: Pinner) -> None:
        """An exec that keeps the environment opens a second ledger of the same process id."""
        code = (
            "import os, sys, pinner\npinner.fingerprint('a', 1)\n"
            f"os.execv(sys.executable, {DECIDING!r})\n"
        )
        said = pinner("enforce", "--", sys.executable, "-c", code)
        assert said.code == 0, said.err

    @pytest.mark.parametrize("more", [[], ["--uts"]])
    def test_a_namespace_of_process_ids(self, pinner: Pinner, more: list[str]) -> None:
        """There the ledger bears the inner process id and, maybe, another host's name."""
        unshare = ["unshare", "--pid", "--fork", "--mount-proc", *more]
        lanes.require(subprocess.run([*unshare, "true"]).returncode == 0, "needs PID namespaces")
        code = "import torch, time; time.sleep(6)"
        rename = "hostname other; " if more else ""
        script = f"{rename}exec {shlex.join([sys.executable, '-c', code])}"
        said = pinner("enforce", "--", *unshare, "sh", "-c", script)
        assert (said.code, "unpinned" in said.err) == (0, False), said.err

    def test_a_system_tool_in_python_is_a_note(self, pinner: Pinner) -> None:
        code = (
            "import runpy, subprocess, sys\n"
            "subprocess.run([sys.executable, '-I', '-c', 'import time; time.sleep(0.5)'])\n"
            f"runpy.run_path({DECIDING[1]!r}, run_name='__main__')\n"
        )
        said = pinner("enforce", "--", sys.executable, "-c", code)
        assert said.code == 0
        assert "note: process" in said.err
        assert "without torch or triton" in said.err

    def test_a_program_without_python(self, pinner: Pinner) -> None:
        assert "no process took part" in self.broken(pinner, "true")

    def test_torchruns_agent_alone_is_not_enough(self, pinner: Pinner) -> None:
        """It imports torch and reports; the ranks it starts are no Python of ours."""
        agent = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
        assert "no process took part" in self.broken(pinner, *agent, "true")

    def test_a_rank_that_never_reports(self, pinner: Pinner) -> None:
        code = (
            "import os, subprocess, sys\n"
            f"argv = [sys.executable, {DECIDING[1]!r}]\n"
            "subprocess.run(argv, env={**os.environ, 'RANK': '1', 'WORLD_SIZE': '3'}, check=True)\n"
        )
        err = self.broken(pinner, sys.executable, "-c", code)
        assert "rank 0 never reported (WORLD_SIZE was 3;" in err
        assert "rank 2 never reported" in err
        assert "rank 1" not in err

    def test_a_rank_that_has_a_launcher_of_its_own_is_enough(self, pinner: Pinner) -> None:
        """`torchrun … pinner enforce …`: each rank's launcher waits for its own rank only."""
        said = pinner("enforce", "--", *DECIDING, RANK="1", WORLD_SIZE="2")
        assert said.code == 0, said.err

    def test_the_user_may_know_better(self, pinner: Pinner) -> None:
        assert pinner("enforce", "--expect", "1", "--", *DECIDING).code == 0
        said = pinner("enforce", "--expect", "2", "--", *DECIDING)
        assert (said.code, "2 processes were expected" in said.err) == (97, True)


class TestAfterwards:
    def test_a_process_that_outlives_the_command_keeps_its_folder(self, pinner: Pinner) -> None:
        temporary = pinner.path("tmp")
        temporary.mkdir()
        late = f"sleep 1.5; {shlex.join(DECIDING)} 2> late.err; echo $? > late.code"
        code = f"{shlex.join(DECIDING)}; ({late}) > /dev/null 2>&1 &"
        said = pinner("enforce", "--", "sh", "-c", code, TMPDIR=str(temporary))
        assert (said.code, "outlive the command" in said.err) == (0, True)
        end = time.monotonic() + 20
        while not pinner.path("late.code").exists():
            assert time.monotonic() < end
            time.sleep(0.1)
        assert pinner.path("late.code").read_text() == "0\n", pinner.path("late.err").read_text()

    def test_a_report_that_cannot_be_written_is_told_before_the_work(self, pinner: Pinner) -> None:
        said = pinner("enforce", "--report", "no/folder.json", "--", "sh", "-c", "echo started")
        assert (said.code, said.out, "report cannot be written" in said.last) == (96, "", True)

    def test_a_damaged_ledger_is_no_success(self, pinner: Pinner) -> None:
        shell = shlex.join(DECIDING) + '; sed -i "1a broken" "$PINNER_SESSION"/ledger/*'
        said = pinner("enforce", "--", "sh", "-c", shell)
        assert (said.code, "jsonl:2" in said.last) == (97, True)


class TestStartFaults:
    def test_an_unwritable_ledger_folder(self, pinner: Pinner) -> None:
        """The folder is taken away while the command starts."""
        shell = 'rm -r "$PINNER_SESSION/ledger"; ' + " ".join(DECIDING)
        said = pinner("enforce", "--", "sh", "-c", shell)
        assert said.code == 96
        assert "ledger" in said.err

    def test_torn_pins(self, pinner: Pinner) -> None:
        shell = 'head -c 200 "$PINNER_SESSION/pins.json" > p; cp p "$PINNER_SESSION/pins.json"; '
        said = pinner("enforce", "--", "sh", "-c", shell + " ".join(DECIDING))
        assert said.code == 96
        assert "torn" in said.err

    def test_a_fault_that_the_command_hides_is_told_all_the_same(self, pinner: Pinner) -> None:
        shell = 'echo "{" > "$PINNER_SESSION/session.json"; ' + " ".join(DECIDING) + " || true"
        said = pinner("enforce", "--", "sh", "-c", shell)
        assert said.code == 96
        assert "session.json" in said.err

    def test_another_stack(self, pinner: Pinner) -> None:
        text = pinner.path("pinner.lock.toml").read_text()
        numpy = next(line for line in text.splitlines() if line.startswith("numpy = "))
        pinner.path("other.toml").write_text(text.replace(numpy, 'numpy = "0.1"'))
        said = pinner("enforce", "-l", "other.toml", "--json", "--", *DECIDING)
        assert said.code == 96
        assert any("numpy: locked 0.1, here" in line for line in said.json["messages"])
        assert pinner("enforce", "-l", "other.toml", "--allow", "numpy", "--", *DECIDING).code == 0

    @pytest.mark.parametrize("hidden", ["", "2>/dev/null"])
    def test_a_mismatch_is_told_once_whether_the_command_shows_it_or_not(
        self, pinner: Pinner, hidden: str
    ) -> None:
        path = pinner.path("pinner.lock.toml")
        text = path.read_text()
        numpy = next(line for line in text.splitlines() if line.startswith("numpy = "))
        path.write_text(text.replace(numpy, 'numpy = "0.1"'))
        shell = ["sh", "-c", f"{shlex.join(DECIDING)} {hidden}"]
        said = pinner("enforce", "--", *(shell if hidden else DECIDING))
        assert (said.code, said.text.count("the stack here is not the locked one")) == (96, 1)


class TestVerify:
    def verify(self, pinner: Pinner, *words: str, **environ: str) -> Any:
        argv = ["-l", "plain.toml", "--verify", "--json", *words, "--", *PLAIN]
        return pinner("enforce", *argv, **environ)

    def test_the_same_bits(self, pinner: Pinner) -> None:
        said = self.verify(pinner)
        assert said.code == 0
        assert said.json["verify"]["compared"] == [{"stream": "value", "rank": 0, "steps": 3}]

    def test_other_bits_are_named_by_stream_and_step(self, pinner: Pinner) -> None:
        said = self.verify(pinner, FAULT="noise")
        assert said.code == 1
        assert "bits differ: stream 'value', rank 0, step 0: " in said.err

    def test_the_commands_own_failure_comes_first(self, pinner: Pinner) -> None:
        assert self.verify(pinner, FAULT="exit:3").code == 3

    def test_a_longer_run_is_compared_at_the_same_steps(self, pinner: Pinner) -> None:
        assert self.verify(pinner, STEPS="9").code == 0

    def test_a_run_without_evidence_is_not_called_equal(self, pinner: Pinner) -> None:
        code = "from pinner.inside import ledger; ledger.open_now()"
        argv = ["-l", "plain.toml", "--verify", "--", sys.executable, "-c", code]
        said = pinner("enforce", *argv)
        assert (said.code, "not compared: stream 'value'" in said.err) == (2, True)

    def test_it_looks_at_the_evidence_the_lock_was_recorded_with(self, pinner: Pinner) -> None:
        words = ["--evidence-stdout", r"value (\S+)", "-o", "out.toml"]
        assert pinner("record", *words, "--", *PLAIN).code == 0
        said = pinner("enforce", "-l", "out.toml", "--verify", "--json", "--", *PLAIN)
        assert said.code == 0
        assert len(said.json["verify"]["compared"]) == 2

    def test_it_taps_what_the_lock_was_recorded_with(self, pinner: Pinner) -> None:
        pinner.path("own.toml").write_text(
            '[[tap]]\nmodule = "own"\nfunction = "loss"\nstream = "loss"\n'
        )
        pinner.path("own.py").write_text(
            "def loss(step): return step * 0.5\n"
            "if __name__ == '__main__':\n"
            "    import own\n"
            "    for step in range(3): own.loss(step)\n"
        )
        words = ["--tap", "own.toml", "-o", "own.lock.toml", "--", sys.executable, "own.py"]
        said = pinner("record", *words)
        assert said.code == 0, said.err
        argv = ["-l", "own.lock.toml", "--verify", "--json", "--", sys.executable, "own.py"]
        said = pinner("enforce", *argv)
        assert (said.code, said.json["verify"]["uncompared"]) == (0, [])
        pinner.path("own.toml").unlink()
        said = pinner("enforce", *argv)
        assert (said.code, "own.toml" in said.text) == (96, True)

    def test_without_it_no_evidence_is_written(self, pinner: Pinner) -> None:
        code = "import pinner\nfrom pinner.inside import ledger\nledger.open_now()\n"
        code += "pinner.fingerprint('a', 1)\n"
        assert pinner("enforce", "--dir", "kept", "--", sys.executable, "-c", code).code == 0
        (ledger,) = pinner.path("kept/enforce/ledger").iterdir()
        assert '"evidence"' not in ledger.read_text()


def test_silence_is_told_while_the_command_runs(tmp_path: Path) -> None:
    """After 60 s; here after a quarter of one."""
    from pinner.launch import one_run, session_dir

    settings = session_dir.Settings(mode="observe", run="r", created=session_dir.now())
    session = session_dir.create(tmp_path / "session", settings)
    job = one_run.Job((sys.executable, "-I", "-c", "import time; time.sleep(1)"), silence_s=0.25)
    said: list[str] = []
    one_run.run(session, job, {"PATH": "/bin"}, said.append)
    assert len(said) == 1
    assert said[0].startswith("no process has reported within 0.25 s of the start: process ")
    assert "-I keeps pinner out" in said[0]


def test_no_silence_where_somebody_reported(tmp_path: Path) -> None:
    from pinner.launch import one_run, session_dir

    settings = session_dir.Settings(mode="observe", run="r", created=session_dir.now())
    session = session_dir.create(tmp_path / "session", settings)
    code = "import pinner, time; pinner.fingerprint('a', 1); time.sleep(1)"
    job = one_run.Job((sys.executable, "-c", code), silence_s=0.5)
    said: list[str] = []
    one_run.run(session, job, {"PATH": "/bin"}, said.append)
    assert said == []


def test_the_workload_runs_without_pinner_too() -> None:
    """The fakes of these tests are programs of their own."""
    done = subprocess.run(
        [sys.executable, str(WORKLOADS / "plain.py")],
        env={"PATH": "/bin", "PYTHONPATH": str(WORKLOADS.parents[1])},
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines()[-1] == "step 2 value 14.0"


class TestVerifyingResumedRuns:
    """The steps of a resumed run are compared with the same steps of the lock."""

    @pytest.fixture
    def pinner(self, tmp_path: Path) -> Pinner:
        pinner = Pinner(tmp_path)
        pinner.path("resumes.py").write_text(
            "import os, pinner\n"
            "first, last = map(int, os.environ.get('STEPS', '0,6').split(','))\n"
            "for s in range(first, last + 1):\n"
            "    pinner.fingerprint('loss', s * float(os.environ.get('TIMES', 1)), step=s)\n"
        )
        return pinner

    def verified(self, pinner: Pinner, **environ: str) -> tuple[int, str]:
        said = pinner("enforce", "--verify", "--", sys.executable, "resumes.py", **environ)
        return said.code, said.text

    def test_from_the_start_or_from_the_middle(self, pinner: Pinner) -> None:
        assert pinner("record", "--", sys.executable, "resumes.py").code == 0
        assert "verified 7 of 7 steps in 1 stream" in self.verified(pinner)[1]
        code, said = self.verified(pinner, STEPS="3,6")
        assert (code, "verified 4 of 7 steps in 1 stream" in said) == (0, True), said
        code, said = self.verified(pinner, STEPS="3,6", TIMES="2")
        assert (code, "stream 'loss', rank 0, step 3" in said) == (1, True), said
        code, said = self.verified(pinner, STEPS="10,12")
        assert (code, "bits differ" in said) == (2, False), said
        assert "the lock has 0 to 6, this run 10 to 12" in said

    def test_a_lock_recorded_from_the_middle(self, pinner: Pinner) -> None:
        assert pinner("record", "--", sys.executable, "resumes.py", STEPS="3,30").code == 0
        assert "at = [3, 4, 5," in pinner.path("pinner.lock.toml").read_text()
        for steps in ("3,30", "0,40"):
            code, said = self.verified(pinner, STEPS=steps)
            assert (code, "verified 28 of 28 steps" in said) == (0, True), said
