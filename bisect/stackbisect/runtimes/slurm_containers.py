"""Tries images in Slurm jobs where pyxis is: srun starts the command in a container of enroot.

Image, mounts and variables are given as pyxis' own options (`srun --help` lists them). The image is
named by its tag: enroot 3 reads no digests. Variables of the host reach the container except where
the image has its own; what a probe needs is named in --container-env, which goes before those.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stackbisect.errors import UsageError
from stackbisect.probe import (
    Candidate,
    ContainerOptions,
    Job,
    ProbeResult,
)
from stackbisect.runtimes import container_options, here, host, host_probe
from stackbisect.runtimes.commits import underived
from stackbisect.runtimes.machine import Machine
from stackbisect.runtimes.whole import Whole
from stackbisect.spaces import reference

_TAKEN = frozenset(("mounts", "env", "read_only"))


def check(options: ContainerOptions, files: Sequence[str]) -> None:
    """Raise UsageError for container options, and evidence files, that pyxis has no way for."""
    for name in options.to_json():
        if name not in _TAKEN:
            option = {"ulimits": "ulimit", "devices": "device"}.get(name, name).replace("_", "-")
            raise UsageError(f"--{option} has no counterpart in pyxis; --sbatch-args may have")
    places = dict(_mounts(options))
    for pattern in files:
        if _outside(pattern, places) is None:
            raise UsageError(
                f"--evidence-file {pattern}: expected a path below a --mount; what is elsewhere in "
                "a container of pyxis is gone with it"
            )


class ContainerRuntime(Whole):
    """Probes in containers that srun starts (the inner runtime of `slurm`)."""

    name = "pyxis"
    no_components = "images in Slurm jobs cannot be taken apart; --runtime docker can"
    no_versions = "--runtime slurm knows no versions in images"

    def __init__(
        self,
        options: ContainerOptions,
        machine: Machine,
        environ: Mapping[str, str] = os.environ,
        *,
        secret: frozenset[str] = frozenset(),
    ) -> None:
        self._options = options
        self._machine = machine
        # Paths of this host's Python mean nothing in the image.
        self._environ = {n: value for n, value in environ.items() if n != "PYTHONPATH"}
        self._secret = secret

    def describe(self) -> dict[str, Any]:
        """The options; secrets hidden."""
        shown = tuple(container_options.hide_secret(text) for text in self._options.env)
        return {"runtime": self.name, "options": replace(self._options, env=shown).to_json()}

    def run(self, candidate: Candidate, job: Job) -> ProbeResult:
        """Try one candidate."""
        started = time.time()
        facts: dict[str, Any] = {"host": host.facts()}

        def work() -> ProbeResult:
            image = underived(candidate)
            facts["image"] = _named(image)
            return self._run(image, job, started, facts)

        return here.told(work, started, job, facts)

    def clean(self) -> int:
        """Nothing is left."""
        return 0

    def _run(
        self, image: Candidate, job: Job, started: float, facts: dict[str, Any]
    ) -> ProbeResult:
        given = {**job.env, **container_options.environment(self._options, self._environ)}
        hidden = given.get("PYTHONPATH") or _variable(image, "PYTHONPATH")
        if hidden is not None:
            given["PYTHONPATH"] = hidden
        _hide(job.session, hidden)
        places = dict(_mounts(self._options))
        files = [_outside(pattern, places) or pattern for pattern in job.evidence.files]
        moved = replace(job, env=given, evidence=replace(job.evidence, files=tuple(files)))
        # What `here.run` will set, by name.
        names = set(host_probe.environment({}, moved))
        command = self._command(image, job, names)
        secrets = container_options.secret_values({**self._environ, **given}, self._secret)
        return here.run(
            replace(moved, command=command),
            self._environ,
            secrets,
            started,
            facts,
            machine=self._machine,
            key=host_probe.key(image.id, job),
        )

    def _command(self, image: Candidate, job: Job, names: set[str]) -> tuple[str, ...]:
        probe = job.log.absolute().parent
        mounts = [f"{probe}:{probe}", f"{job.inside}:{job.inside}:ro"]
        for text in self._options.mounts:
            mount = container_options.mount(text)
            more = ":ro" if mount.get("ReadOnly") else ""
            mounts.append(f"{mount['Source']}:{mount['Target']}{more}")
        return (
            "srun",
            f"--container-image={_named(image)}",
            f"--container-mounts={','.join(mounts)}",
            f"--container-env={','.join(sorted(names))}",
            *(["--container-readonly"] if self._options.read_only else []),
            *job.command,
        )


def _named(image: Candidate) -> str:
    """HOST#NAME:TAG, as enroot has it."""
    found = reference.parse(str(image.details["reference"]).partition("@")[0])
    host = "" if found.address != found.host else f"{found.host}#"  # Docker Hub is the default
    return f"{host}{found.path}:{image.details['tags'][0]}"


def _variable(image: Candidate, name: str) -> str | None:
    """A variable of the image's own environment."""
    prefix = f"{name}="
    found = [text[len(prefix) :] for text in image.details["env"] if text.startswith(prefix)]
    return found[-1] if found else None


def _hide(session: Path, pythonpath: str | None) -> None:
    """Say in the session what PYTHONPATH the command would have had: not this host's."""
    file = session / "session.json"
    fields = json.loads(file.read_text(encoding="utf-8"))
    fields["hidden_pythonpath"] = pythonpath
    file.write_text(json.dumps(fields, indent=1), encoding="utf-8")


def _mounts(options: ContainerOptions) -> list[tuple[str, str]]:
    """Target and source of each mount. Raises UsageError for other kinds than bind."""
    found = []
    for text in options.mounts:
        mount = container_options.mount(text)
        if mount.get("Type") != "bind":
            raise UsageError(f"--mount {text}: pyxis mounts folders of the host only (type=bind)")
        found.append((str(mount["Target"]), str(mount["Source"])))
    return found


def _outside(pattern: str, places: Mapping[str, str]) -> str | None:
    """A path in the container as the host sees it; None where it is below no mount."""
    for target, source in places.items():
        if Path(pattern).is_relative_to(target):
            return str(Path(source) / Path(pattern).relative_to(target))
    return None
