"""The main job, shown on this machine: real Triton kernels flip, are recorded, pinned, replayed.

Then the other one: numpy's own wheels are bisected by the bits they compute. Nothing printed here
is written in advance: every digest comes from a run in a fresh process. Takes about two minutes;
needs no GPU and no Docker, and uses a GPU where there is one.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))  # this checkout's pinner, installed or not
WORKLOAD = REPO / "scripts" / "demo_workload.py"
NUMPY_WORKLOAD = REPO / "scripts" / "demo_numpy.py"
NUMPY_ENDS = ("2.1.2", "2.2.1")  # have wheels for every Python from 3.10 to 3.13
LEAST_TRIES = 4
FOUND, SAME_BITS, NARROWED = 0, 1, 2  # exit codes of stackbisect that are an answer


class DemoError(Exception):
    """A step did not do what it must; the message says which and what was seen."""


@dataclass(frozen=True)
class Ran:
    """One finished command: its output, its notes on standard error, and how long it took."""

    output: str
    notes: str
    seconds: float

    def digest(self) -> str:
        for line in self.output.splitlines():
            if line.startswith("digest "):
                return line.split()[1][:16]
        raise DemoError(f"expected a line 'digest …' from the workload, found:\n{self.output}")

    def closing_line(self) -> str:
        lines = [line for line in self.notes.splitlines() if line.startswith("pinner:")]
        return lines[-1] if lines else "(no coverage line)"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    folder = Path(tempfile.mkdtemp(prefix="pinner-demo-"))
    try:
        _show(folder, options)
    except DemoError as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        return 1
    finally:
        if options.keep:
            print(f"\nkept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tries", type=int, default=10, help="unpinned runs at most (10)")
    parser.add_argument("--replays", type=int, default=4, help="enforced runs (4)")
    parser.add_argument("--alternatives", type=int, default=3, help="edited locks to try (3)")
    parser.add_argument("--no-bisection", action="store_true", help="leave numpy out")
    parser.add_argument("--keep", action="store_true", help="keep the folder with the lock")
    return parser.parse_args(arguments)


def _show(folder: Path, options: argparse.Namespace) -> None:
    lock = folder / "pinner.lock.toml"
    command = [sys.executable, str(WORKLOAD)]

    print(_machine())
    _heading("1. Unpinned: the same program, the same inputs, fresh processes")
    seen = _unpinned(command, folder, options.tries)
    if len(seen) == 1:
        print(
            f"   Timing chose alike in all {sum(seen.values())} runs on this machine, so nothing"
            " flipped this time. What follows holds all the same."
        )

    _heading("2. Record: one observed run, then enforced runs that must agree with each other")
    _record(command, folder, lock)

    _heading("3. Enforce: fresh processes under the lock")
    locked = _enforced(command, folder, lock, options.replays)

    _heading("4. The lock decides: edit one entry to another of the kernel's own configs")
    _edited(command, folder, lock, locked, options.alternatives)

    if not options.no_bisection:
        _heading("5. Bisect: which numpy changed the bits, each version in a fresh environment")
        _bisected(folder)

    print()
    print(f"Unpinned: {len(seen)} different digests in {sum(seen.values())} runs.")
    print(f"Under the lock: 1 digest in {options.replays} runs, {locked}.")


# The steps


def _unpinned(command: Sequence[str], folder: Path, tries: int) -> Counter[str]:
    """Run until two digests were seen, four times at least and `tries` times at most."""
    seen: Counter[str] = Counter()
    for number in range(1, tries + 1):
        ran = _run(command, folder)
        seen[ran.digest()] += 1
        print(f"   run {number:2d}   {ran.digest()}   {ran.seconds:.1f} s", flush=True)
        if number >= LEAST_TRIES and len(seen) > 1:
            break
    return seen


def _record(command: Sequence[str], folder: Path, lock: Path) -> None:
    ran = _pinner(["record", "-o", str(lock), "--", *command], folder)
    for line in ran.notes.splitlines():
        if line.startswith("pinner:"):
            print(f"   {_as_typed(line, folder)}")
    from pinner.lockfile import codec

    for entry in codec.read_lock(lock).triton:
        print(f"     {_choice(entry)}")


def _choice(entry: Any) -> str:
    from pinner.inside import values

    return (
        f"{_call(entry)}\n       → {values.readable_named(entry.config)}  (of {entry.alternatives})"
    )


def _call(entry: Any) -> str:
    """Kernel and key of a locked choice, with the dtypes left out."""
    from pinner.inside import values

    key = {name: value for name, value in entry.key.items() if not values.is_dtype_name(name)}
    return f"{entry.kernel.split(':')[1]} at {values.readable_named(key)}"


def _enforced(command: Sequence[str], folder: Path, lock: Path, replays: int) -> str:
    seen = Counter[str]()
    for number in range(1, replays + 1):
        ran = _pinner(["enforce", "-l", str(lock), "--", *command], folder, quiet=number > 1)
        seen[ran.digest()] += 1
        print(f"   run {number:2d}   {ran.digest()}   {ran.seconds:.1f} s", flush=True)
        if number == replays:
            print(f"   {ran.closing_line()}")
    if len(seen) != 1:
        raise DemoError(f"expected one digest under the lock, found {len(seen)}: {dict(seen)}")
    return next(iter(seen))


def _edited(command: Sequence[str], folder: Path, lock: Path, locked: str, tries: int) -> None:
    from pinner.inside import values
    from pinner.lockfile import codec

    original = codec.read_lock(lock)
    differing = 0
    for number, (index, config) in enumerate(_edits(original.triton, tries), start=1):
        entry = original.triton[index]
        if number == 1:
            print(f"   {_call(entry)}")
            print(f"   {locked}   {values.readable_named(entry.config)}   as recorded")
        # Another config is other machine code; what was observed of the old one does not hold.
        other = replace(entry, config=config, code=(), specs=())
        entries = (*original.triton[:index], other, *original.triton[index + 1 :])
        edited = folder / f"edited-{number}.lock.toml"
        codec.write_lock(edited, replace(original, triton=entries))
        ran = _pinner(["enforce", "-l", str(edited), "--", *command], folder, quiet=True)
        differing += ran.digest() != locked
        print(f"   {ran.digest()}   {values.readable_named(config)}", flush=True)
    if not differing:
        print("   None of these changes the bits on this machine.")


def _bisected(folder: Path) -> None:
    """Run stackbisect over numpy's versions; that none changes the bits here is an answer too."""
    good, bad = NUMPY_ENDS
    search = ["run", "--runtime", "venv", "--package", "numpy", "--good", good, "--bad", bad]
    words = [*search, "--", "python", str(NUMPY_WORKLOAD)]
    print(f"   $ stackbisect {_as_typed(shlex.join(words), folder)}", flush=True)
    # No PYTHONPATH: it would reach into the environments that are tried.
    start = (
        f"import sys; sys.path[:0] = {[str(REPO), str(REPO / 'bisect')]!r}; "
        "from stackbisect.cli import main; sys.exit(main())"
    )
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(
        [sys.executable, "-c", start, *words],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
    )
    if ran.returncode not in (FOUND, SAME_BITS, NARROWED):
        raise DemoError(f"stackbisect ended with {ran.returncode}:\n{ran.stderr[-4000:]}")
    for line in ran.stdout.splitlines():
        if not line.startswith("run it again"):
            print(f"   {_as_typed(line, folder)}".rstrip())


def _edits(entries: Sequence[Any], tries: int) -> list[tuple[int, Mapping[str, Any]]]:
    """Edits of the entry with most blocks to choose from: other blocks, not only other warps."""
    options = {"num_warps", "num_stages", "num_ctas", "maxnreg"}

    def blocks(config: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in config.items() if name not in options}

    found: list[tuple[int, Mapping[str, Any]]] = []
    for index, entry in enumerate(entries):
        live = _configs_of(entry.kernel) if entry.alternatives > 1 else []
        others = [config for config in live if blocks(config) != blocks(entry.config)]
        # A config whose every block differs is the likeliest to add in another order.
        others.sort(key=lambda c: sum(c[n] != entry.config.get(n) for n in blocks(c)), reverse=True)
        if len(others) > len(found):
            found = [(index, config) for config in others]
    if not found:
        raise DemoError("expected an entry with other blocks to choose from, found none")
    return found[:tries]


_CONFIGS: dict[str, list[dict[str, Any]]] = {}


def _configs_of(kernel: str) -> list[dict[str, Any]]:
    """All configs of an autotuned kernel, in the form the lock writes them."""
    if kernel not in _CONFIGS:
        ran = subprocess.run(
            [sys.executable, str(WORKLOAD), "--configs", kernel],
            capture_output=True,
            text=True,
            env=_environment(None),
        )
        if ran.returncode != 0:
            raise DemoError(f"cannot list the configs of {kernel}:\n{ran.stderr}")
        _CONFIGS[kernel] = json.loads(ran.stdout.splitlines()[-1])
    return _CONFIGS[kernel]


# Running commands


def _pinner(arguments: Sequence[str], folder: Path, quiet: bool = False) -> Ran:
    if not quiet:
        print(f"   $ pinner {_as_typed(shlex.join(arguments), folder)}", flush=True)
    return _run([sys.executable, "-m", "pinner", *arguments], folder)


def _as_typed(text: str, folder: Path) -> str:
    """The text without the places of this machine."""
    text = text.replace(f"{folder}/", "").replace(f"{REPO}/", "")
    return text.replace(sys.executable, "python")


def _run(command: Sequence[str], folder: Path) -> Ran:
    """Run in a process with an empty compile cache, as on a machine that has not run it before."""
    cache = Path(tempfile.mkdtemp(prefix="triton-", dir=folder))
    start = time.monotonic()
    ran = subprocess.run(
        list(command), cwd=folder, env=_environment(cache), capture_output=True, text=True
    )
    shutil.rmtree(cache, ignore_errors=True)
    if ran.returncode != 0:
        raise DemoError(
            f"expected exit code 0, found {ran.returncode} from: {shlex.join(command)}\n"
            f"{ran.stdout[-2000:]}\n{ran.stderr[-4000:]}"
        )
    return Ran(ran.stdout, ran.stderr, time.monotonic() - start)


def _environment(cache: Path | None) -> dict[str, str]:
    environ = {name: v for name, v in os.environ.items() if not name.startswith("PINNER_")}
    # One thread for the interpreter's matrix products: its timings are noisy enough as they are.
    environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    path = [str(REPO), environ.get("PYTHONPATH", "")]
    environ["PYTHONPATH"] = os.pathsep.join(part for part in path if part)
    if cache is not None:
        environ["TRITON_CACHE_DIR"] = str(cache)
    return environ


# Words


def _machine() -> str:
    import torch

    device = (
        torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else "no CUDA device, so the kernels run in Triton's interpreter"
    )
    names = ("torch", "triton", "fla-core", "numpy")
    versions = [f"{name} {importlib.metadata.version(name)}" for name in names]
    python = f"Python {platform.python_version()}"
    return f"{platform.system()} {platform.machine()}; {', '.join([python, *versions])}; {device}"


def _heading(text: str) -> None:
    print(f"\n{text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
