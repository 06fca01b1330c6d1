"""`stackbisect run --runtime venv` as people use it: a real program, real pip, real environments.

Most of it bisects a small series of wheels whose summation order changes at a version drawn at
random; what is right is found out by summing once with every version, without stackbisect. One
test does the same with numpy's own wheels from the index.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests import lanes
from tests.stackbisect import wheels
from tests.stackbisect.program import Ended, Program

ROOT = Path(__file__).parents[2]
VALUES = "[0.1 * (step + 1), 1e16, 1.0, -1e16, 2.5]"
WORK = f"""
import pinner
import summing

for step in range(4):
    pinner.fingerprint("total", summing.total({VALUES}))
"""
ALONE = f"import summing\nprint([summing.total({VALUES}).hex() for step in range(4)])"
FOUND, SAME, RANGE, ENDS, INFRASTRUCTURE, USAGE, UNREADABLE = 0, 1, 2, 4, 5, 64, 65


@dataclass(frozen=True)
class Series(Program):
    """The program, with a store of wheels beside it."""

    store: Path = Path()
    own_session: bool = True

    def words(self, good: str, bad: str, *more: str, command: Sequence[str] = ()) -> list[str]:
        """A bisection of the series."""
        return [
            *("run", "--json", "--name", "b", "--runtime", "venv", "--package", "summing"),
            *("--good", good, "--bad", bad, "--depth", "search"),
            f"--index-args=--no-index --find-links {self.store}",
            *more,
            "--",
            *(command or ("python", "work.py")),
        ]

    def search(self, good: str, bad: str, *more: str, command: Sequence[str] = ()) -> Ended:
        """Run a bisection of the series."""
        return self(*self.words(good, bad, *more, command=command))


@pytest.fixture(name="program")
def _program(tmp_path: Path) -> Series:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "work.py").write_text(WORK)
    return Series(tmp_path / "work", store=tmp_path / "store")


def series(program: Series, orders: str) -> list[str]:
    """Fill the store: one version a letter, `f`orward, `b`ackward, by `s`ize; others: see below.

    `x` needs what does not exist, `e` fails when it is imported, `h` leaves half of the evidence,
    `~` gives other bits each time.
    """
    names = {"f": "forward", "b": "backward", "s": "by size"}
    versions = [f"1.{number}" for number in range(len(orders))]
    for version, letter in zip(versions, orders, strict=True):
        if letter in names:
            wheels.summing(program.store, {version: names[letter]})
            continue
        requires = ["no-such-thing-at-all"] if letter == "x" else []
        source = {
            "x": "",
            "e": "raise ImportError('its other half is missing')",
            "h": "import os\ncount = []\ndef total(values):\n    count.append(1)\n"
            "    if len(count) > 2: os._exit(0)\n    return float(sum(values))\n",
            "~": "import time\ndef total(values):\n    return float(time.time_ns())\n",
        }[letter]
        source = f'__version__ = "{version}"\n{source}'
        wheels.write(program.store, "summing", version, {"summing/__init__.py": source}, requires)
    return versions


def bound(candidates: int, untestable: int) -> int:
    """Probes: 4 for the ends, ceil(log2(testable)), 2 repeats, one for each untestable touched."""
    return 4 + math.ceil(math.log2(candidates - untestable)) + 2 + untestable


def test_a_change_at_a_version_drawn_at_random_is_found(program: Series) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    size = random.Random(seed).randrange(6, 20)
    change = random.Random(seed).randrange(1, size)
    versions = series(program, "f" * change + "b" * (size - change))
    ended = program.search(versions[0], versions[-1])
    assert ended.code == FOUND, ended.err
    found = ended.report
    pairs = list(itertools.pairwise(versions))
    (expected,) = [pair for pair in pairs if summed(program, pair[0]) != summed(program, pair[1])]
    assert (found["last_good"], found["first_bad"]) == expected
    assert found["status"] == "found"
    assert found["probes"] == len(program.probes()) <= bound(size, 0)
    assert found["transitions"] == [
        {
            "from": expected[0],
            "to": expected[1],
            "from_verdict": "good",
            "to_verdict": "bad",
            "adjacent": True,
            "narrowed": True,
            "untestable": [],
            "untried": [],
            "difference": {
                "distributions": {"summing": list(expected)},
                "packages": {},
                "environment": {},
            },
        }
    ]
    assert found["culprits"] == []


def summed(program: Series, version: str) -> str:
    """What one version sums, straight from its wheel."""
    wheel = program.store / f"summing-{version}-py3-none-any.whl"
    environ = {**os.environ, "PYTHONPATH": str(wheel)}
    return subprocess.run(
        [sys.executable, "-c", ALONE], env=environ, capture_output=True, text=True, check=True
    ).stdout


def test_candidates_that_cannot_be_tested_are_searched_around(program: Series) -> None:
    versions = series(program, "ffffhexfbb")
    ended = program.search(versions[0], versions[-1])
    assert ended.code == FOUND, ended.err
    found = ended.report
    assert (found["last_good"], found["first_bad"]) == ("1.7", "1.8")
    kinds = {each["label"]: each for each in found["verdicts"]}
    touched = [each for each in found["verdicts"] if each["verdict"] == "untestable"]
    assert found["probes"] <= bound(10, len(touched))
    if kinds["1.5"]["verdict"]:
        assert "exit code 1" in kinds["1.5"]["reason"]


def test_a_range_that_cannot_be_tested_is_the_answer_with_each_reason(program: Series) -> None:
    versions = series(program, "ffhexehbb")
    ended = program.search(versions[0], versions[-1])
    assert ended.code == RANGE, ended.err
    found = ended.report
    assert found["range"] == versions[1:8]
    reasons = {each["label"]: each["reason"] for each in found["verdicts"]}
    assert "2 of 4 steps" in reasons["1.2"]
    assert "the command failed (exit code 1)" in reasons["1.3"]
    assert "no-such-thing-at-all" in reasons["1.4"]
    assert found["probes"] <= bound(9, 5)


def test_three_generations_give_both_transitions(program: Series) -> None:
    series(program, "ffsssbb")
    ended = program.search("1.0", "1.6")
    assert ended.code == FOUND, ended.err
    found = ended.report
    assert [(t["from"], t["to"]) for t in found["transitions"]] == [("1.1", "1.2"), ("1.4", "1.5")]
    assert found["transitions"][0]["to_verdict"] == "third"


def test_an_unstable_candidate_blames_nobody(program: Series) -> None:
    series(program, "ff~bb")
    ended = program.search("1.0", "1.4")
    assert ended.code == RANGE, ended.err
    assert ended.report["verdicts"][2]["verdict"] == "unstable"
    series(program, "ff~bb")
    ended = program.search("1.0", "1.2", "--fresh")
    assert ended.code == ENDS, ended.err
    assert "two runs of it gave different bits" in ended.report["reason"]


def test_equal_ends_are_not_searched(program: Series) -> None:
    series(program, "fbf")
    ended = program.search("1.0", "1.2")
    assert ended.code == SAME
    assert ended.report["status"] == "not_reproduced"
    assert ended.report["probes"] == 4
    assert [each["verdict"] for each in ended.report["verdicts"]] == ["good", None, "good"]
    assert "the change is between" not in program("status", "b").out


def test_no_evidence_is_an_error_that_names_the_ways(program: Series) -> None:
    series(program, "fb")
    ended = program.search("1.0", "1.1", command=("python", "-c", "import summing"))
    assert ended.code == ENDS
    assert "--evidence-stdout" in ended.report["hint"]


def test_evidence_from_standard_output_and_from_files(program: Series) -> None:
    series(program, "ffbb")
    print_it = ("python", "-c", f"import summing\nstep = 1\nprint('loss', summing.total({VALUES}))")
    ended = program.search("1.0", "1.3", "--evidence-stdout", "loss (.*)", command=print_it)
    assert (ended.code, ended.report["first_bad"]) == (FOUND, "1.2"), ended.err
    write_it = (
        *("python", "-c"),
        f"import summing\nstep = 1\nopen('out.txt', 'w').write(repr(summing.total({VALUES})))",
    )
    ended = program.search("1.0", "1.3", "--fresh", "--evidence-file", "out*.txt", command=write_it)
    assert (ended.code, ended.report["first_bad"]) == (FOUND, "1.2"), ended.err


def test_exit_codes_are_verdicts_on_request(program: Series) -> None:
    series(program, "fffbb")
    test = f"import summing, sys\nstep = 1\nsys.exit(summing.total({VALUES}) != 2.5)"
    command = ("python", "-c", test)
    ended = program.search("1.0", "1.4", "--verdict", "exit-code", command=command)
    assert ended.code == FOUND, ended.err
    assert (ended.report["last_good"], ended.report["first_bad"]) == ("1.2", "1.3")
    ended = program.search("1.4", "1.0", "--fresh", "--verdict", "exit-code", command=command)
    assert ended.code == ENDS
    assert "not a good end" in ended.report["reason"]


def test_an_end_that_does_not_exist_offers_the_nearest(program: Series) -> None:
    series(program, "ffbb")
    ended = program.search("1.0", "1.9")
    assert ended.code == USAGE
    assert "'1.9' does not exist; nearest: 1.3" in ended.err
    assert ended.report["status"] == "error"


def test_the_plan_tries_nothing(program: Series) -> None:
    series(program, "ffbb")
    words = program.words("1.0", "1.3")
    words[0] = "plan"
    ended = program(*words)
    assert ended.code == 0
    assert [each["label"] for each in ended.report["candidates"]] == ["1.0", "1.1", "1.2", "1.3"]
    assert ended.report["probe_bound"] == 8
    assert not (program.folder / ".stackbisect").exists()


def test_a_changed_bisection_is_refused_with_the_difference(program: Series) -> None:
    series(program, "fb")
    assert program.search("1.0", "1.1").code == FOUND
    changes: list[tuple[Sequence[str], Sequence[str], str]] = [
        ((), ("python", "other.py"), 'command: was ["python", "work.py"], is'),
        (("--evidence-file", "*.bin"), (), 'evidence.files: was [], is ["*.bin"]'),
        (("--with", "summing"), (), 'setup.with: was [], is ["summing"]'),
        (("--time-limit", "5m"), (), "time_limit: was null, is 300.0"),
    ]
    for more, command, shown in changes:
        ended = program.search("1.0", "1.1", *more, command=command)
        assert ended.code == USAGE
        assert shown in ended.err
        assert "another --name, or --fresh" in ended.err
    wheels.summing(program.store, {"1.0.5": "forward"})
    ended = program.search("1.0", "1.1")
    assert ended.code == USAGE
    assert "candidate 1.0.5: new" in ended.err


def test_a_finished_bisection_gives_its_answer_again_without_a_probe(program: Series) -> None:
    series(program, "ffb")
    first = program.search("1.0", "1.2")
    again = program.search("1.0", "1.2")
    assert (again.code, again.report) == (FOUND, first.report)
    shown = program("report", "b", "--json")
    assert shown.report == first.report
    assert program("resume", "b", "--json").report == first.report


def test_the_log_has_every_probe_and_the_output_of_one(program: Series) -> None:
    series(program, "fb")
    command = ("python", "-c", f"print('hello from it')\n{WORK}")
    assert program.search("1.0", "1.1", command=command).code == FOUND
    probes = program("log", "b", "--json").report["probes"]
    assert [probe["candidate"] for probe in probes] == ["1.0", "1.0", "1.1", "1.1"]
    assert "hello from it" in program("log", "b", "2").out
    assert program("log", "b", "9").code == USAGE
    assert program.search("1.0", "1.1", "--fresh", command=command).code == FOUND
    assert "hello from it" in program("log", "b.1", "2").out
    assert "b: found, 4 probes" in program("status").out


def test_killed_at_ten_moments_and_resumed_nothing_is_repeated(program: Series) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    drawn = random.Random(seed)
    versions = series(program, "ffffffxfbbbbbb")
    begin = program.words(versions[0], versions[-1])
    kills = 0
    while kills < 10:
        started = program.start(*(["resume", "b", "--json"] if program.journal() else begin))
        try:
            out, err = started.communicate(timeout=drawn.uniform(0.1, 2.0))
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
            started.communicate()
            kills += 1
            check_none_repeated(program)
            continue
        check_answer(program, Ended(started.returncode, out, err))
        assert program("clean", "b").code == 0  # it was quicker: on to the next kill
    last = program(*(["resume", "b", "--json"] if program.journal() else begin))
    check_answer(program, last)
    assert not left_behind(program)
    assert not list(program.folder.glob(".stackbisect/b/probes/*/scratch"))


def check_answer(program: Series, ended: Ended) -> None:
    """The right answer, by as many probes as it takes and none twice."""
    assert ended.code == FOUND, ended.err
    assert (ended.report["last_good"], ended.report["first_bad"]) == ("1.7", "1.8")
    check_none_repeated(program)
    assert len(program.probes()) == ended.report["probes"] <= bound(14, 1)


def check_none_repeated(program: Series) -> None:
    """No finished probe stands in the journal twice."""
    made = [(probe["candidate"], probe["attempt"]) for probe in program.probes()]
    assert len(set(made)) == len(made)


def left_behind(program: Series) -> list[str]:
    """Processes that still work in the program's folder."""
    deadline = time.monotonic() + 20
    while True:
        found = [
            text for text in map(about, Path("/proc").glob("[0-9]*")) if str(program.folder) in text
        ]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def about(process: Path) -> str:
    """A process's command line, environment and folder; "" where it is gone or a zombie."""
    try:
        texts = [(process / name).read_bytes() for name in ("cmdline", "environ")]
        return b" ".join(texts).decode(errors="replace") + os.readlink(process / "cwd")
    except OSError:
        return ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing_behind_and_can_be_resumed(
    program: Series, number: signal.Signals
) -> None:
    series(program, "ffbb")
    (program.folder / "work.py").write_text(f"import time\nopen('up', 'w')\ntime.sleep(3)\n{WORK}")
    started = program.start(*program.words("1.0", "1.3"))
    deadline = time.monotonic() + 60
    while not (program.folder / "up").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    started.send_signal(number)
    out, _ = started.communicate(timeout=30)
    assert started.returncode == 130
    assert json.loads(out)["resume"] == "stackbisect resume b"
    assert not left_behind(program)
    (program.folder / "work.py").write_text(WORK)
    ended = program("resume", "b", "--json")
    assert (ended.code, ended.report["first_bad"]) == (FOUND, "1.2")


def test_two_programs_do_not_work_on_one_bisection(program: Series) -> None:
    series(program, "ffbb")
    (program.folder / "work.py").write_text(f"import time\nopen('up', 'w')\ntime.sleep(30)\n{WORK}")
    with program.start(*program.words("1.0", "1.3")) as started:
        deadline = time.monotonic() + 60
        while not (program.folder / "up").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        second = program("resume", "b")
        assert second.code == USAGE
        assert f"process {started.pid}" in second.err
        assert "b: running" in program("status").out
        assert program("clean", "b").code == USAGE
        started.send_signal(signal.SIGINT)
        started.communicate()


def test_a_store_that_goes_away_stops_and_can_be_resumed(program: Series) -> None:
    versions = series(program, "ffffbbbb")
    hidden = program.store.with_name("hidden")
    store, version = repr(str(program.store)), repr(versions[-1])
    (program.folder / "work.py").write_text(
        f"import os, summing\nif summing.__version__ == {version} and os.path.exists({store}):\n"
        f"    os.rename({store}, {str(hidden)!r})\n{WORK}"
    )
    ended = program.search(versions[0], versions[-1])
    assert ended.code == INFRASTRUCTURE, ended.err
    assert ended.report["status"] == "infrastructure"
    before = program.probes()
    os.rename(hidden, program.store)
    (program.folder / "work.py").write_text(WORK)
    ended = program("resume", "b", "--json")
    assert (ended.code, ended.report["first_bad"]) == (FOUND, "1.4"), ended.err
    assert program.probes()[: len(before)] == before


def test_a_damaged_journal_is_unreadable_and_named(program: Series) -> None:
    series(program, "fb")
    assert program.search("1.0", "1.1").code == FOUND
    path = program.folder / ".stackbisect" / "b" / "journal.jsonl"
    lines = path.read_text().splitlines()
    lines[1] = "{"
    path.write_text("\n".join(lines) + "\n")
    for words in (["resume", "b"], ["report", "b"], ["status", "b"], ["log", "b"]):
        ended = program(*words)
        assert ended.code == UNREADABLE
        assert "journal.jsonl, line 2" in ended.err
        assert "Traceback" not in ended.err


NOWHERE = ("plan", "--image", "127.0.0.1:1/train", "--good", "1", "--bad", "2")


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["run"], "--bad"),
        ([*NOWHERE, "--jobs", "0"], "--jobs: expected 1 or more"),
        ([*NOWHERE, "--all-transitions", "0"], "--all-transitions: expected 1 or more"),
        ([*NOWHERE, "--all-transitions", "--noisy"], "leave --all-transitions out"),
        ([*NOWHERE[:3], "--bad", "2", "--noisy"], "--noisy: expected --good"),
        (
            [*NOWHERE, "--jobs", "2", "--evidence-file", "/out/*.bin"]
            + ["--mount", "type=bind,source=/tmp,target=/out"],
            "in a mount that all probes write to",
        ),
        (["nonsense"], "nonsense"),
        (["resume", "none"], "known: none"),
        (["run", "--good", "1", "--bad", "2", "--package", "p"], "after `--`"),
        (["run", "--good", "1", "--bad", "2"], "--image"),
        (
            ["plan", "--package", "p", "--image", "i", "--good", "1", "--bad", "2"],
            "--image does not",
        ),
        (
            ["plan", "--image", "h.io/i", "--with", "r", "--good", "1", "--bad", "2"],
            "--with does not",
        ),
        (["plan", "--image", "i:1", "--good", "1", "--bad", "2"], "without a tag"),
        (
            ["plan", "--image", "i", "--good", "1", "--bad", "2", "--env", "API_TOKEN=x"],
            "export API_TOKEN",
        ),
        (
            [*("plan", "--package", "p", "--good", "1", "--bad", "2")]
            + ["--index-args=--index-url https://me:pw@host/simple"],
            "PIP_INDEX_URL",
        ),
        (["clean"], "--all"),
        ([*("plan", "--package", "p", "--good", "1", "--bad", "2"), "--gpus", "all"], "--gpus"),
        (
            [*("plan", "--package", "p", "--good", "1", "--bad", "2"), "--order", "created"],
            "--order",
        ),
        # Told before anything is asked: nothing listens there.
        ([*NOWHERE, "--evidence-stdout", "("], "--evidence-stdout: expected a regular expression"),
        ([*NOWHERE, "--tags", "("], "--tags: expected a regular expression"),
        ([*NOWHERE, "--time-limit", "soon"], "expected a time such as 90, 30m or 2h, found 'soon'"),
        ([*NOWHERE, "--shm-size", "5q"], "--shm-size"),
        (["run", *NOWHERE[1:], "--name", "../x", "--", "true"], "--name: expected letters"),
        ([*NOWHERE, "--gpus", "0,1"], "--gpus"),
        ([*NOWHERE, "--env", "NOT_SET_ANYWHERE"], "NOT_SET_ANYWHERE"),
    ],
)
def test_mistakes_are_told_in_words(program: Series, words: list[str], shown: str) -> None:
    ended = program(words[0], "--json", *words[1:])
    assert ended.code == USAGE
    assert shown in ended.err
    assert len(ended.err.splitlines()) == 1
    assert "Traceback" not in ended.err
    assert (ended.report["status"], ended.report["exit_code"]) == ("error", USAGE)


def test_variables_reach_the_command_and_secret_ones_no_file(program: Series) -> None:
    series(program, "fb")
    command = ("python", "-c", f"import os\nprint(os.environ['PLAIN'], os.environ['MINE'])\n{WORK}")
    secret = replace(program, env={"MINE": "very-secret-value"})
    ended = secret.search("1.0", "1.1", "--env", "PLAIN=shown", "--env", "MINE", command=command)
    assert ended.code == FOUND, ended.err
    assert program("log", "b", "1").out == "shown <hidden>\n"
    kept = [p for p in (program.folder / ".stackbisect").rglob("*") if p.is_file()]
    assert not any(b"very-secret-value" in path.read_bytes() for path in kept)
    assert program("resume", "b").code == FOUND  # has its answer: needs no variable
    assert program.search("1.0", "1.1", "--fresh", "--env", "MINE").code == USAGE


def test_clean_removes_everything(program: Series) -> None:
    series(program, "fb")
    assert program.search("1.0", "1.1").code == FOUND
    assert program("clean", "b").code == 0
    assert not (program.folder / ".stackbisect" / "b").exists()


NUMPY = """
import numpy, pinner

draw = numpy.random.default_rng(0)
for step, kind in enumerate((numpy.float32, numpy.float64)):
    a = draw.standard_normal((257, 311)).astype(kind)
    b = draw.standard_normal((311, 129)).astype(kind)
    pinner.fingerprint("product", a @ b)
    pinner.fingerprint("singular values", numpy.linalg.svd(a)[1])
    pinner.fingerprint("triangle", numpy.linalg.qr(a)[1])
"""


@pytest.mark.service
def test_real_numpy_from_the_index(program: Series, tmp_path: Path) -> None:
    """Which versions differ depends on the processor, so enumeration says what is right."""
    (program.folder / "work.py").write_text(NUMPY)
    versions = ["2.1.2", "2.1.3", "2.2.0", "2.2.1"]
    bits = {version: numpy_bits(tmp_path / version, version) for version in versions}
    changes = [pair for pair in itertools.pairwise(versions) if bits[pair[0]] != bits[pair[1]]]
    ended = program(
        *("run", "--json", "--runtime", "venv", "--package", "numpy"),
        *("--good", "2.1.2", "--bad", "2.2.1", "--depth", "search", "--", "python", "work.py"),
    )
    if len(changes) != 1:
        pytest.skip(f"on this processor numpy's bits change {len(changes)} times here: {bits}")
    assert ended.code == FOUND, ended.err
    assert (ended.report["last_good"], ended.report["first_bad"]) == changes[0]
    assert ended.report["difference"]["distributions"] == {"numpy": list(changes[0])}
    libraries = ended.report["difference"]["libraries"]
    assert any("openblas" in name for name in libraries)
    loaded = program.folder.glob(".stackbisect/*/journal.jsonl")
    probes = [json.loads(line) for line in next(loaded).read_text().splitlines()]
    libraries = [p["result"]["loaded"]["libraries"] for p in probes if p["t"] == "probe"]
    assert all(any("openblas" in path for path in each) for each in libraries)


def numpy_bits(folder: Path, version: str) -> str:
    """What one version of numpy computes, installed by pip alone."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder)]
    done = subprocess.run([*pip, f"numpy=={version}"], capture_output=True, text=True)
    lanes.require(
        done.returncode == 0, f"numpy {version} cannot be had: {done.stderr.strip()[-200:]}"
    )
    stand_in = (
        "import hashlib, sys, types\n"
        "def show(name, value): print(name, hashlib.sha256(value.tobytes()).hexdigest())\n"
        "sys.modules['pinner'] = types.SimpleNamespace(fingerprint=show)\n"
    )
    code = stand_in + NUMPY
    environ = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    ).stdout
