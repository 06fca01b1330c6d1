"""Makes the runtime that a bisection asks for, from what its journal keeps."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from stackbisect import asked_components
from stackbisect.errors import UsageError
from stackbisect.probe import ContainerOptions, Runtime
from stackbisect.runtimes import container_options, pull_progress
from stackbisect.runtimes.base_python import Base, find_base
from stackbisect.runtimes.machine import Machine

if TYPE_CHECKING:
    from stackbisect.runtimes.slurm_commands import Commands

ENVIRONMENTS = "envs"
PROBES = "probes"
IMAGES = ".images"


class Cleanable(Runtime, Protocol):
    """A runtime that can remove what it left."""

    def clean(self) -> int:
        """Remove containers or environments of this bisection; return their number."""


def runtime(
    setup: Mapping[str, Any],
    folder: Path,
    environ: Mapping[str, str],
    tell: pull_progress.Tell = pull_progress.silent,
) -> Cleanable:
    """The runtime for a bisection in `folder`; `tell` is told how pulls go. Raises UsageError."""
    if "environment" not in setup:
        return _runtime(setup, folder, environ, tell)
    from stackbisect.runtimes.variables import VariablesRuntime
    from stackbisect.spaces.environment import Axis

    searched = Axis.from_json(setup["environment"]).names
    base = {name: value for name, value in environ.items() if name not in searched}
    return VariablesRuntime(_runtime(setup, folder, base, tell), environ)


def _runtime(
    setup: Mapping[str, Any], folder: Path, environ: Mapping[str, str], tell: pull_progress.Tell
) -> Cleanable:
    if "slurm" in setup:
        return _slurm(setup, folder, environ)
    if setup["runtime"] in _WITHOUT_CONTAINER:
        return _WITHOUT_CONTAINER[setup["runtime"]](setup, folder, environ, None)
    return _docker(setup, folder, environ, tell)


def command_env(setup: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """Variables to set for the command where the runtime does not do it itself."""
    if setup["runtime"] not in ("venv", "git", "local"):
        return {}
    try:
        return container_options.environment(
            ContainerOptions(env=tuple(setup.get("env", ()))), environ
        )
    except container_options.OptionError as error:
        raise UsageError(str(error)) from None


def base(setup: Mapping[str, Any], environ: Mapping[str, str]) -> Base:
    """The interpreter that environments are made from."""
    return find_base(setup["python"], setup["index_args"], environ)


def _venv(
    setup: Mapping[str, Any], folder: Path, environ: Mapping[str, str], machine: Machine | None
) -> Cleanable:
    from stackbisect.runtimes.venv import VenvRuntime

    return VenvRuntime(
        base(setup, environ),
        setup["package"],
        setup["with"],
        folder / ENVIRONMENTS,
        environ,
        secret=secret(setup),
        machine=machine,
    )


def secret(setup: Mapping[str, Any]) -> frozenset[str]:
    """The variables whose values must reach no log: a bare NAME is how one passes a secret."""
    axis = setup.get("environment", {})
    texts = [*setup.get("env", ()), *axis.get("good", ()), *axis.get("bad", ())]
    return frozenset(text for text in texts if "=" not in text)


def _git(
    setup: Mapping[str, Any], folder: Path, environ: Mapping[str, str], machine: Machine | None
) -> Cleanable:
    from stackbisect.runtimes.commits import CommitRuntime
    from stackbisect.spaces.commits import Repository

    return CommitRuntime(
        Repository(setup["git"]),
        folder,
        setup["build"],
        environ,
        budget=setup["build_budget"],
        secret=secret(setup),
        machine=machine,
    )


def _local(
    setup: Mapping[str, Any], folder: Path, environ: Mapping[str, str], machine: Machine | None
) -> Cleanable:
    from stackbisect.runtimes.local import LocalRuntime

    return LocalRuntime(setup["prepare"], folder, environ, secret=secret(setup), machine=machine)


_WITHOUT_CONTAINER = {"git": _git, "local": _local, "venv": _venv}


def _slurm(setup: Mapping[str, Any], folder: Path, environ: Mapping[str, str]) -> Cleanable:
    from stackbisect.runtimes.slurm import SlurmRuntime
    from stackbisect.runtimes.slurm_batch import Batch
    from stackbisect.runtimes.slurm_commands import Commands

    commands = Commands(environ)
    commands.check()
    arguments = setup["slurm"]["arguments"]
    batch = Batch(commands, f"stackbisect.{_label(folder)}", folder / PROBES, arguments, environ)
    if setup["runtime"] == "docker":
        return SlurmRuntime(
            _pyxis(setup, environ, commands, batch), commands, batch, arguments, lasting=False
        )
    inner = _WITHOUT_CONTAINER[setup["runtime"]](setup, folder, environ, batch)
    # A checkout is removed when a program that was killed is taken up again.
    return SlurmRuntime(inner, commands, batch, arguments, lasting=setup["runtime"] != "git")


def _pyxis(
    setup: Mapping[str, Any], environ: Mapping[str, str], commands: Commands, machine: Machine
) -> Cleanable:
    from stackbisect.runtimes.slurm_containers import ContainerRuntime

    if not commands.containers():
        raise UsageError(
            "--image with --runtime slurm needs pyxis, and `srun --help` shows no "
            "--container-image; --package, --git and --candidates need none"
        )
    options = container_options_of(setup)
    bare = frozenset(text for text in options.env if "=" not in text)
    return ContainerRuntime(options, machine, environ, secret=bare)


def _docker(
    setup: Mapping[str, Any], folder: Path, environ: Mapping[str, str], tell: pull_progress.Tell
) -> Cleanable:
    try:
        from stackbisect.runtimes import podman
        from stackbisect.runtimes.docker import DockerRuntime
        from stackbisect.runtimes.docker_engine import Engine
    except ImportError as error:
        raise UsageError(
            f"containers need the Docker SDK ({error}); pip install 'pinner-stackbisect[bisect]'"
        ) from None
    try:
        return DockerRuntime(
            container_options_of(setup),
            _label(folder),
            transfer=setup["transfer"],
            image_budget=setup["image_budget"],
            folder=folder.parent / IMAGES,
            environ=environ,
            tell=tell,
            connect=podman.connect if setup.get("podman") else Engine.connect,
            swapping=asked_components.swapping_of(setup),
            files=bool(setup.get("files")),
            only=asked_components.only(setup),
        )
    except container_options.OptionError as error:
        raise UsageError(str(error)) from None


def container_options_of(setup: Mapping[str, Any]) -> ContainerOptions:
    """The inverse of `ContainerOptions.to_json`."""
    found: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in setup["options"].items()
    }
    return ContainerOptions(**found)


def _label(folder: Path) -> str:
    """What containers of this bisection are labelled with: no other folder's may be swept."""
    place = str(folder.absolute())
    return f"{folder.name}-{hashlib.sha256(place.encode()).hexdigest()[:12]}"
