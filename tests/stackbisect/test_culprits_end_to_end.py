"""From a pair of tags to the smallest culprit, as people use it: real daemon, registry and images.

The images are two generations that differ in forty components (`generations`). A seed draws which
of them changes bits; what is right is found out by running images that were made for it, without
stackbisect.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from stackbisect.runtimes import choose
from stackbisect.runtimes.docker_engine import BISECTION_LABEL
from tests import lanes
from tests.stackbisect import generations, images, services
from tests.stackbisect.conftest import RepositoryFactory
from tests.stackbisect.generations import PARTS, Generation, Kind
from tests.stackbisect.program import Ended, Program

pytestmark = [pytest.mark.service, pytest.mark.xdist_group("docker")]

COMMAND = ("python3", "/train.py")
FOUND, SAME, INFRASTRUCTURE = 0, 1, 5
Key = tuple[Kind, str]
Words = Mapping[Key, str]


@pytest.fixture
def program(tmp_path: Path, docker_host: str, interrupts: None) -> Iterator[Program]:
    """The program; afterwards no container of its bisections may be left. Their images go."""
    import docker

    yield Program(tmp_path)
    api = docker.from_env().api
    try:
        for folder in tmp_path.glob(".stackbisect/*"):
            containers, made = _left_of(folder)
            assert containers == []
            for image in made:
                api.remove_image(image, force=True)
    finally:
        api.close()


def _left_of(folder: Path, address: str = "") -> tuple[list[str], list[str]]:
    """The containers and images of one bisection; its folder may be gone."""
    import docker

    api = docker.APIClient(base_url=address or os.environ["DOCKER_HOST"])
    try:
        wanted = {"label": f"{BISECTION_LABEL}={choose._label(folder)}"}
        containers = [each["Id"] for each in api.containers(all=True, filters=wanted)]
        return containers, [each["Id"] for each in api.images(all=True, filters=wanted)]
    finally:
        api.close()


@dataclass(frozen=True)
class History:
    """Images under tags 1.0, 1.1, …: `first_bad` is the number of the first bad one."""

    repository: images.Repository
    count: int
    first_bad: int

    @property
    def ends(self) -> list[str]:
        """The words that name them."""
        last = f"1.{self.count - 1}"
        return ["--image", self.repository.reference, "--good", "1.0", "--bad", last]

    @property
    def pair(self) -> tuple[str, str]:
        """The two neighbours between which the bits change."""
        return f"1.{self.first_bad - 1}", f"1.{self.first_bad}"


Push = Callable[..., History]


@pytest.fixture
def push(new_repository: RepositoryFactory) -> Push:
    """Fills a repository: `before` tags of the good generation, `after` of the bad one."""

    def fill(
        good: Generation,
        bad: Generation,
        before: int = 1,
        after: int = 1,
        broken: Collection[int] = (),
    ) -> History:
        repository = new_repository()
        for number in range(before + after):
            made = generations.broken if number in broken else generations.image
            side = good if number < before else bad
            # Neighbours differ in something everywhere.
            repository.push(f"1.{number}", made(_build(side, number)))
        return History(repository, before + after, before)

    return fill


def _build(generation: Generation, number: int) -> Generation:
    parts = dict(generation.parts)
    key: Key = ("distribution", "part-a")
    parts[key] = replace(parts[key], version=f"{parts[key].version}.{number}")
    return replace(generation, parts=parts)


def _drawn() -> random.Random:
    seed = int(os.environ.get("STACKBISECT_SEED") or secrets.randbelow(1 << 31))
    print(f"STACKBISECT_SEED={seed}")
    return random.Random(seed)


def _alone(repository: images.Repository, tag: str, generation: Generation) -> str:
    """What an image gives without stackbisect."""
    repository.push(tag, generations.image(generation))
    command = ["docker", "run", "--rm", f"{repository.reference}:{tag}", *COMMAND, "--alone"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _check_drawn(repository: images.Repository, good: Generation, bad: Generation) -> None:
    """The images flip, and what the culprits say is all of it: the quiet bad one does not."""
    quiet = generations.blame(bad, dict.fromkeys(bad.parts, generations.WORD))
    alone = [
        _alone(repository, tag, each)
        for tag, each in {"x-good": good, "x-bad": bad, "x-quiet": quiet}.items()
    ]
    assert alone[0] == alone[2] != alone[1]


def _named(report: Mapping[str, Any]) -> list[set[Key]]:
    """The culprits of a report: the kind and name of each one's components."""
    return [
        {(each["kind"], each["name"]) for each in culprit["components"]}
        for culprit in report["culprits"]
    ]


def _values(report: Mapping[str, Any]) -> dict[Key, tuple[str | None, str | None]]:
    return {
        (each["kind"], each["name"]): (each["good"], each["bad"])
        for culprit in report["culprits"]
        for each in culprit["components"]
    }


def _check_proof(done: Ended, pair: tuple[str, str]) -> None:
    """What holds of every answer: the pair of tags, the proof both ways, A/B/A/B."""
    report = done.report
    assert (done.code, report["status"]) == (FOUND, "found"), done.err
    assert (report["last_good"], report["first_bad"]) == pair
    for culprit in report["culprits"]:
        assert culprit["alone"]["verdict"] in ("bad", "third")
        assert culprit["inseparable"] == []
    last = report["culprits"][-1]
    assert last["without"]["verdict"] == "good"
    good, bad = report["confirmed"]["good"], report["confirmed"]["bad"]
    assert len(good) == len(bad) == 2
    assert len(set(good)) == len(set(bad)) == 1 != len({*good, *bad})


def _check_no_probe_twice(program: Program) -> None:
    made = [(line["candidate"], line["attempt"]) for line in program.probes()]
    assert len(made) == len(set(made))


def _draw(draw: random.Random, *kinds: Kind) -> list[Key]:
    """One component of each kind; none twice, and not the one that every tag changes."""
    found: list[Key] = []
    for kind in kinds:
        free = [n for n in PARTS[kind] if (kind, n) not in found and n != "part-a"]
        found.append((kind, draw.choice(free)))
    return found


def _of(history: History, *options: str) -> list[str]:
    return ["run", "--json", *history.ends, *options, "--", *COMMAND]


def test_three_independent_culprits_of_three_kinds_among_forty(
    program: Program, push: Push
) -> None:
    """S10: a variable, a library outside any package and a Debian package."""
    draw = _drawn()
    keys = _draw(draw, "environment", "library", "package")
    good, bad = generations.ends()
    bad = generations.blame(bad, dict.fromkeys(keys, "backward"))
    history = push(good, bad)
    _check_drawn(history.repository, good, bad)

    done = program(*_of(history, "--depth", "components"))

    _check_proof(done, history.pair)
    assert sorted(map(sorted, _named(done.report))) == sorted([key] for key in keys)
    values = _values(done.report)
    for kind, name in keys:
        versions = good.parts[kind, name].version, bad.parts[kind, name].version
        if kind == "environment":
            assert values[kind, name] == (f"forward:{versions[0]}", f"backward:{versions[1]}")
        if kind == "package":
            assert values[kind, name] == versions
    _check_no_probe_twice(program)


def test_two_that_change_bits_only_together_are_one_culprit_however_often_it_is_killed(
    program: Program, push: Push
) -> None:
    """Killed at random moments with three probes under way: the same answer, nothing repeated."""
    draw = _drawn()
    kinds: list[Kind] = ["distribution", "package", "environment", "distribution"]
    keys = _draw(draw, *draw.sample(kinds, 2))
    good, bad = generations.ends()
    bad = generations.blame(bad, dict(zip(keys, ("left", "right"), strict=True)))
    history = push(good, bad)
    _check_drawn(history.repository, good, bad)
    options = ["--name", "b", "--depth", "components", "--jobs", "3"]
    begin = ["run", "--json", *history.ends, *options, "--", *COMMAND]

    def check(done: Ended) -> None:
        _check_proof(done, history.pair)
        assert _named(done.report) == [set(keys)]
        _check_no_probe_twice(program)

    for _ in range(KILLS):
        started = program.start(*_words(program, begin))
        _wait_for_a_moment(program, started, draw)
        started.kill()
        out, err = started.communicate()
        if started.returncode == FOUND:  # it was quicker: from the beginning
            check(Ended(FOUND, out, err))
            assert program("clean", "b").code == 0
    check(program(*_words(program, begin)))
    folder = program.folder / ".stackbisect" / "b"
    containers, made = _left_of(folder)
    assert containers == []
    assert len(made) > 5  # of mixtures, kept for another try
    assert program("clean", "b").code == 0
    assert _left_of(folder) == ([], [])


KILLS = 10 if lanes.soak() else 2


def _words(program: Program, begin: Sequence[str]) -> list[str]:
    return ["resume", "b", "--json"] if program.journal() else list(begin)


def _wait_for_a_moment(
    program: Program, started: subprocess.Popen[str], draw: random.Random
) -> None:
    """Until some more probes have ended, and a little longer."""
    goal = len(program.probes()) + draw.randrange(16)
    while started.poll() is None and len(program.probes()) < goal:
        time.sleep(0.02)
    time.sleep(draw.uniform(0, 1.5))


@lanes.long_form
def test_two_that_cannot_be_mixed_move_as_one_however_often_the_daemon_is_killed(
    program: Program, push: Push, spare_docker: services.Daemon
) -> None:
    """S8: with one of them alone the import fails, which is no verdict on the bits."""
    draw = _drawn()
    pinned = draw.choice([False, True])
    (provider, user) = (name for _, name in _draw(draw, "distribution", "distribution"))
    good, bad = generations.entangled(*generations.ends(), provider, user, pinned=pinned)
    bad = generations.blame(bad, {("distribution", draw.choice([provider, user])): "backward"})
    history = push(good, bad)
    _check_drawn(history.repository, good, bad)
    pair = {("distribution", provider), ("distribution", user)}
    spare = replace(program, env={"DOCKER_HOST": spare_docker.address})
    options = ["--name", "b", "--depth", "components", "--network", "none"]
    begin = ["run", "--json", *history.ends, *options, "--", *COMMAND]

    def check(done: Ended) -> None:
        assert (done.code, _named(done.report)) == (FOUND, [pair]), done.err
        (culprit,) = done.report["culprits"]
        assert {(each["kind"], each["name"]) for each in culprit["inseparable"]} == pair
        assert (culprit["alone"]["verdict"], culprit["without"]["verdict"]) == ("bad", "good")
        assert any(line["result"]["exit_code"] == 1 for line in spare.probes())
        _check_no_probe_twice(spare)

    for _ in range(KILLS):
        started = spare.start(*_words(spare, begin))
        _wait_for_a_moment(spare, started, draw)
        spare_docker.stop(signal.SIGKILL)
        out, err = started.communicate(timeout=120)
        spare_docker.start()
        assert started.returncode in (FOUND, INFRASTRUCTURE), err
        assert "Traceback" not in err
        if started.returncode == FOUND:  # it was quicker: from the beginning
            check(Ended(FOUND, out, err))
            assert spare("clean", "b").code == 0
    check(spare(*_words(spare, begin)))
    folder = spare.folder / ".stackbisect" / "b"
    assert _left_of(folder, spare_docker.address)[0] == []
    assert spare("clean", "b").code == 0
    assert _left_of(folder, spare_docker.address) == ([], [])


@lanes.long_form
def test_numpy_through_tag_component_and_version(program: Program, push: Push) -> None:
    """S1: QR of another OpenBLAS; a broken tag in the middle. What is right is what images give."""
    good, bad = generations.ends(numpy=("2.1.3", "2.2.6"))
    history = push(good, bad, before=3, after=2, broken=[1])
    repository = history.repository
    alone = [_alone(repository, f"x-{n}", each) for n, each in enumerate((good, bad))]

    done = program(*_of(history))

    if alone[0] == alone[1]:  # this CPU's kernels did not change
        assert (done.code, done.report["status"]) == (SAME, "not_reproduced")
        return
    _check_proof(done, history.pair)
    assert _named(done.report) == [{("distribution", "numpy")}]
    versions = done.report["culprits"][0]["versions"]
    for version, expected in zip(
        (versions["last_good"], versions["first_bad"]), alone, strict=True
    ):
        made = replace(bad, numpy=version)
        assert _alone(repository, f"x-{version}", made) == expected
    _check_no_probe_twice(program)


@lanes.long_form
def test_where_the_bits_change_twice_both_changes_are_explained(
    program: Program, push: Push
) -> None:
    """S2: three generations of images, a third value in the middle, a culprit for each change."""
    draw = _drawn()
    first, second = draw.sample(_draw(draw, *PARTS), 2)
    good, bad = generations.ends()
    third = generations.blame(bad, {first: "backward"})
    last = generations.blame(third, {second: "backward"})
    history = push(good, third)
    repository = history.repository
    repository.push("1.2", generations.image(_build(last, 2)))
    alone = [_alone(repository, f"x-{n}", each) for n, each in enumerate((good, third, last))]
    assert len(set(alone)) == 3

    done = program(*_of(replace(history, count=3), "--depth", "components"))

    assert [(each["from"], each["to"]) for each in done.report["transitions"]] == [
        ("1.0", "1.1"),
        ("1.1", "1.2"),
    ]
    _check_proof(done, ("1.0", "1.2"))
    assert sorted(map(sorted, _named(done.report))) == sorted([[first], [second]])


@lanes.long_form
@pytest.mark.parametrize("kind", PARTS)
def test_one_culprit_of_each_kind_wherever_it_stands(
    program: Program, push: Push, kind: Kind
) -> None:
    draw = _drawn()
    for key in [(kind, name) for name in draw.sample(PARTS[kind], min(len(PARTS[kind]), 3))]:
        good, bad = generations.ends()
        bad = generations.blame(bad, {key: "backward"})
        history = push(good, bad)
        done = program(*_of(history, "--depth", "components"))
        _check_one(program, done, history, key)
        assert program("clean", done.report["name"]).code == 0


def _check_one(program: Program, done: Ended, history: History, key: Key) -> None:
    _check_proof(done, history.pair)
    assert _named(done.report) == [{key}]
    _check_no_probe_twice(program)
