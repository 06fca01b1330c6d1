"""Runs scenarios of Inductor's choices, each in a fork, and makes pins of what they recorded.

A scenario is a dictionary: `work` (a function of `tests/workloads/inductor_forks.py`), `mode`
(plain, observe, enforce), `pins`, `on_miss`, `timer` and `seed` (a benchmark that lies, of
`tests/fakes/inductor_timers.py`; none: the real one), `cache` (a folder; none: no compile caches),
`backends`, `options` (of `torch._inductor.config`), `environment`, `folder` (to work in),
`deterministic`, `run` (the name of the observed run), `compile_options` (of one `torch.compile`),
`tag` and `job_id` (the user's own), `padding` (whether a padded product wins).
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pinner.inside import values

ROOT = Path(__file__).resolve().parents[1]
WORKLOADS = ROOT / "tests" / "workloads"
Line = dict[str, Any]
Result = dict[str, Any]


def run(
    folder: Path, scenarios: Sequence[dict[str, Any]], program: str = "inductor_forks.py"
) -> list[Result]:
    """What each scenario saw. folder: holds the files, and the C++ that was compiled."""
    folder.mkdir(parents=True, exist_ok=True)
    asked, out = folder / "scenarios.json", folder / "results.json"
    asked.write_text(json.dumps(list(scenarios)))
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder / "cache"))
    env.setdefault("TRITON_CACHE_DIR", str(folder / "triton"))  # of machine code, not of choices
    env.update(PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1")
    done = subprocess.run(
        [sys.executable, str(WORKLOADS / program), str(asked), str(out)],
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results: list[Result] = json.loads(out.read_text())
    return results


def run_named(
    folder: Path, scenarios: dict[str, dict[str, Any]], program: str = "inductor_forks.py"
) -> dict[str, Result]:
    """As `run`, by name: one process for all of them."""
    return dict(zip(scenarios, run(folder, list(scenarios.values()), program), strict=True))


def of(result: Result, kind: str, **fields: Any) -> list[Line]:
    """The ledger lines of a kind whose fields have these values."""
    return [
        line
        for line in result["lines"]
        if line["t"] == kind and all(line.get(name) == value for name, value in fields.items())
    ]


def pins_of(lines: Sequence[Line]) -> dict[str, Any]:
    """The part of compiled pins that locks what these lines chose."""
    kernels: dict[str, Any] = {}
    for line in lines:
        if line["t"] == "choice":
            kernel = kernels.setdefault(line["kernel"], {"entries": []})
            kernel["entries"].append(
                {
                    "source": line["source"],
                    "key": values.canonical(line["key"]),
                    "key_names": line["key"],
                    "config": line["config"],
                    "alternatives": line["alternatives"],
                    "code": [],
                    "specs": [],
                    "options": {},
                }
            )
    for line in lines:
        if line["t"] == "code":
            for entry in kernels.get(line["kernel"], {"entries": []})["entries"]:
                if values.canonical(entry["config"]) == values.canonical(line["config"]):
                    entry["specs"].append(line["spec"])
                    entry["code"].append(line["code"])
                    entry["options"].update(line["options"])
    return sealed(kernels)


def sealed(kernels: dict[str, Any]) -> dict[str, Any]:
    """Pins with the digest of their Inductor section."""
    text = values.canonical(kernels)
    digest = "sha256:" + hashlib.sha256(text.encode()).hexdigest()
    return {"inductor": kernels, "inductor_digest": digest}


def with_config(pins: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """The same pins with every entry locked to another config."""
    kernels = json.loads(json.dumps(pins["inductor"]))
    for kernel in kernels.values():
        for entry in kernel["entries"]:
            entry["config"] = config
    return sealed(kernels)
