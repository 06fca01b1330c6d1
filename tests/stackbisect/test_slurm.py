"""Probes as jobs of a real Slurm, whose two nodes are this machine."""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

import pytest

from pinner import shipped
from pinner.launch import session_dir
from stackbisect import asked_slurm
from stackbisect.errors import UsageError
from stackbisect.probe import Candidate, EvidenceOptions, Job, ProbeResult
from stackbisect.runtimes.local import LocalRuntime
from stackbisect.runtimes.slurm import SlurmRuntime
from stackbisect.runtimes.slurm_batch import Batch
from stackbisect.runtimes.slurm_commands import Commands
from stackbisect.runtimes.slurm_states import LATE_S, State, Wrote, read
from tests import lanes
from tests.fakes import registry as fakes
from tests.stackbisect import wheels
from tests.stackbisect.program import Program
from tests.stackbisect.services import Slurm

pytestmark = [pytest.mark.service, pytest.mark.xdist_group("slurm")]

LOSS = EvidenceOptions(stdout=("loss (.*)",))
LABEL = "stackbisect.test"


@dataclass(frozen=True)
class Lab:
    """A folder on the file system of the nodes, one probe folder after the other."""

    slurm: Slurm
    folder: Path
    numbers: count[int] = field(default_factory=lambda: count(1))

    @property
    def label(self) -> str:
        """What this test's jobs are known by."""
        return f"{LABEL}-{self.folder.name}"

    def runtime(self, *arguments: str, prepare: str | None = None) -> SlurmRuntime:
        """A runtime like the one that another start of the program would make."""
        environ = {**os.environ, "SLURM_JOB_ID": "1", "SLURM_NTASKS": "7"}  # as if inside a job
        commands = Commands(environ, patience=30)
        batch = Batch(commands, self.label, self.folder / "probes", arguments, environ)
        inner = LocalRuntime(prepare, self.folder, environ, machine=batch)
        return SlurmRuntime(inner, commands, batch, arguments)

    def job(self, *command: str, limit: float | None = None, **env: str) -> Job:
        """A job for one probe."""
        folder = self.folder / "probes" / f"{next(self.numbers):04d}"
        (folder / "scratch").mkdir(parents=True)
        (self.folder / "work").mkdir(exist_ok=True)
        settings = session_dir.Settings("observe", "test", session_dir.now())
        return Job(
            command=command,
            evidence=LOSS,
            session=session_dir.create(folder / "session", settings).path,
            inside=shipped.inside_dir(),
            log=folder / "log",
            stdout=folder / "stdout",
            scratch=folder / "scratch",
            workdir=self.folder / "work",
            env=env,
            time_limit=limit,
        )

    def probe(self, *command: str, arguments: tuple[str, ...] = ()) -> ProbeResult:
        """One probe of a candidate."""
        return self.runtime(*arguments).run(CANDIDATE, self.job(*command))

    def jobs(self, name: str = "") -> dict[str, str]:
        """State by id of the jobs of this test, or of a bisection."""
        shown = self.slurm.call("squeue", "--noheader", "--states=all", "--format=%i %T %j").stdout
        rows = [line.split() for line in shown.splitlines()]
        return {job: state for job, state, named in rows if (name or self.label) in named}

    def under_way(self, name: str = "") -> list[str]:
        """The jobs that are not over."""
        over = ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT")
        return [job for job, state in self.jobs(name).items() if state not in over]


CANDIDATE = Candidate("candidate:a", "a", 0)


@pytest.fixture(name="lab")
def _lab(slurm: Slurm, tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(slurm, tmp_path)
    yield lab
    assert not lab.under_way()


def wait_for(true: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until something is true; fail when it does not come true."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.1)


# -- one probe -------------------------------------------------------------------------------------


def test_a_probe_is_a_job_of_its_own_with_the_users_arguments(lab: Lab) -> None:
    """Two nodes: the command starts its tasks itself, with srun."""
    command = "srun sh -c 'echo \"loss $SLURM_PROCID on $SLURMD_NODENAME\"' | sort; echo err >&2"
    found = lab.probe("sh", "-c", command, arguments=("--nodes=2", "--ntasks=2"))
    assert (found.status, found.exit_code) == ("ran", 0), found.reason
    printed = "loss 0 on n1\nloss 1 on n2\n"
    assert Path(found.log).with_name("stdout").read_text() == printed
    assert sorted(Path(found.log).read_text().splitlines()) == ["err", *printed.splitlines()]
    (steps,) = (ranks["0"] for ranks in found.evidence.streams.values())
    assert len(steps) == 2
    (job,) = lab.jobs()
    assert found.facts["slurm"] == {"job": job, "nodes": "n[1-2]", "start": 0}
    assert found.facts["host"]["hostname"] == os.uname().nodename


def test_its_evidence_is_that_of_the_same_command_without_slurm(lab: Lab) -> None:
    code = "import pinner; [pinner.fingerprint('loss', 0.1 * n) for n in range(3)]; print('loss 7')"
    command = (sys.executable, "-c", code)
    there = lab.probe(*command)
    here = LocalRuntime(None, lab.folder).run(CANDIDATE, lab.job(*command))
    assert set(there.evidence.streams) == {"loss", "stdout:loss (.*)"}
    assert there.evidence == here.evidence
    assert Path(there.log).with_name("session").joinpath("ledger").is_dir()


@pytest.mark.parametrize(("script", "code"), [("exit 3", 3), ("kill -9 $$", 137)])
def test_the_commands_code_is_the_probes(lab: Lab, script: str, code: int) -> None:
    found = lab.probe("sh", "-c", script)
    assert (found.status, found.exit_code) == ("ran", code)


def test_three_jobs_run_at_once_each_with_caches_of_its_own(lab: Lab) -> None:
    """Each waits for the two others: one after the other none would end."""
    script = (
        'echo "loss $(ls $TRITON_CACHE_DIR | wc -l)"; touch $TRITON_CACHE_DIR/kernel met.$$;'
        "until [ $(ls met.* | wc -l) = 3 ]; do sleep 0.1; done"
    )
    runtime = lab.runtime()
    with ThreadPoolExecutor(3) as pool:
        jobs = [lab.job("sh", "-c", script, limit=60) for _ in range(3)]
        found = list(pool.map(lambda job: runtime.run(CANDIDATE, job), jobs))
    assert [each.exit_code for each in found] == [0, 0, 0]
    assert {Path(each.log).with_name("stdout").read_text() for each in found} == {"loss 0\n"}
    assert len({each.facts["slurm"]["job"] for each in found}) == 3


def test_a_candidate_is_prepared_by_a_job_before_the_first_probe_of_it(lab: Lab) -> None:
    prepare = 'echo "$STACKBISECT_CANDIDATE $SLURM_JOB_ID" >>$STACKBISECT_FOLDER/made'
    runtime = lab.runtime(prepare=prepare)
    command = ("sh", "-c", "echo loss $(cat $STACKBISECT_FOLDER/made)")
    found = [runtime.run(CANDIDATE, lab.job(*command)) for _ in range(2)]
    assert found[0].evidence == found[1].evidence
    assert len(lab.jobs()) == 3
    text = Path(found[0].log).with_name("stdout").read_text()
    assert re.fullmatch(rf"loss a ({'|'.join(lab.jobs())})\n", text)
    broken = lab.runtime(prepare="echo no compiler; exit 2")
    found = [broken.run(Candidate("candidate:b", "b", 1), lab.job("true"))]
    assert (found[0].status, "no compiler" in found[0].reason) == ("untestable", True)


def test_secrets_are_in_no_file(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "very-secret-value")
    found = lab.probe("sh", "-c", "echo loss $WANDB_API_KEY $SECOND")
    files = [path for path in (lab.folder / "probes").rglob("*") if path.is_file()]
    assert not [path for path in files if b"very-secret-value" in path.read_bytes()]
    assert "loss <hidden>" in Path(found.log).read_text()


def test_a_command_over_its_time_limit_is_untestable_and_gone(lab: Lab) -> None:
    job = lab.job("sh", "-c", "sleep 7671 & sleep 7671", limit=1)
    found = lab.runtime().run(CANDIDATE, job)
    assert (found.status, found.reason) == ("untestable", "the command did not end within 1 s")
    assert subprocess.run(["pgrep", "-f", "^sleep 7671"], capture_output=True).stdout == b""


def test_what_sbatch_refuses_is_the_machinerys_fault_in_its_words(lab: Lab) -> None:
    found = lab.probe("true", arguments=("--partition=nope",))
    assert found.status == "infrastructure"
    assert "sbatch" in found.reason
    assert "Invalid partition name specified" in found.reason


# -- jobs that do not come to their end ------------------------------------------------------------


def test_after_a_requeue_only_the_second_start_counts(lab: Lab) -> None:
    """Its node fails after some of the evidence is written; Slurm starts it again on the other."""
    script = (
        "echo loss $SLURM_RESTART_COUNT on $SLURMD_NODENAME; cat $TRITON_CACHE_DIR/kernel;"
        "echo kernel >$TRITON_CACHE_DIR/kernel;"
        '[ -n "$SLURM_RESTART_COUNT" ] || { echo 1 >old.bin; echo up >up; sleep 7672; };'
        "echo 2 >new.bin"
    )
    job = lab.job("sh", "-c", script)
    job = replace(job, evidence=replace(LOSS, files=("*.bin",)))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(lab.runtime().run, CANDIDATE, job)
        wait_for((job.workdir / "up").exists)
        (name,) = lab.jobs()
        node = node_of(lab, name)
        with down(lab.slurm, node):
            wait_for(lambda: "BeginTime" in lab.slurm.call("squeue", f"--jobs={name}").stdout)
            lab.slurm.call("scontrol", "update", f"jobid={name}", "starttime=now")
            found = running.result(timeout=90)
    other = {"n1": "n2", "n2": "n1"}[node]
    assert found.exit_code == 0, found.reason
    assert job.stdout.read_text() == f"loss 1 on {other}\n"
    assert found.facts["slurm"] == {"job": name, "nodes": other, "start": 1}
    assert [each for each in found.evidence.streams if "bin" in each] == ["file:new.bin"]


def node_of(lab: Lab, job: str) -> str:
    """Where a job runs."""
    return lab.slurm.call("squeue", "--noheader", f"--jobs={job}", "--format=%N").stdout.strip()


class down:
    """A node that has failed, as the controller sees it, until the end of the block."""

    def __init__(self, slurm: Slurm, node: str) -> None:
        self._slurm, self._node = slurm, node

    def __enter__(self) -> None:
        self._set("down")

    def __exit__(self, *error: object) -> None:
        self._set("resume")
        wait_for(self._slurm.answers)

    def _set(self, state: str) -> None:
        words = (f"nodename={self._node}", f"state={state}", "reason=test")
        done = self._slurm.call("scontrol", "update", *words)
        assert done.returncode == 0, done.stderr


def test_a_node_that_fails_is_the_machinerys_fault_where_nothing_is_requeued(lab: Lab) -> None:
    job = lab.job("sh", "-c", "echo up >up; sleep 7673")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(lab.runtime("--no-requeue").run, CANDIDATE, job)
        wait_for((job.workdir / "up").exists)
        (name,) = lab.jobs()
        with down(lab.slurm, node_of(lab, name)):
            found = running.result(timeout=60)
    assert found.status == "infrastructure"
    assert f"Slurm job {name} ended as NODE_FAIL: its node failed" in found.reason


def test_a_job_that_somebody_cancels_is_the_machinerys_fault(lab: Lab) -> None:
    job = lab.job("sh", "-c", "echo up >up; sleep 7674")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(lab.runtime().run, CANDIDATE, job)
        wait_for((job.workdir / "up").exists)
        (name,) = lab.jobs()
        lab.slurm.call("scancel", name)
        found = running.result(timeout=60)
    assert found.status == "infrastructure"
    assert "somebody cancelled it" in found.reason


def test_a_probe_that_is_not_wanted_any_more_takes_its_job_with_it(lab: Lab) -> None:
    """One that runs, and one that waits because there is no room."""
    runtime = lab.runtime("--cpus-per-task=4", "--nodes=2")
    jobs = [lab.job("sh", "-c", "echo up >up; sleep 7675") for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(runtime.run, CANDIDATE, job) for job in jobs]
        wait_for(lambda: len(lab.jobs()) == 2 and (jobs[0].workdir / "up").exists())
        for job in jobs:
            job.stop.set()
        assert {each.result(timeout=60).status for each in running} == {"infrastructure"}
    assert set(lab.jobs().values()) == {"CANCELLED"}


def test_a_controller_that_is_away_for_a_while_is_waited_for(lab: Lab) -> None:
    script = "echo up >up; until [ -e go ]; do sleep 0.1; done; echo loss 1; exit 3"
    job = lab.job("sh", "-c", script)
    controller = lab.slurm.daemons()[1]
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(lab.runtime().run, CANDIDATE, job)
        wait_for((job.workdir / "up").exists)
        controller.stop()
        (job.workdir / "go").touch()
        wait_for(lambda: list(job.log.parent.glob("slurm-log/start.0/ended")))
        assert not running.done()  # its code is not 0: Slurm may have more to say
        controller.start()
        found = running.result(timeout=60)
    assert (found.status, found.exit_code) == ("ran", 3), found.reason


@pytest.mark.soak
@lanes.long_form
def test_slurms_own_time_limit_is_said(lab: Lab) -> None:
    found = lab.probe("sleep", "7676", arguments=("--time=1",))
    assert found.status == "untestable"
    assert "reached its time limit in Slurm (1:00)" in found.reason
    assert "DUE TO TIME LIMIT" in found.reason


# -- the whole program -----------------------------------------------------------------------------

WORK = """
echo "$STACKBISECT_CANDIDATE" >>runs
[ -e slow ] && { echo up >up; until [ -e go ]; do sleep 0.1; done; }
if [ "$STACKBISECT_CANDIDATE" -lt "$(cat change)" ]; then echo loss 1; else echo loss 2; fi
"""


@dataclass(frozen=True)
class Search(Program):
    """A bisection over the numbers from 0 to 12 whose bits change at a number drawn at random."""

    name: str = ""
    change: int = 0
    own_session: bool = True

    def words(self) -> list[str]:
        """What is asked for."""
        candidates = ",".join(str(number) for number in range(13))
        return [
            *("run", "--json", "--name", self.name, "--runtime", "slurm", "--jobs", "3"),
            *("--candidates", candidates, "--good", "0", "--bad", "12", "--depth", "search"),
            *("--sbatch-args", "--cpus-per-task=1 --partition=tests"),
            *("--evidence-stdout", "loss (.*)", "--", "sh", "work.sh"),
        ]

    def runs(self) -> list[str]:
        """The candidates whose command was started, in order."""
        path = self.folder / "runs"
        return path.read_text().split() if path.exists() else []

    def written(self, what: str) -> set[int]:
        """The probes whose jobs were read (taken), or given up."""
        found = self.folder.glob(f".stackbisect/{self.name}/probes/*/slurm-log/{what}.json")
        return {int(path.parents[1].name) for path in found}

    def submitted(self) -> list[Path]:
        """The scripts of all jobs."""
        return list(self.folder.glob(f".stackbisect/{self.name}/probes/*/slurm-log/script"))

    def right(self, found: dict[str, object]) -> bool:
        """Is this the answer?"""
        ends = (str(self.change - 1), str(self.change))
        return (found["status"], found["last_good"], found["first_bad"]) == ("found", *ends)


@pytest.fixture(name="search")
def _search(lab: Lab) -> Iterator[Search]:
    seed = random.SystemRandom().randrange(2**32)
    change = random.Random(seed).randrange(1, 13)
    print(f"seed {seed}: the change is at {change}")
    folder = lab.folder / "search"
    folder.mkdir()
    (folder / "work.sh").write_text(WORK)
    (folder / "change").write_text(str(change))
    name = f"s{random.SystemRandom().randrange(2**32):08x}"
    yield Search(folder, {**lab.slurm.environ}, name=name, change=change)
    assert not lab.under_way(name)


def test_a_bisection_of_three_jobs_at_once_goes_from_version_to_component_to_version(
    lab: Lab,
) -> None:
    """A new `suite` brings jumps of two others; which one is to blame, and where, is drawn."""
    seed = random.SystemRandom().randrange(2**32)
    drawn = random.Random(seed)
    guilty, change = drawn.choice(("summing", "scaling")), drawn.randrange(2, 8)
    print(f"seed {seed}: {guilty} changes at 1.{change}")
    store = lab.folder / "store"
    for number in range(8):
        bad = number >= change
        order = "backward" if bad and guilty == "summing" else "forward"
        wheels.summing(store, {f"1.{number}": order})
        factor = 3.0 if bad and guilty == "scaling" else 1.0
        wheels.write(store, "scaling", f"1.{number}", {"scaling.py": f"FACTOR = {factor}\n"})
    for number, brings in enumerate(("1.0", "1.1", "1.7")):
        needs = [f"{name}=={brings}" for name in ("summing", "scaling")]
        files = {"suite.py": "from summing import total\n"}
        wheels.write(store, "suite", f"1.{number}", files, needs)
    (lab.folder / "work.py").write_text(
        "import pinner, scaling, suite\n"
        "for step in range(3):\n"
        "    values = [0.1 * (step + 1), 1e16, 1.0, -1e16, 2.5]\n"
        "    pinner.fingerprint('total', suite.total(values) * scaling.FACTOR)\n"
    )
    name = f"s{random.SystemRandom().randrange(2**32):08x}"
    ended = Program(lab.folder, lab.slurm.environ)(
        *("run", "--json", "--name", name, "--runtime", "slurm", "--jobs", "3"),
        *("--package", "suite", "--good", "1.0", "--bad", "1.2"),
        f"--index-args=--no-index --find-links {store}",
        *("--", "python", "work.py"),
    )
    assert ended.code == 0, ended.err
    found = ended.report
    assert (found["last_good"], found["first_bad"]) == ("1.1", "1.2")
    (culprit,) = found["culprits"]
    (part,) = culprit["components"]
    assert (part["name"], part["good"], part["bad"]) == (guilty, "1.1", "1.7")
    neighbours = {"last_good": f"1.{change - 1}", "first_bad": f"1.{change}"}
    assert neighbours.items() <= culprit["versions"].items()
    assert not lab.under_way(name)


@pytest.mark.parametrize("finished", [False, True], ids=["jobs under way", "jobs finished"])
def test_jobs_of_a_killed_program_are_taken_over_and_not_repeated(
    lab: Lab, search: Search, finished: bool
) -> None:
    killed = search.start(*search.words())
    wait_for(lambda: len(search.probes()) >= random.SystemRandom().randrange(1, 5))
    (search.folder / "slow").touch()
    wait_for(lambda: (search.folder / "up").exists() or killed.poll() is not None)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    before = search.probes()
    if finished:
        (search.folder / "go").touch()
        wait_for(lambda: not lab.under_way(search.name))
    lost = {line["probe"] for line in search.journal() if line["t"] == "start"}
    lost -= {line["probe"] for line in before}
    for file in search.folder.glob(".stackbisect/*/probes/*/slurm-log/job.json"):
        if random.random() < 0.5:  # killed before Slurm's answer to sbatch was written down
            file.write_text(json.dumps({**json.loads(file.read_text()), "id": ""}))
    running = search.start("resume", "--json", search.name)
    (search.folder / "go").touch()
    out, err = running.communicate(timeout=120)
    assert running.returncode == 0, err
    assert search.right(json.loads(out))
    assert search.probes()[: len(before)] == before
    # A probe that took over a job of the killed program submitted none.
    started = [line["probe"] for line in search.journal() if line["t"] == "start"]
    adopted = lost & search.written("taken")
    assert adopted
    assert len(started) - len(search.submitted()) == len(adopted)
    assert len(search.runs()) <= len(search.submitted())


def test_an_interrupted_program_leaves_no_job(lab: Lab, search: Search) -> None:
    how = random.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    print(how)
    (search.folder / "slow").touch()
    running = search.start(*search.words())
    wait_for((search.folder / "up").exists)
    running.send_signal(how)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130, err
    assert not lab.under_way(search.name)


def test_clean_cancels_what_a_killed_program_left(lab: Lab, search: Search) -> None:
    (search.folder / "slow").touch()
    killed = search.start(*search.words())
    wait_for((search.folder / "up").exists)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert lab.under_way(search.name)
    assert search("clean", search.name).code == 0
    assert not lab.under_way(search.name)
    assert not search.journal()


# -- images, where pyxis is ------------------------------------------------------------------------

# Stands for srun with pyxis: says so, writes down pyxis' options, and is srun for the rest. What
# runs is no container; the image's name stands for what would be in it.
SRUN = """#!/bin/sh
case " $* " in *" --help "*)
    echo "      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH"; exec {srun} --help;;
esac
count=$#
while [ "$count" -gt 0 ]; do
    case "$1" in
        --container-image=*) export STAND_IN="${{1#--container-image=}}"; echo "$1" >>{record};;
        --container-*) echo "$1" >>{record};;
        *) set -- "$@" "$1";;
    esac
    shift
    count=$((count - 1))
done
exec {srun} "$@"
"""


@pytest.fixture(name="fake")
def _fake() -> Iterator[fakes.FakeRegistry]:
    with fakes.serve() as fake:
        yield fake


def _architecture() -> str:
    """This machine's, as images name it."""
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)


def test_images_are_started_by_srun_with_pyxis_options(lab: Lab, fake: fakes.FakeRegistry) -> None:
    for number in range(4):
        env = {"PYTHONPATH": "/of/image", "NUMBER": str(number)}
        fake.content.image(f"1.{number}", env, architecture=_architecture())
    programs, record = lab.folder / "programs", lab.folder / "record"
    programs.mkdir()
    srun = lanes.require_command("srun", "slurm-client")
    (programs / "srun").write_text(SRUN.format(srun=srun, record=record))
    (programs / "srun").chmod(0o755)
    environ = {**lab.slurm.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    name = f"s{random.SystemRandom().randrange(2**32):08x}"
    ended = Program(lab.folder, environ)(
        *("run", "--json", "--name", name, "--runtime", "slurm", "--jobs", "2"),
        *("--image", fake.reference, "--good", "1.0", "--bad", "1.3", "--depth", "search"),
        *("--sbatch-args", "--ntasks=2", "--env", "GIVEN=1", "--evidence-stdout", "loss (.*)"),
        *("--mount", f"type=bind,src={lab.folder},dst=/data,ro", "--", "sh", "-c"),
        'case $STAND_IN in *:1.[01]) echo "loss 1 $GIVEN";; *) echo loss 2;; esac',
    )
    assert ended.code == 0, ended.err
    assert (ended.report["last_good"], ended.report["first_bad"]) == ("1.1", "1.2")
    probe = Program(lab.folder).probes()[0]
    (log,) = lab.folder.glob(f".stackbisect/{name}/{probe['result']['log']}")
    assert log.read_text() == "loss 1 1\n" * 2  # two tasks
    host, path = fake.reference.split("/", 1)
    said = [line.partition("=")[::2] for line in record.read_text().splitlines()]
    assert ("--container-image", f"{host}#{path}:1.0") in said
    mounts = next(value.split(",") for option, value in said if option == "--container-mounts")
    assert f"{log.parent}:{log.parent}" in [m for _, v in said for m in v.split(",")]
    assert f"{lab.folder}:/data:ro" in mounts
    named = next(value.split(",") for option, value in said if option == "--container-env")
    assert {"GIVEN", "PINNER_SESSION", "PYTHONPATH", "TRITON_CACHE_DIR"} <= {*named}
    script = (log.parent / "slurm-log" / "script").read_text()
    assert re.search(r"^export PYTHONPATH=\S*/inject:/of/image$", script, re.MULTILINE)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "needs pyxis, and `srun --help` shows no --container-image"),
        (["--gpus", "all"], "--gpus has no counterpart in pyxis"),
        (["--evidence-file", "/out/x"], "expected a path below a --mount"),
        (["--mount", "type=tmpfs,dst=/x"], "pyxis mounts folders of the host only"),
    ],
)
def test_what_images_in_jobs_cannot_have_is_said(
    lab: Lab, fake: fakes.FakeRegistry, options: list[str], words: str
) -> None:
    for number in range(2):
        fake.content.image(f"1.{number}", {"NUMBER": str(number)}, architecture=_architecture())
    ended = Program(lab.folder, lab.slurm.environ)(
        *("run", "--runtime", "slurm", "--image", fake.reference),
        *("--good", "1.0", "--bad", "1.1", *options, "--", "true"),
    )
    assert ended.code == 64
    assert words in ended.err


# -- what Slurm says, and what it means ------------------------------------------------------------

SILENT = LATE_S + 1
READINGS: list[tuple[State | None, Wrote, float, str, str]] = [
    (State("7", "PENDING", "Resources"), Wrote(), 0, "wait", ""),
    (State("7", "PENDING", "BeginTime"), Wrote(True), 0, "wait", ""),
    (State("7", "PENDING", "JobHeldAdmin"), Wrote(), 0, "lost", "cannot start: JobHeldAdmin"),
    (State("7", "PENDING", "PartitionDown"), Wrote(), 0, "wait", ""),
    (State("7", "CONFIGURING"), Wrote(), 0, "wait", ""),
    (State("7", "SUSPENDED"), Wrote(True), 0, "wait", ""),
    (State("7", "REQUEUE_HOLD", "held"), Wrote(), 0, "lost", "put back and is held"),
    (State("7", "RUNNING"), Wrote(True), 0, "wait", ""),
    (State("7", "RUNNING"), Wrote(True, 0), 0, "ended", ""),
    (State("7", "COMPLETING"), Wrote(True, 137), 0, "wait", ""),
    (State("7", "COMPLETING"), Wrote(True, 137), SILENT, "ended", ""),
    (State("7", "FAILED", "NonZeroExitCode"), Wrote(True, 3), 0, "ended", ""),
    (State("7", "OUT_OF_MEMORY"), Wrote(True, 137), 0, "untestable", "more memory than it has"),
    (State("7", "OUT_OF_MEMORY"), Wrote(True), 0, "untestable", "OUT_OF_MEMORY"),
    (
        State("7", "TIMEOUT", limit="1:00"),
        Wrote(True),
        0,
        "untestable",
        "time limit in Slurm (1:00)",
    ),
    (State("7", "NODE_FAIL"), Wrote(True), 0, "lost", "its node failed"),
    (State("7", "BOOT_FAIL"), Wrote(), 0, "lost", "did not boot"),
    (State("7", "PREEMPTED"), Wrote(True), 0, "lost", "another job took its place"),
    (State("7", "CANCELLED"), Wrote(True, 143), 0, "lost", "somebody cancelled it"),
    (State("7", "COMPLETED"), Wrote(True), 1, "wait", ""),
    (State("7", "FAILED", "NonZeroExitCode"), Wrote(), SILENT, "lost", "its script never began"),
    (State("7", "FAILED"), Wrote(True), SILENT, "untestable", "its script was killed"),
    (None, Wrote(True), 1, "wait", ""),
    (None, Wrote(True, 3), 0, "ended", ""),
    (None, Wrote(True), SILENT, "lost", "does not know job 7"),
]


@pytest.mark.parametrize(("state", "wrote", "silent", "kind", "words"), READINGS)
def test_what_slurm_says_is_read_for_what_it_means(
    state: State | None, wrote: Wrote, silent: float, kind: str, words: str
) -> None:
    found = read("7", state, wrote, silent_s=silent)
    assert found.kind == kind
    assert words in found.text


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("--output=x", "--sbatch-args: --output=x is for stackbisect to say"),
        ("-ox", "--sbatch-args: -ox is for stackbisect to say"),
        ("-p x -J name", "--sbatch-args: -J is for stackbisect to say"),
        ("--array=1-3", "--sbatch-args: --array=1-3 is for stackbisect to say"),
        ("-Mother", "set SLURM_CLUSTERS instead"),
        ("--dependency=afterok:1 --account=a -N2 --time=30", ""),
    ],
)
def test_arguments_that_are_the_programs_own_are_refused(words: str, fault: str) -> None:
    asked = ["--sbatch-args", words]
    parser = argparse.ArgumentParser()
    asked_slurm.add_options(parser)
    arguments = parser.parse_args(asked_slurm.joined(asked))
    arguments.runtime = "slurm"
    if not fault:
        assert asked_slurm.setup(arguments) == {"slurm": {"arguments": words.split()}}
        assert arguments.runtime is None
        return
    with pytest.raises(UsageError, match=re.escape(fault)):
        asked_slurm.setup(arguments)
