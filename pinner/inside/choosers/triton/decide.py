"""The rule by which a lock decides a call: pure, from locked entries and live configs."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ... import values

Config = Dict[str, Any]


class Live(NamedTuple):
    """A config that the tuner offers now: its encoded fields, and the tuner's own object."""

    fields: Config
    text: str
    config: Any


class Decision(NamedTuple):
    """The config to run.

    how: "forced" (the entry of this key), "shared" (the entry of a key that Triton's own key
    cannot tell apart from this one) or "fallback" (by rule, the key is not in the lock).
    """

    live: Live
    how: str
    entry: Optional[Dict[str, Any]]


class Invalid(Exception):
    """A locked entry cannot be forced here. `candidates` and `nearest` say what there is."""

    def __init__(
        self,
        text: str,
        candidates: Sequence[Config] = (),
        nearest: Optional[Config] = None,
        config: Optional[Config] = None,
    ) -> None:
        super().__init__(text)
        self.candidates = list(candidates)
        self.nearest = nearest
        self.config = config


class LockedKernel:
    """The entries of one kernel, indexed.

    record: the kernel's part of the compiled pins: ``{"entries": […], "fallback": […]}``.
    """

    def __init__(self, record: Dict[str, Any]) -> None:
        self.entries: List[Dict[str, Any]] = record["entries"]
        self.fallback = [values.canonical(config) for config in record.get("fallback", ())]
        self.sources = {entry["source"] for entry in self.entries}
        self._exact = {(e["source"], e["key"]): e for e in self.entries}
        self._shared: Dict[Tuple[str, str], List[Dict[str, Any]]] = {}
        for entry in self.entries:
            self._shared.setdefault((entry["source"], entry["share"]), []).append(entry)

    def find(self, source: str, text: str, share: str) -> Tuple[Optional[Dict[str, Any]], str]:
        """The entry for a key, and how it was found."""
        entry = self._exact.get((source, text))
        if entry is not None:
            return entry, "forced"
        neighbours = self._shared.get((source, share), [])
        if len({values.canonical(e["config"]) for e in neighbours}) == 1:
            return neighbours[0], "shared"
        return None, "fallback"

    def of_source(self, source: str) -> List[Dict[str, Any]]:
        """The entries that were recorded from this source."""
        return [entry for entry in self.entries if entry["source"] == source]

    def contested(self, source: str, share: str) -> bool:
        """Whether keys that Triton cannot tell apart are locked to different configs."""
        neighbours = self._shared.get((source, share), [])
        return len({values.canonical(e["config"]) for e in neighbours}) > 1


def live_configs(encoded: Sequence[Tuple[Config, Any]]) -> List[Live]:
    """`Live` for each (encoded fields, config object)."""
    return [Live(fields, values.canonical(fields), config) for fields, config in encoded]


def decide(
    locked: Optional[LockedKernel], source: str, text: Optional[str], share: str, live: List[Live]
) -> Decision:
    """The decision for one call.

    locked: the kernel in the lock, None when it is not there.
    text: canonical key, None when the key cannot be stored.
    live: what the tuner offers after pruning, in its order; never empty.
    Raises Invalid when the lock names a config that is not on offer, or the kernel has changed.
    """
    if locked is None or text is None:
        return Decision(by_rule(locked, live), "fallback", None)
    check_source(locked, source)
    entry, how = locked.find(source, text, share)
    if entry is None:
        return Decision(by_rule(locked, live), "fallback", None)
    return Decision(match(entry, live), how, entry)


def check_source(locked: LockedKernel, source: str) -> None:
    """Raises Invalid when no locked entry was recorded from this source."""
    if source in locked.sources:
        return
    raise Invalid(
        "the kernel's source has changed: locked %s, found %s. "
        "Record again, or take back the change" % (" or ".join(sorted(locked.sources)), source)
    )


def match(entry: Dict[str, Any], live: List[Live]) -> Live:
    """The live config that an entry names. Raises Invalid, with the nearest one, without it."""
    wanted = values.canonical(entry["config"])
    for candidate in live:
        if candidate.text == wanted:
            return candidate
    near = nearest(entry["config"], live)
    raise Invalid(
        "the locked config %s is not among the %d that the tuner offers; the nearest is %s. "
        "Record again, or bring the config back to the kernel's list"
        % (wanted, len(live), near.text),
        [candidate.fields for candidate in live],
        near.fields,
        entry["config"],
    )


def by_rule(locked: Optional[LockedKernel], live: List[Live]) -> Live:
    """The lock's fallback for a key that it does not hold.

    The first of the kernel's locked configs, most used first, that is live here; without one,
    the first live config in serialised order. The order of the tuner's list does not matter.
    """
    by_text: Dict[str, Live] = {candidate.text: candidate for candidate in reversed(live)}
    for text in locked.fallback if locked is not None else ():
        if text in by_text:
            return by_text[text]
    return by_text[min(by_text)]


def nearest(config: Config, live: List[Live]) -> Live:
    """The live config that differs in the fewest fields (ties: serialised order)."""

    def distance(candidate: Live) -> Tuple[int, str]:
        names = set(config) | set(candidate.fields)
        differing = sum(
            name not in config
            or name not in candidate.fields
            or values.canonical(config[name]) != values.canonical(candidate.fields[name])
            for name in names
        )
        return differing, candidate.text

    return min(live, key=distance)
