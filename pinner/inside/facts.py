"""The software and hardware facts of this process that can change bits."""

from __future__ import annotations


def check_before_torch() -> None:
    """Compare what is known before torch runs."""


def report() -> None:
    """Write the facts line."""
