"""Lays a `Lock` out as lines of TOML: entries in a stable order, one field a line, for small
diffs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from pinner.inside.choosers.cublaslt import fields

from .emit import assignment, assignments, list_assignment
from .errors import LockError
from .schema import (
    BLOB,
    CHOOSERS,
    MATMUL,
    Entry,
    Evidence,
    Lock,
    Run,
    Setting,
    StreamRecord,
    TritonFallback,
)

_ABOUT = """\
# Lockfile of pinner: the run-time choices of one run, to be reviewed and committed like code.
# A [[triton]] table is one choice: for this kernel (source: a digest without lines and comments)
# and this key (arguments by name) the autotuner took this config, out of so many alternatives.
# code and specs: the machine code seen for it, one for each specialisation of the arguments.
# [[triton.fallback]]: what a key that is not here gets, the first config that is live, untimed.
"""
_ABOUT_OTHERS = {
    "inductor": """\
# [[inductor]]: the same for what Inductor decides; kernel is kind and operation, KIND:NAME.
""",
    "cublaslt": """\
# [[cublaslt]]: for this problem cuBLASLt's heuristic returned this algo; blob: the same as it came.
""",
    "setting": """\
# [[setting]]: a switch of another library: forced to this value, recorded only, or not held (no).
""",
}
_ABOUT_END = "# Edits by hand are fine, `pinner check` reads them; [end] counts {} tables."


def lines_of(lock: Lock) -> Iterator[str]:
    """The lines of the file, without their newlines. Raises `LockError` for what has no place."""
    _check_choosers(lock)
    yield _about(lock)
    yield assignment("version", lock.version)
    yield from _run(lock.run)
    yield from ("", "[stack.hard]", *assignments(lock.stack.hard))
    yield from ("", "[stack.soft]", *assignments(lock.stack.soft))
    yield from ("", "[policy]", *assignments(lock.policy))
    yield from _evidence(lock.evidence)
    yield from _triton(lock.triton, _by_kernel(lock))
    for entry in sorted(lock.inductor, key=lambda each: each.identity):
        yield from _entry(entry)
    for entry in sorted(lock.cublaslt, key=lambda each: each.identity):
        yield from _problem(entry)
    for setting in sorted(lock.settings, key=lambda each: each.identity):
        yield from _setting(setting)
    yield from ("", "[end]", assignment("entries", lock.count))


def _about(lock: Lock) -> str:
    """The head of the file: of each kind of table that is in it; never silent about [[triton]]."""
    others = {"inductor": lock.inductor, "cublaslt": lock.cublaslt, "setting": lock.settings}
    about = [_ABOUT_OTHERS[kind] for kind, tables in others.items() if tables]
    counted = "all these" if about else "the [[triton]]"
    return "".join([_ABOUT, *about, _ABOUT_END.format(counted)])


def _check_choosers(lock: Lock) -> None:
    """An entry among those of another chooser would be read back as one of theirs."""
    for name, entries in zip(CHOOSERS, (lock.triton, lock.inductor, lock.cublaslt), strict=True):
        for entry in entries:
            if entry.chooser != name:
                raise LockError(
                    f"expected entries of {name} in its part of the lock, "
                    f"found one of {entry.chooser}"
                )


def _run(run: Run) -> Iterator[str]:
    yield from ("", "[run]")
    yield assignment("command", run.command)
    yield assignment("created", run.created)
    yield assignment("pinner", run.pinner)
    yield assignment("sealed", run.sealed)
    yield assignment("complete", run.complete)
    yield assignment("runs", run.runs)
    yield assignment("world_size", run.world_size)
    if run.hosts > 1:
        yield assignment("hosts", run.hosts)
    yield assignment("conflicts", run.conflicts)


def _evidence(evidence: Evidence) -> Iterator[str]:
    yield from ("", "[evidence]")
    yield assignment("algorithm", evidence.algorithm)
    yield assignment("steps", evidence.steps)
    for stream in sorted(evidence.streams, key=lambda each: (each.name, each.rank)):
        yield from _stream(stream)


def _stream(stream: StreamRecord) -> Iterator[str]:
    yield from ("", "[[evidence.stream]]")
    yield assignment("name", stream.name)
    yield assignment("rank", stream.rank)
    yield assignment("steps", stream.steps)
    yield assignment("digest", stream.digest)
    if stream.head:
        yield from list_assignment("head", stream.head)
    if stream.at:
        yield assignment("at", stream.at)
    if stream.numbers:
        yield assignment("numbers", stream.numbers)


def _by_kernel(lock: Lock) -> dict[str, TritonFallback]:
    """The fallbacks; in the file each stands below the last entry of its kernel."""
    kernels = {entry.kernel for entry in lock.triton}
    found: dict[str, TritonFallback] = {}
    for fallback in lock.fallbacks:
        if fallback.kernel not in kernels or fallback.kernel in found:
            raise LockError(
                f"expected one fallback for a kernel that has entries, found {fallback.kernel} "
                + ("twice" if fallback.kernel in found else "without any")
            )
        found[fallback.kernel] = fallback
    return found


def _triton(entries: Sequence[Entry], fallbacks: dict[str, TritonFallback]) -> Iterator[str]:
    ordered = sorted(entries, key=lambda entry: entry.identity)
    for kernel, of_kernel in groupby(ordered, key=lambda entry: entry.kernel):
        for entry in of_kernel:
            yield from _entry(entry)
        if kernel in fallbacks:
            yield from _fallback(fallbacks[kernel])


def _entry(entry: Entry) -> Iterator[str]:
    yield from ("", f"[[{entry.chooser}]]")
    yield assignment("kernel", entry.kernel)
    if entry.source or entry.chooser == "triton":
        yield assignment("source", entry.source)
    yield assignment("key", entry.key)
    yield assignment("config", entry.config)
    yield assignment("alternatives", entry.alternatives)
    if entry.code or entry.specs:
        yield from list_assignment("code", entry.code)
        yield from list_assignment("specs", entry.specs)
    if entry.options:
        yield assignment("options", entry.options)
    if entry.heuristics:
        yield assignment("heuristics", entry.heuristics)
    if entry.note:
        yield assignment("note", entry.note)


def _fallback(fallback: TritonFallback) -> Iterator[str]:
    yield from ("", "[[triton.fallback]]")
    yield assignment("kernel", fallback.kernel)
    yield from list_assignment("configs", fallback.configs)


def _problem(entry: Entry) -> Iterator[str]:
    """An entry of cuBLASLt: kernel and source are implied, the blob stands apart."""
    lost = (entry.code, entry.specs, entry.options, entry.heuristics)
    if entry.kernel != MATMUL or entry.source or any(lost) or BLOB not in entry.config:
        raise LockError(
            f"expected a problem of kernel {MATMUL!r} with a blob and without source, code and "
            f"options, found {entry.kernel!r} with the fields {', '.join(sorted(entry.config))}",
            entry="[[cublaslt]]",
        )
    algo = {name: value for name, value in entry.config.items() if name != BLOB}
    wrong = fields.fault_of(algo)
    if wrong:
        raise LockError(wrong, entry="[[cublaslt]]", field="algo")
    yield from ("", "[[cublaslt]]")
    yield assignment("problem", entry.key)
    yield assignment("algo", algo)
    yield assignment(BLOB, entry.config[BLOB])
    yield assignment("alternatives", entry.alternatives)
    if entry.note:
        yield assignment("note", entry.note)


def _setting(setting: Setting) -> Iterator[str]:
    yield from ("", "[[setting]]")
    yield assignment("chooser", setting.chooser)
    yield assignment("name", setting.name)
    yield assignment("value", setting.value)
    yield assignment("held", setting.held)
    if setting.note:
        yield assignment("note", setting.note)
