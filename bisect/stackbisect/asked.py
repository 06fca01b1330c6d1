"""Reads what was asked for on the command line into what a bisection's journal keeps."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pinner.launch.taps import read_taps
from stackbisect import asked_components, asked_here, asked_slurm
from stackbisect.errors import UsageError
from stackbisect.journal import Header
from stackbisect.probe import ContainerOptions, EvidenceOptions
from stackbisect.runtimes import base_python, choose, container_options, slurm_containers
from stackbisect.spaces import window

Tell = Callable[[int, int], None]

_TAG_OPTIONS = ("tags", "order", "list", "platform", "insecure_registry")
_CONTAINER_OPTIONS = (
    *("mount", "shm_size", "ipc", "ulimit", "user", "device", "gpus", "network", "read_only"),
    *("entrypoint", "transfer", "image_budget"),
    *asked_components.OPTIONS,
)
_HERE_OPTIONS = (*asked_here.GIT_OPTIONS, *asked_here.LOCAL_OPTIONS)
_DEFAULTS = {"order": "version", "transfer": "auto", "swap": asked_components.DEFAULT}


def need_command(arguments: argparse.Namespace) -> None:
    """Raise UsageError where there is nothing to try."""
    if not arguments.command:
        raise UsageError("expected the command to try after `--`, found none")


def setup(arguments: argparse.Namespace, environ: Mapping[str, str]) -> dict[str, Any]:
    """What it takes to make the runtime again; nothing secret may be in it."""
    _refuse_secrets(arguments.env)
    evidence(arguments)
    seconds(arguments.time_limit)
    slurm = asked_slurm.setup(arguments)
    asked_here.complete(arguments)
    search = {**_search(arguments), **asked_here.axis_setup(arguments, environ), **slurm}
    here = asked_here.wanted(arguments)
    if here is not None:
        return {**_here(arguments, here), **search}
    if not arguments.image and not arguments.package:
        raise UsageError(
            "expected --image (container tags), --package (versions in --runtime venv), --git "
            "(commits) or --candidates (your own), found none of them"
        )
    taps = [dict(tap) for tap in read_taps(arguments.tap)]
    if arguments.runtime == "venv" or arguments.package:
        _need(
            arguments,
            "venv",
            ("package",),
            ("image", *_TAG_OPTIONS, *_CONTAINER_OPTIONS, *_HERE_OPTIONS),
        )
        setup = {
            "runtime": "venv",
            "package": arguments.package,
            "with": list(arguments.extras),
            "python": arguments.python,
            "index_args": shlex.split(arguments.index_args),
            "pre": arguments.pre,
            "env": list(arguments.env),
            "taps": taps,
            **search,
        }
        base_python.refuse_credentials([*setup["with"], *setup["index_args"]])
        return setup
    _need(
        arguments,
        "docker",
        ("image",),
        ("package", "extras", "index_args", "pre", *_HERE_OPTIONS),
    )
    if arguments.tags is not None:
        _check_expression("--tags", arguments.tags)
    options = _container_options(arguments)
    container_options.host_config(options)
    container_options.environment(options, environ)
    _refuse_shared_evidence(arguments, options)
    if slurm:
        slurm_containers.check(options, arguments.evidence_file)
    podman = arguments.runtime == "podman"
    if podman:
        _refuse_what_podman_passes_over(arguments, options)
    return {
        "runtime": "docker",
        "image": arguments.image,
        "platform": arguments.platform,
        "insecure": arguments.insecure_registry,
        "options": options.to_json(),
        "transfer": arguments.transfer,
        **({"podman": True} if podman else {}),
        "image_budget": None
        if arguments.image_budget is None
        else container_options.size("--image-budget", arguments.image_budget),
        "taps": taps,
        **asked_components.setup(arguments),
        **search,
    }


def _here(arguments: argparse.Namespace, runtime: str) -> dict[str, Any]:
    """The same for commits and candidates of the user's own."""
    lists = () if runtime == "local" else ("list",)
    tags = tuple(each for each in _TAG_OPTIONS if each != "list")
    versions = ("package", "extras", "index_args", "pre")
    _need(arguments, runtime, (), ("image", *lists, *tags, *versions, *_CONTAINER_OPTIONS))
    taps = [dict(tap) for tap in read_taps(arguments.tap)]
    return {**asked_here.setup(arguments, runtime), "taps": taps}


def jobs(arguments: argparse.Namespace) -> int | None:
    """How many probes may be under way at once; None where nothing was said. Raises UsageError."""
    found: int | None = getattr(arguments, "jobs", None)
    if found is not None and found < 1:
        raise UsageError(f"--jobs: expected 1 or more, found {found}")
    return found


def _refuse_shared_evidence(arguments: argparse.Namespace, options: ContainerOptions) -> None:
    """Raise UsageError where two containers would write evidence into one folder of this host."""
    if (jobs(arguments) or 1) == 1:
        return
    mounts = container_options.host_config(options)["Mounts"]
    shared = [mount["Target"] for mount in mounts if not mount.get("ReadOnly")]
    for pattern in arguments.evidence_file:
        if any(Path(pattern).is_relative_to(target) for target in shared):
            raise UsageError(
                f"--evidence-file {pattern} lies in a mount that all probes write to: with --jobs "
                "above 1 nobody could tell whose file it is; write it elsewhere in the container"
            )


def _refuse_what_podman_passes_over(
    arguments: argparse.Namespace, options: ContainerOptions
) -> None:
    """Raise UsageError for what Podman's Docker-compatible socket takes no notice of (4.3)."""
    asked = container_options.host_config(options)
    if "DeviceRequests" in asked:
        raise UsageError(
            f"{'--gpus' if options.gpus else '--device'}: Podman takes no notice of requests for "
            "GPUs over its socket; where NVIDIA's OCI hook is installed, "
            "--env NVIDIA_VISIBLE_DEVICES=all asks it for them"
        )
    targets = [mount["Target"] for mount in asked["Mounts"]]
    for pattern in arguments.evidence_file:
        if any(Path(pattern).is_relative_to(target) for target in targets):
            raise UsageError(
                f"--evidence-file {pattern} lies below a mount, and Podman copies nothing from "
                "there; write it elsewhere in the container"
            )


def _search(arguments: argparse.Namespace) -> dict[str, Any]:
    """How it is searched; what was not asked for is left out."""
    window = arguments.all_transitions
    if window is not None and window < 1:
        raise UsageError(f"--all-transitions: expected 1 or more, found {window}")
    if arguments.noisy and window is not None:
        raise UsageError("--noisy looks for one change; leave --all-transitions out")
    if arguments.noisy and not arguments.good:
        raise UsageError("--noisy: expected --good, found none: it counts good bits and others")
    return {
        "depth": arguments.depth,
        "jobs": jobs(arguments) or 1,
        **({"noisy": True} if arguments.noisy else {}),
        **({} if window is None else {"all_transitions": window}),
        **({} if arguments.good else {"no_good_end": True}),
    }


def _need(
    arguments: argparse.Namespace, runtime: str, needed: Sequence[str], other: Sequence[str]
) -> None:
    for name in needed:
        if not getattr(arguments, name):
            raise UsageError(f"--runtime {runtime}: expected --{name}, found none")
    for name in other:
        if getattr(arguments, name) not in (None, False, "", [], _DEFAULTS.get(name)):
            option = {"extras": "with"}.get(name, name.replace("_", "-"))
            raise UsageError(f"--{option} does not go with --runtime {runtime}")


def _refuse_secrets(texts: Sequence[str]) -> None:
    for text in texts:
        name, given, _ = text.partition("=")
        if given and (
            container_options.is_secret_name(name) or container_options.hide_secret(text) != text
        ):
            raise UsageError(
                f"--env {name}=...: the value would be kept in the journal; "
                f"export {name} and write --env {name}"
            )


def _container_options(arguments: argparse.Namespace) -> ContainerOptions:
    return ContainerOptions(
        mounts=tuple(arguments.mount),
        shm_size=arguments.shm_size,
        ipc=arguments.ipc,
        ulimits=tuple(arguments.ulimit),
        user=arguments.user,
        devices=tuple(arguments.device),
        gpus=arguments.gpus,
        network=arguments.network,
        env=tuple(arguments.env),
        read_only=arguments.read_only,
        entrypoint=arguments.entrypoint,
    )


def space(
    arguments: argparse.Namespace, setup: dict[str, Any], environ: Mapping[str, str], tell: Tell
) -> window.Space:
    """The candidates. For versions, `setup` gets the interpreter's own path."""
    return asked_here.with_variables(_space(arguments, setup, environ, tell), setup)


def _space(
    arguments: argparse.Namespace, setup: dict[str, Any], environ: Mapping[str, str], tell: Tell
) -> window.Space:
    if setup["runtime"] in ("git", "local"):
        return asked_here.space(arguments, setup)
    if setup["runtime"] == "venv":
        return _versions(arguments, setup, environ)
    return _tags(arguments, setup, environ, tell)


def _versions(
    arguments: argparse.Namespace, setup: dict[str, Any], environ: Mapping[str, str]
) -> window.Space:
    from stackbisect.spaces import index

    base = choose.base(setup, environ)
    setup["python"] = base.python
    return index.space(
        base,
        setup["package"],
        arguments.good,
        arguments.bad,
        pre=setup["pre"],
        environ=environ,
    )


def _tags(
    arguments: argparse.Namespace, setup: dict[str, Any], environ: Mapping[str, str], tell: Tell
) -> window.Space:
    try:
        from stackbisect.spaces import docker_login, reference, registry, tags
    except ImportError as error:
        raise UsageError(
            f"tags need a registry client ({error}); pip install 'pinner-stackbisect[bisect]'"
        ) from None
    repository = reference.parse(setup["image"])
    listed = tags.read_list(Path(arguments.list)) if arguments.list else None
    wanted = tags.Wanted(
        good=arguments.good,
        bad=arguments.bad,
        pattern=arguments.tags,
        order=arguments.order,
        listed=listed,
        platform=setup["platform"] or "",
    )
    client = registry.Registry(
        repository,
        lambda: docker_login.find(repository.login_key, environ),
        insecure=setup["insecure"],
    )
    try:
        return tags.space(client, repository, wanted, tell)
    finally:
        client.close()


def header(
    arguments: argparse.Namespace,
    *,
    setup: Mapping[str, Any],
    found: window.Space,
    described: Mapping[str, Any],
    name: str,
    workdir: Path,
) -> Header:
    """What the bisection is about, as its journal keeps it."""
    words = [word for word in arguments.words[1:] if word != "--fresh"]
    words = asked_here.fixed(words, setup, found)
    named = [] if arguments.name else ["--name", name]
    again = ("stackbisect", "run", "--fresh", *named, *words, "--", *arguments.command)
    return Header(
        command=tuple(arguments.command),
        workdir=str(workdir),
        verdict=arguments.verdict,
        evidence=evidence(arguments),
        time_limit=seconds(arguments.time_limit),
        candidates=found.candidates,
        setup=dict(setup),
        runtime=dict(described),
        excluded=found.excluded,
        notes=found.notes,
        again=again,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


def default_name(arguments: argparse.Namespace) -> str:
    """A name that says what is searched."""
    what = asked_here.name(arguments) or arguments.package or arguments.image
    whole = f"{what.rpartition('/')[2]}-{arguments.good or 'back-from'}-{arguments.bad}"
    return re.sub(r"[^A-Za-z0-9._-]+", "-", whole).strip("-.")


def evidence(arguments: argparse.Namespace) -> EvidenceOptions:
    """The evidence asked for. Raises UsageError."""
    found = EvidenceOptions(tuple(arguments.evidence_file), tuple(arguments.evidence_stdout))
    for expression in found.stdout:
        _check_expression("--evidence-stdout", expression)
    return found


def _check_expression(option: str, expression: str) -> None:
    try:
        re.compile(expression)
    except re.error as error:
        raise UsageError(
            f"{option}: expected a regular expression, found {expression!r}: {error}"
        ) from None


def seconds(text: str | None) -> float | None:
    """A time limit in seconds. Raises UsageError."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if match is None or float(match[1]) == 0:
        raise UsageError(f"--time-limit: expected a time such as 90, 30m or 2h, found {text!r}")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]
