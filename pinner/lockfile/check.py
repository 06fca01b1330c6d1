"""What a reviewer should know of a lock that reads well: why it promises less than it could."""

from __future__ import annotations

from collections.abc import Iterator

from .schema import Lock


def findings(lock: Lock) -> tuple[str, ...]:
    """One line each; empty for a lock that was validated, is complete and covers every miss."""
    return (*_of_run(lock), *_of_kernels(lock), *_of_settings(lock))


def _of_run(lock: Lock) -> Iterator[str]:
    if not lock.run.sealed:
        yield "a draft: no validating runs agreed on it; `enforce` refuses it unless allowed"
    if not lock.run.complete:
        yield "not complete: a rank did not report, or a choice that was seen could not be locked"
    if not lock.evidence.streams:
        yield "without evidence: nothing shows that the run it was recorded from is deterministic"
    if not lock.stack.hard:
        yield "without hard stack facts: it would be enforced on any stack"
    if not lock.entries and not any(each.held == "forced" for each in lock.settings):
        yield "without choices: enforcing it pins nothing"


def _of_kernels(lock: Lock) -> Iterator[str]:
    covered = {fallback.kernel for fallback in lock.fallbacks}
    sources: dict[str, set[str]] = {}
    for entry in lock.triton:
        sources.setdefault(entry.kernel, set()).add(entry.source)
    chooses = {entry.kernel for entry in lock.triton if entry.alternatives > 1}
    for kernel in sorted(chooses - covered):
        yield f"{kernel}: no [[triton.fallback]]: a key that is not here gets its first live config"
    for kernel, found in sorted(sources.items()):
        if len(found) > 1:
            yield f"{kernel}: entries of {len(found)} sources; only those of the one in use count"


def _of_settings(lock: Lock) -> Iterator[str]:
    for setting in lock.settings:
        if setting.held == "no":
            yield f"{setting.place}: was active and nothing holds it: {setting.note}".rstrip(": ")
