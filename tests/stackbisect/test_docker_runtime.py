"""Probes in real containers: what the command finds there, what comes back, what is left behind."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import re
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pinner import shipped
from pinner.launch import session_dir
from stackbisect.probe import (
    Candidate,
    ContainerOptions,
    EvidenceOptions,
    InfrastructureError,
    Job,
    ProbeResult,
)
from stackbisect.runtimes.docker import DockerRuntime
from stackbisect.runtimes.docker_engine import Engine
from stackbisect.runtimes.docker_probe import Transfer
from tests import lanes
from tests.stackbisect import images, services
from tests.stackbisect.conftest import RepositoryFactory

pytestmark = [pytest.mark.service, pytest.mark.xdist_group("docker")]

WORK = """
import pinner
for step in range(3):
    pinner.fingerprint("loss", [1.5, step])
"""
TALK = """
import json, os, resource, socket
print(json.dumps({"env": dict(os.environ), "uid": os.getuid(), "cwd": os.getcwd(),
                  "host": socket.gethostname(), "files": resource.getrlimit(resource.RLIMIT_NOFILE),
                  "shm": os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize}))
"""
BANNER = '#!/bin/sh\necho "== welcome =="\necho "== really ==" >&2\nexec "$@"\n'

Make = Callable[..., DockerRuntime]
MakeJob = Callable[..., Job]


@pytest.fixture(scope="module")
def repository(new_repository: RepositoryFactory) -> images.Repository:
    return new_repository()


@pytest.fixture(scope="module")
def candidate(repository: images.Repository) -> Callable[[images.Image], Candidate]:
    numbers = itertools.count()

    def make(image: images.Image) -> Candidate:
        tag = f"v{next(numbers)}"
        digest = repository.push(tag, image)
        reference = f"{repository.reference}@{digest}"
        return Candidate(digest, tag, 0, {"reference": reference, "platform": "linux/amd64"})

    return make


@pytest.fixture(scope="module")
def plain(candidate: Callable[[images.Image], Candidate]) -> Candidate:
    layer = images.files({"train.py": WORK, "talk.py": TALK})
    return candidate(images.Image([layer]))


@pytest.fixture
def runtime() -> Iterator[Make]:
    """Makes runtimes of one bisection; afterwards nothing of it may be left."""
    bisection = f"test-{secrets.token_hex(6)}"
    made: list[DockerRuntime] = []

    def make(options: ContainerOptions | None = None, **more: Any) -> DockerRuntime:
        made.append(DockerRuntime(options or ContainerOptions(), bisection, **more))
        return made[-1]

    yield make
    left = _left(bisection)
    for each in made:
        each.close()
    assert left == []


@pytest.fixture
def job(tmp_path: Path) -> MakeJob:
    numbers = itertools.count()

    def make(*command: str, evidence: EvidenceOptions | None = None, limit: float = 60) -> Job:
        folder = tmp_path / f"{next(numbers):04d}"
        (folder / "scratch").mkdir(parents=True)
        settings = session_dir.Settings("observe", "test", session_dir.now())
        return Job(
            command=command or ("python3", "/train.py"),
            evidence=evidence or EvidenceOptions(),
            session=session_dir.create(folder / "session", settings).path,
            inside=shipped.inside_dir(),
            log=folder / "log",
            stdout=folder / "stdout",
            scratch=folder / "scratch",
            workdir=tmp_path,
            time_limit=limit,
        )

    return make


def _left(bisection: str) -> list[str]:
    engine = Engine.connect()
    try:
        return engine.labelled(bisection)
    finally:
        engine.close()


def _said(job: Job) -> dict[str, object]:
    lines = [line for line in job.stdout.read_text().splitlines() if line.startswith("{")]
    found = json.loads(lines[-1])
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("transfer", ["auto", "bind", "copy"])
@pytest.mark.parametrize("user", [None, "1234:5678"])
def test_evidence_comes_out_whatever_the_way_and_the_user(
    runtime: Make, job: MakeJob, plain: Candidate, transfer: Transfer, user: str | None
) -> None:
    result = runtime(ContainerOptions(user=user), transfer=transfer).run(plain, job())
    assert (result.status, result.exit_code, result.reason) == ("ran", 0, "")
    assert [len(steps) for steps in result.evidence.streams["loss"].values()] == [3]
    assert result.facts["transfer"] == ("bind" if transfer == "auto" else transfer)
    assert result.facts["user"] == (user or "")
    assert result.loaded["python"].startswith("3.11")


def test_both_ways_find_the_same_bits_and_other_work_finds_others(
    runtime: Make, job: MakeJob, plain: Candidate
) -> None:
    digests = [runtime(transfer=t).run(plain, job()).evidence.digest for t in ("bind", "copy")]
    assert digests[0] == digests[1]
    other = job("python3", "-c", WORK.replace("1.5", "1.25"))
    assert runtime().run(plain, other).evidence.digest != digests[0]


@pytest.mark.parametrize("transfer", ["bind", "copy"])
def test_read_only_root_file_system(
    runtime: Make, job: MakeJob, plain: Candidate, transfer: Transfer
) -> None:
    options = ContainerOptions(read_only=True, user="1234")
    made = job("sh", "-c", "touch /here 2>/dev/null && exit 3; exec python3 /train.py")
    result = runtime(options, transfer=transfer).run(plain, made)
    assert (result.status, result.exit_code) == ("ran", 0)
    assert not result.evidence.empty


def test_an_images_own_start_is_kept_and_recorded(
    runtime: Make, job: MakeJob, candidate: Callable[[images.Image], Candidate]
) -> None:
    layer = images.files(
        {
            "entry.sh": BANNER,
            "talk.py": TALK,
            "opt/lib/helper.py": "VALUE = 7",
            "home/me/keep": "",
            "train.py": "import helper, pinner\npinner.fingerprint('a', helper.VALUE)\n",
        },
        executable=["entry.sh"],
    )
    image = images.Image(
        [layer],
        env={"PYTHONPATH": "/opt/lib", "LD_PRELOAD": "", "OWN": "x"},
        entrypoint=["/entry.sh"],
        user="1000:1000",
        workdir="/home/me",
    )
    own = candidate(image)
    first, second = job("python3", "/talk.py"), job()
    assert runtime().run(own, first).exit_code == 0
    said = _said(first)
    env = said["env"]
    assert isinstance(env, dict)
    assert env["PYTHONPATH"] == "/opt/pinner/inside/inject:/opt/pinner/session/hook:/opt/lib"
    assert (env["OWN"], said["uid"], said["cwd"]) == ("x", 1000, "/home/me")
    result = runtime().run(own, second)
    assert not result.evidence.empty
    assert "== welcome ==" in second.log.read_text()
    assert "== really ==" in second.log.read_text()
    assert "== really ==" not in second.stdout.read_text()
    wanted = {
        "entrypoint": ["/entry.sh"],
        "pythonpath": "/opt/lib",
        "user": "1000:1000",
        "workdir": "/home/me",
    }
    assert {name: result.facts[name] for name in wanted} == wanted
    session = json.loads((second.session / "session.json").read_text())
    assert session["hidden_pythonpath"] == "/opt/lib"


def test_an_entrypoint_of_the_users_replaces_the_images(
    runtime: Make, job: MakeJob, candidate: Callable[[images.Image], Candidate]
) -> None:
    layer = images.files({"entry.sh": BANNER, "train.py": WORK}, executable=["entry.sh"])
    own = candidate(images.Image([layer], entrypoint=["/entry.sh"]))
    for given in ("", "/usr/bin/env"):
        made = job()
        result = runtime(ContainerOptions(entrypoint=given)).run(own, made)
        assert result.exit_code == 0
        assert "welcome" not in made.log.read_text()
        assert result.facts["entrypoint"] == ([given] if given else [])


def test_options_arrive_in_the_container(
    runtime: Make, job: MakeJob, plain: Candidate, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "in").write_text("mounted")
    options = ContainerOptions(
        mounts=(f"type=bind,src={tmp_path}/data,dst=/data,ro", "type=tmpfs,dst=/fast"),
        shm_size="32m",
        ipc="private",
        ulimits=("nofile=777:888",),
        devices=("/dev/null:/dev/nothing",),
        network="none",
        env=("GIVEN=1", "FROM_HERE", "PYTHONPATH=/mine"),
    )
    script = "cat /data/in; touch /fast/x; ls /dev/nothing /sys/class/net; python3 /talk.py"
    made = job("sh", "-c", script)
    result = runtime(options, environ={"FROM_HERE": "yes"}).run(plain, made)
    assert result.exit_code == 0, made.log.read_text()
    said = _said(made)
    assert (said["shm"], said["files"]) == (32 << 20, [777, 888])
    env = said["env"]
    assert isinstance(env, dict)
    assert (env["GIVEN"], env["FROM_HERE"]) == ("1", "yes")
    assert env["PYTHONPATH"] == "/opt/pinner/inside/inject:/opt/pinner/session/hook:/mine"
    printed = made.stdout.read_text()
    assert "mounted" in printed
    assert "/dev/nothing" in printed
    assert "eth0" not in printed


def test_compile_caches_are_new_and_empty_whatever_the_image_brings(
    runtime: Make, job: MakeJob, candidate: Callable[[images.Image], Candidate]
) -> None:
    look = (
        "import os\n"
        "for name in ('TRITON_CACHE_DIR', 'TORCHINDUCTOR_CACHE_DIR', 'CUDA_CACHE_PATH'):\n"
        "    place = os.environ[name]\n"
        "    print(name, os.listdir(place))\n"
        "    open(os.path.join(place, 'mine'), 'w').close()\n"
    )
    layer = images.files({"look.py": look, "cache/stale": "from the neighbour"})
    env = {"TRITON_CACHE_DIR": "/cache", "TORCHINDUCTOR_CACHE_DIR": "/cache"}
    stale = candidate(images.Image([layer], env=env))
    shared = runtime(ContainerOptions(user="1234"))
    for _ in range(2):
        made = job("python3", "/look.py")
        assert shared.run(stale, made).exit_code == 0
        assert re.findall(r"\[.*\]", made.stdout.read_text()) == ["[]", "[]", "[]"]


def test_two_containers_with_one_hostname_at_once(
    runtime: Make, job: MakeJob, plain: Candidate
) -> None:
    """On the host's network every container has the host's name, and each command is process 1."""
    shared = runtime(ContainerOptions(network="host"))
    slow = "import time; time.sleep(0.5)\n" + WORK + "import os, socket\n"
    slow += "pinner.fingerprint('me', NUMBER); print(socket.gethostname(), os.getpid())"
    jobs = [job("python3", "-c", slow.replace("NUMBER", str(number))) for number in range(2)]
    results: list[ProbeResult] = []
    threads = [
        threading.Thread(target=lambda made=made: results.append(shared.run(plain, made)))
        for made in jobs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    printed = {made.stdout.read_text() for made in jobs}
    assert printed == {f"{socket.gethostname()} 1\n"}
    assert all(len(list((made.session / "ledger").iterdir())) == 1 for made in jobs)
    assert len({r.evidence.streams["loss"]["0"] for r in results}) == 1
    assert len({r.evidence.streams["me"]["0"] for r in results}) == 2


def test_evidence_from_files_and_output(
    runtime: Make, job: MakeJob, plain: Candidate, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old.txt").write_text("from before")
    os.utime(tmp_path / "out" / "old.txt", (1, 1))
    options = ContainerOptions(mounts=(f"type=bind,src={tmp_path}/out,dst=/out",))
    script = "mkdir -p /a/b; echo 1 > /a/b/in.txt; echo 2 > /out/new.txt; echo loss=5; echo loss=6"
    wanted = EvidenceOptions(
        files=("/a/**/*.txt", "/out/*.txt", "/etc/*.conf"), stdout=("loss=(.*)",)
    )
    result = runtime(options).run(plain, job("sh", "-c", script, evidence=wanted))
    assert {name: len(ranks["0"]) for name, ranks in result.evidence.streams.items()} == {
        "file:/a/b/in.txt": 1,
        "file:/out/new.txt": 1,
        "stdout:loss=(.*)": 2,
    }


def test_secrets_never_reach_a_log(runtime: Make, job: MakeJob, plain: Candidate) -> None:
    options = ContainerOptions(env=("HF_TOKEN=hush-hush-1", "PLAIN_NAME"))
    made = job("sh", "-c", "env; env >&2")
    shared = runtime(options, environ={"PLAIN_NAME": "hush-hush-2"})
    result = shared.run(plain, made)
    texts = [made.log.read_text(), made.stdout.read_text(), json.dumps(result.to_json())]
    texts += [json.dumps(shared.describe())]
    assert "HF_TOKEN=<hidden>" in texts[0]
    assert not [text for text in texts if "hush-hush" in text]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["no-such-program"], "no-such-program"),
        (["/etc/passwd"], "permission denied"),
    ],
)
def test_a_command_that_cannot_start_is_untestable_in_the_engines_words(
    runtime: Make, job: MakeJob, plain: Candidate, command: list[str], said: str
) -> None:
    result = runtime().run(plain, job(*command))
    assert (result.status, result.exit_code) == ("untestable", None)
    assert result.reason.startswith("the container did not start: ")
    assert said in result.reason


def test_an_image_that_cannot_start_is_untestable(
    runtime: Make, job: MakeJob, candidate: Callable[[images.Image], Candidate]
) -> None:
    broken = candidate(images.Image([images.files({"train.py": WORK})], entrypoint=["/gone"]))
    empty = candidate(images.Image([images.files({"f": "no shell, no Python"})], with_base=False))
    for each, said in ((broken, "no such file or directory"), (empty, "not found in $PATH")):
        result = runtime().run(each, job())
        assert result.status == "untestable"
        assert said in result.reason
        assert result.facts["entrypoint"] == (["/gone"] if each is broken else [])


def test_a_device_or_driver_that_is_missing_is_untestable_in_the_engines_words(
    runtime: Make, job: MakeJob, plain: Candidate
) -> None:
    for options in (ContainerOptions(devices=("/dev/no-such",)), ContainerOptions(gpus="all")):
        result = runtime(options).run(plain, job())
        assert result.status == "untestable"
        assert re.search("no-such|capabilities", result.reason), result.reason


def test_python_too_old_for_pinner_is_untestable_with_that_message(
    runtime: Make, job: MakeJob, candidate: Callable[[images.Image], Candidate]
) -> None:
    old = Path(lanes.other_python("3.7")).resolve()
    home = old.parent.parent
    content = {"opt/old/bin/python3": old.read_bytes()}
    content |= {
        f"opt/old/lib/{file.name}": file.read_bytes() for file in home.glob("lib/libpython3*.so*")
    }
    library = home / "lib" / "python3.7"
    for part in ("*.py", "encodings/*.py", "collections/*.py", "json/*.py"):
        for file in library.glob(part):
            content[f"opt/old/lib/python3.7/{file.relative_to(library)}"] = file.read_bytes()
    env = {
        "PATH": "/opt/old/bin:/usr/bin:/bin",
        "LD_LIBRARY_PATH": "/opt/old/lib",
        "PYTHONHOME": "/opt/old",
    }
    layer = images.files(
        {**content, "train.py": "print('ran')"}, executable=["opt/old/bin/python3"]
    )
    made = job()
    result = runtime().run(candidate(images.Image([layer], env=env)), made)
    assert result.status == "untestable", made.log.read_text()
    assert "Python 3.8 or newer is needed, this is 3.7" in result.reason
    assert "ran" not in made.stdout.read_text()


def test_no_module_fails_and_no_evidence_is_empty(
    runtime: Make, job: MakeJob, plain: Candidate
) -> None:
    failed = runtime().run(plain, job("python3", "-c", "import no_such_module"))
    assert (failed.status, failed.exit_code, failed.evidence.empty) == ("ran", 1, True)
    silent = runtime().run(plain, job("true"))
    assert (silent.status, silent.exit_code, silent.evidence.empty) == ("ran", 0, True)


def test_the_time_limit_ends_the_command_and_keeps_its_output(
    runtime: Make, job: MakeJob, plain: Candidate
) -> None:
    made = job("sh", "-c", "echo begun; sleep 300", limit=1)
    begun = time.monotonic()
    result = runtime().run(plain, made)
    assert time.monotonic() - begun < 20
    assert (result.status, result.reason) == ("untestable", "the command did not end within 1 s")
    assert made.log.read_text() == "begun\n"


def test_output_can_be_watched_while_the_command_runs(
    runtime: Make, job: MakeJob, plain: Candidate
) -> None:
    made = job("sh", "-c", "echo begun; sleep 3; echo ended")
    worker = threading.Thread(target=runtime().run, args=(plain, made))
    worker.start()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and worker.is_alive():
        if made.log.exists() and made.log.read_text():
            break
        time.sleep(0.05)
    seen = made.log.read_text()
    worker.join()
    assert seen == "begun\n"
    assert made.log.read_text() == "begun\nended\n"


@pytest.mark.usefixtures("interrupts")
@pytest.mark.parametrize("delay", [0.02, 0.1, 0.3, 0.6, 1.2])
def test_ctrl_c_leaves_no_container(
    runtime: Make, job: MakeJob, plain: Candidate, delay: float
) -> None:
    shared = runtime()
    timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        shared.run(plain, job("sleep", "300"))
    timer.join()


def test_close_ends_probes_of_other_threads(runtime: Make, job: MakeJob, plain: Candidate) -> None:
    shared = runtime()
    made = job("sh", "-c", "echo begun; sleep 300")
    results: list[ProbeResult] = []
    worker = threading.Thread(target=lambda: results.append(shared.run(plain, made)))
    worker.start()
    while not (made.log.exists() and made.log.read_text()):
        time.sleep(0.05)
    shared.close()
    worker.join(5)
    assert [result.status for result in results] == ["infrastructure"]


def test_what_a_killed_program_left_is_removed_before_the_next_probe(
    runtime: Make, job: MakeJob, plain: Candidate
) -> None:
    import docker

    first = runtime()
    label = {"stackbisect.bisection": first._setup.bisection}
    assert first.run(plain, job()).status == "ran"
    api = docker.from_env().api
    left = api.create_container(plain.details["reference"], ["sleep", "300"], labels=label)["Id"]
    foreign = api.create_container(plain.details["reference"], ["true"])["Id"]
    try:
        api.start(left)
        assert runtime().run(plain, job()).status == "ran"
        ids = [found["Id"] for found in api.containers(all=True)]
        assert left not in ids
        assert foreign in ids
    finally:
        api.remove_container(foreign)


@pytest.mark.parametrize("transfer", ["bind", "copy"])
def test_no_volume_is_left(
    runtime: Make, job: MakeJob, plain: Candidate, transfer: Transfer
) -> None:
    import docker

    api = docker.from_env().api
    made = job("sh", "-c", "echo begun; sleep 2")
    shared = runtime(transfer=transfer)
    worker = threading.Thread(target=shared.run, args=(plain, made))
    worker.start()
    while not (made.log.exists() and made.log.read_text()):
        time.sleep(0.05)
    (container,) = _left(shared._setup.bisection)
    mounts = api.inspect_container(container)["Mounts"]
    volumes = {mount["Name"] for mount in mounts if mount["Type"] == "volume"}
    worker.join()
    left = {volume["Name"] for volume in api.volumes()["Volumes"] or ()}
    assert volumes
    assert not volumes & left


def test_a_daemon_that_is_gone_says_nothing_about_the_candidate(
    job: MakeJob, plain: Candidate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/gone.sock")
    runtime = DockerRuntime(ContainerOptions(), "gone")
    result = runtime.run(plain, job())
    assert result.status == "infrastructure"
    assert "gone.sock does not answer" in result.reason
    with pytest.raises(InfrastructureError, match=r"gone\.sock"):
        runtime.describe()


def test_an_image_removed_from_the_registry_is_untestable(
    runtime: Make, job: MakeJob, repository: images.Repository
) -> None:
    digest = f"sha256:{'4290' * 16}"
    gone = Candidate(digest, "gone", 0, {"reference": f"{repository.reference}@{digest}"})
    result = runtime().run(gone, job())
    assert result.status == "untestable"
    assert "manifest unknown" in result.reason


def test_a_registry_that_is_gone_says_nothing_about_the_candidate(
    runtime: Make, job: MakeJob, plain: Candidate
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    digest = f"sha256:{'0' * 64}"
    gone = Candidate(digest, "gone", 0, {"reference": f"127.0.0.1:{port}/train@{digest}"})
    result = runtime().run(gone, job())
    assert result.status == "infrastructure"
    assert "connection refused" in result.reason


def test_a_login_comes_from_the_docker_config_and_is_asked_for_by_name(
    runtime: Make,
    job: MakeJob,
    new_repository: RepositoryFactory,
    login_registry: services.RegistryService,
    docker_config: Path,
) -> None:
    closed = new_repository(service=login_registry)
    digest = closed.push("a", images.Image([images.files({"train.py": WORK})]))
    own = Candidate(digest, "a", 0, {"reference": f"{closed.reference}@{digest}"})
    refused = runtime().run(own, job())
    assert refused.status == "infrastructure"
    assert f"docker login {login_registry.host}" in refused.reason
    auth = login_registry.headers["Authorization"].removeprefix("Basic ")
    docker_config.write_text(json.dumps({"auths": {login_registry.host: {"auth": auth}}}))
    made = job()
    result = runtime().run(own, made)
    assert result.status == "ran"
    texts = [json.dumps(result.to_json()), refused.reason, made.log.read_text()]
    assert not [text for text in texts if auth in text or services.PASSWORD in text]


@contextlib.contextmanager
def _remote_daemon(address: str) -> Iterator[str]:
    """The daemon at a unix address, by TCP: one thread a connection copies each way."""
    server = socket.create_server(("127.0.0.1", 0))

    def copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 16):
                target.sendall(piece)
            target.shutdown(socket.SHUT_WR)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = server.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(address.removeprefix("unix://"))
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=copy, args=pair, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
    finally:
        server.close()


def test_a_remote_daemon_gets_copies(
    runtime: Make,
    job: MakeJob,
    plain: Candidate,
    docker_host: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not docker_host.startswith("unix://"):
        pytest.skip("the daemon under test is remote already")
    with _remote_daemon(docker_host) as address:
        monkeypatch.setenv("DOCKER_HOST", address)
        made = job()
        result = runtime().run(plain, made)
    assert (result.status, result.facts["transfer"]) == ("ran", "copy")
    assert not result.evidence.empty


def test_files_that_others_may_not_read_are_copied(
    runtime: Make, job: MakeJob, plain: Candidate, tmp_path: Path
) -> None:
    """A strict umask at installation, or SELinux: the mount is there and cannot be read."""
    import shutil

    inside = tmp_path / "inside"
    shutil.copytree(shipped.inside_dir(), inside)
    for path in [inside, *inside.rglob("*")]:
        path.chmod(0o700 if path.is_dir() else 0o600)
    made = dataclasses.replace(job(), inside=inside)
    result = runtime(ContainerOptions(user="1234")).run(plain, made)
    assert (result.facts["transfer"], result.evidence.empty) == ("copy", False)


def test_the_difference_of_two_images_is_read_without_running_them(
    runtime: Make, candidate: Callable[[images.Image], Candidate], tmp_path: Path
) -> None:
    def metadata(version: str) -> dict[str, str | bytes]:
        name = f"{images.SITE}/order-{version}.dist-info/METADATA"
        return {name: f"Metadata-Version: 2.1\nName: order\nVersion: {version}\n"}

    good = candidate(images.Image([images.files(metadata("1"))], env={"A": "1"}))
    broken = images.Image([images.files(metadata("2"))], env={"A": "2"}, entrypoint=["/gone"])
    bad = candidate(broken)
    shared = runtime(folder=tmp_path / "images")
    wanted = {
        "distributions": {"order": ["1", "2"]},
        "packages": {},
        "environment": {"A": ["1", "2"]},
    }
    assert shared.difference(good, bad) == wanted
    cached = sorted((tmp_path / "images/contents").iterdir())
    assert len(cached) == 2
    packages = json.loads(cached[0].read_text())["packages"]
    assert {"libc6", "python3"} <= set(packages)
    assert shared.difference(good, bad) == wanted


@pytest.mark.usefixtures("interrupts")
@pytest.mark.parametrize("delay", [0.05, 0.2, 0.4])
def test_ctrl_c_while_images_are_read_leaves_no_container(
    runtime: Make, plain: Candidate, delay: float
) -> None:
    shared = runtime()

    def read_on() -> None:
        for _ in range(50):
            shared._images._contents.clear()
            shared.difference(plain, plain)

    timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        read_on()
    timer.join()


def test_pulled_images_keep_to_the_budget_and_nobody_elses_is_removed(
    runtime: Make, job: MakeJob, candidate: Callable[[images.Image], Candidate], tmp_path: Path
) -> None:
    import docker

    api = docker.from_env().api
    layers = [images.files({f"only-{secrets.token_hex(4)}": "x"}) for _ in range(4)]
    made = [candidate(images.Image([layer])) for layer in layers]
    references = [each.details["reference"] for each in made]
    repository, _, digest = references[0].partition("@")
    api.pull(repository, tag=digest)  # was here before
    size = api.inspect_image(references[0])["Size"]
    options = {"folder": tmp_path / "images", "image_budget": int(size * 2.5)}
    for each in made:
        assert runtime(**options).run(each, job("true")).status == "ran"
    here = [name for name in references if Engine.connect().image(name)]
    assert here == [references[0], references[2], references[3]]
    assert runtime(**options).run(made[1], job("true")).status == "ran"
    here = [name for name in references if Engine.connect().image(name)]
    assert here == [references[0], references[1], references[3]]
    api.remove_image(references[0])


def test_a_daemon_that_does_not_see_our_files_gets_copies(
    runtime: Make,
    job: MakeJob,
    plain: Candidate,
    spare_docker: services.Daemon,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A daemon in a virtual machine, or a program in a container with the daemon's socket."""
    monkeypatch.setenv("DOCKER_HOST", spare_docker.address)
    unseen = job()
    session = services.hidden_folder() / secrets.token_hex(4)
    unseen.session.rename(session)
    unseen = dataclasses.replace(unseen, session=session)
    shared = runtime(ContainerOptions(network="none"))
    result = shared.run(plain, unseen)
    assert (result.status, result.facts["transfer"]) == ("ran", "copy"), result.reason
    assert not result.evidence.empty
    seen = runtime(ContainerOptions(network="none")).run(plain, job())
    assert seen.facts["transfer"] == "bind"
    assert seen.evidence == result.evidence


def test_a_daemon_that_ends_in_the_middle_says_nothing_about_the_candidate(
    job: MakeJob,
    plain: Candidate,
    spare_docker: services.Daemon,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On its way down it ends every container, as if the commands had failed."""
    monkeypatch.setenv("DOCKER_HOST", spare_docker.address)
    bisection = secrets.token_hex(6)
    runtime = DockerRuntime(ContainerOptions(network="none"), bisection)
    made = job("sh", "-c", "trap 'exit 1' TERM; echo begun; sleep 300 & wait")
    results: list[ProbeResult] = []
    worker = threading.Thread(target=lambda: results.append(runtime.run(plain, made)))
    worker.start()
    while worker.is_alive() and not (made.log.exists() and made.log.read_text()):
        time.sleep(0.05)
    spare_docker.stop()
    worker.join(60)
    assert [result.status for result in results] == ["infrastructure"]
    assert "does not answer" in results[0].reason
    spare_docker.start()
    again = DockerRuntime(ContainerOptions(network="none"), bisection)
    assert again.run(plain, job()).status == "ran"
    assert _left(bisection) == []
