"""How long 10,000 ledgers take to merge, and the most memory the process had, against 1,000.

Each rank wrote what one does that tunes 22 keys of 9 configs: its facts, 22 choices with the times
of all 9, the code of each. On 13 keys the ranks disagree, as they did in Megatron-LM#6966; every
tenth rank saw a key of its own too. Each merge is a process of its own: time and memory are its.
Linear is a ratio of 10 in time; memory that grows with the ranks by less than that is bounded by
keys. PINNER_BENCH_QUICK: a tenth of the ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pinner.launch.collect import read_ledgers
from pinner.lockfile.merge import merge_ledgers

KEYS, CONFIGS, DISAGREED = 22, 9, 13


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=10_000)
    parser.add_argument("--merge", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.merge:
        print(json.dumps(_merged(options.merge)))
        return
    ranks = options.ranks // 10 if os.environ.get("PINNER_BENCH_QUICK") else options.ranks
    few, many = _measured(ranks // 10), _measured(ranks)
    for found in (few, many):
        print(
            f"  {found['ranks']:6d} ledgers, {found['megabytes']:6.0f} MB: "
            f"{found['seconds']:7.2f} s, at most {found['peak']:6.1f} MB of memory "
            f"({found['before']:.1f} before); {found['entries']} entries, "
            f"{found['conflicts']} conflicts"
        )
    grown = (many["peak"] - few["peak"]) * 1e3 / (many["ranks"] - few["ranks"])
    print(
        f"  10 x the ranks: {many['seconds'] / few['seconds']:.1f} x the time, "
        f"{many['peak'] / few['peak']:.2f} x the memory, {grown:.2f} kB a rank"
    )


def _measured(ranks: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="pinner-bench-") as place:
        size = _write(Path(place), ranks)
        command = [sys.executable, "-m", "benchmarks.merge", "--merge", place]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {**json.loads(done.stdout), "ranks": ranks, "megabytes": size / 1e6}


def _merged(session: Path) -> dict[str, Any]:
    before = _peak()
    start = time.perf_counter()
    draft = merge_ledgers(read_ledgers(session))
    return {
        "seconds": time.perf_counter() - start,
        "before": before,
        "peak": _peak(),
        "entries": len(draft.entries),
        "conflicts": len(draft.conflicts),
    }


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def _write(session: Path, ranks: int) -> int:
    (session / "ledger").mkdir()
    size = 0
    for rank in range(ranks):
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in _of(rank, ranks))
        (session / "ledger" / f"n{rank // 8}-{rank}.jsonl").write_text(text)
        size += len(text)
    return size


def _of(rank: int, ranks: int) -> list[dict[str, Any]]:
    process = {
        "t": "process",
        "pid": 1000 + rank % 8,
        "host": f"n{rank // 8}",
        "rank": rank,
        "world": ranks,
        "run": "bench",
        "argv": ["train.py", "--config", "large.toml"],
        "time": "2026-01-01T00:00:00.000Z",
    }
    facts = {"torch": "2.13.0", "triton": "3.9.0", "gpu": "NVIDIA H200", "host": f"n{rank // 8}"}
    facts.update({f"env:SWITCH_{number}": str(number) for number in range(40)})
    lines = [process, {"t": "facts", "facts": facts}]
    for key in range(KEYS):
        lines.extend(_decided(key, rank))
    if rank % 10 == 0:
        lines.extend(_decided(1000 + rank % 1000, rank))
    return lines


def _decided(key: int, rank: int) -> list[dict[str, Any]]:
    winner = rank * 7919 % CONFIGS if key < DISAGREED else key % CONFIGS
    place = {"chooser": "triton", "kernel": f"library:kernel_{key % 5}", "source": "sha256:5"}
    choice = {
        "t": "choice",
        **place,
        "key": {"N": key, "x:dtype": "bfloat16"},
        "config": _config(winner),
        "alternatives": CONFIGS,
        "how": "benched",
        "timings": [[_config(n), 1 + (n - winner) ** 2 + rank / 1e6] for n in range(CONFIGS)],
    }
    code = {"t": "code", **place, "config": _config(winner), "spec": "a", "code": f"sha256:{key}"}
    return [choice, {**code, "key": choice["key"], "options": {"enable_fp_fusion": True}}]


def _config(number: int) -> dict[str, int]:
    return {"BLOCK": 16 * (number + 1), "num_warps": 4, "num_stages": 2}


if __name__ == "__main__":
    main()
