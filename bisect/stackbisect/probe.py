"""What a probe is: a candidate, the job done in it, its result, and what a runtime must offer.

This file is the agreement between the search and the runtimes. A runtime (docker, venv, ...)
takes one candidate and one job, runs the job's command there under pinner's observation, and
hands back a result. It never judges: verdicts come from `search.verdict`.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from stackbisect.errors import UsageError

if TYPE_CHECKING:
    from stackbisect.spaces.components import Component, Inventory

Status = Literal["ran", "untestable", "infrastructure"]

STATUSES: tuple[Status, ...] = ("ran", "untestable", "infrastructure")


@dataclass(frozen=True)
class Candidate:
    """One stack that can be tried.

    `id` is what two candidates are compared by (an image's platform manifest digest, a version);
    `label` is what people call it (the tag, the version); `position` is its place in the ordered
    list. `details` is kept in the journal: for an image `reference` (HOST/NAME@sha256:...),
    `tags`, `platform`, `created`, `env`, `labels`, `insecure`; for a package `package`, `version`.
    """

    id: str
    label: str
    position: int
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The candidate as plain JSON values, the form it has in the journal."""
        return {
            "id": self.id,
            "label": self.label,
            "position": self.position,
            "details": dict(self.details),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Candidate:
        """The inverse of `to_json`."""
        return cls(value["id"], value["label"], value["position"], dict(value["details"]))


@dataclass(frozen=True)
class EvidenceOptions:
    """Evidence asked for besides the streams that pinner itself sees.

    `files`: globs, relative to the command's working folder or absolute; only files written by
    the probe count. `stdout`: regular expressions over the lines of standard output; the first
    group counts where there is one, else the whole match.
    """

    files: tuple[str, ...] = ()
    stdout: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The options as plain JSON values."""
        return {"files": list(self.files), "stdout": list(self.stdout)}


@dataclass(frozen=True)
class Evidence:
    """Digests that one probe left: stream, then rank, then one digest a step, in order."""

    streams: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """True where no stream has a single step."""
        return not any(steps for ranks in self.streams.values() for steps in ranks.values())

    @property
    def digest(self) -> str:
        """One digest over every stream, rank and step ("" where there is no evidence)."""
        if self.empty:
            return ""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()

    def to_json(self) -> dict[str, dict[str, list[str]]]:
        """The evidence as plain JSON values."""
        return {
            stream: {rank: list(steps) for rank, steps in ranks.items()}
            for stream, ranks in self.streams.items()
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Mapping[str, Sequence[str]]]) -> Evidence:
        """The inverse of `to_json`."""
        return cls(
            {
                stream: {rank: tuple(steps) for rank, steps in ranks.items()}
                for stream, ranks in value.items()
            }
        )


@dataclass(frozen=True)
class Job:
    """What is done in every candidate alike; only the paths differ from probe to probe.

    `session` is a fresh pinner session folder (session.json, ledger/) that the caller prepared:
    the runtime makes it writable for the command's user, sets PINNER_SESSION and PINNER_MODE to
    where the command sees it, and brings ledger/ back into it. `inside` is the folder
    pinner/inside on this host; its inject/ goes in front of the PYTHONPATH the command would have
    had. `log` receives the command's whole output, `stdout` its standard output alone (the
    evidence of `--evidence-stdout` is read from there). `scratch` is an empty folder for what
    must be fresh for each probe (compile caches). `time_limit` is in seconds; None is no limit.

    `mode` is what PINNER_MODE must say: "enforce" where the session holds the pins of `lock`, the
    lockfile on this host. `stop` is set when the result is not wanted any more (the program ends,
    another probe made this one needless): the runtime ends the command, leaves nothing behind and
    returns whatever it likes; nobody reads it.
    """

    command: tuple[str, ...]
    evidence: EvidenceOptions
    session: Path
    inside: Path
    log: Path
    stdout: Path
    scratch: Path
    workdir: Path
    env: Mapping[str, str] = field(default_factory=dict)
    time_limit: float | None = None
    mode: Literal["observe", "enforce"] = "observe"
    lock: Path | None = None
    stop: threading.Event = field(default_factory=threading.Event, compare=False, repr=False)


@dataclass(frozen=True)
class ProbeResult:
    """What one probe found.

    `ran`: the command started and ended by itself (whatever its code). `untestable`: it could not
    be started, installed or finished in time in this candidate; `reason` is the runtime's own
    message. `infrastructure`: nothing is known about the candidate (daemon, network or disk gone);
    the bisection stops and can be resumed. `facts` describe the host and stack; `facts["host"]` is
    what `runtimes.host` says of the machine it ran on. `loaded` is what the command really loaded
    (distributions, shared libraries). Times are seconds since the epoch.
    """

    status: Status
    exit_code: int | None
    reason: str
    evidence: Evidence
    facts: Mapping[str, Any]
    loaded: Mapping[str, Any]
    started: float
    ended: float
    log: str

    def to_json(self) -> dict[str, Any]:
        """The result as plain JSON values, the form it has in the journal."""
        return {
            "status": self.status,
            "exit_code": self.exit_code,
            "reason": self.reason,
            "evidence": self.evidence.to_json(),
            "digest": self.evidence.digest,
            "facts": dict(self.facts),
            "loaded": dict(self.loaded),
            "started": self.started,
            "ended": self.ended,
            "log": self.log,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ProbeResult:
        """The inverse of `to_json`."""
        return cls(
            value["status"],
            value["exit_code"],
            value["reason"],
            Evidence.from_json(value["evidence"]),
            dict(value["facts"]),
            dict(value["loaded"]),
            value["started"],
            value["ended"],
            value["log"],
        )


@dataclass(frozen=True)
class ContainerOptions:
    """Container options that are passed through as the user wrote them, and journalled.

    `mounts` are docker's `--mount` texts, `ulimits` are `name=soft[:hard]`, `devices` are
    `HOST[:CONTAINER[:rwm]]`, `gpus` is docker's `--gpus` text, `env` are `NAME=VALUE` or `NAME`
    (taken from the caller's environment; its value is never journalled).
    """

    mounts: tuple[str, ...] = ()
    shm_size: str | None = None
    ipc: str | None = None
    ulimits: tuple[str, ...] = ()
    user: str | None = None
    devices: tuple[str, ...] = ()
    gpus: str | None = None
    network: str | None = None
    env: tuple[str, ...] = ()
    read_only: bool = False
    entrypoint: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The options that were given, as plain JSON values."""
        found = {
            "mounts": list(self.mounts),
            "shm_size": self.shm_size,
            "ipc": self.ipc,
            "ulimits": list(self.ulimits),
            "user": self.user,
            "devices": list(self.devices),
            "gpus": self.gpus,
            "network": self.network,
            "env": list(self.env),
            "read_only": self.read_only,
            "entrypoint": self.entrypoint,
        }
        return {name: value for name, value in found.items() if value}


class InfrastructureError(Exception):
    """The machinery failed (daemon, registry, network, disk); the message says what to do."""


class Unsupported(UsageError):
    """Something this runtime has no way to do; a bisection goes on without it."""


class Runtime(Protocol):
    """Where candidates are tried. Any number of threads may call its methods at once.

    `run` must leave nothing behind when it is interrupted (KeyboardInterrupt passes through), and
    must report a failure of the machinery as status "infrastructure", never as untestable.
    """

    name: str

    def describe(self) -> dict[str, Any]:
        """What is kept in the journal's header: options and host facts, no secrets.

        A resume on a machine or with options that describe themselves differently is refused, so
        nothing in it may change by itself (free memory, times).
        """

    def run(self, candidate: Candidate, job: Job) -> ProbeResult:
        """Try one candidate."""

    def difference(self, good: Candidate, bad: Candidate) -> dict[str, dict[str, list[str | None]]]:
        """What differs between two candidates, by kind, then name: [value in good, value in bad].

        Kinds are `distributions` (Python), `packages` (Debian), `environment`; None is absent.
        """

    def inventory(
        self, good: Candidate, bad: Candidate, probes: Sequence[ProbeResult]
    ) -> Inventory:
        """What can be swapped between two candidates.

        `probes` are finished probes of both: what they loaded counts. Raises Unsupported and
        InfrastructureError.
        """

    def versions(self, component: Component, good: Candidate, bad: Candidate) -> list[str]:
        """The versions between `component.good` and `component.bad`, both included, in that order.

        Raises Unsupported and InfrastructureError.
        """

    def prefetch(self, candidate: Candidate) -> None:
        """Do ahead what a probe of this candidate will need (a pull, a build); may do nothing.

        Called in a thread of its own. What it raises is forgotten: the probe will say it.
        """

    def close(self) -> None:
        """Give back what the runtime holds. May be called twice."""
