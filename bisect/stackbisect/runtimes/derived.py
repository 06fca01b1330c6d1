"""Builds the image of a derived candidate: the base, with components copied in or installed.

Always from the base, in one container that no workload has run in. What a graft copies comes out of
the donor and goes into the base as streams of tar; nothing of the donor runs. In the base a shell
removes what must go and the loader's cache is written anew. The image keeps the base's config. It
is named by what it is made of, so each is built once, whoever asks; `clean` finds it by its label.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import platform
import posixpath
import secrets
import shlex
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stackbisect.probe import Candidate, InfrastructureError
from stackbisect.runtimes import installing
from stackbisect.runtimes.archive import ArchiveError
from stackbisect.runtimes.base_python import Base
from stackbisect.runtimes.container_loaded import Expected, Library
from stackbisect.runtimes.docker_engine import (
    BISECTION_LABEL,
    DERIVED_LABEL,
    START_LABEL,
    Engine,
    Image,
    Stopped,
    Untestable,
)
from stackbisect.runtimes.docker_probe import Setup, Stack
from stackbisect.runtimes.image_store import ImageStore
from stackbisect.runtimes.installing import FOLDER, Step, Swapping
from stackbisect.spaces import graft, image_files, inventory, ownership, wheel_graft
from stackbisect.spaces.components import DERIVED, Component
from stackbisect.spaces.graft import Copier, Graft, Piece
from stackbisect.spaces.inventory import Pair
from stackbisect.spaces.ownership import Owned

REPOSITORY = "stackbisect-derived"

_FORMAT = 2
"""Version of how images are built: an image that an older program built is not taken."""

_EXPORTED_MEANWHILE = 32 << 20
"""While the daemon answers one request for a path, it exports about so many bytes of an image."""

_OWN = FOLDER.lstrip("/")
_SHELL = "/bin/sh"
_LDCONFIG = ("sbin/ldconfig", "usr/sbin/ldconfig")
_DEVICES = "NVIDIA_VISIBLE_DEVICES"
_LAST_LINES = 12
_KEPT = (
    *("Entrypoint", "Cmd", "Env", "User", "WorkingDir", "ExposedPorts", "Volumes", "Shell"),
    *("StopSignal", "StopTimeout", "OnBuild", "Healthcheck", "ArgsEscaped"),
)


@dataclass(frozen=True)
class Recipe:
    """A derived candidate, read: its base and the steps that change files or variables."""

    base: Candidate
    steps: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def of(cls, candidate: Candidate) -> Recipe:
        """Read a candidate; one that is not derived has no steps. Locks are no part of a stack."""
        made = candidate.details.get(DERIVED)
        if made is None:
            return cls(candidate)
        inner = cls.of(Candidate.from_json(made["base"]))
        own = tuple(step for step in made["steps"] if step["kind"] != "lock")
        return cls(inner.base, (*inner.steps, *own))

    @property
    def of_files(self) -> tuple[Mapping[str, Any], ...]:
        """The steps that need an image of their own."""
        return tuple(
            step
            for step in self.steps
            if step["kind"] == "install"
            or any(each["kind"] != "environment" for each in step["components"])
        )

    @property
    def of_variables(self) -> Iterator[tuple[Candidate, str]]:
        """Donor and name of each variable that is swapped."""
        for step in self.steps:
            for each in step.get("components", ()):
                if each["kind"] == "environment":
                    yield Candidate.from_json(step["donor"]), each["name"]

    @property
    def asked(self) -> dict[str, Component]:
        """What each component that was changed should be now (its `good` value), by id."""
        found: dict[str, Component] = {}
        for step in self.steps:
            if step["kind"] == "swap":
                changed = [Component.from_json(each) for each in step["components"]]
            else:
                part, version = step["component"], step["version"]
                changed = [Component(part["kind"], part["name"], version, None)]
            found.update({each.id: each for each in changed})
        return found


def components_of(step: Mapping[str, Any]) -> list[Component]:
    """The components of a swap that are files."""
    found = [Component.from_json(each) for each in step["components"]]
    return [each for each in found if each.kind != "environment"]


@dataclass(frozen=True)
class DerivedImages:
    """Gives out the stacks of candidates, derived or not, on one daemon."""

    setup: Setup
    images: ImageStore
    swapping: Swapping

    @contextlib.contextmanager
    def use(
        self,
        engine: Engine,
        candidate: Candidate,
        stopped: Callable[[], bool],
        log: Path | None = None,
    ) -> Iterator[Stack]:
        """Give a candidate's stack, pulled or built where it is not here.

        `log` gets the output of a build. Raises Untestable, InfrastructureError, Stopped.
        """
        recipe = Recipe.of(candidate)
        values = self._values(engine, recipe, stopped)
        with self._image(engine, recipe, stopped, log) as (reference, image):
            env = image.env
            if values:
                names = set(values)
                kept = [text for text in env if text.partition("=")[0] not in names]
                given = [f"{n}={v}" for n, v in values.items() if v is not None]
                env = (*kept, *given)
            yield Stack(
                reference=reference,
                image=replace(image, env=tuple(env)),
                built=bool(recipe.of_files),
                set={name: value for name, value in values.items() if value is not None},
                unset=tuple(name for name, value in values.items() if value is None),
            )

    def _values(
        self, engine: Engine, recipe: Recipe, stopped: Callable[[], bool]
    ) -> dict[str, str | None]:
        found: dict[str, str | None] = {}
        for donor, name in recipe.of_variables:
            with self.images.use(engine, donor, stopped) as image:
                found[name] = image.variable(name)
        return found

    @contextlib.contextmanager
    def _image(
        self,
        engine: Engine,
        recipe: Recipe,
        stopped: Callable[[], bool],
        log: Path | None,
    ) -> Iterator[tuple[str, Image]]:
        if not recipe.of_files:
            with self.images.use(engine, recipe.base, stopped) as image:
                yield str(recipe.base.details["reference"]), image
            return
        self.swapping.check()
        reference = self.reference(recipe)

        def build() -> int:
            with self.images.use(engine, recipe.base, stopped) as base:
                made = _Build(self, engine, recipe, base, reference, stopped, log)
                made.run()
                whole = engine.image(reference)
            return 0 if whole is None else max(whole.size - base.size, 0)

        with self.images.use_built(engine, reference, build) as image:
            start = json.loads((engine.config(reference).get("Labels") or {})[START_LABEL])
            entrypoint = tuple(start.pop("entrypoint"))
            yield reference, replace(image, entrypoint=entrypoint, **start)

    def reference(self, recipe: Recipe) -> str:
        """The name of an image: a digest of all that it is made of."""
        steps = [_identity(step) for step in recipe.of_files]
        what = [_FORMAT, recipe.base.id, steps, self.swapping.digest]
        text = json.dumps(what, sort_keys=True, separators=(",", ":"))
        return f"{REPOSITORY}:{hashlib.sha256(text.encode()).hexdigest()[:32]}"

    def expected(
        self, engine: Engine, candidate: Candidate, stopped: Callable[[], bool]
    ) -> Expected:
        """What a probe of a candidate must have loaded: the parts that were swapped, no others."""
        recipe = Recipe.of(candidate)
        asked = recipe.asked.values()
        distributions = {
            each.name: each.good and installing.plain_version(each.good)
            for each in asked
            if each.kind == "distribution"
        }
        libraries: dict[str, Library] = {}
        for step in recipe.steps:
            if step["kind"] == "swap":
                for name, each in self._libraries(engine, recipe.base, step, stopped):
                    known = libraries.get(name)
                    libraries[name] = each if known is None else known.joined(each)
        return Expected(distributions, libraries)

    def _libraries(
        self,
        engine: Engine,
        base: Candidate,
        step: Mapping[str, Any],
        stopped: Callable[[], bool],
    ) -> Iterator[tuple[str, Library]]:
        components = components_of(step)
        if not components:
            return
        donor = Candidate.from_json(step["donor"])
        pair = self.images.pair(engine, donor, base, stopped)
        seen = {pair.good.files.target(path) for path in self.images.loaded(donor) or ()}
        for component in components:
            what = f"{component.name} {component.good}" if component.good else "no other copy"
            paths = pair.paths(component, pair.good)
            if component.kind == "library":
                wanted = _marks(pair.good, paths)
                gone = _marks(pair.bad, pair.paths(component, pair.bad)) - wanted
                yield component.name, Library(what, wanted, gone)
                continue
            # Only what the donor itself loaded: its loader may have preferred another copy, too.
            for path in seen & paths:
                name = inventory.family(path)
                if name is not None and name.startswith("lib"):
                    yield name, Library(what, _marks(pair.good, [path]))

    def target(self, engine: Engine, owned: Owned) -> list[str]:
        """The options that make this machine's pip look for what an image can use."""
        python = wheel_graft.python_of(owned)
        machine = str(engine.info().get("Architecture") or platform.machine())
        tags = wheel_graft.platforms(owned, machine)
        version = ["--python-version", python, "--implementation", "cp"] if python else []
        return [*version, *(f"--platform={tag}" for tag in tags)]

    def output(
        self,
        engine: Engine,
        candidate: Candidate,
        script: str,
        stopped: Callable[[], bool],
        limit: float,
    ) -> str:
        """What a script prints in a container of an image; "" where it fails or takes too long."""
        with self.images.use(engine, candidate, stopped) as image:
            asked = _Build(self, engine, Recipe(candidate), image, "", stopped, None)
            return asked.ask(script, limit)


def _marks(owned: Owned, paths: Iterable[str]) -> frozenset[str]:
    """The digests of the files among paths."""
    entries = owned.files.entries
    return frozenset(entries[path].mark for path in paths if entries[path].kind == "f")


def _identity(step: Mapping[str, Any]) -> list[Any]:
    if step["kind"] == "swap":
        parts = [component.to_json() for component in components_of(step)]
        return ["swap", step["donor"]["id"], parts]
    return ["install", step["component"], step["version"]]


@dataclass
class _Build:
    """One build. The container is gone afterwards, however it ended."""

    owner: DerivedImages
    engine: Engine
    recipe: Recipe
    base: Image
    reference: str
    stopped: Callable[[], bool]
    log: Path | None
    _files: Owned | None = None

    def run(self) -> None:
        """Build the image, or raise Untestable, InfrastructureError, Stopped."""
        self._files = self.owner.images.owned(self.engine, self.recipe.base, self.stopped)
        reference = str(self.recipe.base.details["reference"])
        container = self._create(reference, online=self._installs(), labels=self._labels())
        try:
            for number, step in enumerate(self.recipe.of_files):
                if number:
                    self._read_again(container)
                self._apply(container, step)
            self._check_volumes(container)
            self._commit(container)
        except (ArchiveError, EOFError) as error:
            raise InfrastructureError(f"files of a donor are cut: {error}") from error
        finally:
            self.engine.remove(container)

    def ask(self, script: str, limit: float) -> str:
        """Run one script in a container that is thrown away; what it prints, "" where it fails."""
        container = self._create(str(self.recipe.base.details["reference"]), online=True)
        try:
            step = Step(script, {}, "question")
            self._put(container, step, network=True)
            self.engine.start(container)
            code = self._wait(container, limit)
            output = b"".join(self.engine.output(container, follow=False, stderr=False))
            return output.decode("utf-8", "replace") if code == 0 else ""
        except Untestable:
            return ""
        finally:
            self.engine.remove(container)

    def _installs(self) -> bool:
        """True where something must be had from an index."""
        steps = self.recipe.of_files
        return self.owner.swapping.way != "graft" or any(s["kind"] == "install" for s in steps)

    # -- steps -------------------------------------------------------------------------------------

    def _apply(self, container: str, step: Mapping[str, Any]) -> None:
        if step["kind"] == "install":
            part = step["component"]
            self._install(container, part["kind"], part["name"], step["version"])
            return
        donor = Candidate.from_json(step["donor"])
        components = components_of(step)
        swapping = self.owner.swapping
        installed = [c for c in components if swapping.installs(c.kind, c.name, c.good)]
        self._graft(container, donor, [c for c in components if c not in installed])
        for component in installed:
            assert component.good is not None
            self._install(container, component.kind, component.name, component.good)

    def _graft(self, container: str, donor: Candidate, components: Sequence[Component]) -> None:
        if not components:
            return
        pair = self._pair(donor)
        theirs, plan = pair.good, graft.plan(pair, components)
        if plan.empty:
            return
        script = graft.removal(plan)
        if plan.removes_first:
            self._run(container, Step(script, {}, "removal of files"))
            script = ""
        if plan.changes_libraries:
            script += self._ldconfig()
        step = Step(script, {}, "graft")
        if script:
            self._check_shell()
        with self.owner.images.use(self.engine, donor, self.stopped) as image:
            source = self._create(str(donor.details["reference"]))
            try:
                # Each `put` takes the daemon long, so the script goes with the files.
                pieces = itertools.chain(
                    self._pieces(source, plan, theirs, image.size),
                    self._script(step) if script else (),
                )
                self.engine.put(container, "/", self._watched(graft.tar(pieces)))
            finally:
                self.engine.remove(source)
        if script:
            self._carry_out(container, step)

    def _pair(self, donor: Candidate) -> Pair:
        """The donor, and what the container holds by now."""
        pair = self.owner.images.pair(self.engine, donor, self.recipe.base, self.stopped)
        return pair if self._files is pair.bad else Pair(pair.good, self._now)

    @property
    def _now(self) -> Owned:
        assert self._files is not None
        return self._files

    def _pieces(self, source: str, plan: Graft, theirs: Owned, size: int) -> Iterator[Piece]:
        yield from graft.folders(plan, theirs.files)
        copier = Copier(plan)
        roots = graft.roots(theirs.files, plan.copy)
        if len(roots) * _EXPORTED_MEANWHILE > size or not all(map(_is_text, roots)):
            yield from copier.pieces(self.engine.export(source), "")
        else:
            for root in roots:
                yield from self._fetched(source, copier, root)
        for path in sorted(copier.missing):
            yield from self._fetched(source, copier, path)
        if copier.missing:
            lost = sorted(copier.missing)[0]
            raise InfrastructureError(f"/{lost} cannot be read from the image it should come from")
        for path, text in plan.write.items():
            yield _file(path, text.encode("utf-8", "surrogateescape"), 0o644)

    def _fetched(self, source: str, copier: Copier, path: str) -> Iterator[Piece]:
        with contextlib.suppress(FileNotFoundError):
            stream = self.engine.get(source, f"/{path}")
            yield from copier.pieces(stream, posixpath.dirname(path))

    def _ldconfig(self) -> str:
        entries = self._now.files
        there = [path for path in _LDCONFIG if entries.target(path) in entries.entries]
        return f"/{there[0]}\n" if there else ""

    def _install(self, container: str, kind: Any, name: str, version: str) -> None:
        step = installing.step(kind, name, version, self.owner.swapping)
        by_pip = kind == "distribution" and not step.files
        if by_pip and "pip" not in {*self._now.distributions, *self._now.by_package}:
            self._install_wheel(container, name, version)
            return
        try:
            self._run(container, step, network=True)
        except InfrastructureError:
            if not by_pip:
                raise
            self._install_wheel(container, name, version)  # containers may have no way out

    def _install_wheel(self, container: str, name: str, version: str) -> None:
        """Have this machine's pip fetch the wheel, and put its files into the container."""
        target = self.owner.target(self.engine, self._now)
        with tempfile.TemporaryDirectory(prefix="stackbisect-wheel-") as folder:
            wheel = self._download(name, version, target, Path(folder))
            try:
                plan = wheel_graft.plan(self._now, name, wheel)
            except wheel_graft.WheelError as error:
                raise Untestable(str(error)) from error
            self.engine.put(container, "/", self._watched(graft.tar(plan.pieces())))
        if plan.graft.remove or plan.graft.remove_folders:
            script = graft.removal(plan.graft)
            self._run(container, Step(script, {}, f"removal of the {name} that was there"))

    def _download(self, name: str, version: str, target: Sequence[str], folder: Path) -> Path:
        words = ["download", "--no-deps", "--only-binary=:all:", "--dest", str(folder), *target]
        call = Base(sys.executable, "").pip(*words, f"{name}=={version}")
        done = subprocess.run(
            call, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        step = Step("", {}, f"pip download {name}=={version}")
        self._keep(step, done.stdout)
        found = sorted(folder.glob("*.whl"))
        if done.returncode or not found:
            raise self._failure(step, done.returncode, done.stdout, network=True)
        return found[0]

    def _watched(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            if self.stopped():
                raise Stopped
            yield chunk

    # -- the container -----------------------------------------------------------------------------

    def _labels(self) -> dict[str, str]:
        """The labels of the image to be: those of its container."""
        start = {
            "entrypoint": list(self.base.entrypoint),
            "user": self.base.user,
            "workdir": self.base.workdir,
        }
        return {
            DERIVED_LABEL: self.reference.rpartition(":")[2],
            START_LABEL: json.dumps(start, sort_keys=True),
        }

    def _create(
        self, reference: str, *, online: bool = False, labels: Mapping[str, str] | None = None
    ) -> str:
        if self.stopped():
            raise Stopped
        name = f"stackbisect-{secrets.token_hex(8)}"
        network = (self.owner.setup.options.network or "default") if online else "none"
        settings: dict[str, Any] = {
            "Name": name,
            "Entrypoint": [""],
            "Cmd": [_SHELL, f"{FOLDER}/step"],
            "WorkingDir": "/",
            "Labels": {**self.owner.setup.labels(), **(labels or {})},
            "Healthcheck": {"Test": ["NONE"]},
            "HostConfig": {
                "NetworkMode": network,
                "LogConfig": {"Type": "json-file", "Config": {}},
            },
        }
        if self.base.user not in ("", "0", "root"):
            settings["User"] = "0"
        if self.base.variable(_DEVICES) is not None and not self.engine.is_podman:
            # Else NVIDIA's runtime mounts the driver, and empty files of it stay in the image,
            # which keeps its own value.
            settings["Env"] = [f"{_DEVICES}=void"]
        try:
            return self.engine.create(reference, settings)
        except InfrastructureError:
            # The daemon may have made it and only its answer been lost.
            with contextlib.suppress(InfrastructureError):
                self.engine.remove(name)
            raise

    def _run(self, container: str, step: Step, *, network: bool = False) -> None:
        """Run one script in the container, as root. Raises Untestable with its last output."""
        self._check_shell()
        self._put(container, step, network)
        self._carry_out(container, step, network=network)

    def _carry_out(self, container: str, step: Step, *, network: bool = False) -> None:
        """Run the script that was put there."""
        before = len(self._output(container))
        self.engine.start(container)
        code = self._wait(container)
        output = self._output(container)
        text = output[before:].decode("utf-8", "replace")
        self._keep(step, text)
        if code != 0:
            raise self._failure(step, code, text, network)

    def _put(self, container: str, step: Step, network: bool) -> None:
        self.engine.put(container, "/", graft.tar(self._script(step, network)))

    def _script(self, step: Step, network: bool = False) -> list[Piece]:
        head = ["set -e", "cd /"]
        files = dict(step.files)
        if network:
            head.append(f". {FOLDER}/environment")
            files["environment"] = self._environment()
        script = "\n".join([*head, step.script, f"rm -rf {FOLDER}", ""])
        files["step"] = script.encode("utf-8", "surrogateescape")
        return [_folder(_OWN), *(_file(f"{_OWN}/{n}", c, 0o700) for n, c in files.items())]

    def _environment(self) -> bytes:
        """The user's own variables (an index's address, a proxy), which no image may keep."""
        given = self.owner.setup.env.items()
        return "".join(f"export {n}={shlex.quote(v)}\n" for n, v in given).encode()

    def _wait(self, container: str, limit: float = float("inf")) -> int:
        pause = 0.02
        deadline = time.monotonic() + limit
        while True:
            ending = self.engine.ending(container)
            if ending is not None:
                if ending.error:
                    raise Untestable(f"the container did not start: {ending.error}")
                return ending.exit_code
            if self.stopped():
                raise Stopped
            if time.monotonic() > deadline:
                raise Untestable(f"no end within {limit:g} s")
            time.sleep(pause)
            pause = min(pause * 1.5, 0.25)

    def _output(self, container: str) -> bytes:
        return b"".join(self.engine.output(container, follow=False))

    def _keep(self, step: Step, text: str) -> None:
        if self.log is None:
            return
        for secret in self.owner.setup.secrets:
            text = text.replace(secret, "<hidden>")
        with self.log.with_name("install.log").open("a", encoding="utf-8") as out:
            out.write(f"== {step.what}\n{text}")

    def _failure(self, step: Step, code: int, text: str, network: bool) -> Exception:
        for secret in self.owner.setup.secrets:
            text = text.replace(secret, "<hidden>")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        end = " / ".join(lines[-_LAST_LINES:]) or "no output"
        trouble = _trouble(text) if network else ""
        if "No space left on device" in text or trouble:
            return InfrastructureError(f"{step.what}: {trouble or 'no space left on device'}")
        return Untestable(f"{step.what} failed with code {code}: {end}")

    def _check_shell(self) -> None:
        files = self._now.files
        if files.target(_SHELL) not in files.entries:
            raise Untestable(f"expected {_SHELL} in the image, to remove files there; found none")

    def _check_volumes(self, container: str) -> None:
        """What lies in a volume of the image's own is not kept when an image is made."""
        volumes = self.engine.config(str(self.recipe.base.details["reference"])).get("Volumes")
        changed = self.engine.changes(container) if volumes else []
        for volume in volumes or ():
            if any(path.startswith(f"{volume.rstrip('/')}/") for path in changed):
                raise Untestable(f"the image declares {volume} a volume: nothing in it can be kept")

    def _read_again(self, container: str) -> None:
        files = image_files.read(self.engine.export(container))
        self._files = ownership.read(files, self.base.env)

    def _commit(self, container: str) -> None:
        if self.stopped():
            raise Stopped
        config = self.engine.config(str(self.recipe.base.details["reference"]))
        kept = {name: config[name] for name in _KEPT if config.get(name)}
        if not kept.get("Entrypoint") and not kept.get("Cmd"):
            kept["Cmd"] = [_SHELL]  # else it would be the build's
        own = {BISECTION_LABEL: self.owner.setup.bisection, **self._labels()}
        kept["Labels"] = {**(config.get("Labels") or {}), **own}
        repository, _, tag = self.reference.rpartition(":")
        self.engine.commit(container, repository, tag, kept)


def _is_text(path: str) -> bool:
    """False for a name that is not UTF-8, which no request can hold."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _trouble(text: str) -> str:
    """The line that blames index, mirror or network; "" where none does.

    That an index has no version at all is no trouble here: a private build is on none.
    """
    found = Base.trouble(text)
    if "from versions: none" in found:
        return ""
    if found:
        return found
    mirror = ("Temporary failure resolving", "Could not connect to", "Unable to connect to")
    return next((ln.strip() for ln in text.splitlines() if any(m in ln for m in mirror)), "")


def _file(path: str, content: bytes, mode: int) -> Piece:
    info = tarfile.TarInfo(path)
    info.size, info.mode, info.mtime = len(content), mode, int(time.time())
    return info, io.BytesIO(content)


def _folder(path: str) -> Piece:
    info = tarfile.TarInfo(path)
    info.type, info.mode = tarfile.DIRTYPE, 0o700
    return info, None
