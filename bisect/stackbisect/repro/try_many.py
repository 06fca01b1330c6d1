"""Evaluates many repros in one process start; sent into a stack, where it needs nothing beside it.

Each case has a forked process of its own, so that one that crashes, hangs or eats the memory is a
failed try and the rest goes on. On a GPU one process evaluates as many as end well, because each
new one would have to set the device up. What repro.py imports first is imported once, before
the fork. Any Python from 3.8 on.

`plan.json` in the working folder: {"runs": [[files, ...], ...], "limit_s": number or null, "gpu":
bool, "memory": bytes}, one list of evaluations for each case, one {name: path of a blob} for each
evaluation. `results.jsonl` gets a line for each case: {"looks": [look, ...]} or {"failed": why},
and the seconds since the first one began. Without a limit that one has none, and sets the others'.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import hashlib
import importlib.util
import json
import os
import resource
import select
import shutil
import signal
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, NoReturn

PLAN, RESULTS = "plan.json", "results.jsonl"
# What takes twice as long as the first case did, and this, hangs.
HANGS_S = 10.0
# glibc's mallopt: memory that is handed out, and given back, is filled with a byte.
_M_PERTURB = -6
_BYTES = (0x5A, 0xA5, 0x3C)
_DEVICE_BLOCKS = (1 << 12, 1 << 20, 1 << 25)


def main() -> None:
    """Evaluate what the plan says; every line is written as soon as it is known."""
    with open(PLAN) as file:
        plan = json.load(file)
    _import_first(plan["runs"])
    with open(RESULTS, "w") as out:
        for line in results(plan):
            out.write(json.dumps(line) + "\n")
            out.flush()


def results(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What the cases look like, in order."""
    jobs = [(case, turn) for case, runs in enumerate(plan["runs"]) for turn in range(len(runs))]
    found: dict[int, dict[str, Any]] = {}
    told, started = 0, time.monotonic()
    while told < len(plan["runs"]):
        jobs = [job for job in jobs if "failed" not in found.get(job[0], {})]
        mine = jobs if plan["gpu"] else [job for job in jobs if job[0] == jobs[0][0]]
        for case, look in _evaluated(mine, plan):
            jobs = jobs[1:]
            one = found.setdefault(case, {"looks": []})
            if "failed" in look:
                found[case] = look
            elif "looks" in one:
                one["looks"].append(look)
            while told in found and _complete(found[told], plan["runs"][told]):
                found[told]["seconds"] = time.monotonic() - started
                if plan["limit_s"] is None:
                    plan["limit_s"] = limit(found[told]["seconds"])
                yield found[told]
                told += 1


def limit(seconds: float) -> float:
    """What a case may take, where the first one took so long: no smaller one takes longer."""
    return 2 * seconds + HANGS_S


def _complete(result: dict[str, Any], runs: list[Any]) -> bool:
    return "failed" in result or len(result["looks"]) == len(runs)


# -- the process that evaluates --------------------------------------------------------------------


def _evaluated(
    jobs: list[tuple[int, int]], plan: dict[str, Any]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The looks of the first of these jobs, and of more as long as all goes well."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _child(jobs, plan, writing)
    os.close(writing)
    rest = b""
    try:
        for case, _turn in jobs:
            line, rest, why = _line(reading, rest, plan["limit_s"])
            if why:
                yield case, {"failed": _ended(child) if why == "ended" else why}
                return
            look = json.loads(line.decode())
            yield case, look
            if "failed" in look:
                return
    finally:
        os.close(reading)
        with contextlib.suppress(OSError):
            os.killpg(child, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.kill(child, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.waitpid(child, 0)


def _line(reading: int, rest: bytes, seconds: float | None) -> tuple[bytes, bytes, str]:
    """A line of the pipe, what follows it, and why there is none."""
    deadline = None if seconds is None else time.monotonic() + seconds
    while b"\n" not in rest:
        left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        ready, _, _ = select.select([reading], [], [], left)
        if not ready:
            return b"", rest, f"it did not end within {seconds:g} s"
        chunk = os.read(reading, 1 << 16)
        if not chunk:
            return b"", rest, "ended"
        rest += chunk
    line, _, rest = rest.partition(b"\n")
    return line, rest, ""


def _ended(child: int) -> str:
    """How a process ended that gave no answer."""
    with contextlib.suppress(OSError):
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            return f"signal {os.WTERMSIG(status)} ended it"
        return f"it ended with {os.WEXITSTATUS(status)}"
    return "it ended"


def _child(jobs: list[tuple[int, int]], plan: dict[str, Any], writing: int) -> NoReturn:
    try:
        os.setpgid(0, 0)
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        if not plan["gpu"]:
            _bound(plan["memory"])
        for case, turn in jobs:
            look = _try(plan["runs"][case][turn], case, turn, plan["gpu"])
            _write(writing, json.dumps(look).encode() + b"\n")
            if "failed" in look:
                break
    finally:
        os._exit(0)


def _write(writing: int, data: bytes) -> None:
    while data:
        data = data[os.write(writing, data) :]


def _bound(memory: int) -> None:
    """No more memory than this beside what is there already."""
    with open("/proc/self/status") as file:
        kilobytes = [int(line.split()[1]) for line in file if line.startswith("VmData:")]
    most = sum(kilobytes) * 1024 + memory
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def _try(files: dict[str, str], case: int, turn: int, gpu: bool) -> dict[str, Any]:
    home = os.getcwd()
    place = os.path.join(home, f"try-{case}-{turn}")
    try:
        for name, blob in files.items():
            target = os.path.join(place, name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.symlink(os.path.join(home, blob), target)
        os.chdir(place)
        kept = _other_memory(turn, gpu)
        look = look_at(_outputs(place))
        del kept
        return look
    except BaseException as error:  # whatever it raises is a failed try, SystemExit included
        return {"failed": f"{type(error).__name__}: {error}"[:300]}
    finally:
        os.chdir(home)
        shutil.rmtree(place, ignore_errors=True)


def _outputs(place: str) -> Any:
    sys.path.insert(0, place)
    try:
        spec = importlib.util.spec_from_file_location("repro", os.path.join(place, "repro.py"))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["repro"] = module
        spec.loader.exec_module(module)
        return module.outputs()
    finally:
        sys.path.remove(place)


def _other_memory(turn: int, gpu: bool) -> list[bytearray]:
    """Memory that nobody wrote holds something else in every turn, and lies elsewhere.

    So what reads it does not repeat itself. Needs glibc; elsewhere it does nothing.
    """
    byte = _BYTES[turn % len(_BYTES)]
    with contextlib.suppress(Exception):
        ctypes.CDLL(None).mallopt(_M_PERTURB, byte)
    if gpu and "torch" in sys.modules:
        torch = sys.modules["torch"]
        with contextlib.suppress(Exception):
            for size in _DEVICE_BLOCKS:
                torch.full((size,), byte, dtype=torch.uint8, device="cuda")
    return [bytearray(size + 16 * turn) for size in (64, 1000, 5000, 70000)] if turn else []


# -- looking ---------------------------------------------------------------------------------------


def look_at(outputs: Any) -> dict[str, Any]:
    """What is told about outputs.

    form: names, dtypes and shapes. raw: a digest of all bits. plain: of the numbers, where neither
    the sign of a zero counts nor anything that is not finite. places: of where something is not.
    """
    form: list[list[Any]] = []
    raw, plain, places = hashlib.sha256(), hashlib.sha256(), hashlib.sha256()
    for name, value in outputs.items():
        dtype, shape, parts = _parts(value)
        form.append([name, dtype, shape])
        for digest, part in zip((raw, plain, places), parts):  # noqa: B905 - no strict before 3.10
            digest.update(b"%d:" % len(part))
            digest.update(part)
    return {
        "form": form,
        "raw": raw.hexdigest(),
        "plain": plain.hexdigest(),
        "places": places.hexdigest(),
    }


def _parts(value: Any) -> tuple[str, list[int], tuple[bytes, bytes, bytes]]:
    """dtype, shape and (all bits, plain numbers, places that are not finite)."""
    if hasattr(value, "detach"):
        return _torch_parts(value.detach())
    dtype = getattr(value.dtype, "name", str(value.dtype))
    bits = value.tobytes()
    if getattr(value.dtype, "kind", "") not in ("f", "c"):
        return dtype, list(value.shape), (bits, bits, b"")
    import numpy

    flat = numpy.ascontiguousarray(value).reshape(-1)
    wide = flat.view(flat.real.dtype) if value.dtype.kind == "c" else flat
    other = ~numpy.isfinite(wide)
    # Adding 0 makes +0 of -0.
    plain = numpy.where(other, 0, wide) + 0
    return dtype, list(value.shape), (bits, plain.tobytes(), other.tobytes())


def _torch_parts(value: Any) -> tuple[str, list[int], tuple[bytes, bytes, bytes]]:
    import torch

    dtype, shape = str(value.dtype)[len("torch.") :], list(value.shape)
    flat = value.resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    bits = _bytes_of(flat)
    if not (flat.is_floating_point() or flat.is_complex()):
        return dtype, shape, (bits, bits, b"")
    wide = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    wide = wide.to(torch.float64)
    other = ~torch.isfinite(wide)
    plain = torch.where(other, torch.zeros_like(wide), wide) + 0.0
    return dtype, shape, (bits, _bytes_of(plain), _bytes_of(other))


def _bytes_of(flat: Any) -> bytes:
    """Of a contiguous tensor on the CPU; needs no NumPy."""
    size = flat.numel() * flat.element_size()
    return ctypes.string_at(flat.data_ptr(), size) if size else b""


# -- what is imported before the forks -------------------------------------------------------------


def _import_first(runs: list[list[dict[str, str]]]) -> None:
    """Run what repro.py begins with, imports and variables set for them, of the first case."""
    if not runs:
        return
    try:
        with open(runs[0][0]["repro.py"]) as file:
            source = file.read()
        exec(compile(_leading(source), "repro.py", "exec"), {"__name__": "repro"})
    except Exception as error:  # each try says it again
        print(f"imports: {error}", file=sys.stderr)


def _leading(source: str) -> ast.Module:
    tree = ast.parse(source)
    kept: list[ast.stmt] = []
    for statement in tree.body:
        text = ast.get_source_segment(source, statement) or ""
        imports = isinstance(statement, (ast.Import, ast.ImportFrom, ast.Expr, ast.Assign))
        named = isinstance(statement, (ast.Import, ast.ImportFrom)) or "os.environ" in text
        constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not imports or not (named or constant):
            break
        kept.append(statement)
    tree.body = kept
    return tree


if __name__ == "__main__":
    main()
