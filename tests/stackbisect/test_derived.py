"""Images made of two others, on a real daemon: what probes find in them, what is left behind."""

from __future__ import annotations

import compileall
import gzip
import hashlib
import io
import itertools
import json
import os
import secrets
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pinner import shipped
from pinner.launch import session_dir
from stackbisect.probe import Candidate, ContainerOptions, EvidenceOptions, Job, ProbeResult
from stackbisect.runtimes.derived import REPOSITORY
from stackbisect.runtimes.docker import DockerRuntime
from stackbisect.runtimes.docker_engine import BISECTION_LABEL, Engine
from stackbisect.runtimes.installing import Swapping
from stackbisect.spaces.components import Component, Inventory, derived, install, swap
from tests import lanes
from tests.stackbisect import generations, images, services, wheels
from tests.stackbisect.conftest import RepositoryFactory

pytestmark = [pytest.mark.service, pytest.mark.xdist_group("docker")]

SECRET = "hunter2-of-the-good-end"
LOOK = """
import ctypes, importlib.metadata, json, os, subprocess, sys
import alpha

def text(path):
    return open(path).read() if os.path.exists(path) else None

def shown(path):
    kept = os.lstat(path)
    return [oct(kept.st_mode & 0o7777), kept.st_uid, kept.st_gid]

def word(name):
    library = ctypes.CDLL(name)
    library.word.restype = ctypes.c_char_p
    return library.word().decode()

debs = subprocess.run(["dpkg-query", "-W"], capture_output=True, text=True).stdout
app = sorted(os.path.join(at, name) for at, _, names in os.walk("/opt/app") for name in names)
print(json.dumps({
    "alpha": [alpha.VALUE, alpha.__version__, importlib.metadata.version("alpha")],
    "debs": dict(line.split("\\t") for line in debs.splitlines() if line.startswith("parts-")),
    "data": text("/usr/share/parts/parts-data"),
    "libraries": [word("libreduce.so.1"), word("libblend.so.1")],
    "env": {name: value for name, value in os.environ.items() if name.startswith(("PART", "KEY"))},
    "app": {path: [text(path), *shown(path)] for path in app if not os.path.islink(path)},
    "links": {path: os.readlink(path) for path in app if os.path.islink(path)},
    "twins": len({os.stat(p).st_ino for p in app if os.path.basename(p).startswith("twin")}),
    "uid": os.getuid(), "cwd": os.getcwd(), "build": os.path.exists("/.stackbisect"),
}))
"""
ENTRY = '#!/bin/sh\necho "== started by the image =="\nexec "$@"\n'

Make = Callable[..., DockerRuntime]
MakeJob = Callable[..., Job]


# -- images ----------------------------------------------------------------------------------------


def _alpha(value: str, version: str, folder: Path) -> dict[str, str | bytes]:
    """A distribution whose bytecode stays valid when only its source is replaced: same size, time.

    As in images whose files all have one time.
    """
    source = f"__version__ = '{version}'\nVALUE = '{value}'\n"
    path = wheels.write(folder, "alpha", version, {"alpha/__init__.py": source})
    content = generations._unpacked(path)
    tree = folder / f"tree-{version}"
    (tree / "alpha").mkdir(parents=True)
    module = tree / "alpha/__init__.py"
    module.write_text(source)
    os.utime(module, (0, 0))
    compileall.compile_file(str(module), ddir="/x", quiet=1)
    for file in (tree / "alpha/__pycache__").iterdir():
        content[f"{images.SITE}/alpha/__pycache__/{file.name}"] = file.read_bytes()
    return content


def _app(end: str) -> list[tarfile.TarInfo | tuple[tarfile.TarInfo, bytes]]:
    """Files of every sort under /opt/app, which no package owns."""

    def entry(name: str, content: bytes = b"", **more: Any) -> Any:
        info = tarfile.TarInfo(f"opt/app{name}")
        info.size = len(content)
        for key, value in more.items():
            setattr(info, key, value)
        return (info, content) if content else info

    folder = {"type": tarfile.DIRTYPE, "mode": 0o755}
    common = [entry("", **folder), entry("/setting", end.encode(), mode=0o640, uid=7, gid=1000)]
    if end == "bad":
        return [*common, entry("/late", **folder), entry("/late/only", b"bad", mode=0o644)]
    return [
        *common,
        entry("/early", type=tarfile.DIRTYPE, mode=0o711, uid=5, gid=6),
        entry("/early/twin-1", b"twins", mode=0o644),
        entry("/early/twin-2", type=tarfile.LNKTYPE, linkname="opt/app/early/twin-1"),
        entry("/early/link", type=tarfile.SYMTYPE, linkname="twin-1"),
        entry("/early/it's $HOME; x", b"odd", mode=0o4755),
        entry("/early/\udcff", b"no UTF-8", mode=0o644),
    ]


def _layer(place: Path, members: Sequence[Any]) -> images.Layer:
    place.parent.mkdir(parents=True, exist_ok=True)
    with (
        gzip.GzipFile(place, "wb", 1, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as out,
    ):
        for each in members:
            info, content = each if isinstance(each, tuple) else (each, b"")
            out.addfile(info, io.BytesIO(content))
    return images.described(place)


@pytest.fixture(scope="module")
def candidate(
    new_repository: RepositoryFactory,
) -> Callable[[images.Image], Candidate]:
    repository = new_repository()
    numbers = itertools.count()

    def make(image: images.Image) -> Candidate:
        tag = f"v{next(numbers)}"
        digest = repository.push(tag, image)
        reference = f"{repository.reference}@{digest}"
        return Candidate(digest, tag, 0, {"reference": reference, "platform": "linux/amd64"})

    return make


@pytest.fixture(scope="module")
def pair(
    candidate: Callable[[images.Image], Candidate], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Candidate, Candidate]:
    """A good and a bad image that differ in everything that can be swapped."""
    place = tmp_path_factory.mktemp("pair")
    good, bad = generations.ends()
    bad = generations.blame(bad, {("library", "libreduce.so"): "backward"})
    repository = _apt_repository(place / "debs")
    made = []
    for end, generation, value in (("good", good, "1"), ("bad", bad, "2")):
        whole = generations.image(generation, LOOK)
        key = SECRET if end == "good" else "another"
        added = [
            images.files(_alpha(value, value, place)),
            images.files({"entry.sh": ENTRY, **repository}, executable=["entry.sh"]),
            _layer(place / f"{end}.tar.gz", _app(end)),
        ]
        env = {**whole.env, "KEY_TOKEN": key, "NVIDIA_VISIBLE_DEVICES": "all"}
        env |= {"PART_GOOD": "only here"} if end == "good" else {"PART_BAD": "only here"}
        image = replace(
            whole,
            layers=[*whole.layers, *added],
            env=env,
            user="1000:1000",
            workdir="/opt/app",
            entrypoint=["/entry.sh"],
            labels={"of": end},
        )
        made.append(candidate(image))
    return made[0], made[1]


def _apt_repository(folder: Path) -> dict[str, str | bytes]:
    """A repository in the image itself, with three versions of parts-data."""
    content: dict[str, str | bytes] = {}
    listed = []
    for version in ("1.0", "1.5", "2.0"):
        root = folder / version
        control = f"Package: parts-data\nVersion: {version}\nArchitecture: all\n"
        control += "Maintainer: nobody <nobody@localhost>\nDescription: a part\n"
        (root / "DEBIAN").mkdir(parents=True)
        (root / "DEBIAN/control").write_text(control)
        (root / "usr/share/parts").mkdir(parents=True)
        (root / "usr/share/parts/parts-data").write_text(f"apt:{version}\n")
        deb = folder / f"parts-data_{version}.deb"
        command = ["dpkg-deb", "--build", "--root-owner-group", "-Znone", str(root), str(deb)]
        subprocess.run(command, check=True, capture_output=True)
        content[f"opt/repo/{deb.name}"] = deb.read_bytes()
        digest = hashlib.sha256(deb.read_bytes()).hexdigest()
        size = deb.stat().st_size
        listed.append(f"{control}Filename: ./{deb.name}\nSize: {size}\nSHA256: {digest}\n")
    content["opt/repo/Packages"] = "\n".join(listed)
    content["etc/apt/sources.list"] = "deb [trusted=yes] file:/opt/repo ./\n"
    return content


# -- runtimes --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is known of the images, for every test here."""
    return tmp_path_factory.mktemp("images")


@pytest.fixture
def runtime(known: Path) -> Iterator[Make]:
    """Makes runtimes of one bisection; afterwards nothing of it may be left."""
    bisection = f"test-{secrets.token_hex(6)}"
    made: list[DockerRuntime] = []

    def make(options: ContainerOptions | None = None, **more: Any) -> DockerRuntime:
        arguments = {"folder": known, **more}
        made.append(DockerRuntime(options or ContainerOptions(), bisection, **arguments))
        return made[-1]

    yield make
    left = _containers(bisection)
    for each in made:
        each.close()
        each.clean()
    assert left == []
    assert _derived(bisection) == []


def _containers(bisection: str) -> list[str]:
    engine = Engine.connect()
    try:
        return engine.labelled(bisection)
    finally:
        engine.close()


def _derived(bisection: str) -> list[str]:
    engine = Engine.connect()
    try:
        return engine.derived(bisection)
    finally:
        engine.close()


@pytest.fixture
def job(tmp_path: Path) -> MakeJob:
    numbers = itertools.count()

    def make(*command: str) -> Job:
        folder = tmp_path / f"{next(numbers):04d}"
        (folder / "scratch").mkdir(parents=True)
        settings = session_dir.Settings("observe", "test", session_dir.now())
        return Job(
            command=command or ("python3", "/train.py"),
            evidence=EvidenceOptions(),
            session=session_dir.create(folder / "session", settings).path,
            inside=shipped.inside_dir(),
            log=folder / "log",
            stdout=folder / "stdout",
            scratch=folder / "scratch",
            workdir=tmp_path,
            time_limit=60,
        )

    return make


def _said(result: ProbeResult, job: Job) -> dict[str, Any]:
    assert (result.status, result.exit_code) == ("ran", 0), result.reason + job.log.read_text()
    lines = [line for line in job.stdout.read_text().splitlines() if line.startswith("{")]
    found = json.loads(lines[-1])
    assert isinstance(found, dict)
    return found


def _mixture(
    pair: tuple[Candidate, Candidate], inventory: Inventory, *chosen: str, label: str = "mixture"
) -> Candidate:
    """The bad image with the chosen components (ids, or beginnings of some) of the good one."""
    parts = [c for c in inventory.components if c.id.startswith(chosen)]
    assert parts
    return derived(pair[1], [swap(pair[0], parts)], label)


CHOSEN = (
    *("distribution:alpha", "package:parts-data", "library:libreduce.so"),
    *("environment:KEY_TOKEN", "environment:PART_GOOD", "environment:PART_BAD", "file:/opt/app"),
)


def test_what_is_swapped_is_found_in_the_image_and_nothing_else(
    runtime: Make, job: MakeJob, pair: tuple[Candidate, Candidate], known: Path
) -> None:
    shared = runtime(files=True)
    jobs = [job(), job()]
    probes = [shared.run(each, made) for each, made in zip(pair, jobs, strict=True)]
    good, bad = (_said(result, made) for result, made in zip(probes, jobs, strict=True))
    inventory = shared.inventory(*pair, probes)
    assert len(inventory.components) > generations.COUNT
    assert SECRET not in json.dumps(inventory.to_json())
    mixture = _mixture(pair, inventory, *CHOSEN)

    made = job()
    shared.prefetch(mixture)
    before = _derived(shared._setup.bisection)
    assert len(before) == 1
    result = shared.run(mixture, made)
    found = _said(result, made)
    assert {key: found[key] for key in ("alpha", "app", "links", "twins", "data")} == {
        key: good[key] for key in ("alpha", "app", "links", "twins", "data")
    }
    assert found["debs"] == {**bad["debs"], "parts-data": good["debs"]["parts-data"]}
    assert found["libraries"] == [good["libraries"][0], bad["libraries"][1]]
    wanted = {**bad["env"], "KEY_TOKEN": SECRET, "PART_GOOD": "only here"}
    del wanted["PART_BAD"]
    assert found["env"] == wanted
    # The start is the base's.
    assert [found[key] for key in ("uid", "cwd", "build")] == [1000, "/opt/app", False]
    assert "started by the image" in made.log.read_text()
    for key in ("entrypoint", "user", "workdir", "pythonpath"):
        assert result.facts[key] == probes[1].facts[key]
    assert SECRET not in json.dumps([result.to_json(), mixture.to_json()])

    # The same image again: by archives alone, where the root cannot be written.
    other = runtime(ContainerOptions(read_only=True), transfer="copy", files=True)
    again = job()
    assert _said(other.run(mixture, again), again) == found
    assert _derived(shared._setup.bisection) == before

    # The rest of the good image makes it the good one.
    rest = derived(pair[1], [swap(pair[0], inventory.components)], "all")
    last = job()
    assert _said(shared.run(rest, last), last) == good

    config = _inspect(f"{REPOSITORY}:{_tag(shared, mixture)}")["Config"]
    base = _inspect(str(pair[1].details["reference"]))["Config"]
    for key in ("Entrypoint", "Cmd", "Env", "User", "WorkingDir"):
        assert config[key] == base[key]
    assert config["Labels"].items() >= base["Labels"].items()
    assert shared.clean() == 2
    assert _inspect(str(pair[1].details["reference"]))  # the user's own stays


def _inspect(reference: str) -> dict[str, Any]:
    import docker

    api = docker.from_env().api
    try:
        found = api.inspect_image(reference)
        assert isinstance(found, dict)
        return found
    finally:
        api.close()


def _tag(runtime: DockerRuntime, candidate: Candidate) -> str:
    from stackbisect.runtimes.derived import Recipe

    return runtime._derived.reference(Recipe.of(candidate)).rpartition(":")[2]


def test_versions_come_from_apt_in_the_image_and_one_is_installed(
    runtime: Make, job: MakeJob, pair: tuple[Candidate, Candidate]
) -> None:
    shared = runtime()
    part = Component("package", "parts-data", "1.0", "2.0")
    assert shared.versions(part, *pair) == ["1.0", "1.5", "2.0"]
    made = job()
    found = _said(shared.run(derived(pair[1], [install(part, "1.5")], "1.5"), made), made)
    assert (found["debs"]["parts-data"], found["data"]) == ("1.5", "apt:1.5\n")
    refused = shared.run(derived(pair[1], [install(part, "1.7")], "1.7"), job())
    assert refused.status == "untestable"
    assert "Version '1.7' for 'parts-data' was not found" in refused.reason


def test_pip_in_the_container_takes_what_the_variables_name(
    runtime: Make, job: MakeJob, candidate: Callable[[images.Image], Candidate], tmp_path: Path
) -> None:
    with services.locked("pip-wheel") as place:
        folder = place / "wheels" / "pip-24.0"
        if not folder.exists():
            images.download(["pip==24.0"], folder)
    (pip,) = folder.glob("pip-*.whl")
    for version in ("1", "1.5", "2"):
        wheels.write(tmp_path, "alpha", version, {"alpha.py": f"__version__ = '{version}'\n"})
    found = {f"opt/wheels/{path.name}": path.read_bytes() for path in tmp_path.glob("*.whl")}
    ends = []
    for version in "12":
        (alpha,) = tmp_path.glob(f"alpha-{version}-*.whl")
        layers = [images.wheel(pip), images.wheel(alpha), images.files(found)]
        ends.append(candidate(images.Image(layers, user="1000")))
    env = ("PIP_NO_INDEX=1", "PIP_FIND_LINKS=/opt/wheels")
    shared = runtime(ContainerOptions(env=env), swapping=Swapping("pip"))
    part = Component("distribution", "alpha", "1", "2")
    assert shared.versions(part, ends[0], ends[1]) == ["1", "1.5", "2"]
    look = ("python3", "-c", "import alpha, json; print(json.dumps({'alpha': alpha.__version__}))")
    steps = [(swap(ends[0], [part]), "1")]
    if lanes.soak():  # pip without its bytecode takes seconds to start
        steps.append((install(part, "1.5"), "1.5"))
    for step, wanted in steps:
        made = job(*look)
        mixture = derived(ends[1], [step], wanted)
        assert _said(shared.run(mixture, made), made) == {"alpha": wanted}
        assert "PIP_NO_INDEX" not in str(_inspect(f"{REPOSITORY}:{_tag(shared, mixture)}"))


def test_a_users_own_script_installs_and_its_failure_is_told(
    runtime: Make, job: MakeJob, pair: tuple[Candidate, Candidate], tmp_path: Path
) -> None:
    folder = tmp_path / "scripts"
    folder.mkdir()
    script = folder / "install-alpha"
    place = f"/{images.SITE}/alpha/__init__.py"
    script.write_text(
        f'#!/bin/sh\nset -e\ntest "$TOKEN" = {SECRET}\n'
        f"echo \"VALUE = 'by hand'; __version__ = '2'\" > {place}\nid -u\n"
    )
    parts = [
        Component("distribution", "alpha", "2", "2"),
        Component("file", "/opt/app/late/only", None, "x"),
    ]
    environ = {"TOKEN": SECRET}
    shared = runtime(
        ContainerOptions(env=("TOKEN",)), environ=environ, swapping=Swapping.parse(str(folder))
    )
    made = job()
    mixture = derived(pair[1], [swap(pair[0], parts)], "by script")
    found = _said(shared.run(mixture, made), made)
    assert found["alpha"][0] == "by hand"
    assert "/opt/app/late/only" not in found["app"]
    assert "== install-alpha 2\n0\n" in made.log.with_name("install.log").read_text()
    assert SECRET not in json.dumps(_inspect(f"{REPOSITORY}:{_tag(shared, mixture)}"))

    script.write_text("#!/bin/sh\necho no such luck\nexit 7\n")
    other = runtime(
        ContainerOptions(env=("TOKEN",)), environ=environ, swapping=Swapping.parse(str(folder))
    )
    result = other.run(mixture, job())
    assert result.status == "untestable"
    assert result.reason == "install-alpha 2 failed with code 7: no such luck"


def test_a_build_that_is_not_wanted_any_more_leaves_nothing(
    runtime: Make, job: MakeJob, pair: tuple[Candidate, Candidate], tmp_path: Path
) -> None:
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "install-alpha").write_text("#!/bin/sh\nsleep 300\n")
    shared = runtime(swapping=Swapping.parse(str(folder)))
    part = Component("distribution", "alpha", "1", "2")
    made = job()
    worker = threading.Thread(
        target=shared.run, args=(derived(pair[1], [swap(pair[0], [part])], "slow"), made)
    )
    worker.start()
    _wait_for(lambda: _runs(shared._setup.bisection))
    made.stop.set()
    worker.join(30)
    assert not worker.is_alive()
    assert _derived(shared._setup.bisection) == []


def test_a_build_whose_program_is_killed_leaves_nothing(
    runtime: Make, pair: tuple[Candidate, Candidate], known: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "install-alpha").write_text("#!/bin/sh\nsleep 300\n")
    bisection = runtime()._setup.bisection
    part = Component("distribution", "alpha", "1", "2")
    slow = derived(pair[1], [swap(pair[0], [part])], "slow")
    code = (
        "import json, sys\n"
        "from pathlib import Path\n"
        "from stackbisect.probe import Candidate, ContainerOptions\n"
        "from stackbisect.runtimes.docker import DockerRuntime\n"
        "from stackbisect.runtimes.installing import Swapping\n"
        "bisection, known, scripts, candidate = sys.argv[1:]\n"
        "swapping = Swapping.parse(scripts)\n"
        "more = {'folder': Path(known), 'swapping': swapping}\n"
        "made = DockerRuntime(ContainerOptions(), bisection, **more)\n"
        "made.prefetch(Candidate.from_json(json.loads(candidate)))\n"
    )
    words = [bisection, str(known), str(folder), json.dumps(slow.to_json())]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.Popen([sys.executable, "-c", code, *words], env=env)
    _wait_for(lambda: _runs(bisection))
    killed.kill()
    killed.wait()
    _wait_for(lambda: not _containers(bisection))  # its sentry does it
    assert _derived(bisection) == []


def _runs(bisection: str) -> bool:
    """True while a build's script runs: images are read from containers that never do."""
    import docker

    api = docker.from_env().api
    try:
        return bool(api.containers(filters={"label": f"{BISECTION_LABEL}={bisection}"}))
    finally:
        api.close()


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_library_of_the_systems_that_shadows_a_swapped_one_is_told(
    runtime: Make,
    job: MakeJob,
    candidate: Callable[[images.Image], Candidate],
    tmp_path: Path,
) -> None:
    """flashinfer-ai/flashinfer#2468: another copy comes first, whatever was installed."""
    libraries = {word: _library(tmp_path, word) for word in ("wheel-1", "wheel-2", "system")}
    ends = []
    for version in "12":
        name = "tiny.libs/libtiny.so.1"
        info = f"tiny-{version}.dist-info"
        content: dict[str, str | bytes] = {
            name: libraries[f"wheel-{version}"],
            f"{info}/METADATA": f"Name: tiny\nVersion: {version}\n",
            f"{info}/RECORD": f"{name},,\n{info}/METADATA,,\n{info}/RECORD,,\n",
        }
        layers = [images.files({f"{images.SITE}/{path}": text for path, text in content.items()})]
        folders = [f"/{images.SITE}/tiny.libs"]
        if version == "2":
            layers.append(images.files({"opt/system/libtiny.so.1": libraries["system"]}))
            folders.insert(0, "/opt/system")
        env = {"LD_LIBRARY_PATH": ":".join(folders)}
        ends.append(candidate(images.Image(layers, env=env)))
    command = ("python3", "-c", "import ctypes; ctypes.CDLL('libtiny.so.1')")
    shared = runtime()
    probes = [shared.run(each, job(*command)) for each in ends]
    inventory = shared.inventory(ends[0], ends[1], probes)
    names = [each.id for each in inventory.components]
    assert names == ["distribution:tiny", "library:libtiny.so", "environment:LD_LIBRARY_PATH"]
    wheel_alone = _mixture((ends[0], ends[1]), inventory, "distribution")
    result = shared.run(wheel_alone, job(*command))
    assert result.status == "untestable"
    assert result.reason.startswith(
        "asked for libtiny.so of tiny 1, loaded is /opt/system/libtiny.so.1 ("
    )
    both = _mixture((ends[0], ends[1]), inventory, "distribution", "library")
    assert shared.run(both, job(*command)).status == "ran"


def _library(folder: Path, word: str) -> bytes:
    source = folder / f"{word}.c"
    source.write_text(f'const char *word(void) {{ return "{word}"; }}\n')
    made = folder / f"{word}.so"
    command = ["cc", "-shared", "-fPIC", "-Wl,-soname,libtiny.so.1", "-o", str(made), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return made.read_bytes()


def test_derived_images_keep_to_the_budget(
    runtime: Make, pair: tuple[Candidate, Candidate], known: Path, tmp_path: Path
) -> None:
    if (known / "files").exists():  # not read again
        shutil.copytree(known / "files", tmp_path / "files")
    names = [f"distribution:part-{letter}" for letter in "abc"]
    parts = [Component("distribution", name.partition(":")[2], "1", "2") for name in names]
    a, b, c = (derived(pair[1], [swap(pair[0], [part])], part.name) for part in parts)
    plain = runtime(folder=tmp_path)
    for each in (a, b):
        plain.prefetch(each)
    sizes = json.loads((tmp_path / "pulled.json").read_text())
    budget = sum(size for size, _ in sizes.values())
    assert all(_is_here(_tag(plain, each)) for each in (a, b))
    shared = runtime(folder=tmp_path, image_budget=budget)
    shared.prefetch(c)
    assert [_is_here(_tag(shared, each)) for each in (a, b, c)] == [False, True, True]


def _is_here(tag: str) -> bool:
    engine = Engine.connect()
    try:
        return engine.image(f"{REPOSITORY}:{tag}") is not None
    finally:
        engine.close()


def test_an_image_without_a_shell_cannot_lose_files_and_says_so(
    runtime: Make, job: MakeJob, candidate: Callable[[images.Image], Candidate]
) -> None:
    good = candidate(images.Image([images.files({"srv/a": "1"})], with_base=False))
    bad = candidate(images.Image([images.files({"srv/b": "1"})], with_base=False))
    gone = Component("file", "/srv/b", None, "x")
    result = runtime().run(derived(bad, [swap(good, [gone])], "none"), job("/x"))
    assert result.status == "untestable"
    assert result.reason.startswith("expected /bin/sh in the image")
