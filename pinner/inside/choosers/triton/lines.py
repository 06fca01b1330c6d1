"""The ledger lines of the Triton chooser: choices, what they became, and what went wrong."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from ... import faults, values
from . import code
from .decide import Config, Invalid
from .watch import Pending, Watch

Line = Dict[str, Any]
Entry = Dict[str, Any]


class Chosen(NamedTuple):
    """A decision as it is written down.

    how: tuned, only, disk, forced, shared, fallback or missed (see docs/how-pinning-works.md).
    """

    how: str
    config: Config
    text: str
    heuristics: Dict[str, Any]
    reset: Tuple[str, ...]


class Lines:
    """Writes one ledger line for each fact, and says each fault once. write: takes a line."""

    def __init__(self, write: Callable[[Line], None]) -> None:
        self.write = write

    def choice(self, watch: Watch, pending: Pending, chosen: Chosen) -> None:
        """A decision that was just made."""
        line: Line = {
            "t": "choice",
            "chooser": "triton",
            "kernel": watch.kernel,
            "source": watch.source(),
            "key": pending.call.key,
            "config": chosen.config,
            "alternatives": len(pending.live),
            "how": chosen.how,
            "lib": repr(pending.call.library_key),
        }
        if pending.timings:
            line["timings"] = [[c, "inf" if f == float("inf") else f] for c, f in pending.timings]
        if chosen.heuristics:
            line["heuristics"] = chosen.heuristics
        notes = _notes(watch, pending, chosen)
        if notes:
            line["notes"] = notes
        self.write(line)
        self._compare_heuristics(watch, pending, chosen)
        self._commit_code(watch, chosen, pending.entry)

    def compiled(self, watch: Watch, compiled: code.Compiled) -> None:
        """A specialisation of the kernel, kept until a decision for its config is known."""
        for text, config in watch.chosen.items():
            if code.is_made_by(compiled, config):
                self._code(watch, compiled, config, watch.entries.get(text))
                return
        watch.uncommitted.append(compiled)

    def refused(self, watch: Watch, config: Config, why: str) -> None:
        """A decision that cannot be a pin."""
        if watch.first_time("refused", why):
            self.problem("refused", watch, "cannot be a pin: " + why, config=config)

    def invalid(self, watch: Watch, key: Optional[Config], invalid: Invalid) -> faults.InvalidPin:
        """A locked entry that cannot be forced; the error to raise."""
        place = watch.kernel if key is None else "%s (key %s)" % (watch.kernel, _text(key))
        if watch.first_time("invalid", place, str(invalid)):
            more: Line = {} if key is None else {"key": key}
            if invalid.config is not None:
                more["config"] = invalid.config
            if invalid.nearest is not None:
                more.update(nearest=invalid.nearest, candidates=invalid.candidates)
            self.problem("invalid", watch, str(invalid), **more)
        return faults.InvalidPin("%s: %s" % (place, invalid))

    def missed(self, watch: Watch, key: Config) -> faults.MissedPin:
        """A key that is not in the lock where that is an error; the error to raise."""
        text = (
            "no entry for this key, and misses are errors (--on-miss error). "
            "Record it, or allow the fallback"
        )
        if watch.first_time("missed", _text(key)):
            self.problem("missed", watch, text, key=key)
        return faults.MissedPin("%s (key %s): %s" % (watch.kernel, _text(key), text))

    def elsewhere(self, watch: Watch, library_key: Any, config: Config) -> None:
        """A decision found in a cache that the tuner was never asked for."""
        if watch.first_time("elsewhere", repr(library_key)):
            text = (
                "decided outside the tuner (a cache of its own, or a write by hand) for Triton's "
                "key %r: not under the lock" % (library_key,)
            )
            self.problem("elsewhere", watch, text, config=config)

    def another_tuner(self, watch: Watch, kind: str) -> None:
        """A tuner whose decisions cannot be followed."""
        if watch.first_time("another tuner"):
            text = (
                "decided by %s, which is derived from Triton's autotuner and runs in a way of its "
                "own: not under the lock; use @triton.autotune, or pin it by its own means" % kind
            )
            self.problem("elsewhere", watch, text)

    def replayed(self, watch: Watch, config: Config, names: List[str]) -> None:
        """Two launches on equal arguments that left different bytes."""
        if watch.first_time("replay", _text(config)):
            text = "two launches on equal arguments left different bytes in " + ", ".join(names)
            self.problem("replay", watch, text, config=config)

    def problem(self, kind: str, watch: Watch, text: str, **more: Any) -> None:
        """Anything that the coverage counts against the run."""
        line = {"t": "problem", "kind": kind, "chooser": "triton", "kernel": watch.kernel}
        self.write({**line, "text": text, **more})

    # -- drift ----------------------------------------------------------------------------------

    def _commit_code(self, watch: Watch, chosen: Chosen, entry: Optional[Entry]) -> None:
        watch.chosen[chosen.text] = chosen.config
        if entry is not None:
            watch.entries[chosen.text] = entry
        for compiled in list(watch.uncommitted):
            if code.is_made_by(compiled, chosen.config):
                watch.uncommitted.remove(compiled)
                self._code(watch, compiled, chosen.config, entry)

    def _code(
        self, watch: Watch, compiled: code.Compiled, config: Config, entry: Optional[Entry]
    ) -> None:
        self.write(
            {
                "t": "code",
                "chooser": "triton",
                "kernel": watch.kernel,
                "source": watch.source(),
                "config": config,
                "spec": compiled.spec,
                "code": compiled.digest,
                "options": compiled.options,
            }
        )
        drift = "" if entry is None else _code_drift(compiled, entry)
        if drift:
            self.problem("drift", watch, drift, config=config, spec=compiled.spec)

    def _compare_heuristics(self, watch: Watch, pending: Pending, chosen: Chosen) -> None:
        locked = pending.entry.get("heuristics", {}) if pending.entry else {}
        changed = _changes(locked, chosen.heuristics)
        if changed:
            text = "the same config, other heuristics: " + ", ".join(changed)
            self.problem("drift", watch, text, config=chosen.config, key=pending.call.key)


def _code_drift(compiled: code.Compiled, entry: Entry) -> str:
    changed = _changes(entry.get("options", {}), compiled.options)
    locked = dict(zip(entry.get("specs", ()), entry.get("code", ()))).get(compiled.spec)
    other_code = None not in (locked, compiled.digest) and locked != compiled.digest
    if not changed and not other_code:
        return ""
    text = "the same config, other machine code" if other_code else "the same config"
    return text + (": " + ", ".join(changed) if changed else "")


def _changes(locked: Config, found: Config) -> List[str]:
    return [
        "%s %s → %s" % (name, values.readable(locked[name]), values.readable(found[name]))
        for name in sorted(set(locked) & set(found))
        if _text(locked[name]) != _text(found[name])
    ]


def _notes(watch: Watch, pending: Pending, chosen: Chosen) -> List[str]:
    notes = []
    if chosen.reset and len(pending.live) > 1:
        notes.append(
            "pinning changes the first call against a tuned run: %s is set to zero "
            "(reset_to_zero) only around benchmark runs. Set it to zero before the launch"
            % ", ".join(repr(name) for name in chosen.reset)
        )
    grown = _grown(pending)
    if grown and watch.first_time("grown", grown):
        notes.append(grown)
    return notes


def _grown(pending: Pending) -> str:
    if pending.entry is None:
        return ""
    before, now = pending.entry.get("alternatives", 0), len(pending.live)
    if before == now:
        return ""
    verb = "grew" if now > before else "shrank"
    return "the candidate set %s from %d to %d; still pinned" % (verb, before, now)


def _text(encoded: Any) -> str:
    return values.canonical(encoded)
