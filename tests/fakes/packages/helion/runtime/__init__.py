"""Stands in for helion 1.4, helion/runtime."""
