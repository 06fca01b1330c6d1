"""Builds a `Lock` from the text of a lockfile: nothing unknown, nothing missing, nothing cut."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any

from pinner.inside.choosers.cublaslt import fields
from pinner.inside.values import canonical

from .errors import LockError
from .fields import ENTRY_TABLES, Document, Table, described
from .schema import (
    BLOB,
    HEAD,
    HELD,
    MATMUL,
    VERSION,
    Chooser,
    Entry,
    Evidence,
    Held,
    Identity,
    Lock,
    Run,
    Setting,
    Stack,
    StreamRecord,
    TritonFallback,
)

if sys.version_info >= (3, 11):
    try:
        import tomli as toml  # compiled; several times as fast
    except ImportError:
        import tomllib as toml
else:
    import tomli as toml

# cublasLtMatmulAlgo_t: 64 bytes.
_BLOB = re.compile(r"[0-9a-f]{128}")

# The last table and the end of the text. With it in place, no part of a file is a file.
_END = re.compile(
    r"^[ \t]*\[end\][ \t]*(#[^\n]*)?\n"
    r"([ \t]*(#[^\n]*)?\n)*"
    r"[ \t]*entries[ \t]*=[ \t]*[0-9]+[ \t]*(#[^\n]*)?\n"
    r"([ \t]*(#[^\n]*)?\n)*\Z",
    re.MULTILINE,
)


def lock_from(document: Document) -> Lock:
    """Raises `LockError`, and nothing else, for text that is no lockfile."""
    try:
        return _lock(_parsed(document), document)
    except RecursionError:
        raise LockError(
            "expected values a few levels deep, found far deeper ones", source=document.source
        ) from None


def _parsed(document: Document) -> dict[str, Any]:
    try:
        data: dict[str, Any] = toml.loads(document.text)
    except toml.TOMLDecodeError as error:
        raise _not_toml(document, str(error)) from None
    except ValueError:
        raise _not_toml(document, "an integer with more digits than Python reads") from None
    return data


def _not_toml(document: Document, found: str) -> LockError:
    place = re.search(r"at line (\d+), column \d+", found)
    line = int(place.group(1)) if place else document.text.count("\n") + 1
    return LockError(
        f"expected TOML, found: {found}; the file is damaged, cut or edited: "
        "restore it or record again",
        source=document.source,
        line=line,
        entry=document.entry_at(line),
    )


def _lock(data: dict[str, Any], document: Document) -> Lock:
    _check_not_newer(data, document)
    _check_not_cut(document)
    top = Table(data, document)
    top.integer("version", least=1)
    triton, fallbacks = _triton(top, document)
    lock = Lock(
        run=_run(Table(top.table("run"), document, "run")),
        stack=_stack(Table(top.table("stack"), document, "stack"), document),
        policy=Table(top.table("policy"), document, "policy").all_values(),
        evidence=_evidence(Table(top.table("evidence"), document, "evidence"), document),
        triton=triton,
        fallbacks=fallbacks,
        inductor=_inductor(top, document),
        cublaslt=_cublaslt(top, document),
        settings=_settings(top, document),
    )
    _check_sealed(Table(top.table("run"), document, "run"), lock)
    _check_count(Table(top.table("end"), document, "end"), data, lock.count)
    top.close()
    return lock


def _check_not_newer(data: dict[str, Any], document: Document) -> None:
    version = data.get("version")
    if type(version) is int and version > VERSION:
        raise LockError(
            f"expected at most {VERSION}, found {version}: a newer pinner wrote it; update",
            source=document.source,
            line=document.line_of("", 0, "version"),
            field="version",
        )


def _check_not_cut(document: Document) -> None:
    if _END.search(document.text):
        return
    line = document.text.count("\n") + (not document.text.endswith("\n"))
    raise LockError(
        "expected the [end] table with its count and a newline to be the last thing in the file, "
        "found the end of the file here; it is cut or was edited: restore it or record again",
        source=document.source,
        line=max(line, 1),
        entry=document.entry_at(line),
    )


def _check_count(end: Table, data: dict[str, Any], entries: int) -> None:
    expected = end.integer("entries")
    end.close()
    if expected != entries:
        kinds = [name for name in ENTRY_TABLES if data.get(name)] or ["triton"]
        tables = " + ".join(f"[[{name}]]" for name in kinds)
        raise end.error(
            "entries",
            f"expected {expected} {tables} tables, found {entries}; the file lost or gained "
            "some: restore it, or correct the count after an edit by hand",
        )


def _run(table: Table) -> Run:
    run = Run(
        command=table.strings("command"),
        created=table.string("created"),
        pinner=table.string("pinner"),
        sealed=table.boolean("sealed"),
        complete=table.boolean("complete"),
        runs=table.integer("runs"),
        world_size=table.integer("world_size", least=1),
        hosts=table.integer("hosts", least=1, default=1),
        conflicts=table.integer("conflicts"),
    )
    table.close()
    return run


def _check_sealed(table: Table, lock: Lock) -> None:
    """A seal says that validating runs left the same evidence: both must be there."""
    if not lock.run.sealed:
        return
    if lock.run.runs < 1:
        raise table.error("runs", "expected at least 1 validating run of a sealed lock, found 0")
    if not lock.evidence.streams:
        raise table.error(
            "sealed", "expected the evidence of validating runs in a sealed lock, found none"
        )


def _stack(table: Table, document: Document) -> Stack:
    hard = Table(table.table("hard"), document, "stack.hard").all_scalars()
    soft = Table(table.table("soft"), document, "stack.soft").all_scalars()
    table.close()
    return Stack(hard=hard, soft=soft)


def _evidence(table: Table, document: Document) -> Evidence:
    streams = tuple(
        _stream(Table(data, document, "evidence.stream", index, f"[[evidence.stream]] {index + 1}"))
        for index, data in enumerate(table.array("stream", ()))
    )
    evidence = Evidence(table.string("algorithm"), table.integer("steps"), streams)
    table.close()
    return evidence


def _stream(table: Table) -> StreamRecord:
    stream = StreamRecord(
        name=table.string("name"),
        rank=table.integer("rank", least=None),
        steps=table.integer("steps"),
        digest=table.digest("digest"),
        head=table.fingerprints("head"),
        at=table.integers("at", ()),
        numbers=table.digest("numbers") if table.has("numbers") else "",
    )
    table.close()
    _check_stream(table, stream)
    return stream


def _check_stream(table: Table, stream: StreamRecord) -> None:
    listed = min(HEAD, stream.steps)
    if len(stream.head) != listed:
        raise table.error(
            "head",
            f"expected the digests of the first {listed} of {stream.steps} steps, "
            f"found {len(stream.head)}",
        )
    if stream.at and len(stream.at) != len(stream.head):
        raise table.error(
            "at",
            f"expected {len(stream.head)}, one for each digest in head, found {len(stream.at)}",
        )
    beyond = bool(stream.at) and stream.steps > len(stream.at)
    if bool(stream.numbers) != beyond:
        raise table.error(
            "numbers",
            "expected it where `at` is there and does not list every step, "
            f"found {'one' if stream.numbers else 'none'}",
        )


def _triton(top: Table, document: Document) -> tuple[tuple[Entry, ...], tuple[TritonFallback, ...]]:
    entries: dict[Identity, Entry] = {}
    fallbacks: dict[str, TritonFallback] = {}
    for index, data in enumerate(top.array("triton", ())):
        table = Table(data, document, "triton", index, _label("triton", index, data))
        _keep(entries, _entry(table, "triton", table.digest("source")), table)
        for nested in table.array("fallback", ()):
            fallback = _fallback(Table(nested, document, "triton.fallback", len(fallbacks)))
            if fallback.kernel in fallbacks:
                raise table.error(
                    "fallback", f"a second one for kernel {fallback.kernel}: keep one"
                )
            fallbacks[fallback.kernel] = fallback
        table.close()
    _check_fallbacks(top, entries.values(), fallbacks)
    return tuple(entries.values()), tuple(fallbacks.values())


def _inductor(top: Table, document: Document) -> tuple[Entry, ...]:
    entries: dict[Identity, Entry] = {}
    for index, data in enumerate(top.array("inductor", ())):
        table = Table(data, document, "inductor", index, _label("inductor", index, data))
        source = table.digest("source") if table.has("source") else ""
        entry = _entry(table, "inductor", source)
        _check_inductor(entry, table)
        _keep(entries, entry, table)
        table.close()
    return tuple(entries.values())


def _check_inductor(entry: Entry, table: Table) -> None:
    """An entry that could never be met, or never be forced, is an edit gone wrong."""
    kind, _, name = entry.kernel.partition(":")
    if not (kind and name):
        raise table.error(
            "kernel", f"expected KIND:NAME, such as `gemm:addmm`, found {entry.kernel!r}"
        )
    if not entry.config:
        raise table.error("config", "expected what was chosen, found an empty table")


def _cublaslt(top: Table, document: Document) -> tuple[Entry, ...]:
    entries: dict[Identity, Entry] = {}
    for index, data in enumerate(top.array("cublaslt", ())):
        table = Table(data, document, "cublaslt", index, _label("cublaslt", index, data))
        entry = Entry(
            chooser="cublaslt",
            kernel=MATMUL,
            source="",
            key=table.values("problem"),
            config=_algo(table),
            alternatives=table.integer("alternatives", least=1),
            note=table.string("note", ""),
        )
        if entry.identity in entries:
            first = list(entries).index(entry.identity) + 1
            raise table.error("problem", f"the same problem as entry {first}: keep one")
        entries[entry.identity] = entry
        table.close()
    return tuple(entries.values())


def _algo(table: Table) -> dict[str, Any]:
    """The algorithm's fields, and the blob that the library gave."""
    algo, blob = table.values("algo"), table.string(BLOB)
    if BLOB in algo:
        raise table.error("algo", f"expected {BLOB} beside these fields, found it among them")
    wrong = fields.fault_of(algo)
    if wrong:
        raise table.error("algo", f"{wrong}; correct it or record again")
    if not _BLOB.fullmatch(blob):
        raise table.error(
            BLOB,
            f"expected 128 hexadecimal digits, found {described(blob)}; the file is damaged or "
            "edited: restore it or record again",
        )
    return {**algo, BLOB: blob}


def _settings(top: Table, document: Document) -> tuple[Setting, ...]:
    settings: dict[tuple[str, str], Setting] = {}
    for index, data in enumerate(top.array("setting", ())):
        table = Table(data, document, "setting", index, f"[[setting]] entry {index + 1}")
        held: Held = table.member("held", HELD)  # type: ignore[assignment]
        setting = Setting(
            chooser=table.string("chooser"),
            name=table.string("name"),
            value=table.value("value"),
            held=held,
            note=table.string("note", ""),
        )
        if setting.identity in settings:
            first = list(settings).index(setting.identity) + 1
            raise table.error("name", f"the same chooser and name as entry {first}: keep one")
        settings[setting.identity] = setting
        table.close()
    return tuple(settings.values())


def _label(kind: str, index: int, data: Any) -> str:
    kernel = data.get("kernel") if isinstance(data, dict) else None
    return f"[[{kind}]] entry {index + 1}" + (f" ({kernel})" if isinstance(kernel, str) else "")


def _keep(entries: dict[Identity, Entry], entry: Entry, table: Table) -> None:
    if entry.identity in entries:
        first = list(entries).index(entry.identity) + 1
        raise table.error("key", f"the same kernel, source and key as entry {first}: keep one")
    entries[entry.identity] = entry


def _entry(table: Table, chooser: Chooser, source: str) -> Entry:
    entry = Entry(
        chooser=chooser,
        kernel=table.string("kernel"),
        source=source,
        key=table.values("key"),
        config=table.values("config"),
        alternatives=table.integer("alternatives", least=1),
        code=table.digests("code"),
        specs=table.strings("specs", ()),
        options=table.values("options", {}),
        heuristics=table.values("heuristics", {}),
        note=table.string("note", ""),
    )
    if len(entry.code) != len(entry.specs):
        raise table.error(
            "specs",
            f"expected {len(entry.code)}, one for each digest in code, found {len(entry.specs)}",
        )
    return entry


def _fallback(table: Table) -> TritonFallback:
    kernel = table.string("kernel")
    configs = tuple(table.checked_values("configs", config) for config in table.array("configs"))
    table.close()
    if not configs:
        raise table.error("configs", "expected at least one config, found none")
    if len({canonical(config) for config in configs}) < len(configs):
        raise table.error("configs", "expected different configs, found one of them twice")
    return TritonFallback(kernel, configs)


def _check_fallbacks(
    top: Table, entries: Iterable[Entry], fallbacks: dict[str, TritonFallback]
) -> None:
    kernels = {entry.kernel for entry in entries}
    for kernel in fallbacks:
        if kernel not in kernels:
            raise top.error(
                "triton", f"a fallback for {kernel}, of which there is no entry: remove it"
            )
