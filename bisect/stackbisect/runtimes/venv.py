"""Tries versions of a Python package, each in a fresh virtual environment built from the base.

An environment is made by the base interpreter's own `venv` and pip: the package at the candidate's
version and the extra requirements, in one call, so that one resolver sees all of it. It is kept for
later probes of the same (interpreter, requirements), never changed, and never made from another
one: installing D, then A, then C need not give the C that installing C alone gives.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stackbisect.probe import Candidate, Evidence, InfrastructureError, Job, ProbeResult
from stackbisect.runtimes import (
    caches,
    container_options,
    harvest,
    loaded,
    loaded_hook,
    process,
)
from stackbisect.runtimes.base_python import Base
from stackbisect.spaces.image_contents import normalised

# Written last: an environment without it was left half-made by a kill.
_COMPLETE = "stackbisect.json"
_HOOK = "_stackbisect_loaded"
_PIP_LINES = 12

# Variables that change what numerical libraries do: kept, and compared when a bisection goes on.
_NUMERIC = re.compile(
    r"(OMP|KMP|MKL|OPENBLAS|BLIS|GOTO|VECLIB|NUMEXPR|NUMBA|CUDA|CUBLAS|CUDNN|NCCL|NVIDIA|TORCH|"
    r"PYTORCH|TRITON|XLA|TF|JAX|HIP|ROCR?|MIOPEN|HSA|GLIBC)_.*|PYTHONHASHSEED|PYTHONPATH|"
    r"LD_LIBRARY_PATH|LD_PRELOAD|MALLOC_.*"
)


@dataclass(frozen=True)
class Environment:
    """A finished environment. `artifacts`: what pip installed, name → version and hash."""

    folder: Path
    distributions: Mapping[str, str]
    modules: Mapping[str, tuple[str, ...]]
    artifacts: Mapping[str, str]

    @property
    def bin(self) -> Path:
        """Where its programs are."""
        return self.folder / "bin"


class _Refused(Exception):
    """pip could not install the candidate; the text is pip's own."""


class VenvRuntime:
    """Probes in virtual environments on this machine (the Runtime of `probe.py`).

    `folder` holds the environments; `extras` are requirements installed next to the package;
    `secret` names variables whose values no log may hold.
    """

    name = "venv"

    def __init__(
        self,
        base: Base,
        package: str,
        extras: Sequence[str],
        folder: Path,
        environ: Mapping[str, str] = os.environ,
        *,
        secret: frozenset[str] = frozenset(),
    ) -> None:
        self._base = base
        self._package = package
        self._extras = tuple(extras)
        self._folder = Path(os.path.abspath(folder))
        self._environ = dict(environ)
        self._secret = secret

    def describe(self) -> dict[str, Any]:
        """Interpreter, this machine, and the variables that bear on numbers."""
        return {
            "runtime": self.name,
            "python": self._base.python,
            "python_version": self._base.version,
            "host": _host(),
            "environment": {
                name: value
                for name, value in sorted(self._environ.items())
                if _NUMERIC.fullmatch(name)
                and not name.endswith("_CACHE_DIR")
                and not container_options.is_secret_name(name)
            },
        }

    def run(self, candidate: Candidate, job: Job) -> ProbeResult:
        """Install the candidate where it is not yet, and run the job's command in it."""
        started = time.time()
        try:
            found = self._environment(candidate, job.log)
            return self._run_in(found, candidate, job, started)
        except _Refused as refused:
            return _result("untestable", None, str(refused), started, job)
        except (InfrastructureError, OSError) as error:
            return _result("infrastructure", None, str(error), started, job)

    def difference(self, good: Candidate, bad: Candidate) -> dict[str, dict[str, list[str | None]]]:
        """Which distributions differ between two environments."""
        left, right = (self._known(each) for each in (good, bad))
        names = sorted({*left, *right})
        differing = {
            name: [left.get(name), right.get(name)]
            for name in names
            if left.get(name) != right.get(name)
        }
        return {"distributions": differing, "packages": {}, "environment": {}}

    def close(self) -> None:
        """Nothing is held between probes."""

    def clean(self) -> int:
        """Remove the environments; return their number."""
        if not self._folder.is_dir():
            return 0
        found = list(self._folder.iterdir())
        for each in found:
            shutil.rmtree(each, ignore_errors=True)
        return len(found)

    def _known(self, candidate: Candidate) -> Mapping[str, str]:
        found = _finished(self._place(candidate))
        return {} if found is None else found.distributions

    def _requirements(self, candidate: Candidate) -> list[str]:
        return [f"{self._package}=={candidate.id}", *self._extras]

    def _place(self, candidate: Candidate) -> Path:
        asked = [self._base.python, self._base.version, *self._requirements(candidate)]
        digest = hashlib.sha256(json.dumps([*asked, *self._base.index_args]).encode()).hexdigest()
        label = re.sub(r"[^A-Za-z0-9.]+", "-", f"{self._package}-{candidate.label}")
        return self._folder / f"{label}-{digest[:12]}"

    def _environment(self, candidate: Candidate, log: Path) -> Environment:
        place = self._place(candidate)
        finished = _finished(place)
        if finished is not None:
            return finished
        shutil.rmtree(place, ignore_errors=True)
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            return self._build(place, self._requirements(candidate), log)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise

    def _build(self, place: Path, requirements: list[str], log: Path) -> Environment:
        made = self._call([self._base.python, "-m", "venv", "--without-pip", str(place)], log)
        if made.returncode:
            raise InfrastructureError(
                f"{self._base.python} -m venv failed: {_last_lines(made.stdout)}"
            )
        report = place / "pip-report.json"
        python = place / "bin" / "python"
        installed = self._call(
            self._base.install(python, requirements, report),
            log,
        )
        if installed.returncode:
            text = _last_lines(installed.stdout)
            trouble = self._base.trouble(installed.stdout)
            if trouble:
                raise InfrastructureError(f"pip: {trouble}; resume when it is mended")
            raise _Refused(f"pip could not install {' '.join(requirements)}: {text}")
        described = self._call([str(python), "-I", "-c", _DESCRIBE], log, keep=False)
        if described.returncode:
            raise _Refused(f"its Python does not start: {_last_lines(described.stdout)}")
        found = json.loads(described.stdout.splitlines()[-1])
        site = Path(found["site"])
        shutil.copyfile(loaded_hook.__file__, site / f"{_HOOK}.py")
        (site / f"{_HOOK}.pth").write_text(f"import {_HOOK}; {_HOOK}.begin()\n")
        fields = {
            "distributions": found["distributions"],
            "modules": found["modules"],
            "artifacts": _artifacts(report),
        }
        draft = place / f"{_COMPLETE}.new"
        draft.write_text(json.dumps(fields, indent=1) + "\n")
        draft.replace(place / _COMPLETE)
        finished = _finished(place)
        assert finished is not None
        return finished

    def _call(
        self, argv: Sequence[str], log: Path, *, keep: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a step of an installation, also to its end when this program is killed."""
        stdout = log.with_name("install.out")
        whole = log.with_name("install.log")
        ended = process.run(
            argv,
            self._base.environ(self._environ),
            self._folder,
            log=whole,
            stdout=stdout,
            secrets=self._secrets(self._environ),
        )
        text = (whole if keep else stdout).read_text(errors="replace")
        return subprocess.CompletedProcess(list(argv), ended.code, text, "")

    def _run_in(
        self, found: Environment, candidate: Candidate, job: Job, started: float
    ) -> ProbeResult:
        told = job.scratch / "loaded"
        told.mkdir(parents=True, exist_ok=True)
        environ = self._command_environ(found, job, told)
        before = dict(_stamps(job))
        ended = process.run(
            job.command,
            environ,
            job.workdir,
            log=job.log,
            stdout=job.stdout,
            time_limit=job.time_limit,
            secrets=self._secrets(environ),
        )
        written = {name: path for name, path, stamp in _files(job) if before.get(name) != stamp}
        left = harvest.read(job.session, job.stdout, job.evidence, written)
        asked = _asked(found, self._package, candidate)
        seen = loaded.read(told)
        reason = _reason(ended, job, left) or (loaded.fault(asked, seen) if ended.code == 0 else "")
        return ProbeResult(
            status="untestable" if reason else "ran",
            exit_code=ended.code,
            reason=reason,
            evidence=left.evidence,
            facts={**left.facts, "python": self._base.version},
            loaded={
                **loaded.to_json(asked, seen),
                "distributions": dict(found.distributions),
                "artifacts": dict(found.artifacts),
            },
            started=started,
            ended=time.time(),
            log=str(job.log),
        )

    def _command_environ(self, found: Environment, job: Job, told: Path) -> dict[str, str]:
        environ = {**self._environ, **job.env}
        environ.pop("PYTHONHOME", None)
        hidden = environ.get("PYTHONPATH")
        inject = str(job.inside / "inject")
        environ.update(
            {
                "PATH": f"{found.bin}{os.pathsep}{environ.get('PATH', os.defpath)}",
                "VIRTUAL_ENV": str(found.folder),
                "PYTHONPATH": f"{inject}{os.pathsep}{hidden}" if hidden else inject,
                "PINNER_SESSION": str(job.session),
                "PINNER_MODE": "observe",
                "STACKBISECT_LOADED": str(told),
            }
        )
        folders = dict(caches.FOLDERS)
        folders.update({n: f for n, f in caches.FOLDERS_IF_SET.items() if n in environ})
        for name, folder in folders.items():
            if name not in job.env:
                environ[name] = str(job.scratch / folder)
                (job.scratch / folder).mkdir(parents=True, exist_ok=True)
        return environ

    def _secrets(self, environ: Mapping[str, str]) -> list[str]:
        return container_options.secret_values(environ, self._secret)


# Run in a finished environment: its distributions, and the modules each one brings.
_DESCRIBE = """
import importlib.metadata as m, json, re, sysconfig
dists, modules = {}, {}
for d in m.distributions():
    name = re.sub(r"[-_.]+", "-", d.metadata["Name"]).lower()
    dists[name] = d.version
    tops = set((d.read_text("top_level.txt") or "").split())
    for f in d.files or ():
        top = f.parts[0]
        if len(f.parts) > 1 and top.isidentifier() and f.suffix in (".py", ".so"):
            tops.add(top)
        elif len(f.parts) == 1 and f.suffix == ".py":
            tops.add(f.stem)
    modules[name] = sorted(tops)
print(json.dumps({"distributions": dists, "modules": modules,
                  "site": sysconfig.get_path("platlib")}))
"""


def _finished(place: Path) -> Environment | None:
    try:
        fields = json.loads((place / _COMPLETE).read_text())
    except (OSError, ValueError):
        return None
    return Environment(
        folder=place,
        distributions=fields["distributions"],
        modules={name: tuple(tops) for name, tops in fields["modules"].items()},
        artifacts=fields["artifacts"],
    )


def _artifacts(report: Path) -> dict[str, str]:
    """Name → hash of the file pip installed; "" for what has none (a folder, a repository)."""
    try:
        items = json.loads(report.read_text())["install"]
    except (OSError, ValueError, KeyError):
        return {}
    found = {}
    for item in items:
        archive = item.get("download_info", {}).get("archive_info", {})
        digest = archive.get("hashes", {}).get("sha256", "")
        found[normalised(item["metadata"]["name"])] = f"sha256:{digest}" if digest else ""
    return found


def _asked(found: Environment, package: str, candidate: Candidate) -> loaded.Asked:
    name = normalised(re.sub(r"\[.*\]", "", package))
    return loaded.Asked(
        package=package,
        version=candidate.id,
        installed=found.distributions.get(name, ""),
        modules=found.modules.get(name, ()),
        prefix=found.folder,
    )


def _reason(ended: process.Ended, job: Job, left: harvest.Harvest) -> str:
    if ended.timed_out:
        return f"the command did not end within {job.time_limit:g} s"
    if left.damage:
        return left.damage
    if left.faults and (ended.code != 0 or left.evidence.empty):
        return left.faults[0]
    return ""


def _result(status: Any, code: int | None, reason: str, started: float, job: Job) -> ProbeResult:
    return ProbeResult(
        status=status,
        exit_code=code,
        reason=reason,
        evidence=Evidence(),
        facts={},
        loaded={},
        started=started,
        ended=time.time(),
        log=str(job.log),
    )


def _files(job: Job) -> Iterator[tuple[str, Path, tuple[int, int, int]]]:
    """Files that match the evidence globs now: name, path, and what tells a new one."""
    for pattern in job.evidence.files:
        whole = pattern if os.path.isabs(pattern) else str(job.workdir / pattern)
        for path in _glob(whole):
            stamp = path.stat()
            name = os.path.relpath(path, job.workdir) if not os.path.isabs(pattern) else str(path)
            yield name, path, (stamp.st_mtime_ns, stamp.st_size, stamp.st_ino)


def _stamps(job: Job) -> Iterator[tuple[str, tuple[int, int, int]]]:
    for name, _, stamp in _files(job):
        yield name, stamp


def _glob(pattern: str) -> list[Path]:
    return sorted(Path(path) for path in glob.glob(pattern, recursive=True) if os.path.isfile(path))


def _last_lines(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(lines[-_PIP_LINES:])


def _host() -> dict[str, Any]:
    return {"machine": platform.machine(), "cpu": _cpu(), "gpus": _gpus()}


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
    match = re.search(r"^(?:model name|CPU part)\s*:\s*(.*)$", text, re.MULTILINE)
    return match[1].strip() if match else ""


def _gpus() -> list[str]:
    found = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        match = re.search(r"^Model:\s*(.*)$", path.read_text(), re.MULTILINE)
        found.append(match[1].strip() if match else path.parent.name)
    version = Path("/proc/driver/nvidia/version")
    if version.exists():
        match = re.search(r"Kernel Module[^\n]*?(\d+\.\d+[.\d]*)", version.read_text())
        found.append(f"driver {match[1]}" if match else "driver unknown")
    return found
