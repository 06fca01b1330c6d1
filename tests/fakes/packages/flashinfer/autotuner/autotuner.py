"""Stands in for flashinfer 0.6.18, flashinfer/autotuner/autotuner.py: where it looks, times, keeps.

The timings are the test's: `times` by tactic. `timed` lists what was timed.
"""

import contextlib
import json
import os
from dataclasses import dataclass

times = {}
timed = []


def _tactic_to_json(tactic):
    if isinstance(tactic, (tuple, list)):
        return [_tactic_to_json(each) for each in tactic]
    return tactic


def _json_to_tactic(val):
    if isinstance(val, list):
        return tuple(_json_to_tactic(each) for each in val)
    return val


class TuningConfig:
    pass


class TunableRunner:
    """One implementation of an operation."""

    def __init__(self, tactics=()):
        self.tactics = tactics

    def get_valid_tactics(self, inputs, profile):
        return self.tactics

    def get_cache_key_extras(self, inputs):
        return ()


@dataclass(frozen=True)
class ProfilingCacheKey:
    custom_op: str
    runner_class_name: str
    runner_hash: int
    nearest_profile: tuple
    extras: tuple

    @property
    def file_key(self):
        return str((self.custom_op, self.runner_class_name, self.nearest_profile, self.extras))


class AutoTuner:
    _instance = None

    def __init__(self, warmup=3, repeat=10, stream_delay_micro_secs=5000):
        self.profiling_cache = {}
        self.is_tuning_mode = False
        self._active_tuning_contexts = 0
        self._file_configs = {}
        self._logged_file_hits = set()

    @classmethod
    def get(cls):
        if cls._instance is None:
            cls._instance = AutoTuner()
        return cls._instance

    def search_cache(self, custom_op, runners, input_shapes, tuning_config, inputs=None):
        keys = []
        for number, runner in enumerate(runners):
            key = ProfilingCacheKey(
                *(custom_op, type(runner).__name__, id(runner), input_shapes),
                runner.get_cache_key_extras(inputs),
            )
            keys.append((number, key))
            if key in self.profiling_cache:
                tactic, profile = self.profiling_cache[key]
                return True, number, tactic, profile
        for number, key in keys:
            if key.file_key in self._file_configs:
                name, tactic = self._file_configs[key.file_key]
                if name != type(runners[number]).__name__:
                    continue
                log_key = (custom_op, name)
                if log_key not in self._logged_file_hits:
                    self._logged_file_hits.add(log_key)
                return True, number, tactic, None
        return False, 0, -1, None

    def choose_one(self, custom_op, runners, tuning_config, inputs, **kwargs):
        shapes = tuple(tuple(each) for each in inputs)
        hit, number, tactic, _ = self.search_cache(
            custom_op, runners, shapes, tuning_config, inputs
        )
        if hit or not self.is_tuning_mode:
            return runners[number], tactic
        least, best = float("inf"), None
        for runner in runners:
            for each in runner.get_valid_tactics(inputs, None):
                took = self._profile_single_kernel(runner, inputs, each, tuning_config, **kwargs)
                if took < least:
                    least, best = took, (runner, each)
        if best is not None:
            runner, tactic = best
            key = ProfilingCacheKey(custom_op, type(runner).__name__, id(runner), shapes, ())
            self.profiling_cache[key] = (tactic, None)
        _, number, tactic, _ = self.search_cache(custom_op, runners, shapes, tuning_config, inputs)
        return runners[number], tactic

    def _profile_single_kernel(self, runner, inputs, tactic, tuning_config, **kwargs):
        timed.append(tactic)
        return times[tactic]

    def save_configs(self, path):
        found = {
            key.file_key: [key.runner_class_name, _tactic_to_json(tactic)]
            for key, (tactic, _) in self.profiling_cache.items()
        }
        with open(path, "w") as out:
            out.write(json.dumps(found))

    def load_configs(self, path):
        with open(path) as source:
            for key, value in json.load(source).items():
                self._file_configs[key] = (value[0], _json_to_tactic(value[1]))
        return True


@contextlib.contextmanager
def autotune(tune_mode=True, cache=None, tuning_buckets=None, round_up=None, skip_ops=None):
    tuner = AutoTuner.get()
    if cache is not None:
        tuner._file_configs.clear()
        tuner._logged_file_hits.clear()
        if os.path.isfile(cache):
            tuner.load_configs(cache)
    tuner._active_tuning_contexts += tune_mode
    tuner.is_tuning_mode = tuner._active_tuning_contexts > 0
    try:
        yield
    finally:
        tuner._active_tuning_contexts -= tune_mode
        tuner.is_tuning_mode = tuner._active_tuning_contexts > 0
        if cache is not None and tune_mode:
            tuner.save_configs(cache)
