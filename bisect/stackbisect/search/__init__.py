"""Finds where the bits change: pure, callables in and decisions out."""
