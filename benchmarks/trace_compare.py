"""How long two traces of 1,000,000 events take to compare, and the memory that takes.

Two ranks of 500,000 events each, by default; each rank is compared in a process of its own, and the
largest resident set of a worker is given, the interpreter included. Times vary with the machine;
reading the same files line by line in Python is what they are held against.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pinner.compare.trace_report import Report
from pinner.compare.traces import compare_traces

PER_STEP = 5_000
LAYERS = 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000, help="of each trace, over ranks")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    if os.environ.get("PINNER_BENCH_QUICK"):
        options.events = min(options.events, 50_000)
    with tempfile.TemporaryDirectory(prefix="pinner-bench-") as folder:
        _measure(Path(folder), options.events // options.ranks, options.ranks, options.jobs)


def _measure(folder: Path, each: int, ranks: int, jobs: int) -> None:
    plain = _trace(folder / "plain", each, ranks, Other())
    size = sum(path.stat().st_size for path in plain.rglob("*.jsonl"))
    print(
        f"{each * ranks:,} events in {ranks} ranks, {size / 1e6:.0f} MB a trace, {jobs} at a time, "
        f"Python {sys.version.split()[0]}"
    )
    seconds, busy, _ = _in_child(lambda: _read(plain))
    print(f"  {'reading one trace line by line':44s} {seconds:7.2f} s   {busy:7.2f} s of cores")
    cases = {
        "equal": Other(),
        "equal, other storage numbers in each line": Other(storage=7),
        "equal, one more view in step 0": Other(extra=40),
        "all differs from the middle on": Other(fault=each // 2),
        "all differs from the beginning on": Other(fault=100),
        "the same, and one more view in each step": Other(fault=100, extra=40, every=True),
    }
    for name, how in cases.items():
        other = _trace(folder / "other", each, ranks, how)
        wanted = 0 if how.fault is None else 1
        seconds, busy, memory = _in_child(lambda o=other, w=wanted: _compare(plain, o, jobs, w))
        print(
            f"  {name:44s} {seconds:7.2f} s   {busy:7.2f} s of cores   "
            f"{memory / 1024:5.1f} MB a worker"
        )
        shutil.rmtree(other)


def _compare(a: Path, b: Path, jobs: int, wanted: int) -> None:
    report: Report = compare_traces(a, b, jobs=jobs)
    if report.exit != wanted:
        raise SystemExit(f"expected exit {wanted}: {report.text()}")


def _read(trace: Path) -> None:
    for path in trace.rglob("*.jsonl"):
        with open(path, "rb") as file:
            for _ in file:
                pass


def _in_child(work: Callable[[], object]) -> tuple[float, float, int]:
    """Seconds, those of processors, and the largest resident set of one process, in KiB."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        start = time.perf_counter()
        code = 1
        try:
            work()
            taken = time.perf_counter() - start
            below = resource.getrusage(resource.RUSAGE_CHILDREN)
            own = resource.getrusage(resource.RUSAGE_SELF)
            busy = sum(used.ru_utime + used.ru_stime for used in (below, own))
            os.write(writing, f"{taken} {busy} {below.ru_maxrss or own.ru_maxrss}".encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with open(reading) as file:
        found = file.read().split()
    if os.waitpid(child, 0)[1] or len(found) != 3:
        raise SystemExit("a measured process failed")
    return float(found[0]), float(found[1]), int(found[2])


@dataclass(frozen=True)
class Other:
    """How the other trace is unlike the plain one.

    fault: from this event on all differs. extra: one more view at this place of step 0, or of each
    step. storage: added to the storage numbers.
    """

    fault: int | None = None
    extra: int | None = None
    every: bool = False
    storage: int = 0


def _trace(folder: Path, each: int, ranks: int, how: Other) -> Path:
    for rank in range(ranks):
        path = folder / f"rank-{rank}" / "host-1.jsonl"
        path.parent.mkdir(parents=True)
        with open(path, "w", buffering=1 << 20) as file:
            file.writelines(_lines(each, (rank, ranks), how))
    return folder


def _lines(events: int, place: tuple[int, int], how: Other) -> Iterator[str]:
    """A log as the tracer writes it: two inputs and an output for each operation."""
    rank, ranks = place
    window = '{"from":null,"to":null,"modules":null}'
    yield (
        f'{{"t":"trace","version":1,"rank":{rank},"world":{ranks},"pid":1,"host":"host",'
        f'"level":"ops","window":{window},"torch":"2.13.0","algorithm":"nh128","time":"2026"}}\n'
    )
    order = 0
    seen: dict[tuple[str, str], int] = {}
    for number in range(events):
        step, inside = divmod(number, PER_STEP)
        if inside == 0:
            seen.clear()
        name = f"aten.op{inside % 23}.default"
        module = f"layers.{inside * LAYERS // PER_STEP}.attn"
        mark = 0 if how.fault is None or number < how.fault else 1
        rows = [
            f'["{path}","nh128:{number * 3 + path:031x}{mark}","bfloat16",[4096,1024],null,'
            f"{number % 997 + path + how.storage}]"
            for path in range(3)
        ]
        names = [name]
        if inside == how.extra and (how.every or step == 0):
            names.insert(0, "aten.view.default")
        for each in names:
            nth = seen.get((each, module), 0)
            seen[each, module] = nth + 1
            yield (
                f'{{"e":"op","n":"{each}","i":{nth},"m":"{module}","p":"f","s":{step},"q":{order},'
                f'"in":[{rows[0]},{rows[1]}],"out":[{rows[2]}]}}\n'
            )
            order += 1
    yield f'{{"t":"end","events":{order}}}\n'


if __name__ == "__main__":
    main()
