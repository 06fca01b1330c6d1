"""Stands in for helion 1.4."""

from .runtime.kernel import Config, kernel

__all__ = ["Config", "kernel"]
