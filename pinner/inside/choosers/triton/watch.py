"""What one process knows of one autotuner: its name, its source, what it has decided."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

from ... import values
from . import call as calls
from . import source as sources
from . import versions
from .code import Compiled
from .decide import Config, Live, LockedKernel, live_configs


class Pending(NamedTuple):
    """A decision in the making.

    forced: the config is already known, so nothing may be benchmarked.
    timings: (encoded config, figure of the benchmark), filled while Triton times.
    """

    call: calls.Call
    live: List[Live]
    how: str
    entry: Optional[Dict[str, Any]]
    forced: bool
    timings: List[Tuple[Config, float]]


class Watch:
    """State beside an `Autotuner`; it holds no reference to it."""

    def __init__(self, tuner: Any) -> None:
        self.function = tuner.base_fn
        self.module = normal_module(self.function.__module__)
        self.kernel = "%s:%s" % (self.module, self.function.__qualname__)
        self.defaults = calls.signature_defaults(self.function)
        self.decided: Dict[str, Any] = {}
        self.known_keys: Set[Any] = set()
        self.pending: Optional[Pending] = None
        self.asking = False
        self.warming = False
        self.outer_heuristics: Tuple[str, ...] = ()
        self.uncommitted: List[Compiled] = []
        self.chosen: Dict[str, Config] = {}
        self.entries: Dict[str, Dict[str, Any]] = {}
        self.said: Set[Any] = set()
        self._source = ""
        self._locked: Optional[LockedKernel] = None
        self._looked_up = False

    def source(self) -> str:
        """The source hash; read late, since the functions it calls may be defined later."""
        if not self._source:
            self._source = sources.source_hash(self.function)
        return self._source

    def locked(self, pins: Callable[[str], Optional[Dict[str, Any]]]) -> Optional[LockedKernel]:
        """The kernel in the lock, indexed once. pins: kernel name to its part of the pins."""
        if not self._looked_up:
            record = pins(self.kernel)
            self._locked = None if record is None else LockedKernel(record)
            self._looked_up = True
        return self._locked

    def first_time(self, *what: Any) -> bool:
        """Whether this is said for the first time in this process."""
        if what in self.said:
            return False
        self.said.add(what)
        return True


def normal_module(name: str) -> str:
    """A module's name as every process of a run knows it: spawn calls `__main__` otherwise."""
    return "__main__" if name == "__mp_main__" else name


def encode_configs(configs: List[Any]) -> Tuple[List[Live], str]:
    """The live configs, and why they cannot be stored ("" when they can)."""
    refusal = ""
    encoded = []
    for config in configs:
        fields: Config = {}
        if not hasattr(config, "kwargs"):  # found in a cache that somebody else writes
            refusal = "a %s where a triton.Config was expected" % type(config).__name__
            encoded.append(({"object": type(config).__name__}, config))
            continue
        for name, value in versions.config_fields(config).items():
            try:
                fields[name] = values.encode(value)
            except values.Unpinnable as error:
                refusal = "config value %r: %s" % (name, error)
                fields[name] = {"object": type(value).__name__}
        encoded.append((fields, config))
    return live_configs(encoded), refusal
