"""Makes and keeps virtual environments: of one package's version, and mixtures of two of them.

An environment is made by the base interpreter's own `venv` and pip: the package at the candidate's
version and the extra requirements, in one call, so that one resolver sees all of it. It is kept for
later probes, never changed, and never made from another one by installing over it: installing D,
then A, then C need not give the C that installing C alone gives.

A mixture is a new environment too. Each distribution's files come from the environment that had it
whole (`venv_graft`); only a version that neither has is installed by pip, without dependencies.
What stands there in the end is held against what the mixture asks for.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stackbisect.probe import Candidate, InfrastructureError
from stackbisect.runtimes import loaded_hook, process, venv_graft
from stackbisect.runtimes.base_python import Base
from stackbisect.runtimes.machine import Unfit
from stackbisect.runtimes.turns import Turns
from stackbisect.spaces import pins, versions
from stackbisect.spaces.components import DERIVED
from stackbisect.spaces.image_contents import normalised

# Written last: an environment without it was left half-made by a kill.
_COMPLETE = "stackbisect.json"
_HOOK = "_stackbisect_loaded"
_PIP_LINES = 12


class Refused(Unfit):
    """The environment cannot be made; the text is pip's own, or says what does not fit."""


@dataclass(frozen=True)
class Environment:
    """A finished environment.

    `distributions`: name → version; `modules`: the top-level modules each brings; `requires`: its
    Requires-Dist lines; `infos`: its .dist-info folder, relative; `artifacts`: what pip installed,
    name → hash ("" where it has none).
    """

    folder: Path
    distributions: Mapping[str, str]
    modules: Mapping[str, tuple[str, ...]]
    requires: Mapping[str, tuple[str, ...]]
    infos: Mapping[str, str]
    artifacts: Mapping[str, str]

    @property
    def bin(self) -> Path:
        """Where its programs are."""
        return self.folder / "bin"

    @property
    def pins(self) -> dict[str, tuple[str, ...]]:
        """What each distribution requires at one exact version."""
        return {name: pins.pinned(lines) for name, lines in self.requires.items()}

    def libraries(self, name: str) -> list[Path]:
        """The shared libraries among a distribution's files."""
        record = self.folder / self.infos[name] / "RECORD"
        try:
            lines = record.read_text(encoding="utf-8").splitlines()
        except OSError:
            return []
        paths = [line.rpartition(",")[0].rpartition(",")[0].strip('"') for line in lines]
        return [record.parents[1] / path for path in paths if re.search(r"\.so(\.|$)", path)]


@dataclass(frozen=True)
class Work:
    """Where the words of pip go (beside `log`), and what becomes true when work is to end."""

    log: Path
    stopped: Callable[[], bool] = lambda: False

    def go_on(self) -> None:
        """Raise process.Stopped where work is to end."""
        if self.stopped():
            raise process.Stopped("the program stops")


@dataclass(frozen=True)
class _Mixture:
    """Where each distribution comes from: an environment, or the index (a version)."""

    grafted: Mapping[str, Environment] = field(default_factory=dict)
    installed: Mapping[str, str] = field(default_factory=dict)

    @property
    def distributions(self) -> dict[str, str]:
        """What it is to consist of."""
        found = {name: donor.distributions[name] for name, donor in self.grafted.items()}
        return {**found, **self.installed}

    @property
    def artifacts(self) -> dict[str, str]:
        return {name: donor.artifacts.get(name, "") for name, donor in self.grafted.items()}

    def without(self, name: str) -> _Mixture:
        return _Mixture(
            {each: donor for each, donor in self.grafted.items() if each != name},
            {each: version for each, version in self.installed.items() if each != name},
        )


@dataclass(frozen=True)
class Environments:
    """The environments of one bisection, in `folder`. Any number of threads may ask at once.

    `secrets` are values that no log may hold.
    """

    base: Base
    package: str
    extras: tuple[str, ...]
    folder: Path
    environ: Mapping[str, str]
    secrets: Sequence[str] = ()
    _turns: Turns = field(default_factory=Turns, repr=False)

    def get(self, candidate: Candidate, work: Work) -> Environment:
        """The candidate's environment, made where it is not there yet.

        Raises Refused, InfrastructureError, process.Stopped and OSError.
        """
        place = self._place(candidate)
        with self._turns.alone(place.name, work.stopped):
            return _finished(place) or self._make(candidate, place, work)

    def known(self, candidate: Candidate) -> Environment | None:
        """The candidate's environment if it is finished."""
        return _finished(self._place(candidate))

    def clean(self) -> int:
        """Remove the environments; return their number."""
        if not self.folder.is_dir():
            return 0
        found = [each for each in self.folder.iterdir() if each.is_dir()]
        shutil.rmtree(self.folder, ignore_errors=True)
        return len(found)

    def _make(self, candidate: Candidate, place: Path, work: Work) -> Environment:
        mixture = self._mixture(candidate, work)
        shutil.rmtree(place, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            if mixture is None:
                return self._build(place, self._requirements(candidate), work)
            return self._mix(place, mixture, work)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise

    def _mixture(self, candidate: Candidate, work: Work) -> _Mixture | None:
        """What a derived candidate is made of; None where it is no mixture."""
        if DERIVED not in candidate.details:
            return None
        details = candidate.details[DERIVED]
        base = self.get(Candidate.from_json(details["base"]), work)
        found = _Mixture(dict.fromkeys(base.distributions, base))
        for step in details["steps"]:
            found = self._step(found, step, work)
        return found

    def _step(self, found: _Mixture, step: Mapping[str, Any], work: Work) -> _Mixture:
        if step["kind"] == "lock":  # of the session, not of the stack
            return found
        if step["kind"] == "install":
            name = _distribution(step["component"])
            installed = {**found.without(name).installed, name: str(step["version"])}
            return replace(found.without(name), installed=installed)
        if step["kind"] != "swap":
            raise Refused(f"no way to {step['kind']} in a virtual environment")
        donor = self.get(Candidate.from_json(step["donor"]), work)
        for component in step["components"]:
            name = _distribution(component)
            found = found.without(name)
            if component["good"] is None:
                continue
            if name not in donor.distributions:
                raise Refused(f"expected {name} in {donor.folder.name}, found none")
            found = replace(found, grafted={**found.grafted, name: donor})
        return found

    def _requirements(self, candidate: Candidate) -> list[str]:
        return [f"{self.package}=={candidate.id}", *self.extras]

    def _place(self, candidate: Candidate) -> Path:
        what = [candidate.id] if DERIVED in candidate.details else []
        what = [*what, *self.extras] if what else self._requirements(candidate)
        asked = [self.base.python, self.base.version, *what, *self.base.index_args]
        digest = hashlib.sha256(json.dumps(asked).encode()).hexdigest()
        label = re.sub(r"[^A-Za-z0-9.]+", "-", f"{self.package}-{candidate.label}")[:60]
        return self.folder / f"{label}-{digest[:12]}"

    # -- making ------------------------------------------------------------------------------------

    def _build(self, place: Path, requirements: list[str], work: Work) -> Environment:
        self._empty(place, work)
        report = place / "pip-report.json"
        self._install(place, requirements, report, work)
        return self._finish(place, _artifacts(report), work)

    def _mix(self, place: Path, mixture: _Mixture, work: Work) -> Environment:
        self._empty(place, work)
        for name, donor in sorted(mixture.grafted.items()):
            work.go_on()
            try:
                venv_graft.graft(name, donor.folder / donor.infos[name], donor.folder, place)
            except venv_graft.GraftError as error:
                raise Refused(str(error)) from error
        artifacts = mixture.artifacts
        if mixture.installed:
            pinned = [f"{name}=={version}" for name, version in sorted(mixture.installed.items())]
            report = place / "pip-report.json"
            self._install(place, ["--no-deps", *pinned], report, work)
            artifacts.update(_artifacts(report))
        found = self._finish(place, artifacts, work)
        _check(mixture.distributions, found.distributions)
        return found

    def _empty(self, place: Path, work: Work) -> None:
        made = self._call([self.base.python, "-m", "venv", "--without-pip", str(place)], work)
        if made.returncode:
            raise InfrastructureError(
                f"{self.base.python} -m venv failed: {_last_lines(made.stdout)}"
            )

    def _install(self, place: Path, requirements: list[str], report: Path, work: Work) -> None:
        python = place / "bin" / "python"
        installed = self._call(self.base.install(python, requirements, report), work)
        if not installed.returncode:
            return
        trouble = self.base.trouble(installed.stdout)
        if trouble:
            raise InfrastructureError(f"pip: {trouble}; resume when it is mended")
        text = _last_lines(installed.stdout)
        raise Refused(f"pip could not install {' '.join(requirements)}: {text}")

    def _finish(self, place: Path, artifacts: Mapping[str, str], work: Work) -> Environment:
        described = self._call(
            [str(place / "bin" / "python"), "-I", "-c", _DESCRIBE], work, keep=False
        )
        if described.returncode:
            raise Refused(f"its Python does not start: {_last_lines(described.stdout)}")
        found = json.loads(described.stdout.splitlines()[-1])
        site = Path(found.pop("site"))
        shutil.copyfile(loaded_hook.__file__, site / f"{_HOOK}.py")
        (site / f"{_HOOK}.pth").write_text(f"import {_HOOK}; {_HOOK}.begin()\n")
        draft = place / f"{_COMPLETE}.new"
        draft.write_text(json.dumps({**found, "artifacts": dict(artifacts)}, indent=1) + "\n")
        draft.replace(place / _COMPLETE)
        finished = _finished(place)
        assert finished is not None
        return finished

    def _call(
        self, argv: Sequence[str], work: Work, *, keep: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a step of an installation, also to its end when this program is killed."""
        stdout = work.log.with_name("install.out")
        whole = work.log.with_name("install.log")
        ended = process.run(
            argv,
            self.base.environ(self.environ),
            self.folder,
            log=whole,
            stdout=stdout,
            secrets=self.secrets,
            stopped=work.stopped,
        )
        text = (whole if keep else stdout).read_text(errors="replace")
        return subprocess.CompletedProcess(list(argv), ended.code, text, "")


# Run in a finished environment: its distributions, and the modules each one brings.
_DESCRIBE = """
import importlib.metadata as m, json, os, re, sys, sysconfig
dists, modules, requires, infos = {}, {}, {}, {}
for d in m.distributions():
    name = re.sub(r"[-_.]+", "-", d.metadata["Name"]).lower()
    if name in dists:
        continue
    dists[name] = d.version
    requires[name] = d.requires or []
    infos[name] = os.path.relpath(str(getattr(d, "_path", "")), sys.prefix)
    tops = set((d.read_text("top_level.txt") or "").split())
    for f in d.files or ():
        top = f.parts[0]
        if len(f.parts) > 1 and top.isidentifier() and f.suffix in (".py", ".so"):
            tops.add(top)
        elif len(f.parts) == 1 and f.suffix == ".py":
            tops.add(f.stem)
    modules[name] = sorted(tops)
print(json.dumps({"distributions": dists, "modules": modules, "requires": requires,
                  "infos": infos, "site": sysconfig.get_path("platlib")}))
"""


def _finished(place: Path) -> Environment | None:
    try:
        fields = json.loads((place / _COMPLETE).read_text())
        return Environment(
            folder=place,
            distributions=fields["distributions"],
            modules={name: tuple(tops) for name, tops in fields["modules"].items()},
            requires={name: tuple(lines) for name, lines in fields["requires"].items()},
            infos=fields["infos"],
            artifacts=fields["artifacts"],
        )
    except (OSError, ValueError, KeyError):
        return None


def _check(asked: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Raise Refused where the mixture is not what was asked for."""
    for name in sorted({*asked, *found}):
        wanted, there = asked.get(name), found.get(name)
        if wanted is None or there is None or not versions.same(there, wanted):
            raise Refused(f"asked for {name} {wanted or 'absent'}, found {there or 'absent'}")


def _distribution(component: Mapping[str, Any]) -> str:
    """The name of a distribution to swap; nothing else can be swapped here."""
    if component["kind"] != "distribution":
        raise Refused(
            f"a virtual environment has no {component['kind']} of its own to swap "
            f"({component['name']})"
        )
    return normalised(component["name"])


def _artifacts(report: Path) -> dict[str, str]:
    """Name → hash of the file pip installed; "" for what has none (a folder, a repository)."""
    try:
        items = json.loads(report.read_text())["install"]
    except (OSError, ValueError, KeyError):
        return {}
    return dict(_artifact(item) for item in items)


def _artifact(item: Mapping[str, Any]) -> tuple[str, str]:
    archive = item.get("download_info", {}).get("archive_info", {})
    digest = archive.get("hashes", {}).get("sha256", "")
    return normalised(item["metadata"]["name"]), f"sha256:{digest}" if digest else ""


def _last_lines(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(lines[-_PIP_LINES:])


def swapped(candidate: Candidate) -> Iterator[str]:
    """The distributions that a derived candidate's steps name and that are in it."""
    for step in candidate.details.get(DERIVED, {}).get("steps", ()):
        if step["kind"] == "install":
            yield normalised(step["component"]["name"])
        elif step["kind"] == "swap":
            yield from (
                normalised(each["name"])
                for each in step["components"]
                if each["kind"] == "distribution" and each["good"] is not None
            )
