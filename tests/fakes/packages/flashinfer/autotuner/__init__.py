"""Stands in for flashinfer 0.6.18, flashinfer/autotuner: passes on what its file defines."""

from flashinfer.autotuner.autotuner import AutoTuner, TunableRunner, TuningConfig, autotune

__all__ = ["AutoTuner", "TunableRunner", "TuningConfig", "autotune"]
