"""A user's mistake: what was expected, what was found, what to do instead."""

from __future__ import annotations


class UsageError(Exception):
    """Something asked for that cannot be done; the text says what to do instead."""
