"""`stackbisect run --image` as people use it: a real program, daemon, registry and images.

The images hold a small series of wheels whose summation order changes where a test says, or the
real numpy wheels. What is right is found out by running every image once without stackbisect.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import re
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stackbisect.runtimes import choose
from stackbisect.runtimes.docker_engine import BISECTION_LABEL, Engine
from tests import lanes
from tests.stackbisect import images, services, wheels
from tests.stackbisect.conftest import RepositoryFactory
from tests.stackbisect.program import Ended, Program

pytestmark = [pytest.mark.service, pytest.mark.xdist_group("docker")]

ROOT = Path(__file__).parents[2]
STEPS = 6
WORK = f"""
import os
import pinner
import summing

values = [1 / (k * 7919 % 1000 + 1) for k in range(1000)]
for step in range({STEPS}):
    if step == {STEPS // 2} and os.environ.get("STOP_IN_THE_MIDDLE"):
        raise SystemExit(0)
    pinner.fingerprint("total", summing.total(values[step:]))
print("did", step + 1, "steps")
"""
ALONE = "import summing; print(summing.total([1 / (k * 7919 % 1000 + 1) for k in range(1000)]))"
WANDERING = """
__version__ = "0"


def total(values):
    import os

    return int.from_bytes(os.urandom(4), "little") + 0.5
"""
COMMAND = ("python3", "/train.py")
FOUND, SAME, RANGE, ENDS, INFRASTRUCTURE, USAGE = 0, 1, 2, 4, 5, 64


@pytest.fixture
def program(tmp_path: Path, docker_host: str, interrupts: None) -> Iterator[Program]:
    """The program; afterwards no container of its bisections may be left."""
    yield Program(tmp_path)
    assert _containers(tmp_path) == []


def _containers(folder: Path) -> list[dict[str, Any]]:
    """Containers that bisections in this folder made: by label, or by what they mount."""
    import docker

    labels = {choose._label(each) for each in folder.glob(".stackbisect/*")}
    api = docker.from_env().api
    try:
        wanted = {"label": BISECTION_LABEL}
        return [
            found
            for found in api.containers(all=True, filters=wanted)
            if found["Labels"][BISECTION_LABEL] in labels
            or any(str(folder) in (mount.get("Source") or "") for mount in found["Mounts"])
        ]
    finally:
        api.close()


def _volumes() -> set[str]:
    import docker

    api = docker.from_env().api
    try:
        return {volume["Name"] for volume in api.volumes()["Volumes"] or ()}
    finally:
        api.close()


def _summing(folder: Path, version: str, order: str) -> images.Layer:
    wheels.summing(folder, {version: order})
    return images.wheel(folder / f"summing-{version}-py3-none-any.whl")


def _image(folder: Path, version: str, order: str) -> images.Image:
    return images.Image([images.files({"train.py": WORK}), _summing(folder, version, order)])


Push = Callable[[Mapping[str, str]], images.Repository]


@pytest.fixture
def push(new_repository: RepositoryFactory, tmp_path: Path) -> Push:
    """Fills a repository: version → summation order, or one of the ways to be untestable."""

    def fill(orders: Mapping[str, str]) -> images.Repository:
        repository = new_repository()
        for version, order in orders.items():
            repository.push(version, _of_kind(tmp_path / "wheels", version, order))
        return repository

    return fill


def _of_kind(folder: Path, version: str, kind: str) -> images.Image:
    work = images.files({"train.py": WORK})
    if kind == "no module":
        return images.Image([work, images.files({"etc/version": version})])
    if kind == "wandering":
        package = {"summing/__init__.py": WANDERING}
        return images.Image([work, images.wheel(wheels.write(folder, "summing", version, package))])
    if kind == "cannot start":
        return replace(_image(folder, version, "forward"), entrypoint=["/no/such/entrypoint"])
    if kind == "half":
        return replace(_image(folder, version, "forward"), env={"STOP_IN_THE_MIDDLE": "1"})
    return _image(folder, version, kind)


def _ends(repository: images.Repository, good: str, bad: str) -> list[str]:
    return ["--image", repository.reference, "--good", good, "--bad", bad, "--depth", "search"]


def _versions(number: int) -> list[str]:
    return [f"1.{minor}.0" for minor in range(number)]


def _alone(repository: images.Repository, tags: Sequence[str], script: str = ALONE) -> list[str]:
    """What each tag gives without stackbisect."""
    found = []
    for tag in tags:
        done = subprocess.run(
            ["docker", "run", "--rm", f"{repository.reference}:{tag}", "python3", "-c", script],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        found.append(done.stdout.strip())
    return found


def _drawn(seed: int) -> tuple[dict[str, str], random.Random]:
    """Twelve versions; the summation order changes at one that the seed says."""
    draw = random.Random(seed)
    versions = _versions(12)
    change = draw.randrange(1, len(versions))
    return {v: "forward" if n < change else "backward" for n, v in enumerate(versions)}, draw


def _seed() -> int:
    seed = int(os.environ.get("STACKBISECT_SEED") or secrets.randbelow(1 << 31))
    print(f"STACKBISECT_SEED={seed}")
    return seed


def _pairs(alone: Sequence[str]) -> list[int]:
    return [n for n, (left, right) in enumerate(itertools.pairwise(alone)) if left != right]


def test_a_change_at_a_version_drawn_at_random_is_found(program: Program, push: Push) -> None:
    orders, draw = _drawn(_seed())
    versions = list(orders)
    repository = push(orders)
    (change,) = _pairs(_alone(repository, versions))
    twin = draw.choice(versions[1:-1])
    work = program.folder / "wheels"
    repository.push(f"{twin}.post1", _of_kind(work, twin, orders[twin]))

    done = program("run", "--json", *_ends(repository, versions[0], versions[-1]), "--", *COMMAND)

    report = done.report
    assert (done.code, report["status"]) == (FOUND, "found"), done.err
    assert (report["last_good"], report["first_bad"]) == (versions[change], versions[change + 1])
    assert report["difference"]["distributions"] == {
        "summing": [versions[change], versions[change + 1]]
    }
    assert report["probes"] == len(program.probes()) <= 6 + math.ceil(math.log2(len(versions)))
    assert report["monotonic"] is True
    shown = {each["label"]: each["verdict"] for each in report["verdicts"]}
    assert list(shown) == versions  # two tags of one image are one candidate


@lanes.long_form
def test_candidates_that_cannot_be_tested_are_searched_around(program: Program, push: Push) -> None:
    orders, draw = _drawn(_seed())
    versions = list(orders)
    change = list(orders.values()).index("backward")
    # Not next to the change, where the answer would be a range.
    free = [n for n in range(1, len(versions) - 1) if n not in (change - 1, change)]
    kinds = ("no module", "cannot start", "half")
    broken = dict(zip(draw.sample(free, len(kinds)), kinds, strict=True))
    for number, kind in broken.items():
        orders[versions[number]] = kind
    repository = push(orders)

    done = program("run", "--json", *_ends(repository, versions[0], versions[-1]), "--", *COMMAND)

    report = done.report
    assert (done.code, report["status"]) == (FOUND, "found"), done.err
    assert (report["last_good"], report["first_bad"]) == (versions[change - 1], versions[change])
    untestable = {
        each["label"]: each["reason"]
        for each in report["verdicts"]
        if each["verdict"] == "untestable"
    }
    said = {
        "no module": r"the command failed \(exit code 1\)",
        "cannot start": r"the container did not start: .*/no/such/entrypoint",
        "half": r"evidence incomplete: stream total, rank 0: 3 of 6 steps",
    }
    for label, reason in untestable.items():
        assert re.search(said[orders[label]], reason)
    testable = len(versions) - len(untestable)
    assert len(program.probes()) <= 6 + math.ceil(math.log2(testable)) + len(untestable)


@lanes.long_form
def test_real_numpy_wheels(program: Program, new_repository: RepositoryFactory) -> None:
    """S1: the same code, numbers that differ in bits nobody prints; S2 where more than two do."""
    script = (
        "import numpy\n"
        "x = numpy.random.default_rng(0).standard_normal(100_000)\n"
        "found = [x.sum(), numpy.arctan2(x, x[::-1]), x.astype('f4').mean()]\n"
    )
    tell = "import hashlib; print(hashlib.sha256(b''.join(v.tobytes() for v in found)).hexdigest())"
    work = script + (
        "import os, pinner\n"
        "for value in found[: int(os.environ.get('STEPS', 3))]:\n"
        "    pinner.fingerprint('x', value)\n"
    )
    versions = ["2.0.0", "2.0.2", "2.1.0", "2.2.6", "2.3.0", "2.3.5"]
    repository = new_repository()
    layer = images.files({"train.py": work})
    for version in versions:
        repository.push(version, images.Image([layer, _numpy(version)]))
    pairs = _pairs(_alone(repository, versions, script + tell))
    # Where the bits do not change: three images that cannot be tested, and a second name for one.
    quiet = [versions[n] for n in range(len(versions) - 1) if n not in pairs]
    for version in quiet[:1]:
        good = images.Image([layer, _numpy(version)])
        repository.push(f"{version}-again", good)
        repository.push(f"{version}-no-module", images.Image([layer]))
        repository.push(f"{version}-no-start", replace(good, entrypoint=["/no/such/entrypoint"]))
        repository.push(f"{version}-stops", replace(good, env={"STEPS": "1"}))

    done = program("run", "--json", *_ends(repository, versions[0], versions[-1]), "--", *COMMAND)

    report = done.report
    if not pairs:
        assert (done.code, report["status"]) == (SAME, "not_reproduced")
        return
    assert (done.code, report["status"]) == (FOUND, "found"), done.err
    assert report["last_good"] == versions[pairs[0]]
    assert report["first_bad"] == versions[pairs[-1] + 1]
    assert not quiet or len(report["verdicts"]) == len(versions) + 3
    kinds = [each["verdict"] for each in report["verdicts"]]
    if "third" not in kinds:
        untestable = kinds.count("untestable")
        testable = len(kinds) - untestable
        assert report["probes"] <= 6 + math.ceil(math.log2(testable)) + untestable
    found = [(each["from"], each["to"]) for each in report["transitions"] if each["adjacent"]]
    assert set(found) <= {(versions[n], versions[n + 1]) for n in pairs}
    pair = [versions[pairs[0]], versions[pairs[-1] + 1]]
    assert report["difference"]["distributions"]["numpy"] == pair


def _numpy(version: str) -> images.Layer:
    try:
        return images.numpy(version)
    except services.ServiceMissing as error:
        lanes.require(False, str(error))
        raise


@lanes.long_form
def test_a_third_value_is_a_class_of_its_own(program: Program, push: Push) -> None:
    """S2: three generations of images, three different outputs; three containers at once."""
    orders = dict.fromkeys(_versions(3), "forward")
    orders |= dict.fromkeys(_versions(7)[3:], "by size")
    orders |= dict.fromkeys(_versions(10)[7:], "backward")
    ends = _ends(push(orders), "1.0.0", "1.9.0")
    done = program("run", "--json", "--jobs", "3", *ends, "--", *COMMAND)
    report = done.report
    assert (done.code, report["status"]) == (FOUND, "found"), done.err
    assert [(each["from"], each["to"]) for each in report["transitions"]] == [
        ("1.2.0", "1.3.0"),
        ("1.6.0", "1.7.0"),
    ]
    assert {each["verdict"] for each in report["verdicts"]} >= {"good", "third", "bad"}
    assert [each["difference"]["distributions"]["summing"] for each in report["transitions"]] == [
        ["1.2.0", "1.3.0"],
        ["1.6.0", "1.7.0"],
    ]


def test_a_candidate_whose_own_runs_differ_is_unstable_and_nobody_is_blamed(
    program: Program, push: Push
) -> None:
    """S3."""
    orders = {"1.0.0": "forward", "1.1.0": "wandering", "1.2.0": "backward"}
    done = program("run", "--json", *_ends(push(orders), "1.0.0", "1.2.0"), "--", *COMMAND)
    report = done.report
    verdicts = {each["label"]: each["verdict"] for each in report["verdicts"]}
    assert verdicts == {"1.0.0": "good", "1.1.0": "unstable", "1.2.0": "bad"}
    assert (done.code, report["range"], report["culprits"]) == (RANGE, list(orders), [])


def test_an_end_that_is_unstable_stops_the_search(program: Program, push: Push) -> None:
    orders = {"1.0.0": "wandering", "1.1.0": "forward", "1.2.0": "backward"}
    done = program("run", "--json", *_ends(push(orders), "1.0.0", "1.2.0"), "--", *COMMAND)
    assert (done.code, done.report["status"]) == (ENDS, "ends_untestable")
    assert "different bits" in done.report["reason"]
    assert len(program.probes()) == 2


def test_a_stale_compile_cache_does_not_hide_the_change(
    program: Program, new_repository: RepositoryFactory
) -> None:
    """S4: a volume for the cache is shared by all probes; a result found there is taken."""
    work = (
        "import os, pinner, summing\n"
        "place = os.path.join(os.environ['TRITON_CACHE_DIR'], 'result')\n"
        "if not os.path.exists(place):\n"
        "    with open(place, 'w') as out:\n"
        "        out.write(repr(summing.total([1 / (k + 1) for k in range(1000)])))\n"
        "pinner.fingerprint('total', open(place).read())\n"
    )
    repository, layer = new_repository(), images.files({"train.py": work})
    for version, order in {"1.0.0": "forward", "1.1.0": "forward", "1.2.0": "backward"}.items():
        package = _summing(program.folder / "wheels", version, order)
        repository.push(version, images.Image([layer, package]))
    (program.folder / "cache").mkdir()
    shared = ["--mount", f"type=bind,src={program.folder}/cache,dst=/cache"]
    shared += ["--env", "TRITON_CACHE_DIR=/cache"]
    done = program("run", "--json", *_ends(repository, "1.0.0", "1.2.0"), *shared, "--", *COMMAND)
    assert (done.code, done.report["last_good"], done.report["first_bad"]) == (
        FOUND,
        "1.1.0",
        "1.2.0",
    ), done.err


@lanes.long_form
def test_five_in_a_row_that_cannot_be_tested_are_told_as_a_range(
    program: Program, push: Push
) -> None:
    """S5: the change lies among them."""
    versions = _versions(9)
    orders = dict.fromkeys(versions[:2], "forward") | dict.fromkeys(versions[7:], "backward")
    kinds = ["no module", "cannot start", "half", "no module", "half"]
    orders |= dict(zip(versions[2:7], kinds, strict=True))
    ordered = {version: orders[version] for version in versions}
    done = program("run", "--json", *_ends(push(ordered), "1.0.0", "1.8.0"), "--", *COMMAND)
    assert (done.code, done.report["status"]) == (RANGE, "range"), done.err
    assert done.report["range"] == versions[1:8]


def test_ends_with_the_same_bits_are_not_searched(program: Program, push: Push) -> None:
    """S6."""
    orders = {"1.0.0": "forward", "1.1.0": "backward", "1.2.0": "forward"}
    done = program("run", "--json", *_ends(push(orders), "1.0.0", "1.2.0"), "--", *COMMAND)
    assert (done.code, done.report["status"]) == (SAME, "not_reproduced")
    assert len(program.probes()) == 4


def test_an_end_that_does_not_exist_is_told_with_its_neighbours(
    program: Program, push: Push
) -> None:
    """S7."""
    repository = push({"1.0.0": "forward", "1.1.0": "forward", "1.2.0": "backward"})
    done = program("run", *_ends(repository, "1.0.0", "1.1.5"), "--", *COMMAND)
    assert done.code == USAGE
    assert "1.1.5" in done.err
    assert "1.1.0" in done.err
    assert "Traceback" not in done.err


def test_an_end_that_will_not_start_is_told_in_the_engines_words(
    program: Program, push: Push
) -> None:
    """S9."""
    orders = {"1.0.0": "forward", "1.1.0": "forward", "1.2.0": "cannot start"}
    done = program("run", "--json", *_ends(push(orders), "1.0.0", "1.2.0"), "--", *COMMAND)
    assert (done.code, done.report["end"]) == (ENDS, "bad")
    assert "/no/such/entrypoint" in done.report["reason"]
    assert "no such file or directory" in done.report["reason"]


def test_the_plan_pulls_no_layer(
    program: Program, push: Push, registry: services.RegistryService
) -> None:
    orders = {"1.0.0": "forward", "1.1.0": "forward", "1.2.0": "backward"}
    repository = push(orders)
    log = services.folder() / "registry-open.log"
    before = log.stat().st_size
    done = program("plan", *_ends(repository, "1.0.0", "1.2.0"), "--", *COMMAND)
    assert done.code == FOUND, done.err
    assert [version for version in orders if version in done.out] == list(orders)
    with log.open() as lines:
        lines.seek(before)
        asked = re.findall(rf"GET /v2/{repository.name}/(\S+)", lines.read())
    layers = {layer.digest for layer in (images.base(), images.files({"train.py": WORK}))}
    assert asked
    assert not [path for path in asked if path.removeprefix("blobs/") in layers]
    assert not [path for path in asked if path.startswith("blobs/") and "manifest" in path]


def test_a_login_is_used_and_never_written_down(
    program: Program,
    push: Push,
    login_registry: services.RegistryService,
    docker_config: Path,
) -> None:
    open_one = push({"1.0.0": "forward", "1.1.0": "forward", "1.2.0": "backward"})
    closed = replace(open_one, service=login_registry)
    refused = program("run", *_ends(closed, "1.0.0", "1.2.0"), "--", *COMMAND)
    assert refused.code in (INFRASTRUCTURE, USAGE)
    assert "docker login" in refused.err
    auth = login_registry.headers["Authorization"].removeprefix("Basic ")
    docker_config.write_text(json.dumps({"auths": {login_registry.host: {"auth": auth}}}))
    # Not in the daemon yet, so that it must log in too.
    secret = ["--env", "HF_TOKEN"]
    program = replace(program, env={"HF_TOKEN": "hush-hush-hush"})
    show = ["sh", "-c", "env; python3 /train.py"]
    done = program("run", "--json", *secret, *_ends(closed, "1.0.0", "1.2.0"), "--", *show)
    assert (done.code, done.report["first_bad"]) == (FOUND, "1.2.0"), done.err
    texts = {"out": done.out, "err": done.err, "refused": refused.err}
    for file in (program.folder / ".stackbisect").rglob("*"):
        if file.is_file():
            texts[str(file)] = file.read_text(errors="replace")
    assert any("HF_TOKEN=<hidden>" in text for text in texts.values())
    for secret_text in (auth, services.PASSWORD, "hush-hush-hush"):
        assert [name for name, text in texts.items() if secret_text in text] == []


def _wait_for_probe(program: Program, started: subprocess.Popen[str], number: int) -> None:
    """Wait until the command of a probe runs in its container."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and started.poll() is None:
        logs = list(program.folder.glob(f".stackbisect/*/probes/{number:04d}/log"))
        if logs and "begun" in logs[0].read_text():
            return
        time.sleep(0.02)
    raise AssertionError(f"probe {number} never began: {started.communicate()[1]}")


SLOW = ("sh", "-c", "echo begun; python3 /train.py && sleep 0.4")


@lanes.long_form
def test_killed_at_ten_moments_and_resumed_nothing_is_repeated(
    program: Program, push: Push
) -> None:
    orders, draw = _drawn(_seed())
    versions = list(orders)
    change = list(orders.values()).index("backward")
    repository = push(orders)
    ends = _ends(repository, versions[0], versions[-1])
    begin = ["run", "--json", "--name", "b", *ends, "--", *SLOW]
    pair = (versions[change - 1], versions[change])
    kills = 0
    while kills < 10:
        words = ["resume", "b", "--json"] if len(program.journal()) else begin
        started = program.start(*words)
        try:
            out, err = started.communicate(timeout=draw.uniform(0.2, 3.0))
        except subprocess.TimeoutExpired:
            started.send_signal(signal.SIGKILL)
            started.communicate()
            kills += 1
            continue
        _check_answer(program, Ended(started.returncode, out, err), pair)
        assert program("clean", "b").code == 0  # it was quicker: on to the next kill
    done = program(*(["resume", "b", "--json"] if len(program.journal()) else begin))
    _check_answer(program, done, pair)


def _check_answer(program: Program, done: Ended, pair: tuple[str, str]) -> None:
    """The right answer, by as many probes as twelve versions take and none twice."""
    assert done.code == FOUND, done.err
    assert (done.report["last_good"], done.report["first_bad"]) == pair
    made = [(line["candidate"], line["attempt"]) for line in program.probes()]
    assert len(made) == len(set(made)) <= 6 + math.ceil(math.log2(12))


@pytest.mark.parametrize("moment", [0.1, 0.6] if lanes.soak() else [0.6])
def test_ctrl_c_leaves_no_container_and_can_be_resumed(
    program: Program, push: Push, moment: float
) -> None:
    repository = push({"1.0.0": "forward", "1.1.0": "forward", "1.2.0": "backward"})
    words = ["run", "--name", "b", *_ends(repository, "1.0.0", "1.2.0"), "--", *SLOW]
    started = program.start(*words)
    _wait_for_probe(program, started, 1)
    time.sleep(moment)
    started.send_signal(signal.SIGINT)
    _, err = started.communicate(timeout=60)
    assert started.returncode == 130, err
    assert "Traceback" not in err
    assert _containers(program.folder) == []
    done = program("resume", "b", "--json")
    assert (done.code, done.report["first_bad"]) == (FOUND, "1.2.0")


def test_terminated_it_leaves_no_container(program: Program, push: Push) -> None:
    repository = push({"1.0.0": "forward", "1.1.0": "forward", "1.2.0": "backward"})
    words = ["run", "--name", "b", *_ends(repository, "1.0.0", "1.2.0"), "--", *SLOW]
    started = program.start(*words)
    _wait_for_probe(program, started, 1)
    started.send_signal(signal.SIGTERM)
    _, err = started.communicate(timeout=60)
    assert started.returncode != FOUND
    assert "Traceback" not in err
    assert _containers(program.folder) == []


def test_killed_it_leaves_no_container(program: Program, push: Push) -> None:
    repository = push({"1.0.0": "forward", "1.1.0": "forward", "1.2.0": "backward"})
    command = ("sh", "-c", "echo begun; sleep 300")
    words = ["run", "--name", "b", *_ends(repository, "1.0.0", "1.2.0"), "--", *command]
    started = program.start(*words)
    _wait_for_probe(program, started, 1)
    while not _containers(program.folder):
        time.sleep(0.05)
    (left,) = _containers(program.folder)
    volumes = {mount["Name"] for mount in left["Mounts"] if mount["Type"] == "volume"}
    assert volumes <= _volumes()
    started.send_signal(signal.SIGKILL)
    started.communicate()
    deadline = time.monotonic() + 30
    while _containers(program.folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert _containers(program.folder) == []
    assert not volumes & _volumes()


def test_clean_removes_what_even_a_kill_of_everything_left(program: Program, push: Push) -> None:
    import docker

    repository = push({"1.0.0": "forward", "1.1.0": "backward"})
    words = ["run", "--name", "b", *_ends(repository, "1.0.0", "1.1.0"), "--", *COMMAND]
    assert program(*words).code == FOUND
    label = {BISECTION_LABEL: choose._label(program.folder / ".stackbisect" / "b")}
    api = docker.from_env().api
    (image,) = api.images(f"{repository.reference}", quiet=True)[:1]
    api.create_container(image, ["sleep", "300"], labels=label)
    api.close()
    assert len(_containers(program.folder)) == 1
    done = program("clean", "b")
    assert done.code == 0, done.err
    assert not (program.folder / ".stackbisect" / "b").exists()
    assert _containers_of(label[BISECTION_LABEL]) == []


def _containers_of(label: str) -> list[str]:
    engine = Engine.connect()
    try:
        return engine.labelled(label)
    finally:
        engine.close()


def test_a_daemon_that_goes_is_told_and_the_bisection_resumed(
    program: Program, push: Push, spare_docker: services.Daemon
) -> None:
    repository = push({"1.0.0": "forward", "1.1.0": "forward", "1.2.0": "backward"})
    spare = replace(program, env={"DOCKER_HOST": spare_docker.address})
    options = ["--network", "none", "--name", "b"]
    words = ["run", *options, *_ends(repository, "1.0.0", "1.2.0"), "--", *SLOW]
    started = spare.start(*words)
    _wait_for_probe(spare, started, 3)
    spare_docker.stop(signal.SIGKILL)
    out, err = started.communicate(timeout=60)
    assert started.returncode == INFRASTRUCTURE, err
    assert "does not answer" in out
    assert "stackbisect resume b" in out
    assert len(spare.probes()) == 2
    spare_docker.start()
    done = spare("resume", "b", "--json")
    assert (done.code, done.report["first_bad"]) == (FOUND, "1.2.0"), done.err
    made = [(line["candidate"], line["attempt"]) for line in spare.probes()]
    assert len(made) == len(set(made)) == 6  # the middle one is next to the change: tried again


def test_another_command_is_refused_with_the_difference(program: Program, push: Push) -> None:
    ends = _ends(push({"1.0.0": "forward", "1.1.0": "backward"}), "1.0.0", "1.1.0")
    assert program("run", "--name", "b", *ends, "--", *COMMAND).code == FOUND
    other = program("run", "--name", "b", *ends, "--", *SLOW)
    assert other.code == USAGE
    assert "/train.py" in other.err
    assert "echo begun" in other.err


@lanes.long_form
def test_exit_codes_are_verdicts_on_request(
    program: Program, new_repository: RepositoryFactory
) -> None:
    repository = new_repository()
    work = images.files({"train.py": "import marker, sys; sys.exit(marker.CODE)"})
    for number, code in enumerate([0, 0, 125, 1, 1]):
        marker = images.files({f"{images.SITE}/marker.py": f"CODE = {code}  # {number}"})
        repository.push(f"1.{number}", images.Image([work, marker]))
    rule = ["--verdict", "exit-code"]
    done = program("run", "--json", *rule, *_ends(repository, "1.0", "1.4"), "--", *COMMAND)
    assert (done.code, done.report["range"]) == (RANGE, ["1.1", "1.2", "1.3"]), done.err
