"""Locks, ledger lines and Hypothesis strategies that the tests of the lockfile build on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from pinner.inside.values import canonical
from pinner.lockfile.ledgers import ProcessLedger, ledger_of
from pinner.lockfile.schema import (
    HEAD,
    HELD,
    Entry,
    Evidence,
    Lock,
    Run,
    Setting,
    Stack,
    StreamRecord,
    TritonFallback,
)

KERNEL = "fla.modules.layernorm:layer_norm_fwd_kernel"
SOURCE = "sha256:" + "5" * 64


def digest(text: str) -> str:
    """A digest in full that begins with these hexadecimal digits."""
    return "sha256:" + text.ljust(64, "0")


def entry(size: int = 64, **fields: Any) -> Entry:
    """An entry like those of a real run; ``size`` is its key."""
    given: dict[str, Any] = {
        "chooser": "triton",
        "kernel": KERNEL,
        "source": SOURCE,
        "key": {"N": size, "x:dtype": "float32"},
        "config": {"BT": 32, "num_warps": 4, "num_stages": 3},
        "alternatives": 9,
    }
    return Entry(**{**given, **fields})


ALGO = {
    "id": 66,
    "tile": 20,
    "stages": 35,
    "splitk": 1,
    "reduction": 0,
    "swizzle": 0,
    "custom": 0,
    "inner": 0,
    "cluster": 0,
    "workspace": 0,
}


def problem(m: int = 64, blob: str = "ab" * 64, **algo: Any) -> Entry:
    """An entry of cuBLASLt; ``m`` is its key."""
    return Entry(
        chooser="cublaslt",
        kernel="matmul",
        source="",
        key={"m": m, "n": 64, "transa": True, "atype": "bf16"},
        config={**ALGO, **algo, "blob": blob},
        alternatives=8,
    )


def operation(name: str = "gemm:addmm", size: int = 64, **fields: Any) -> Entry:
    """An entry of Inductor; ``size`` is its key."""
    given: dict[str, Any] = {
        "chooser": "inductor",
        "kernel": name,
        "source": "",
        "key": {"m": size, "dtype": "float32"},
        "config": {"choice": "aten"},
        "alternatives": 2,
    }
    return Entry(**{**given, **fields})


def setting(name: str = "NCCL_ALGO", **fields: Any) -> Setting:
    given: dict[str, Any] = {"chooser": "nccl", "value": "Ring", "held": "recorded"}
    return Setting(name=name, **{**given, **fields})


def lock(*entries: Entry, **fields: Any) -> Lock:
    given: dict[str, Any] = {
        "run": Run(
            command=("python", "train.py", "--name", "größe"),
            created="2026-01-02T03:04:05+00:00",
            pinner="0.1.0",
            sealed=True,
            complete=True,
            runs=2,
        ),
        "stack": Stack({"torch": "2.13.0", "triton": "3.9.0"}, {"python": "3.11.7"}),
        "policy": {"profile": "default"},
        "evidence": Evidence(
            "sha256", 2, (StreamRecord("loss", 0, 2, digest("ab"), (digest("a"), digest("b"))),)
        ),
        "triton": entries,
    }
    return Lock(**{**given, **fields})


def full_lock(sizes: Iterable[int] = (32, 64, 128)) -> Lock:
    """A lock that uses every field of the format."""
    entries = [
        entry(
            size,
            key={"N": size, "scale": -0.0, "shape": [1, {"none": True}], "x:dtype": "float32"},
            code=(digest("aa"), digest("bb")),
            specs=("0" * 16, "1" * 16),
            options={"enable_fp_fusion": True},
            heuristics={"EVEN": False},
            note="größer — with a dash",
        )
        for size in sizes
    ]
    configs = ({"BT": 32, "num_warps": 4}, {"BT": 16, "num_warps": 4})
    return lock(*entries, fallbacks=(TritonFallback(KERNEL, configs),))


def every_chooser(sizes: Iterable[int] = (32, 64)) -> Lock:
    """A lock with entries of all choosers and settings of each kind."""
    made = list(sizes)
    built = "triton:triton_red_fused_0"
    return replace(
        full_lock(made),
        inductor=(
            *(operation(size=size) for size in made),
            operation(
                built,
                source=digest("e"),
                config={"XBLOCK": 8, "R0_BLOCK": 64, "num_warps": 4},
                code=(digest("aa"),),
                specs=("0" * 16,),
                options={"enable_fp_fusion": True},
                note="größer",
            ),
        ),
        cublaslt=tuple(replace(problem(size), note="seen on 2 ranks") for size in made),
        settings=(
            setting("NCCL_ALGO", held="forced"),
            setting("NCCL_PROTO", value={"none": True}, note="in force; cannot be set"),
            setting("benchmark", chooser="cudnn", value=True, held="no", note="switch it off"),
        ),
    )


# ---- ledgers -------------------------------------------------------------------------------


def process_line(rank: int | None = 0, **fields: Any) -> dict[str, Any]:
    given = {
        "t": "process",
        "pid": 100 + (rank or 0),
        "ppid": 1,
        "host": "node-a",
        "rank": rank,
        "world": None if rank is None else 8,
        "argv": ["train.py"],
        "run": "r1",
        "time": "2026-01-02T03:04:05Z",
    }
    return {**given, **fields}


def choice_line(
    key: Mapping[str, Any],
    config: Mapping[str, Any],
    timings: Iterable[tuple[Mapping[str, Any], float | str]] = (),
    **fields: Any,
) -> dict[str, Any]:
    timed = [[config, time] for config, time in timings]
    given = {
        "t": "choice",
        "chooser": "triton",
        "kernel": KERNEL,
        "source": SOURCE,
        "key": key,
        "config": config,
        "alternatives": max(len(timed), 1),
        "how": "tuned" if timed else "only",
    }
    return {**given, **({"timings": timed} if timed else {}), **fields}


def code_line(config: Mapping[str, Any], spec: str, code: str | None, **fields: Any) -> Any:
    given = {"t": "code", "chooser": "triton", "kernel": KERNEL, "config": config}
    return {**given, "spec": spec, "code": code, "options": {}, **fields}


def setting_line(name: str = "NCCL_ALGO", **fields: Any) -> dict[str, Any]:
    given = {"t": "setting", "chooser": "nccl", "name": name, "value": "Ring", "held": "recorded"}
    return {**given, "text": "why", **fields}


def ledger(*lines: Mapping[str, Any], rank: int | None = 0) -> ProcessLedger:
    made = ledger_of([process_line(rank), *map(dict, lines)])
    assert made is not None
    return made


def write_ledger(folder: Path, name: str, lines: Iterable[Mapping[str, Any]]) -> Path:
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="ascii")
    return path


# ---- strategies ----------------------------------------------------------------------------

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
awkward_names = st.sampled_from(
    ["", " ", "a.b", 'say "x"', "x:dtype", "it's", "none", "dtype", "#", "[t]", "ключ", "a\nb", "="]
)
names = st.one_of(awkward_names, text)
tags = st.one_of(st.just({"none": True}), st.builds(lambda name: {"dtype": name}, text))
scalars = st.one_of(
    st.booleans(),
    st.integers(),
    st.integers(-(2**4000), 2**4000),
    st.floats(),
    st.sampled_from([0.0, -0.0, 1.0, 1e16, 5e-324, float("nan"), float("inf"), float("-inf")]),
    text,
)
values = st.recursive(
    st.one_of(scalars, tags), lambda inner: st.lists(inner, max_size=4), max_leaves=8
)
tables = st.dictionaries(names, values, max_size=4)
digests = st.text("0123456789abcdef", max_size=3).map(digest)
entries = st.builds(
    Entry,
    chooser=st.just("triton"),
    kernel=st.one_of(st.sampled_from(["m:a", "m:b"]), text),
    source=st.one_of(st.sampled_from([digest("1"), digest("2")]), digests),
    key=tables,
    config=tables,
    alternatives=st.integers(1, 10**6),
    code=st.just((digest("aa"), digest("bb"))),
    specs=st.tuples(text, text),
    options=tables,
    heuristics=tables,
    note=text,
)
entry_lists = st.lists(entries, max_size=6, unique_by=lambda each: each.identity)
operations = st.builds(
    Entry,
    chooser=st.just("inductor"),
    kernel=st.one_of(st.just("gemm:mm"), text.filter(bool).map(lambda name: f"triton:{name}")),
    source=st.one_of(st.just(""), digests),
    key=tables,
    config=tables.filter(bool),
    alternatives=st.integers(1, 10**6),
    code=st.just((digest("aa"),)),
    specs=st.tuples(text),
    options=tables,
    heuristics=tables,
    note=text,
)
problems = st.builds(
    Entry,
    chooser=st.just("cublaslt"),
    kernel=st.just("matmul"),
    source=st.just(""),
    key=tables,
    config=st.builds(
        lambda algo, blob: {**algo, "blob": blob},
        st.dictionaries(st.sampled_from(sorted(ALGO)), st.integers(0, 2**16 - 1), max_size=4),
        st.sampled_from(["ab" * 64, "0" * 128]),
    ),
    alternatives=st.integers(1, 99),
    note=text,
)
switches = st.builds(
    Setting,
    chooser=st.one_of(st.sampled_from(["nccl", "cudnn"]), text),
    name=names,
    value=values,
    held=st.sampled_from(HELD),
    note=text,
)


def few(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    """None to three, of different identities."""
    unique = st.lists(strategy, max_size=3, unique_by=lambda each: each.identity)
    return unique.map(tuple)


@st.composite
def streams(draw: st.DrawFn) -> StreamRecord:
    """A stream with as many single digests as its steps ask for."""
    steps = draw(st.integers(0, 99))
    listed = min(HEAD, steps)
    first, stride = draw(st.integers(-3, 3)), draw(st.integers(0, 2))
    numbered = draw(st.booleans())
    return StreamRecord(
        name=draw(text),
        rank=draw(st.integers(-3, 9)),
        steps=steps,
        digest=draw(digests),
        head=tuple(digest(f"{number:02x}") for number in range(listed)),
        at=tuple(first + stride * place for place in range(listed if numbered else 0)),
        numbers=draw(digests) if numbered and steps > HEAD else "",
    )


@st.composite
def locks(draw: st.DrawFn) -> Lock:
    """Any lock that can be written."""
    chosen = draw(entry_lists)
    kernels = sorted({each.kernel for each in chosen})
    covered = draw(st.lists(st.sampled_from(kernels), unique=True)) if kernels else []
    configs = st.lists(tables, min_size=1, max_size=3, unique_by=canonical)
    evidence = tuple(draw(st.lists(streams(), max_size=3)))
    sealed = bool(evidence) and draw(st.booleans())
    return Lock(
        run=draw(
            st.builds(
                Run,
                command=st.lists(text, max_size=3).map(tuple),
                created=text,
                pinner=text,
                sealed=st.just(sealed),
                complete=st.booleans(),
                runs=st.integers(int(sealed), 9),
                world_size=st.integers(1, 4096),
                hosts=st.integers(1, 512),
                conflicts=st.integers(0, 99),
            )
        ),
        stack=Stack(
            draw(st.dictionaries(names, scalars, max_size=4)),
            draw(st.dictionaries(names, scalars, max_size=4)),
        ),
        policy=draw(tables),
        evidence=Evidence(draw(text), draw(st.integers(0, 99)), evidence),
        triton=tuple(chosen),
        fallbacks=tuple(TritonFallback(kernel, tuple(draw(configs))) for kernel in covered),
        inductor=draw(few(operations)),
        cublaslt=draw(few(problems)),
        settings=draw(few(switches)),
    )
