"""Stands in for flashinfer 0.6.18."""

from flashinfer.autotuner import autotune

__all__ = ["autotune"]
