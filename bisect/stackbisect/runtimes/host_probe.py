"""What probes without a container have in common: the command's environment, and what it left.

Such a probe runs the user's command on this file system, in the folder where the bisection was
started: on this machine, or on nodes that share it.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stackbisect.probe import Evidence, Job, ProbeResult, Status
from stackbisect.runtimes import caches, container_options, harvest

Stamp = tuple[int, int, int]

# Variables that change what numerical libraries do: kept, and compared when a bisection goes on.
_NUMERIC = re.compile(
    r"(OMP|KMP|MKL|OPENBLAS|BLIS|GOTO|VECLIB|NUMEXPR|NUMBA|CUDA|CUBLAS|CUDNN|NCCL|NVIDIA|TORCH|"
    r"PYTORCH|ATEN|TRITON|XLA|TF|JAX|HIP|ROCR?|MIOPEN|HSA|GLIBC)_.*|PYTHONHASHSEED|PYTHONPATH|"
    r"LD_LIBRARY_PATH|LD_PRELOAD|MALLOC_.*"
)


def numeric(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that bear on numbers, without secrets and caches (new in each probe)."""
    return {
        name: value
        for name, value in sorted(environ.items())
        if _NUMERIC.fullmatch(name)
        and not name.endswith("_CACHE_DIR")
        and not container_options.is_secret_name(name)
    }


def environment(environ: Mapping[str, str], job: Job) -> dict[str, str]:
    """The command's environment: the caller's, the job's, pinner's injection, fresh caches.

    Makes the caches' folders.
    """
    found = {**environ, **job.env}
    found.pop("PYTHONHOME", None)
    hidden = found.get("PYTHONPATH")
    inject = str(job.inside / "inject")
    found["PYTHONPATH"] = f"{inject}{os.pathsep}{hidden}" if hidden else inject
    found["PINNER_SESSION"] = str(job.session)
    found["PINNER_MODE"] = job.mode
    folders = dict(caches.FOLDERS)
    folders.update({n: f for n, f in caches.FOLDERS_IF_SET.items() if n in found})
    for name, folder in folders.items():
        if name not in job.env:
            found[name] = str(job.scratch / folder)
            (job.scratch / folder).mkdir(parents=True, exist_ok=True)
    return found


def stamps(job: Job) -> dict[str, Stamp]:
    """What tells whether an evidence file is written anew, for each one that is there now."""
    return {name: _stamp(path) for name, path in _files(job).items()}


def written(job: Job, before: Mapping[str, Stamp], since: int = 0) -> dict[str, Path]:
    """The evidence files that the command wrote: those that are new or other than `before`.

    `since`: where the command ran elsewhere, when it began (`process.Ended`); what `before` says
    does not count then, because the command may have been under way already.
    """
    found = {name: (path, _stamp(path)) for name, path in _files(job).items()}
    if since:
        return {name: path for name, (path, stamp) in found.items() if stamp[0] >= since}
    return {name: path for name, (path, stamp) in found.items() if before.get(name) != stamp}


def key(candidate: str, job: Job) -> str:
    """What tells the command of a probe from every other one in its bisection (`machine`)."""
    lock = b"" if job.lock is None else job.lock.read_bytes()
    return f"{candidate} {job.mode} {hashlib.sha256(lock).hexdigest()}"


def reason(job: Job, left: harvest.Harvest, code: int | None, *, timed_out: bool) -> str:
    """Why a probe whose command was started is untestable; "" where it is not."""
    if timed_out:
        return f"the command did not end within {job.time_limit or 0:g} s"
    if left.damage:
        return left.damage
    if left.faults and (code != 0 or left.evidence.empty):
        return left.faults[0]
    return ""


def failed(
    status: Status, reason: str, started: float, job: Job, facts: Mapping[str, Any] | None = None
) -> ProbeResult:
    """The result of a probe whose command left nothing that counts."""
    return ProbeResult(
        status=status,
        exit_code=None,
        reason=reason,
        evidence=Evidence(),
        facts=dict(facts or {}),
        loaded={},
        started=started,
        ended=time.time(),
        log=str(job.log),
    )


def _files(job: Job) -> dict[str, Path]:
    """Files that match the evidence globs now, by the name that the evidence has."""
    found = {}
    for pattern in job.evidence.files:
        absolute = os.path.isabs(pattern)
        whole = pattern if absolute else str(job.workdir / pattern)
        for path in sorted(glob.glob(whole, recursive=True)):
            if os.path.isfile(path):
                found[path if absolute else os.path.relpath(path, job.workdir)] = Path(path)
    return found


def _stamp(path: Path) -> Stamp:
    found = path.stat()
    return found.st_mtime_ns, found.st_size, found.st_ino
