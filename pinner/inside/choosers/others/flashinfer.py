"""FlashInfer's autotuner: the tactic of each operation and shape, picked by timing.

It times only inside `autotune(True)`, and keeps what it picked under a key that means the same in
every process (`ProfilingCacheKey.file_key`), the form of its own cache files. A pick is written
down when it is stored. Enforcing puts the locked picks where loaded cache files go, which is looked
up before anything is timed; a shape that is not there takes FlashInfer's fallback tactic.
(flashinfer 0.6.18, flashinfer/autotuner/autotuner.py; one file autotuner.py before)
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Dict, Set

from . import settings

if TYPE_CHECKING:
    from types import ModuleType
    from typing import List, Tuple

CHOOSER = "flashinfer"
_TIMED = "a tactic that was picked by timing"
_LOADED = "digest of what the program loaded from a cache file of FlashInfer's"


def install(module: ModuleType) -> None:
    """Hook the tuner where it is made; the package only passes on what its file defines."""
    tuner = getattr(module, "AutoTuner", None)
    if tuner is None or tuner.__module__ != module.__name__:
        return
    _wrap_init(tuner, module)
    _wrap_load(tuner)
    _wrap_profile(tuner)


def _wrap_init(tuner: Any, module: Any) -> None:
    original = tuner.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.profiling_cache = _Picks(self.profiling_cache, module)
        wanted = _wanted(module)
        if wanted:
            self._file_configs = _Locked(self._file_configs, wanted)
            self._logged_file_hits = _FirstHits(wanted)

    tuner.__init__ = __init__


def _wrap_load(tuner: Any) -> None:
    original = tuner.load_configs

    @functools.wraps(original)
    def load_configs(self: Any, path: str) -> Any:
        taken = original(self, path)
        wanted = settings.forced(CHOOSER)
        loaded = {key: each for key, each in self._file_configs.items() if key not in wanted}
        if loaded:
            digest = _digest(loaded)
            settings.report(CHOOSER, "loaded configs", digest, settings.RECORDED, _LOADED)
        return taken

    tuner.load_configs = load_configs


def _wrap_profile(tuner: Any) -> None:
    """Time nothing where the lock decides: all tactics of a miss are equally bad, and the tuner
    takes its fallback."""
    original = tuner._profile_single_kernel

    @functools.wraps(original)
    def _profile_single_kernel(self: Any, runner: Any, *args: Any, **kwargs: Any) -> Any:
        if settings.on_miss() == "tune":
            return original(self, runner, *args, **kwargs)
        settings.problem(
            "missed",
            CHOOSER,
            type(runner).__name__,
            "a shape is not in the lock: FlashInfer's fallback tactic is taken; record again",
        )
        return float("inf")

    tuner._profile_single_kernel = _profile_single_kernel


class _Picks(Dict[Any, Any]):
    """The tuner's own table. Only storing has a method of ours: a look-up is the dictionary's."""

    def __init__(self, content: Any, module: Any) -> None:
        super().__init__(content)
        self._module = module

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        tactic = self._module._tactic_to_json(value[0])
        settings.report_forced(CHOOSER, key.file_key, [key.runner_class_name, tactic], _TIMED)


class _Locked(Dict[Any, Any]):
    """What was loaded from cache files, with the locked picks always among it.

    `autotune(cache=…)` clears the table and fills it from another file.
    """

    def __init__(self, content: Any, wanted: Any) -> None:
        super().__init__(content)
        self.wanted = wanted
        self.update(wanted)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, self.wanted.get(key, value))

    def clear(self) -> None:
        super().clear()
        self.update(self.wanted)


class _FirstHits(Set[Any]):
    """The tuner's set of operations and runners that had a pick from a file, each added once.

    Then the locked picks of that operation and runner are in force, and written down.
    """

    def __init__(self, wanted: Any) -> None:
        super().__init__()
        self._wanted = wanted

    def add(self, operation_and_runner: Any) -> None:
        super().add(operation_and_runner)
        start = str(tuple(operation_and_runner))[:-1] + ","
        for key, (runner, tactic) in self._wanted.items():
            if key.startswith(start):
                settings.report_forced(CHOOSER, key, [runner, _listed(tactic)], _TIMED)


def _wanted(module: Any) -> Dict[str, Tuple[str, Any]]:
    """The locked picks in the form that `load_configs` gives them."""
    found = {}
    for name, value in settings.forced(CHOOSER).items():
        if isinstance(value, list) and len(value) == 2:
            found[name] = (str(value[0]), module._json_to_tactic(value[1]))
    return found


def _listed(tactic: Any) -> Any:
    if isinstance(tactic, tuple):
        return [_listed(each) for each in tactic]
    return tactic


def _digest(configs: Any) -> str:
    import hashlib

    lines: List[str] = sorted("%s=%r" % item for item in configs.items())
    return "sha256:" + hashlib.sha256("\n".join(lines).encode("utf-8")).hexdigest()
