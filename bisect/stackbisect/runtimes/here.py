"""Runs a job's command outside containers under pinner's observation, to its result.

What runs in a checkout and what runs in a folder of the user's own differ in where they run and in
a few variables; what is set, watched and read is the same (`host_probe`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stackbisect.probe import InfrastructureError, Job, ProbeResult
from stackbisect.runtimes import harvest, host, host_probe, process
from stackbisect.runtimes.machine import Here, Machine, Unfit

STOPPED = "the bisection was stopped while this probe was under way"


def run(
    job: Job,
    environ: Mapping[str, str],
    secrets: Sequence[str],
    started: float,
    facts: Mapping[str, Any] | None = None,
    *,
    machine: Machine | None = None,
    key: str = "",
) -> ProbeResult:
    """Run the job's command in its working folder, with `environ` as its base environment.

    `started`: when the probe began, its preparation included. `machine`: where it runs; None is
    here. `key`: which command it is (`host_probe.key`). Raises process.Stopped where the job is not
    wanted any more, Unfit and InfrastructureError.
    """
    before = host_probe.stamps(job)
    ended = (machine or Here()).run(
        job.command,
        host_probe.environment(environ, job),
        job.workdir,
        log=job.log,
        stdout=job.stdout,
        time_limit=job.time_limit,
        secrets=secrets,
        stopped=job.stop.is_set,
        own=(job.session, job.scratch),
        key=key,
    )
    written = host_probe.written(job, before, ended.since)
    left = harvest.read(job.session, job.stdout, job.evidence, written)
    reason = host_probe.reason(job, left, ended.code, timed_out=ended.timed_out)
    return ProbeResult(
        status="untestable" if reason else "ran",
        exit_code=ended.code,
        reason=reason,
        evidence=left.evidence,
        facts={**left.facts, **(facts or {}), "host": host.facts(), **ended.facts},
        loaded={},
        started=started,
        ended=time.time(),
        log=str(job.log),
    )


def told(
    work: Callable[[], ProbeResult], started: float, job: Job, facts: Mapping[str, Any]
) -> ProbeResult:
    """The result of a probe; where `work` raises, one that says why there is none."""
    try:
        return work()
    except Unfit as refused:
        return host_probe.failed("untestable", str(refused), started, job, facts)
    except process.Stopped:
        return host_probe.failed("infrastructure", STOPPED, started, job, facts)
    except (InfrastructureError, OSError) as error:
        return host_probe.failed("infrastructure", str(error), started, job, facts)


def last_lines(text: str, count: int = 12) -> str:
    """The end of an output, on one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(lines[-count:])
